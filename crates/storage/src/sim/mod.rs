//! A model of a device, for experiments: real contents, modelled time, injected errors.
//!
//! # The model
//! - A device has `channels`. An operation takes the channel that is free first, waits for it, and occupies it for its latency
//!   plus its bytes times the transfer cost. Order of arrival is order of service.
//! - Latencies of reads and writes are drawn from a distribution around a mean; discards and write zeroes cost a write's latency
//!   and no transfer. A flush costs its own fixed time on one channel and waits for no other operation.
//! - Contents are real memory and change at the *end* of an operation's time, all at once: reads and writes are atomic, and
//!   what a completed write stored is what a read started later gives.
//! - An operation may be doomed to fail when it starts. It takes its time like the others, fails, and has moved nothing.
//!
//! # What is not modelled
//! - A volatile cache: every completed write is as good as durable, nothing is lost, and a flush changes nothing.
//! - Torn, misdirected, silently corrupted or endless operations; errors come one by one and independent of the place.
//! - Seeks, merging, garbage collection, and any influence of one operation on another but that of the channels.
//!
//! # Randomness
//! All draws come from one generator, seeded by `seed`, in the order in which operations start: the same operations in the same
//! order have the same fate, on any machine.

mod latency;
mod random;

pub use latency::Distribution;

use crate::error::check_size;
use crate::memory::{Backing, Map, apply};
use crate::null::{check_growth, only_inline};
use crate::{Action, Description, Execution, OpenError, Operation, Step, Storage, StorageError, Task};
use engine::{Io, Token};
use latency::Latency;
use random::Random;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest time of any part of the model, so that sums do not overflow.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// What to model.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// Size, in bytes: a multiple of 512. Memory is taken as it is written.
    pub size_bytes: u64,
    /// Mean latency of reads, up to an hour.
    pub read_latency: Duration,
    /// Mean latency of writes, discards and write zeroes, up to an hour.
    pub write_latency: Duration,
    /// Shape of the latencies.
    pub distribution: Distribution,
    /// Operations served at once, 1 to 65535.
    pub channels: usize,
    /// Transfer speed of one channel, in bytes a second; 0 = transfers take no time.
    pub bytes_per_second: u64,
    /// Time of a flush, up to an hour.
    pub flush_cost: Duration,
    /// Share of operations that fail, 0 to 1.
    pub error_rate: f64,
    /// Share of reads that fail, where it differs from `error_rate`.
    pub read_error_rate: Option<f64>,
    /// Share of writes, discards and write zeroes that fail, where it differs from `error_rate`.
    pub write_error_rate: Option<f64>,
    /// Share of flushes that fail, where it differs from `error_rate`.
    pub flush_error_rate: Option<f64>,
    /// Seed of all draws.
    pub seed: u64,
}

impl Default for SimOptions {
    /// 1 GiB that answers after 100 µs, 32 operations at once, without errors.
    fn default() -> SimOptions {
        SimOptions {
            size_bytes: 1 << 30,
            read_latency: Duration::from_micros(100),
            write_latency: Duration::from_micros(100),
            distribution: Distribution::Constant,
            channels: 32,
            bytes_per_second: 0,
            flush_cost: Duration::ZERO,
            error_rate: 0.0,
            read_error_rate: None,
            write_error_rate: None,
            flush_error_rate: None,
            seed: 0,
        }
    }
}

/// See [`SimOptions`] and the model above.
pub struct SimStorage {
    map: Map,
    capacity_bytes: AtomicU64,
    target: String,
    model: Mutex<Model>,
}

/// The device: who is busy until when, and what comes next.
struct Model {
    random: Random,
    /// When each channel is free, on the clock of the workers.
    free_at_ns: Vec<u64>,
    read: Latency,
    write: Latency,
    flush_ns: u64,
    /// Nanoseconds a byte, times 2^20.
    transfer_scaled: u64,
    read_error_rate: f64,
    write_error_rate: f64,
    flush_error_rate: f64,
}

/// What the model says about one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    end_ns: u64,
    doomed: bool,
}

