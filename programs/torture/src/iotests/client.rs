//! In the place of `qemu-io`: an image is served by another program, and the real `qemu-io` speaks to that.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use guest::process::Group;
use tempfile::TempDir;

/// The program that serves.
pub(super) const SERVER: &str = "IOTESTS_SERVER";
/// The real `qemu-io`.
pub(super) const QEMU_IO: &str = "IOTESTS_QEMU_IO";
/// Where each image that was served is a line.
pub(super) const LOG: &str = "IOTESTS_LOG";
/// A directory for sockets.
pub(super) const PLACE: &str = "IOTESTS_PLACE";

const LIMIT: Duration = Duration::from_secs(20);

/// Options that change nothing for whoever serves.
const CACHING: &[&str] = &["-t", "--cache", "-i", "--aio"];

/// The arguments of `qemu-io`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// What is to be done to an image that somebody else can serve.
struct Task {
    image: PathBuf,
    read_only: bool,
    commands: Vec<String>,
}

/// Serves the image if that can be. Ends as `qemu-io` does.
pub(crate) fn run(options: &Options) -> Result<()> {
    let real = env::var_os(QEMU_IO).context("the tests name the real program")?;
    let task =
        options.arguments.iter().map(|argument| argument.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    if let Some(task) = task.and_then(|arguments| Task::of(&arguments))
        && let Some(status) = task.by_a_server(&real)?
    {
        std::process::exit(status);
    }
    // Nothing comes back from it but an error.
    Err(Command::new(&real).args(&options.arguments).exec()).context("cannot run the real qemu-io")
}

impl Task {
    /// `None`: QEMU has to do it.
    fn of(arguments: &[String]) -> Option<Task> {
        let (mut image, mut format, mut read_only, mut commands) = (None, None, false, Vec::new());
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            let mut value = || value.clone().or_else(|| rest.next().cloned());
            match name {
                "-f" | "--format" => format = value(),
                "-c" | "--cmd" => commands.push(value()?),
                "-r" | "--read-only" => read_only = true,
                "-n" | "--nocache" | "-k" => {}
                _ if CACHING.contains(&name) => drop(value()),
                _ if name.starts_with('-') || image.is_some() => return None,
                _ => image = Some(PathBuf::from(argument)),
            }
        }
        let image = image.filter(|image| image.is_file())?;
        let can_be_served = format.as_deref() == Some("qcow2") && !commands.is_empty();
        (can_be_served && !commands.iter().any(|command| is_of_qemu(command))).then_some(Task {
            image,
            read_only,
            commands,
        })
    }

    /// The status of `qemu-io`; `None`: the server refuses the image.
    fn by_a_server(&self, real: &OsStr) -> Result<Option<i32>> {
        let place = env::var_os(PLACE).context("the tests name a place")?;
        let place = TempDir::new_in(place)?;
        let socket = place.path().join("s");
        let mut server = Group::start(&self.server(&socket)?, &place.path().join("said"))?;
        if server.wait_for_sockets(LIMIT, &[&socket]).is_err() {
            return Ok(None);
        }
        if let Some(log) = env::var_os(LOG) {
            writeln!(File::options().append(true).open(log)?, "{}", self.image.display())?;
        }
        let mut client = Command::new(real);
        client.arg("--image-opts");
        client.args(self.commands.iter().flat_map(|command| ["-c", command]));
        let socket = socket.display();
        // The driver has no page cache of its own, and insists on hearing so.
        let mut opened = format!("driver=virtio-blk-vhost-user,path={socket},cache.direct=on");
        if self.read_only {
            client.arg("-r");
            opened += ",read-only=on";
        }
        let status = client.arg(opened).status().context("cannot run the real qemu-io")?;
        server.stop("the server", LIMIT)?;
        // As a shell says it of a signal.
        Ok(Some(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)))
    }

    fn server(&self, socket: &Path) -> Result<Command> {
        let program = env::var_os(SERVER).context("the tests name a server")?;
        let image = std::path::absolute(&self.image)?;
        let mut server = Command::new(&program);
        if Path::new(&program).ends_with("qemu-storage-daemon") {
            let (image, socket) = (image.display(), socket.display());
            let [read_only, writable] = if self.read_only { ["on", "off"] } else { ["off", "on"] };
            let file = format!("file.driver=file,file.filename={image}");
            let node = format!("driver=qcow2,node-name=d,discard=unmap,read-only={read_only},{file}");
            let export = format!("type=vhost-user-blk,id=e,node-name=d,writable={writable}");
            server.args(["--blockdev", &node, "--export"]);
            server.arg(format!("{export},addr.type=unix,addr.path={socket}"));
        } else {
            server.args(["--log-level", "error", "disk", "--storage", "qcow2", "--allow-backing", "/", "--socket"]);
            server.arg(socket).args(self.read_only.then_some("--readonly")).arg(image);
        }
        Ok(server)
    }
}

/// Whether no server can do a command of `qemu-io`: it is about the inside of QEMU, or writes compressed data or a machine's state.
fn is_of_qemu(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let name = words.next().unwrap_or_default();
    let has = |letters: &[char]| {
        let mut flags = command.split_whitespace().filter(|word| word.starts_with('-'));
        flags.any(|flags| flags.contains(letters))
    };
    match name {
        "alloc" | "map" | "reopen" | "open" | "close" | "info" | "sigraise" | "abort" => true,
        "write" | "writev" | "aio_write" => has(&['c', 'b']),
        "read" | "readv" => has(&['b']),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(arguments: &[&str]) -> Option<Task> {
        Task::of(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_only_qemu_can_do_is_left_to_it() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path().to_str().unwrap();
        let usual = ["--cache", "writeback", "--aio", "threads", "-f", "qcow2"];
        let served =
            task(&[&usual[..], &["-r", "-c", "write -P 1 0 1k", "-c", "read -v 0 1k", path]].concat()).unwrap();
        assert!(served.read_only && served.commands == ["write -P 1 0 1k", "read -v 0 1k"]);
        for other in [
            &["-c", "map", path][..],
            &["-c", "write -c 0 64k", path],
            &["-c", "read -b 0 1k", path],
            &["-c", "write 0 1k", "/nowhere"],
            &["-C", "-c", "write 0 1k", path],
            &["--image-opts", "-c", "write 0 1k", path],
            &[path],
        ] {
            assert!(task(&[&usual[..], other].concat()).is_none(), "{other:?}");
        }
        assert!(task(&["-f", "raw", "-c", "write 0 1k", path]).is_none());
    }
}
