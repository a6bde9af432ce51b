//! Who reads the slow requests of an export, and what has been kept for each reader.
//!
//! Rings look at one number once a batch: what the reader with the lowest bound wants to know. They take the lock for slow requests only,
//! and never wait for it: whoever has it has it for a short moment, or is a thread that is not running, and then what a ring has to say is
//! lost and counted. Readers ask again and again; one that has not until its time is over is forgotten, by other readers, or else by the
//! ring that finds nobody left.

use super::slow::{SlowRequest, Times};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Slow requests that are kept of an export for one reader, until it asks.
const KEPT_MAX: usize = 256;
/// Readers of an export, at most.
pub const READERS_MAX: usize = 8;
/// How often a ring tries to get the lock.
const TRIES: usize = 100;
/// As a bound: nobody wants to know of any.
pub(super) const NOBODY: u64 = u64::MAX;

/// What a reader is told at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// In the order in which they were shown, ring by ring.
    pub requests: Vec<SlowRequest>,
    /// Those for which there was no room, or no time to keep them.
    pub lost: u64,
    /// All of them, with those that were lost.
    pub slow: u64,
    /// Where their time went: that of those which there was time to keep.
    pub times: Times,
}

impl Taken {
    /// Nothing, with room for all that is kept: rings allocate nothing.
    fn empty() -> Taken {
        Taken { requests: Vec::with_capacity(KEPT_MAX), ..Taken::default() }
    }
}

#[derive(Debug)]
struct Reader {
    id: u64,
    /// Its seat.
    seat: usize,
    slower_than_ns: u64,
    until_ns: u64,
    news: Taken,
}

#[derive(Debug, Default)]
struct Readers {
    all: Vec<Reader>,
}

/// What is known of a reader without the lock.
#[derive(Debug)]
struct Seat {
    /// Its bound, or [`NOBODY`].
    slower_than_ns: AtomicU64,
    /// Requests that no lock was had for, which it has not been told of.
    missed: AtomicU64,
}

