//! A model of a device, for experiments: real contents, modelled time, injected errors.
//!
//! # The model
//! - A device has `channels`. An operation takes the channel that is free first, waits for it, and occupies it for its latency
//!   plus its bytes times the transfer cost. Order of arrival is order of service.
//! - Latencies of reads and writes are drawn from a distribution around a mean; discards and write zeroes cost a write's latency
//!   and no transfer. A flush costs its own fixed time on one channel and waits for no other operation. A durable write costs
//!   its time and that of a flush.
//! - A read or write that does not begin where its channel's last one ended costs a `seek` more, of the same length whatever the
//!   distance: a disk of one channel is fast in order and slow out of order, and two streams on it are out of order. Of several
//!   idle channels one that is in the right place is preferred.
//! - Contents are real memory and change at the *end* of an operation's time: what a completed write stored is what a read
//!   started later gives.
//! - An operation may be doomed to fail when it starts. It takes its time like the others, fails, and has moved nothing.
//! - The device's code may have a bug: the operation number `panic_after`, in order of arrival, panics the thread that brings it
//!   to the device, once. What that takes down is what is to be seen.
//!
//! # What is not modelled
//! - A volatile cache: every completed write is as good as durable, nothing is lost, and a flush changes nothing.
//! - Torn, misdirected, silently corrupted or endless operations; errors come one by one and independent of the place.
//! - The length of a seek, merging, reordering, garbage collection, and any influence of one operation on another but that of
//!   the channels and their places.
//! - Flushes that share their cost. Of 64 threads that flush at once each pays in full: one after the other on a device of one
//!   channel, side by side on one of many. A real device may answer all flushes that wait with one, and a file system above it
//!   may not even ask twice; whoever measures flushes from many threads here measures neither, but a device on which every
//!   flush is work of its own.
//!
//! # Execution
//! The device is the same whoever waits for it; what differs is how many operations reach it and who is blocked meanwhile.
//! - `uring`, which `auto` means: nobody waits. An operation reaches the device when the ring is served, and its end is one of
//!   the worker's deadlines, as a completion from a queue of the hardware would be.
//! - `inline`: the worker sleeps until the end, as in a `pread` from a device that is not in the page cache. A worker has one
//!   operation at the device, and its rings wait.
//! - `pool=N`: an operation waits for one of N threads, which starts it, sleeps until its end, and moves the data. No more than
//!   N are at the device, and no more than its channels are served at once.
//!
//! A sleeping thread wakes later than it asked to; how much, see [`clock`]. A channel is free at the modelled time all the same,
//! so that lateness costs the one who sleeps and does not pile up in the device.
//!
//! # Randomness
//! All draws come from one generator, seeded by `seed`, in the order in which operations reach the device: the same operations
//! in the same order have the same fate, on any machine. One worker that serves one ring keeps the order; several workers, or
//! the threads of a pool, do not.

mod clock;
mod executor;
mod latency;
mod model;
mod random;
#[cfg(test)]
mod tests;

pub use latency::Distribution;

use crate::Progress;
use crate::error::check_size;
use crate::memory::{Backing, Map, apply};
use crate::null::check_growth;
use crate::{Description, Execution, Handed, Kind, Made, OpenError, Opened, Step, Storage, StorageError, Task};
use engine::{Completion, Io, Token};
use executor::{Executor, Waiter};
use model::{Fate, Model};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use utoipa::ToSchema;
use values::{ByteSize, FieldError, IntentLog, Span};

