//! Between the words of the API and the types of the rooms that do the work.

use crate::failure::field;
use crate::volume;
use control::ApiError;
use control::model::config::ExportKind;
use control::model::trace::{StageTimes, WaitedFor, Way};
use control::model::{self as api};
use disk::DiskError;
use engine::{EngineError, Ways};
use export::{Content, ExportError, ExportStatus, Object, RingState, RingStatus, SlowRequest, Times, UnitStatus, Wait};
use std::collections::BTreeMap;

/// How rings count what they have no use for.
const UNSUPPORTED: &str = "unsupported";
/// VIRTIO_9P_MOUNT_TAG (linux/virtio_9p.h): bit 0, which means something else for each device.
const P9_MOUNT_TAG: u64 = 1;

pub(crate) fn worker_in(new: &api::NewWorker) -> engine::WorkerSpec {
    engine::WorkerSpec { cpus: new.cpus.clone(), numa_node: new.numa_node, cgroup: new.cgroup.as_ref().map(Into::into) }
}

/// Errors of the engine, in the API's words.
pub(crate) fn engine_error(error: EngineError, scope: &control::Scope, export: &str) -> ApiError {
    match error {
        EngineError::NoSuchWorker(id) => ApiError::NoSuchWorker { scope: scope.clone(), id },
        EngineError::WorkerDead(id) => ApiError::WorkerDead { id },
        EngineError::TooManyWorkers(max) => ApiError::TooManyWorkers { max },
        EngineError::Spec(error) => {
            let name = match error {
                engine::SpecError::Affinity { .. } => "cpus",
                engine::SpecError::NoNode(_) | engine::SpecError::MemoryPolicy { .. } => "numa_node",
                engine::SpecError::Cgroup { .. } => "cgroup",
            };
            field(name, error)
        }
        other if export.is_empty() => ApiError::Failed { message: other.to_string() },
        other => ApiError::Failed { message: format!("export `{export}`: {other}") },
    }
}

/// Why an export cannot have the disk that it names.
pub(crate) fn lease_error(error: DiskError) -> ApiError {
    lease_error_of("disk", error)
}

/// The same, of the disk that a field names.
pub(crate) fn lease_error_of(name: &str, error: DiskError) -> ApiError {
    match error {
        DiskError::Missing { .. } => field(name, format_args!("{error}: add it first")),
        error => field(name, error),
    }
}

/// Errors of an export, in the API's words.
pub(crate) fn export_error(error: ExportError, name: &str) -> ApiError {
    match error {
        ExportError::Engine(error) => engine_error(error, &control::Scope::Daemon, name),
        ExportError::Bind(error) => field("socket", error),
        ExportError::Config(error) => field("storage", error),
        ExportError::ScsiConfig(error) => field("luns", error),
        ExportError::Unit(error) => field("luns", error),
        ExportError::Reservations { .. } | ExportError::Storing { .. } => field("luns", error),
        ExportError::Identity(error) => field("luns", error),
        ExportError::AnotherUnit { .. } | ExportError::SamePort { .. } => field("luns", error),
        ExportError::Tag(error) => field("directory.tag", error),
        ExportError::P9Tag(error) => field("directory.tag", error),
        ExportError::RequestQueues(_) | ExportError::Connections(_) => field("queues", error),
        ExportError::NoStream => field("listen", error),
        ExportError::DirectIo => field("directory.allow_direct_io", error),
        ExportError::NoCapacity | ExportError::NoIntentLog | ExportError::NoUnits | ExportError::ManyCapacities => {
            ApiError::Unsupported { export: name.to_owned(), message: error.to_string() }
        }
        ExportError::Capacity { .. } => field("capacity_bytes", error),
        ExportError::NoSuchRing { index, queues } => {
            ApiError::NoSuchRing { export: name.to_owned(), index, last: queues - 1 }
        }
        ExportError::ForeignWorker { worker, .. } => {
            ApiError::NoSuchWorker { scope: control::Scope::Export(name.to_owned()), id: worker }
        }
        ExportError::Storage(error) => ApiError::Unsupported { export: name.to_owned(), message: error.to_string() },
        ExportError::NoSharedWorkers
        | ExportError::Thread(_)
        | ExportError::Pool(_)
        | ExportError::Undrained
        | ExportError::UnitInFlight(_)
        | ExportError::Take(_)
        | ExportError::InFlight { .. }
        | ExportError::Unsteady
        | ExportError::Failed(_)
        | ExportError::Sync(_) => ApiError::Failed { message: format!("export `{name}`: {error}") },
    }
}

