//! The volume of `world`, one step at a time: a commit and a sweep may be under way while anything else happens.

use proptest::prelude::*;

use super::super::{Cache, CacheOptions, Full, Pins, Round};
use super::world::{BLOCKS, Batch, CAPACITY_BYTES, Sweep, World};
use crate::SectorMask;

#[derive(Clone, Debug)]
enum Step {
    Store(usize, u8),
    Zero(usize),
    Discard(usize),
    Flush {
        max: usize,
        fails: bool,
    },
    BeginCommit(usize),
    EndCommit {
        ok: bool,
    },
    BeginSweep,
    Write {
        max: usize,
        fails: bool,
    },
    EndSweep,
    Trim,
    Grow,
    Kill,
    /// A store whose thread is interrupted half-way, while the rest goes on.
    Interrupted(usize, u8, Vec<Step>),
}

fn step() -> impl Strategy<Value = Step> {
    let meanwhile = prop::collection::vec(whole(), 1..12);
    let interrupted = (0..BLOCKS.len(), 1..=255u8, meanwhile);
    prop_oneof![
        30 => whole(),
        1 => interrupted.prop_map(|(index, mask, meanwhile)| Step::Interrupted(index, mask, meanwhile)),
    ]
}

fn whole() -> impl Strategy<Value = Step> {
    let index = || 0..BLOCKS.len();
    prop_oneof![
        8 => (index(), prop_oneof![Just(0xff), 1..=255u8]).prop_map(|(index, mask)| Step::Store(index, mask)),
        2 => index().prop_map(Step::Zero),
        1 => index().prop_map(Step::Discard),
        2 => (1..4usize, prop::bool::weighted(0.2)).prop_map(|(max, fails)| Step::Flush { max, fails }),
        2 => (1..4usize).prop_map(Step::BeginCommit),
        3 => prop::bool::weighted(0.7).prop_map(|ok| Step::EndCommit { ok }),
        2 => Just(Step::BeginSweep),
        6 => (1..4usize, prop::bool::weighted(0.1)).prop_map(|(max, fails)| Step::Write { max, fails }),
        3 => Just(Step::EndSweep),
        1 => Just(Step::Trim),
        1 => Just(Step::Grow),
        1 => Just(Step::Kill),
    ]
}

/// A world, and what is under way in it.
struct Run {
    world: World,
    batch: Option<Batch>,
    sweep: Option<Sweep>,
    value: u64,
    capacity_bytes: u64,
}

impl Run {
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Store(index, mask) => {
                self.value += 1;
                let value = self.value;
                let sectors = SectorMask(mask);
                self.until_there_is_room(|world| world.store(index, sectors, value));
                self.world.read(index, sectors);
            }
            Step::Zero(index) => self.until_there_is_room(|world| world.zero(index)),
            Step::Discard(index) => self.world.discard(index),
            Step::Flush { max, fails } => {
                self.end_commit(true);
                let whole = self.world.flush(max, || fails);
                assert!(whole || fails);
            }
            Step::BeginCommit(max) => {
                self.end_commit(true);
                self.batch = self.world.begin_commit(max, &mut Round::default());
            }
            Step::EndCommit { ok } => self.end_commit(ok),
            Step::BeginSweep => {
                self.end_sweep();
                self.sweep = Some(self.world.begin_sweep());
            }
            Step::Write { max, fails } => {
                if let Some(sweep) = &mut self.sweep {
                    self.world.step_sweep(sweep, max, fails);
                }
            }
            Step::EndSweep => self.end_sweep(),
            Step::Interrupted(index, mask, ref meanwhile) => {
                self.value += 1;
                let sectors = SectorMask(mask);
                let Ok(old) = self.world.publish(index, sectors, self.value) else { return };
                for step in meanwhile {
                    // Stores and discards of the same sectors would have no order, and a kill would take the thread with it.
                    match step {
                        Step::Store(other, _) | Step::Zero(other) | Step::Discard(other) if *other == index => {}
                        Step::Kill => {}
                        step => self.take(step),
                    }
                    self.world.cut();
                }
                self.world.mark(index, sectors, old);
            }
            Step::Kill => {
                (self.batch, self.sweep) = (None, None);
                self.world.reopen();
            }
            Step::Trim => self.world.cache.trim(),
            Step::Grow => self.grow(),
        }
    }

    fn grow(&mut self) {
        self.capacity_bytes += 4096 * 5000;
        self.world.cache.grow(self.capacity_bytes).unwrap();
    }

    fn until_there_is_room(&mut self, store: impl Fn(&World) -> Result<(), Full>) {
        if store(&self.world).is_ok() {
            return;
        }
        self.end_commit(true);
        self.end_sweep();
        self.sweep = Some(self.world.begin_sweep());
        self.end_sweep();
        store(&self.world).expect("all was written back, and there is still no room");
    }

    fn end_commit(&mut self, ok: bool) {
        if let Some(batch) = self.batch.take() {
            self.world.end_commit(&batch, ok);
        }
    }

    fn end_sweep(&mut self) {
        if let Some(mut sweep) = self.sweep.take() {
            while self.world.step_sweep(&mut sweep, 2, false) {}
            if self.batch.as_ref().is_some_and(|batch| sweep.waits_for(batch)) {
                self.end_commit(true);
            }
            self.world.end_sweep(sweep);
        }
    }
}

