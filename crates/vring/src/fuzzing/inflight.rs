//! A ring that goes on from an inflight region that the input owns, as a frontend does that keeps it between two backends.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Input;
use crate::chain::Chain;
use crate::inflight::{InflightQueue, Recovery};
use crate::layout::Layout;
use crate::mapping::Mapping;
use crate::memory::{Memory, Region};
use crate::position::RingPosition;
use crate::split::SplitRing;

/// Most descriptors of a ring and entries of a region.
const SIZE_MAX: u16 = 64;
const REGION_BYTES: usize = InflightQueue::bytes(SIZE_MAX);
/// Bytes of guest memory: the ring's areas, then what buffers show.
const MEMORY_BYTES: usize = 0x2000;
const AVAIL: u64 = 0x600;
const USED: u64 = 0x800;
const BUFFER: u64 = 0x1000;

thread_local! {
    static PLACES: Option<(Arc<Mapping>, Arc<Memory>)> = places();
}

fn places() -> Option<(Arc<Mapping>, Arc<Memory>)> {
    let mapping = Arc::new(Mapping::anonymous(MEMORY_BYTES).ok()?);
    let region = Region { guest_addr: 0, user_addr: 0, len: MEMORY_BYTES as u64, mapping, offset: 0 };
    let memory = Memory::new(vec![region]).expect("one region");
    Some((Arc::new(Mapping::anonymous(REGION_BYTES).ok()?), Arc::new(memory)))
}

/// Plays one input and returns how many requests were owed.
///
/// Layout of `data`: the ring's size (1), how much larger the region is (1), used index (2), what the driver made available
/// beyond it (2), how the rest is meant (1), the rest: bytes of the region, or marks in an otherwise sound region.
///
/// # Panics
/// When what the ring takes from the region breaks a promise: heads that are not the ring's or come twice, a place in the
/// available ring that does not follow, or a second look that finds something else.
pub fn inflight(data: &[u8]) -> usize {
    let Some((region, memory)) = PLACES.with(Clone::clone) else {
        return 0; // Without memory from the system there is nothing to test.
    };
    let mut input = Input(data);
    let size = 1 << (input.u8() % 7);
    let entries = SIZE_MAX.min(size << (input.u8() % 3));
    let (used, ahead) = (input.u16(), input.u16());
    fill(&region, entries, used, &mut input);
    lay_out(&memory, size, used, used.wrapping_add(ahead));
    let Some(first) = Life::begin(&region, &memory, size, entries, used) else {
        return 0;
    };
    let found = first.recovery;
    let Recovery::Continued { owed } = found else {
        assert_eq!((first.ring.owed(), first.ring.position().avail()), (0, used));
        return 0;
    };
    let heads = first.owed();
    assert_eq!(heads.len(), usize::from(owed));
    // It dies at once; the next one finds the same.
    let second = Life::begin(&region, &memory, size, entries, used).expect("a region that was sound is sound");
    assert_eq!(second.recovery, found);
    let mut ring = second.ring;
    let mut chain = Chain::default();
    for head in &heads {
        assert_eq!(ring.pop(&mut chain), Ok(Some(*head)), "another order, or another request");
    }
    for head in &heads {
        ring.push(*head, 0);
    }
    ring.publish();
    // All is shown: nothing is owed any more.
    let used = ring.next_used();
    drop(ring);
    let third = Life::begin(&region, &memory, size, entries, used).expect("a region that was sound is sound");
    assert_eq!(third.recovery, Recovery::Continued { owed: 0 });
    heads.len()
}

/// One life of the ring.
struct Life {
    ring: SplitRing,
    recovery: Recovery,
}

impl Life {
    fn begin(region: &Arc<Mapping>, memory: &Arc<Memory>, size: u16, entries: u16, used: u16) -> Option<Life> {
        let layout = Layout { size, desc: 0, avail: AVAIL, used: USED, event_idx: false, indirect: false };
        let mut ring = SplitRing::new(memory.clone(), layout, RingPosition::split(used)).expect("a ring in memory");
        let region = InflightQueue::new(region.clone(), 0, entries).expect("a region in its mapping");
        let recovery = ring.track(region).ok()?;
        Some(Life { ring, recovery })
    }

    /// The heads that are owed, which are the ring's and no two the same.
    fn owed(mut self) -> Vec<u16> {
        let (size, from, owed) = (self.ring.size(), self.ring.next_used(), self.ring.owed());
        assert!(owed <= usize::from(size));
        assert_eq!(self.ring.position().avail(), from.wrapping_add(owed as u16));
        let mut chain = Chain::default();
        let mut heads = Vec::new();
        for _ in 0..owed {
            match self.ring.pop_owed(&mut chain) {
                Ok(Some(head)) => heads.push(head),
                other => panic!("{other:?} instead of a request that is owed"),
            }
        }
        assert_eq!(self.ring.pop_owed(&mut chain), Ok(None));
        assert!(heads.iter().all(|head| *head < size));
        assert_eq!(heads.iter().collect::<BTreeSet<_>>().len(), heads.len(), "a request comes twice: {heads:?}");
        heads
    }
}

