//! A directory under each cache policy: everything that can be asked of a file system works.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::getxattr;
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest;
use tests::lab::Lab;
use tests::process;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(120);

/// Serves a fresh directory with what `adapt` makes of it and has a guest do one of each thing.
fn every_operation(kernel: Kernel, shared_mappings: bool, adapt: impl FnOnce(Directory) -> Directory) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("from-the-host"), "hello guest")?;
    let mut server = DirectoryServer::start(&lab, &adapt(Directory::new(shared.path())))?;
    let mapping = if shared_mappings { "--shared-mapping" } else { "" };
    let body = format!(
        "test \"$(cat from-the-host)\" = 'hello guest'
         mkdir work
         $tool smoke {mapping} work
         echo 'hello host' >from-the-guest"
    );
    fs_guest::run(&lab, kernel, &server, &body, LIMIT)?;
    server.check_alive()?;
    ensure!(fs::read_to_string(shared.path().join("from-the-guest"))? == "hello host\n");
    server.stop()
}

#[test]
fn every_operation_works_with_cache_never() -> Result<()> {
    every_operation(Kernel::Debian, false, |directory| directory.cache(Cache::Never))
}

#[test]
fn every_operation_works_with_cache_metadata() -> Result<()> {
    every_operation(Kernel::Debian, false, |directory| directory.cache(Cache::Metadata))
}

#[test]
fn every_operation_works_with_cache_auto() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Auto))
}

#[test]
fn every_operation_works_with_cache_always() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Always))
}

#[test]
fn every_operation_works_with_writeback() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Always).option("--writeback"))
}

#[test]
fn files_without_cached_data_are_mapped_shared_if_that_is_allowed() -> Result<()> {
    every_operation(Kernel::Debian, true, |directory| directory.cache(Cache::Never).option("--allow-mmap"))
}

#[test]
fn every_operation_works_with_two_processors_and_a_pool() -> Result<()> {
    every_operation(Kernel::Smp(2), true, |directory| Directory {
        queues: Some(2),
        workers: Some("per-queue"),
        execution: Some("pool=2"),
        ..directory
    })
}

/// Options that change how the server does its work, and nothing of what a guest sees.
#[test]
fn every_operation_works_with_every_way_to_hold_files() -> Result<()> {
    for option in ["--inode-file-handles=never", "--inode-file-handles=mandatory", "--descriptors-max=64"] {
        every_operation(Kernel::Debian, true, |directory| directory.option(option)).context(option)?;
    }
    Ok(())
}

#[test]
fn every_operation_works_without_killpriv_and_with_every_readdirplus() -> Result<()> {
    for option in ["--no-killpriv-v2", "--readdirplus=off", "--readdirplus=on"] {
        every_operation(Kernel::Debian, true, |directory| directory.option(option)).context(option)?;
    }
    Ok(())
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
