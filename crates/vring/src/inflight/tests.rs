//! A ring that dies behind each of its stores, and what another one makes of the memory it left; then memory that lies.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU8;
use std::ptr::copy_nonoverlapping;
use std::rc::Rc;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::{InflightError, InflightQueue, Note, Recovery};
use crate::chain::Chain;
use crate::crash;
use crate::error::RingError;
use crate::layout::Layout;
use crate::mapping::Mapping;
use crate::memory::{Memory, Region};
use crate::position::RingPosition;
use crate::split::SplitRing;

/// The ring's areas lie in the first page, a buffer that all requests share in the second.
const GUEST_BYTES: usize = 0x2000;
const DATA: u64 = 0x1000;
const AVAIL: u64 = 0x400;
const USED: u64 = 0x800;
const SIZE_MAX: u16 = 32;
const REGION_BYTES: usize = InflightQueue::bytes(SIZE_MAX);

/// A guest's memory and an inflight region.
struct Place {
    guest: Arc<Mapping>,
    region: Arc<Mapping>,
    memory: Arc<Memory>,
}

impl Place {
    fn new() -> Place {
        Place::of(Mapping::anonymous(GUEST_BYTES).unwrap())
    }

    fn of(guest: Mapping) -> Place {
        let guest = Arc::new(guest);
        let whole =
            Region { guest_addr: 0, user_addr: 0, len: GUEST_BYTES as u64, mapping: Arc::clone(&guest), offset: 0 };
        let region = Arc::new(Mapping::anonymous(REGION_BYTES).unwrap());
        Place { guest, region, memory: Arc::new(Memory::new(vec![whole]).unwrap()) }
    }

    fn copy_to(&self, other: &Place) {
        for (from, to) in [(&self.guest, &other.guest), (&self.region, &other.region)] {
            // SAFETY: two mappings of one length, which only this thread uses.
            unsafe { copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        }
    }

    fn put(mapping: &Mapping, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= mapping.len());
        // SAFETY: inside the mapping, as just checked.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), mapping.as_ptr().add(at), bytes.len()) };
    }

    fn get_u16(mapping: &Mapping, at: usize) -> u16 {
        let mut bytes = [0; 2];
        assert!(at + 2 <= mapping.len());
        // SAFETY: inside the mapping, as just checked.
        unsafe { copy_nonoverlapping(mapping.as_ptr().add(at), bytes.as_mut_ptr(), 2) };
        u16::from_ne_bytes(bytes)
    }

    fn used_idx(&self) -> u16 {
        u16::from_le(Place::get_u16(&self.guest, USED as usize + 2))
    }

    /// Puts the driver's view of a ring that begins at `start`.
    fn begin(&self, start: u16) {
        Place::put(&self.guest, AVAIL as usize + 2, &start.to_le_bytes());
        Place::put(&self.guest, USED as usize + 2, &start.to_le_bytes());
    }

    /// Makes the one-descriptor chain of `head` available as number `index`.
    fn offer(&self, size: u16, index: u16, head: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&DATA.to_le_bytes());
        descriptor[8..12].copy_from_slice(&(u32::from(head) + 1).to_le_bytes());
        Place::put(&self.guest, 16 * usize::from(head), &descriptor);
        Place::put(&self.guest, AVAIL as usize + 4 + 2 * usize::from(index % size), &head.to_le_bytes());
        Place::put(&self.guest, AVAIL as usize + 2, &index.wrapping_add(1).to_le_bytes());
    }

    /// The ring as the frontend of a backend that was killed starts it: from the used index, whatever was under way.
    fn ring(&self, size: u16) -> SplitRing {
        let layout = Layout { size, desc: 0, avail: AVAIL, used: USED, event_idx: false, indirect: false };
        SplitRing::new(Arc::clone(&self.memory), layout, RingPosition::split(self.used_idx())).unwrap()
    }

    fn inflight(&self) -> InflightQueue {
        InflightQueue::new(Arc::clone(&self.region), 0, SIZE_MAX).unwrap()
    }

    fn tracked(&self, size: u16) -> (SplitRing, Recovery) {
        let mut ring = self.ring(size);
        let recovery = ring.track(self.inflight()).unwrap();
        (ring, recovery)
    }
}

