//! Bodies of the fuzz targets: here a ring whose memory, layout and indices the input owns and changes between operations.
//!
//! The targets in `fuzz/` call them, and so do the crate's own tests, so that a plain `cargo test` exercises them.
//! It asserts what a guest must never break: no panic, every segment inside memory, bounded chains, heads below the size,
//! and an index that moves by exactly what was consumed.

mod inflight;

pub use inflight::inflight;

use std::rc::Rc;
use std::sync::Arc;

use crate::chain::Chain;
use crate::copy;
use crate::dirty::{DirtyLog, RingLog};
use crate::layout::{Layout, segments_max};
use crate::mapping::Mapping;
use crate::memory::{Memory, Region};
use crate::position::RingPosition;
use crate::split::SplitRing;

/// Two neighbours, so that buffers and tables cross a border; one apart; one that ends with the address space.
const REGIONS: [(u64, u64); 4] = [(0x1000, 0x2000), (0x3000, 0x1000), (0x10_0000, 0x1000), (u64::MAX - 0xfff, 0x1000)];
/// Operations an input may ask for; keeps one input short.
const OPERATIONS_MAX: usize = 256;
/// Where the log lies in its mapping, and how long it is at most, in bytes: it ends in the middle of the memory.
const LOG_AT: usize = 100;
const LOG_BYTES: usize = 0x10_0000 / 0x1000 / 8;
/// Bytes copied from and to a chain; enough to cross borders and short enough to stay quick.
const COPY_BYTES: usize = 300;

thread_local! {
    /// Made once: mapping memory anew would take most of the time of an input.
    static TABLES: Option<Rc<Tables>> = Tables::new().map(Rc::new);
}

/// Plays one input and returns how many chains were popped. The first bytes set the ring up, each further operation is
/// one byte and its arguments.
///
/// # Panics
/// When the ring breaks one of its promises; that is what the fuzzer looks for.
pub fn ring(data: &[u8]) -> usize {
    let mut input = Input(data);
    let Some(tables) = TABLES.with(|tables| tables.as_ref().map(Rc::clone)) else {
        return 0; // Without memory from the system there is nothing to test.
    };
    tables.zero();
    let layout = input.layout();
    let start = input.u16();
    tables.fill(&mut input, &layout);
    let Ok(ring) = SplitRing::new(Arc::clone(&tables.full), layout, RingPosition::split(start)) else {
        return 0;
    };
    let mut player =
        Player { tables, ring, chain: Chain::default(), popped: Vec::new(), log: None, staged: false, chains: 0 };
    for _ in 0..OPERATIONS_MAX {
        if input.0.is_empty() {
            break;
        }
        player.play(&mut input);
    }
    player.check_log();
    player.chains
}

/// What is left of the input; reads zeros at its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// An address near a region's start or end, or any at all.
    fn address(&mut self) -> u64 {
        let (choice, offset) = (self.u8(), u64::from(self.u16()));
        let (start, len) = REGIONS[usize::from(choice & 3)];
        match choice >> 2 & 3 {
            0 | 1 => start.wrapping_add(offset & 0xfff),
            2 => start.wrapping_add(len).wrapping_sub(offset & 0xff),
            _ => offset << (choice >> 4 << 2),
        }
    }

    fn layout(&mut self) -> Layout {
        let (shift, flags) = (self.u8(), self.u8());
        // Mostly sizes that fit, sometimes any.
        let size = match shift {
            0..=239 => 1 << (shift % 8),
            _ => self.u16(),
        };
        let place = u64::from(flags >> 2 & 3);
        let base = REGIONS[0].0;
        let (desc, avail, used) = if flags & 16 == 0 {
            let avail = base + 16 * u64::from(size);
            let used = (avail + 6 + 2 * u64::from(size)).next_multiple_of(4);
            (base + 16 * place, avail + 16 * place, used + 16 * place)
        } else {
            (self.address(), self.address(), self.address())
        };
        Layout { size, desc, avail, used, event_idx: flags & 1 != 0, indirect: flags & 2 != 0 }
    }
}

/// Three memory tables over the same bytes.
struct Tables {
    full: Arc<Memory>,
    /// Without the region that continues the first.
    short: Arc<Memory>,
    /// Without the first region, where a ring usually lies.
    without_ring: Arc<Memory>,
}

impl Tables {
    fn new() -> Option<Tables> {
        let mut regions = Vec::new();
        for (guest_addr, len) in REGIONS {
            regions.push(Region {
                guest_addr,
                user_addr: guest_addr,
                len,
                mapping: Arc::new(Mapping::anonymous(len as usize).ok()?),
                offset: 0,
            });
        }
        let full = Memory::new(regions).expect("regions that do not overlap");
        let without = |(addr, len)| full.without(addr, addr, len).expect("a region of the table");
        let (short, without_ring) = (without(REGIONS[1]), without(REGIONS[0]));
        Some(Tables { full: Arc::new(full), short: Arc::new(short), without_ring: Arc::new(without_ring) })
    }

