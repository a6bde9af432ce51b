//! A directory under each cache policy: everything that can be asked of a file system works.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::getxattr;
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest::{self, Script};
use tests::lab::Lab;
use tests::process;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(120);

/// A way to serve a directory.
struct Way {
    name: &'static str,
    /// Whether a guest may map files shared.
    mappings: bool,
    adapt: fn(Directory) -> Directory,
}

fn way(name: &'static str, mappings: bool, adapt: fn(Directory) -> Directory) -> Way {
    Way { name, mappings, adapt }
}

/// Serves a fresh directory in each way and has one guest do one of each thing in each of them.
fn every_operation(kernel: Kernel, ways: &[Way]) -> Result<()> {
    let lab = Lab::take_turn();
    let mut served = Vec::new();
    for (number, way) in ways.iter().enumerate() {
        let shared = TempDir::new()?;
        fs::write(shared.path().join("from-the-host"), "hello guest")?;
        let directory = (way.adapt)(Directory::new(shared.path()).tag(format!("share{number}")));
        let server = DirectoryServer::start(&lab, &directory).context(way.name)?;
        let mapping = if way.mappings { "--shared-mapping" } else { "" };
        let body = format!(
            "test \"$(cat from-the-host)\" = 'hello guest'
             mkdir work
             $tool smoke {mapping} work
             echo 'hello host' >from-the-guest"
        );
        served.push((way.name, shared, server, body));
    }
    let scripts: Vec<Script<'_>> =
        served.iter().map(|(name, _, server, body)| Script { name, server, options: "", body }).collect();
    fs_guest::run_each(&lab, kernel, &scripts, LIMIT)?;
    for (name, shared, mut server, _) in served {
        server.check_alive().context(name)?;
        ensure!(fs::read_to_string(shared.path().join("from-the-guest"))? == "hello host\n", "{name}");
        server.stop().context(name)?;
    }
    Ok(())
}

#[test]
fn every_operation_works_with_every_cache() -> Result<()> {
    every_operation(
        Kernel::Debian,
        &[
            way("never", false, |directory| directory.cache(Cache::Never)),
            way("metadata", false, |directory| directory.cache(Cache::Metadata)),
            way("auto", true, |directory| directory.cache(Cache::Auto)),
            way("always", true, |directory| directory.cache(Cache::Always)),
            way("writeback", true, |directory| directory.cache(Cache::Always).option("--writeback")),
            // Files without cached data are mapped shared if that is allowed.
            way("never, mapped", true, |directory| directory.cache(Cache::Never).option("--allow-mmap")),
        ],
    )
}

/// Options that change how the server does its work, and nothing of what a guest sees.
#[test]
fn every_operation_works_however_the_server_does_its_work() -> Result<()> {
    every_operation(
        Kernel::Debian,
        &[
            way("no handles", true, |directory| directory.option("--inode-file-handles=never")),
            way("handles alone", true, |directory| directory.option("--inode-file-handles=mandatory")),
            way("few descriptors", true, |directory| directory.option("--descriptors-max=64")),
            way("no killpriv", true, |directory| directory.option("--no-killpriv-v2")),
            way("no readdirplus", true, |directory| directory.option("--readdirplus=off")),
            way("readdirplus", true, |directory| directory.option("--readdirplus=on")),
        ],
    )
}

/// Each with two queues and a worker for each, in a guest of two processors.
#[test]
fn every_operation_works_with_every_execution_and_two_processors() -> Result<()> {
    every_operation(
        Kernel::Smp(2),
        &[
            way("inline", true, |directory| with_two_queues(directory, "inline")),
            way("uring", true, |directory| with_two_queues(directory, "uring")),
            way("pool of two", true, |directory| with_two_queues(directory, "pool=2")),
            way("pool of four", true, |directory| with_two_queues(directory, "pool=4")),
        ],
    )
}

fn with_two_queues(directory: Directory, execution: &'static str) -> Directory {
    Directory { queues: Some(2), workers: Some("per-queue"), execution: Some(execution), ..directory }
}

#[test]
fn names_of_extended_attributes_are_mapped() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), "")?;
    let mut value = [0_u8; 64];
    let map = "--xattrmap=:map:trusted.:user.virtiofs.:";
    let server = DirectoryServer::start(&lab, &Directory::new(shared.path()).option(map))?;
    // What the guest calls trusted is a user's attribute on the host, which any server may set.
    let body = "setfattr -n trusted.overlay.opaque -v y file
         test \"$(getfattr --only-values -n trusted.overlay.opaque file)\" = y
         getfattr -m - -d file | grep -q '^trusted.overlay.opaque'
         if getfattr -m - -d file | grep -q virtiofs; then exit 1; fi
         setfattr -n user.own -v x file";
    fs_guest::run(&lab, Kernel::Debian, &server, body, LIMIT)?;
    let count = getxattr(shared.path().join("file"), "user.virtiofs.trusted.overlay.opaque", &mut value)?;
    ensure!(&value[..count] == b"y");
    let count = getxattr(shared.path().join("file"), "user.own", &mut value)?;
    ensure!(&value[..count] == b"x");
    Ok(())
}

/// A mount on the host below the served directory.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: PathBuf) -> Result<Self> {
        process::run(Command::new("mount").args(["-t", "tmpfs", "below"]).arg(&at))?;
        Ok(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        process::run(Command::new("umount").arg("--lazy").arg(&self.0)).expect("what was mounted can be unmounted");
    }
}

/// Two files of one inode number in different file systems are two files, and the guest is told
/// that there are two file systems.
#[test]
fn mount_below_the_directory_is_announced() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new_in("/dev/shm")?;
    fs::create_dir_all(shared.path().join("below"))?;
    fs::create_dir_all(shared.path().join("plain"))?;
    let _mounted = Mounted::tmpfs(shared.path().join("below"))?;
    for number in 0..20 {
        fs::write(shared.path().join(format!("plain/{number}")), format!("plain {number}"))?;
        fs::write(shared.path().join(format!("below/{number}")), format!("below {number}"))?;
    }
    let server = DirectoryServer::start(&lab, &Directory::new(shared.path()))?;
    // The guest mounts what is below when it first goes there; to look at it from outside is not enough.
    let body = "ls below/ >/dev/null
         test $(stat -c %d .) = $(stat -c %d plain)
         test $(stat -c %d .) != $(stat -c %d below)
         test $(stat -c %d below) = $(stat -c %d below/1)
         mountpoint -q below
         for number in $(seq 0 19); do
             test \"$(cat plain/$number)\" = \"plain $number\"
             test \"$(cat below/$number)\" = \"below $number\"
         done
         status=0; ln plain/1 below/linked 2>/dev/null || status=$?; test $status = 1
         mv plain/2 below/moved
         test \"$(cat below/moved)\" = 'plain 2'
         df below | grep -q share
         sync -f below
         cd /; umount /mnt/share/below; cd /mnt/share";
    fs_guest::run(&lab, Kernel::Debian, &server, body, LIMIT)?;
    Ok(())
}
