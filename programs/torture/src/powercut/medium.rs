//! A device with a volatile cache, and what of it a power cut may leave.
//!
//! The model: a write may be on stable storage from the moment it was given to the device. It *is* there once it is complete,
//! if it was durable, and otherwise once a flush is complete that was begun after the write was complete. Until then each of
//! its sectors is there or not, whatever became of the others and of other writes. What is never seen again is a sector that
//! was overwritten by something that is certain. A change of size is certain behind the next flush, too.

use super::image::Image;
use super::stamp::SECTOR_BYTES;
use super::trace::{LowerWrite, NEVER, Time, Trace};
use crate::rng::Rng;

/// Sectors of the two superblock slots.
const SUPERBLOCK_BYTES: u64 = 8192;

/// How a cut treats what is not certain. Drawn for each cut: uniformly random losses alone would hardly ever lose exactly
/// the one write that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// All of it is lost.
    All,
    /// Nothing is lost.
    Nothing,
    /// Each write is lost or not.
    Writes,
    /// Each sector is lost or not.
    Sectors,
    /// One write is lost.
    One,
    /// All but one write is lost.
    AllButOne,
    /// The older writes are lost, and one is torn.
    Older,
    /// The newer writes are lost, and one is torn.
    Newer,
    /// Superblocks, log and data have a fate each: the same for all of a kind.
    Kinds,
}

impl Loss {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        use Loss::{All, AllButOne, Kinds, Newer, Nothing, Older, One, Sectors, Writes};
        rng.pick(&[All, Nothing, Writes, Sectors, One, AllButOne, Older, Newer, Kinds, Kinds])
    }
}

/// What becomes of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    Torn,
}

impl Fate {
    fn draw(rng: &mut Rng) -> Self {
        rng.pick(&[Self::Kept, Self::Lost, Self::Torn])
    }
}

/// A write that is not certain.
#[derive(Clone, Copy, Debug)]
struct Pending {
    write: u32,
    /// When it was complete, or [`NEVER`].
    done: Time,
}

/// One device, between two events.
pub(super) struct Medium {
    /// What is certain.
    floor: Vec<u8>,
    /// When what the floor holds was complete, sector by sector.
    since: Vec<Time>,
    bytes: u64,
    /// Sizes that are not certain, in their order.
    sizes: Vec<(Time, u64)>,
    pending: Vec<Pending>,
    /// Where data begins, in bytes.
    data_from: u64,
    /// What of the floor has changed since somebody asked, in bytes.
    changed: Vec<(u64, u64)>,
}

impl Medium {
    /// A device that holds `before`, with room for `bytes_max`. Its data begins at `data_from`; without any, all of it is log.
    pub(super) fn new(before: &[u8], bytes_max: u64, data_from: u64) -> Self {
        let mut floor = before.to_vec();
        floor.resize(bytes_max as usize, 0);
        let since = vec![0; floor.len() / SECTOR_BYTES];
        let bytes = before.len() as u64;
        Self { floor, since, bytes, sizes: Vec::new(), pending: Vec::new(), data_from, changed: Vec::new() }
    }

    /// A write was given to it.
    pub(super) fn written(&mut self, write: u32) {
        self.pending.push(Pending { write, done: NEVER });
    }

    /// A write is complete.
    pub(super) fn write_done(&mut self, write: u32, now: Time, trace: &Trace) {
        let Some(at) = self.pending.iter().position(|pending| pending.write == write) else { return };
        if trace.writes[write as usize].durable {
            self.pending.remove(at);
            self.settle(write, now, trace);
        } else {
            self.pending[at].done = now;
        }
    }

    /// It has another size.
    pub(super) fn resized(&mut self, now: Time, bytes: u64) {
        self.sizes.push((now, bytes));
    }

    /// A flush is complete that began at `begun`.
    pub(super) fn flush_done(&mut self, begun: Time, trace: &Trace) {
        let mut covered: Vec<_> = self.pending.extract_if(.., |pending| pending.done < begun).collect();
        covered.sort_by_key(|pending| pending.done);
        for pending in covered {
            self.settle(pending.write, pending.done, trace);
        }
        let settled = self.sizes.iter().take_while(|(at, _)| *at < begun).count();
        for (_, bytes) in self.sizes.drain(..settled) {
            self.bytes = bytes;
        }
    }