    /// What an earlier input wrote must not reach a later one.
    fn zero(&self) {
        for region in self.full.regions() {
            // SAFETY: the region's bytes, which only this thread uses.
            unsafe { region.mapping.as_ptr().add(region.offset).write_bytes(0, region.len as usize) };
        }
    }

    /// Sets the indices near each other, so that an input need not find them by luck.
    fn fill(&self, input: &mut Input<'_>, layout: &Layout) {
        self.put(layout.avail.wrapping_add(2), &input.u16().to_le_bytes());
        self.put(layout.used.wrapping_add(2), &input.u16().to_le_bytes());
    }

    /// Writes what lies inside memory.
    fn put(&self, guest_addr: u64, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let at = guest_addr.wrapping_add(i as u64);
            if let Some((ptr, _)) = self.full.translate(at, 1, &mut 0) {
                // SAFETY: `translate` found this byte.
                unsafe { ptr.as_ptr().write_volatile(*byte) };
            }
        }
    }
}

struct Player {
    tables: Rc<Tables>,
    ring: SplitRing,
    chain: Chain,
    popped: Vec<u16>,
    /// The log in use, and its length in bytes.
    log: Option<(Arc<DirtyLog>, usize)>,
    staged: bool,
    chains: usize,
}

impl Player {
    fn play(&mut self, input: &mut Input<'_>) {
        match input.u8() % 14 {
            0 => {
                let at = input.address();
                self.tables.put(at, &input.u32().to_le_bytes());
            }
            1 | 2 => self.descriptor(input),
            3 => self.offer(input),
            4..=6 => self.pop(),
            7 => self.push(input),
            8 => self.publish(),
            9 => {
                let pending = self.ring.enable_kicks();
                let index = self.load(self.ring.layout().avail.wrapping_add(2));
                assert_eq!(pending, index != self.ring.position().avail());
            }
            10 => self.ring.disable_kicks(),
            11 => self.set_memory(input),
            13 => self.set_log(input),
            _ => {
                // The driver's wish for notifications.
                let layout = *self.ring.layout();
                let at = layout.avail.wrapping_add(4 + 2 * u64::from(layout.size));
                self.tables.put(at, &input.u16().to_le_bytes());
                self.tables.put(layout.avail, &[input.u8()]);
            }
        }
    }

    fn descriptor(&self, input: &mut Input<'_>) {
        let (kind, index) = (input.u8(), input.u8());
        let addr = input.address();
        // An index in the ring's table, or a place in the memory that indirect tables lie in.
        let at =
            if kind & 128 == 0 { self.ring.layout().desc.wrapping_add(16 * u64::from(index)) } else { input.address() };
        let len = match kind >> 3 & 3 {
            0 => 16 * u32::from(input.u8()),
            1 => u32::from(input.u8()),
            2 => u32::from(input.u16()),
            _ => input.u32(),
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12] = kind & 7;
        bytes[14] = input.u8();
        self.tables.put(at, &bytes);
    }

    /// Makes one head available, and moves the index by one or by anything.
    fn offer(&self, input: &mut Input<'_>) {
        let layout = *self.ring.layout();
        let (head, step) = (input.u8(), input.u8());
        let slot = u64::from(self.ring.position().avail() & (layout.size - 1));
        let entry = layout.avail.wrapping_add(4 + 2 * slot);
        self.tables.put(entry, &u16::from(head).to_le_bytes());
        let index = self.ring.position().avail().wrapping_add(match step {
            0..=127 => 1,
            _ => u16::from(step - 127),
        });
        self.tables.put(layout.avail.wrapping_add(2), &index.to_le_bytes());
    }

    fn pop(&mut self) {
        let before = self.ring.position().avail();
        let pending = self.ring.has_pending();
        let popped = self.ring.pop(&mut self.chain);
        match popped {
            Ok(Some(head)) => {
                assert!(pending && head < self.ring.size());
                assert_eq!(self.ring.position().avail(), before.wrapping_add(1));
                self.popped.push(head);
                self.chains += 1;
                assert!(self.popped.len() <= usize::from(self.ring.size()));
                self.check_chain();
            }
            Ok(None) => {
                assert!(!pending);
                assert_eq!(self.ring.position().avail(), before);
            }
            Err(_) => assert_eq!(self.ring.position().avail(), before),
        }
    }

