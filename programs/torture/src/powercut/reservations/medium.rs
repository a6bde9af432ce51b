//! A file and its name on a medium that loses power.
//!
//! What a cut may leave of it: of each sector what the last sync has made certain, or anything that was written to it since; of its
//! length the same, whatever its sectors hold; and of its name whether it is there. All of these are independent of each other. Where
//! a file is longer than anything that was written, it holds zeroes.
//!
//! A sync that has failed makes nothing certain. Nor does a later one what was written before: to the kernel those pages are clean by
//! then, but for those that are written again. Lengths and names are the file system's own: it has them stored with the next sync, or
//! has none succeed any more.

use super::watch::Done;
use crate::rng::Rng;

pub(super) const SECTOR_BYTES: usize = 512;
type Sector = [u8; SECTOR_BYTES];
const ZEROES: Sector = [0; SECTOR_BYTES];

/// One thing that is on the medium.
#[derive(Clone, Debug)]
struct Cell<T> {
    certain: T,
    /// What came after that, and whether a sync of it has failed.
    later: Vec<(T, bool)>,
}

impl<T: Clone + PartialEq> Cell<T> {
    fn new(certain: T) -> Self {
        Self { certain, later: Vec::new() }
    }

    fn latest(&self) -> &T {
        self.later.last().map_or(&self.certain, |(latest, _)| latest)
    }

    fn set(&mut self, value: T) {
        self.later.push((value, false));
    }

    fn synced(&mut self) {
        if let Some((_, false)) = self.later.last()
            && let Some((latest, _)) = self.later.pop()
        {
            *self = Self::new(latest);
        }
    }

    fn sync_failed(&mut self) {
        self.later.iter_mut().for_each(|(_, failed)| *failed = true);
    }

    /// All that a cut may leave, the latest last.
    fn may_be(&self) -> Vec<T> {
        let mut all = Vec::new();
        for value in [&self.certain].into_iter().chain(self.later.iter().map(|(value, _)| value)).rev() {
            if !all.contains(value) {
                all.push(value.clone());
            }
        }
        all.reverse();
        all
    }
}

/// The file behind a name.
#[derive(Clone, Debug)]
struct Inode {
    sectors: Vec<Cell<Sector>>,
    len: Cell<usize>,
}

impl Inode {
    fn new(contents: &[u8]) -> Self {
        let sector = |bytes: &[u8]| {
            let mut sector = ZEROES;
            sector[..bytes.len()].copy_from_slice(bytes);
            Cell::new(sector)
        };
        Self { sectors: contents.chunks(SECTOR_BYTES).map(sector).collect(), len: Cell::new(contents.len()) }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        let sectors = end.div_ceil(SECTOR_BYTES).max(self.sectors.len());
        self.sectors.resize(sectors, Cell::new(ZEROES));
        let mut at = offset;
        while at < end {
            let (sector, inside) = (&mut self.sectors[at / SECTOR_BYTES], at % SECTOR_BYTES);
            let len = (SECTOR_BYTES - inside).min(end - at);
            let mut new = *sector.latest();
            new[inside..inside + len].copy_from_slice(&bytes[at - offset..][..len]);
            sector.set(new);
            at += len;
        }
        if end > *self.len.latest() {
            self.len.set(end);
        }
    }

    fn set_len(&mut self, len: usize) {
        for (at, sector) in self.sectors.iter_mut().enumerate() {
            let kept = len.saturating_sub(at * SECTOR_BYTES).min(SECTOR_BYTES);
            let mut cut = *sector.latest();
            cut[kept..].fill(0);
            if cut != *sector.latest() {
                sector.set(cut);
            }
        }
        self.len.set(len);
    }
}

/// The medium.
#[derive(Clone, Debug)]
pub(super) struct Medium {
    /// All files that ever had the name.
    inodes: Vec<Inode>,
    /// Which of them has it.
    name: Cell<Option<usize>>,
}

/// What a cut leaves: contents, or no file.
pub(super) type Image = Option<Vec<u8>>;

impl Medium {
    pub(super) fn new(left: &Image) -> Self {
        let inodes: Vec<_> = left.iter().map(|contents| Inode::new(contents)).collect();
        Self { name: Cell::new((!inodes.is_empty()).then_some(0)), inodes }
    }

    /// Something was done.
    pub(super) fn happens(&mut self, done: &Done) {
        if let Done::Made = done {
            self.inodes.push(Inode::new(&[]));
            self.name.set(Some(self.inodes.len() - 1));
        }
        let Some(file) = self.inodes.last_mut() else { return };
        match done {
            Done::Made => {}
            Done::Removed => self.name.set(None),
            Done::Wrote { offset, bytes } => file.write(*offset, bytes),
            Done::SetLen(len) => file.set_len(*len),
            Done::Synced => {
                file.sectors.iter_mut().for_each(Cell::synced);
                file.len.synced();
            }
            Done::SyncFailed => file.sectors.iter_mut().for_each(Cell::sync_failed),
            Done::NameSynced => self.name.synced(),
        }
    }

    /// What cuts leave, each once: all that may be, if it is no more than `most`, or else that many; and whether it is all.
    pub(super) fn images(&self, most: u64, rng: &mut Rng) -> (Vec<Image>, bool) {
        let mut choices = Vec::new();
        let mut images = Vec::new();
        for name in self.name.may_be() {
            let Some(file) = name.and_then(|inode| self.inodes.get(inode)) else {
                images.push(None);
                continue;
            };
            choices.extend(file.len.may_be().into_iter().map(|len| Choice::new(file, len)));
        }
        let total = choices.iter().fold(0, |sum: u64, choice| sum.saturating_add(choice.count));
        if total <= most {
            images.extend(choices.iter().flat_map(|choice| (0..choice.count).map(|number| Some(choice.image(number)))));
            return (images, true);
        }
        let each = most / choices.len().max(1) as u64;
        images.extend(choices.iter().flat_map(|choice| choice.some(each, rng)).map(Some));
        (images, false)
    }
}