fn pop_all(ring: &mut SplitRing) -> Vec<u16> {
    let mut chain = Chain::default();
    std::iter::from_fn(|| {
        let head = ring.pop(&mut chain).unwrap()?;
        // Each head's chain has a length of its own: it is the right one that was followed.
        assert_eq!(chain.readable_bytes(), u64::from(head) + 1);
        Some(head)
    })
    .collect()
}

/// What the driver did and what the ring did to it, request by request.
#[derive(Default)]
struct History {
    /// The head of each request, in the order in which they were made available.
    offered: Vec<u16>,
    /// Numbers of the requests that were pushed, in that order. Those that were never shown are taken out after a crash.
    pushed: Vec<usize>,
}

/// One history, its memory, and copies of it as they were behind some store.
struct World {
    size: u16,
    start: u16,
    /// The memory that is worked on, what it was behind the store at which it is looked at, and what that was behind a
    /// store of the ring that made sense of it.
    places: [Place; 3],
    history: RefCell<History>,
    /// The process is to end behind the store after so many more.
    crash_in: Cell<Option<u8>>,
    crashed: Cell<bool>,
    /// Memory as the crash left it.
    saved: Place,
    looks: Cell<u32>,
}

impl World {
    /// Behind a store in `places[depth]`: whoever comes now must find everything, and only what is owed.
    fn look(self: &Rc<World>, depth: usize) {
        if depth == 0 && !self.crashed.get() {
            self.count_down();
        }
        let Some(copy) = self.places.get(depth + 1) else {
            return;
        };
        self.looks.set(self.looks.get() + 1);
        self.places[depth].copy_to(copy);
        let shown = usize::from(copy.used_idx().wrapping_sub(self.start));
        let (expected, end) = {
            let history = self.history.borrow();
            let shown = &history.pushed[..shown];
            let missing = |number: &usize| !shown.contains(number);
            let numbers = (0..history.offered.len()).filter(missing);
            (numbers.map(|number| history.offered[number]).collect::<Vec<_>>(), history.offered.len())
        };
        // The one who comes may die, too.
        let world = Rc::clone(self);
        let (mut ring, _) = crash::at_each_point(move || world.look(depth + 1), || copy.tracked(self.size));
        assert_eq!(pop_all(&mut ring), expected, "behind store {}", self.looks.get());
        assert_eq!(ring.position().avail(), self.start.wrapping_add(end as u16));
    }

    fn count_down(&self) {
        match self.crash_in.get() {
            Some(0) => {
                self.places[0].copy_to(&self.saved);
                self.crashed.set(true);
            }
            Some(left) => self.crash_in.set(Some(left - 1)),
            None => {}
        }
    }
}

/// The history as it goes.
struct Run {
    world: Rc<World>,
    ring: SplitRing,
    /// The driver's free heads, and the request that each of the others stands for.
    free: Vec<u16>,
    request_of: Vec<usize>,
    flying: Vec<usize>,
    /// How many of the requests that were shown the driver has taken back.
    reaped: usize,
}

#[derive(Clone, Debug)]
enum Step {
    Offer(usize),
    Pop,
    Push(usize),
    Publish,
    /// The process ends behind one of the next stores.
    Crash(u8),
    /// It ends right now.
    CrashNow,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<usize>().prop_map(Step::Offer),
        5 => Just(Step::Pop),
        5 => any::<usize>().prop_map(Step::Push),
        3 => Just(Step::Publish),
        1 => (0_u8..12).prop_map(Step::Crash),
        1 => Just(Step::CrashNow),
    ]
}

impl Run {
    fn new(size: u16, start: u16) -> Run {
        let world = Rc::new(World {
            size,
            start,
            places: [Place::new(), Place::new(), Place::new()],
            history: RefCell::default(),
            crash_in: Cell::new(None),
            crashed: Cell::new(false),
            saved: Place::new(),
            looks: Cell::new(0),
        });
        world.places[0].begin(start);
        let ring = Run::watched(&world, || world.places[0].tracked(size).0);
        Run {
            world,
            ring,
            free: (0..size).collect(),
            request_of: vec![usize::MAX; usize::from(size)],
            flying: Vec::new(),
            reaped: 0,
        }
    }

