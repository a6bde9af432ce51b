//! Servers as processes: started, waited for until they listen, measured, ended.

mod storage_daemon;
mod virtiofsd;
mod vringd;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use guest::process::Group;
use guest::usage;

use super::trouble::{one_line, reason};
use super::{Data, Site, Trouble};
use crate::experiment::{self, Medium, ServerKind};

/// `sockaddr_un` has room for so many bytes and a zero (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The flag of a listening socket in `/proc/net/unix` (`__SO_ACCEPTCON` of the kernel's `include/linux/net.h`).
const LISTENING: &str = "00010000";

/// What a server is told by the suite; everything else comes from the experiment.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) server: &'a experiment::Server,
    /// Where its data lies; `None` when it makes it up.
    pub(super) data: Option<&'a Data>,
    pub(super) medium: Medium,
    pub(super) queues: u16,
    pub(super) tag: &'a str,
    /// A directory for its socket and its log.
    pub(super) scratch: &'a Path,
    /// Whether it is bound to one NUMA node.
    pub(super) one_node: bool,
}

/// A server that was started. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    command: Command,
    process: Group,
    socket: PathBuf,
    log: PathBuf,
    limit: Duration,
    /// What has its figures and takes its orders, where that is needed.
    control: Option<Control>,
    /// It ends with its first frontend.
    serves_one: bool,
    /// It has had one.
    used: bool,
}

/// The control socket of a server of ours.
#[derive(Debug)]
struct Control {
    vringd: PathBuf,
    socket: PathBuf,
    /// What a call said.
    log: PathBuf,
}

impl Control {
    fn new(site: &Site, scratch: &Path) -> Self {
        Self { vringd: site.vringd.clone(), socket: control_socket(scratch), log: scratch.join("ctl.log") }
    }
}

fn control_socket(scratch: &Path) -> PathBuf {
    scratch.join("control")
}

impl Server {
    /// Starts the server of a configuration, if it has one in a process of its own.
    pub(super) fn start(site: &Site, order: &Order<'_>) -> Result<Option<Self>, Trouble> {
        let socket = order.scratch.join("socket");
        for path in [&socket, &control_socket(order.scratch)] {
            if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                return Err(Trouble::Failed(format!(
                    "{}: too long for a socket's path, which has {SOCKET_PATH_BYTES_MAX} bytes",
                    path.display()
                )));
            }
        }
        let (name, line) = match order.server.kind {
            ServerKind::None | ServerKind::QemuVirtioBlk | ServerKind::Qemu9p => return Ok(None),
            ServerKind::VringdDisk | ServerKind::VringdScsi => ("vringd", vringd::disk(site, order, &socket)?),
            ServerKind::VringdDir | ServerKind::Vringd9p => ("vringd", vringd::directory(site, order, &socket)?),
            ServerKind::Virtiofsd => ("virtiofsd", virtiofsd::line(site, order, &socket)?),
            ServerKind::QemuStorageDaemon => ("qemu-storage-daemon", storage_daemon::line(site, order, &socket)?),
        };
        let log = order.scratch.join("server.log");
        let limit = site.limits.server;
        let mut command = Command::new(line.first().ok_or_else(|| Trouble::Failed(format!("{name} has no program")))?);
        command.args(line.iter().skip(1));
        if order.one_node {
            let bound = guest::numa::bind(&command);
            command = bound.map_err(|error| Trouble::Unsupported(one_line(&format!("{error:#}"))))?;
        }
        let process = launch(name, &command, &socket, &log, limit)?;
        let control = order.server.has_log().then(|| Control::new(site, order.scratch));
        let serves_one = order.server.kind == ServerKind::Virtiofsd;
        Ok(Some(Self { name, command, process, socket, log, limit, control, serves_one, used: false }))
    }

    /// For the next frontend: starts it again if it has ended, or is about to.
    pub(super) fn revive(&mut self) -> Result<(), Trouble> {
        if self.serves_one && self.used {
            // It takes a moment to notice. What does not end is still there for the next one.
            let _ended = self.process.wait(self.limit);
        }
        self.used = true;
        if !self.is_running() {
            self.process = launch(self.name, &self.command, &self.socket, &self.log, self.limit)?;
        }
        Ok(())
    }

    /// Waits until what it holds in memory is written to its data.
    pub(super) fn write_back(&self, limit: Duration) -> Result<(), Trouble> {
        let Some(control) = &self.control else { return Ok(()) };
        let mut command = Command::new(&control.vringd);
        command.arg("ctl").arg("--control").arg(&control.socket).args(["export", "sync", vringd::EXPORT]);
        let mut process = Group::start(&command, &control.log).map_err(|error| Trouble::failed(&error))?;
        match process.wait(limit) {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Trouble::Failed(format!("writing the volume back: {}", one_line(reason(&process.output()))))),
            Err(error) => Err(Trouble::failed(&error).context("writing the volume back")),
        }
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The id of its process.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has not ended.
    pub(super) fn is_running(&mut self) -> bool {
        self.process.is_running().unwrap_or(false)
    }

    /// Processor time so far, all threads and children, in s.
    pub(super) fn cpu_s(&self) -> Option<f64> {
        usage::cpu_s_of_tree(self.process.id())
    }

    /// That it has ended, and what it said last.
    pub(super) fn epitaph(&self) -> String {
        epitaph(self.name, &self.process)
    }

    /// Ends it politely, and by force if it does not listen to that.
    pub(super) fn end(mut self, limit: Duration) {
        // After the limit it is killed, and one that ends with an error has served us all the same.
        let _status = self.process.terminate(limit);
        let _absent = fs::remove_file(&self.socket);
    }
}

