//! Several records in flight, which tasks on a fast machine seldom have: landing in order, and failing together.

use super::{Joined, Landed, Taken, Waiter};
use crate::SectorMask;
use crate::cache::{Cache, CacheOptions, Pins};
use crate::format::{Tail, Uuid};
use crate::served::batch::Batch;
use crate::served::options::LoggedOptions;
use crate::served::reply::Event;
use crate::served::shared::{Layout, Parts, Shared};
use engine::{Completion, Reply, Solo, Token};
use std::sync::Arc;
use std::time::Duration;
use storage::{NullOptions, NullStorage};

const SEQUENCE: u64 = 40;
const START: u64 = 1 << 20;

/// A volume without a thread, and somebody who gets its replies.
struct World {
    shared: Arc<Shared>,
    solo: Solo,
}

/// What a waiter is told: that its commit is in the log...
const COMMITTED: i32 = 0;
/// ...or, here, that it is to lead.
const LEAD: i32 = 1;

fn reply_to(solo: &mut Solo, token: u16) -> Reply {
    solo.io().reply(Token::request(token).part(Event::Commit.part()))
}

impl World {
    fn new() -> World {
        let capacity_bytes = 1 << 20;
        let lower =
            NullStorage::open(&NullOptions { size: values::ByteSize(8 << 20), zeroes: true, ..NullOptions::default() })
                .unwrap();
        let lower = Arc::new(lower);
        let cache = Cache::new(&CacheOptions { capacity_bytes, data_slots: 512, zero_slots: 64 }).unwrap();
        let layout = Layout { data_offset: 2 << 20, log_offset: 64 << 10, log_bytes: 1 << 20, log_uuid: Uuid::nil() };
        let tail = Tail { position: START, sequence: SEQUENCE, chain: 99 };
        let cache = Arc::new(cache);
        let parts =
            Parts { cache, log: lower.clone(), home: lower.clone(), lower, layout, capacity_bytes, epoch: 1, tail };
        World { shared: Arc::new(Shared::new(parts, &LoggedOptions::default())), solo: Solo::new().unwrap() }
    }

    fn store(&self, block: u64) {
        // SAFETY: a slot has a whole block.
        let fill = |memory: *mut u8| unsafe { memory.write_bytes(block as u8, 4096) };
        self.shared.cache.store(block, SectorMask::ALL, fill).unwrap();
    }

    fn waiter(&mut self, token: u16) -> Waiter {
        Waiter { reply: reply_to(&mut self.solo, token), since_ns: 0 }
    }

    /// Takes and seals what is unlogged, for one waiter besides the leader.
    fn seal(&mut self, token: u16) -> Box<Batch> {
        let mut waiters = vec![self.waiter(token)];
        let batch = self.part(&mut waiters);
        assert!(batch.last && waiters.is_empty());
        batch
    }

    /// Takes and seals as much of what is unlogged as one record holds.
    fn part(&mut self, waiters: &mut Vec<Waiter>) -> Box<Batch> {
        let shared = self.shared.clone();
        let mut batch = shared.batch();
        let none = || -> Waiter { panic!("nobody parks here") };
        let taken = shared.committer.take(&shared.cache, &shared.poke, 0, &mut batch, waiters, none);
        assert!(matches!(taken, Taken::Done) && !batch.pins.is_empty());
        batch.build().unwrap();
        let (sealed, ..) =
            shared.committer.seal(&shared.cache, &shared.poke, &shared.figures, 0, &mut batch, waiters, || {
                panic!("nobody parks here")
            });
        assert!(matches!(sealed, Taken::Done));
        batch
    }