    /// Runs something of the ring's, looking behind each of its stores.
    fn watched<T>(world: &Rc<World>, run: impl FnOnce() -> T) -> T {
        let hook = Rc::clone(world);
        crash::at_each_point(move || hook.look(0), run)
    }

    fn step(&mut self, step: &Step) {
        let world = Rc::clone(&self.world);
        match step {
            Step::Offer(which) => {
                if !self.free.is_empty() {
                    let head = self.free.swap_remove(which % self.free.len());
                    let number = world.history.borrow().offered.len();
                    world.places[0].offer(world.size, world.start.wrapping_add(number as u16), head);
                    world.history.borrow_mut().offered.push(head);
                    self.request_of[usize::from(head)] = number;
                }
            }
            Step::Pop => {
                let ring = &mut self.ring;
                let head = Run::watched(&world, || ring.pop(&mut Chain::default()).unwrap());
                self.flying.extend(head.map(|head| self.request_of[usize::from(head)]));
            }
            Step::Push(which) => {
                if !self.flying.is_empty() {
                    let number = self.flying.swap_remove(which % self.flying.len());
                    let head = world.history.borrow().offered[number];
                    world.history.borrow_mut().pushed.push(number);
                    let ring = &mut self.ring;
                    Run::watched(&world, || ring.push(head, 0));
                }
            }
            Step::Publish => {
                let ring = &mut self.ring;
                Run::watched(&world, || ring.publish());
            }
            Step::Crash(stores) => world.crash_in.set(Some(*stores)),
            Step::CrashNow => {
                world.places[0].copy_to(&world.saved);
                world.crashed.set(true);
            }
        }
        if world.crashed.get() {
            self.begin_again();
        }
        self.reap();
    }

    /// Another process takes over what the crash left.
    fn begin_again(&mut self) {
        let world = Rc::clone(&self.world);
        world.saved.copy_to(&world.places[0]);
        world.crash_in.set(None);
        let shown = usize::from(world.places[0].used_idx().wrapping_sub(world.start));
        world.history.borrow_mut().pushed.truncate(shown);
        // So that what it does at its start is looked at as well; another crash waits until it is up.
        self.ring = Run::watched(&world, || world.places[0].tracked(world.size).0);
        world.crashed.set(false);
        self.flying.clear();
        assert!(self.ring.owed() <= usize::from(world.size));
    }