    fn check_chain(&mut self) {
        let chain = &mut self.chain;
        assert!(chain.readable <= chain.segments.len());
        assert!(chain.segments.len() <= segments_max(self.ring.size()));
        let bytes = chain.readable_bytes() + chain.writable_bytes();
        assert!(bytes <= 1 << 32);
        for segment in &chain.segments {
            let inside = self.ring.memory().regions().iter().any(|region| {
                let start = region.mapping.as_ptr() as usize + region.offset;
                let end = start + region.len as usize;
                let at = segment.ptr() as usize;
                start <= at && at + segment.len() <= end
            });
            assert!(inside && segment.len() > 0, "{segment:?}");
        }
        for ((guest_addr, len), segment) in chain.guest_ranges(&chain.segments).zip(&chain.segments) {
            let (ptr, found) =
                self.ring.memory().translate(guest_addr, len, &mut 0).expect("an address of the guest's");
            assert_eq!((ptr.as_ptr(), found), (segment.ptr(), segment.len() as u64));
        }
        assert_eq!(chain.guest_ranges(&chain.segments).count(), chain.segments.len());
        let mut copied = [0; COPY_BYTES];
        let read = copy::read_at(chain.readable_segments(), 3, &mut copied);
        assert_eq!(read as u64, chain.readable_bytes().saturating_sub(3).min(COPY_BYTES as u64));
        let written = copy::write_at(chain.writable_segments(), 5, &copied);
        assert_eq!(written as u64, chain.writable_bytes().saturating_sub(5).min(COPY_BYTES as u64));
        copy::trim_front(&mut chain.segments, 17);
        copy::truncate(&mut chain.segments, 1 << 20);
        let left: u64 = chain.segments.iter().map(|segment| segment.len() as u64).sum();
        assert_eq!(left, bytes.saturating_sub(17).min(1 << 20));
    }

    fn push(&mut self, input: &mut Input<'_>) {
        let choice = usize::from(input.u8());
        if !self.popped.is_empty() {
            let head = self.popped.swap_remove(choice % self.popped.len());
            self.ring.push(head, input.u32());
            self.staged = true;
        }
    }

    fn publish(&mut self) {
        let notify = self.ring.publish();
        assert!(self.staged || !notify);
        if self.staged {
            let index = self.load(self.ring.layout().used.wrapping_add(2));
            assert_eq!(index, self.ring.next_used());
        }
        self.staged = false;
    }

    /// A field of the ring's areas, which are in memory and aligned as long as the ring exists.
    fn load(&self, guest_addr: u64) -> u16 {
        let found = self.ring.memory().translate(guest_addr, 2, &mut 0);
        let (ptr, len) = found.expect("an area inside memory");
        assert_eq!(len, 2);
        // SAFETY: `translate` found two bytes.
        u16::from_le(unsafe { ptr.cast::<u16>().as_ptr().read_volatile() })
    }

    /// Logs in a log of any length, or no more. All requests in flight are named, and perhaps some that are not.
    fn set_log(&mut self, input: &mut Input<'_>) {
        let (choice, used, stranger) = (input.u8(), input.address(), input.u16());
        self.check_log();
        let bytes = 1 + usize::from(choice >> 2) % LOG_BYTES;
        self.log = match choice & 3 {
            0 => None,
            1 if self.log.is_some() => self.log.take(),
            _ => Mapping::anonymous(4096)
                .ok()
                .and_then(|it| DirtyLog::new(it, LOG_AT, bytes).ok())
                .map(|log| (Arc::new(log), bytes)),
        };
        let used = (choice & 128 != 0).then_some(used);
        let log = self.log.as_ref().map(|(log, _)| RingLog { log: Arc::clone(log), used });
        if self.ring.set_log(log) {
            for head in self.popped.iter().copied().chain([stranger]) {
                self.ring.note_in_flight(head);
            }
        }
    }

    /// Nothing is marked outside the log.
    fn check_log(&self) {
        let Some((log, bytes)) = &self.log else { return };
        let around = log.around();
        assert!(
            around[..LOG_AT].iter().chain(&around[LOG_AT + bytes..]).all(|byte| *byte == 0),
            "marks outside the log"
        );
    }

    fn set_memory(&mut self, input: &mut Input<'_>) {
        let table = match input.u8() % 3 {
            0 => &self.tables.full,
            1 => &self.tables.short,
            _ => &self.tables.without_ring,
        };
        // A refused table must leave the ring as it was; the operations that follow show it.
        let _ = self.ring.set_memory(Arc::clone(table));
    }
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::{ring, seeds};

    #[test]
    fn seeds_hold() {
        let mut chains = 0;
        seeds::hold("ring", &[], |seed| chains += ring(seed));
        assert!(chains >= 12, "the seeds reached only {chains} chains");
    }

    #[test]
    fn noise_holds() {
        let mut chains = 0;
        seeds::noise(20_000, 1500, |input| chains += ring(&input));
        assert!(chains >= 3000, "the inputs reached only {chains} chains");
    }
}