pub(crate) fn ring_out(ring: &RingStatus) -> api::RingInfo {
    let (mut requests, mut unsupported) = (BTreeMap::new(), 0);
    for (kind, count) in ring.figures.requests.iter() {
        if kind == UNSUPPORTED {
            unsupported = count;
        } else if count > 0 {
            requests.insert(kind.to_owned(), count);
        }
    }
    api::RingInfo {
        index: ring.index,
        state: match ring.state {
            RingState::Running => api::RingState::Running,
            RingState::Disabled => api::RingState::Disabled,
            RingState::Stopped => api::RingState::Stopped,
            RingState::Broken => api::RingState::Broken,
            RingState::Unresponsive => api::RingState::Unresponsive,
        },
        broken: ring.broken.clone(),
        size: u32::from(ring.size),
        worker: ring.worker,
        figures: api::RingFigures {
            requests,
            unsupported,
            bytes_read: ring.figures.bytes_read,
            bytes_written: ring.figures.bytes_written,
            errors: ring.figures.errors,
            in_flight: ring.in_flight as u64,
            oldest_in_flight_ms: ring.oldest_in_flight_ns.map(|age_ns| age_ns / 1_000_000),
            in_flight_max: ring.figures.in_flight_max as u64,
            kicks: ring.stay.kicks,
            notifications_sent: ring.figures.notifications_sent,
            notifications_suppressed: ring.figures.notifications_suppressed,
            polls_hit: ring.stay.polls_hit,
            polls_missed: ring.stay.polls_missed,
            moves: ring.stay.moves,
            throttled: ring.figures.throttled,
            throttled_seconds: ring.figures.throttled_ns as f64 / 1e9,
            latency_queued: api::LatencySummary::from_ns(ring.figures.queued.histogram()),
            latency_served: api::LatencySummary::from_ns(ring.figures.served.histogram()),
        },
    }
}

