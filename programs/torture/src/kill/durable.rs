//! Whether what a server has written is on the device, as far as the kernel can tell beside it: no page of the image is dirty.

use std::fs::{self, File};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// cachestat(2) of Linux 6.5, the same number on every architecture; `libc` does not have it everywhere.
const SYS_CACHESTAT: libc::c_long = 451;
const PROBE_BYTES: usize = 64 << 10;

/// Whether this kernel tells of dirty pages of files in `directory`: those of tmpfs are never called dirty.
pub(super) fn can_be_told(directory: &Path) -> Result<bool> {
    let path = directory.join("probe");
    fs::write(&path, vec![1; PROBE_BYTES])?;
    let told = File::open(&path).context("the probe").and_then(|file| dirty_pages(&file));
    fs::remove_file(&path)?;
    Ok(told.is_ok_and(|pages| pages > 0))
}

/// Fails if a page of the image waits to be written to the device.
pub(super) fn check(image: &Path) -> Result<()> {
    let pages = dirty_pages(&File::open(image)?)?;
    ensure!(
        pages == 0,
        "{pages} pages of the image are not on the device, although the guest has turned the write cache off, and all its \
         requests are answered: a power cut would take them"
    );
    Ok(())
}

/// Pages of a file that are dirty, or being written.
fn dirty_pages(file: &File) -> Result<u64> {
    // struct cachestat_range: offset, length (0: all).
    let range = [0_u64; 2];
    // struct cachestat: cached, dirty, under write-back, evicted, evicted recently.
    let mut answer = [0_u64; 5];
    // SAFETY: both arrays are what cachestat(2) reads and writes.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), answer.as_mut_ptr(), 0_u32) };
    ensure!(done == 0, "cachestat: {}", Error::last_os_error());
    Ok(answer[1] + answer[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_dirty_until_it_is_durable() {
        let directory = tempfile::TempDir::new().unwrap();
        if !can_be_told(directory.path()).unwrap() {
            return;
        }
        let path = directory.path().join("image");
        fs::write(&path, vec![1; PROBE_BYTES]).unwrap();
        assert!(check(&path).unwrap_err().to_string().contains("not on the device"));
        File::open(&path).unwrap().sync_all().unwrap();
        check(&path).unwrap();
    }
}
