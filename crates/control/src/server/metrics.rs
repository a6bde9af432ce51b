//! All figures in the OpenMetrics text format. A scrape reads one snapshot of the daemon.

mod job;
mod link;
mod p9;
mod volume;

use crate::daemon::Daemon;
use crate::error::ApiError;
use crate::model::policy::PlacementPolicy;
use crate::model::{
    DirectoryInfo, Disk, Export, Info, Job, LATENCY_BOUNDS_US, LatencySummary, P9Info, RingInfo, RingState,
    SessionState, StorageInfo, VolumeInfo, Worker,
};
use crate::scope::Scope;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// The content type of [`text`].
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of a scrape.
pub(super) fn text(daemon: &dyn Daemon) -> Result<String, ApiError> {
    let snapshot = Snapshot {
        info: daemon.info()?,
        placement: daemon.placement()?,
        exports: daemon.exports()?,
        workers: daemon.workers(&Scope::Daemon)?,
        disks: daemon.disks()?,
        jobs: daemon.jobs()?,
    };
    let mut registry = Registry::with_prefix("vringd");
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    let written = prometheus_client::encoding::text::encode(&mut text, &registry);
    written.map_err(|_| ApiError::Failed { message: "the metrics cannot be written as text".to_owned() })?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshot {
    info: Info,
    placement: PlacementPolicy,
    exports: Vec<Export>,
    workers: Vec<Worker>,
    disks: Vec<Disk>,
    jobs: Vec<Job>,
}

type Labels = Vec<(&'static str, String)>;

/// How a number is read from a thing, and whether it only ever grows.
enum Read<T> {
    Count(fn(&T) -> u64),
    Seconds(fn(&T) -> f64),
    Bytes(fn(&T) -> u64),
    NowCount(fn(&T) -> u64),
    NowSeconds(fn(&T) -> f64),
    NowBytes(fn(&T) -> u64),
}

/// One number of every thing of a kind: its name, its help text, and how to read it.
struct Figure<T>(&'static str, &'static str, Read<T>);

impl<T> Figure<T> {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, things: &[(Labels, &T)]) -> fmt::Result {
        let Self(name, help, read) = self;
        let (unit, kind) = match read {
            Read::Count(_) => (None, MetricType::Counter),
            Read::Seconds(_) => (Some(Unit::Seconds), MetricType::Counter),
            Read::Bytes(_) => (Some(Unit::Bytes), MetricType::Counter),
            Read::NowCount(_) => (None, MetricType::Gauge),
            Read::NowSeconds(_) => (Some(Unit::Seconds), MetricType::Gauge),
            Read::NowBytes(_) => (Some(Unit::Bytes), MetricType::Gauge),
        };
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, thing) in things {
            let metric = family.encode_family(labels)?;
            match read {
                Read::Count(read) | Read::Bytes(read) => ConstCounter::new(read(thing)).encode(metric)?,
                Read::Seconds(read) => ConstCounter::new(read(thing)).encode(metric)?,
                Read::NowCount(read) | Read::NowBytes(read) => ConstGauge::new(read(thing)).encode(metric)?,
                Read::NowSeconds(read) => ConstGauge::new(read(thing)).encode(metric)?,
            }
        }
        Ok(())
    }
}

const DAEMON: &[Figure<Info>] = &[
    Figure("uptime", "Time since the daemon started, in seconds", Read::NowSeconds(|info| info.uptime_seconds)),
    Figure(
        "workers_max",
        "Largest number of workers the daemon will run",
        Read::NowCount(|info| info.workers_max as u64),
    ),
];

const PLACEMENT: &[Figure<PlacementPolicy>] = &[
    Figure("policy_placements", "Decisions to move rings between shared workers", Read::Count(|it| it.changes)),
    Figure("policy_ring_moves", "Rings that the policy has moved between shared workers", Read::Count(|it| it.moves)),
];

