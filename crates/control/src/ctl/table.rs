//! Tables for people: short, aligned, units in the headers, a dash where there is nothing.

use super::cells::{NOTHING, age, facts, latency_line, mib, microseconds, or_nothing, size, table, uptime};
use super::{limit, p9, units, volume};
use crate::model::config::ExportKind;
use crate::model::{ByteSize, CachePolicy, DaxWhen};
use crate::model::{
    DirectoryInfo, Execution, Export, FileSystem, Info, LatencySummary, LinkInfo, LinkState, MigrationMode,
    MigrationOnError, Owner, Protocol, RingInfo, RingState, SandboxInfo, SeccompState, SessionState, StorageInfo,
    Worker, WorkerState,
};
use std::fmt::Write as _;

fn session_state(state: SessionState) -> &'static str {
    match state {
        SessionState::Listening => "listening",
        SessionState::Connected => "connected",
        SessionState::Failed => "failed",
    }
}

pub(super) fn ring_state(state: RingState) -> &'static str {
    match state {
        RingState::Running => "running",
        RingState::Disabled => "disabled",
        RingState::Stopped => "stopped",
        RingState::Broken => "broken",
        RingState::Unresponsive => "unresponsive",
    }
}

pub(super) fn worker_state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Running => "running",
        WorkerState::Dead => "dead",
    }
}

fn owner(owner: &Owner) -> String {
    match owner {
        Owner::Daemon => "daemon".to_owned(),
        Owner::Export(name) => format!("export {name}"),
    }
}

fn execution(set: Execution, chosen: Execution) -> String {
    if set == chosen { set.to_string() } else { format!("{set} ({chosen})") }
}

fn cache_policy(policy: CachePolicy) -> &'static str {
    match policy {
        CachePolicy::Never => "never",
        CachePolicy::Metadata => "metadata",
        CachePolicy::Auto => "auto",
        CachePolicy::Always => "always",
    }
}

fn dax_when(when: DaxWhen) -> &'static str {
    match when {
        DaxWhen::Never => "never",
        DaxWhen::Inode => "inode",
        DaxWhen::Always => "always",
    }
}

/// How a guest goes along with a directory; nothing for 9p.
fn migration(directory: &DirectoryInfo) -> Option<String> {
    let mode = match directory.migration_mode? {
        MigrationMode::FindPaths => "find-paths",
        MigrationMode::FileHandles => "file-handles",
    };
    let reaction = match directory.migration_on_error? {
        MigrationOnError::Abort => "abort",
        MigrationOnError::GuestError => "guest-error",
    };
    let verify = flag(directory.migration_verify_handles, "verify-handles");
    Some(format!("{mode}{verify}, on error {reaction}"))
}

/// `vringd ctl info`.
pub(super) fn info(info: &Info) -> String {
    let mut lines = vec![
        ("version", info.version.clone()),
        ("pid", info.pid.to_string()),
        ("uptime", uptime(info.uptime_seconds)),
        ("exports", info.exports.to_string()),
        ("workers", format!("{} of at most {}", info.workers, info.workers_max)),
        ("user", format!("{}:{}", info.sandbox.uid, info.sandbox.gid)),
        ("privileges", privileges(&info.sandbox)),
        ("seccomp", seccomp(info.sandbox.seccomp).to_owned()),
        ("paths", paths(&info.sandbox)),
    ];
    if let Some(takeover) = &info.takeover {
        let pause_ms = takeover.pause_us as f64 / 1e3;
        lines.push((
            "upgrades",
            format!("{}; the last from {} with a pause of {pause_ms:.1} ms", info.upgrades, takeover.from),
        ));
    }
    facts(&lines)
}

fn privileges(sandbox: &SandboxInfo) -> String {
    let new = if sandbox.no_new_privs { "no new ones" } else { "new ones possible" };
    match sandbox.capabilities.as_slice() {
        [] => format!("{new}; no capability"),
        kept => format!("{new}; {}", kept.join(" ")),
    }
}

fn seccomp(state: SeccompState) -> &'static str {
    match state {
        SeccompState::None => "none",
        SeccompState::Kill => "kill",
        SeccompState::Trap => "trap",
        SeccompState::Log => "log",
        SeccompState::Foreign => "of the daemon's starter",
    }
}

