//! Trees by 9p: large directories, files that are renamed and removed while they are open, a clone and a build, what the
//! host changes, and workers that change under load.

use std::fs::{self, File};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use control::model::{Attach, Execution, NewWorker, RingInfo, Settings, Worker};
use http::Method;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer, TAG};
use tests::fs_guest;
use tests::lab::Lab;
use tests::long;
use tests::p9_guest::{self, KERNEL};
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(240);

/// Of a large directory, and more at night. Its names fill several of the largest messages.
const FILES: u32 = 30_000;

/// Listed whole, once each, in large messages and in small ones; looked for by name, there and not.
#[test]
fn large_directory_is_listed() -> Result<()> {
    let files = FILES * long::more();
    let lab = Lab::take_turn();
    let shared = TempDir::new_in("/dev/shm")?;
    let many = shared.path().join("many");
    fs::create_dir(&many)?;
    for number in 0..files {
        File::create(many.join(format!("file-{number}")))?;
    }
    let mut server = DirectoryServer::start(&lab, &Directory::p9(shared.path()))?;
    let body = "cd many
         test $(ls -U | wc -l) = $files
         test $(ls -U | sort -u | wc -l) = $files
         test -e file-0
         test -e file-$((files - 1))
         ! test -e file-$files
         # Removed while it is listed.
         ls -U | head -n 3000 | xargs rm
         test $(ls -U | wc -l) = $left
         cd /
         umount /mnt/share
         mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=8192 share /mnt/share
         test $(ls -U /mnt/share/many | sort -u | wc -l) = $left
         umount /mnt/share
         # Linux keeps a fid for each name that it remembers. The size needs a look at each file, and nothing else of it.
         mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=512000 share /mnt/share
         test $(find /mnt/share/many -type f -size 0 | wc -l) = $left
         cd /mnt/share";
    let body = format!("files={files}; left={}\n{body}", files - 3000);
    p9_guest::run(&lab, &server, "cache=none", &body, LIMIT)?;
    server.check_alive()
}

/// An open file keeps its content under another name and without any, whoever takes the name.
#[test]
fn open_files_outlive_their_names() -> Result<()> {
    for cache in ["none", "loose"] {
        let lab = Lab::take_turn();
        let shared = TempDir::new()?;
        let file = shared.path().join("file");
        File::create(&file)?;
        let mut server = DirectoryServer::start(&lab, &Directory::p9(shared.path()))?;
        let body = "mkdir dir
             exec 3<>dir/open
             echo first >&3
             mv dir/open dir/renamed
             echo second >&3
             test \"$(cat dir/renamed)\" = \"$(printf 'first\\nsecond')\"
             mv dir moved
             echo third >&3
             test $(wc -l <moved/renamed) = 3
             echo another >moved/other
             mv moved/other moved/renamed
             echo fourth >&3
             test \"$(cat moved/renamed)\" = another
             rm moved/renamed
             echo fifth >&3
             exec 3>&-
             rmdir moved
             exec 4<.
             mkdir gone; cd gone; rmdir ../gone
             ! touch here 2>/dev/null
             cd ..
             exec 4<&-
             $tool held file $job/opened $job/removed";
        let mut guest = p9_guest::boot(&lab, KERNEL, &server, &format!("cache={cache}"), body)?;
        guest.wait_for("opened", LIMIT)?;
        fs::remove_file(&file)?;
        // Its number may go to the next file, which is another one all the same.
        fs::write(shared.path().join("other"), "other")?;
        guest.tell("removed")?;
        let ended = guest.wait(LIMIT)?;
        ensure!(ended.status == 0, "cache={cache}: the script failed:\n{}", ended.console);
        ensure!(fs::read_to_string(shared.path().join("other"))? == "other");
        server.check_alive()?;
    }
    Ok(())
}

#[test]
fn tree_is_cloned_built_and_removed() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = DirectoryServer::start(&lab, &Directory::p9(shared.path()))?;
    p9_guest::run(&lab, &server, "cache=loose", fs_guest::CLONE_BUILD_REMOVE, LIMIT)?;
    ensure!(fs::read_dir(shared.path())?.next().is_none(), "the guest has removed all, and the host still has some");
    server.check_alive()
}

