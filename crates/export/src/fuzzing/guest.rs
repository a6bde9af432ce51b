//! A guest made of the input: its memory, its descriptors, its driver's indices.

use super::moved::Moved;
use crate::attachment::{self, Attachment};
use engine::{Completion, Io, Solo, Token};
use std::cell::RefCell;
use std::sync::Arc;
use vring::{Layout, Mapping, Memory, Region, RingPosition};

/// Steps of an input; what follows each of them is its arguments.
pub(super) const POKE: u8 = 0;
pub(super) const DESCRIPTOR: u8 = 1;
pub(super) const OFFER: u8 = 2;
pub(super) const SERVE: u8 = 3;
pub(super) const COMPLETE: u8 = 4;
pub(super) const MEMORY: u8 = 5;
const STEPS: u8 = 6;
/// Steps of one input.
const STEPS_MAX: usize = 128;
/// The bit of the options with which the guest is moved meanwhile.
pub(super) const IS_MOVED: u8 = 0x40;

/// The ring, at the start of the first region.
const SIZE: u16 = 16;
const AVAIL: u64 = 0x200;
const USED: u64 = 0x400;
/// The second region begins where the first ends, so that buffers can cross; the third lies apart.
const REGIONS: [(u64, u64); 3] = [(0, 0x4000), (0x4000, 0xc000), (0x2_0000, 0x1000)];

thread_local! {
    static STAGE: Option<Stage> = Stage::new();
}

/// What is made once for all inputs.
struct Stage {
    full: Arc<Memory>,
    /// Without the last region.
    short: Arc<Memory>,
    solo: RefCell<Solo>,
}

impl Stage {
    fn new() -> Option<Stage> {
        let region = |(guest_addr, len): (u64, u64)| {
            let mapping = Arc::new(Mapping::anonymous(len as usize).ok()?);
            Some(Region { guest_addr, user_addr: guest_addr, len, mapping, offset: 0 })
        };
        let full = Memory::new(REGIONS.into_iter().map(region).collect::<Option<_>>()?).expect("no overlaps");
        let (last, len) = REGIONS[2];
        let short = full.without(last, last, len).expect("a region of the table");
        Some(Stage { full: Arc::new(full), short: Arc::new(short), solo: RefCell::new(Solo::new().ok()?) })
    }

    /// What an earlier input wrote must not reach a later one.
    fn zero(&self) {
        for region in self.full.regions() {
            // SAFETY: the region's bytes, which only this thread uses while no ring is there.
            unsafe { region.mapping.as_ptr().write_bytes(0, region.len as usize) };
        }
    }

    fn put(&self, guest_addr: u64, bytes: &[u8]) {
        for (at, byte) in (guest_addr..).zip(bytes) {
            if let Some((ptr, _)) = self.full.translate(at, 1, &mut 0) {
                // SAFETY: `translate` found this byte.
                unsafe { ptr.as_ptr().write_volatile(*byte) };
            }
        }
    }

    fn used_index(&self) -> u16 {
        let found = self.full.translate(USED + 2, 2, &mut 0).expect("the ring is in memory");
        // SAFETY: `translate` found two bytes, aligned as the ring is.
        u16::from_le(unsafe { found.0.cast::<u16>().as_ptr().read_volatile() })
    }
}

/// What is left of the input; reads zeros at its end.
pub(super) struct Input<'a>(&'a [u8]);