fn epitaph(name: &str, process: &Group) -> String {
    match reason(&process.output()) {
        "" => format!("{name} ended and said nothing"),
        said => format!("{name} ended: {}", one_line(said)),
    }
}

fn launch(name: &str, command: &Command, socket: &Path, log: &Path, limit: Duration) -> Result<Group, Trouble> {
    // A server that was killed leaves its socket.
    let _absent = fs::remove_file(socket);
    let mut process = Group::start(command, log).map_err(|error| Trouble::failed(&error))?;
    match process.wait_until(limit, |_| is_listening(socket)) {
        Ok(()) => Ok(process),
        Err(_) if process.is_running().unwrap_or(false) => {
            Err(Trouble::Failed(format!("{name} did not listen within {} s", limit.as_secs())))
        }
        Err(_) => Err(Trouble::Failed(epitaph(name, &process))),
    }
}

/// Whether somebody listens there, found out without connecting: some servers serve one connection in their life.
fn is_listening(socket: &Path) -> bool {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.nth(3) == Some(LISTENING) && line.ends_with(&format!(" {}", socket.display()))
    })
}

/// Whether an option is among those of the experiment, as `--name` or `--name=value`.
fn has(options: &[String], names: &[&str]) -> bool {
    options.iter().any(|option| names.contains(&option.split('=').next().unwrap_or_default()))
}

/// Gives an option, unless the experiment does.
fn give(line: &mut Vec<OsString>, options: &[String], name: &str, value: impl Into<OsString>) {
    if !has(options, &[name]) {
        line.extend([name.into(), value.into()]);
    }
}

/// The data of a server that cannot do without.
fn data<'a>(order: &Order<'a>, name: &str) -> Result<&'a Data, Trouble> {
    order.data.ok_or_else(|| Trouble::Unsupported(format!("{name} needs data to serve; medium `none` has none")))
}

/// What our sandbox and virtiofsd's are told, with or without root: nothing is hidden from either, so that both are compared as
/// servers. Neither makes files here, so neither needs the rights of other users.
const SANDBOX: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_listener_is_seen_without_a_connection() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        assert!(!is_listening(&socket));
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(is_listening(&socket));
        drop(listener);
        assert!(!is_listening(&socket), "the file is still there, the listener is not");
    }

    #[test]
    fn options_are_found_in_both_forms() {
        let options = ["--queues=2".to_owned(), "--cache".to_owned(), "auto".to_owned()];
        assert!(has(&options, &["--queues"]) && has(&options, &["-c", "--cache"]));
        assert!(!has(&options, &["--queue", "auto-x"]));
    }
}
