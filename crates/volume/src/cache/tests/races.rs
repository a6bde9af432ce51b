//! The volume of `world` with writers, commits, power cuts and write-back at once.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use interleave::{in_many_orders, random, thread, turn, yield_now};

use super::super::Full;
use super::random::Random;
use super::world::{BLOCKS, World};
use crate::SectorMask;

/// Blocks below this are written by both writers, half of the sectors each; of the others each has its own.
const SHARED: usize = 4;

/// Where writers write, and what is tried on them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Game {
    /// All blocks, killed now and then.
    Wide,
    /// One block, killed again and again.
    Narrow,
    /// All blocks, and never killed: free threads leave no moment at which memory could be looked at.
    Free,
}

/// Every writer's own sectors hold values that say whose they are and when.
fn writer(world: &World, me: usize, random: &mut Random, steps: u64, writing: &AtomicUsize, game: Game) {
    let _writing = Writing(writing);
    for step in 1..=steps {
        let index = if game == Game::Narrow {
            0
        } else if random.once_in(2) {
            random.below(SHARED as u64) as usize
        } else {
            SHARED + me * 2 + random.below(2) as usize
        };
        let mine = if index >= SHARED { SectorMask::ALL } else { SectorMask::span(me * 4, 4) };
        match random.below(16) {
            0 if index >= SHARED => until_there_is_room(|| world.zero(index)),
            1 if index >= SHARED => world.discard(index),
            2..5 => {
                world.flush(1 + random.below(5) as usize, || random.once_in(5));
            }
            _ => {
                let some = SectorMask(random.next() as u8 & mine.0);
                let sectors = if some.is_empty() || random.once_in(3) { mine } else { some };
                until_there_is_room(|| world.store(index, sectors, step * 2 + me as u64));
            }
        }
        world.read(index, mine);
        world.cut();
        if game == Game::Narrow || (game == Game::Wide && random.once_in(3)) {
            world.killed();
        }
    }
}

fn until_there_is_room(store: impl Fn() -> Result<(), Full>) {
    while store() == Err(Full) {
        turn();
        yield_now();
    }
}

/// Counts a writer off, also when it panics: otherwise the sweeper would go on for ever.
struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn sweeper(world: &World, random: &mut Random, writing: &AtomicUsize) {
    while writing.load(SeqCst) > 0 {
        let fail_once_in = if random.once_in(4) { 4 } else { u64::MAX };
        let mut sweep = world.begin_sweep();
        while world.step_sweep(&mut sweep, 1 + random.below(3) as usize, random.once_in(fail_once_in)) {}
        world.end_sweep(sweep);
        world.cut();
        if random.once_in(3) {
            world.cache.trim();
        }
        yield_now();
    }
}

fn one_at_a_time(orders: usize, game: Game) {
    in_many_orders(orders, move || {
        let world = Arc::new(World::new(7, 2));
        let writing = Arc::new(AtomicUsize::new(2));
        let mut threads = Vec::new();
        for me in 0..2 {
            let (world, writing, mut random) = (world.clone(), writing.clone(), Random(random()));
            threads.push(thread::spawn(move || writer(&world, me, &mut random, 12, &writing, game)));
        }
        let (swept, mut random) = (world.clone(), Random(random()));
        threads.push(thread::spawn(move || sweeper(&swept, &mut random, &writing)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.close();
    });
}

#[test]
fn data_outlives_power_cuts_and_kills_in_any_order() {
    one_at_a_time(300, Game::Wide);
}

#[test]
fn data_of_one_block_outlives_kills_in_any_order() {
    one_at_a_time(300, Game::Narrow);
}

#[test]
fn flushed_data_outlives_power_cuts_with_free_threads() {
    for seed in 0..4 {
        let world = World::new(7, 2);
        let writing = AtomicUsize::new(2);
        std::thread::scope(|scope| {
            let (world, writing) = (&world, &writing);
            scope.spawn(move || writer(world, 0, &mut Random(seed ^ 1), 3_000, writing, Game::Free));
            scope.spawn(move || writer(world, 1, &mut Random(seed ^ 2), 3_000, writing, Game::Free));
            scope.spawn(move || sweeper(world, &mut Random(seed ^ 3), writing));
        });
        world.close();
        assert_eq!(BLOCKS.len(), SHARED + 4);
    }
}