    /// Makes a write certain that was complete at `done`, as far as nothing later is certain already.
    fn settle(&mut self, write: u32, done: Time, trace: &Trace) {
        let write = &trace.writes[write as usize];
        let data = trace.data_of(write);
        let first = (write.offset / SECTOR_BYTES as u64) as usize;
        for index in 0..write.bytes as usize / SECTOR_BYTES {
            if self.since[first + index] > done {
                continue;
            }
            self.since[first + index] = done;
            let sector = &mut self.floor[(first + index) * SECTOR_BYTES..][..SECTOR_BYTES];
            match data {
                Some(data) => sector.copy_from_slice(&data[index * SECTOR_BYTES..][..SECTOR_BYTES]),
                None => sector.fill(0),
            }
        }
        self.changed.push((write.offset, u64::from(write.bytes)));
    }

    /// Whether a cut leaves one thing only.
    pub(super) fn is_certain(&self) -> bool {
        self.pending.is_empty() && self.sizes.is_empty()
    }

    /// What is certain.
    pub(super) fn floor(&self) -> &[u8] {
        &self.floor
    }

    /// Ranges of the floor that have changed since this was asked last: first byte and length.
    pub(super) fn take_changed(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.changed)
    }

    /// What a cut leaves now.
    pub(super) fn cut<'a>(&'a self, loss: Loss, trace: &Trace, rng: &mut Rng) -> Image<'a> {
        let bytes = match loss {
            Loss::All => self.bytes,
            Loss::Nothing => self.sizes.last().map_or(self.bytes, |(_, bytes)| *bytes),
            _ => {
                let known = rng.within(0..=self.sizes.len() as u64) as usize;
                known.checked_sub(1).and_then(|last| self.sizes.get(last)).map_or(self.bytes, |(_, bytes)| *bytes)
            }
        };
        let mut image = Image::new(&self.floor, bytes);
        let mut pending = self.pending.clone();
        // What is in flight has no order yet. (Where it is lost, something complete may show: it need not be on top.)
        for at in 1..pending.len() {
            if pending[at].done == NEVER {
                let other = rng.within(0..=at as u64) as usize;
                if pending[other].done == NEVER {
                    pending.swap(at, other);
                }
            }
        }
        pending.sort_by_key(|pending| pending.done);
        let kinds = [Fate::draw(rng), Fate::draw(rng), Fate::draw(rng)];
        let chosen = rng.within(0..=pending.len().saturating_sub(1) as u64) as usize;
        for (at, entry) in pending.iter().enumerate() {
            let write = &trace.writes[entry.write as usize];
            let fate = match loss {
                Loss::All => Fate::Lost,
                Loss::Nothing => Fate::Kept,
                Loss::Sectors => Fate::Torn,
                Loss::Writes if entry.done == NEVER => Fate::draw(rng),
                Loss::Writes => rng.pick(&[Fate::Kept, Fate::Lost]),
                Loss::One => {
                    if at == chosen {
                        Fate::Lost
                    } else {
                        Fate::Kept
                    }
                }
                Loss::AllButOne => {
                    if at == chosen {
                        Fate::Kept
                    } else {
                        Fate::Lost
                    }
                }
                Loss::Older | Loss::Newer if at == chosen => Fate::Torn,
                Loss::Older => {
                    if at < chosen {
                        Fate::Lost
                    } else {
                        Fate::Kept
                    }
                }
                Loss::Newer => {
                    if at > chosen {
                        Fate::Lost
                    } else {
                        Fate::Kept
                    }
                }
                Loss::Kinds => kinds[self.kind(write)],
            };
            self.put(&mut image, write, entry.done, fate, trace, rng);
        }
        image
    }

    /// Superblock, log or data.
    fn kind(&self, write: &LowerWrite) -> usize {
        match write.offset {
            offset if offset >= self.data_from => 2,
            offset if offset >= SUPERBLOCK_BYTES => 1,
            _ => 0,
        }
    }

    fn put(&self, image: &mut Image<'_>, write: &LowerWrite, done: Time, fate: Fate, trace: &Trace, rng: &mut Rng) {
        if fate == Fate::Lost {
            return;
        }
        let data = trace.data_of(write);
        let mut coins = 0;
        for index in 0..write.bytes as usize / SECTOR_BYTES {
            if index.is_multiple_of(64) {
                coins = rng.next();
            }
            let kept = fate == Fate::Kept || coins >> (index % 64) & 1 == 1;
            let offset = write.offset + (index * SECTOR_BYTES) as u64;
            let overwritten = self.since[(offset / SECTOR_BYTES as u64) as usize] > done;
            if !kept || overwritten {
                continue;
            }
            match data {
                Some(data) => image.put(offset, &data[index * SECTOR_BYTES..][..SECTOR_BYTES]),
                None => image.zero(offset, SECTOR_BYTES as u64),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::powercut::trace::tests::trace;

    const SECTORS: usize = 4;

    /// A device of four sectors of zeroes, and writes that each fill `sectors` with `value`.
    fn device(writes: &[(std::ops::Range<usize>, u8, bool)]) -> (Medium, Trace) {
        let mut trace = trace(&[vec![0; SECTORS * SECTOR_BYTES]]);
        for (sectors, value, durable) in writes {
            let bytes = sectors.len() * SECTOR_BYTES;
            trace.writes.push(LowerWrite {
                device: 0,
                offset: (sectors.start * SECTOR_BYTES) as u64,
                bytes: bytes as u32,
                data: Some(trace.data.len() as u64),
                durable: *durable,
            });
            trace.data.resize(trace.data.len() + bytes, *value);
        }
        (Medium::new(&trace.before[0], (SECTORS * SECTOR_BYTES) as u64, 0), trace)
    }

    /// All that thousands of cuts leave: the first byte of each sector.
    fn left(medium: &Medium, trace: &Trace) -> Vec<Vec<u8>> {
        let mut rng = Rng::new(1, 1);
        let mut all: Vec<Vec<u8>> = (0..4000)
            .map(|_| {
                let loss = Loss::draw(&mut rng);
                let image = medium.cut(loss, trace, &mut rng).to_vec();
                image.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()
            })
            .collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn what_is_not_flushed_may_be_there_in_any_part() {
        let (mut medium, trace) = device(&[(0..2, 1, false), (1..3, 2, false)]);
        medium.written(0);
        medium.write_done(0, 1, &trace);
        medium.written(1);
        medium.write_done(1, 2, &trace);
        let left = left(&medium, &trace);
        // Sectors 0, 1 and 2: with one candidate, two and one.
        assert_eq!(left.len(), 2 * 3 * 2);
        assert!(left.iter().all(|sectors| sectors[0] < 2 && sectors[1] < 3 && sectors[2] % 2 == 0 && sectors[3] == 0));
        medium.flush_done(3, &trace);
        assert!(medium.is_certain());
        assert_eq!(self::left(&medium, &trace), [[1, 2, 2, 0]]);
    }

    #[test]
    fn a_flush_covers_what_was_complete_when_it_began() {
        let (mut medium, trace) = device(&[(0..1, 1, false), (1..2, 2, false), (2..3, 3, false)]);
        for write in 0..3 {
            medium.written(write);
        }
        medium.write_done(0, 1, &trace);
        // Begins at 2.
        medium.write_done(1, 3, &trace);
        medium.flush_done(2, &trace);
        assert_eq!(left(&medium, &trace), [[1, 0, 0, 0], [1, 0, 3, 0], [1, 2, 0, 0], [1, 2, 3, 0]]);
    }

    #[test]
    fn what_is_overwritten_by_something_certain_does_not_come_back() {
        let (mut medium, trace) = device(&[(0..2, 1, false), (0..1, 2, true)]);
        medium.written(0);
        medium.write_done(0, 1, &trace);
        medium.written(1);
        assert_eq!(left(&medium, &trace).len(), 3 * 2);
        medium.write_done(1, 2, &trace);
        assert_eq!(left(&medium, &trace), [[2, 0, 0, 0], [2, 1, 0, 0]]);
        // Complete before it, the older write is settled later, and changes only what is its own.
        medium.flush_done(3, &trace);
        assert_eq!(left(&medium, &trace), [[2, 1, 0, 0]]);
    }

    #[test]
    fn a_size_is_certain_behind_the_next_flush() {
        let (mut medium, trace) = device(&[]);
        let before = medium.bytes;
        medium.resized(1, before + 512);
        let mut rng = Rng::new(1, 1);
        let mut sizes: Vec<_> =
            (0..100).map(|_| medium.cut(Loss::draw(&mut rng), &trace, &mut rng).to_vec().len() as u64).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert_eq!(sizes, [before, before + 512]);
        medium.flush_done(2, &trace);
        assert!(medium.is_certain());
    }
}
