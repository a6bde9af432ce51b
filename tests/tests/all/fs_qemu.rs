//! A directory in a PC under QEMU: the same driver over PCI.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::device::Device;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::qemu::{self, BootFrom, Guest};

const LIMIT: Duration = Duration::from_secs(240);

/// The lab's root file system is served too, read-only: the programs that run are in it.
#[test]
fn machine_lives_in_one_directory_and_works_in_another() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("from-the-host"), "hello guest\n")?;
    let mut root = DirectoryServer::start(&lab, &Directory::new(lab.root()).option("--readonly"))?;
    let mut work = DirectoryServer::start(&lab, &Directory { queues: Some(2), ..Directory::new(shared.path()) })?;
    let named = |server: &DirectoryServer, tag: &str| Device::Directory {
        socket: server.socket(),
        tag: tag.to_owned(),
        queues: 2,
    };
    let script = "mkdir /root-directory
         mount -t virtiofs root /root-directory
         mount -t tmpfs tmpfs /root-directory/tmp
         mount -t proc proc /root-directory/proc
         mount -t virtiofs work /root-directory/mnt
         cat >/root-directory/tmp/script <<'END'
test \"$(cat /mnt/from-the-host)\" = 'hello guest'
cd /mnt
mkdir dir; echo content >dir/file; ln dir/file dir/link; mv dir/file dir/moved; rm dir/link
test \"$(cat dir/moved)\" = content
fio --eta=never --name=verify --directory=/mnt --size=8m --rw=randwrite --bsrange=4k-64k --blockalign=4k \\
    --verify=crc32c --verify_fatal=1 --do_verify=1 --ioengine=libaio --direct=1 --iodepth=16
fio --eta=never --name=mapped --directory=/mnt --size=4m --rw=randwrite --bs=4k \\
    --verify=crc32c --verify_fatal=1 --do_verify=1 --ioengine=mmap
flock dir/moved true
echo 'hello host' >from-the-guest
END
         chroot /root-directory /bin/sh -eu /tmp/script
         umount /root-directory/mnt";
    qemu::run(&lab, BootFrom::Host, &[named(&root, "root"), named(&work, "work")], 2, script, LIMIT)?;
    ensure!(fs::read_to_string(shared.path().join("from-the-guest"))? == "hello host\n");
    root.check_alive()?;
    work.check_alive()
}

#[test]
fn next_machine_mounts_after_one_was_killed() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = DirectoryServer::start(&lab, &Directory::new(shared.path()))?;
    let script = "mkdir /work
         mount -t virtiofs share /work
         echo kept >/work/kept
         echo busy
         while :; do dd if=/dev/zero of=/work/filler bs=64k count=64 2>/dev/null; rm /work/filler; done";
    let mut guest = Guest::boot(&lab, BootFrom::Host, &[server.device()], 1, script)?;
    guest.wait_for("busy", LIMIT)?;
    // Long enough for the load to be in full swing; no outcome depends on it.
    std::thread::sleep(Duration::from_millis(500));
    guest.kill();
    server.check_alive()?;
    let script = "mkdir /work; mount -t virtiofs share /work; grep -q kept /work/kept; rm /work/kept";
    qemu::run(&lab, BootFrom::Host, &[server.device()], 1, script, LIMIT)?;
    ensure!(!shared.path().join("kept").exists());
    server.check_alive()
}