    /// The driver takes back what it was shown.
    fn reap(&mut self) {
        let shown = usize::from(self.world.places[0].used_idx().wrapping_sub(self.world.start));
        let history = self.world.history.borrow();
        let numbers = &history.pushed[self.reaped..shown];
        self.free.extend(numbers.iter().map(|&number| history.offered[number]));
        self.reaped = shown;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whoever_comes_finds_what_is_owed_and_nothing_else(
        shift in 0_u32..=5,
        start in prop_oneof![Just(0), 65500_u16..=65535, any::<u16>()],
        steps in vec(step(), 1..150),
    ) {
        let mut run = Run::new(1 << shift, start);
        steps.iter().for_each(|step| run.step(step));
        // Whatever is left goes through as well, also when the process ends once more.
        for _ in 0..2 * SIZE_MAX {
            [Step::Pop, Step::Push(0), Step::Publish].iter().for_each(|step| run.step(step));
        }
        let history = run.world.history.borrow();
        prop_assert_eq!(run.reaped, history.offered.len());
        let mut answered = history.pushed.clone();
        answered.sort_unstable();
        prop_assert_eq!(answered, (0..history.offered.len()).collect::<Vec<_>>(), "each once");
        // A fresh region alone makes as many stores.
        prop_assert!(run.world.looks.get() > u32::from(SIZE_MAX));
    }

    /// The region belongs to the frontend, which may write anything there, and its guest to the used ring's index.
    #[test]
    fn a_region_that_lies_is_bounded(
        shift in 0_u32..=5,
        version in prop_oneof![4 => Just(1_u16), 1 => 0_u16..4],
        last in 0_u16..40,
        behind in prop_oneof![2 => Just(0_u16), 2 => 0_u16..4, 1 => any::<u16>()],
        entries in vec((0_u8..3, 0_u16..40, prop_oneof![0_u64..4, any::<u64>()]), usize::from(SIZE_MAX)),
        (avail, used) in prop_oneof![(0_u16..40, 0_u16..40), any::<(u16, u16)>()],
    ) {
        let size: u16 = 1 << shift;
        let place = Place::new();
        Place::put(&place.guest, AVAIL as usize + 2, &avail.to_le_bytes());
        Place::put(&place.guest, USED as usize + 2, &used.to_le_bytes());
        Place::put(&place.region, super::VERSION, &version.to_ne_bytes());
        Place::put(&place.region, super::LAST_BATCH_HEAD, &last.to_ne_bytes());
        Place::put(&place.region, super::USED_IDX, &used.wrapping_sub(behind).to_ne_bytes());
        for (i, (flag, next, counter)) in entries.into_iter().enumerate() {
            let at = super::DESC + super::DESC_BYTES * i;
            Place::put(&place.region, at, &[flag]);
            Place::put(&place.region, at + super::NEXT, &next.to_ne_bytes());
            Place::put(&place.region, at + super::COUNTER, &counter.to_ne_bytes());
        }
        let mut ring = place.ring(size);
        if let Ok(recovery) = ring.track(place.inflight()) {
            let owed = ring.owed();
            prop_assert!(owed <= usize::from(size));
            prop_assert!(owed <= usize::from(avail.wrapping_sub(used)));
            prop_assert!(owed == 0 || recovery == Recovery::Continued { owed: owed as u16 }, "{:?}", recovery);
            let mut heads = Vec::new();
            while let Some(head) = ring.pop_owed(&mut Chain::default()).unwrap() {
                prop_assert!(head < size && !heads.contains(&head));
                heads.push(head);
            }
            prop_assert_eq!(heads.len(), owed);
            // Now it is in order, and says the same once more.
            let (again, _) = place.tracked(size);
            prop_assert_eq!(again.owed(), owed);
        }
    }
}

#[test]
fn a_region_is_as_large_as_others_make_it() {
    let bytes: Vec<usize> = [1, 2, 4, 128, 256, 32768].map(InflightQueue::bytes).into();
    assert_eq!(bytes, [64, 64, 128, 2112, 4160, 524_352]);
}

#[test]
fn a_place_outside_its_mapping_or_misaligned_is_refused() {
    let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
    let new = |offset, size| InflightQueue::new(Arc::clone(&mapping), offset, size).map(|queue| queue.entries());
    assert_eq!(new(4096 - 2112, 128), Ok(128));
    let beyond = |offset| Err(InflightError::BeyondMapping { offset, bytes: 2112, len: 4096 });
    assert_eq!(new(4096 - 2104, 128), beyond(4096 - 2104));
    assert_eq!(new(usize::MAX - 7, 128), beyond(usize::MAX - 7));
    assert_eq!(new(4, 128), Err(InflightError::Misaligned { offset: 4 }));
}

#[test]
fn fields_lie_where_the_specification_puts_them() {
    let place = Place::new();
    place.begin(7);
    let (mut ring, recovery) = place.tracked(8);
    assert_eq!(recovery, Recovery::Fresh);
    let region = |at| Place::get_u16(&place.region, at);
    assert_eq!((region(8), region(10), region(14)), (1, SIZE_MAX, 7));
    place.offer(8, 7, 3);
    place.offer(8, 8, 5);
    assert_eq!(pop_all(&mut ring), [3, 5]);
    // Inflight flags and counters of the entries of 16 bytes, which begin at byte 16.
    assert_eq!((region(16 + 48), region(16 + 80)), (1, 1));
    assert_eq!((region(16 + 48 + 8), region(16 + 80 + 8)), (0, 1));
    ring.push(5, 0);
    ring.push(3, 0);
    assert_eq!((region(12), region(16 + 48 + 6)), (3, 5));
    assert_eq!((region(14), region(16 + 48)), (7, 1));
    ring.publish();
    assert_eq!((region(14), region(16 + 48), region(16 + 80)), (9, 0, 0));
}

#[test]
fn what_is_owed_keeps_its_place_before_what_is_new() {
    let place = Place::new();
    place.begin(65534);
    let (mut ring, _) = place.tracked(8);
    (0..6).for_each(|head| place.offer(8, 65534_u16.wrapping_add(head), head));
    assert_eq!(pop_all(&mut ring), [0, 1, 2, 3, 4, 5]);
    for head in [4, 1] {
        ring.push(head, 0);
    }
    ring.publish();
    ring.push(2, 0);
    // The driver uses a descriptor again that it has got back: no order of descriptors is the order of requests.
    place.offer(8, 4, 1);

    let (mut ring, recovery) = place.tracked(8);
    assert_eq!((recovery, ring.owed(), ring.position().avail()), (Recovery::Continued { owed: 4 }, 4, 4));
    assert!(ring.has_pending() && ring.enable_kicks());
    assert_eq!(ring.pop(&mut Chain::default()), Ok(Some(0)));
    // What is owed is all that a ring which stops may still take.
    let mut chain = Chain::default();
    let owed: Vec<u16> = std::iter::from_fn(|| ring.pop_owed(&mut chain).unwrap()).collect();
    assert_eq!(owed, [2, 3, 5]);
    assert_eq!((ring.owed(), ring.position().avail()), (0, 4));
    assert_eq!(pop_all(&mut ring), [1]);

    // A third process, before anything was shown.
    let (mut ring, _) = place.tracked(8);
    assert_eq!(pop_all(&mut ring), [0, 2, 3, 5, 1]);
}

#[test]
fn a_chain_that_was_spoilt_meanwhile_is_an_error_and_stays_owed() {
    let place = Place::new();
    let (mut ring, _) = place.tracked(4);
    place.offer(4, 0, 2);
    assert_eq!(pop_all(&mut ring), [2]);
    // Its descriptor continues outside the table now.
    Place::put(&place.guest, 16 * 2 + 12, &[1, 0, 9, 0]);
    for _ in 0..2 {
        let (mut ring, _) = place.tracked(4);
        let error = RingError::NextOutOfRange { head: 2, next: 9, size: 4 };
        assert_eq!(ring.pop(&mut Chain::default()), Err(error));
        assert_eq!(ring.owed(), 1);
    }
}

#[test]
fn nothing_is_taken_from_memory_that_is_gone() {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, GUEST_BYTES as u64).unwrap();
    let place = Place::of(Mapping::shared(&file, 0, GUEST_BYTES).unwrap());
    let (mut ring, _) = place.tracked(4);
    place.offer(4, 0, 2);
    assert_eq!(pop_all(&mut ring), [2]);
    let (mut ring, _) = place.tracked(4);
    ftruncate(&file, 0).unwrap();
    assert_eq!(ring.pop(&mut Chain::default()), Err(RingError::MemoryGone { guest_addr: 0 }));
    assert_eq!(ring.owed(), 1);
}