/// Longest time of any part of the model, so that sums do not overflow.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// A model of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SimStorage)]
pub struct SimOptions {
    /// Capacity.
    pub size: ByteSize,
    /// Mean latency of a read, up to an hour; 100us when left out.
    #[serde(default = "SimOptions::latency_default")]
    pub read_latency: Span,
    /// Mean latency of a write, a discard or of zeroes, up to an hour; 100us when left out.
    #[serde(default = "SimOptions::latency_default")]
    pub write_latency: Span,
    /// Shape of the latencies.
    #[serde(default)]
    pub distribution: Distribution,
    /// Spread of the latencies relative to their mean, 0 to 1; 0 when left out.
    #[serde(default)]
    pub latency_spread: f64,
    /// Number of operations the device serves at once, 1 to 65535; 32 when left out.
    #[serde(default = "SimOptions::channels_default")]
    pub channels: u16,
    /// What one channel moves in a second; transfers take no time when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
    /// Time a flush takes, alone or behind a write that must be durable, up to an hour; 0 when left out.
    #[serde(default)]
    pub flush_cost: Span,
    /// Time that a read or write takes longer when it does not follow the last one of its channel, up to an hour; 0 when left out.
    #[serde(default)]
    pub seek: Span,
    /// Share of operations that fail, 0 to 1; 0 when left out.
    #[serde(default)]
    pub error_rate: f64,
    /// Share of reads that fail, where it differs from `error_rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_error_rate: Option<f64>,
    /// Share of writes, discards and zeroes that fail, where it differs from `error_rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_error_rate: Option<f64>,
    /// Share of flushes that fail, where it differs from `error_rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush_error_rate: Option<f64>,
    /// Which operation, counted from 1, panics the daemon's own code on its arrival, once: for tests of what that takes
    /// down. 0, when left out, is none.
    #[serde(default)]
    pub panic_after: u64,
    /// Seed of the random numbers: equal seeds give equal runs.
    #[serde(default)]
    pub seed: u64,
    /// Who waits for the device: nobody, the worker (`inline`) or a pool.
    #[serde(default)]
    pub execution: Execution,
    /// Intent log over it; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent_log: Option<IntentLog>,
}

impl SimOptions {
    /// A model of the given capacity with every other field at its default.
    pub fn new(size: ByteSize) -> Self {
        Self {
            size,
            read_latency: Self::latency_default(),
            write_latency: Self::latency_default(),
            distribution: Distribution::default(),
            latency_spread: 0.0,
            channels: Self::channels_default(),
            bytes_per_second: None,
            flush_cost: Span::default(),
            seek: Span::default(),
            error_rate: 0.0,
            read_error_rate: None,
            write_error_rate: None,
            flush_error_rate: None,
            panic_after: 0,
            seed: 0,
            execution: Execution::default(),
            intent_log: None,
        }
    }

    fn latency_default() -> Span {
        Span(Duration::from_micros(100))
    }

    fn channels_default() -> u16 {
        32
    }
}

impl Default for SimOptions {
    /// 1 GiB that answers after 100 µs, 32 operations at once, without errors.
    fn default() -> SimOptions {
        SimOptions::new(ByteSize(1 << 30))
    }
}

impl Kind for SimOptions {
    fn check(&self, block_size_bytes: u32) -> Result<(), FieldError> {
        values::check_size(self.size, block_size_bytes)?;
        check(self).map_err(|(field, message)| FieldError::new(format!("storage.{field}"), message))
    }

    fn open(&self) -> Result<Opened, OpenError> {
        let options = self.clone();
        Ok(Opened::new(self, move || Ok(Arc::new(SimStorage::open(&options)?))))
    }

    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        Ok(Arc::new(SimStorage::adopt(self, handed)?))
    }

    fn set_execution(&mut self, execution: Execution) {
        self.execution = execution;
    }

    fn made(&mut self) -> Option<Made<'_>> {
        Some(Made { size: &mut self.size, intent_log: self.intent_log.as_mut() })
    }
}

/// See [`SimOptions`] and the model above.
pub struct SimStorage {
    device: Arc<Device>,
    executor: Executor,
    capacity_bytes: AtomicU64,
    target: String,
}

/// What the threads of a pool need to know.
struct Device {
    map: Map,
    model: Mutex<Model>,
}

/// The part of a task that a thread of the pool serves; all others are deadlines, behind which the work is yet to be done.
const SERVED: u16 = 1;
/// The result of a thread that left the work undone, as the model wanted.
const DOOMED: i32 = 1;

