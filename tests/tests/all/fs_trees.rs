//! Work on whole trees: a clone, a build, a removal; a million files; storms.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::usage::{descriptors, own_memory_kib};
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest;
use tests::lab::Lab;
use tests::long;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(240);

fn clone_build_remove(directory: impl FnOnce(Directory) -> Directory, kernel: Kernel) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = DirectoryServer::start(&lab, &directory(Directory::new(shared.path())))?;
    fs_guest::run(&lab, kernel, &server, fs_guest::CLONE_BUILD_REMOVE, LIMIT)?;
    ensure!(fs::read_dir(shared.path())?.next().is_none(), "the guest has removed all, and the host still has some");
    server.check_alive()
}

#[test]
fn tree_is_cloned_built_and_removed_with_cache_auto() -> Result<()> {
    clone_build_remove(|directory| directory, Kernel::Debian)
}

#[test]
fn tree_is_cloned_built_and_removed_with_writeback_and_two_queues() -> Result<()> {
    clone_build_remove(
        |directory| Directory {
            queues: Some(2),
            workers: Some("per-queue"),
            ..directory.cache(Cache::Always).option("--writeback").option("--allow-mmap")
        },
        Kernel::Smp(2),
    )
}

#[test]
fn renames_do_not_lose_files() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let directory = Directory { queues: Some(2), workers: Some("per-queue"), ..Directory::new(shared.path()) };
    let mut server = DirectoryServer::start(&lab, &directory.cache(Cache::Never))?;
    fs_guest::run(&lab, Kernel::Smp(2), &server, "$tool storm . 3000", LIMIT)?;
    server.check_alive()
}

#[test]
fn removed_file_can_be_used_while_it_is_open() -> Result<()> {
    for cache in [Cache::Never, Cache::Auto] {
        let lab = Lab::take_turn();
        let shared = TempDir::new()?;
        let file = shared.path().join("file");
        File::create(&file)?;
        let mut server = DirectoryServer::start(&lab, &Directory::new(shared.path()).cache(cache))?;
        let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, "$tool held file $job/opened $job/removed")?;
        guest.wait_for("opened", LIMIT)?;
        fs::remove_file(&file)?;
        // Its number may go to the next file, which is another one all the same.
        fs::write(shared.path().join("other"), "other")?;
        guest.tell("removed")?;
        let ended = guest.wait(LIMIT)?;
        ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
        ensure!(fs::read_to_string(shared.path().join("other"))? == "other");
        server.check_alive()?;
    }
    Ok(())
}

/// Descriptors that a server may hold beside those of inodes: its sockets, rings and files.
const OWN_DESCRIPTORS: usize = 200;
const DESCRIPTORS_MAX: usize = 200;
/// Each wants a descriptor, so that they are more than the bound and what a server has of its own.
const DIRECTORIES: u64 = 500;
/// In each of them, and more at night.
const FILES: u64 = 400;
/// What is left of the memory that a file took, in bytes, at most.
const LEFT_BYTES: u64 = 40;

/// Creates `files` files in each of `directories` directories, sparse, as large as their name says.
fn lay_out(root: &Path, directories: u64, files: u64) -> Result<()> {
    let half = |first: u64| {
        for directory in (first..directories).step_by(2) {
            let path = root.join(format!("d{directory}"));
            fs::create_dir(&path)?;
            for file in 0..files {
                File::create(path.join(file.to_string()))?.set_len(file)?;
            }
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        half(0)?;
        other.join().expect("laying out does not panic")
    })
}