/// What may be in a file of one length.
struct Choice {
    len: usize,
    sectors: Vec<Vec<Sector>>,
    /// In how many ways.
    count: u64,
}

impl Choice {
    fn new(file: &Inode, len: usize) -> Self {
        let there = len.div_ceil(SECTOR_BYTES);
        let mut sectors: Vec<_> = file.sectors.iter().take(there).map(Cell::may_be).collect();
        sectors.resize(there, vec![ZEROES]);
        let count = sectors.iter().fold(1, |product: u64, sector| product.saturating_mul(sector.len() as u64));
        Self { len, sectors, count }
    }

    fn of(&self, mut pick: impl FnMut(usize, &[Sector]) -> usize) -> Vec<u8> {
        let mut image = Vec::with_capacity(self.sectors.len() * SECTOR_BYTES);
        for (at, sector) in self.sectors.iter().enumerate() {
            image.extend_from_slice(&sector[pick(at, sector)]);
        }
        image.truncate(self.len);
        image
    }

    /// That of this number.
    fn image(&self, mut number: u64) -> Vec<u8> {
        self.of(|_, sector| {
            let pick = number % sector.len() as u64;
            number /= sector.len() as u64;
            pick as usize
        })
    }

    /// All old, all new, one sector unlike all others, beginnings and ends; and what chance brings.
    fn some(&self, most: u64, rng: &mut Rng) -> Vec<Vec<u8>> {
        let open: Vec<_> = (0..self.sectors.len()).filter(|at| self.sectors[*at].len() > 1).collect();
        let last = |sector: &[Sector]| sector.len() - 1;
        let mut images = vec![self.of(|_, _| 0), self.of(|_, sector| last(sector))];
        for chosen in &open {
            images.push(self.of(|at, sector| if at == *chosen { last(sector) } else { 0 }));
            images.push(self.of(|at, sector| if at == *chosen { 0 } else { last(sector) }));
            images.push(self.of(|at, sector| if at <= *chosen { last(sector) } else { 0 }));
            images.push(self.of(|at, sector| if at <= *chosen { 0 } else { last(sector) }));
        }
        while (images.len() as u64) < most {
            images.push(self.of(|_, sector| rng.within(0..=last(sector) as u64) as usize));
        }
        images.truncate(most as usize);
        images
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(medium: &Medium) -> Vec<Image> {
        let (images, is_all) = medium.images(1 << 16, &mut Rng::new(1, 1));
        assert!(is_all);
        let distinct = images.iter().filter(|image| images.iter().filter(|other| other == image).count() == 1).count();
        assert_eq!(distinct, images.len(), "each once");
        images
    }

    fn wrote(offset: usize, byte: u8, sectors: usize) -> Done {
        Done::Wrote { offset: offset * SECTOR_BYTES, bytes: vec![byte; sectors * SECTOR_BYTES] }
    }

    fn filled(bytes: &[u8]) -> Image {
        Some(bytes.iter().flat_map(|byte| [*byte; SECTOR_BYTES]).collect())
    }

    #[test]
    fn what_is_not_synced_may_be_there_in_any_part() {
        let mut medium = Medium::new(&filled(&[0, 0]));
        assert_eq!(all(&medium), [filled(&[0, 0])]);
        medium.happens(&wrote(0, 1, 2));
        medium.happens(&wrote(1, 2, 1));
        let images = all(&medium);
        assert_eq!(images.len(), 6);
        for (first, second) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            assert!(images.contains(&filled(&[first, second])));
        }
        medium.happens(&Done::Synced);
        assert_eq!(all(&medium), [filled(&[1, 2])]);
    }

    #[test]
    fn a_sync_after_one_that_has_failed_makes_nothing_certain() {
        let mut medium = Medium::new(&filled(&[0, 0]));
        medium.happens(&wrote(0, 1, 2));
        medium.happens(&Done::SyncFailed);
        medium.happens(&Done::Synced);
        assert_eq!(all(&medium).len(), 4);
        medium.happens(&wrote(0, 3, 1));
        medium.happens(&Done::Synced);
        assert_eq!(all(&medium), [filled(&[3, 0]), filled(&[3, 1])]);
    }

    #[test]
    fn lengths_and_names_are_lost_apart_from_contents() {
        let mut medium = Medium::new(&None);
        medium.happens(&Done::Made);
        medium.happens(&wrote(0, 1, 1));
        assert_eq!(all(&medium), [None, Some(Vec::new()), filled(&[0]), filled(&[1])]);
        medium.happens(&Done::Synced);
        assert_eq!(all(&medium), [None, filled(&[1])]);
        medium.happens(&Done::NameSynced);
        medium.happens(&Done::SetLen(0));
        // Cut, and not yet shorter.
        assert_eq!(all(&medium), [filled(&[1]), filled(&[0]), Some(Vec::new())]);
        medium.happens(&Done::Removed);
        assert!(all(&medium).contains(&None));
    }

    #[test]
    fn of_too_many_ways_some_are_tried() {
        let mut medium = Medium::new(&filled(&[0; 32]));
        medium.happens(&wrote(0, 1, 32));
        let (images, is_all) = medium.images(300, &mut Rng::new(1, 1));
        assert!(!is_all && images.len() == 300);
        assert!(images.contains(&filled(&[0; 32])) && images.contains(&filled(&[1; 32])));
    }
}
