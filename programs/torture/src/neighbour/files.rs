//! Files that take long: of many extents, or leased by somebody who does not listen.

use std::fs::File;
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};

/// One extent, and the hole behind it.
const BLOCK_BYTES: u64 = 4096;
/// FS_IOC_FIEMAP (linux/fiemap.h): `_IOWR('f', 11, struct fiemap)`, whose fixed part has 32 bytes.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
/// fcntl(2): which signal tells of a break.
const F_SETSIG: i32 = 10;

/// Makes a file of that many extents, with holes between, and says how many the file system tells of; one that tells of none,
/// as tmpfs, is asked for blocks.
pub(crate) fn fragmented(path: &Path, extents: u32) -> Result<u64> {
    let file = File::create_new(path).with_context(|| format!("cannot make {}", path.display()))?;
    for extent in 0..u64::from(extents) {
        fallocate(&file, FallocateFlags::empty(), extent * 2 * BLOCK_BYTES, BLOCK_BYTES)
            .context("--dir: the file system cannot allocate blocks, or has none left")?;
    }
    let has = match count_extents(&file)? {
        Some(extents) => extents,
        None => file.metadata()?.blocks() * 512 / BLOCK_BYTES,
    };
    // A file system that joined them all would make this a file as any other.
    ensure!(has >= u64::from(extents) / 2, "{}: {has} extents instead of {extents}", path.display());
    Ok(has)
}

/// How many extents a file has, if its file system tells.
fn count_extents(file: &File) -> Result<Option<u64>> {
    // struct fiemap: fm_start, fm_length; fm_flags, fm_mapped_extents, fm_extent_count (none: only count), reserved.
    let mut fiemap = [0_u64; 4];
    fiemap[1] = u64::MAX;
    // SAFETY: with room for no extent the kernel writes the fixed part alone, which `fiemap` is.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, fiemap.as_mut_ptr()) };
    if answer != 0 {
        let error = Error::last_os_error();
        let untold = [libc::EOPNOTSUPP, libc::ENOTTY].map(Some).contains(&error.raw_os_error());
        return if untold { Ok(None) } else { Err(error).context("FS_IOC_FIEMAP") };
    }
    let [_flags, mapped] = [0, 4].map(|at| {
        let bytes = fiemap[2].to_ne_bytes();
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    });
    Ok(Some(u64::from(mapped)))
}

/// Makes a file on which this process holds a write lease, which ends with the value alone.
pub(crate) fn leased(path: &Path) -> Result<File> {
    let file = File::create(path)?;
    // SAFETY: two calls on an open descriptor; the signal that tells of a break is one that is ignored.
    let answers = unsafe {
        [
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG),
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK),
        ]
    };
    ensure!(answers == [0, 0], "--dir: no lease: {}", Error::last_os_error());
    Ok(file)
}

/// Writes a file of that size anew, and leaves it dirty.
pub(crate) fn dirty(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let part = vec![0x5a; 1 << 20];
    for _ in 0..bytes / part.len() as u64 {
        file.write_all(&part).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_counted() {
        let directory = tempfile::TempDir::new().unwrap();
        assert!(fragmented(&directory.path().join("many"), 40).unwrap() >= 20);
        dirty(&directory.path().join("one"), 1 << 20).unwrap();
        let one = File::open(directory.path().join("one")).unwrap();
        assert!(count_extents(&one).unwrap().is_none_or(|extents| extents < 20));
    }

    #[test]
    fn a_lease_can_be_taken_again() {
        let directory = tempfile::TempDir::new().unwrap();
        for _ in 0..2 {
            drop(leased(&directory.path().join("leased")).unwrap());
        }
    }
}