/// What of the host can be reached by its name.
fn paths(sandbox: &SandboxInfo) -> String {
    let root = match sandbox.file_system {
        FileSystem::Host => "",
        FileSystem::Chroot => "the shared directory alone (chroot); ",
        FileSystem::Namespace => "the shared directory alone (namespaces); ",
    };
    let landlock = match (&sandbox.landlock, &sandbox.landlock_off) {
        (Some(held), _) => {
            let part = if held.complete { "" } else { ", in part" };
            format!("landlock ABI {}{part}: {}", held.abi, held.paths.join(" "))
        }
        (None, Some(why)) => format!("no landlock: {why}"),
        (None, None) => "no landlock".to_owned(),
    };
    format!("{root}{landlock}")
}

/// `vringd ctl export list`.
pub(super) fn exports(exports: &[Export]) -> String {
    if exports.is_empty() {
        return "no exports\n".to_owned();
    }
    let headers = ["EXPORT", "STATE", "KIND", ">SIZE", ">QUEUES", "PLACEMENT", ">REQUESTS", ">ERRORS", "TARGET"];
    let row = |export: &Export| {
        let requests: u64 = export.rings.iter().map(|ring| ring.figures.requests()).sum();
        let storage = export.storage.as_ref();
        let luns = || (export.kind == ExportKind::Scsi).then(|| format!("{} disk(s)", export.luns.len()));
        let target = storage.map(|storage| storage.target.clone());
        let target = target.or(export.directory.as_ref().map(|directory| directory.path.clone())).or_else(luns);
        let over_9p = export.directory.as_ref().is_some_and(|directory| directory.p9.is_some());
        let kind = if over_9p { Protocol::P9.to_string() } else { export.kind.to_string() };
        vec![
            export.name.clone(),
            session_state(export.state).to_owned(),
            storage.map_or(kind, |storage| storage.kind.clone()),
            or_nothing(storage.map(|storage| size(storage.capacity_bytes))),
            export.queues_max.to_string(),
            export.placement.to_string(),
            requests.to_string(),
            export.errors.to_string(),
            or_nothing(target),
        ]
    };
    table(&headers, exports.iter().map(row))
}

/// `vringd ctl export show`.
pub(super) fn export(export: &Export, own_workers: &[Worker]) -> String {
    let frontend = export.frontend.map(|frontend| format!("pid {}, uid {}", frontend.pid, frontend.uid));
    let features = if export.features.is_empty() { NOTHING.to_owned() } else { export.features.join(" ") };
    let mut lines = vec![
        ("export", export.name.clone()),
        ("kind", export.kind.to_string()),
        ("state", session_state(export.state).to_owned()),
        ("socket", export.socket.clone()),
        ("frontend", or_nothing(frontend)),
    ];
    lines.extend(export.disk.iter().map(|disk| ("disk", disk.clone())));
    lines.extend(export.storage.iter().flat_map(storage_facts));
    lines.extend(export.storage.iter().filter_map(|storage| storage.volume.as_ref()).flat_map(volume::facts));
    lines.extend(export.directory.iter().flat_map(directory_facts));
    if export.kind == ExportKind::Scsi {
        lines.extend(units::facts(export));
    }
    lines.extend(limit::line(&export.limits).map(|limits| ("limits", limits)));
    lines.extend([
        ("placement", export.placement.to_string()),
        ("poll", export.poll.to_string()),
        ("sessions", format!("{} connected, {} failed", export.sessions.connects, export.sessions.failures)),
        ("errors", export.errors.to_string()),
        ("features", features),
    ]);
    if let Some(age_ms) = export.oldest_in_flight_ms {
        lines.push(("oldest request", age(age_ms)));
    }
    if let Some(error) = &export.last_error {
        lines.push(("last error", error.clone()));
    }
    let mut text = facts(&lines);
    text.push('\n');
    text += &rings(export.rings.iter().map(|ring| (&*export.name, ring)));
    if !own_workers.is_empty() {
        text.push('\n');
        text += &workers(own_workers);
    }
    text
}

pub(super) fn flag(on: bool, name: &str) -> String {
    if on { format!(", {name}") } else { String::new() }
}

/// What is said of storage on other machines that is not open.
fn link(link: &LinkInfo) -> String {
    let state = match link.state {
        LinkState::Open => return String::new(),
        LinkState::Opening => "being opened again, requests wait",
        LinkState::Lost => "lost, requests fail",
        LinkState::LostWaiting => "lost, requests wait",
    };
    let since = link.for_ms.map(|ms| format!(" for {} s", ms / 1000)).unwrap_or_default();
    let reason = link.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!(", {state}{since}{reason}")
}

