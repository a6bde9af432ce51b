//! A PC under QEMU on disks of vringd: BIOS, boot loader, and Linux over PCI.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::image;
use tests::lab::Lab;
use tests::qemu::{self, BootFrom, Guest};
use tests::qemu_img;
use tests::server::{Disk, Server};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn machine_boots_from_the_disk_and_keeps_what_it_wrote() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let capacity_bytes = lab.boot_disk().metadata()?.len();
    let image = image::sparse(directory.path(), "disk.raw", capacity_bytes)?;
    let mut server = Server::start(&lab, &Disk::new(&image))?;
    qemu_img::convert_to(&lab, &lab.boot_disk(), &server.socket())?.expect_success()?;

    let script = "grep -q ' / ext4 rw' /proc/mounts
         test $(cat /sys/block/vda/mq/*/cpu_list | wc -l) -ge 1
         dd if=/dev/urandom of=/written bs=64k count=64
         sha256sum /written >/written.sum
         sync";
    let console = qemu::run(&lab, BootFrom::Disk, &[server.device()], 1, script, LIMIT)?;
    ensure!(
        console.contains("the boot loader runs from the disk"),
        "the machine came up, but not through the disk's boot loader:\n{console}"
    );
    server.check_alive()?;

    let script = "sha256sum -c /written.sum";
    qemu::run(&lab, BootFrom::Disk, &[server.device()], 1, script, LIMIT)?;
    server.check_alive()
}

#[test]
fn two_disks_of_two_servers_serve_one_machine() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let first = image::sparse(directory.path(), "first.raw", 64 * MIB)?;
    let second = image::sparse(directory.path(), "second.raw", 32 * MIB)?;
    let first = Server::start(&lab, &Disk { queues: 2, ..Disk::new(first) })?;
    let second = Server::start(&lab, &Disk { queues: 2, ..Disk::new(second) })?;
    let script = "test $(cat /sys/block/vda/size) = 131072
         test $(cat /sys/block/vdb/size) = 65536
         test $(ls /sys/block/vda/mq | wc -l) = 2
         dd if=/dev/urandom of=/dev/vdb bs=1M count=32
         dd if=/dev/vdb of=/dev/vda bs=1M count=32
         sync
         echo 3 >/proc/sys/vm/drop_caches
         cmp -n 33554432 /dev/vda /dev/vdb";
    qemu::run(&lab, BootFrom::Host, &[first.device(), second.device()], 2, script, LIMIT)?;
    Ok(())
}

#[test]
fn machine_connects_after_one_was_killed() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 64 * MIB)?;
    let mut server = Server::start(&lab, &Disk::new(&image))?;
    let script = "echo busy; while :; do dd if=/dev/zero of=/dev/vda bs=64k count=512 conv=fsync; done";
    let mut guest = Guest::boot(&lab, BootFrom::Host, &[server.device()], 1, script)?;
    guest.wait_for("busy", LIMIT)?;
    // Long enough for the load to be in full swing; no outcome depends on it.
    std::thread::sleep(Duration::from_millis(500));
    guest.kill();
    server.check_alive()?;
    let script = "dd if=/dev/vda of=/dev/null bs=1M";
    qemu::run(&lab, BootFrom::Host, &[server.device()], 1, script, LIMIT)?;
    server.check_alive()
}

#[test]
fn memory_is_added_while_both_disks_are_busy() -> Result<()> {
    const MODULES: u32 = 6;
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let first = image::sparse(directory.path(), "first.raw", 64 * MIB)?;
    let second = image::sparse(directory.path(), "second.raw", 64 * MIB)?;
    // Different at every place, so that a buffer taken from the wrong memory shows.
    let content: Vec<u8> =
        (0..8 * MIB).flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    fs::write(&first, content)?;
    let mut first = Server::start(&lab, &Disk { queues: 2, ..Disk::new(first) })?;
    let mut second = Server::start(&lab, &Disk { queues: 2, ..Disk::new(second) })?;
    // The page cache takes movable memory first, so the disks' buffers lie in the new modules as
    // soon as those are there. Two rounds with all of them end the script.
    let script = "echo online_movable >/sys/devices/system/memory/auto_online_blocks
         echo busy
         rounds=0
         while [ $rounds -lt 2 ]; do
             [ $(awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo) -lt 1100 ] || rounds=$((rounds + 1))
             dd if=/dev/vda of=/dev/vdb bs=1M conv=fsync
             echo 3 >/proc/sys/vm/drop_caches
             cmp /dev/vda /dev/vdb
             dd if=/dev/zero of=/dev/vdb bs=1M count=32 conv=fsync
         done";
    let mut guest = Guest::boot(&lab, BootFrom::Host, &[first.device(), second.device()], 2, script)?;
    guest.wait_for("busy", LIMIT)?;
    for number in 0..MODULES {
        guest.add_memory(number, 128)?;
        // Spreads the changes over the load; no outcome depends on it.
        std::thread::sleep(Duration::from_millis(200));
    }
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    first.check_alive()?;
    second.check_alive()
}