#[test]
fn many_files_take_bounded_descriptors_and_memory_returns() -> Result<()> {
    let lab = Lab::take_turn();
    // In memory: so many inodes are nothing to make a disk write.
    let shared = TempDir::new_in("/dev/shm")?;
    let each = FILES * u64::from(long::more());
    let files = DIRECTORIES * each;
    lay_out(shared.path(), DIRECTORIES, each)?;
    let directory = Directory::new(shared.path())
        .cache(Cache::Always)
        .option("--inode-file-handles=prefer")
        .option(format!("--descriptors-max={DESCRIPTORS_MAX}"));
    let mut server = DirectoryServer::start(&lab, &directory)?;
    let body = "touch $job/mounted
         until [ -e $job/go ]; do sleep 0.05; done
         $tool walk . >$job/walked
         touch $job/done
         until [ -e $job/counted ]; do sleep 0.05; done
         cd /
         umount /mnt/share
         touch $job/unmounted
         until [ -e $job/over ]; do sleep 0.05; done
         mount -t virtiofs share /mnt/share
         test -e /mnt/share/d0/7";
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, body)?;
    guest.wait_for("mounted", LIMIT)?;
    let before_kib = own_memory_kib(server.id())?;
    guest.tell("go")?;
    let (mut most, mut most_kib) = (0, 0);
    guest.until("done", LIMIT, || {
        most = most.max(descriptors(server.id())?);
        most_kib = most_kib.max(own_memory_kib(server.id())?);
        thread::sleep(Duration::from_millis(50));
        Ok(())
    })?;
    let walked = fs::read_to_string(guest.shared().join("walked"))?;
    ensure!(walked == format!("files: {files}\n"), "the guest has seen {walked}");
    println!("at most {most} descriptors and {most_kib} KiB, {before_kib} KiB before");
    ensure!(most <= DESCRIPTORS_MAX + OWN_DESCRIPTORS, "the server held {most} descriptors");
    ensure!(most > DESCRIPTORS_MAX / 2, "the bound was never met: {most} descriptors");
    guest.tell("counted")?;

    guest.wait_for("unmounted", LIMIT)?;
    let after = descriptors(server.id())?;
    let after_kib = own_memory_kib(server.id())?;
    println!("{after} descriptors and {after_kib} KiB after the directory was unmounted");
    ensure!(after <= OWN_DESCRIPTORS, "{after} descriptors are left");
    ensure!(
        after_kib <= before_kib + files * LEFT_BYTES / 1024,
        "{before_kib} KiB grew to {most_kib} and went back only to {after_kib}"
    );
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()
}

/// A guest that forgets what it has seen gives the server its memory back while it goes on.
#[test]
fn forgotten_files_are_forgotten() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new_in("/dev/shm")?;
    lay_out(shared.path(), 20, 1000)?;
    let server = DirectoryServer::start(&lab, &Directory::new(shared.path()).cache(Cache::Always))?;
    let body = "$tool walk . >$job/walked
         touch $job/known
         until [ -e $job/counted ]; do sleep 0.05; done
         cd /
         echo 2 >/proc/sys/vm/drop_caches
         echo 2 >/proc/sys/vm/drop_caches
         touch $job/forgotten
         until [ -e $job/over ]; do sleep 0.05; done";
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, body)?;
    let nodes = || Ok::<u64, anyhow::Error>(server.export()?.directory.context("a directory")?.nodes);
    guest.wait_for("known", LIMIT)?;
    let known = nodes()?;
    ensure!(known > 20_000, "the server knows {known} nodes of 20,020 that the guest has looked up");
    guest.tell("counted")?;
    guest.wait_for("forgotten", LIMIT)?;
    // FORGET has no answer, so the guest does not wait for it.
    let mut left = nodes()?;
    for _ in 0..200 {
        if left < 10 {
            break;
        }
        thread::sleep(Duration::from_millis(50));
        left = nodes()?;
    }
    ensure!(left < 10, "{left} nodes are left of {known}");
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    Ok(())
}

/// The host changes the tree while a guest walks through it.
#[test]
fn guest_walks_through_a_tree_that_the_host_changes() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = DirectoryServer::start(&lab, &Directory::new(shared.path()).cache(Cache::Never))?;
    // Errors are expected: what was there a moment ago is gone.
    let body = "touch $job/ready
         until [ -e $job/over ]; do find . -type f -exec cat {} + >/dev/null 2>&1 || true; done
         test \"$(cat last/file)\" = last";
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, body)?;
    guest.wait_for("ready", LIMIT)?;
    for round in 0..60 {
        let path = shared.path().join(format!("round{round}"));
        lay_out_small(&path)?;
        let mut storm = Command::new("sh");
        storm.current_dir(&path).args(["-c", "for d in 0 1 2 3; do mv d$d e$d; ln -s / d$d; done; rm -r e0 e1 d0 d1"]);
        tests::process::run(&mut storm)?;
        if round > 3 {
            fs::remove_dir_all(shared.path().join(format!("round{}", round - 3)))?;
        }
    }
    fs::create_dir(shared.path().join("last"))?;
    fs::write(shared.path().join("last/file"), "last")?;
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()
}

fn lay_out_small(path: &Path) -> Result<()> {
    fs::create_dir(path)?;
    lay_out(path, 4, 10)
}
