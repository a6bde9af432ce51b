//! Orders in which one thread at a time sleeps through all that the others do, as an interrupted thread does.

use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use shuttle::scheduler::{DataSource, RandomDataSource, Schedule, Scheduler, Task, TaskId};

/// Somebody falls asleep at one of so many points...
const AWAKE_POINTS: u64 = 40;
/// ...and for two to the power of less than this of them.
const ASLEEP_POWERS: u64 = 11;
/// While nobody sleeps they follow each other at one of so many points; which of these is drawn for each order.
const STAYS: [u64; 4] = [1, 2, 5, 20];

/// The worst races need a thread that sleeps for long at one point, again and again: the others go on meanwhile, at random.
#[derive(Debug)]
pub(crate) struct Sleepers {
    left: usize,
    data: RandomDataSource,
    random: Random,
    stay: u64,
    asleep: Option<(TaskId, u64)>,
}

impl Sleepers {
    pub(crate) fn new(orders: usize) -> Sleepers {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = since.as_nanos() as u64 ^ u64::from(process::id());
        Sleepers { left: orders, data: RandomDataSource::initialize(seed), random: Random(0), stay: 1, asleep: None }
    }
}

impl Scheduler for Sleepers {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        let seed = self.data.reinitialize();
        self.random = Random(seed);
        self.stay = STAYS[self.random.below(STAYS.len() as u64) as usize];
        self.asleep = None;
        Some(Schedule::new(seed))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        self.asleep = self.asleep.and_then(|(who, points)| Some((who, points.checked_sub(1)?)));
        if self.asleep.is_none()
            && let Some(current) = current
            && self.random.once_in(AWAKE_POINTS)
        {
            self.asleep = Some((current, 1 << self.random.below(ASLEEP_POWERS)));
        }
        let sleeper = self.asleep.map(|(who, _)| who);
        // While somebody sleeps, the others follow each other at every point.
        if sleeper.is_none()
            && !is_yielding
            && let Some(current) = current
            && !self.random.once_in(self.stay)
            && runnable.iter().any(|task| task.id() == current)
        {
            return Some(current);
        }
        let others = |task: &TaskId| Some(*task) != sleeper && !(is_yielding && Some(*task) == current);
        let awake: Vec<TaskId> = runnable.iter().map(|task| task.id()).filter(others).collect();
        if awake.is_empty() {
            // Nobody else can go on.
            self.asleep = None;
            return runnable.first().map(|task| task.id());
        }
        Some(awake[self.random.below(awake.len() as u64) as usize])
    }

    fn next_u64(&mut self) -> u64 {
        self.data.next_u64()
    }
}

/// Pseudo-random numbers (splitmix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}
