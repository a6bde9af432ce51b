//! The first acts of a program that goes on with what another one served.

use super::check::Understood;
use super::descriptors::Incoming;
use super::perform::end_signals;
use super::state::{self, State};
use super::{Low, Past, envelope, restore};
use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::run;
use crate::service::{Service, Watchdog, take_descriptor};
use control::model::Takeover;
use control::{ControlSocket, ControlSocketState};
use engine::monotonic_ns;
use export::{LogicalUnitName, UnitCondition};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long sessions may take to go on. They open nothing and wait for nobody.
const RESUME_PATIENCE: Duration = Duration::from_secs(30);

/// After how long it is no longer believed that exports are still being made again.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(300);

/// Arguments of `vringd adopt`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Descriptor of the state
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    state_fd: i32,
    /// Only say whether it can be read
    #[arg(long)]
    check: bool,
}

/// Goes on with the state, until it is told to end.
pub(crate) fn run(args: &Args, start_log: impl FnOnce() -> Result<(), Failure>) -> Result<ExitCode, Failure> {
    let number = args.state_fd;
    let memory = (number >= 0).then(|| take_descriptor(number)).flatten();
    let memory = memory.ok_or_else(|| Failure::Usage(format!("--state-fd: descriptor {number} is not open")))?;
    let (state, version) =
        envelope::read(&memory, number).map_err(|error| Failure::Usage(format!("--state-fd: {error}")))?;
    if args.check {
        check_again(&state).map_err(Failure::Usage)?;
        let understood = serde_json::to_string(&Understood::version(version));
        println!("{}", understood.map_err(|error| Failure::Runtime(error.to_string()))?);
        return Ok(ExitCode::SUCCESS);
    }
    drop(memory);
    // Handlers first: signals have waited for them.
    let signals = run::signals()?;
    let _ = end_signals().thread_unblock();
    start_log()?;
    go_on(state, signals)
}

/// Whether storages are understood that are to be opened again.
fn check_again(state: &State) -> Result<(), String> {
    let own =
        state.exports.iter().map(|it| (it.description.storage.as_ref(), it.storage.as_ref(), &it.description.name));
    let apart = state.disks.iter().map(|it| (Some(&it.description.storage), Some(&it.storage), &it.description.name));
    for (described, kept, name) in own.chain(apart) {
        if let (Some(described), Some(again)) = (described, kept.and_then(|kept| kept.again.as_ref())) {
            described.check_again(again).map_err(|error| format!("disk {name}: {error}"))?;
        }
    }
    Ok(())
}

fn go_on(mut state: State, signals: signal_hook::iterator::Signals) -> Result<ExitCode, Failure> {
    let lost = |what: &str, error: &dyn std::fmt::Display| Failure::Runtime(format!("upgrade: {what}: {error}"));
    let incoming = Incoming::new(&state.descriptors).and_then(|mut incoming| {
        for (name, directory) in
            state.exports.iter().filter_map(|it| Some((&it.description.name, it.directory.as_ref()?)))
        {
            let meaning = format!("a file of {name}");
            directory.tree.descriptors.iter().try_for_each(|number| incoming.add(*number, &meaning))?;
        }
        Ok(incoming)
    });
    let mut incoming = incoming.map_err(|error| lost("state", &error))?;
    // Behind those that went along, which have their numbers.
    let _low = Low::keep();
    let told = channel();
    run::watch(signals, told.0.clone())?;
    let service = Service::connect();
    let control = state.control.take().map(|socket| control_socket(socket, &mut incoming)).transpose();
    let control = control.map_err(|error| lost("control socket", &error))?;
    let daemon = Arc::new(daemon(&state, told.0.clone()).map_err(|error| lost("daemon", &error))?);
    let busy = taking_over(&service).map_err(|error| lost("service manager", &error))?;
    let takeover = resume(&daemon, &mut state, &mut incoming, &told.0);
    drop(busy);
    for line in &takeover.lost {
        tracing::error!("lost in the upgrade: {line}");
    }
    let (pause_us, sessions, rings) = (takeover.pause_us, takeover.sessions, takeover.rings);
    tracing::info!(from = takeover.from, to = env!("CARGO_PKG_VERSION"), pause_us, sessions, rings, "upgraded");
    daemon.upgrade.set_past(Past { upgrades: state.upgrades, takeover });
    // What was not taken by now belongs to nobody.
    incoming.end();
    run::live(&daemon, control, &service, run::Terms { stuck_after: state.stuck_after.0, one: state.one }, &told.1)
}

/// Lets the service manager's watchdog hear of us meanwhile: a guest may know millions of files, which take seconds a million.
fn taking_over(service: &Service) -> std::io::Result<Option<Watchdog>> {
    let end = Instant::now() + TAKE_OVER_PATIENCE;
    let alive = move || if Instant::now() < end { Ok(()) } else { Err("it takes too long to take over".to_owned()) };
    service.watch(alive, || "taking over from another program".to_owned())
}

