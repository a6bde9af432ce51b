//! The life of the daemon: start everything or nothing, serve, end on a signal.

use crate::clients::Server;
use crate::config::Config;
use crate::confine::{Held, Plan};
use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::isolation::IsolationArgs;
use crate::prepared::{self, DiskContents, Prepared};
use crate::service::{Service, Watchdog, is_open, take_descriptor};
use crate::upgrade::{Along, Low};
use crate::virtiofsd::PidFile;
use crate::{placer, space, watch};
use control::model::{NewDisk, NewExport};
use control::{ControlServer, ControlSocket, Daemon as _};
use sandbox::{Mode, Role};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Exit status of a process whose only export cannot serve any more.
const EXPORT_FAILED: u8 = 3;
/// Exit status after a second signal: requests that storage still owed an answer were given up.
const GIVEN_UP: i32 = 4;
/// A second signal this soon is taken for the first: some programs signal a process and its group.
const SAME_SIGNAL: Duration = Duration::from_millis(500);
/// How long the control API may take to answer before it is not alive.
const CONTROL_PATIENCE: Duration = Duration::from_secs(2);

/// How a process that serves one directory lives.
#[derive(Debug)]
pub(crate) struct Alone {
    /// What it may do besides.
    pub(crate) isolation: IsolationArgs,
    /// The file that says who serves the socket.
    pub(crate) pid_file: Option<PathBuf>,
    /// End with the first session.
    pub(crate) one_session: bool,
    /// What is logged once it listens, for programs that wait for these words.
    pub(crate) listens: Option<&'static str>,
}

impl Alone {
    /// Nothing hides other programs, and nothing ends that began with this one.
    fn may_be_upgraded(&self) -> bool {
        self.isolation.sandbox == Mode::None && self.pid_file.is_none() && !self.one_session
    }
}

/// Serves until SIGTERM, SIGINT, SIGHUP or a shutdown by the API.
pub(crate) fn run(mut config: Config) -> Result<ExitCode, Failure> {
    raise_file_limit();
    check_inherited(&config)?;
    let _low = Low::keep();
    let signals = signals()?;
    let service = Service::connect();
    let plan = Plan::new(&mut config)?;
    let control = bind_control(&config, plan.becomes())?;
    let server = Server::here(plan.becomes().map(|(uid, _)| uid));
    let source = config.source.as_ref();
    let open = |disk: &NewDisk| {
        DiskContents::open(disk, plan.becomes()).map_err(|error| place(source, ("disk", &disk.name), error))
    };
    let disks = config.disks.iter().map(open).collect::<Result<_, _>>()?;
    let prepare = |export: &NewExport| {
        Prepared::open(export, server).map_err(|error| place(source, ("export", &export.name), error))
    };
    let prepared = config.exports.iter().map(prepare).collect::<Result<_, _>>()?;
    let held = plan.enter(&config)?;
    serve(config, control, (disks, prepared), held, &service, signals, channel())
}

/// Serves the one directory of `config`, isolated from the rest of the host.
pub(crate) fn run_alone(config: Config, alone: &Alone) -> Result<ExitCode, Failure> {
    check_inherited(&config)?;
    // Handlers before the sandbox, which gives signals without one a short end in its child.
    let signals = signals()?;
    let service = Service::connect();
    let _pid_file = alone.pid_file.as_deref().map(PidFile::new).transpose()?;
    // All that has a path, and every socket, is made before paths and system calls are taken away; threads are started
    // after that, as they would not be in the sandbox.
    let control = bind_control(&config, None)?;
    let mut held = Held::default();
    // Somebody may ask for another program to go on, and it can be seen from here.
    let upgradable = control.is_some() && alone.may_be_upgraded();
    let _low = upgradable.then(Low::keep);
    let (mut prepared, _endpoint) = match config.exports.as_slice() {
        // The file of its socket goes along.
        [export] if upgradable => (Prepared::open(export, Server::here(None))?, None),
        exports => {
            let mut prepared = Prepared::default();
            let endpoint = prepared.bind(exports)?;
            (prepared, endpoint)
        }
    };
    let role = if upgradable { Role::Daemon } else { Role::Directory };
    if let [NewExport { directory: Some(directory), .. }] = config.exports.as_slice() {
        let (tree, now) = alone.isolation.enter(directory, role)?;
        (prepared.tree, held) = (Some(tree), now);
    }
    let told = channel();
    prepared.listens = alone.listens;
    prepared.session_ended = alone.one_session.then(|| told.0.clone());
    serve(config, control, (Vec::new(), vec![prepared]), held, &service, signals, told)
}

