//! What a disk must hold, sector by sector, from what was written to it and acknowledged.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::pattern::{self, SECTOR_BYTES};

/// Sectors read at a time from an image.
const SECTORS_A_READ: usize = 256;

/// One sector.
#[derive(Clone, Copy, Debug, Default)]
struct Sector {
    /// The generation that was acknowledged last. 0: zeroes.
    generation: u64,
    /// The generation of the write in flight, if there is one.
    coming: Option<u64>,
    /// Reads in flight.
    readers: u16,
    /// It was given up since: it holds that, zeroes, or, where a disk [forgets](Contents::forgets), anything that was there before.
    given_up: bool,
}

impl Sector {
    /// Whether sector `number` of a run holds what it may while nothing is in flight.
    fn is_right(&self, found: &[u8], run: u64, number: u64, forgets: bool) -> bool {
        let holds = |generation| pattern::holds(found, run, number, generation);
        let is_older = || forgets && holds(pattern::generation(found).min(self.generation));
        holds(self.generation) || (self.given_up && (holds(0) || is_older()))
    }
}

/// A disk as it must be.
///
/// Requests in flight never touch the same sector unless all of them read: what a disk owes to overlapping requests is
/// not defined, and the answer to a read would prove nothing.
#[derive(Debug)]
pub(crate) struct Contents {
    run: u64,
    sectors: Vec<Sector>,
    generations: u64,
    /// A log in front of the disk may forget what it has of a sector that was given up, and then what the disk has comes to light (SBC-4
    /// calls it vendor specific where LBPRZ is 0).
    forgets: bool,
}

impl Contents {
    /// A disk of `sectors` zeroes. `run` tells its data from another run's.
    pub(super) fn new(run: u64, sectors: u64, forgets: bool) -> Self {
        Self { run, sectors: vec![Sector::default(); sectors as usize], generations: 0, forgets }
    }

