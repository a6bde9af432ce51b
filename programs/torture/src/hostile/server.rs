//! The servers under attack. Each serves a quiet disk and, in the same process, what is attacked.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Report, Rw, Spec};
use clap::ValueEnum;
use control::client::Client;
use control::model::Export;
use guest::lab::Lab;
use guest::process::Group;
use guest::usage;
use tempfile::TempDir;

use super::session::Device;

const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(30);
/// How long what must show in the API is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the quiet disk may do nothing: seconds, where it takes microseconds.
const QUIET_LIMIT: Duration = Duration::from_secs(10);
/// Requests by which the quiet disk shows that it is served.
const QUIET_REQUESTS: u64 = 100;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
const DISK_BYTES: u64 = 16 << 20;

/// A program that is attacked.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Program {
    /// This project's.
    Vringd,
    /// QEMU's, from the lab.
    #[value(name = "qemu-storage-daemon")]
    StorageDaemon,
}

impl Program {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vringd => "vringd",
            Self::StorageDaemon => "qemu-storage-daemon",
        }
    }

    /// What it can serve.
    pub(crate) fn devices(self) -> &'static [Device] {
        match self {
            Self::Vringd => &[Device::Disk, Device::Directory, Device::P9, Device::Scsi],
            Self::StorageDaemon => &[Device::Disk],
        }
    }
}

/// A running server, with a verified load on its quiet disk.
#[derive(Debug)]
pub(crate) struct Server {
    program: Program,
    // Before the load, which then need not find out by itself that nobody answers any more.
    process: Group,
    quiet: Option<Load>,
    files: TempDir,
}

impl Server {
    /// Starts `program` (where it is this project's, the one at `vringd`) and the load. What stands behind the attacked
    /// disk changes with the round.
    pub(crate) fn start(program: Program, vringd: &Path, round: u64, seed: u64) -> Result<Self> {
        let files = TempDir::with_prefix("vringd-hostile-")?;
        let image = |name: &str| -> Result<PathBuf> {
            let path = files.path().join(name);
            File::create(&path)?.set_len(DISK_BYTES)?;
            Ok(path)
        };
        let attacked = [image("attacked.img")?, image("scsi.img")?];
        let command = match program {
            Program::Vringd => serve(vringd, files.path(), attacked.each_ref().map(PathBuf::as_path), round)?,
            Program::StorageDaemon => storage_daemon(files.path(), &image("quiet.img")?, &attacked[0])?,
        };
        // Any user may come as far as its sockets.
        fs::set_permissions(files.path(), Permissions::from_mode(0o711))?;
        let process = Group::start(&command, &files.path().join("server.log"))?;
        let mut server = Self { program, quiet: None, process, files };
        let quiet = server.files.path().join("quiet.sock");
        let mut sockets = vec![quiet.clone()];
        sockets.extend(program.devices().iter().map(|device| server.socket(*device)));
        server.process.wait_for_sockets(START_LIMIT, &sockets)?;
        let spec = Spec {
            rw: Rw::RandRw,
            mix: 50,
            depth: 8,
            verify: true,
            seed,
            server_pid: Some(server.process.id()),
            ..Spec::default()
        };
        let start = Instant::now();
        // Its socket may be there before anybody listens on it.
        let load = loop {
            match Load::start(&quiet, &spec) {
                Err(_) if start.elapsed() < START_LIMIT && server.process.is_running()? => {
                    thread::sleep(LOOK_AGAIN_AFTER);
                }
                load => break load.with_context(|| format!("the server said:\n{}", server.process.output()))?,
            }
        };
        server.quiet = Some(load);
        Ok(server)
    }

    /// Where an attack on an export goes.
    pub(crate) fn socket(&self, device: Device) -> PathBuf {
        self.files.path().join(format!("{}.sock", device.name()))
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        if self.process.is_running()? {
            return Ok(None);
        }
        Ok(Some(how(self.process.wait(END_LIMIT)?)))
    }

    /// What it said, or the end of that.
    pub(crate) fn output(&self) -> String {
        self.process.output()
    }

    /// Descriptors that it has open.
    pub(crate) fn descriptors(&self) -> Result<usize> {
        Ok(usage::descriptors(self.process.id())?)
    }

    /// Memory of its own, in KiB: that of guests is not.
    pub(crate) fn memory_kib(&self) -> Result<u64> {
        usage::own_memory_kib(self.process.id())
    }

    /// Whether the quiet disk goes on being served.
    pub(crate) fn quiet_goes_on(&mut self) -> Result<()> {
        let quiet = self.quiet.as_mut().context("the quiet disk has no load")?;
        let wanted = quiet.snapshot().ops + QUIET_REQUESTS;
        let start = Instant::now();
        while quiet.snapshot().ops < wanted {
            ensure!(!quiet.is_finished(), "the load on the other disk has ended");
            ensure!(start.elapsed() < QUIET_LIMIT, "the other disk is served no more");
            thread::sleep(LOOK_AGAIN_AFTER);
        }
        Ok(())
    }