/// Sees to it that what this process is said to have inherited is there, before it opens anything that would get its number.
fn check_inherited(config: &Config) -> Result<(), Failure> {
    if let Some(number) = config.control_fd.filter(|number| !is_open(*number)) {
        return Err(no_control(number, NOT_OPEN));
    }
    let refused = |export: &NewExport| {
        let error = prepared::check_inherited(export).err()?;
        Some(place(config.source.as_ref(), ("export", &export.name), error))
    };
    config.exports.iter().find_map(refused).map_or(Ok(()), Err)
}

const NOT_OPEN: &str = "it is not open";

fn no_control(number: i32, why: &str) -> Failure {
    Failure::Usage(format!("inherited control socket, descriptor {number}: {why}"))
}

/// `becomes` has the user and the group that the process is to become, whom the socket is for.
fn bind_control(config: &Config, becomes: Option<(u32, u32)>) -> Result<Option<ControlSocket>, Failure> {
    if let Some(number) = config.control_fd {
        let refuse = |why: String| no_control(number, &why);
        let socket = take_descriptor(number).ok_or_else(|| refuse(NOT_OPEN.into()))?;
        return ControlSocket::inherited(socket).map(Some).map_err(|error| refuse(error.to_string()));
    }
    let bind = |path| match becomes {
        Some((uid, gid)) => ControlSocket::bind_for(path, uid, gid),
        None => ControlSocket::bind(path),
    };
    let bound = config.control.as_deref().map(bind).transpose();
    bound.map_err(|error| Failure::Usage(error.to_string()))
}

/// `disks` has one for each disk, and `prepared` one for each export.
fn serve(
    config: Config,
    control: Option<ControlSocket>,
    (disks, mut prepared): (Vec<DiskContents>, Vec<Prepared>),
    held: Held,
    service: &Service,
    signals: Signals,
    (stop, stopped): (Sender<()>, Receiver<()>),
) -> Result<ExitCode, Failure> {
    watch(signals, stop.clone())?;
    // What was started for one export ends with it.
    let one = config.source.is_none();
    if one && let Some(only) = prepared.first_mut() {
        only.failed = Some(stop.clone());
    }
    let daemon = Daemon::new(config.workers, config.workers_max, config.poll, stop)?;
    let daemon = daemon.held_by(held);
    daemon.engine().set_favour(config.favour);
    daemon.engine().set_policy_mode(config.policy);
    let alone = prepared.first_mut().filter(|prepared| prepared.tree.is_some());
    let daemon = match alone {
        Some(prepared) => daemon.alone(prepared.bound_at.take()),
        None => daemon,
    };
    let daemon = Arc::new(daemon);
    for group in config.groups {
        daemon.group_add(group)?;
    }
    for (disk, contents) in config.disks.into_iter().zip(disks) {
        let name = disk.name.clone();
        let added = daemon.add_disk(disk, contents);
        let shown = added.map_err(|error| place(config.source.as_ref(), ("disk", &name), error))?;
        tracing::info!(disk = name, storage = shown.storage.target, "open");
    }
    for (export, prepared) in config.exports.into_iter().zip(prepared) {
        let (name, words) = (export.name.clone(), prepared.listens);
        let added = daemon.add(export, prepared);
        let shown = added.map_err(|error| place(config.source.as_ref(), ("export", &name), error))?;
        let storage = shown.storage.map(|storage| storage.target);
        let serves = storage.or(shown.directory.map(|directory| directory.path)).unwrap_or_default();
        tracing::info!(export = name, socket = shown.socket, serves, "listening");
        if let Some(words) = words {
            tracing::info!("{words}");
        }
    }
    live(&daemon, control, service, Terms { stuck_after: config.stuck_after.0, one }, &stopped)
}

/// On what terms a daemon lives whose exports serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// After how long a request is said to be stuck; zero for never.
    pub(crate) stuck_after: Duration,
    /// It ends when its only export has failed.
    pub(crate) one: bool,
}

