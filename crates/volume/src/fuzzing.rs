//! Bodies of the fuzz targets.

use crate::blocks::Blocks;
use crate::check::check;
use crate::format::field;
use crate::format::{Superblock, log_seed, read_superblock, write_superblock};
use crate::log::End;
use crate::pages::Pages;
use crate::recover::{Recovered, recover, salvage};
use crate::testing::{Change, Writer, quiet, storage, volume};
use crate::units::{BLOCK_BYTES, SectorMask};
use xxhash_rust::xxh3::xxh3_64;

/// Steps that an input may ask for.
const STEPS_MAX: usize = 64;

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }
}

/// Bytes to be changed: where, and to what.
struct Patches(Vec<(u16, u8)>);

impl Patches {
    fn read(input: &mut Input<'_>) -> Patches {
        Patches((0..=input.u8() % 8).map(|_| (input.u16(), input.u8())).collect())
    }

    fn apply(&self, bytes: &mut [u8]) {
        for (at, value) in self.within(bytes.len()) {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
    }

    /// Where they come to lie in so many bytes.
    fn within(&self, len: usize) -> impl Iterator<Item = (usize, u8)> {
        self.0.iter().map(move |&(at, value)| (usize::from(at) % len.max(1), value))
    }
}

/// What a volume is stored on.
#[derive(Clone, PartialEq, Eq)]
struct Storages {
    data: Pages,
    log: Option<Pages>,
}

impl Storages {
    /// The one that the log is in.
    fn log(&mut self) -> &mut Pages {
        self.log.as_mut().unwrap_or(&mut self.data)
    }

    fn recover(&mut self) -> Option<Recovered> {
        recover(&mut self.data, storage(&mut self.log), &mut quiet()).ok()
    }

    fn salvage(&mut self) -> Option<Recovered> {
        salvage(&mut self.data, storage(&mut self.log), &mut quiet()).ok()
    }
}

thread_local! {
    static INTERNAL: (Storages, Superblock) = opened(false);
    static EXTERNAL: (Storages, Superblock) = opened(true);
}

/// A new volume, opened.
fn opened(external: bool) -> (Storages, Superblock) {
    let (data, log, _) = volume(external);
    let mut on = Storages { data: data.into(), log: log.map(Pages::from) };
    let superblock = on.recover().expect("a new volume opens").superblock;
    (on, superblock)
}

/// A volume that somebody writes a log into who knows its checksums, and who may write anything anywhere too.
struct Image {
    on: Storages,
    superblock: Superblock,
    writer: Writer,
}

impl Image {
    fn new(external: bool) -> Image {
        let made = if external { &EXTERNAL } else { &INTERNAL };
        made.with(|(on, superblock)| Image {
            on: on.clone(),
            superblock: superblock.clone(),
            writer: Writer::new(superblock),
        })
    }

    /// A record. When `wrong`, its header is changed and sealed again.
    fn record(&mut self, wrong: bool, input: &mut Input<'_>) {
        let mut changes = Vec::new();
        for _ in 0..=input.u8() % 8 {
            let (kind, block, more) = (input.u8(), u64::from(input.u8()), input.u8());
            changes.push(match kind % 4 {
                0 => Change::Zeroes { block: block % 56, count: u32::from(more % 8) + 1 },
                // Beyond the disk, perhaps.
                1 => Change::Zeroes { block, count: u32::from(more) * 0x10_1010 + 1 },
                _ => Change::Data { block: block % 64, sectors: SectorMask(more.max(1)), fill: kind },
            });
        }
        let before = self.writer.next;
        let Some(mut built) = self.writer.build(&changes) else {
            // The log is full: a checkpoint of what was never written back, which nobody minds here.
            self.checkpoint();
            return;
        };
        if wrong && let Some(header) = built.bytes.get_mut(..built.header_len) {
            Patches::read(input).apply(header);
            self.writer.next.chain = field::seal(log_seed(&self.superblock.log.uuid), header);
            self.writer.next.sequence = before.sequence + 1 + u64::from(input.u8() % 3);
        }
        // It fails where the storage was cut off.
        let _ = self.on.log().write_at(built.offset, &built.bytes);
    }

    fn checkpoint(&mut self) {
        self.superblock.tail = self.writer.next;
        let _ = write_superblock(&mut self.on.data, &mut self.superblock);
        self.writer.space.release(self.writer.next.position);
    }