/// Writes the region: any bytes, or a sound head with marks and a list that may be anything.
fn fill(region: &Mapping, entries: u16, used: u16, input: &mut Input<'_>) {
    let mut bytes = vec![0; REGION_BYTES];
    let choice = input.u8();
    if choice & 1 == 0 {
        let rest = input.0;
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
    } else {
        let batch = u16::from(choice >> 1 & 7);
        bytes[8] = 1;
        bytes[10..12].copy_from_slice(&entries.to_ne_bytes());
        bytes[12..14].copy_from_slice(&u16::from(input.u8()).to_ne_bytes());
        bytes[14..16].copy_from_slice(&used.wrapping_sub(batch).to_ne_bytes());
        for entry in bytes[16..].chunks_exact_mut(16).take(usize::from(entries)) {
            let mark = input.u8();
            entry[0] = mark & 1;
            entry[6] = mark >> 1;
            entry[8] = input.u8();
        }
    }
    for (at, byte) in bytes.iter().enumerate() {
        // SAFETY: inside the mapping, which has as many bytes; only this thread uses it.
        unsafe { region.as_ptr().add(at).write_volatile(*byte) };
    }
}

/// Writes a ring whose descriptors are sound: each is a buffer of its own.
fn lay_out(memory: &Memory, size: u16, used: u16, avail: u16) {
    let put = |at: u64, bytes: &[u8]| {
        for (at, byte) in (at..).zip(bytes) {
            let (ptr, _) = memory.translate(at, 1, &mut 0).expect("an address of the ring");
            // SAFETY: `translate` found this byte.
            unsafe { ptr.as_ptr().write_volatile(*byte) };
        }
    };
    for head in 0..u64::from(size) {
        let descriptor = u128::from(BUFFER + 16 * head) | 16 << 64;
        put(16 * head, &descriptor.to_le_bytes());
    }
    put(AVAIL + 2, &avail.to_le_bytes());
    put(USED + 2, &used.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::seeds;
    use super::inflight;

    /// Size, room, used and available index, then what the region is.
    fn seed(shift: u8, used: u16, ahead: u16, rest: &[u8]) -> Vec<u8> {
        [&[shift, 0][..], &used.to_le_bytes(), &ahead.to_le_bytes(), rest].concat()
    }

    fn made() -> Vec<(&'static str, Vec<u8>)> {
        let marks =
            |choice: u8, batch_head: u8, marks: &[[u8; 2]]| [&[choice, batch_head][..], &marks.concat()].concat();
        vec![
            ("never_used", seed(3, 5, 0, &[0])),
            ("nothing_owed", seed(3, 5, 3, &marks(1, 0, &[]))),
            ("owed", seed(3, 5, 3, &marks(1, 0, &[[1, 2], [0, 0], [1, 1], [1, 3]]))),
            ("owed_around_the_end", seed(3, 0xfffe, 4, &marks(1, 0, &[[1, 9], [1, 8], [1, 7], [1, 6]]))),
            ("batch_unaccounted", seed(3, 7, 3, &marks(5, 1, &[[1, 4], [1 | 2 << 1, 0], [1, 1], [1, 2]]))),
            ("batch_list_loops", seed(3, 7, 3, &marks(5, 1, &[[1, 4], [1 | 1 << 1, 0]]))),
            ("more_than_available", seed(3, 5, 1, &marks(1, 0, &[[1, 1], [1, 2]]))),
            ("equal_counters", seed(3, 5, 4, &marks(1, 0, &[[1, 0], [1, 0], [1, 0], [1, 0]]))),
            ("unknown_version", seed(3, 5, 4, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 9])),
            ("garbage", seed(6, 0xffff, 64, &[0xfe; 200])),
        ]
    }

    #[test]
    fn the_seeds_are_these() {
        let mut owed = 0;
        seeds::hold("inflight", &made(), |seed| owed += inflight(seed));
        assert!(owed >= 12, "the seeds owed only {owed} requests");
    }

    #[test]
    fn noise_holds() {
        let mut owed = 0;
        seeds::noise(20_000, 200, |mut input| {
            // Mostly what can be owed at all.
            if let Some(ahead) = input.get_mut(5) {
                *ahead = 0;
            }
            owed += inflight(&input);
        });
        assert!(owed >= 5000, "the inputs owed only {owed} requests");
    }
}