pub(crate) fn export_out(status: ExportStatus, rings: &[RingStatus], workers: Vec<u32>) -> api::Export {
    let (kind, storage, directory, queues_max) = match &status.content {
        Content::Disk { capacity_bytes, block_size_bytes, description, held, link, volume } => {
            let storage = storage_out(*capacity_bytes, *block_size_bytes, description);
            let volume = volume.as_deref().map(volume::info_out);
            (
                ExportKind::Disk,
                Some(api::StorageInfo { held: *held, link: link.clone().map(link_out), volume, ..storage }),
                None,
                status.queues,
            )
        }
        // One of its queues is for urgent requests.
        Content::Directory(directory) => {
            (ExportKind::Dir, None, Some(crate::directory::shown(directory)), status.queues.saturating_sub(1))
        }
        Content::P9(p9) => (ExportKind::Dir, None, Some(crate::p9::shown(p9)), status.queues),
        // Two of its queues are for control and events.
        Content::Scsi(_) => (ExportKind::Scsi, None, None, status.queues.saturating_sub(2)),
    };
    let luns = match &status.content {
        Content::Scsi(units) => units.iter().map(unit_out).collect(),
        _ => Vec::new(),
    };
    let oldest_ns = rings.iter().filter_map(|ring| ring.oldest_in_flight_ns).max();
    let mut features = feature_names(status.features_negotiated);
    if matches!(status.content, Content::P9(_)) && status.features_negotiated & P9_MOUNT_TAG != 0 {
        features.insert(0, "MOUNT_TAG".to_owned());
    }
    api::Export {
        name: status.name,
        kind,
        storage,
        disk: None,
        directory,
        luns,
        socket: status.socket,
        state: match status.frontend {
            _ if status.failed => api::SessionState::Failed,
            Some(_) => api::SessionState::Connected,
            None => api::SessionState::Listening,
        },
        frontend: status.frontend.and_then(|peer| {
            let (pid, uid) = (peer.pid?, peer.uid?);
            Some(api::Frontend { pid: i32::try_from(pid).unwrap_or(0), uid })
        }),
        features,
        queues_max,
        placement: status.placement,
        poll: status.poll,
        limits: crate::limit::shown(status.limits, status.group),
        errors: rings.iter().map(|ring| ring.figures.errors).sum(),
        oldest_in_flight_ms: oldest_ns.map(|age_ns| age_ns / 1_000_000),
        broken_rings: rings.iter().filter(|ring| ring.state == RingState::Broken).count() as u64,
        last_error: status.last_error,
        sessions: api::SessionFigures {
            connects: status.sessions.connects,
            disconnects: status.sessions.disconnects,
            failures: status.sessions.errors,
        },
        rings: rings.iter().map(ring_out).collect(),
        workers,
    }
}

/// A logical unit of a SCSI device.
pub(crate) fn unit_out(unit: &UnitStatus) -> api::Unit {
    let storage = storage_out(unit.capacity_bytes, unit.block_size_bytes, &unit.description);
    let volume = unit.volume.as_deref().map(volume::info_out);
    let reservation = unit.reservation.as_ref().map(|it| api::UnitReservation {
        kind: it.kind.map(str::to_owned),
        holder: it.holder.clone(),
        registered: it.registered.clone(),
    });
    api::Unit {
        lun: unit.lun,
        disk: unit.disk.clone(),
        serial: unit.serial.clone(),
        storage: api::StorageInfo { held: unit.held, link: unit.link.clone().map(link_out), volume, ..storage },
        reservation,
    }
}

/// When writes to the volume of an export are on stable storage, if it has one.
pub(crate) fn sync_set(content: &Content) -> Option<api::SyncMode> {
    match content {
        Content::Disk { volume, .. } => volume.as_deref().map(|volume| volume.sync),
        Content::Scsi(units) => units.iter().find_map(|unit| unit.volume.as_deref().map(|volume| volume.sync)),
        Content::Directory(_) | Content::P9(_) => None,
    }
}

/// The execution of an export, as it was set.
pub(crate) fn execution_set(content: &Content) -> api::Execution {
    match content {
        Content::Disk { description, .. } => description.execution,
        Content::Directory(directory) => directory.execution,
        Content::P9(p9) => p9.execution,
        Content::Scsi(units) => units.first().map(|unit| unit.description.execution).unwrap_or_default(),
    }
}

pub(crate) fn storage_out(
    capacity_bytes: u64,
    block_size_bytes: u32,
    about: &storage::Description,
) -> api::StorageInfo {
    api::StorageInfo {
        kind: about.kind.to_owned(),
        target: about.target.clone(),
        capacity_bytes,
        block_size_bytes,
        read_only: about.read_only,
        direct: about.direct,
        execution: about.execution,
        execution_chosen: about.execution_chosen,
        held: None,
        link: None,
        volume: None,
    }
}

/// How things stand with storage on other machines.
pub(crate) fn link_out(link: storage::Link) -> api::LinkInfo {
    api::LinkInfo {
        state: match link.state {
            storage::LinkState::Open => api::LinkState::Open,
            storage::LinkState::Opening => api::LinkState::Opening,
            storage::LinkState::Lost => api::LinkState::Lost,
            storage::LinkState::LostWaiting => api::LinkState::LostWaiting,
        },
        for_ms: link.since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        reason: link.why,
    }
}