const EXPORT: &[Figure<Export>] = &[
    Figure(
        "export_connected",
        "1 while a frontend is connected, 0 otherwise",
        Read::NowCount(|export| u64::from(export.state == SessionState::Connected)),
    ),
    Figure(
        "export_failed",
        "1 when the export cannot serve any more, 0 otherwise",
        Read::NowCount(|export| u64::from(export.state == SessionState::Failed)),
    ),
    Figure(
        "export_limit_requests",
        "Requests a second that the export is limited to by itself, 0 without a limit",
        Read::NowCount(|export| export.limits.iops.unwrap_or(0)),
    ),
    Figure(
        "export_limit_rate",
        "Bytes a second that the export is limited to by itself, 0 without a limit",
        Read::NowBytes(|export| export.limits.bytes_per_second.unwrap_or_default().0),
    ),
    Figure("export_connects", "Frontends that connected", Read::Count(|export| export.sessions.connects)),
    Figure(
        "export_session_failures",
        "Sessions ended because the frontend broke the protocol or the socket failed",
        Read::Count(|export| export.sessions.failures),
    ),
];

const DISK: &[Figure<StorageInfo>] =
    &[Figure("export_capacity", "Capacity of the disk, in bytes", Read::NowBytes(|storage| storage.capacity_bytes))];

const DIRECTORY: &[Figure<DirectoryInfo>] = &[
    Figure("directory_nodes", "Inodes that the guest knows", Read::NowCount(|directory| directory.nodes)),
    Figure(
        "directory_nodes_max",
        "Most inodes that the guest can know",
        Read::NowCount(|directory| directory.nodes_max),
    ),
    Figure(
        "directory_descriptors",
        "Descriptors that are held for inodes",
        Read::NowCount(|directory| directory.descriptors),
    ),
    Figure(
        "directory_descriptors_max",
        "Most descriptors that are held for inodes",
        Read::NowCount(|directory| directory.descriptors_max),
    ),
    Figure(
        "directory_open_files",
        "Files and directories that the guest has open",
        Read::NowCount(|directory| directory.open_files),
    ),
    Figure(
        "directory_locks_waiting",
        "Requests for a lock that wait",
        Read::NowCount(|directory| directory.locks_waiting),
    ),
    Figure(
        "directory_dax_mapped",
        "Parts of files, of 2 MiB each, in the guest's memory",
        Read::NowCount(|directory| directory.dax.map_or(0, |dax| dax.mapped)),
    ),
];

const RING: &[Figure<RingInfo>] = &[
    Figure("ring_read", "Data read, in bytes", Read::Bytes(|ring| ring.figures.bytes_read)),
    Figure("ring_written", "Data written, in bytes", Read::Bytes(|ring| ring.figures.bytes_written)),
    Figure("ring_errors", "Requests answered with an error", Read::Count(|ring| ring.figures.errors)),
    Figure(
        "ring_in_flight",
        "Queue depth: requests taken and not completed",
        Read::NowCount(|ring| ring.figures.in_flight),
    ),
    Figure(
        "ring_oldest_in_flight",
        "Time since the request was taken that waits longest, in seconds; 0 when none is in flight",
        Read::NowSeconds(|ring| ring.figures.oldest_in_flight_ms.unwrap_or(0) as f64 / 1e3),
    ),
    Figure("ring_in_flight_max", "Largest queue depth so far", Read::NowCount(|ring| ring.figures.in_flight_max)),
    Figure("ring_kicks", "Kicks received from the guest", Read::Count(|ring| ring.figures.kicks)),
    Figure(
        "ring_notifications_sent",
        "Notifications sent to the guest",
        Read::Count(|ring| ring.figures.notifications_sent),
    ),
    Figure(
        "ring_notifications_suppressed",
        "Publications of completed requests for which the guest wanted no notification",
        Read::Count(|ring| ring.figures.notifications_suppressed),
    ),
    Figure("ring_polls_hit", "Poll windows that ended because of the ring", Read::Count(|ring| ring.figures.polls_hit)),
    Figure(
        "ring_polls_missed",
        "Poll windows that ended without work while the ring was attached",
        Read::Count(|ring| ring.figures.polls_missed),
    ),
    Figure("ring_throttled", "Requests that had to wait for a limit", Read::Count(|ring| ring.figures.throttled)),
    Figure(
        "ring_throttled_time",
        "Time during which requests waited for a limit, in seconds",
        Read::Seconds(|ring| ring.figures.throttled_seconds),
    ),
    Figure("ring_moves", "Times the ring moved to another worker", Read::Count(|ring| ring.figures.moves)),
    Figure("ring_size", "Number of descriptors", Read::NowCount(|ring| u64::from(ring.size))),
    Figure(
        "ring_running",
        "1 while requests are served, 0 otherwise",
        Read::NowCount(|ring| u64::from(ring.state == RingState::Running)),
    ),
    Figure(
        "ring_broken",
        "1 when the guest broke the ring, 0 otherwise",
        Read::NowCount(|ring| u64::from(ring.state == RingState::Broken)),
    ),
];

