//! Tasks of several workers that share few buffers, in many orders of threads (`interleave`).

use super::pool::{Buffer, Place, Pool, Waiter};
use interleave::{in_many_orders, random, thread, turn, yield_now};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const ORDERS: usize = 4000;

/// Tasks that are neither done nor asleep: only they can call one that sleeps.
#[derive(Clone, Default)]
struct Awake(Arc<AtomicUsize>);

/// A task's reply.
struct Bell {
    rung: Arc<AtomicBool>,
    awake: Awake,
}

impl Waiter for Bell {
    fn call(self) {
        self.awake.0.fetch_add(1, SeqCst);
        assert!(!self.rung.swap(true, SeqCst), "called twice for one wait");
    }
}

/// One task, on a worker of its own.
struct Guest {
    pool: Arc<Pool<Bell>>,
    place: Option<Place<Bell>>,
    rung: Arc<AtomicBool>,
    awake: Awake,
}

impl Guest {
    fn new(pool: &Arc<Pool<Bell>>, awake: &Awake) -> Guest {
        awake.0.fetch_add(1, SeqCst);
        Guest { pool: pool.clone(), place: None, rung: Arc::default(), awake: awake.clone() }
    }

    fn take(&mut self) -> Option<Buffer<Bell>> {
        let bell = || Bell { rung: self.rung.clone(), awake: self.awake.clone() };
        self.pool.take_or_park(random() as usize % 4, &mut self.place, bell).unwrap()
    }

    fn sleep(&self) {
        self.awake.0.fetch_sub(1, SeqCst);
        while !self.rung.swap(false, SeqCst) {
            assert!(self.awake.0.load(SeqCst) > 0, "a wake-up was lost");
            yield_now();
        }
    }

    /// Waits for a buffer, for as long as it takes, and uses it.
    fn stays(mut self) {
        let mut buffer = loop {
            match self.take() {
                Some(buffer) => break buffer,
                None => self.sleep(),
            }
        };
        let first = &mut buffer.bytes(1)[0];
        assert_eq!(*first, 0, "somebody else's");
        *first = 1;
        turn();
        buffer.bytes(1)[0] = 0;
        drop(buffer);
        self.ends();
    }

    /// Its ring falls while it stands in line, called or not.
    fn falls(mut self) {
        let buffer = self.take();
        for _ in 0..random() % 8 {
            turn();
        }
        self.place = None;
        drop(buffer);
        if self.rung.load(SeqCst) {
            self.awake.0.fetch_sub(1, SeqCst);
        }
        self.ends();
    }

    fn ends(self) {
        self.awake.0.fetch_sub(1, SeqCst);
    }
}

/// Buffers are given back while tasks come for them, and one in line falls. All others are served, and all buffers are there again.
#[test]
fn all_are_served_in_any_order() {
    // One; two in a word; two in words apart.
    for free in [[0, 0, 1, 0], [0, 3, 0, 0], [1, 0, 0, 1 << 63]] {
        in_many_orders(ORDERS, move || {
            let (pool, awake) = (Pool::with(free), Awake::default());
            let gives = Guest::new(&pool, &awake);
            let held: Vec<_> = std::iter::from_fn(|| pool.take(0).unwrap()).collect();
            let falls = Guest::new(&pool, &awake);
            let stay = [(); 2].map(|()| Guest::new(&pool, &awake));
            let mut threads = vec![
                thread::spawn(move || {
                    drop(held);
                    gives.ends();
                }),
                thread::spawn(move || falls.falls()),
            ];
            threads.extend(stay.map(|guest| thread::spawn(move || guest.stays())));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(pool.free(), free, "a buffer was lost");
            assert!(!pool.is_wanted());
        });
    }
}