/// The slow requests of one export. Times are nanoseconds of CLOCK_MONOTONIC, and arguments.
#[derive(Debug)]
pub struct Recorder {
    /// The lowest bound, or [`NOBODY`].
    slower_than_ns: AtomicU64,
    /// When the last reader is forgotten.
    until_ns: AtomicU64,
    readers: Mutex<Readers>,
    seats: [Seat; READERS_MAX],
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            slower_than_ns: AtomicU64::new(NOBODY),
            until_ns: AtomicU64::new(0),
            readers: Mutex::default(),
            seats: std::array::from_fn(|_| Seat { slower_than_ns: AtomicU64::new(NOBODY), missed: AtomicU64::new(0) }),
        }
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Readers>> {
        match self.readers.try_lock() {
            Ok(readers) => Some(readers),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Rings go by what these readers want; those are forgotten whose time is over.
    fn settle(&self, readers: &mut Readers, now_ns: u64) {
        readers.all.retain(|reader| reader.until_ns >= now_ns);
        let lowest = readers.all.iter().map(|reader| reader.slower_than_ns).min();
        let last = readers.all.iter().map(|reader| reader.until_ns).max();
        self.until_ns.store(last.unwrap_or(0), Ordering::Relaxed);
        self.slower_than_ns.store(lowest.unwrap_or(NOBODY), Ordering::Relaxed);
        for (number, seat) in self.seats.iter().enumerate() {
            let bound = readers.all.iter().find(|reader| reader.seat == number).map(|reader| reader.slower_than_ns);
            seat.slower_than_ns.store(bound.unwrap_or(NOBODY), Ordering::Relaxed);
        }
        if readers.all.is_empty() {
            readers.all = Vec::new();
        }
    }

    /// Who is known by this number wants to know, until `until_ns`, of requests that take longer than this: from now on, or still. One
    /// more than [`READERS_MAX`] is told of none.
    pub fn arm(&self, reader: u64, slower_than_ns: u64, until_ns: u64, now_ns: u64) {
        // A bound that is no bound is the highest.
        let slower_than_ns = slower_than_ns.min(NOBODY - 1);
        let is_known = self.lock().all.iter().any(|known| known.id == reader);
        // Made while nobody waits for the lock.
        let news = if is_known { Taken::default() } else { Taken::empty() };
        let mut readers = self.lock();
        match readers.all.iter_mut().find(|known| known.id == reader) {
            Some(known) => (known.slower_than_ns, known.until_ns) = (slower_than_ns, until_ns),
            None => {
                readers.all.retain(|known| known.until_ns >= now_ns);
                let is_free = |seat: &usize| readers.all.iter().all(|known| known.seat != *seat);
                if let Some(seat) = (0..READERS_MAX).find(is_free) {
                    // What who sat there before has missed is nobody's, and nothing is counted by that bound any more.
                    self.seats[seat].slower_than_ns.store(slower_than_ns, Ordering::Relaxed);
                    self.seats[seat].missed.store(0, Ordering::Relaxed);
                    readers.all.push(Reader { id: reader, seat, slower_than_ns, until_ns, news });
                }
            }
        }
        self.settle(&mut readers, now_ns);
    }

    /// It wants to know of none any more.
    pub fn disarm(&self, reader: u64, now_ns: u64) {
        let mut readers = self.lock();
        readers.all.retain(|known| known.id != reader);
        self.settle(&mut readers, now_ns);
    }

    /// What has been kept for it since it asked last.
    pub fn take(&self, reader: u64) -> Taken {
        let has_missed = |known: &Reader| self.seats[known.seat].missed.load(Ordering::Relaxed) > 0;
        let has_news = |known: &Reader| known.news != Taken::default() || has_missed(known);
        if !self.lock().all.iter().any(|known| known.id == reader && has_news(known)) {
            return Taken::default();
        }
        let empty = Taken::empty();
        let mut readers = self.lock();
        let Some(known) = readers.all.iter_mut().find(|known| known.id == reader) else { return Taken::default() };
        let mut taken = std::mem::replace(&mut known.news, empty);
        let missed = self.seats[known.seat].missed.swap(0, Ordering::Relaxed);
        taken.lost += missed;
        taken.slow += missed;
        taken
    }

    /// From how long on some reader wants to know of a request; [`NOBODY`] where none does.
    #[inline]
    pub(super) fn slower_than_ns(&self, now_ns: u64) -> u64 {
        let slower_than_ns = self.slower_than_ns.load(Ordering::Relaxed);
        if slower_than_ns == NOBODY { NOBODY } else { self.still(slower_than_ns, now_ns) }
    }

    fn still(&self, slower_than_ns: u64, now_ns: u64) -> u64 {
        if now_ns <= self.until_ns.load(Ordering::Relaxed) {
            return slower_than_ns;
        }
        // The last reader went without a word. Who has the lock instead is a new one.
        if let Some(mut readers) = self.try_lock() {
            self.settle(&mut readers, now_ns);
        }
        NOBODY
    }

    /// Keeps these for the readers that want to know of them.
    pub(super) fn record(&self, requests: impl Iterator<Item = SlowRequest>) {
        let lock = (0..TRIES).find_map(|_| {
            let lock = self.try_lock();
            if lock.is_none() {
                std::hint::spin_loop();
            }
            lock
        });
        let Some(mut readers) = lock else {
            for request in requests {
                let wants = |seat: &&Seat| request.length_ns() >= seat.slower_than_ns.load(Ordering::Relaxed);
                for seat in self.seats.iter().filter(wants) {
                    seat.missed.fetch_add(1, Ordering::Relaxed);
                }
            }
            return;
        };
        for request in requests {
            let length_ns = request.length_ns();
            for reader in readers.all.iter_mut().filter(|reader| length_ns >= reader.slower_than_ns) {
                let news = &mut reader.news;
                news.slow += 1;
                news.times += request.times();
                if news.requests.len() < KEPT_MAX {
                    news.requests.push(request);
                } else {
                    news.lost += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slow::{Wait, What};
    use super::*;
    use engine::Ways;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn slow(shown_ns: u64) -> SlowRequest {
        SlowRequest {
            ring: 0,
            kind: "read",
            what: What::range(512, 4096),
            failed: false,
            taken_by: 0,
            answered_by: 0,
            taken_ns: 7,
            waited_max_ns: 0,
            waited_for: Wait::Worker,
            held_ns: 0,
            started_ns: None,
            ended_ns: None,
            late_max_ns: 0,
            ways: Ways::default(),
            parts: 0,
            is_partly_known: false,
            answered_ns: shown_ns,
            shown_ns,
        }
    }

    #[test]
    fn each_reader_has_a_bound_of_its_own_and_the_lowest_is_looked_for() {
        let recorder = Recorder::default();
        assert_eq!(recorder.slower_than_ns(0), NOBODY);
        recorder.arm(1, 500, 100, 10);
        recorder.arm(2, 200, 100, 10);
        assert_eq!(recorder.slower_than_ns(10), 200);
        recorder.record([slow(199), slow(200), slow(499), slow(500)].into_iter());
        let lengths = |reader| recorder.take(reader).requests.iter().map(|it| it.shown_ns).collect::<Vec<_>>();
        assert_eq!((lengths(1), lengths(2)), (vec![500], vec![200, 499, 500]));
        assert_eq!(recorder.take(1), Taken::default());
        recorder.disarm(2, 20);
        assert_eq!(recorder.slower_than_ns(20), 500);
        recorder.disarm(1, 20);
        assert_eq!(recorder.slower_than_ns(20), NOBODY);
        assert_eq!(recorder.take(2), Taken::default());
    }

    #[test]
    fn who_asks_no_more_is_forgotten_by_rings_and_by_other_readers() {
        let recorder = Recorder::default();
        recorder.arm(1, 200, 100, 10);
        assert_eq!(recorder.slower_than_ns(100), 200);
        assert_eq!(recorder.slower_than_ns(101), NOBODY);
        // With all that was kept.
        assert_eq!(recorder.lock().all.capacity(), 0);
        recorder.arm(1, 200, 300, 200);
        recorder.arm(2, 500, 400, 200);
        // It asks again, and the other does not.
        recorder.arm(2, 500, 600, 350);
        assert_eq!(recorder.slower_than_ns(350), 500);
    }

    #[test]
    fn what_could_not_be_kept_is_counted_and_added_up_all_the_same() {
        let recorder = Recorder::default();
        recorder.arm(1, 100, 1000, 0);
        recorder.record((0..KEPT_MAX as u64 + 5).map(|_| slow(100)));
        let taken = recorder.take(1);
        assert_eq!((taken.requests.len(), taken.lost, taken.slow), (KEPT_MAX, 5, KEPT_MAX as u64 + 5));
        assert_eq!(taken.times.inline_ns, 100 * (KEPT_MAX as u64 + 5));
        // There is room again.
        recorder.record([slow(100)].into_iter());
        assert_eq!((recorder.take(1).requests.len(), recorder.take(1).lost), (1, 0));
    }

    #[test]
    fn a_ring_does_not_wait_for_whoever_has_the_lock() {
        let recorder = Recorder::default();
        recorder.arm(1, 100, 1000, 0);
        recorder.arm(2, 150, 1000, 0);
        let held = recorder.lock();
        recorder.record([slow(100), slow(200)].into_iter());
        // Nor when it finds that all readers are gone.
        assert_eq!(recorder.slower_than_ns(2000), NOBODY);
        drop(held);
        // Each is told of what it has asked for.
        for (reader, lost) in [(1, 2), (2, 1), (3, 0)] {
            assert_eq!(recorder.take(reader), Taken { lost, slow: lost, ..Taken::default() });
        }
        // Who comes next is told of nothing that others have missed.
        let held = recorder.lock();
        recorder.record([slow(200)].into_iter());
        drop(held);
        recorder.disarm(2, 0);
        recorder.arm(4, 150, 1000, 0);
        assert_eq!((recorder.take(4), recorder.take(1).lost), (Taken::default(), 1));
    }

    #[test]
    fn one_reader_too_many_is_told_of_nothing_and_a_seat_is_free_again() {
        let recorder = Recorder::default();
        let readers = 1..=READERS_MAX as u64 + 1;
        readers.clone().for_each(|reader| recorder.arm(reader, 100, 1000, 0));
        recorder.record([slow(100)].into_iter());
        let told = readers.map(|reader| recorder.take(reader).slow).collect::<Vec<_>>();
        assert_eq!(told, [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        recorder.disarm(3, 0);
        recorder.arm(9, 100, 1000, 0);
        recorder.record([slow(100)].into_iter());
        assert_eq!(recorder.take(9).slow, 1);
    }

    #[test]
    fn a_reader_and_rings_lose_nothing_between_them() {
        const EACH: u64 = 50_000;
        let recorder = Arc::new(Recorder::default());
        recorder.arm(1, 100, u64::MAX, 0);
        let done = Arc::new(AtomicBool::new(false));
        let rings: Vec<_> = (0..2)
            .map(|_| {
                let recorder = recorder.clone();
                std::thread::spawn(move || (0..EACH).for_each(|_| recorder.record([slow(100)].into_iter())))
            })
            .collect();
        let reading = {
            let (recorder, done) = (recorder.clone(), done.clone());
            std::thread::spawn(move || {
                let (mut told, mut lost, mut slow) = (0, 0, 0);
                loop {
                    let last = done.load(Ordering::SeqCst);
                    let taken = recorder.take(1);
                    assert!(taken.requests.len() <= KEPT_MAX && taken.requests.len() as u64 <= taken.slow);
                    (told, lost) = (told + taken.requests.len() as u64, lost + taken.lost);
                    slow += taken.slow;
                    if last {
                        assert_eq!(slow, told + lost);
                        return slow;
                    }
                }
            })
        };
        rings.into_iter().for_each(|ring| ring.join().unwrap());
        done.store(true, Ordering::SeqCst);
        assert_eq!(reading.join().unwrap(), 2 * EACH);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arm { reader: u64, slower_than_ns: u64, for_ns: u64 },
        Disarm(u64),
        Take(u64),
        Record(u64),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4_u64, 0..50_u64, 0..100_u64).prop_map(|(reader, slower_than_ns, for_ns)| Step::Arm {
                reader,
                slower_than_ns,
                for_ns
            }),
            (0..4_u64).prop_map(Step::Disarm),
            (0..4_u64).prop_map(Step::Take),
            (0..60_u64).prop_map(Step::Record),
            (0..60_u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// Against a list of readers that forgets nobody but those whose time is over.
        #[test]
        fn readers_are_told_what_they_asked_for(steps in vec(step(), 0..200)) {
            let recorder = Recorder::default();
            let (mut now_ns, mut oracle) = (0, Vec::<(u64, u64, u64, Vec<u64>)>::new());
            for step in steps {
                match step {
                    Step::Arm { reader, slower_than_ns, for_ns } => {
                        recorder.arm(reader, slower_than_ns, now_ns + for_ns, now_ns);
                        match oracle.iter_mut().find(|it| it.0 == reader) {
                            Some(known) => (known.1, known.2) = (slower_than_ns, now_ns + for_ns),
                            None => oracle.push((reader, slower_than_ns, now_ns + for_ns, Vec::new())),
                        }
                        oracle.retain(|it| it.2 >= now_ns);
                    }
                    Step::Disarm(reader) => {
                        recorder.disarm(reader, now_ns);
                        oracle.retain(|it| it.0 != reader && it.2 >= now_ns);
                    }
                    Step::Take(reader) => {
                        let taken = recorder.take(reader);
                        let told: Vec<u64> = taken.requests.iter().map(|it| it.shown_ns).collect();
                        let expected = oracle.iter_mut().find(|it| it.0 == reader);
                        prop_assert_eq!((told, taken.lost), (expected.map(|it| std::mem::take(&mut it.3)).unwrap_or_default(), 0));
                    }
                    Step::Record(shown_ns) => {
                        // As a ring does it.
                        if recorder.slower_than_ns(now_ns) != NOBODY {
                            recorder.record([slow(shown_ns)].into_iter());
                        }
                        if oracle.iter().all(|it| it.2 < now_ns) {
                            oracle.clear();
                        }
                        oracle.iter_mut().filter(|it| shown_ns >= it.1).for_each(|it| it.3.push(shown_ns));
                    }
                    Step::Pass(ns) => now_ns += ns,
                }
                let lowest = oracle.iter().filter(|_| oracle.iter().any(|it| it.2 >= now_ns)).map(|it| it.1).min();
                prop_assert_eq!(recorder.slower_than_ns(now_ns), lowest.unwrap_or(NOBODY));
                if oracle.iter().all(|it| it.2 < now_ns) {
                    oracle.clear();
                }
            }
        }
    }
}
