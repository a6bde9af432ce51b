//! Where a disk has data, by the tables of its images and the holes of what is raw behind them.

use super::chain::{Chain, Image, Local};
use super::error::Trouble;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};
use storage::Extent;
use storage::extent::{self, Extents};

/// For so long one list of extents is worked at: tables may have to be loaded, and there are long chains.
const LOOK_TIME: Duration = Duration::from_millis(10);
/// Clusters that are looked at without a look at the clock.
const LOOK_CLUSTERS: u64 = 1024;
/// Entries of an L1 table likewise.
const LOOK_TABLES: u64 = 1 << 16;
/// Extents that a raw file is asked for at once.
const LOOK_EXTENTS: usize = 256;

/// What an image says of bytes, without where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Zeroes,
    Data,
}

/// What was found out on the way through a range.
struct Look {
    /// What each image says, up to which byte.
    images: Vec<(Said, u64)>,
    /// Whether the raw file behind them has data, up to which byte each.
    base: VecDeque<(bool, u64)>,
}

impl Image {
    /// How many bytes from a guest offset on, of at most `len`, have no L2 table, as far as that is looked at once.
    fn without_table(&self, guest: u64, len: u64) -> u64 {
        let (first, _) = self.geometry.place(guest);
        let empty = (first..first + LOOK_TABLES).take_while(|l1| self.tables.l1(*l1) == 0).count() as u64;
        self.geometry.guest(first + empty, 0).saturating_sub(guest).min(len)
    }
}

impl Chain {
    /// Where a range has data, in at most `most` extents: as far as can be told in a moment. Blocks.
    pub(super) fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, Trouble> {
        let until = Instant::now() + LOOK_TIME;
        let mut found = Extents::of(range, most);
        let mut look = Look { images: vec![(Said::Nothing, 0); self.images.len()], base: VecDeque::new() };
        while let Some(rest) = found.rest() {
            match self.extent(&rest, &mut look) {
                Ok((data, bytes)) if found.add(bytes, data) => {}
                Ok(_) => break,
                Err(trouble) if found.is_empty() => return Err(trouble),
                // It is met when its turn comes.
                Err(_) => break,
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(found.into_list())
    }

    /// Whether the first byte of a range is data, and up to how many bytes that goes on. Each entry of each image is looked at once: what was
    /// said of those behind is kept in `look`.
    fn extent(&self, range: &Range<u64>, look: &mut Look) -> Result<(bool, u64), Trouble> {
        let Range { start, mut end } = *range;
        for (number, image) in self.images.iter().enumerate() {
            if start >= image.size_bytes() {
                return Ok((false, end - start));
            }
            end = end.min(image.size_bytes());
            let (said, known) = &mut look.images[number];
            if *known <= start {
                let (what, bytes) = match image.without_table(start, end - start) {
                    0 => self.said(number, start, (end - start).min(LOOK_CLUSTERS << image.geometry.cluster_bits))?,
                    bytes => (Said::Nothing, bytes),
                };
                (*said, *known) = (what, start + bytes);
            }
            end = end.min(*known);
            match said {
                Said::Nothing => {}
                Said::Zeroes => return Ok((false, end - start)),
                Said::Data => return Ok((true, end - start)),
            }
        }
        let Some(base) = self.base.map(|number| self.file(number)) else { return Ok((false, end - start)) };
        if start >= base.capacity_bytes() {
            return Ok((false, end - start));
        }
        // What is raw behind all images has holes of its own.
        while let Some(first) = look.base.front()
            && first.1 <= start
        {
            look.base.pop_front();
        }
        if look.base.front().is_none() {
            let wanted = start..range.end.min(base.capacity_bytes());
            let list = extent::ask(base, wanted, LOOK_EXTENTS).map_err(|error| error.raw_errno())?;
            let mut known = start;
            for Extent { bytes, data } in list {
                known += bytes;
                look.base.push_back((data, known));
            }
        }
        let (data, stop) = look.base.front().copied().unwrap_or((true, end));
        Ok((data, end.min(stop) - start))
    }

    /// What one image says by an L2 table.
    fn said(&self, number: usize, guest: u64, len: u64) -> Result<(Said, u64), Trouble> {
        let (local, bytes) = self.local_loading(number, guest, len)?;
        let said = match local {
            Local::Unallocated => Said::Nothing,
            Local::Zero => Said::Zeroes,
            Local::Data { .. } | Local::Compressed(_) => Said::Data,
            Local::Missing => return Err(Trouble::Errno(libc::EIO)),
        };
        Ok((said, bytes))
    }

    /// Where the first image has something of a range itself, be it zeroes, in at most `most` extents: elsewhere there is
    /// what is behind it. Blocks, for as long as it takes.
    pub(super) fn own_extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, Trouble> {
        let mut found = Extents::of(range, most);
        while let Some(Range { start, end }) = found.rest() {
            let (local, len) = self.local_loading(0, start, end - start)?;
            if !found.add(len, local != Local::Unallocated) {
                break;
            }
        }
        Ok(found.into_list())
    }
}