/// The daemon with its workers, and without exports.
fn daemon(state: &State, stop: Sender<()>) -> Result<Daemon, String> {
    let started = Instant::now().checked_sub(Duration::from_nanos(monotonic_ns().saturating_sub(state.started_ns)));
    let daemon = Daemon::new(0, state.workers_max, engine::Poll::default(), stop);
    let daemon = daemon.map_err(|error| error.to_string())?.held_by(state.held.clone());
    daemon.engine().set_favour(state.favour);
    daemon.engine().set_policy_mode(state.policy);
    for worker in &state.workers {
        let start = || -> Result<(), String> {
            let (spec, poll) = (restore::worker(worker), worker.poll);
            let started = daemon.engine().worker_again(worker.number, &worker.owner, spec, poll);
            started.map_err(|error| error.to_string())
        };
        start().map_err(|error| format!("worker {}: {error}", worker.number))?;
    }
    for group in &state.groups {
        daemon.groups.add(group.clone()).map_err(|error| error.to_string())?;
    }
    let daemon = if state.alone { daemon.alone(None) } else { daemon };
    Ok(daemon.since(started.unwrap_or_else(Instant::now)))
}

fn control_socket(socket: state::Socket, incoming: &mut Incoming) -> Result<ControlSocket, String> {
    let state::SocketFile { path, device, inode } = socket.file.ok_or("it has no place")?;
    let socket = incoming.take(socket.fd)?;
    ControlSocket::adopt(ControlSocketState { socket, path, device, inode }).map_err(|error| error.to_string())
}

/// Lets the exports go on, and says how that went. One that cannot is left behind; the others are not.
fn resume(daemon: &Daemon, state: &mut State, incoming: &mut Incoming, stop: &Sender<()>) -> Takeover {
    let mut lost = Vec::new();
    for state::Reservations { disk, export, bytes } in std::mem::take(&mut state.reservations) {
        let what = format!("reservations of disk {disk}");
        let left = daemon.logical_units.leave_reservations(LogicalUnitName { disk, export }, &bytes);
        lost.extend(left.err().map(|error| format!("{what}: {error}")));
    }
    for unit in std::mem::take(&mut state.units) {
        let state::Unit { disk, export, write_cache, descriptor_sense, stopped, space_is_low, attentions } = unit;
        let condition = UnitCondition { write_cache, descriptor_sense, stopped, space_is_low, attentions };
        daemon.logical_units.leave_condition(LogicalUnitName { disk, export }, condition);
    }
    for disk in std::mem::take(&mut state.disks) {
        let description = disk.description.clone();
        let name = description.name.clone();
        let kept = restore::disk(&disk, incoming);
        let begun = kept.and_then(|kept| daemon.add_disk(description, kept).map_err(|error| error.to_string()));
        lost.extend(begun.err().map(|error| format!("disk {name}: {error}")));
    }
    expect_units(daemon, &state.exports);
    let mut sessions = Vec::new();
    for export in std::mem::take(&mut state.exports) {
        let (name, session) = (export.description.name.clone(), export.session.is_some());
        let (resumed, fate) = channel();
        let description = export.description.clone();
        let begun = restore::export(export, incoming, resumed).and_then(|mut prepared| {
            prepared.failed = state.one.then(|| stop.clone());
            daemon.add(description, prepared).map(drop).map_err(|error| error.to_string())
        });
        match begun {
            Ok(()) if session => sessions.push((name, fate)),
            Ok(()) => {}
            Err(error) => lost.push(format!("export {name}: {error}")),
        }
    }
    daemon.logical_units.expect_no_more();
    let (mut resumed, mut rings) = (0, 0);
    let end = Instant::now() + RESUME_PATIENCE;
    for (name, fate) in sessions {
        match outcome(&fate, end) {
            Ok(count) => (resumed, rings) = (resumed + 1, rings + count),
            Err(error) => lost.push(format!("session of {name}: {error}")),
        }
    }
    let pause_us = monotonic_ns().saturating_sub(state.paused_ns) / 1000;
    Takeover { from: state.program.clone(), pause_us, sessions: resumed, rings, lost }
}

/// Guests that go on before others do see the shared disks of these as they were.
fn expect_units(daemon: &Daemon, exports: &[state::Export]) {
    for export in exports {
        for unit in &export.description.luns {
            if daemon.disks.get(&unit.disk).is_ok_and(|(disk, _)| disk.is_shared()) {
                daemon.logical_units.expect(&unit.disk, export.port.unwrap_or(1));
            }
        }
    }
}

/// How a session went on.
fn outcome(fate: &Receiver<Result<usize, String>>, end: Instant) -> Result<usize, String> {
    let answer = fate.recv_timeout(end.saturating_duration_since(Instant::now()));
    answer.unwrap_or_else(|_| Err("its thread does not answer".to_owned()))
}