/// Lets a daemon be asked and looked after until it is told to end, and ends it.
pub(crate) fn live(
    daemon: &Arc<Daemon>,
    control: Option<ControlSocket>,
    service: &Service,
    terms: Terms,
    stopped: &Receiver<()>,
) -> Result<ExitCode, Failure> {
    let along = control.as_ref().map(ControlSocket::state).transpose();
    let along = along.map_err(|error| Failure::Runtime(format!("control socket: {error}")))?;
    let Terms { stuck_after, one } = terms;
    daemon.jobs.belong_to(daemon);
    daemon.upgrade.set_along(Along { control: along, stuck_after, one });
    let control = control.map(|socket| control::serve(socket, daemon.clone())).transpose();
    let control = control.map_err(|error| Failure::Runtime(error.to_string()))?;
    let stuck = watch::start(daemon, stuck_after)?;
    let placer = placer::start(daemon)?;
    let space = space::start(daemon)?;
    service.ready(&daemon.status_line());
    let watchdog = look_after(service, daemon, control.as_ref())?;
    // An error means that nobody can ask for the end any more, which is an end too.
    let _ = stopped.recv();
    daemon.upgrade.end();
    let failed = one && !daemon.failures().is_empty();
    tracing::info!("stopping: sessions end, requests in flight are finished");
    service.stopping("requests in flight are finished");
    drop((watchdog, stuck, placer, space, control));
    daemon.end_all();
    if !passthrough::closing().is_empty() {
        tracing::warn!("a file of a directory is still being closed: the process ends when its file system answers");
    }
    Ok(if failed { ExitCode::from(EXPORT_FAILED) } else { ExitCode::SUCCESS })
}

/// Lets the service manager's watchdog hear of us while the control API and all workers answer.
fn look_after(
    service: &Service,
    daemon: &Arc<Daemon>,
    control: Option<&ControlServer>,
) -> Result<Option<Watchdog>, Failure> {
    let (workers, said) = (daemon.clone(), daemon.clone());
    let api = control.map(ControlServer::pulse);
    let alive = move || {
        let api_answers = api.as_ref().is_none_or(|api| api.answers(CONTROL_PATIENCE));
        if api_answers { workers.workers_answer() } else { Err("the control API does not answer".to_owned()) }
    };
    let watchdog = service.watch(alive, move || said.status_line());
    watchdog.map_err(|error| Failure::Runtime(format!("cannot start a thread: {error}")))
}

/// Each ring holds up to six descriptors, each extent of a VMDK image two, and the usual soft limit of 1024 is there for programs that use select(2).
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What is refused shows when a descriptor is missing, with its own error.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Says where the disk or the export that was refused stands.
fn place(source: Option<&PathBuf>, (kind, name): (&str, &str), error: control::ApiError) -> Failure {
    let file = source.map_or(String::new(), |path| format!("{}: ", path.display()));
    match Failure::from(error) {
        Failure::Usage(line) => Failure::Usage(format!("{file}{kind} {name}: {line}")),
        Failure::Runtime(line) => Failure::Runtime(format!("{file}{kind} {name}: {line}")),
    }
}

/// Catches SIGTERM, SIGINT and SIGHUP, and keeps them until somebody looks. A write beyond a file size limit (`RLIMIT_FSIZE`), which a
/// guest can make, is an error from here on and no longer the end of the process.
pub(crate) fn signals() -> Result<Signals, Failure> {
    let failed = |error: io::Error| Failure::Runtime(format!("cannot watch for signals: {error}"));
    outlive_file_size_limit().map_err(failed)?;
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    Signals::new([SIGTERM, SIGINT].into_iter().chain(hangup)).map_err(failed)
}

/// Whether whoever has started this process has it ignore the signal, as nohup does (proc(5), `SigIgn`).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Lets a write beyond `RLIMIT_FSIZE` answer EFBIG, as it does when its signal does not end the process. Caught and not ignored:
/// programs that this one starts have the signal as they expect it. SIGPIPE is ignored already, by Rust's runtime.
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Says to `stop` when a signal has come.
pub(crate) fn watch(mut signals: Signals, stop: Sender<()>) -> Result<(), Failure> {
    let watch = move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            if first.is_some_and(|at| at.elapsed() > SAME_SIGNAL) {
                tracing::warn!("a second signal: ending now, with requests in flight");
                std::process::exit(GIVEN_UP);
            }
            first.get_or_insert_with(Instant::now);
            let _ = stop.send(());
        }
    };
    let started = std::thread::Builder::new().name("signals".into()).spawn(watch);
    started.map(drop).map_err(|error| Failure::Runtime(format!("cannot start a thread: {error}")))
}
