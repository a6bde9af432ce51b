//! The frontend: a load on a vhost-user-blk, vhost-user-scsi or NBD socket, in threads of its own.
//!
//! [`Load::start`] connects and begins; [`Load::snapshot`] looks without disturbing; [`Load::finish`] lets what is in
//! flight come back and sums up.

mod buffers;
mod device;
mod lane;
mod ledger;
mod nbd;
mod pattern;
mod plan;
mod protocol;
mod queue;
pub(crate) mod rng;
mod runner;
mod spec;
mod vhost_user;
mod virtio;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use blkio::Errno;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::stats::{self, Latency};
use device::Device;
use guest::usage::{self, Sample, Usage};
use lane::{Lane, Tally};
use runner::{Outcome, Runner, SHOW_TIME_MAX, Shared, Window, has_shown, take_interval};

pub use crate::driver::ConnectError;
pub use nbd::{ConnectionError, HandshakeError};
pub use protocol::Protocol;
pub use spec::{Limits, Rw, Spec, SpecError};

/// Why a load could not start or finish. Messages are whole: none has a source that repeats a part of it.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum Error {
    /// {0}
    Spec(SpecError),
    /// {socket:?}: cannot connect: {cause}; is a vhost-user-blk server listening there?
    Connect {
        /// The socket.
        socket: PathBuf,
        /// What libblkio said.
        cause: blkio::Error,
    },
    /// {socket:?}: cannot connect: {cause}; is an NBD server listening there?
    NbdConnect {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// {socket:?}: {cause}; is a vhost-user server listening there?
    DeviceConnect {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        cause: ConnectError,
    },
    /// {socket:?}: {cause:#}
    Device {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        cause: anyhow::Error,
    },
    /// {socket:?}: {cause}
    Handshake {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        cause: HandshakeError,
    },
    /// {socket:?}: the path must be UTF-8
    Path {
        /// The socket.
        socket: PathBuf,
    },
    /// {socket:?}: accepts a connection but does not answer within {seconds} s; is another frontend connected?
    Mute {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// {socket:?}: not all of {connections} connection(s) are answered within {seconds} s; does NBD listen, for so many?
    NbdMute {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for.
        seconds: u64,
        /// How many connections there were to be.
        connections: u16,
    },
    /// cannot {step}: {cause}
    SetUp {
        /// What was tried.
        step: &'static str,
        /// What libblkio said.
        cause: blkio::Error,
    },
    /// the disk is read-only: use --rw read or --rw randread
    ReadOnly,
    /// a queue failed: {cause}
    Queue {
        /// What libblkio said.
        cause: blkio::Error,
    },
    /// a connection failed: {cause}
    Connection {
        /// What went wrong.
        cause: ConnectionError,
    },
    /// a queue failed: {cause:#}
    Ring {
        /// What went wrong.
        cause: anyhow::Error,
    },
    /// {socket:?}: says that it has read, and has written nothing; is that a vhost-user-blk server? For virtio-scsi: --protocol scsi
    NoData {
        /// The socket.
        socket: PathBuf,
    },
    /// the disk has no flush: use neither --sync nor --flush-every
    NoFlush,
    /// cannot wait for completions: {cause}
    Wait {
        /// What the kernel said.
        cause: io::Error,
    },
    /// the server completed nothing for {seconds} s with {in_flight} requests in flight: they are lost, or it died
    Stall {
        /// Requests submitted and not completed.
        in_flight: usize,
        /// How long it was waited for.
        seconds: u64,
    },
    /// the server (pid {pid}) ended with {in_flight} requests in flight
    Died {
        /// Its pid.
        pid: u32,
        /// Requests submitted and not completed.
        in_flight: usize,
    },
    /// cannot measure the server: {0}
    Usage(usage::Error),
    /// cannot start a thread: {cause}
    Thread {
        /// What the kernel said.
        cause: io::Error,
    },
    /// a load thread panicked; its message is above
    Panicked,
}

impl Error {
    /// Whether nobody listens, which of a server that was started just now means that it has not come up.
    pub(crate) fn is_early(&self) -> bool {
        match self {
            Self::Connect { cause, .. } => matches!(cause.errno(), Errno::NOENT | Errno::CONNREFUSED),
            Self::NbdConnect { cause, .. } => {
                matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
            }
            Self::DeviceConnect { cause, .. } => cause.is_early(),
            _ => false,
        }
    }
}

impl From<SpecError> for Error {
    fn from(error: SpecError) -> Self {
        Self::Spec(error)
    }
}

impl From<usage::Error> for Error {
    fn from(error: usage::Error) -> Self {
        Self::Usage(error)
    }
}

/// The figures of a finished load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How long was counted.
    pub seconds: f64,
    /// Reads and writes completed in that time.
    pub ops: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Flushes, which are not in `ops`.
    pub flushes: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Reads and writes a second.
    pub iops: f64,
    /// 2^20 bytes a second.
    pub mib_per_s: f64,
    /// From submission to completion, reads and writes.
    pub latency: Latency,
    /// From submission to completion, flushes.
    pub flush_latency: Latency,
    /// Requests that failed, ramp included.
    pub errors: u64,
    /// Reads that delivered wrong data, ramp included.
    pub mismatches: u64,
    /// The first errors and mismatches, in words.
    pub faults: Vec<String>,
    /// For each queue, the longest time without a completion while requests were in flight.
    pub gap_us_max: Vec<f64>,
    /// What the server used, when its pid was given.
    pub server: Option<Usage>,
    /// CPU time of the load threads.
    pub load_cpu_s: f64,
}