    /// Lands a batch, whose leader has token 100 + `token`, and tells whom there is to tell.
    fn land(&mut self, batch: Box<Batch>, result: Result<(), i32>, token: u16) -> Landed {
        let shared = self.shared.clone();
        let mut told = Vec::new();
        let mut leader = Some(self.waiter(100 + token));
        let landed = shared.committer.landed(
            &shared.cache,
            &shared.figures,
            true,
            0,
            batch,
            result,
            || leader.take().unwrap(),
            &mut told,
        );
        if let Some(leader) = leader {
            // Not needed; it is to be out of the way.
            leader.reply.complete_part(Event::Echo.part(), 0);
            assert_eq!(self.solo.wait().unwrap().index(), usize::from(100 + token));
        }
        for answer in told {
            if let Some(next) = answer.next {
                next.reply.complete_part(Event::Lead.part(), 0);
            }
            for waiter in answer.waiters {
                waiter.reply.complete(answer.result.map_or_else(|errno| -errno, |()| COMMITTED));
            }
            shared.committer.keep(answer.batch.unwrap());
        }
        landed
    }

    /// Whom the last steps told something, in that order.
    fn told(&mut self, count: usize) -> Vec<(u16, i32)> {
        let said = |end: Completion| {
            let lead = Event::of(end.part) == Some(Event::Lead);
            (end.token.index().unwrap(), if lead { LEAD } else { end.result })
        };
        (0..count).map(|_| said(self.solo.wait().unwrap())).collect()
    }

    fn is_clean(&self) -> bool {
        self.shared.committer.is_clean(&self.shared.cache)
    }

    fn evict(&self, block: u64) -> usize {
        let mut pins = Pins::new(&self.shared.cache);
        assert!(self.shared.cache.pin(block, &mut pins));
        self.shared.settle(&mut pins).removed
    }
}

#[test]
fn flights_land_in_the_order_of_their_records() {
    let mut world = World::new();
    assert!(world.is_clean());
    let batches: Vec<_> = (1..=3)
        .map(|block| {
            world.store(block);
            assert!(!world.is_clean());
            world.seal(block as u16)
        })
        .collect();
    let [first, second, third]: [Box<Batch>; 3] = batches.try_into().ok().unwrap();
    assert_eq!((first.sequence, third.sequence), (SEQUENCE, SEQUENCE + 2));
    assert!(matches!(world.land(third, Ok(()), 3), Landed::Later));
    assert!(matches!(world.land(first, Ok(()), 1), Landed::With(Ok(()))));
    assert_eq!(world.told(1), [(1, COMMITTED)]);
    assert!(!world.is_clean());
    assert_eq!(world.shared.committer.mark().tail.sequence, SEQUENCE + 1, "a checkpoint keeps what is in flight");
    assert!(matches!(world.land(second, Ok(()), 2), Landed::With(Ok(()))));
    let told = [(2, COMMITTED), (3, COMMITTED), (103, COMMITTED)];
    assert_eq!(world.told(3), told);
    assert!(world.is_clean());
}

