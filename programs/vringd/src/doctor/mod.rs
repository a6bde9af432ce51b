//! `vringd doctor`: what of this machine holds a configuration back, who pays for it, and what to type against it.
//!
//! There is a module for each concern. In each, facts are plain data, what is found in them is pure, and what reads them is apart
//! (`read`). What needs a try is tried as the daemon would do it: with its code, and by a thread with its rights ([`trial`]). Nothing is
//! changed, and what does not answer is left behind ([`look`]).

mod cgroup;
mod directories;
mod file_system;
mod finding;
mod images;
mod kernel;
mod libvirt;
mod limits;
mod look;
mod memory;
mod process;
mod sandbox;
mod sockets;
mod subjects;
mod trial;
mod unix_sockets;

use crate::config::Config;
use crate::confinement::Confinement;
use crate::failure::Failure;
use crate::out::Out;
use crate::run::raise_file_limit;
use ::sandbox::State;
use control::model::SandboxInfo;
use engine::Abilities;
use finding::{About, Area, Finding, Level, Report};
use kernel::Refusal;
use look::{Look, Missed};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trial::Trial;

/// What Debian's package and the unit call it.
const USUAL: &str = "/etc/vringd/config.toml";

/// Look what of this machine would hold a configuration back, and change nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Run it as the user who starts the daemon, and under the same limits. Levels, the worst first:
  fails      this configuration cannot be served
  degraded   it is served, with less than was asked for, or until something runs out
  slow       it is served, slower than it could be
  note       worth knowing
Exit status: 0 nothing fails; 1 something fails; 2 the configuration is wrong.")]
pub(crate) struct Args {
    /// The configuration of `vringd serve`, in TOML; without, this machine is looked at for any
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List what was looked at and is good as well
    #[arg(long)]
    verbose: bool,
    /// What the process gives up, over what the configuration says.
    #[command(flatten)]
    confinement: Confinement,
}

/// Runs `vringd doctor`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut config = match &args.config {
        Some(path) => read_config(path)?,
        None => Config::nothing(),
    };
    config.sandbox = args.confinement.over(config.sandbox);
    config.sandbox.check().map_err(Failure::Usage)?;
    raise_file_limit();
    let mut found = look_at(&config)?;
    if args.config.is_none() {
        found.extend(usual(Path::new(USUAL)));
    }
    let report = Report::new(args.config.map(|path| path.display().to_string()), found, args.verbose);
    Out { json: args.json }.print(&report, Report::words)?;
    Ok(if report.serves() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A file or a pipe that does not answer is as wrong as one that is not there.
fn read_config(path: &Path) -> Result<Config, Failure> {
    let whole = path.to_owned();
    let read = Look::begin("look-config", move || Config::read(&whole));
    read.answer().unwrap_or_else(|why| Err(Failure::Usage(format!("{}: {why}", path.display()))))
}

/// All that is found.
fn look_at(config: &Config) -> Result<Vec<Finding>, Failure> {
    let daemon = sockets::read::daemon(config);
    // What refuses the whole configuration is told of before anything is looked at.
    let plan = Trial::new(config, &[], &[])?;
    let (images, mut missed) = images::read::read(config, daemon);
    let (sockets, missed_sockets) = sockets::read::read(plan.config(), plan.becomes());
    missed.extend(missed_sockets);
    missed.extend(directories::read::missed(config));
    // What is not there would keep a thread from its sandbox, what hangs would hold it up, and both are told of.
    let late: Vec<_> = missed.iter().map(|finding| finding.subject.clone()).collect();
    let refused_images = images.iter().filter(|it| it.refusal.is_some()).map(|it| it.subject.clone());
    let refused_sockets = sockets.iter().filter(|it| it.refusal.is_some()).map(|it| it.subject.clone());
    let trial = Trial::new(config, &refused_images.chain(refused_sockets).collect::<Vec<_>>(), &late)?;
    let (held, uring) = match try_as_daemon(&trial) {
        Ok((held, uring)) => (Some(held), Some(uring)),
        Err(why) => {
            let machine = About::machine(Area::Sandbox);
            let seen = format!("a thread in the daemon's place {why}: a directory of `allow`, perhaps");
            missed.push(machine.costs(Level::Degraded, "answers", seen, "`vringd serve` would wait there as well"));
            (None, None)
        }
    };
    let (directories, missed_directories) = directories::read::read(&trial);
    missed.extend(missed_directories);
    let who = held.iter().flatten().map(|held| (held.capabilities.clone(), held.uid)).next();
    let (capabilities, uid) = who.unwrap_or_else(own);
    let limits = limits::read::read(config, &capabilities, uid);
    let demand = limits::Demand::of(config, limits.cpus);

    let mut found = Vec::new();
    if let Some(uring) = uring {
        found.extend(kernel::findings(&kernel::read::read(uring)));
    }
    found.extend(limits::findings(&limits, &demand));
    found.extend(memory::findings(&memory::read::read(config), &demand));
    found.extend(sandbox::findings(&sandbox::read::read(config, held)));
    found.extend(images::findings(&images));
    found.extend(directories::findings(&directories));
    found.extend(sockets::findings(&sockets, daemon));
    found.extend(missed);
    found.extend(libvirt::findings(&libvirt::read::read()));
    Ok(found)
}

/// The rights of whoever asks.
fn own() -> (Vec<String>, u32) {
    let uid = rustix::process::geteuid().as_raw();
    State::of_thread().map_or((Vec::new(), uid), |state| (state.capabilities, state.uid))
}

/// What holds a daemon, or why nothing can; and what its workers have.
type Tried = (Result<SandboxInfo, String>, Result<Abilities, Refusal>);

/// Tries both, by a thread in the daemon's place.
fn try_as_daemon(trial: &Trial) -> Result<Tried, Missed> {
    let inside = trial.clone();
    let tried = Look::begin("look-daemon", move || {
        let held = inside.enter().map_err(|failure| failure.to_string());
        let held = held.and_then(|held| held.shown().map_err(|error| error.to_string()));
        (held, kernel::read::try_uring(inside.config().workers))
    });
    tried.answer()
}

/// A configuration that the caller may have meant.
fn usual(path: &Path) -> Option<Finding> {
    path.exists().then(|| {
        let seen = format!("{} was not looked at", path.display());
        let cost = "images, directories and sockets of the service are not among the findings";
        About::machine(Area::Limits)
            .costs(Level::Note, "configuration", seen, cost)
            .fix(format_args!("vringd doctor {}", finding::word(path)))
    })
}