impl Report {
    /// Whether every request succeeded and delivered the right data.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.mismatches == 0
    }

    /// With the rates of what was done in the time.
    pub(crate) fn with_rates(self) -> Self {
        let a_second = |count: f64| stats::ratio(count, self.seconds).unwrap_or(0.0);
        let (iops, mib_per_s) = (a_second(self.ops as f64), a_second(self.bytes as f64 / f64::from(1 << 20)));
        Self { iops, mib_per_s, ..self }
    }

    /// The longest gap of all queues, in microseconds.
    pub fn worst_gap_us(&self) -> f64 {
        self.gap_us_max.iter().copied().fold(0.0, f64::max)
    }
}

/// The figures of a running load.
#[derive(Debug, Clone, Serialize)]
pub struct Snapshot {
    /// Since the load started.
    pub seconds: f64,
    /// Reads and writes completed since the ramp ended.
    pub ops: u64,
    /// Bytes read and written since the ramp ended.
    pub bytes: u64,
    /// Requests that failed so far.
    pub errors: u64,
    /// Reads that delivered wrong data so far.
    pub mismatches: u64,
    /// Latency of what completed since the last snapshot, as far as threads have shown it.
    pub latency: Latency,
    /// For each queue, the longest time without a completion since the last snapshot.
    pub gap_us_max: Vec<f64>,
}

impl Snapshot {
    /// The longest gap of all queues, in microseconds.
    pub(crate) fn worst_gap_us(&self) -> f64 {
        self.gap_us_max.iter().copied().fold(0.0, f64::max)
    }
}

/// A frontend that stays connected and submits nothing, until it is dropped.
#[derive(Debug)]
pub struct Connection(Device);

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to `socket` with the queues `spec` asks for.
    ///
    /// # Errors
    /// Nobody listens, the server does not answer, or the disk does not suit `spec`.
    pub fn open(socket: &Path, spec: &Spec) -> Result<Self, Error> {
        spec.check()?;
        Ok(Self(Device::open(socket, spec)?))
    }

    /// What the server's disk is like.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }
}

/// A running load. Dropping it stops it.
#[derive(Debug)]
pub struct Load {
    spec: Spec,
    shared: Arc<Shared>,
    windows: Vec<Arc<Window>>,
    threads: Vec<JoinHandle<Result<Outcome, Error>>>,
    meter: Option<JoinHandle<Result<Option<Usage>, Error>>>,
    latency: Histogram<u64>,
    gaps_ns: Vec<u64>,
    epoch: Instant,
    // Last, because the threads' queues use its memory.
    connection: Option<Connection>,
}

impl Load {
    /// Connects to `socket` and starts to submit.
    ///
    /// # Errors
    /// As [`Connection::open`], or a thread could not be started.
    pub fn start(socket: &Path, spec: &Spec) -> Result<Self, Error> {
        Self::on(Connection::open(socket, spec)?, spec)
    }