    /// Why a ring of an export is broken, as soon as the API says so. `None` when it does not, or there is no API.
    pub(crate) fn broken(&self, device: Device) -> Option<String> {
        let client = Client::new(self.files.path().join("control.sock")).ok()?;
        let start = Instant::now();
        loop {
            let export: Export = client.get(&format!("/v1/exports/{}", device.name())).ok()?;
            if let Some(why) = export.rings.into_iter().find_map(|ring| ring.broken) {
                return Some(why);
            }
            if start.elapsed() > PATIENCE {
                return None;
            }
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    /// The rings of all exports, as the API shows them: their states, and what they have taken and not answered.
    pub(crate) fn rings(&self) -> String {
        let Ok(client) = Client::new(self.files.path().join("control.sock")) else { return String::new() };
        let exports: Vec<Export> = match client.get("/v1/exports") {
            Ok(exports) => exports,
            Err(error) => return format!("its control socket says {error}"),
        };
        let mut said = String::new();
        for export in exports {
            for ring in &export.rings {
                let figures = &ring.figures;
                let requests: u64 = figures.requests.values().sum();
                let broken = ring.broken.as_ref().map_or_else(String::new, |why| format!(", broken: {why}"));
                let oldest =
                    figures.oldest_in_flight_ms.map_or_else(String::new, |ms| format!(", the oldest for {ms} ms"));
                said += &format!(
                    "\n{} ring {}: {:?}, worker {:?}, {requests} requests, {} in flight{oldest}, {} kicks, {} \
                     notifications{broken}",
                    export.name,
                    ring.index,
                    ring.state,
                    ring.worker,
                    figures.in_flight,
                    figures.kicks,
                    figures.notifications_sent
                );
            }
        }
        said
    }

    /// Ends the load and then the server, which must end well.
    pub(crate) fn finish(mut self) -> Result<Report> {
        let quiet = self.quiet.take().context("the quiet disk has no load")?;
        let report = quiet.finish().context("the load on the other disk")?;
        let status = self.process.terminate(END_LIMIT)?;
        let peer = self.program != Program::Vringd;
        ensure!(peer || status.success(), "the server ended with {}; it said:\n{}", how(status), self.output());
        Ok(report)
    }
}

/// `vringd serve` with one worker for the quiet disk, the attacked disk, the attacked directories and the attacked SCSI device.
fn serve(program: &Path, directory: &Path, images: [&Path; 2], round: u64) -> Result<Command> {
    let shown = |path: &Path| path.to_str().map(str::to_owned).context("temporary directories are UTF-8");
    let place = shown(directory)?;
    let storage = |image: &Path| {
        let image = shown(image)?;
        Ok::<_, anyhow::Error>(match round % 3 {
            0 => "{ kind = 'memory', size = '16M' }".to_owned(),
            1 => format!("{{ kind = 'file', path = '{image}' }}"),
            _ => format!("{{ kind = 'file', path = '{image}', execution = 'pool=2' }}"),
        })
    };
    let [storage, scsi] = images.map(storage);
    let (storage, scsi) = (storage?, scsi?);
    let shared = directory.join("shared");
    fs::create_dir(&shared)?;
    fs::write(shared.join("a"), "content")?;
    let config = format!(
        "control = '{place}/control.sock'\nworkers = 1\n\
         [[export]]\nname = 'quiet'\nsocket = '{place}/quiet.sock'\nqueues = 1\n\
         storage = {{ kind = 'memory', size = '16M' }}\n\
         [[export]]\nname = 'disk'\nsocket = '{place}/disk.sock'\nqueues = 4\nwrite_cache = 'guest'\nstorage = {storage}\n\
         [[export]]\nname = 'directory'\nkind = 'dir'\nsocket = '{place}/directory.sock'\nqueues = 2\n\
         directory = {{ path = '{place}/shared' }}\n\
         [[export]]\nname = '9p'\nkind = 'dir'\nsocket = '{place}/9p.sock'\nqueues = 2\n\
         directory = {{ path = '{place}/shared', protocol = '9p' }}\n\
         [[disk]]\nname = 'scsi'\nstorage = {scsi}\nreservations = '{place}/scsi.reservations'\n\
         [[disk]]\nname = 'spare'\nstorage = {{ kind = 'memory', size = '16M' }}\n\
         [[export]]\nname = 'scsi'\nkind = 'scsi'\nsocket = '{place}/scsi.sock'\nqueues = 2\nwrite_cache = 'guest'\n\
         luns = [{{ lun = 0, disk = 'scsi' }}, {{ lun = 1, disk = 'spare' }}]\n"
    );
    let path = directory.join("config.toml");
    fs::write(&path, config)?;
    let mut command = Command::new(program);
    command.arg("serve").arg(path);
    Ok(command)
}

/// `qemu-storage-daemon` with two disks. One queue each: with more it has been seen to end without any attack.
fn storage_daemon(directory: &Path, quiet: &Path, attacked: &Path) -> Result<Command> {
    let lab = Lab::find().context("qemu-storage-daemon comes from the lab: run `cargo xtask lab`")?;
    let mut command = Command::new(lab.program("qemu-storage-daemon"));
    for (name, image) in [("quiet", quiet), ("disk", attacked)] {
        let mut blockdev = OsString::from(format!("driver=file,node-name={name},discard=unmap,filename="));
        blockdev.push(image);
        let mut export = OsString::from(format!(
            "type=vhost-user-blk,id=export-{name},node-name={name},num-queues=1,writable=on,addr.type=unix,addr.path="
        ));
        export.push(directory.join(format!("{name}.sock")));
        command.arg("--blockdev").arg(blockdev).arg("--export").arg(export);
    }
    Ok(command)
}

/// How a process ended, in a few words.
fn how(status: ExitStatus) -> String {
    let name = |signal| match signal {
        libc::SIGABRT => "SIGABRT".to_owned(),
        libc::SIGBUS => "SIGBUS".to_owned(),
        libc::SIGKILL => "SIGKILL".to_owned(),
        libc::SIGPIPE => "SIGPIPE".to_owned(),
        libc::SIGSEGV => "SIGSEGV".to_owned(),
        libc::SIGSYS => "SIGSYS".to_owned(),
        other => format!("signal {other}"),
    };
    match status.signal() {
        Some(signal) => name(signal),
        None => format!("exit status {}", status.code().unwrap_or_default()),
    }
}