#[test]
fn a_driver_that_set_its_ring_up_anew_is_owed_nothing() {
    let place = Place::new();
    place.begin(1000);
    let (mut ring, _) = place.tracked(8);
    place.offer(8, 1000, 3);
    place.offer(8, 1001, 4);
    assert_eq!(pop_all(&mut ring), [3, 4]);
    // By its used index, which is further away than any publication goes...
    place.begin(0);
    let (mut ring, recovery) = place.tracked(8);
    assert_eq!((recovery, ring.owed(), ring.position().avail()), (Recovery::Stale, 0, 0));
    place.offer(8, 0, 3);
    assert_eq!(pop_all(&mut ring), [3]);
    // ...or because it has made less available than is marked.
    place.begin(0);
    let (ring, recovery) = place.tracked(8);
    assert_eq!((recovery, ring.owed()), (Recovery::Stale, 0));
    assert_eq!(place.tracked(8).1, Recovery::Continued { owed: 0 });
}

#[test]
fn a_list_that_leads_nowhere_stops_no_ring_that_is_owed_nothing() {
    let place = Place::new();
    // The driver sets its ring up anew where the index of its earlier life lies just behind: nothing is in flight.
    place.begin(u16::MAX - 1);
    place.tracked(8);
    place.begin(0);
    Place::put(&place.region, 12, &8_u16.to_ne_bytes());
    assert_eq!(place.tracked(8).1, Recovery::Stale);
    // Nor does one whose driver has got all back, whatever is marked.
    Place::put(&place.region, 14, &(u16::MAX - 1).to_ne_bytes());
    Place::put(&place.region, 12, &8_u16.to_ne_bytes());
    Place::put(&place.region, 16 + 16 * 3, &[1]);
    assert_eq!(place.tracked(8).1, Recovery::Stale);
    let (ring, recovery) = place.tracked(8);
    assert_eq!((recovery, ring.owed()), (Recovery::Continued { owed: 0 }, 0));
}