    /// As [`Load::start`], on a server of which nothing but its socket is known: it shows first that it reads.
    pub(crate) fn start_unknown(socket: &Path, spec: &Spec) -> Result<Self, Error> {
        let mut connection = Connection::open(socket, spec)?;
        if !connection.0.reads()? {
            return Err(Error::NoData { socket: socket.to_owned() });
        }
        Self::on(connection, spec)
    }

    fn on(mut connection: Connection, spec: &Spec) -> Result<Self, Error> {
        let device = &mut connection.0;
        let run = rng::mix(spec.seed ^ u64::from(std::process::id()) ^ (clock_ns() << 20));
        let parts = std::mem::take(&mut device.parts);
        let mut lanes = Vec::new();
        let disks = device.queues.drain(..).zip(device.buffers.drain(..)).zip(parts);
        for (index, ((queue, buffers), part)) in disks.enumerate() {
            lanes.push((index, Lane::new(queue, index as u16, buffers, part, spec, run)));
        }
        let mut load = Self {
            spec: spec.clone(),
            shared: Arc::default(),
            windows: Vec::new(),
            threads: Vec::new(),
            meter: None,
            latency: stats::latencies(),
            gaps_ns: vec![0; lanes.len()],
            epoch: Instant::now(),
            connection: Some(connection),
        };
        load.spawn(lanes)?;
        Ok(load)
    }

    fn spawn(&mut self, lanes: Vec<(usize, Lane)>) -> Result<(), Error> {
        let count = usize::from(self.spec.threads.unwrap_or(self.spec.queues)).max(1);
        let mut groups: Vec<(Vec<Lane>, Vec<u64>)> = (0..count).map(|_| Default::default()).collect();
        for (index, lane) in lanes {
            let (group, shares) = &mut groups[index % count];
            group.push(lane);
            shares.push(share_of_ops(&self.spec, index));
        }
        let (counting, counted) = mpsc::channel();
        for (index, (group, shares)) in groups.into_iter().enumerate() {
            let shared = Arc::clone(&self.shared);
            let runner = Runner::new(group, shares, &self.spec, shared, self.epoch, counting.clone());
            self.windows.push(runner.window());
            let thread = thread::Builder::new().name(format!("bench-load-{index}")).spawn(move || runner.run());
            self.threads.push(thread.map_err(|cause| Error::Thread { cause })?);
        }
        let (pid, ramp) = (self.spec.server_pid, self.spec.ramp);
        let meter = thread::Builder::new()
            .name("bench-meter".into())
            .spawn(move || meter(pid, ramp, &counted))
            .map_err(|cause| Error::Thread { cause })?;
        self.meter = Some(meter);
        Ok(())
    }

    /// Whether the load has ended by itself: time over, all counted, or failed.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// What has happened so far. Its latency is of what threads have shown: of an interval longer than five milliseconds that is the
    /// beginning, and the rest stands in the next snapshot.
    pub fn snapshot(&mut self) -> Snapshot {
        let (mut latency, mut gaps_ns) = (stats::latencies(), vec![0; self.gaps_ns.len()]);
        self.take_shown(&mut latency, &mut gaps_ns);
        self.sum_snapshot(&latency, gaps_ns)
    }

    /// As [`Load::snapshot`], with the latency of everything since the last one: waits some milliseconds for threads to show the
    /// rest. For a load without a ramp, in which they show nothing.
    pub(crate) fn whole_snapshot(&mut self) -> Snapshot {
        let (mut latency, mut gaps_ns) = (stats::latencies(), vec![0; self.gaps_ns.len()]);
        self.take_shown(&mut latency, &mut gaps_ns);
        let deadline = Instant::now() + SHOW_TIME_MAX;
        while !self.windows.iter().all(|window| has_shown(window)) && !self.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        self.take_shown(&mut latency, &mut gaps_ns);
        self.sum_snapshot(&latency, gaps_ns)
    }