    /// Its size in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    fn range(first: u64, count: u64) -> Range<usize> {
        first as usize..(first + count) as usize
    }

    fn slice(&mut self, first: u64, count: u64) -> &mut [Sector] {
        // Requests are made from the disk's size.
        &mut self.sectors[Self::range(first, count)]
    }

    /// Notes that a read begins; false if a write is in the way.
    pub(super) fn begin_read(&mut self, first: u64, count: u64) -> bool {
        let sectors = self.slice(first, count);
        let free = sectors.iter().all(|sector| sector.coming.is_none());
        if free {
            sectors.iter_mut().for_each(|sector| sector.readers += 1);
        }
        free
    }

    /// Notes that a write of a new generation begins, or of zeroes, and says which; `None` if anything is in the way.
    pub(super) fn begin_write(&mut self, first: u64, count: u64, zeroes: bool) -> Option<u64> {
        let generation = if zeroes { 0 } else { self.generations + 1 };
        let sectors = self.slice(first, count);
        if sectors.iter().any(|sector| sector.coming.is_some() || sector.readers > 0) {
            return None;
        }
        sectors.iter_mut().for_each(|sector| sector.coming = Some(generation));
        self.generations = self.generations.max(generation);
        Some(generation)
    }

    /// As [`begin_write`](Self::begin_write), for a write over what is known; `None` also if that is not.
    pub(super) fn begin_swap(&mut self, first: u64, count: u64) -> Option<u64> {
        let is_known = self.slice(first, count).iter().all(|sector| !sector.given_up);
        is_known.then(|| self.begin_write(first, count, false)).flatten()
    }

    /// Fills `data` with what the sectors from `first` on hold.
    pub(super) fn fill_known(&self, data: &mut [u8], first: u64) {
        for (number, data) in (first..).zip(data.chunks_exact_mut(SECTOR_BYTES)) {
            pattern::fill(data, self.run, number, self.sectors[number as usize].generation);
        }
    }

    /// Notes that sectors were given up: a disk may make zeroes of them, or leave them.
    pub(super) fn end_discard(&mut self, first: u64, count: u64) {
        for sector in self.slice(first, count) {
            sector.coming = None;
            sector.given_up = true;
        }
    }

    /// Fills `data` with what the write of `generation` from sector `first` on carries.
    pub(super) fn fill(&self, data: &mut [u8], first: u64, generation: u64) {
        pattern::fill(data, self.run, first, generation);
    }

    /// Notes that a write was acknowledged.
    pub(super) fn end_write(&mut self, first: u64, count: u64) {
        for sector in self.slice(first, count) {
            if let Some(generation) = sector.coming.take() {
                sector.generation = generation;
                sector.given_up = false;
            }
        }
    }

    /// Notes that a read ended, and judges what it delivered.
    pub(super) fn end_read(&mut self, first: u64, data: &[u8]) -> Result<()> {
        let (run, forgets) = (self.run, self.forgets);
        let sectors = self.slice(first, (data.len() / SECTOR_BYTES) as u64);
        for ((number, sector), found) in (first..).zip(sectors).zip(data.chunks_exact(SECTOR_BYTES)) {
            sector.readers -= 1;
            let expected = sector.generation;
            ensure!(
                sector.is_right(found, run, number, forgets),
                "sector {number}: a read must deliver generation {expected}{}, but delivered {}",
                if sector.given_up { " or what may be there of what was given up" } else { "" },
                pattern::describe(found, run, number)
            );
        }
        Ok(())
    }

    /// Compares an image with what it must hold. Where a write is in flight, old and new are both right, sector by sector:
    /// a disk promises no more.
    pub(crate) fn check_image(&self, path: &Path) -> Result<()> {
        let cannot = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(cannot)?;
        let mut data = vec![0; SECTORS_A_READ * SECTOR_BYTES];
        for (chunk, sectors) in self.sectors.chunks(SECTORS_A_READ).enumerate() {
            let data = &mut data[..sectors.len() * SECTOR_BYTES];
            file.read_exact(data).with_context(cannot)?;
            for (at, (sector, found)) in sectors.iter().zip(data.chunks_exact(SECTOR_BYTES)).enumerate() {
                self.judge((chunk * SECTORS_A_READ + at) as u64, sector, found)?;
            }
        }
        Ok(())
    }

    fn judge(&self, number: u64, sector: &Sector, found: &[u8]) -> Result<()> {
        let holds = |generation| pattern::holds(found, self.run, number, generation);
        if sector.is_right(found, self.run, number, self.forgets) || sector.coming.is_some_and(holds) {
            return Ok(());
        }
        let found = pattern::describe(found, self.run, number);
        let generation = sector.generation;
        match sector.coming {
            None => bail!("sector {number} of the image: generation {generation} was acknowledged, it holds {found}"),
            Some(coming) => bail!(
                "sector {number} of the image: generation {generation} was acknowledged and {coming} is in flight, it \
                 holds {found}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SECTORS: u64 = 8;

    fn written() -> (Contents, Vec<u8>) {
        let mut contents = Contents::new(1, SECTORS, true);
        let mut image = vec![0; SECTORS as usize * SECTOR_BYTES];
        let generation = contents.begin_write(2, 3, false).unwrap();
        contents.fill(&mut image[2 * SECTOR_BYTES..5 * SECTOR_BYTES], 2, generation);
        (contents, image)
    }

    fn check(contents: &Contents, image: &[u8]) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("image");
        fs::write(&path, image)?;
        contents.check_image(&path)
    }

    #[test]
    fn requests_that_would_meet_wait() {
        let mut contents = Contents::new(1, SECTORS, true);
        assert!(contents.begin_read(0, 4) && contents.begin_read(2, 4));
        assert_eq!(contents.begin_write(3, 1, false), None);
        assert_eq!(contents.begin_write(6, 2, false), Some(1));
        assert!(!contents.begin_read(7, 1));
        assert_eq!(contents.begin_write(7, 1, true), None);
        contents.end_write(6, 2);
        assert!(contents.begin_read(7, 1));
    }

    #[test]
    fn a_write_in_flight_may_be_there_or_not_or_in_part() {
        let (contents, image) = written();
        check(&contents, &image).unwrap();
        check(&contents, &vec![0; image.len()]).unwrap();
        let mut torn = image;
        torn[2 * SECTOR_BYTES..3 * SECTOR_BYTES].fill(0);
        check(&contents, &torn).unwrap();
        torn[3 * SECTOR_BYTES + 100] ^= 1;
        assert!(check(&contents, &torn).unwrap_err().to_string().contains("sector 3"));
    }

    #[test]
    fn an_acknowledged_write_must_be_there() {
        let (mut contents, image) = written();
        contents.end_write(2, 3);
        check(&contents, &image).unwrap();
        let error = check(&contents, &vec![0; image.len()]).unwrap_err().to_string();
        assert!(error.contains("sector 2") && error.contains("generation 1 was acknowledged"), "{error}");
        assert!(check(&contents, &image[..image.len() - 1]).is_err(), "an image that is too short");
    }

    #[test]
    fn what_was_given_up_is_there_or_what_was_before_until_it_is_written() {
        let (mut contents, image) = written();
        contents.end_write(2, 3);
        let older = image.clone();
        let generation = contents.begin_write(2, 1, false).unwrap();
        let mut image = image;
        contents.fill(&mut image[2 * SECTOR_BYTES..3 * SECTOR_BYTES], 2, generation);
        contents.end_write(2, 1);
        assert!(check(&contents, &older).is_err(), "it was written");
        assert_eq!(contents.begin_write(2, 1, true), Some(0));
        contents.end_discard(2, 1);
        assert_eq!(contents.begin_swap(2, 1), None);
        check(&contents, &image).unwrap();
        check(&contents, &older).unwrap();
        contents.forgets = false;
        check(&contents, &image).unwrap();
        assert!(check(&contents, &older).is_err(), "nothing forgets it");
        let mut zeroed = image.clone();
        zeroed[2 * SECTOR_BYTES..3 * SECTOR_BYTES].fill(0);
        check(&contents, &zeroed).unwrap();
        zeroed[2 * SECTOR_BYTES] = 1;
        assert!(check(&contents, &zeroed).is_err());
        // Nothing that was never there.
        let mut later = image.clone();
        contents.fill(&mut later[2 * SECTOR_BYTES..3 * SECTOR_BYTES], 2, generation + 1);
        assert!(check(&contents, &later).is_err());
        contents.begin_write(2, 1, true).unwrap();
        contents.end_write(2, 1);
        assert!(check(&contents, &image).is_err(), "zeroes were written");
    }

    #[test]
    fn a_swap_expects_what_was_acknowledged() {
        let (mut contents, image) = written();
        contents.end_write(2, 3);
        let mut expected = vec![1; 2 * SECTOR_BYTES];
        assert_eq!(contents.begin_swap(1, 2), Some(2));
        contents.fill_known(&mut expected, 1);
        assert_eq!(expected, image[SECTOR_BYTES..3 * SECTOR_BYTES]);
    }

    #[test]
    fn a_read_is_judged_by_what_was_acknowledged() {
        let (mut contents, image) = written();
        contents.end_write(2, 3);
        assert!(contents.begin_read(1, 2));
        contents.end_read(1, &image[SECTOR_BYTES..3 * SECTOR_BYTES]).unwrap();
        assert!(contents.begin_read(1, 2));
        let error = contents.end_read(1, &vec![0; 2 * SECTOR_BYTES]).unwrap_err().to_string();
        assert!(error.contains("sector 2") && error.contains("zeroes"), "{error}");
    }
}