impl Input<'_> {
    pub(super) fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn bytes(&mut self, count: usize) -> &[u8] {
        let (first, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// A ring under test.
pub(super) trait Played {
    fn ring(&self) -> &dyn Attachment;

    fn ring_mut(&mut self) -> &mut dyn Attachment;

    /// One of the requests that wait, which ends now.
    fn choose(&mut self, choice: u8) -> Option<Token>;

    /// How many wait; `None` where that is not known.
    fn waiting(&self) -> Option<usize>;
}

/// Lets one of the requests that wait go on, if any does.
fn complete(ring: &mut impl Played, choice: u8, io: &mut Io<'_>) {
    if let Some(token) = ring.choose(choice) {
        ring.ring_mut().complete(Completion { token, part: 0, result: 0 }, io);
        attachment::publish(ring.ring_mut(), io);
    }
}

/// Makes a ring and plays the input's steps on it; how many requests it answered. `make` is told where the ring is.
pub(super) fn play<R: Played>(data: &[u8], make: impl FnOnce(vhost_user::RingStart, u8) -> Option<R>) -> usize {
    let Some((&options, steps)) = data.split_first() else {
        return 0;
    };
    STAGE.with(|stage| {
        let Some(stage) = stage else {
            return 0; // Without memory or an io_uring from the system there is nothing to test.
        };
        stage.zero();
        let layout =
            Layout { size: SIZE, desc: 0, avail: AVAIL, used: USED, event_idx: options & 2 != 0, indirect: true };
        let mut moved = (options & IS_MOVED != 0).then(|| Moved::new(&stage.full, USED)).flatten();
        let start = vhost_user::RingStart {
            log: moved.as_ref().map(Moved::log),
            owed: Vec::new(),
            memory: stage.full.clone(),
            layout,
            position: RingPosition::default(),
            inflight: None,
            enabled: true,
            kick: None,
            call: None,
            err: None,
        };
        let Some(mut ring) = make(start, options) else {
            return 0;
        };
        let mut input = Input(steps);
        let mut available = 0;
        for _ in 0..STEPS_MAX {
            if input.0.is_empty() {
                break;
            }
            step(stage, &mut ring, &mut input, &mut available, moved.as_mut());
            if let Some(waiting) = ring.waiting() {
                let taken = ring.ring().requests_in_flight();
                assert_eq!(taken, waiting, "requests are lost, or answered before they end");
            }
        }
        // A ring that stops ends what it took.
        let mut solo = stage.solo.borrow_mut();
        while ring.waiting().is_some_and(|waiting| waiting > 0) {
            watched(&stage.full, moved.as_mut(), || complete(&mut ring, 0, &mut solo.io()));
        }
        if let Some(moved) = moved.filter(|_| ring.ring().requests_in_flight() == 0) {
            moved.check();
        }
        drop(ring);
        usize::from(stage.used_index())
    })
}

/// Has the ring do something; what it writes meanwhile is noted for a guest that is moved.
fn watched(memory: &Memory, moved: Option<&mut Moved>, act: impl FnOnce()) {
    match moved {
        Some(moved) => moved.watch(memory, act),
        None => act(),
    }
}

fn step(stage: &Stage, ring: &mut impl Played, input: &mut Input<'_>, available: &mut u16, moved: Option<&mut Moved>) {
    match input.u8() % STEPS {
        POKE => {
            let (at, count) = (input.u16(), input.u8());
            stage.put(u64::from(at), input.bytes(usize::from(count)));
        }
        DESCRIPTOR => descriptor(stage, input),
        OFFER => {
            // Mostly one head more, sometimes any index.
            let (head, jump) = (input.u8(), input.u8());
            let slot = u64::from(*available % SIZE);
            stage.put(AVAIL + 4 + 2 * slot, &u16::from(head).to_le_bytes());
            *available = available.wrapping_add(if jump < 0xf0 { 1 } else { u16::from(jump) });
            stage.put(AVAIL + 2, &available.to_le_bytes());
        }
        // As a worker does when there is something to take; shows what is answered.
        SERVE => {
            watched(&stage.full, moved, || {
                let mut solo = stage.solo.borrow_mut();
                ring.ring_mut().serve(&mut solo.io());
                attachment::publish(ring.ring_mut(), &mut solo.io());
            });
        }
        COMPLETE => {
            let choice = input.u8();
            watched(&stage.full, moved, || complete(ring, choice, &mut stage.solo.borrow_mut().io()));
        }
        MEMORY => {
            let memory = if input.u8() & 1 == 0 { &stage.full } else { &stage.short };
            if let Some(queue) = ring.ring_mut().queue_mut() {
                queue.set_memory(memory.clone());
            }
        }
        step => unreachable!("there are {STEPS} steps, and {step} is none of them"),
    }
}

/// Writes a descriptor into the ring's table, or into one of indirect descriptors at 0x3800.
fn descriptor(stage: &Stage, input: &mut Input<'_>) {
    let (index, choice, at) = (input.u8(), input.u8(), u64::from(input.u16()));
    let addr = match choice % 8 {
        6 => 0x2_0000 + (at & 0xfff),
        7 => at << 32,
        _ => at,
    };
    let (scale, len) = (input.u8(), u32::from(input.u16()));
    let len = if scale < 0xf0 { len } else { len << (scale & 0xf) };
    let (flags, next) = (input.u8(), input.u8());
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12] = flags & 7;
    bytes[14] = next;
    let table = if index & 0x80 == 0 { 0 } else { 0x3800 };
    stage.put(table + 16 * u64::from(index & 0x1f), &bytes);
}

/// The token of a request.
pub(super) fn token_at(waiting: &[Token], choice: u8) -> Option<usize> {
    (!waiting.is_empty()).then(|| usize::from(choice) % waiting.len())
}
