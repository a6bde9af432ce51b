//! Sizes, alignments and abilities, as the kernel tells them.

use rustix::fs::{AtFlags, FileType, SeekFrom, StatxFlags};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Of Linux' `include/uapi/linux/magic.h`.
const TMPFS_MAGIC: u32 = 0x0102_1994;
const RAMFS_MAGIC: u32 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// Announced for files: the page size and the block size of common file systems and of flash.
const FILE_BLOCK_BYTES: u32 = 4096;

/// Largest alignment of O_DIRECT that is believed, in bytes. Logical blocks end at 64 KiB.
const ALIGN_MAX: u32 = 65536;

/// What is known of an open file.
#[derive(Clone, Debug)]
pub(crate) struct Measures {
    /// A block device.
    pub(crate) device: bool,
    /// Contents live in memory: calls do not wait, and there is nothing to flush.
    pub(crate) memory: bool,
    /// Where buffers of the file's I/O must start; a power of two, 1 = anywhere.
    pub(crate) memory_align: usize,
    /// Where requests must start and end; a power of two, 1 = anywhere.
    pub(crate) offset_align: u64,
    /// Blocks of which the file system changes a part in its page cache, in bytes, although the file bypasses that; 1 = none.
    pub(crate) cached_block_bytes: u64,
    pub(crate) logical_block_bytes: u32,
    pub(crate) physical_block_bytes: u32,
    pub(crate) optimal_io_bytes: u32,
    pub(crate) discard_granularity_bytes: u32,
    /// The device says that it discards; meaningless for files.
    pub(crate) device_discards: bool,
}

impl Measures {
    pub(crate) fn take(fd: impl AsFd, direct: bool) -> io::Result<Measures> {
        let about = rustix::fs::fstat(&fd)?;
        let device = FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice;
        let memory = !device && file_system_memory(&fd)?;
        let block = match device {
            true => rustix::fs::ioctl_blksszget(&fd)?,
            false => 512,
        };
        let physical = match device {
            true => rustix::fs::ioctl_blkpbszget(&fd)?,
            false => FILE_BLOCK_BYTES,
        };
        let queue = device.then(|| QueueDirectory::of(about.st_rdev));
        let read = |name| queue.as_ref().and_then(|queue| queue.number(name)).unwrap_or(0);
        let (memory_align, offset_align) = if direct { direct_alignment(&fd, device.then_some(block)) } else { (1, 1) };
        let granularity = match device {
            true => u32::try_from(read("discard_granularity")).unwrap_or(0),
            false => u32::try_from(about.st_blksize).unwrap_or(0),
        };
        Ok(Measures {
            device,
            memory,
            memory_align: memory_align as usize,
            offset_align: u64::from(offset_align),
            cached_block_bytes: if direct && !device && !memory { u64::from(FILE_BLOCK_BYTES) } else { 1 },
            // Guests know no larger ones; a device with larger blocks is served through the bounce path.
            logical_block_bytes: sane(block).min(4096),
            physical_block_bytes: sane(physical).max(sane(block).min(4096)),
            optimal_io_bytes: u32::try_from(read("optimal_io_size")).unwrap_or(0) / 4096 * 4096,
            discard_granularity_bytes: (granularity / 512 * 512).max(512),
            device_discards: read("discard_max_bytes") > 0,
        })
    }
}

/// A power of two from 512 to 64 KiB.
fn sane(bytes: u32) -> u32 {
    bytes.clamp(512, ALIGN_MAX).next_power_of_two()
}

/// Alignment of addresses and of offsets for O_DIRECT. The kernel tells since 6.1; before, the device's logical block is safe, and
/// for files, whose device may have any, 4096.
fn direct_alignment(fd: impl AsFd, device_block: Option<u32>) -> (u32, u32) {
    let fallback = device_block.map_or(FILE_BLOCK_BYTES, sane);
    let told = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(libc::STATX_DIOALIGN))
        .ok()
        .filter(|about| about.stx_mask & libc::STATX_DIOALIGN != 0)
        .map(|about| (about.stx_dio_mem_align, about.stx_dio_offset_align))
        .filter(|(memory, offset)| usable(*memory) && usable(*offset));
    told.unwrap_or((fallback, fallback))
}

fn usable(align: u32) -> bool {
    align.is_power_of_two() && align <= ALIGN_MAX
}

/// Whether the file's contents live in memory.
///
/// # Errors
/// The kernel does not tell.
pub fn file_system_memory(fd: impl AsFd) -> io::Result<bool> {
    let magics = [TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC];
    Ok(magics.contains(&magic(fd)?))
}

/// Whether the file has huge pages and is sized in them.
pub(crate) fn huge_page_file(fd: impl AsFd) -> bool {
    magic(fd).is_ok_and(|magic| magic == HUGETLBFS_MAGIC)
}

fn magic(fd: impl AsFd) -> io::Result<u32> {
    // The type of the field differs between architectures; magics have 32 bits.
    Ok(rustix::fs::fstatfs(fd)?.f_type as u32)
}

/// Size of a file or a device, in bytes.
pub(crate) fn size_bytes(fd: impl AsFd) -> io::Result<u64> {
    let about = rustix::fs::fstat(&fd)?;
    match FileType::from_raw_mode(about.st_mode) {
        // Nothing here uses the file position.
        FileType::BlockDevice => Ok(rustix::fs::seek(fd, SeekFrom::End(0))?),
        _ => Ok(u64::try_from(about.st_size).unwrap_or(0)),
    }
}

/// A kind of file, in words.
pub(crate) fn kind_words(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::RegularFile => "regular file",
        _ => "file of an unknown kind",
    }
}

/// The queue directory of a device in sysfs; a partition's is its disk's.
struct QueueDirectory(PathBuf);

impl QueueDirectory {
    fn of(device: u64) -> QueueDirectory {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let own = device.join("queue");
        // The link leads to .../disk/partition, whose parent is the disk.
        QueueDirectory(if own.is_dir() { own } else { device.join("../queue") })
    }

    fn number(&self, name: &str) -> Option<u64> {
        std::fs::read_to_string(self.0.join(name)).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_in_range() {
        let cases = [(0, 512), (1, 512), (512, 512), (513, 1024), (4096, 4096), (5000, 8192), (u32::MAX, 65536)];
        for (told, believed) in cases {
            assert_eq!(sane(told), believed);
        }
        assert!(usable(1) && usable(512) && usable(65536));
        assert!(!usable(0) && !usable(3) && !usable(1 << 17));
    }

    #[test]
    fn files_are_measured() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1000).unwrap();
        assert_eq!(size_bytes(&file).unwrap(), 1000);
        let measures = Measures::take(&file, false).unwrap();
        assert!(!measures.device);
        assert_eq!((measures.memory_align, measures.offset_align), (1, 1));
        assert_eq!(measures.logical_block_bytes, 512);
        let shm = tempfile::tempfile_in("/dev/shm").unwrap();
        assert!(Measures::take(&shm, false).unwrap().memory);
    }
}
