//! Where a file has data, as its file system tells.

use crate::extent::{Extent, Extents};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

/// Extents of `range`, `most` of them. A file that cannot be asked, as devices cannot, has data everywhere.
pub(super) fn extents(fd: impl AsFd, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
    let mut found = Extents::of(range, most);
    // Holes have the grain of the file system, extents that of sectors: those of data begin and end around it.
    while let Some(Range { start, end }) = found.rest() {
        let data = match rustix::fs::seek(&fd, SeekFrom::Data(start)) {
            Ok(data) => data.min(end),
            // There is no more.
            Err(Errno::NXIO) => end,
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => start,
            Err(errno) => return Err(errno.into()),
        };
        if !found.add((data / 512 * 512).saturating_sub(start), false) || data == end {
            break;
        }
        let hole = match rustix::fs::seek(&fd, SeekFrom::Hole(data)) {
            Ok(hole) => hole.max(data + 1).next_multiple_of(512),
            // It was cut short since, or cannot be asked.
            Err(_) => end,
        };
        if !found.add(hole - (data / 512 * 512).max(start), true) {
            break;
        }
    }
    Ok(found.into_list())
}

#[cfg(test)]
mod tests {
    use super::*;
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
            let of = |range, most| extents(&file, range, most).unwrap();
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
        }
    }

    #[test]
    fn what_cannot_be_asked_has_data_everywhere() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        assert_eq!(extents(&pipe, 512..4096, 8).unwrap(), [Extent { bytes: 3584, data: true }]);
    }
}