    fn take_shown(&self, latency: &mut Histogram<u64>, gaps_ns: &mut [u64]) {
        for (thread, window) in self.windows.iter().enumerate() {
            take_interval(window, |interval| {
                add(latency, &interval.latency);
                widen(gaps_ns, thread, self.windows.len(), &interval.gaps_ns);
            });
        }
    }

    fn sum_snapshot(&mut self, latency: &Histogram<u64>, mut gaps_ns: Vec<u64>) -> Snapshot {
        let sum = |field: fn(&Window) -> u64| self.windows.iter().map(|window| field(window)).sum();
        let now_ns = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        add(&mut self.latency, latency);
        widen(&mut self.gaps_ns, 0, 1, &gaps_ns);
        for (thread, window) in self.windows.iter().enumerate() {
            let since = |since_ns: u64| if since_ns == 0 { 0 } else { now_ns.saturating_sub(since_ns) };
            let waits: Vec<u64> = window.waiting_since_ns.iter().map(|at| since(at.load(Relaxed))).collect();
            widen(&mut gaps_ns, thread, self.windows.len(), &waits);
        }
        let ops: u64 = sum(|window| window.ops.load(Relaxed));
        Snapshot {
            seconds: self.epoch.elapsed().as_secs_f64(),
            ops,
            bytes: ops * u64::from(self.spec.block_bytes),
            errors: sum(|window| window.errors.load(Relaxed)),
            mismatches: sum(|window| window.mismatches.load(Relaxed)),
            latency: Latency::from(latency),
            gap_us_max: microseconds(&gaps_ns),
        }
    }

    /// Waits for a load with a time or a number of requests to end, and calls `look` every 20 ms meanwhile.
    pub fn wait(&self, look: impl Fn(&Self)) {
        while !self.is_finished() {
            thread::sleep(Duration::from_millis(20));
            look(self);
        }
    }

    /// Time since the load started, ramp included.
    pub fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Reads and writes a second since the ramp ended, or since the start while it lasts.
    pub fn rate_so_far(&self) -> f64 {
        let ops: u64 = self.windows.iter().map(|window| window.ops.load(Relaxed)).sum();
        let elapsed = self.elapsed();
        let counted = elapsed.checked_sub(self.spec.ramp).filter(|time| !time.is_zero()).unwrap_or(elapsed);
        stats::ratio(ops as f64, counted.as_secs_f64()).unwrap_or(0.0)
    }

    /// Stops submitting, waits for what is in flight and sums up; the connection ends.
    ///
    /// # Errors
    /// A queue failed, the server lost requests, or it could not be measured.
    pub fn finish(self) -> Result<Report, Error> {
        self.finish_connected().map(|(report, _connection)| report)
    }

    /// As [`Load::finish`], but the frontend stays connected, with nothing in flight.
    ///
    /// # Errors
    /// As [`Load::finish`].
    pub fn finish_connected(mut self) -> Result<(Report, Option<Connection>), Error> {
        self.shared.stop.store(true, Relaxed);
        // All of them, before any failure is looked at: their queues use memory that ends with the connection.
        let joined: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        let outcomes: Vec<Outcome> =
            joined.into_iter().map(|outcome| outcome.unwrap_or(Err(Error::Panicked))).collect::<Result<_, _>>()?;
        let server = match self.meter.take() {
            Some(meter) => meter.join().map_err(|_| Error::Panicked)??,
            None => None,
        };
        let report = self.sum_up(&outcomes, server);
        let mut connection = self.connection.take();
        if let Some(connection) = &mut connection {
            let lanes = outcomes.into_iter().flat_map(|outcome| outcome.lanes);
            connection.0.queues.extend(lanes.map(|lane| lane.queue));
        }
        Ok((report, connection))
    }