/// What a table of facts says of the storage behind a disk.
pub(super) fn storage_facts(storage: &StorageInfo) -> [(&'static str, String); 4] {
    let (direct, read_only) = (flag(storage.direct, "direct"), flag(storage.read_only, "read-only"));
    let held = match storage.held {
        Some(true) => ", held",
        Some(false) => ", not held",
        None => "",
    };
    let link = storage.link.as_ref().map(link).unwrap_or_default();
    [
        ("storage", format!("{} {}{direct}{read_only}{held}{link}", storage.kind, storage.target)),
        ("capacity", format!("{} ({} bytes)", size(storage.capacity_bytes), storage.capacity_bytes)),
        ("block size", format!("{} bytes", storage.block_size_bytes)),
        ("execution", execution(storage.execution, storage.execution_chosen)),
    ]
}

fn directory_facts(directory: &DirectoryInfo) -> Vec<(&'static str, String)> {
    let read_only = flag(directory.read_only, "read-only");
    let protocol = directory.protocol.as_ref().map(|version| match directory.p9 {
        Some(_) => version.clone(),
        None => format!("FUSE {version}"),
    });
    let mut lines = vec![
        ("directory", format!("{}{read_only}", directory.path)),
        ("security", directory.security_model.to_string()),
        ("tag", or_nothing(directory.tag.as_ref())),
        ("protocol", or_nothing(protocol)),
    ];
    lines.extend(directory.p9.iter().flat_map(p9::facts));
    lines.extend(directory.cache.map(|policy| ("cache", cache_policy(policy).to_owned())));
    lines.extend(
        directory.dax.map(|dax| {
            ("dax", format!("{} ({}), {} mapped", dax.window, dax_when(dax.when), ByteSize(dax.mapped << 21)))
        }),
    );
    lines.extend(migration(directory).map(|how| ("migration", how)));
    lines.extend([
        ("execution", execution(directory.execution, directory.execution_chosen)),
        (
            "inodes",
            format!(
                "{} of at most {}; {} of at most {} descriptors",
                directory.nodes, directory.nodes_max, directory.descriptors, directory.descriptors_max
            ),
        ),
        ("open files", directory.open_files.to_string()),
        ("locks", format!("{} waiting", directory.locks_waiting)),
    ]);
    lines
}

/// `vringd ctl ring list`.
pub(super) fn rings<'a>(rings: impl IntoIterator<Item = (&'a str, &'a RingInfo)>) -> String {
    let headers = [
        "EXPORT",
        ">RING",
        "STATE",
        ">WORKER",
        ">DEPTH",
        ">REQUESTS",
        ">READ MiB",
        ">WRITTEN MiB",
        ">ERRORS",
        ">MOVES",
        ">QUEUED p99 µs",
        ">SERVED p50 µs",
        ">p99 µs",
    ];
    let mut reasons = String::new();
    let mut rows = Vec::new();
    for (export, ring) in rings {
        if let Some(reason) = &ring.broken {
            // Writing to a string does not fail.
            let _ = writeln!(reasons, "ring {} of {export} is broken: {reason}", ring.index);
        }
        rows.push(ring_row(export, ring));
    }
    if rows.is_empty() {
        return "no rings\n".to_owned();
    }
    table(&headers, rows) + &reasons
}

fn ring_row(export: &str, ring: &RingInfo) -> Vec<String> {
    let figures = &ring.figures;
    let latency =
        |latency: &LatencySummary, us: f64| if latency.count == 0 { NOTHING.to_owned() } else { microseconds(us) };
    let (queued, served) = (&figures.latency_queued, &figures.latency_served);
    vec![
        export.to_owned(),
        ring.index.to_string(),
        ring_state(ring.state).to_owned(),
        or_nothing(ring.worker),
        figures.in_flight.to_string(),
        figures.requests().to_string(),
        mib(figures.bytes_read as f64),
        mib(figures.bytes_written as f64),
        figures.errors.to_string(),
        figures.moves.to_string(),
        latency(queued, queued.p99_us),
        latency(served, served.p50_us),
        latency(served, served.p99_us),
    ]
}