impl Model {
    fn new(options: &SimOptions) -> Model {
        let nanos = |time: Duration| time.as_nanos() as u64;
        let rate = |own: Option<f64>| own.unwrap_or(options.error_rate);
        Model {
            random: Random::new(options.seed),
            free_at_ns: vec![0; options.channels],
            read: Latency::new(nanos(options.read_latency), options.distribution),
            write: Latency::new(nanos(options.write_latency), options.distribution),
            flush_ns: nanos(options.flush_cost),
            transfer_scaled: match options.bytes_per_second {
                0 => 0,
                speed => (1_000_000_000 << 20) / speed,
            },
            read_error_rate: rate(options.read_error_rate),
            write_error_rate: rate(options.write_error_rate),
            flush_error_rate: rate(options.flush_error_rate),
        }
    }

    /// Starts an operation of `bytes` transferred at `now_ns`. Every operation draws twice, whatever its kind, so that the
    /// fate of one does not depend on the kinds of those before it.
    fn start(&mut self, action: Action, bytes: u64, now_ns: u64) -> Fate {
        let (luck, shape) = (self.random.unit(), self.random.fork());
        let (latency_ns, rate) = match action {
            Action::Read => (self.read.draw(shape), self.read_error_rate),
            Action::Flush => (self.flush_ns, self.flush_error_rate),
            Action::Write | Action::Discard | Action::WriteZeroes => (self.write.draw(shape), self.write_error_rate),
        };
        let transfer_ns = (u128::from(bytes) * u128::from(self.transfer_scaled)) >> 20;
        let busy_ns = latency_ns.saturating_add(u64::try_from(transfer_ns).unwrap_or(u64::MAX));
        let mut end_ns = now_ns.saturating_add(busy_ns);
        if let Some(free_at_ns) = self.free_at_ns.iter_mut().min() {
            end_ns = now_ns.max(*free_at_ns).saturating_add(busy_ns);
            *free_at_ns = end_ns;
        }
        Fate { end_ns, doomed: luck < rate }
    }
}

impl SimStorage {
    /// Checks the options and sets the contents to zeroes.
    ///
    /// # Errors
    /// One that names the option out of range.
    pub fn open(options: &SimOptions) -> Result<SimStorage, OpenError> {
        check(options)?;
        let size_bytes = options.size_bytes;
        let map = Map::new(Backing::Anonymous { overcommit: true }, size_bytes, 4096).map_err(|errno| {
            let hint = "; it needs this much address space: choose a smaller size".to_owned();
            OpenError::Map { size_bytes, source: errno.into(), hint }
        })?;
        Ok(SimStorage {
            map,
            capacity_bytes: AtomicU64::new(size_bytes),
            target: format!(
                "{:?}/{:?} {}, {} channels, seed {}",
                options.read_latency,
                options.write_latency,
                options.distribution.word(),
                options.channels,
                options.seed
            ),
            model: Mutex::new(Model::new(options)),
        })
    }
}

fn check(options: &SimOptions) -> Result<(), OpenError> {
    check_size(options.size_bytes)?;
    let refuse = |field, value: String, range| Err(OpenError::Field { field, value, range });
    let times = [
        ("read_latency", options.read_latency),
        ("write_latency", options.write_latency),
        ("flush_cost", options.flush_cost),
    ];
    for (field, time) in times {
        if time > LATENCY_MAX {
            return refuse(field, format!("{time:?}"), "0 to 1 hour");
        }
    }
    let rates = [
        ("error_rate", Some(options.error_rate)),
        ("read_error_rate", options.read_error_rate),
        ("write_error_rate", options.write_error_rate),
        ("flush_error_rate", options.flush_error_rate),
        ("latency_spread", options.distribution.spread()),
    ];
    for (field, rate) in rates {
        // Written so that NaN is refused as well.
        if let Some(rate) = rate.filter(|rate| !(0.0..=1.0).contains(rate)) {
            return refuse(field, rate.to_string(), "0 to 1");
        }
    }
    if !(1..=65535).contains(&options.channels) {
        return refuse("channels", options.channels.to_string(), "1 to 65535");
    }
    Ok(())
}