const WORKER: &[Figure<Worker>] = &[
    Figure("worker_turns", "Turns of the worker's loop", Read::Count(|worker| worker.figures.turns)),
    Figure("worker_io_uring_enters", "io_uring_enter system calls", Read::Count(|worker| worker.figures.syscalls)),
    Figure("worker_sleeps", "Times the worker went to sleep", Read::Count(|worker| worker.figures.sleeps)),
    Figure("worker_polls_hit", "Poll windows in which work arrived", Read::Count(|worker| worker.figures.polls_hit)),
    Figure(
        "worker_polls_missed",
        "Poll windows that ended without work",
        Read::Count(|worker| worker.figures.polls_missed),
    ),
    Figure(
        "worker_policy_trials",
        "Trials of ways to wait that came to a decision",
        Read::Count(|worker| worker.figures.policy_trials),
    ),
    Figure(
        "worker_policy_changes",
        "Decisions that changed the way the worker waits",
        Read::Count(|worker| worker.figures.policy_changes),
    ),
    Figure("worker_sqes", "Submission queue entries handed to the kernel", Read::Count(|worker| worker.figures.sqes)),
    Figure("worker_cqes", "Completion queue entries taken from the kernel", Read::Count(|worker| worker.figures.cqes)),
    Figure(
        "worker_mailbox_messages",
        "Messages taken from the worker's mailbox",
        Read::Count(|worker| worker.figures.mailbox_messages),
    ),
    Figure(
        "worker_cpu",
        "CPU time of the worker's thread, in seconds",
        Read::Seconds(|worker| worker.figures.cpu_seconds),
    ),
    Figure(
        "worker_busy",
        "Time in turns of the worker that had work, in seconds",
        Read::Seconds(|worker| worker.figures.busy_seconds),
    ),
    Figure(
        "worker_poll_window",
        "Length of the poll window at this moment, in seconds",
        Read::NowSeconds(|worker| f64::from(worker.poll_window_us_now) / 1e6),
    ),
    Figure("worker_rings", "Rings attached to the worker", Read::NowCount(|worker| worker.rings.len() as u64)),
];

/// One latency of every thing of a kind: its name, its help text, and how to read it.
type Latency<T> = (&'static str, &'static str, fn(&T) -> &LatencySummary);