    /// Changes both superblocks, or the header of a log of its own, and seals them again.
    fn structures(&mut self, input: &mut Input<'_>) {
        let (what, patches) = (input.u8(), Patches::read(input));
        let patch = |structure: &mut [u8]| {
            // Where the numbers are, as a rule.
            let len = if what & 2 == 0 { 256 } else { BLOCK_BYTES };
            patches.apply(structure.get_mut(..len).unwrap_or_default());
            field::seal(0, structure);
        };
        match &mut self.on.log {
            Some(log) if what & 1 != 0 => log.whole_mut().take(1).for_each(patch),
            _ => self.on.data.whole_mut().take(2).for_each(patch),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0..=2 => self.record(false, input),
            3 => self.record(true, input),
            4 => {
                // Any bytes, at any place of the log.
                let at = usize::from(input.u16()) * 4;
                let log = self.on.log();
                let from = at.min(log.bytes());
                let patches = Patches::read(input);
                patches.within(log.bytes() - from).for_each(|(at, value)| log.set(from + at, value));
            }
            5 => self.structures(input),
            6 => {
                // A failed attempt, which arrived.
                let before = self.writer.next;
                self.record(false, input);
                if self.writer.space.tail() <= before.position {
                    self.writer.rewind(before);
                }
            }
            _ => {
                // A storage that was cut off.
                let to = usize::from(input.u16()) * 512;
                match input.u8() % 8 {
                    0 => self.on.log().truncate(to),
                    1 => self.on.data.truncate((2 << 20) - to.min(1 << 20)),
                    _ => self.checkpoint(),
                }
            }
        }
    }
}

/// Examines and recovers a volume whose log, and superblocks, the input has written, with right checksums or wrong ones, and
/// returns how many records were replayed, if the volume could be opened.
///
/// Layout of `data`: bit 0 of the first byte gives the log a storage of its own; then come steps, as `Image::step` reads them.
///
/// # Panics
/// When an examination changes something or disagrees with recovery, when recovery writes elsewhere than where it may, when it does
/// not come to the same twice, or when the volume cannot be gone on with.
pub fn volume_log(data: &[u8]) -> Option<u64> {
    let mut input = Input(data);
    let mut image = Image::new(input.u8() & 1 != 0);
    for _ in 0..STEPS_MAX {
        if input.0.is_empty() {
            break;
        }
        image.step(&mut input);
    }
    let before = image.on;
    let mut on = before.clone();
    let report = check(&mut on.data, storage(&mut on.log), &mut quiet());
    assert!(on == before, "an examination changed something");

    let Some(recovered) = on.recover() else {
        assert!(!report.is_sound(), "an examination found nothing, and yet the volume does not open: {report:?}");
        give_up(&before);
        return None;
    };
    let damaged = report.log.is_some_and(|log| matches!(log.end, End::Damaged { .. }));
    assert!(report.is_sound() || damaged, "the volume opens, and yet: {report:?}");
    let (records, log_bytes) = report.log.map_or((0, 0), |log| (log.records, log.log_bytes));
    assert_eq!((recovered.records, recovered.log_bytes), (records, log_bytes));
    assert!(on.log == before.log, "recovery wrote to a log of its own");
    assert_outside(&before.data, &on.data, &recovered.superblock);

    // The same again comes to the same, and a second time there is nothing to do.
    let mut twin = before;
    let mut spared = twin.clone();
    assert_eq!(twin.recover().as_ref(), Some(&recovered));
    assert!(twin == on);
    // Who would give something up finds nothing to be given up.
    assert_eq!(spared.salvage().as_ref(), Some(&recovered));
    assert!(spared == on);
    assert_eq!(read_superblock(&mut on.data).expect("just written"), recovered.superblock);
    let again = on.recover().expect("what was recovered opens");
    assert_eq!((again.records, again.data_bytes, again.zeroed_bytes), (0, 0, 0));

    // And it can be gone on with, in an epoch that who wrote the log cannot know, as guests are served in.
    let mut superblock = again.superblock;
    superblock.epoch += 1 + (xxh3_64(data) >> 32);
    if write_superblock(&mut on.data, &mut superblock).is_err() {
        // A counter is at its end.
        return Some(recovered.records);
    }
    let mut writer = Writer::new(&superblock);
    let change = [Change::Data { block: 0, sectors: SectorMask::ALL, fill: 1 }];
    writer.commit(on.log(), &change).expect("an empty log takes any record");
    let report = check(&mut on.data, storage(&mut on.log), &mut quiet());
    assert_eq!(report.log.map(|log| log.records), Some(1), "{report:?}");
    Some(recovered.records)
}

/// Somebody goes on without the rest of a log that recovery refuses; where a superblock is to blame that is refused too.
fn give_up(before: &Storages) {
    let mut on = before.clone();
    let Some(salvaged) = on.salvage() else { return };
    assert!(matches!(salvaged.end, End::GivenUp { .. }), "{salvaged:?}");
    assert!(on.log == before.log, "recovery wrote to a log of its own");
    assert_outside(&before.data, &on.data, &salvaged.superblock);
    let again = on.recover().expect("what was left opens");
    assert_eq!((again.records, again.data_bytes, again.zeroed_bytes), (0, 0, 0));
}

/// Recovery wrote superblocks and the disk's blocks, and nothing else.
fn assert_outside(before: &Pages, after: &Pages, superblock: &Superblock) {
    let slots = 2 * BLOCK_BYTES;
    let disk = superblock.data_offset as usize;
    let end = superblock.storage_bytes() as usize;
    for range in [slots..disk, end..before.bytes()] {
        assert!(before.agree(after, range.clone()), "something in {range:?} has changed");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::{seeds, volume_log};

    /// A record of one block's data, or of two entries more.
    const DATA: [u8; 5] = [0, 0, 2, 5, 0xff];
    const MIXED: [u8; 11] = [0, 2, 2, 5, 0x0f, 0, 7, 3, 6, 63, 0x80];

    fn made() -> Vec<(&'static str, Vec<u8>)> {
        let seed = |external: u8, steps: &[&[u8]]| [&[external][..], &steps.concat()].concat();
        // Of a record: what changes in its header once it is built.
        let wrong = |at: u16, value: u8| [&[3, 0, 2, 9, 0xff, 0][..], &at.to_le_bytes(), &[value, 0]].concat();
        // Of a structure: 2 lets its whole block be changed, 1 is the header of a log of its own.
        let structure = |what: u8, at: u16, value: u8| [&[5, what, 0][..], &at.to_le_bytes(), &[value]].concat();
        let laps = DATA.repeat(30);
        vec![
            ("nothing", seed(0, &[])),
            ("records", seed(0, &[&DATA, &MIXED, &DATA])),
            ("records_external", seed(1, &[&DATA, &MIXED, &DATA])),
            ("laps", seed(1, &[&laps, &MIXED])),
            ("checkpoint", seed(0, &[&DATA, &[7, 0, 0, 2], &MIXED])),
            ("torn", seed(0, &[&DATA, &DATA, &[4, 8, 0x48, 0, 0, 0, 1]])),
            ("damaged", seed(1, &[&DATA.repeat(7), &[4, 0, 8, 0, 0, 0, 1]])),
            ("failed", seed(1, &[&DATA, &[6, 0, 2, 5, 0xff], &MIXED])),
            ("beyond_the_disk", seed(0, &[&DATA, &[0, 0, 1, 0, 200]])),
            ("entry_kind", seed(0, &[&wrong(128 + 12, 7), &DATA])),
            ("entry_block", seed(0, &[&wrong(128 + 6, 0xff), &DATA])),
            ("entry_count", seed(0, &[&wrong(128 + 8, 2), &DATA])),
            ("entry_sectors", seed(0, &[&wrong(128 + 13, 0), &DATA])),
            ("entries", seed(0, &[&wrong(64, 2), &DATA])),
            ("entries_huge", seed(0, &[&wrong(66, 0xff), &DATA])),
            ("data_entries", seed(0, &[&wrong(68, 0), &DATA])),
            ("length", seed(0, &[&wrong(57, 0xff), &DATA])),
            ("sequence_huge", seed(0, &[&wrong(31, 0x7f), &DATA])),
            ("position", seed(0, &[&wrong(33, 0x10), &DATA])),
            ("payload", seed(0, &[&wrong(48, 1), &DATA])),
            ("newer", seed(0, &[&DATA, &structure(0, 20, 1)])),
            ("compatible", seed(0, &[&DATA, &structure(0, 24, 1)])),
            ("capacity_huge", seed(0, &[&DATA, &structure(0, 62, 0x0f)])),
            ("data_offset", seed(0, &[&DATA, &structure(0, 66, 0)])),
            ("log_elsewhere", seed(0, &[&DATA, &structure(0, 114, 2)])),
            ("log_longer", seed(0, &[&DATA, &structure(0, 122, 2)])),
            ("tail_late", seed(0, &[&DATA, &structure(0, 135, 0x3f)])),
            ("epoch_late", seed(0, &[&DATA, &structure(0, 159, 0x3f)])),
            // What follows in an epoch that is yet to come: a record says so, or the superblock is an older one.
            ("epoch_to_come", seed(0, &[&wrong(16, 2), &DATA])),
            ("epoch_put_back", seed(0, &[&DATA, &structure(0, 152, 0)])),
            ("clean", seed(0, &[&DATA, &structure(0, 76, 1)])),
            ("log_forgotten", seed(1, &[&DATA, &structure(0, 16, 0)])),
            ("log_foreign", seed(1, &[&DATA, &structure(1, 32, 9)])),
            ("log_cut_off", seed(1, &[&DATA, &[7, 100, 0, 0]])),
            ("data_cut_off", seed(1, &[&DATA, &[7, 0xff, 0xff, 1]])),
            ("garbage", [0xfb; 300].to_vec()),
        ]
    }

    #[test]
    fn the_seeds_are_these() {
        let (mut records, mut refused) = (0, 0);
        seeds::hold("volume_log", &made(), |seed| match volume_log(seed) {
            Some(replayed) => records += replayed,
            None => refused += 1,
        });
        assert!(records >= 12 && refused >= 12, "the seeds replay {records} records, and {refused} are refused");
    }

    #[test]
    fn noise_holds() {
        let (mut replayed, mut refused) = (0, 0);
        seeds::noise(600, 200, |input| match volume_log(&input) {
            Some(records) => replayed += records,
            None => refused += 1,
        });
        assert!(replayed > 100 && refused > 20, "{replayed} records replayed, {refused} volumes refused");
    }
}