proptest! {
    #[test]
    fn nothing_flushed_is_lost_and_nothing_older_comes_back(steps in prop::collection::vec(step(), 1..150)) {
        let mut run = Run { world: World::new(6, 2), batch: None, sweep: None, value: 0, capacity_bytes: CAPACITY_BYTES };
        for step in &steps {
            run.take(step);
            run.world.cut();
            for index in 0..BLOCKS.len() {
                run.world.read(index, SectorMask::ALL);
            }
        }
        run.end_commit(true);
        run.end_sweep();
        run.world.close();
    }
}

#[test]
fn a_version_whose_record_may_fail_does_not_leave() {
    let world = World::new(6, 2);
    let mut sweep = world.begin_sweep();
    world.store(0, SectorMask::ALL, 1).unwrap();
    assert!(world.flush(9, || false));
    // The first version is in a record that the sweep does not cut off; the second is written back while its record is in flight.
    world.store(0, SectorMask::ALL, 2).unwrap();
    let batch = world.begin_commit(9, &mut Round::default()).unwrap();
    while world.step_sweep(&mut sweep, 9, false) {}
    world.end_sweep(sweep);
    world.end_commit(&batch, false);
    drop(batch);
    assert!(world.flush(9, || false));
    world.cut();
    world.close();
}

fn small() -> std::sync::Arc<Cache> {
    let options = CacheOptions { capacity_bytes: 40_960, data_slots: 2, zero_slots: 1 };
    std::sync::Arc::new(Cache::new(&options).unwrap())
}

#[test]
fn a_full_cache_says_so_and_stores_nothing() {
    let cache = small();
    cache.store(0, SectorMask::ALL, |_| {}).unwrap();
    cache.store(1, SectorMask::ALL, |_| {}).unwrap();
    let mut filled = false;
    assert_eq!(cache.store(2, SectorMask::ALL, |_| filled = true), Err(Full));
    assert!(!filled && !cache.touches(2..3));
    cache.zero(3).unwrap();
    assert_eq!(cache.zero(4), Err(Full));
    cache.zero(3).expect("a block of zeroes needs no second slot");
    cache.drop_range(0..1);
    cache.store(2, SectorMask::ALL, |_| {}).expect("the discarded version has left its slot");
}

#[test]
fn a_version_stays_as_it_is_while_it_is_pinned() {
    let cache = small();
    let mut pins = Pins::new(&cache);
    // SAFETY: `fill` is given 4096 bytes for itself.
    cache.store(7, SectorMask::ALL, |data| unsafe { data.write_bytes(1, 4096) }).unwrap();
    assert!(cache.pin(7, &mut pins) && !cache.pin(8, &mut pins) && !cache.pin(1 << 60, &mut pins));
    // SAFETY: as above.
    cache.store(7, SectorMask(1), |data| unsafe { data.write_bytes(2, 512) }).unwrap();
    cache.drop_range(0..10);
    let pinned = pins.iter().next().unwrap();
    let data = pinned.data.unwrap();
    assert_eq!((pinned.block, pinned.sectors, data.addr() % 4096), (7, SectorMask::ALL, 0));
    // SAFETY: a pinned version has 4096 bytes, and nobody writes them.
    assert!(unsafe { std::slice::from_raw_parts(data, 4096) }.iter().all(|&byte| byte == 1));
    assert_eq!(cache.figures().data_slots_free, 1);
    drop(pins);
    assert_eq!(cache.figures().data_slots_free, 2);
}

#[test]
fn a_capacity_grows_to_what_was_said_and_does_not_shrink() {
    let cache = small();
    assert!(cache.grow(4096).is_err());
    cache.grow(1 << 44).unwrap();
    cache.zero((1 << 32) - 1).unwrap();
    assert!(cache.touches(0..u64::MAX));
    assert!(cache.grow(u64::MAX).is_err());
    cache.drop_range(0..u64::MAX);
    assert!(!cache.touches(0..u64::MAX));
}

#[test]
#[should_panic(expected = "block 10 of a disk of 10")]
fn a_block_outside_of_the_disk_is_a_mistake_of_the_caller() {
    let _ = small().store(10, SectorMask::ALL, |_| {});
}

#[test]
#[should_panic(expected = "pins of another cache")]
fn pins_belong_to_one_cache() {
    let mut pins = Pins::new(&small());
    small().pin(0, &mut pins);
}