    fn sum_up(&mut self, outcomes: &[Outcome], server: Option<Usage>) -> Report {
        let threads = self.windows.len();
        for (thread, (window, outcome)) in self.windows.iter().zip(outcomes).enumerate() {
            let mut take = |interval: &runner::Interval| {
                add(&mut self.latency, &interval.latency);
                widen(&mut self.gaps_ns, thread, threads, &interval.gaps_ns);
            };
            take_interval(window, &mut take);
            take(&outcome.rest);
        }
        let lanes = || outcomes.iter().flat_map(|outcome| &outcome.lanes);
        let counted = |field: fn(&Tally) -> u64| outcomes.iter().flat_map(|outcome| &outcome.counted).map(field).sum();
        let mut flush_latency = stats::latencies();
        for lane in lanes() {
            add(&mut flush_latency, &lane.flush_latency);
        }
        let began = outcomes.iter().map(|outcome| outcome.ramp_ended_ns).min().unwrap_or(0);
        let ended = outcomes.iter().map(|outcome| outcome.ended_ns).max().unwrap_or(0);
        let seconds = ended.saturating_sub(began) as f64 / 1e9;
        let ops: u64 = counted(Tally::ops);
        Report {
            seconds,
            ops,
            reads: counted(|tally| tally.reads),
            writes: counted(|tally| tally.writes),
            flushes: counted(|tally| tally.flushes),
            bytes: ops * u64::from(self.spec.block_bytes),
            latency: Latency::from(&self.latency),
            flush_latency: Latency::from(&flush_latency),
            errors: lanes().map(|lane| lane.tally.errors).sum(),
            mismatches: lanes().map(|lane| lane.tally.mismatches).sum(),
            faults: lanes().flat_map(|lane| lane.faults.clone()).collect(),
            gap_us_max: microseconds(&self.gaps_ns),
            server,
            load_cpu_s: outcomes.iter().map(|outcome| outcome.cpu_s).sum(),
            ..Report::default()
        }
        .with_rates()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // Who drops a load does not want to know how it ended.
            let _outcome = thread.join();
        }
    }
}

/// Samples the server when the ramp ends and when the last thread has counted its last request.
fn meter(pid: Option<u32>, ramp: Duration, counted: &mpsc::Receiver<()>) -> Result<Option<Usage>, Error> {
    let Some(pid) = pid else { return Ok(None) };
    let mut before = Sample::take(pid)?;
    if counted.recv_timeout(ramp) == Err(mpsc::RecvTimeoutError::Timeout) {
        before = Sample::take(pid)?;
        // Nothing is ever sent: this ends when every thread has dropped its end.
        let _disconnected = counted.recv();
    }
    Ok(Some(Sample::take(pid)?.since(&before)))
}

/// Requests a queue counts: an even part of `Spec::ops`, the first ones one more.
fn share_of_ops(spec: &Spec, queue: usize) -> u64 {
    let queues = u64::from(spec.queues);
    spec.ops.map_or(u64::MAX, |ops| ops / queues + u64::from((queue as u64) < ops % queues))
}

fn add(total: &mut Histogram<u64>, part: &Histogram<u64>) {
    // Both have the same constant bounds, the only thing that can be wrong with them.
    debug_assert_eq!(total.high(), part.high());
    let _same_bounds = total.add(part);
}

/// Enters the gaps of thread `thread` of `threads`, whose n-th lane is queue `n * threads + thread`.
fn widen(total: &mut [u64], thread: usize, threads: usize, gaps: &[u64]) {
    for (total, gap) in total.iter_mut().skip(thread).step_by(threads).zip(gaps) {
        *total = (*total).max(*gap);
    }
}

fn microseconds(gaps_ns: &[u64]) -> Vec<f64> {
    gaps_ns.iter().map(|ns| *ns as f64 / 1000.0).collect()
}

fn clock_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_shared_out_without_loss() {
        let spec = Spec { queues: 3, ops: Some(11), ..Spec::default() };
        let shares: Vec<u64> = (0..3).map(|queue| share_of_ops(&spec, queue)).collect();
        assert_eq!(shares, [4, 4, 3]);
    }

    #[test]
    fn gaps_of_a_thread_land_on_its_queues() {
        let mut total = [5, 5, 5];
        widen(&mut total, 0, 2, &[9, 1]);
        widen(&mut total, 1, 2, &[7]);
        assert_eq!(total, [9, 7, 5]);
    }

    #[test]
    fn a_socket_that_is_not_there_is_named() {
        let error = Load::start(Path::new("/nonexistent/s"), &Spec::default()).unwrap_err().to_string();
        assert!(error.starts_with("\"/nonexistent/s\": cannot connect: "), "{error}");
    }
}
