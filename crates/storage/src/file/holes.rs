//! Where a file has data, as its file system tells.

use crate::extent::{Extent, Extents};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Data that was found last. To find its end a file system may walk through all of it (tmpfs does, for milliseconds a GiB, and nobody
/// writes meanwhile), however little was asked for. Only data is remembered, which may always be told of.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<Range<u64>>);

impl Known {
    /// Some of it may be a hole from now on.
    pub(super) fn forget(&self) {
        *self.lock() = 0..0;
    }

    fn lock(&self) -> MutexGuard<'_, Range<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the known data ends that has this byte.
    fn end(&self, at: u64) -> Option<u64> {
        let known = self.lock();
        known.contains(&at).then_some(known.end)
    }
}

/// Extents of `range`, `most` of them. A file that cannot be asked, as devices cannot, has data everywhere.
pub(super) fn extents(fd: impl AsFd, known: &Known, range: Range<u64>, most: usize) -> Vec<Extent> {
    let mut found = Extents::of(range, most);
    // Holes have the grain of the file system, extents that of sectors: those of data begin and end around it.
    while let Some(Range { start, end }) = found.rest() {
        if let Some(stop) = known.end(start) {
            if !found.add(stop - start, true) {
                break;
            }
            continue;
        }
        let data = match rustix::fs::seek(&fd, SeekFrom::Data(start)) {
            Ok(data) => data.min(end),
            // There is no more.
            Err(Errno::NXIO) => end,
            Err(_) => start,
        };
        let first = (data / 512 * 512).max(start);
        if !found.add(first - start, false) || data == end {
            break;
        }
        let hole = match rustix::fs::seek(&fd, SeekFrom::Hole(data)) {
            Ok(hole) => hole.max(data + 1).next_multiple_of(512),
            // It was cut short since, or cannot be asked.
            Err(_) => end,
        };
        *known.lock() = first..hole;
        if !found.add(hole - first, true) {
            break;
        }
    }
    found.into_list()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_found() {
        // On a disk, wherever the build is.
        let program = std::env::current_exe().unwrap();
        for directory in [program.parent().unwrap(), "/dev/shm".as_ref()] {
            let file = tempfile::tempfile_in(directory).unwrap();
            file.set_len(16 << 20).unwrap();
            file.write_all_at(&[1; 4096], 4 << 20).unwrap();
            file.write_all_at(&[1; 10], 9 << 20).unwrap();
            let known = Known::default();
            let of = |range, most| extents(&file, &known, range, most);
            let extent = |bytes: u64, data| Extent { bytes, data };
            let (hole, page) = ((4 << 20) - 4096, 4096);
            let expected = [
                extent(3 << 20, false),
                extent(page, true),
                extent(hole + (1 << 20), false),
                extent(page, true),
                extent((7 << 20) - page, false),
            ];
            assert_eq!(of(1 << 20..16 << 20, 100), expected, "{}", directory.display());
            assert_eq!(of(1 << 20..16 << 20, 2), expected[..2]);
            // What lies behind the end of a file reads as zeroes.
            assert_eq!(of(15 << 20..20 << 20, 100), [extent(5 << 20, false)]);
            assert_eq!(of((4 << 20) + 512..(4 << 20) + 1024, 1), [extent(512, true)]);
            assert_eq!(of(0..0, 100), []);
            // What was written beside known data is found, and what was known is told of until it is forgotten.
            file.write_all_at(&[1; 4096], (4 << 20) + 4096).unwrap();
            assert_eq!(of(4 << 20..5 << 20, 100), [extent(2 * page, true), extent((1 << 20) - 2 * page, false)]);
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, punch, 4 << 20, 8192).unwrap();
            assert_eq!(of((4 << 20) + 4096..(4 << 20) + 8192, 1), [extent(page, true)]);
            known.forget();
            assert_eq!(of(4 << 20..5 << 20, 100), [extent(1 << 20, false)]);
        }
    }

    #[test]
    fn what_cannot_be_asked_has_data_everywhere() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        assert_eq!(extents(&pipe, &Known::default(), 512..4096, 8), [Extent { bytes: 3584, data: true }]);
    }
}
