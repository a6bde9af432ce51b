//! vringd in virtiofsd's place: started as those start it that know virtiofsd.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::device::Device;
use tests::lab::Lab;
use tests::process::Group;
use tests::uml::{self, Kernel};
use tests::vringd;

const LIMIT: Duration = Duration::from_secs(60);

/// Starts a server, mounts its directory once, and expects the server to end as its guest does.
fn serves_once(command: &Command, socket: &Path, tag: &str, files: &Path) -> Result<()> {
    let lab = Lab::take_turn();
    let mut server = Group::start(command, &files.join("log"))?;
    server.wait_for_sockets(LIMIT, &[socket])?;
    let script = format!(
        "mkdir /mnt/share; mount -t virtiofs {tag} /mnt/share
         test \"$(cat /mnt/share/file)\" = content
         echo written >/mnt/share/written
         setfattr -n user.x -v y /mnt/share/written
         umount /mnt/share"
    );
    let device = Device::Directory { socket: socket.to_owned(), tag: tag.to_owned(), queues: 1 };
    uml::run(&lab, Kernel::Debian, &[device], &script, LIMIT)?;
    let status = server.wait(LIMIT)?;
    ensure!(status.success(), "it ended with {status}:\n{}", server.output());
    Ok(())
}

struct Place {
    files: TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        let place = Self { files: TempDir::new()? };
        fs::create_dir(place.shared())?;
        fs::write(place.shared().join("file"), "content")?;
        Ok(place)
    }

    fn shared(&self) -> PathBuf {
        self.files.path().join("shared")
    }

    fn socket(&self) -> PathBuf {
        self.files.path().join("socket")
    }

    fn check(&self) -> Result<()> {
        ensure!(fs::read_to_string(self.shared().join("written"))? == "written\n");
        Ok(())
    }
}

#[test]
fn subcommand_serves_as_podman_starts_it() -> Result<()> {
    let place = Place::new()?;
    let mut command = Command::new(vringd::program()?);
    command
        .args(["virtiofsd", "--tag", "t", "--xattr", "--cache", "auto", "--thread-pool-size", "2"])
        .arg(format!("--socket-path={}", place.socket().display()))
        .arg(format!("--shared-dir={}", place.shared().display()))
        .args(["--announce-submounts", "--inode-file-handles=prefer", "--sandbox", "namespace"]);
    serves_once(&command, &place.socket(), "t", place.files.path())?;
    place.check()
}

#[test]
fn program_of_that_name_takes_the_options_of_the_daemon_in_c() -> Result<()> {
    let place = Place::new()?;
    let program = place.files.path().join("virtiofsd");
    symlink(vringd::program()?, &program)?;
    let mut command = Command::new(program);
    command
        .arg(format!("--socket-path={}", place.socket().display()))
        .args(["--tag", "t", "-f", "-o"])
        .arg(format!("source={},cache=always,xattr,no_posix_lock,no_flock,sandbox=chroot", place.shared().display()));
    serves_once(&command, &place.socket(), "t", place.files.path())?;
    place.check()
}

/// Which resolves links, waits for these words, and takes for ready whoever has said them.
#[test]
fn program_of_its_own_name_serves_as_katas_rust_runtime_starts_it() -> Result<()> {
    let place = Place::new()?;
    let mut command = Command::new(vringd::program()?);
    command.arg("--socket-path").arg(place.socket()).arg("--shared-dir").arg(place.shared());
    command.args(["--cache", "auto", "--thread-pool-size=1", "-o", "announce_submounts", "--xattr", "--tag", "t"]);
    serves_once(&command, &place.socket(), "t", place.files.path())?;
    let said = fs::read_to_string(place.files.path().join("log"))?;
    ensure!(said.contains("Waiting for vhost-user socket connection"), "{said}");
    place.check()
}

#[test]
fn what_is_not_supported_is_refused_by_name() -> Result<()> {
    let place = Place::new()?;
    for option in ["--migration-mode=inodes", "--no-such-option", "--cache=sometimes", "--sandbox=maybe"] {
        let output = Command::new(vringd::program()?)
            .arg("virtiofsd")
            .arg(format!("--socket-path={}", place.socket().display()))
            .arg(format!("--shared-dir={}", place.shared().display()))
            .arg(option)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{option} is taken");
        let name = option.split('=').next().unwrap_or(option);
        ensure!(said.contains(name), "{option} is refused without its name: {said}");
    }
    Ok(())
}