/// A task that waits for its deadline.
#[derive(Default)]
struct Modelled {
    doomed: bool,
}

impl Progress for Modelled {}

impl Device {
    /// The operation reaches the device.
    fn begin(&self, task: &Task, now_ns: u64) -> Fate {
        let fate = {
            let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
            model.start(task.operation, task.bytes(), now_ns)
        };
        // Outside of the lock: the model is whole, and the next operation finds it so.
        assert!(!fate.panics, "the simulated device has a bug, as `panic_after` wishes");
        fate
    }

    /// The operation's time is over.
    ///
    /// # Safety
    /// The task was checked against the capacity, and its buffers are mapped.
    unsafe fn end(&self, task: &Task, doomed: bool) -> Result<(), StorageError> {
        if doomed {
            return Err(StorageError::Injected(task.operation.action()));
        }
        // SAFETY: the capacity does not shrink, all of it is mapped, and the rest is promised by our caller.
        unsafe { apply(&self.map, task.operation, &task.buffers) };
        Ok(())
    }

    /// Begins, waits and ends, on the calling thread.
    ///
    /// # Safety
    /// As for [`end`](Self::end).
    unsafe fn serve(&self, task: &Task) -> Result<(), StorageError> {
        // The clock, and not the worker's turn: the operation before this one may have taken its time within the same turn.
        let fate = self.begin(task, engine::monotonic_ns());
        clock::sleep_until(fate.end_ns);
        // SAFETY: promised by our caller.
        unsafe { self.end(task, fate.doomed) }
    }
}

impl SimStorage {
    /// Checks the options and sets the contents to zeroes.
    ///
    /// # Errors
    /// One that names the option out of range.
    pub fn open(options: &SimOptions) -> Result<SimStorage, OpenError> {
        check(options).map_err(refuse)?;
        check_size(options.size.0)?;
        SimStorage::new(options, Backing::anonymous(true), options.size.0)
    }

    /// Goes on with contents that another program has modelled. The model itself begins anew: its channels are free, and
    /// its draws are those that follow the seed.
    fn adopt(options: &SimOptions, mut handed: Handed) -> Result<SimStorage, OpenError> {
        check(options).map_err(refuse)?;
        check_size(handed.capacity_bytes)?;
        let fd = handed.take_data()?;
        SimStorage::new(options, Ok(Backing::Anonymous { fd, overcommit: true }), handed.capacity_bytes)
    }

    fn new(
        options: &SimOptions,
        backing: Result<Backing, rustix::io::Errno>,
        size_bytes: u64,
    ) -> Result<SimStorage, OpenError> {
        let map = backing.and_then(|backing| Map::new(backing, size_bytes, 4096)).map_err(|errno| {
            let hint = "; it needs this much address space: choose a smaller size".to_owned();
            OpenError::Map { size_bytes, source: errno.into(), hint }
        })?;
        Ok(SimStorage {
            device: Arc::new(Device { map, model: Mutex::new(Model::new(options)) }),
            executor: Executor::new(options.execution)?,
            capacity_bytes: AtomicU64::new(size_bytes),
            target: words(options),
        })
    }

    /// Lets a thread of the pool carry the task out. False when there is no pool.
    fn hand_over(&self, task: &Task, token: Token, io: &mut Io<'_>) -> bool {
        // A task of the thread's own, with the same buffers: ours belongs to the caller, who may look at it meanwhile.
        let mut work = Task::new();
        work.buffers.clone_from(&task.buffers);
        work.operation = task.operation;
        let device = self.device.clone();
        // SAFETY: `start` has checked the task, and its buffers stay mapped until the completion, which comes after the job.
        let job = move || match unsafe { device.serve(&work) } {
            Ok(()) => 0,
            Err(_) => DOOMED,
        };
        self.executor.hand_over(job, token.part(SERVED), io)
    }
}

