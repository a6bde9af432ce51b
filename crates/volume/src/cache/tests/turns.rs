//! Threads that go one at a time, in an order that a seed decides: at every access to one of the cache's atomics the turn may
//! pass to another thread. A run with the same seed is the same run. (Memory is sequentially consistent in such a run; what
//! weaker orders permit is argued where they are used, and met by the tests with free threads.)

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex};

/// Pseudo-random numbers (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `of` times.
    pub(super) fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

struct Table {
    state: Mutex<State>,
    seats: Vec<Condvar>,
}

struct State {
    current: usize,
    playing: Vec<bool>,
    random: Random,
    /// The turn passes at one of so many points.
    stay: u64,
    /// Who sleeps, as an interrupted thread does, and for how many points. The worst races need one that sleeps through all that
    /// the others do.
    asleep: usize,
    points: u64,
}

thread_local! {
    static SEAT: RefCell<Option<(Arc<Table>, usize)>> = const { RefCell::new(None) };
}

/// A point at which another thread may go on. Threads outside of [`play`] go on themselves.
pub(in super::super) fn turn() {
    SEAT.with(|seat| {
        if let Some((table, me)) = &*seat.borrow() {
            table.pass(*me);
        }
    });
}

/// Runs the bodies on a thread each, in turns; a panic in one of them is a panic here.
pub(super) fn play(seed: u64, bodies: Vec<Box<dyn FnOnce() + Send + '_>>) {
    let mut random = Random(seed);
    let stay = [1, 2, 5, 20][random.below(4) as usize];
    let first = random.below(bodies.len() as u64) as usize;
    let table = Arc::new(Table {
        seats: bodies.iter().map(|_| Condvar::new()).collect(),
        state: Mutex::new(State {
            current: first,
            playing: vec![true; bodies.len()],
            random,
            stay,
            asleep: 0,
            points: 0,
        }),
    });
    std::thread::scope(|scope| {
        for (me, body) in bodies.into_iter().enumerate() {
            let table = Arc::clone(&table);
            scope.spawn(move || {
                SEAT.set(Some((Arc::clone(&table), me)));
                table.wait(me);
                let _leave = Leave { table: &table, me };
                body();
            });
        }
    });
}

/// Passes the turn on for good, also when the body panics.
struct Leave<'a> {
    table: &'a Table,
    me: usize,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        SEAT.set(None);
        let mut state = self.table.state.lock().unwrap();
        state.playing[self.me] = false;
        if let Some(next) = state.pick() {
            state.current = next;
            self.table.seats[next].notify_one();
        }
    }
}

impl Table {
    fn pass(&self, me: usize) {
        let mut state = self.state.lock().unwrap();
        let stay = state.stay;
        if state.points > 0 {
            state.points -= 1;
        } else if state.random.once_in(40) {
            state.asleep = me;
            state.points = 1 << state.random.below(11);
        } else if !state.random.once_in(stay) {
            return;
        }
        let Some(next) = state.pick() else { return };
        if next != me {
            state.current = next;
            self.seats[next].notify_one();
            drop(self.seats[me].wait_while(state, |state| state.current != me).unwrap());
        }
    }

    fn wait(&self, me: usize) {
        let state = self.state.lock().unwrap();
        drop(self.seats[me].wait_while(state, |state| state.current != me).unwrap());
    }
}

impl State {
    fn pick(&mut self) -> Option<usize> {
        let sleeper = if self.points > 0 { self.asleep } else { usize::MAX };
        let awake = |(seat, playing): (usize, &bool)| (*playing && seat != sleeper).then_some(seat);
        let awake: Vec<usize> = self.playing.iter().enumerate().filter_map(awake).collect();
        if awake.is_empty() {
            // Nobody else plays any more.
            self.points = 0;
            return self.playing.iter().position(|&playing| playing);
        }
        Some(awake[self.random.below(awake.len() as u64) as usize])
    }
}