/// `vringd ctl ring get`.
pub(super) fn ring(export: &str, ring: &RingInfo) -> String {
    let figures = &ring.figures;
    let mut lines = vec![
        ("export", export.to_owned()),
        ("ring", ring.index.to_string()),
        ("state", ring_state(ring.state).to_owned()),
        ("broken", or_nothing(ring.broken.as_ref())),
        ("size", format!("{} descriptors", ring.size)),
        ("worker", or_nothing(ring.worker)),
        ("moves", figures.moves.to_string()),
        ("depth", format!("{} now, {} at most", figures.in_flight, figures.in_flight_max)),
    ];
    if let Some(age_ms) = figures.oldest_in_flight_ms {
        lines.push(("oldest request", age(age_ms)));
    }
    let taken: Vec<_> = figures.by_kind().collect();
    lines.extend(taken.iter().map(|(kind, count)| (*kind, count.to_string())));
    lines.extend([
        ("data read", format!("{} MiB", mib(figures.bytes_read as f64))),
        ("data written", format!("{} MiB", mib(figures.bytes_written as f64))),
        ("errors", figures.errors.to_string()),
        ("kicks", figures.kicks.to_string()),
        (
            "notifications",
            format!("{} sent, {} suppressed", figures.notifications_sent, figures.notifications_suppressed),
        ),
        ("polls", format!("{} hit, {} missed", figures.polls_hit, figures.polls_missed)),
        ("queued", latency_line(&figures.latency_queued)),
        ("served", latency_line(&figures.latency_served)),
    ]);
    if figures.throttled > 0 {
        let (requests, seconds) = (figures.throttled, figures.throttled_seconds);
        lines.push(("throttled", format!("{requests} requests, for {seconds:.1} s")));
    }
    facts(&lines)
}

/// `vringd ctl worker list`.
pub(super) fn workers(workers: &[Worker]) -> String {
    if workers.is_empty() {
        return "no workers\n".to_owned();
    }
    let headers = [
        ">WORKER",
        "NAME",
        "OWNER",
        "STATE",
        "CPUS",
        "POLL",
        ">TURNS",
        ">SYSCALLS",
        ">SLEEPS",
        ">POLLS HIT %",
        ">CPU s",
        "RINGS",
    ];
    table(&headers, workers.iter().map(worker_row))
}

fn worker_row(worker: &Worker) -> Vec<String> {
    let figures = &worker.figures;
    let polls = figures.polls_hit + figures.polls_missed;
    let share = (polls > 0).then(|| format!("{:.0}", figures.polls_hit as f64 / polls as f64 * 100.0));
    vec![
        worker.id.to_string(),
        worker.name.clone(),
        owner(&worker.owner),
        worker_state(worker.state).to_owned(),
        or_nothing(worker.cpus.as_ref()),
        worker.poll.to_string(),
        figures.turns.to_string(),
        figures.syscalls.to_string(),
        figures.sleeps.to_string(),
        or_nothing(share),
        format!("{:.2}", figures.cpu_seconds),
        worker_rings(worker),
    ]
}

fn worker_rings(worker: &Worker) -> String {
    let rings: Vec<String> = worker.rings.iter().map(|ring| format!("{}/{}", ring.export, ring.index)).collect();
    if rings.is_empty() { NOTHING.to_owned() } else { rings.join(" ") }
}

/// `vringd ctl worker get`.
pub(super) fn worker(worker: &Worker) -> String {
    let figures = &worker.figures;
    facts(&[
        ("worker", worker.id.to_string()),
        ("name", worker.name.clone()),
        ("owner", owner(&worker.owner)),
        ("state", worker_state(worker.state).to_owned()),
        ("tid", worker.tid.to_string()),
        ("cpus", or_nothing(worker.cpus.as_ref())),
        ("numa node", or_nothing(worker.numa_node)),
        ("cgroup", or_nothing(worker.cgroup.as_ref())),
        ("poll", format!("{}, window {} µs now", worker.poll, worker.poll_window_us_now)),
        ("waits by", or_nothing(worker.tactic)),
        ("rings", worker_rings(worker)),
        ("turns", figures.turns.to_string()),
        ("syscalls", figures.syscalls.to_string()),
        ("sleeps", figures.sleeps.to_string()),
        ("polls", format!("{} hit, {} missed", figures.polls_hit, figures.polls_missed)),
        ("sqes, cqes", format!("{}, {}", figures.sqes, figures.cqes)),
        ("messages", figures.mailbox_messages.to_string()),
        ("cpu", format!("{:.2} s", figures.cpu_seconds)),
    ])
}
