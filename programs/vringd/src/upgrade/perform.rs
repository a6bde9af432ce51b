//! The last acts of a program that another one follows.

use super::closes::Mounts;
use super::collect::{self, Purpose};
use super::descriptors::Outgoing;
use super::state::{self, State};
use super::{check, envelope, threads};
use crate::daemon::Daemon;
use crate::log;
use control::model::{NewExport, NewUpgrade};
use control::{ApiError, Asker};
use disk::Disk;
use engine::monotonic_ns;
use export::Export;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::convert::Infallible;
use std::ffi::{CString, NulError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vhost_user::{EndpointState, HandoverError, Hold};

/// How long requests in flight may take to end while guests wait.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// A request that has been in flight for this long already is not worth pausing everybody for.
const STUCK: Duration = Duration::from_secs(2);
/// How long a look at renewed certificates may have gone on: it takes much less where its directory answers.
const LOOK: Duration = Duration::from_secs(1);
/// The same, while guests wait.
const LOOK_IN_PAUSE: Duration = Duration::from_millis(100);
/// How long a session's thread may be at something else while those of others wait: a message takes much less.
const TAKEN_PATIENCE: Duration = Duration::from_millis(300);
/// How long a session's thread may take to answer, beyond what it may wait for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);
/// What the kernel appends to the path of a program whose file was replaced (proc_pid_exe(5)).
const DELETED: &[u8] = b" (deleted)";

type Served = (Arc<Export>, NewExport, Option<Arc<Disk>>);

/// Becomes the program that is asked for. Returns only when nothing came of it.
pub(crate) fn perform(daemon: &Daemon, asked: &NewUpgrade, asker: &Asker) -> ApiError {
    match attempt(daemon, asked, asker) {
        Err(error) => {
            tracing::warn!(%error, "not upgraded");
            error
        }
        Ok(never) => match never {},
    }
}

fn attempt(daemon: &Daemon, asked: &NewUpgrade, asker: &Asker) -> Result<Infallible, ApiError> {
    let _alone = daemon.upgrade.close_gate()?;
    // Another call may have kept this one waiting.
    check_asker(asker)?;
    // First: what is isolated does not even see its own program.
    let exports = served(daemon)?;
    let program = match &asked.binary {
        Some(program) => program.clone(),
        None => own_path().map_err(|error| failed(format!("cannot find the running program: {error}")))?,
    };
    daemon.held.runs(&program).map_err(|message| refused("binary", message))?;
    check_threads(&exports)?;

    let mut out = Outgoing::default();
    let looked = look(daemon, &exports, &mut out);
    // What the descriptors mean is all that the other program has to understand now.
    let closed = out.end(LOOK).map_err(failed);
    let state = looked?;
    closed?;
    let understood = check::ask(&program, &state).map_err(|error| match error {
        check::AskError::Program(message) => refused("binary", message),
        here => failed(here.to_string()),
    })?;

    // It may have taken its time.
    check_threads(&exports)?;
    check_asker(asker)?;
    let (sessions, rings) = collect::running(&state);
    let (from, to) = (env!("CARGO_PKG_VERSION"), understood.version.as_str());
    tracing::info!(program = %program.display(), from, to, sessions, rings, "upgrading: rings are drained");
    let mut out = Outgoing::default();
    let result = pause_and_become(daemon, &exports, (&program, &Mounts::now()), asker, &mut out);
    // Nobody waits for it: guests go on, and the next upgrade sees whether it lasts.
    let _ = out.end(Duration::ZERO);
    result
}

/// Everything but the pause, to find out what can be found out without it. Sessions go on.
fn look(daemon: &Daemon, exports: &[Served], out: &mut Outgoing) -> Result<State, ApiError> {
    let looks: Vec<_> = exports.iter().map(|(export, ..)| export.look()).collect();
    let by = Instant::now() + ANSWER_PATIENCE;
    let states = looks.into_iter().map(|look| look.wait(by));
    let begun = begin(daemon, 0, out)?;
    let (state, _) = gather(begun, (exports, daemon), (states, Purpose::Check), out)?;
    Ok(state)
}

/// Pauses everybody and becomes the program. Returns only when nothing came of it, and then nobody is paused any more.
fn pause_and_become(
    daemon: &Daemon,
    exports: &[Served],
    (program, mounts): (&Path, &Mounts),
    asker: &Asker,
    out: &mut Outgoing,
) -> Result<Infallible, ApiError> {
    let paused_ns = monotonic_ns();
    let drained_by = Instant::now() + DRAIN_PATIENCE;
    let pauses: Vec<_> = exports.iter().map(|(export, ..)| export.pause(drained_by)).collect();
    // One that opens, flushes or closes an image drains nothing, and nobody waits for that.
    let taken_by = Instant::now() + TAKEN_PATIENCE;
    for (pause, (export, ..)) in pauses.iter().zip(exports) {
        pause.wait_until_taken(taken_by).map_err(|error| cannot(export.name(), &error))?;
    }
    let states = pauses.into_iter().map(|pause| pause.wait(drained_by + ANSWER_PATIENCE));
    let begun = begin(daemon, paused_ns, out)?;
    let (state, holds) = gather(begun, (exports, daemon), (states, Purpose::Handover), out)?;
    if daemon.upgrade.is_ending() {
        return Err(ApiError::Stopping);
    }
    // A client may have come and gone last. No other one comes now.
    check_looks(exports, LOOK_IN_PAUSE)?;
    let unanswered = || failed("a file system is asked how much space it has left: try again".to_owned());
    let _silence = daemon.asking.hold_within(LOOK_IN_PAUSE).ok_or_else(unanswered)?;
    threads::check_known(LOOK_IN_PAUSE).map_err(failed)?;
    check_asker(asker)?;
    let error = become_program(program, mounts, &state, out);
    // From here on nobody is paused any more.
    drop(holds);
    Err(failed(error))
}

/// Whoever has given up on an upgrade may do something else by now.
fn check_asker(asker: &Asker) -> Result<(), ApiError> {
    let why = "whoever asked for it waits no more: ask again";
    if asker.waits() { Ok(()) } else { Err(failed(why.to_owned())) }
}

/// Sees to it that no thread is with what hangs: the other program would wait for it, and guests with it.
fn check_threads(exports: &[Served]) -> Result<(), ApiError> {
    check_looks(exports, LOOK)?;
    threads::check(STUCK).map_err(failed)
}

/// As above, of looks at certificates, which go on for `moment` at most.
fn check_looks(exports: &[Served], moment: Duration) -> Result<(), ApiError> {
    for (export, ..) in exports {
        if let Some(certificates) = export.certificates().filter(|certificates| certificates.look_lasts(moment)) {
            let directory = certificates.directory().display();
            let why =
                format!("{directory}, where its TLS certificates are, does not answer; look at it, and try again");
            return Err(cannot(export.name(), &why));
        }
    }
    Ok(())
}

fn failed(message: String) -> ApiError {
    ApiError::Failed { message }
}

fn refused(field: &str, message: String) -> ApiError {
    ApiError::InvalidField { field: field.to_owned(), message }
}

fn cannot(export: &str, message: &impl ToString) -> ApiError {
    ApiError::Unsupported { export: export.to_owned(), message: message.to_string() }
}

/// Where the running program is, or what has replaced it there.
fn own_path() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?.into_os_string().into_vec();
    let path = path.strip_suffix(DELETED).unwrap_or(&path);
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

/// The exports with their descriptions and the disks that are their own, as long as all of them can be handed over.
fn served(daemon: &Daemon) -> Result<Vec<Served>, ApiError> {
    // It may be a volume's write-back, whose thread another program would not have.
    if daemon.engine().ending() > 0 {
        return Err(failed(
            "an export that was removed is still being closed; try again when that has ended".to_owned(),
        ));
    }
    // Its thread would outlast the pause, or never go.
    if let Some(disk) = daemon.asking.lasts(STUCK) {
        let why = "does not say how much space it has left: look at it, and try again";
        return Err(failed(format!("the file system of disk `{disk}` {why}")));
    }
    // Nobody drains what a ring that fell has left behind on a disk that stays.
    daemon.disks.check_ended().map_err(|error| failed(format!("{error}, or remove the disk")))?;
    if let Some((disk, id, kind)) = daemon.jobs.running() {
        let why = format!("job {id} ({kind}) copies disk `{disk}`, and would end: wait for it, or cancel it first");
        return Err(failed(why));
    }
    let descriptions = daemon.upgrade.descriptions().clone();
    let now_ns = monotonic_ns();
    let mut served = Vec::new();
    for export in daemon.all() {
        let name = export.name();
        if let Some(why) = daemon.held.keeps_its_program() {
            return Err(cannot(name, &why));
        }
        if let Some(why) = export.failure() {
            return Err(cannot(name, &format_args!("it has failed ({why}): remove it first")));
        }
        for (ring, taken_ns, answers) in export.oldest_requests() {
            let age = Duration::from_nanos(now_ns.saturating_sub(taken_ns));
            if !answers || age > STUCK {
                let age_ms = age.as_millis();
                let why = "its storage does not answer; look at it, and try again";
                let message = format!("ring {ring} has a request in flight for {age_ms} ms: {why}");
                return Err(cannot(name, &message));
            }
        }
        let description = descriptions.get(name).cloned();
        let missing = || failed(format!("export `{name}` has no description: this is a bug of the daemon"));
        let own = daemon.disk_of(name).filter(|disk| disk.owner().is_some());
        served.push((export.clone(), description.ok_or_else(missing)?, own));
    }
    Ok(served)
}

/// The state without its disks and exports.
fn begin(daemon: &Daemon, paused_ns: u64, out: &mut Outgoing) -> Result<State, ApiError> {
    let along = daemon.upgrade.along.get();
    let along =
        along.ok_or_else(|| failed("the daemon is part of another program and cannot be upgraded".to_owned()))?;
    let control = along.control.as_ref().map(|control| {
        let fd = control.socket.try_clone()?;
        let file = state::SocketFile { path: control.path.clone(), device: control.device, inode: control.inode };
        Ok::<_, io::Error>(collect::socket(fd, Some(file), "control socket".to_owned(), out))
    });
    let control = control.transpose().map_err(|error| failed(format!("control socket: {error}")))?;
    let started_ns = monotonic_ns().saturating_sub(u64::try_from(daemon.started.elapsed().as_nanos()).unwrap_or(0));
    Ok(State {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        upgrades: daemon.upgrade.past().map_or(0, |past| past.upgrades) + 1,
        started_ns,
        paused_ns,
        descriptors: out.meanings(),
        workers_max: daemon.workers_max,
        favour: daemon.engine().favour(),
        policy: daemon.engine().policy_mode(),
        workers: daemon.engine().workers().iter().filter_map(collect::worker).collect(),
        control,
        held: daemon.held.clone(),
        stuck_after: control::model::Span(along.stuck_after),
        one: along.one,
        alone: daemon.alone,
        groups: daemon.groups.all(),
        disks: Vec::new(),
        reservations: Vec::new(),
        units: Vec::new(),
        exports: Vec::new(),
    })
}

/// Adds the exports, and the disks apart from them once. While the holds are kept, all exports are paused.
fn gather(
    mut state: State,
    (exports, daemon): (&[Served], &Daemon),
    (states, purpose): (impl Iterator<Item = Result<(EndpointState, Hold), HandoverError>>, Purpose),
    out: &mut Outgoing,
) -> Result<(State, Vec<Hold>), ApiError> {
    let mut holds = Vec::new();
    for ((export, description, own), answer) in exports.iter().zip(states) {
        let name = export.name();
        let (endpoint, hold) = answer.map_err(|error| cannot(name, &error))?;
        holds.push(hold);
        let collected = collect::export(description.clone(), (export, own.as_deref()), endpoint, purpose, out);
        state.exports.push(collected.map_err(|error| failed(format!("export `{name}`: {error}")))?);
    }
    for (disk, _) in daemon.disks.all().iter().filter(|(disk, _)| disk.owner().is_none()) {
        let collected = collect::disk(disk, purpose, out);
        state.disks.push(collected.map_err(|error| failed(format!("disk `{}`: {error}", disk.name())))?);
    }
    state.reservations = collect::reservations(&daemon.logical_units);
    state.units = collect::units(&daemon.logical_units);
    out.check_once().map_err(failed)?;
    state.descriptors = out.meanings();
    Ok((state, holds))
}

/// Executes the program, which does not return; or says why it does.
fn become_program(program: &Path, mounts: &Mounts, state: &State, out: &mut Outgoing) -> String {
    let shown = program.display();
    let prepared = envelope::write(state).and_then(|memory| {
        let number = memory.as_raw_fd();
        // It is not among the descriptors that the state names: it is the state.
        out.give(memory, "this state".to_owned());
        out.stay_open().map_err(|error| error.to_string())?;
        if let Some(file) = mounts.closed_by_execve() {
            return Err(format!(
                "{file} does not go along, and guests would wait for its close: restart the daemon instead"
            ));
        }
        command(program, number).map_err(|error| error.to_string())
    });
    let (path, arguments) = match prepared {
        Ok(command) => command,
        Err(error) => {
            out.close_again();
            return error;
        }
    };
    // A signal that comes from here on waits for the next program's handlers.
    let blocked = end_signals().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let error = match nix::unistd::execv(&path, &arguments) {
        Err(error) => error,
        Ok(never) => match never {},
    };
    if let Ok(before) = blocked {
        let _ = before.thread_set_mask();
    }
    out.close_again();
    format!("{shown} cannot be executed: {error}")
}

/// The signals that end a daemon.
pub(super) fn end_signals() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGHUP);
    signals
}

/// The program and its arguments: it logs as this one does.
fn command(program: &Path, state: i32) -> Result<(CString, Vec<CString>), NulError> {
    let words = ["vringd".to_owned()].into_iter().chain(log::arguments());
    let words = words.chain(["adopt".to_owned(), "--state-fd".to_owned(), state.to_string()]);
    let arguments = words.map(CString::new).collect::<Result<_, _>>()?;
    Ok((CString::new(program.as_os_str().as_bytes())?, arguments))
}