#[test]
fn a_larger_ring_leaves_nothing_behind_for_the_next_larger_one() {
    let place = Place::new();
    let (mut ring, _) = place.tracked(16);
    place.offer(16, 0, 12);
    place.offer(16, 1, 3);
    assert_eq!(pop_all(&mut ring), [12, 3]);
    assert_eq!(place.tracked(8).1, Recovery::Continued { owed: 1 });
    assert_eq!(place.tracked(16).1, Recovery::Continued { owed: 1 });
}

#[test]
fn a_region_that_was_reset_is_fresh() {
    let place = Place::new();
    let (mut ring, _) = place.tracked(8);
    place.offer(8, 0, 3);
    assert_eq!(pop_all(&mut ring), [3]);
    place.inflight().reset();
    let (ring, recovery) = place.tracked(8);
    assert_eq!((recovery, ring.owed()), (Recovery::Fresh, 0));
}

#[test]
fn a_note_lasts_as_long_as_what_is_in_flight() {
    let place = Place::new();
    let note = NonZeroU8::new(7);
    assert_eq!(place.inflight().note(), Note::Unused);
    // Nobody has begun here: memory that is not known to be ours says nothing.
    place.inflight().set_note(note);
    assert_eq!(place.inflight().note(), Note::Unused);
    place.tracked(8);
    assert_eq!(place.inflight().note(), Note::Missing);
    place.inflight().set_note(note);
    place.offer(8, 0, 3);
    let (mut ring, _) = place.tracked(8);
    assert_eq!(pop_all(&mut ring), [3]);
    let (_, recovery) = place.tracked(8);
    assert_eq!((recovery, Some(place.inflight().note())), (Recovery::Continued { owed: 1 }, note.map(Note::Left)));
    place.inflight().reset();
    assert_eq!(place.inflight().note(), Note::Unused);
}

#[test]
fn what_cannot_be_understood_is_refused_and_left_alone() {
    let place = Place::new();
    let refused = |error: InflightError| {
        let before = Place::new();
        place.copy_to(&before);
        assert_eq!(place.ring(8).track(place.inflight()), Err(RingError::Inflight(error)));
        for at in (0..REGION_BYTES).step_by(2) {
            assert_eq!(Place::get_u16(&place.region, at), Place::get_u16(&before.region, at));
        }
    };
    Place::put(&place.region, 8, &2_u16.to_ne_bytes());
    refused(InflightError::UnknownVersion { version: 2, features: 0 });
    Place::put(&place.region, 8, &1_u16.to_ne_bytes());
    Place::put(&place.region, 0, &1_u64.to_ne_bytes());
    refused(InflightError::UnknownVersion { version: 1, features: 1 });
    Place::put(&place.region, 0, &0_u64.to_ne_bytes());

    // The used ring is two requests ahead of the region, whose list says which.
    Place::put(&place.guest, USED as usize + 2, &2_u16.to_le_bytes());
    // One of three that were made available is still in flight.
    Place::put(&place.guest, AVAIL as usize + 2, &3_u16.to_le_bytes());
    Place::put(&place.region, 16 + 16 * 3, &[1]);
    Place::put(&place.region, 12, &8_u16.to_ne_bytes());
    refused(InflightError::BadList { head: 8 });
    Place::put(&place.region, 12, &5_u16.to_ne_bytes());
    Place::put(&place.region, 16 + 16 * 5 + 6, &5_u16.to_ne_bytes());
    refused(InflightError::BadList { head: 5 });
    Place::put(&place.region, 16 + 16 * 5 + 6, &6_u16.to_ne_bytes());
    assert_eq!(place.tracked(8).1, Recovery::Continued { owed: 1 });

    let small = InflightQueue::new(Arc::clone(&place.region), 0, 4).unwrap();
    assert_eq!(place.ring(8).track(small), Err(RingError::Inflight(InflightError::TooSmall { entries: 4, size: 8 })));
}