/// The names of negotiated features, as in virtio 1.3 (5.2.3, 6) and the vhost-user specification, without prefix.
fn feature_names(bits: u64) -> Vec<String> {
    const NAMES: [(u32, &str); 16] = [
        (1, "SIZE_MAX"),
        (2, "SEG_MAX"),
        (5, "RO"),
        (6, "BLK_SIZE"),
        (9, "FLUSH"),
        (10, "TOPOLOGY"),
        (11, "CONFIG_WCE"),
        (12, "MQ"),
        (13, "DISCARD"),
        (14, "WRITE_ZEROES"),
        (28, "INDIRECT_DESC"),
        (29, "EVENT_IDX"),
        (30, "PROTOCOL_FEATURES"),
        (32, "VERSION_1"),
        (33, "ACCESS_PLATFORM"),
        (40, "RING_RESET"),
    ];
    NAMES.iter().filter(|(bit, _)| bits & (1 << bit) != 0).map(|(_, name)| (*name).to_owned()).collect()
}

/// A slow request in the API's words; `taken_unix_us` is when it was taken.
pub(crate) fn slow_out(export: &str, slow: &SlowRequest, taken_unix_us: u64) -> api::trace::SlowRequest {
    let (mut node, mut fid, mut lun) = (None, None, None);
    match slow.what.object {
        Some(Object::Node(number)) => node = Some(number),
        Some(Object::Fid(number)) => fid = Some(number),
        Some(Object::Unit(unit)) => lun = Some(unit),
        None => {}
    }
    let waited_for = match slow.waited_for {
        Wait::Worker => WaitedFor::Worker,
        Wait::Turn => WaitedFor::Turn,
        Wait::Limit => WaitedFor::Limit,
        Wait::Hold => WaitedFor::Hold,
    };
    let times = times_out(&slow.times());
    api::trace::SlowRequest {
        taken_unix_us,
        export: export.to_owned(),
        ring: slow.ring,
        worker: slow.taken_by,
        answered_by: (slow.answered_by != slow.taken_by).then_some(slow.answered_by),
        kind: slow.kind.to_owned(),
        offset: slow.what.range.map(|(offset, _)| offset),
        bytes: slow.what.range.map(|(_, bytes)| bytes),
        node,
        fid,
        lun,
        failed: slow.failed,
        total_us: microseconds(slow.shown_ns),
        times,
        waited_for: (slow.waited_max_ns > 0).then_some(waited_for),
        ways: ways_out(slow.ways),
        parts: slow.parts,
        seen_late_us_max: microseconds(slow.late_max_ns),
    }
}

pub(crate) fn times_out(times: &Times) -> StageTimes {
    StageTimes {
        waited_us_max: microseconds(times.waited_max_ns),
        held_us: microseconds(times.held_ns),
        start_us: microseconds(times.start_ns),
        inline_us: microseconds(times.inline_ns),
        behind_us: microseconds(times.behind_ns),
        lock_us: microseconds(times.lock_ns),
        answer_us: microseconds(times.answer_ns),
        show_us: microseconds(times.show_ns),
        unknown_us: microseconds(times.unknown_ns),
    }
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn ways_out(ways: Ways) -> Vec<Way> {
    let all = [
        (Ways::URING, Way::Uring),
        (Ways::THREAD, Way::Thread),
        (Ways::TIMER, Way::Timer),
        (storage::ways::LINE, Way::Line),
        (storage::ways::COMMIT_LED, Way::CommitLed),
        (storage::ways::COMMIT_JOINED, Way::CommitJoined),
        (storage::ways::COPY, Way::Copy),
        (export::LOCK, Way::Lock),
        (export::OTHER, Way::Other),
    ];
    all.into_iter().filter(|(way, _)| ways.contains(*way)).map(|(_, shown)| shown).collect()
}