const LATENCIES: &[Latency<RingInfo>] = &[
    (
        "ring_latency_queued",
        "Time from when the worker could have taken a request to when it did, in seconds",
        |ring| &ring.figures.latency_queued,
    ),
    (
        "ring_latency_served",
        "Time from when the worker took a request to when its answer was ready, in seconds",
        |ring| &ring.figures.latency_served,
    ),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let (daemon, placement) = ([(vec![], &self.info)], [(vec![], &self.placement)]);
        let exports: Vec<_> = self.exports.iter().map(|export| (export_labels(export), export)).collect();
        let disks: Vec<_> = self.behind(|export| export.storage.as_ref());
        let directories: Vec<_> = self.behind(|export| export.directory.as_ref());
        let volumes: Vec<(_, &VolumeInfo)> = self.behind(|export| export.storage.as_ref()?.volume.as_ref());
        let over_9p: Vec<(_, &P9Info)> = self.behind(|export| export.directory.as_ref()?.p9.as_ref());
        let rings: Vec<_> = self.exports.iter().flat_map(labelled_rings).collect();
        let workers: Vec<_> = self.workers.iter().map(|worker| (worker_labels(worker), worker)).collect();
        self.encode_build(encoder)?;
        DAEMON.iter().try_for_each(|figure| figure.encode(encoder, &daemon))?;
        PLACEMENT.iter().try_for_each(|figure| figure.encode(encoder, &placement))?;
        EXPORT.iter().try_for_each(|figure| figure.encode(encoder, &exports))?;
        DISK.iter().try_for_each(|figure| figure.encode(encoder, &disks))?;
        DIRECTORY.iter().try_for_each(|figure| figure.encode(encoder, &directories))?;
        p9::encode(encoder, &over_9p)?;
        volume::encode(encoder, &volumes)?;
        link::encode(encoder, &self.disks)?;
        encode_requests(encoder, &rings)?;
        RING.iter().try_for_each(|figure| figure.encode(encoder, &rings))?;
        LATENCIES.iter().try_for_each(|latency| encode_latency(encoder, latency, &rings))?;
        WORKER.iter().try_for_each(|figure| figure.encode(encoder, &workers))?;
        job::encode(encoder, &self.jobs)
    }
}

impl Snapshot {
    /// What stands behind those exports that have it.
    fn behind<T>(&self, part: impl Fn(&Export) -> Option<&T>) -> Vec<(Labels, &T)> {
        self.exports.iter().filter_map(|export| Some((export_labels(export), part(export)?))).collect()
    }

    fn encode_build(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [("version", self.info.version.as_str())];
        let mut metric = encoder.encode_descriptor("build", "Version of the daemon", None, MetricType::Info)?;
        metric.encode_info(&labels)
    }
}

fn export_labels(export: &Export) -> Labels {
    vec![("export", export.name.clone())]
}

fn labelled_rings(export: &Export) -> impl Iterator<Item = (Labels, &RingInfo)> {
    let labels = |ring: &RingInfo| vec![("export", export.name.clone()), ("ring", ring.index.to_string())];
    export.rings.iter().map(move |ring| (labels(ring), ring))
}

fn worker_labels(worker: &Worker) -> Labels {
    vec![("worker", worker.id.to_string()), ("name", worker.name.clone())]
}

fn encode_requests(encoder: &mut DescriptorEncoder<'_>, rings: &[(Labels, &RingInfo)]) -> fmt::Result {
    let help = "Requests taken, by kind";
    let mut family = encoder.encode_descriptor("ring_requests", help, None, MetricType::Counter)?;
    for (labels, ring) in rings {
        for (kind, count) in ring.figures.by_kind() {
            let mut labels = labels.clone();
            labels.push(("kind", kind.to_owned()));
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn encode_latency<T>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, read): &Latency<T>,
    things: &[(Labels, &T)],
) -> fmt::Result {
    let bounds = || LATENCY_BOUNDS_US.iter().map(|&bound_us| bound_us as f64 / 1e6).chain([f64::INFINITY]);
    let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (labels, thing) in things {
        let summary = read(thing);
        // Nothing measured yet has no buckets: Prometheus wants them all the same.
        let counts = summary.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets: Vec<(f64, u64)> = bounds().zip(counts).collect();
        let mut metric = family.encode_family(labels)?;
        metric.encode_histogram::<NoLabelSet>(summary.sum_us / 1e6, summary.count, &buckets, None)?;
    }
    Ok(())
}