/// The model in a few words; what a person has not asked for is left out.
fn words(options: &SimOptions) -> String {
    let seek = if options.seek.0.is_zero() { String::new() } else { format!(", seek {:?}", options.seek.0) };
    let flush =
        if options.flush_cost.0.is_zero() { String::new() } else { format!(", flush {:?}", options.flush_cost.0) };
    format!(
        "{:?}/{:?} {}{seek}{flush}, {} channels, seed {}",
        options.read_latency.0, options.write_latency.0, options.distribution, options.channels, options.seed
    )
}

/// The first field that is out of range, and what it should be. Sizes are looked at elsewhere.
fn check(options: &SimOptions) -> Result<(), (&'static str, String)> {
    let times = [
        ("read_latency", options.read_latency),
        ("write_latency", options.write_latency),
        ("flush_cost", options.flush_cost),
        ("seek", options.seek),
    ];
    for (field, time) in times {
        if time.0 > LATENCY_MAX {
            return Err((field, format!("must be at most an hour, not {time}")));
        }
    }
    let rates = [
        ("latency_spread", Some(options.latency_spread)),
        ("error_rate", Some(options.error_rate)),
        ("read_error_rate", options.read_error_rate),
        ("write_error_rate", options.write_error_rate),
        ("flush_error_rate", options.flush_error_rate),
    ];
    for (field, rate) in rates {
        // Written so that NaN is refused as well.
        if let Some(rate) = rate.filter(|rate| !(0.0..=1.0).contains(rate)) {
            return Err((field, format!("must be from 0 to 1, not {rate}")));
        }
    }
    if options.channels == 0 {
        return Err(("channels", "must be at least 1".to_owned()));
    }
    Ok(())
}

fn refuse((field, message): (&'static str, String)) -> OpenError {
    OpenError::Field { field, message }
}

impl Storage for SimStorage {
    fn describe(&self) -> Description {
        let (execution, execution_chosen) = self.executor.get();
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
            execution,
            execution_chosen,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        if let Err(error) = task.check(self.capacity_bytes(), false) {
            return Step::Done(Err(error));
        }
        match self.executor.waiter() {
            // SAFETY: checked above; the buffers of a started task are mapped.
            Waiter::Caller => return Step::Done(unsafe { self.device.serve(task) }),
            Waiter::Pool if self.hand_over(task, token, io) => return Step::Pending,
            Waiter::Pool | Waiter::Deadline => {}
        }
        let fate = self.device.begin(task, io.now_ns());
        task.state.of::<Modelled>().doomed = fate.doomed;
        io.timer(token, fate.end_ns);
        Step::Pending
    }

    fn resume(&self, task: &mut Task, completion: Completion, _io: &mut Io<'_>) -> Step {
        let action = task.operation.action();
        Step::Done(match (completion.part, completion.result) {
            (SERVED, 0) => Ok(()),
            (SERVED, DOOMED) => Err(StorageError::Injected(action)),
            (_, 0) => {
                let doomed = task.state.of::<Modelled>().doomed;
                // SAFETY: checked when it was started; the buffers of a task in flight are mapped.
                unsafe { self.device.end(task, doomed) }
            }
            (_, negated) => Err(StorageError::errno(action, negated.saturating_neg())),
        })
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        // The model's lock keeps two changes apart.
        let _one_at_a_time = self.device.model.lock().unwrap_or_else(PoisonError::into_inner);
        let present = self.capacity_bytes();
        check_growth("sim", present, capacity_bytes)?;
        self.device.map.grow(present, capacity_bytes).map_err(|_| StorageError::Grow {
            target: "sim".to_owned(),
            asked_bytes: capacity_bytes,
            reason: format!("address space for {} bytes was reserved at start", self.device.map.room_bytes()),
        })?;
        self.capacity_bytes.store(capacity_bytes, Ordering::Release);
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Ok(Handed::new(self.capacity_bytes(), self.device.map.backing().descriptor(), None))
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        self.executor.set(execution)
    }
}