#[test]
fn a_failure_takes_those_behind_it_along_and_breaks_the_log_off() {
    let mut world = World::new();
    let batches: Vec<_> = (1..=3)
        .map(|block| {
            world.store(block);
            world.seal(block as u16)
        })
        .collect();
    let [first, second, third]: [Box<Batch>; 3] = batches.try_into().ok().unwrap();
    let used = world.shared.committer.log_used_bytes();
    assert_eq!(used, 3 * 8192);
    assert!(matches!(world.land(second, Err(libc::ENOSPC), 2), Landed::Later));
    assert!(matches!(world.land(first, Ok(()), 1), Landed::With(Ok(()))));
    assert_eq!(world.told(1), [(1, COMMITTED)]);
    // Its write is under way: the room is not given back, and nobody else writes.
    assert_eq!(world.shared.committer.log_used_bytes(), used);
    assert!(matches!(world.land(third, Ok(()), 3), Landed::With(Err(libc::ENOSPC))));
    let told = [(2, -libc::ENOSPC), (102, -libc::ENOSPC), (3, -libc::ENOSPC)];
    assert_eq!(world.told(3), told);
    assert_eq!(world.shared.committer.log_used_bytes(), 8192);
    assert!(!world.is_clean(), "both are unlogged again");
    assert_eq!(world.evict(1), 1, "it is in a record that landed");
    assert_eq!(world.evict(2), 0, "an older version may come back over it");

    // Nobody commits before a checkpoint that tells what failed from what follows.
    let early = world.shared.committer.mark();
    let shared = world.shared.clone();
    let io = &mut world.solo;
    let Joined::Leads = shared.committer.join(&shared.figures, 0, 0, || reply_to(io, 7)) else {
        panic!("the lead is free")
    };
    let mut waiters = Vec::new();
    let mut batch = shared.batch();
    let parks = || Waiter { reply: reply_to(io, 7), since_ns: 0 };
    let taken = shared.committer.take(&shared.cache, &shared.poke, 0, &mut batch, &mut waiters, parks);
    assert!(matches!(taken, Taken::Parked) && shared.committer.is_parked());
    let mark = world.shared.committer.mark();
    assert_eq!(mark, early);
    assert_eq!((mark.tail.position, mark.tail.sequence), (START + 8192, SEQUENCE + 3));
    assert!(mark.needs_superblock);
    world.shared.committer.checkpointed(&mark);
    assert!(world.shared.committer.is_parked(), "whoever leads would log what can go");
    assert_eq!(world.evict(2), 1, "the log is empty now");
    world.shared.committer.unpark(u64::MAX);
    assert_eq!(world.told(1), [(7, LEAD)]);
    assert!(!world.shared.committer.is_parked() && !world.shared.committer.mark().needs_superblock);
    let batch = world.seal(8);
    assert_eq!((batch.sequence, batch.pins.len()), (SEQUENCE + 3, 1));
    assert!(matches!(world.land(batch, Ok(()), 8), Landed::With(Ok(()))));
    assert_eq!(world.told(1), [(8, COMMITTED)]);
    assert!(world.is_clean());
}

/// No checkpoint helps before the slow write has ended: whoever was called by one would park again, and ask for the next.
#[test]
fn a_leader_waits_for_slow_flights_behind_a_failed_one_and_not_for_passes() {
    let mut world = World::new();
    world.store(1);
    let failed = world.seal(1);
    world.store(2);
    let slow = world.seal(2);
    world.store(3);
    assert!(matches!(world.land(failed, Err(libc::EIO), 1), Landed::Later));
    let shared = world.shared.clone();
    // It has begun beside them, as the policy lets it where commits are short.
    let leader = world.waiter(7);
    let mut batch = shared.batch();
    let parks = || leader;
    let taken = shared.committer.take(&shared.cache, &shared.poke, 0, &mut batch, &mut Vec::new(), parks);
    assert!(matches!(taken, Taken::Parked));
    shared.committer.keep(batch);
    assert!(!shared.committer.is_parked(), "nothing that a pass could do is waited for");
    assert!(!shared.poke.wait(Duration::ZERO).any(), "nor is one asked for");
    for _ in 0..3 {
        let mark = shared.committer.mark();
        assert_eq!(mark.tail.sequence, SEQUENCE);
        shared.committer.checkpointed(&mark);
        shared.committer.unpark(0);
    }
    // Nobody was called so far: these three come first.
    assert!(matches!(world.land(slow, Ok(()), 2), Landed::With(Err(libc::EIO))));
    assert_eq!(world.told(3), [(1, -libc::EIO), (101, -libc::EIO), (2, -libc::EIO)]);
    assert!(shared.committer.is_parked(), "now it waits for a checkpoint");
    // One that was made before all had ended is not it.
    shared.committer.unpark(0);
    assert!(shared.committer.is_parked());
    let mark = shared.committer.mark();
    shared.committer.checkpointed(&mark);
    shared.committer.unpark(0);
    assert_eq!(world.told(1), [(7, LEAD)]);
    assert!(!shared.committer.is_parked());
}

#[test]
fn a_mark_from_before_a_failure_mends_nothing() {
    let mut world = World::new();
    world.store(1);
    let batch = world.seal(1);
    let mark = world.shared.committer.mark();
    assert_eq!((mark.tail.position, mark.tail.sequence, mark.tail.chain), (START, SEQUENCE, 99));
    assert!(matches!(world.land(batch, Err(libc::EIO), 1), Landed::With(Err(libc::EIO))));
    assert_eq!(world.told(1), [(1, -libc::EIO)]);
    world.shared.committer.checkpointed(&mark);
    assert_eq!(world.evict(1), 0, "the failed record may lie where recovery would look");
    let mark = world.shared.committer.mark();
    assert_eq!((mark.tail.position, mark.tail.sequence, mark.tail.chain), (START, SEQUENCE + 1, 99));
    world.shared.committer.checkpointed(&mark);
    assert_eq!(world.evict(1), 1);
}