/// Without a cache a guest sees at once what the host does, in files that it has open too.
#[test]
fn host_is_seen_at_once_without_a_cache() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let path = |name: &str| shared.path().join(name);
    for (name, content) in [("content", "old"), ("grown", "four"), ("removed", ""), ("renamed", "renamed")] {
        fs::write(path(name), content)?;
    }
    std::os::unix::fs::symlink("old", path("link"))?;
    let server = DirectoryServer::start(&lab, &Directory::p9(shared.path()))?;
    let body = "test \"$(cat content)\" = old
         test $(stat -c %s grown) = 4
         test -e removed; test -e renamed; ! test -e created
         test \"$(readlink link)\" = old
         exec 3<content
         touch $job/looked
         until [ -e $job/changed ]; do sleep 0.02; done
         test \"$(cat content)\" = new
         test \"$(cat <&3)\" = new
         test $(stat -c %s grown) = 4096
         ! test -e removed; ! test -e renamed
         test \"$(cat there)\" = renamed
         test \"$(cat created)\" = created
         test \"$(readlink link)\" = new
         exec 3<&-";
    let mut guest = p9_guest::boot(&lab, KERNEL, &server, "cache=none", body)?;
    guest.wait_for("looked", LIMIT)?;
    // In place, so that the inode stays.
    std::os::unix::fs::FileExt::write_all_at(&File::options().write(true).open(path("content"))?, b"new", 0)?;
    File::options().write(true).open(path("grown"))?.set_len(4096)?;
    fs::remove_file(path("removed"))?;
    fs::rename(path("renamed"), path("there"))?;
    fs::write(path("created"), "created")?;
    fs::remove_file(path("link"))?;
    std::os::unix::fs::symlink("new", path("link"))?;
    guest.tell("changed")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    Ok(())
}

/// Data that is checked and names, while the ring goes from worker to worker and from one execution to the next.
#[test]
fn ring_moves_and_execution_changes_under_load() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let directory = Directory { workers: Some("one"), ..Directory::p9(shared.path()) };
    let mut server = DirectoryServer::start(&lab, &directory)?;
    let client = server.client()?;
    let load = "busy() {
             mkdir work$1
             for round in 1 2; do
                 taskset -c $1 fio --eta=never --name=verify --directory=/mnt/share/work$1 --size=8m --rw=randwrite \\
                     --bsrange=4k-64k --blockalign=4k --verify=crc32c --verify_fatal=1 --do_verify=1 \\
                     --randseed=$round --fallocate=none --ioengine=libaio --direct=1 --iodepth=16
                 taskset -c $1 cp -a /usr/share/perl5 work$1/tree
                 taskset -c $1 diff -r /usr/share/perl5 work$1/tree
                 rm -r work$1/tree
             done
         }
         touch $job/started
         busy 0 >/tmp/first 2>&1 & first=$!
         busy 1
         wait $first || { cat /tmp/first; exit 1; }
         touch $job/loaded
         until [ -e $job/over ]; do sleep 0.05; done";
    let mut guest = p9_guest::boot(&lab, Kernel::Smp(2), &server, "cache=none", load)?;
    guest.wait_for("started", LIMIT)?;
    let ring = || -> Result<RingInfo> { Ok(client.get(&format!("/v1/exports/{TAG}/rings/0"))?) };
    let old = ring()?.worker.context("the ring has a worker")?;
    let new: Worker = client.send(Method::POST, &format!("/v1/exports/{TAG}/workers"), &NewWorker::default())?;
    let workers = [old, new.id];
    let executions = [Execution::Inline, Execution::Uring, Execution::Pool(2), Execution::Auto];
    let mut rounds = 0_usize;
    guest.until("loaded", LIMIT, || {
        let worker = workers[rounds % 2];
        let _: RingInfo = client.send(Method::PUT, &format!("/v1/exports/{TAG}/rings/0/worker"), &Attach { worker })?;
        let settings = Settings { execution: Some(executions[rounds % 4]), ..Settings::default() };
        let _: control::model::Export = client.send(Method::PATCH, &format!("/v1/exports/{TAG}"), &settings)?;
        rounds += 1;
        Ok(())
    })?;
    ensure!(rounds > 10, "only {rounds} rounds of moves happened while the load ran");
    let ring = ring()?;
    ensure!(ring.broken.is_none() && ring.figures.moves > 10, "{ring:?}");
    println!("{rounds} rounds");
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()
}