impl Storage for SimStorage {
    fn describe(&self) -> Description {
        Description {
            kind: "sim",
            target: self.target.clone(),
            read_only: false,
            direct: false,
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            optimal_io_bytes: 0,
            discard: true,
            discard_granularity_bytes: 4096,
            write_zeroes: true,
            execution: Execution::Auto,
            execution_chosen: Execution::Inline,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let action = task.operation.action();
        if let Err(error) = task.check(self.capacity_bytes(), false) {
            return Step::Done(Err(error));
        }
        let transferred = match task.operation {
            Operation::Read { .. } | Operation::Write { .. } => task.bytes(),
            _ => 0,
        };
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let fate = model.start(action, transferred, io.now_ns());
        drop(model);
        task.progress.doomed = fate.doomed;
        io.timer(token, fate.end_ns);
        Step::Pending
    }

    fn resume(&self, task: &mut Task, _result: i32, _token: Token, _io: &mut Io<'_>) -> Step {
        if task.progress.doomed {
            return Step::Done(Err(StorageError::Injected(task.operation.action())));
        }
        // SAFETY: checked against the capacity when it was started, which has not shrunk since; all of it is mapped.
        let applied = unsafe { apply(&self.map, task, u64::MAX) };
        debug_assert!(applied.is_some(), "no range is too large here");
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        // The model's lock keeps two changes apart.
        let _one_at_a_time = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let present = self.capacity_bytes();
        check_growth("sim", present, capacity_bytes)?;
        self.map.grow(present, capacity_bytes).map_err(|_| StorageError::Grow {
            target: "sim".to_owned(),
            asked_bytes: capacity_bytes,
            reason: format!("address space for {} bytes was reserved at start", self.map.room_bytes()),
        })?;
        self.capacity_bytes.store(capacity_bytes, Ordering::Release);
        Ok(())
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        only_inline(execution, "sim")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_serve_in_parallel_and_queue_behind() {
        let options = SimOptions { channels: 2, read_latency: Duration::from_nanos(100), ..SimOptions::default() };
        let mut model = Model::new(&options);
        let ends: Vec<_> = (0..5).map(|_| model.start(Action::Read, 0, 1000).end_ns).collect();
        assert_eq!(ends, [1100, 1100, 1200, 1200, 1300]);
        assert_eq!(model.start(Action::Read, 0, 5000).end_ns, 5100, "an idle device starts at once");
    }

    #[test]
    fn bytes_and_flushes_cost_their_time() {
        let options = SimOptions {
            channels: 1,
            write_latency: Duration::from_nanos(10),
            flush_cost: Duration::from_nanos(70),
            bytes_per_second: 1_000_000_000,
            ..SimOptions::default()
        };
        let mut model = Model::new(&options);
        assert_eq!(model.start(Action::Write, 4096, 0).end_ns, 10 + 4096);
        assert_eq!(model.start(Action::Flush, 0, 0).end_ns, 10 + 4096 + 70);
        assert_eq!(model.start(Action::Discard, 0, 0).end_ns, 10 + 4096 + 70 + 10);
    }

    #[test]
    fn equal_seeds_give_equal_fates() {
        let options = SimOptions { error_rate: 0.3, distribution: Distribution::Exponential, ..SimOptions::default() };
        let run = |seed| {
            let mut model = Model::new(&SimOptions { seed, ..options.clone() });
            (0..500).map(|_| model.start(Action::Read, 512, 0)).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let doomed = run(7).iter().filter(|fate| fate.doomed).count();
        assert!((100..200).contains(&doomed), "{doomed} of 500 at a rate of 0.3");
    }

    #[test]
    fn errors_have_rates_of_their_own() {
        let options = SimOptions { error_rate: 1.0, read_error_rate: Some(0.0), ..SimOptions::default() };
        let mut model = Model::new(&options);
        for _ in 0..100 {
            assert!(!model.start(Action::Read, 0, 0).doomed);
            assert!(model.start(Action::Write, 0, 0).doomed && model.start(Action::Flush, 0, 0).doomed);
        }
    }

    #[test]
    fn options_out_of_range_are_named() {
        type Edit = fn(&mut SimOptions);
        let cases: [(Edit, &str); 7] = [
            (|o| o.size_bytes = 100, "size"),
            (|o| o.channels = 0, "channels"),
            (|o| o.channels = 65536, "channels"),
            (|o| o.error_rate = f64::NAN, "error_rate"),
            (|o| o.flush_error_rate = Some(1.5), "flush_error_rate"),
            (|o| o.distribution = Distribution::Normal { spread: -0.1 }, "latency_spread"),
            (|o| o.read_latency = Duration::from_secs(4000), "read_latency"),
        ];
        for (edit, field) in cases {
            let mut options = SimOptions::default();
            edit(&mut options);
            let error = SimStorage::open(&options).err().unwrap().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