#[test]
fn a_log_is_not_empty_while_a_record_is_made() {
    let world = World::new();
    world.store(1);
    let shared = world.shared.clone();
    let mut batch = shared.batch();
    let none = || -> Waiter { panic!("nobody parks here") };
    shared.committer.take(&shared.cache, &shared.poke, 0, &mut batch, &mut Vec::new(), none);
    // A newer version, which nobody has logged; the older one is on its way into the log.
    world.store(1);
    assert_eq!(world.evict(1), 0);
    shared.committer.give_back(&shared.cache, &mut batch);
    assert_eq!(world.evict(1), 1);
}

#[test]
fn whoever_finds_nothing_to_write_shares_the_fate_of_what_is_in_flight() {
    for result in [Ok(()), Err(libc::EIO)] {
        let mut world = World::new();
        world.store(1);
        let batch = world.seal(1);
        let shared = world.shared.clone();
        let mut waiters = vec![world.waiter(2)];
        let mut empty = shared.batch();
        let io = &mut world.solo;
        let leader = || Waiter { reply: reply_to(io, 3), since_ns: 0 };
        let taken = shared.committer.take(&shared.cache, &shared.poke, 0, &mut empty, &mut waiters, leader);
        assert!(matches!(taken, Taken::Rides(None)) && waiters.is_empty());
        assert!(!world.is_clean());
        assert!(matches!(world.land(batch, result, 1), Landed::With(landed) if landed == result));
        let said = result.map_or_else(|errno| -errno, |()| COMMITTED);
        assert_eq!(world.told(3), [(1, said), (2, said), (3, said)]);
        assert_eq!(world.is_clean(), result.is_ok());
    }
}

#[test]
fn whoever_finds_nothing_and_nobody_is_stable() {
    let world = World::new();
    let shared = world.shared.clone();
    let mut empty = shared.batch();
    let none = || -> Waiter { panic!("nobody waits here") };
    let taken = shared.committer.take(&shared.cache, &shared.poke, 0, &mut empty, &mut Vec::new(), none);
    assert!(matches!(taken, Taken::Stable(None)));
    assert!(world.is_clean());
}

#[test]
fn a_dead_volume_answers_everybody() {
    let mut world = World::new();
    world.store(1);
    let batch = world.seal(1);
    let shared = world.shared.clone();
    let reply = reply_to(&mut world.solo, 2);
    assert!(matches!(shared.committer.join(&shared.figures, 0, 0, || reply), Joined::Waits));
    shared.fail("a test");
    let mut told = world.told(2);
    told.sort_unstable();
    assert_eq!(told, [(1, -libc::EIO), (2, -libc::EIO)]);
    assert!(matches!(world.land(batch, Ok(()), 1), Landed::Dead));
    let reply = reply_to(&mut world.solo, 3);
    assert!(matches!(shared.committer.join(&shared.figures, 0, 0, || reply), Joined::Dead));
}

#[test]
fn writers_who_do_not_wait_keep_no_pass_from_its_end() {
    let mut world = World::new();
    let mut waiters = vec![world.waiter(1)];
    let mut records = 0;
    loop {
        // More than one record holds, during each of them.
        (0..100).for_each(|block| world.store(block));
        let batch = world.part(&mut waiters);
        let last = batch.last;
        records += 1;
        assert!(matches!(world.land(batch, Ok(()), 1), Landed::With(Ok(()))));
        if last {
            break;
        }
        assert!(records < 9, "who flushes waits for those who do not");
    }
    assert_eq!(records, 2);
    assert_eq!(world.told(1), [(1, COMMITTED)]);
    assert!(!world.is_clean(), "what was stored behind the pass is in no record");
}

