//! A site made of the lab, small experiments on it, and a look at what is left behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs, process};

use experiments::experiment::{
    Configuration, Data, DropCaches, Experiment, Guest, Medium, Order, Place, Quick, Server, ServerKind, Workload,
};
use experiments::stand::{Limits, Programs, Site};
use guest::lab::{Lab, Turn};
use tempfile::TempDir;

/// Everything of a test, in a directory of its own. Held while it runs, as is the lab.
pub(crate) struct Bench {
    pub(crate) site: Site,
    _alone: MutexGuard<'static, ()>,
    _turn: Turn,
    directory: TempDir,
    _memory: TempDir,
    before: Vec<PathBuf>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        // Of two tests in one process, neither would know whose a directory is.
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Lab::take_turn();
        let directory = TempDir::with_prefix("vs-").unwrap();
        let memory = TempDir::with_prefix_in("vs-", "/dev/shm").unwrap();
        let part = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let site = Site {
            kit: turn.kit(),
            vringd: vringd(),
            data: part("data"),
            memory: memory.path().to_owned(),
            scratch: part("scratch"),
            programs: Programs::find(&Programs::default(), Some(&turn.programs())),
            ssh: None,
            limits: Limits { slack: Duration::from_secs(30), ..Limits::default() },
        };
        Self { site, _alone: alone, _turn: turn, before: temporary(), directory, _memory: memory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Nothing of a stand is left: no process, no socket, no mount, no directory.
    pub(crate) fn assert_nothing_left(&self) {
        let scratch = self.site.scratch.to_str().unwrap();
        let left: Vec<_> = fs::read_dir(scratch).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "left in the directory for sockets: {left:?}");
        let processes = processes(self.path());
        assert!(processes.is_empty(), "left running: {processes:?}");
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!sockets.contains(scratch), "a socket is left");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(scratch), "a mount is left");
        let now = temporary();
        let new: Vec<_> = now.iter().filter(|path| !self.before.contains(path)).collect();
        assert!(new.is_empty(), "temporary directories are left: {new:?}");
    }
}

/// Directories of this process' guests in the directory for temporary files.
fn temporary() -> Vec<PathBuf> {
    let prefix = format!("vringd-guest-{}-", process::id());
    let entries = fs::read_dir(env::temp_dir()).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)).collect()
}

/// Processes that were told of a path: servers of their socket, guests of their device.
pub(crate) fn processes(path: &Path) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        // It may end while we look, and one that has ended has no command line.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(path.to_str().unwrap()) {
            found.push((id, line));
        }
    }
    found
}

/// The program beside the tests, as in the guest tests.
fn vringd() -> PathBuf {
    if let Some(program) = env::var_os("VRINGD_BIN") {
        return PathBuf::from(program);
    }
    let running = env::current_exe().unwrap();
    let place = running.ancestors().skip(1).find(|directory| !directory.ends_with("deps")).unwrap();
    let program = place.join("vringd");
    assert!(program.exists(), "{} is not there: run `cargo build -p vringd` or set VRINGD_BIN", program.display());
    program
}

/// A short experiment: a quarter of a second, after a tenth.
pub(crate) fn experiment(configuration: &Configuration) -> Experiment {
    Experiment {
        name: "test".into(),
        title: String::new(),
        claim: String::new(),
        source: String::new(),
        rounds: 1,
        order: Order::Fixed,
        time_s: 0.25,
        warm_up_s: 0.1,
        // The machine's own caches are the machine's, which others use meanwhile.
        drop_caches: DropCaches::Guest,
        baseline: configuration.name.clone(),
        configurations: vec![configuration.clone()],
        workloads: Vec::new(),
        published: None,
        quick: Quick::default(),
    }
}

pub(crate) fn configuration(
    place: Place,
    kind: ServerKind,
    options: &[&str],
    data: (Medium, u32, u64),
) -> Configuration {
    let (medium, files, size_mib) = data;
    Configuration {
        name: format!("{place:?}-{kind:?}"),
        labels: BTreeMap::new(),
        values: BTreeMap::new(),
        baseline: None,
        place,
        server: Server { kind, options: options.iter().map(|option| (*option).to_owned()).collect() },
        data: Data { medium, files, size_mib },
        guest: Guest { memory_mib: 256, ..Guest::default() },
        unsupported: None,
    }
}

pub(crate) fn fio(name: &str, files: u32, options: &[(&str, &str)]) -> Workload {
    Workload {
        name: name.into(),
        labels: BTreeMap::new(),
        fio: map(options),
        files,
        own_files: 0,
        frontend: BTreeMap::new(),
    }
}

pub(crate) fn own_files(name: &str, own_files: u32, options: &[(&str, &str)]) -> Workload {
    Workload { own_files, ..fio(name, 1, options) }
}

pub(crate) fn frontend(name: &str, options: &[(&str, &str)]) -> Workload {
    Workload { frontend: map(options), ..fio(name, 1, &[]) }
}

fn map(options: &[(&str, &str)]) -> BTreeMap<String, String> {
    options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}
