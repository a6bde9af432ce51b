//! The life of the daemon: start everything or nothing, serve, end on a signal.

use crate::config::Config;
use crate::convert;
use crate::daemon::Daemon;
use crate::failure::Failure;
use control::Daemon as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Serves until SIGTERM, SIGINT or a shutdown by the API.
pub(crate) fn run(config: Config) -> Result<ExitCode, Failure> {
    raise_file_limit();
    let (stop, stopped) = channel();
    watch_signals(stop.clone())?;
    let daemon = Daemon::new(config.workers, config.workers_max, convert::poll_in(config.poll), stop)?;
    let daemon = Arc::new(daemon);
    for export in config.exports {
        let name = export.name.clone();
        let shown = daemon.add_export(export).map_err(|error| place(config.source.as_ref(), &name, error))?;
        let storage = shown.storage.map(|storage| storage.target);
        let serves = storage.or(shown.directory.map(|directory| directory.path)).unwrap_or_default();
        tracing::info!(export = name, socket = shown.socket, serves, "listening");
    }
    let control = match &config.control {
        Some(path) => Some(control::start(path, daemon.clone()).map_err(|error| Failure::Usage(error.to_string()))?),
        None => None,
    };
    // An error means that nobody can ask for the end any more, which is an end too.
    let _ = stopped.recv();
    tracing::info!("stopping: sessions end, requests in flight are finished");
    drop(control);
    daemon.end_exports();
    Ok(ExitCode::SUCCESS)
}

/// Each ring holds up to six descriptors, and the usual soft limit of 1024 is there for programs that use select(2).
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What is refused shows when a descriptor is missing, with its own error.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Says where the export that was refused stands.
fn place(source: Option<&PathBuf>, name: &str, error: control::ApiError) -> Failure {
    let file = source.map_or(String::new(), |path| format!("{}: ", path.display()));
    match Failure::from(error) {
        Failure::Usage(line) => Failure::Usage(format!("{file}export {name}: {line}")),
        Failure::Runtime(line) => Failure::Runtime(format!("{file}export {name}: {line}")),
    }
}

fn watch_signals(stop: Sender<()>) -> Result<(), Failure> {
    let failed = |error| Failure::Runtime(format!("cannot watch for signals: {error}"));
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let watch = move || {
        // A second signal while exports drain finds nobody waiting, and that is fine: the first is being obeyed.
        for _ in signals.forever() {
            let _ = stop.send(());
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(failed)?;
    Ok(())
}