#[test]
fn a_leader_that_was_parked_goes_on_with_its_pass_and_takes_nobody_along() {
    let mut world = World::new();
    (0..256).for_each(|block| world.store(block));
    let mut waiters = vec![world.waiter(1)];
    let early = world.shared.committer.mark();
    for _ in 0..4 {
        let batch = world.part(&mut waiters);
        assert!(!batch.last);
        assert!(matches!(world.land(batch, Ok(()), 1), Landed::With(Ok(()))));
    }
    // The log is full. What is taken for the next record goes back to where it was.
    let shared = world.shared.clone();
    let mut batch = shared.batch();
    let none = || -> Waiter { panic!("there is something to take") };
    let taken = shared.committer.take(&shared.cache, &shared.poke, 0, &mut batch, &mut waiters, none);
    assert!(matches!(taken, Taken::Done) && batch.last);
    batch.build().unwrap();
    let leader = world.waiter(2);
    let (sealed, ..) =
        shared.committer.seal(&shared.cache, &shared.poke, &shared.figures, 0, &mut batch, &mut waiters, || leader);
    assert!(matches!(sealed, Taken::Parked));
    shared.committer.keep(batch);
    // Behind where the pass is: it does not come to this block, and so must not answer for it.
    world.store(0);
    let newcomer = reply_to(&mut world.solo, 3);
    assert!(matches!(shared.committer.join(&shared.figures, 0, 0, || newcomer), Joined::Waits));
    let mark = shared.committer.mark();
    // What is left does not fit behind a checkpoint of before, and need not once the log is empty.
    shared.committer.checkpointed(&early);
    shared.committer.unpark(256);
    assert!(shared.committer.is_parked());
    shared.committer.checkpointed(&mark);
    shared.committer.unpark(256);
    assert_eq!(world.told(1), [(2, LEAD)]);
    let joined = shared.committer.called(0, 0, true, || panic!("it leads"));
    assert!(matches!(joined, Joined::Leads));
    let batch = world.part(&mut waiters);
    assert!(batch.last && batch.pins.iter().map(|version| version.block).eq(252..256));
    assert!(matches!(world.land(batch, Ok(()), 2), Landed::With(Ok(()))));
    assert_eq!(world.told(2), [(3, LEAD), (1, COMMITTED)]);
    let joined = shared.committer.called(0, 0, false, || panic!("it leads"));
    assert!(matches!(joined, Joined::Leads));
    let batch = world.seal(4);
    assert!(batch.pins.iter().map(|version| version.block).eq([0]));
    assert!(matches!(world.land(batch, Ok(()), 3), Landed::With(Ok(()))));
    assert_eq!(world.told(1), [(4, COMMITTED)]);
}

#[test]
fn what_a_doubtful_log_holds_stays_in_the_cache_too() {
    let mut world = World::new();
    world.store(1);
    let landed = world.seal(1);
    assert!(matches!(world.land(landed, Ok(()), 1), Landed::With(Ok(()))));
    world.store(2);
    let flying = world.seal(2);
    assert_eq!(world.told(1), [(1, COMMITTED)]);
    // Twice is no more than once.
    world.shared.committer.doubt(libc::EIO);
    world.shared.committer.doubt(libc::EIO);
    assert_eq!(world.evict(1), 0, "its record may not be there");
    assert!(matches!(world.land(flying, Ok(()), 2), Landed::With(Err(libc::EIO))));
    assert_eq!(world.told(1), [(2, -libc::EIO)]);
    assert_eq!((world.evict(1), world.evict(2)), (0, 0));
    assert!(!world.is_clean());
    let mark = world.shared.committer.mark();
    assert!(mark.needs_superblock);
    world.shared.committer.checkpointed(&mark);
    assert_eq!((world.evict(1), world.evict(2)), (1, 1), "no record counts any more");
    assert!(world.is_clean());
    // Of an empty log there is nothing to doubt.
    world.shared.committer.doubt(libc::EIO);
    assert!(world.is_clean());
}
