//! The Linux driver in a User Mode Linux guest, on disks of vringd.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::image;
use tests::lab::Lab;
use tests::server::{Disk, Server};
use tests::uml::{self, Guest, Kernel};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// Writes at random places and reads all of it back, each block with a checksum of its own.
const FIO_VERIFY: &str = "fio --eta=never --name=verify --ioengine=libaio --direct=1 --iodepth=32 --rw=randwrite \
     --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7";

/// Block sizes down to a sector, which only the raw disk can be given: to write less than a block
/// of a file, the guest's kernel takes zeroes from its own image, which User Mode Linux does not
/// share with a vhost-user server.
const SECTOR_SIZES: &str = "--bsrange=512-64k --blockalign=512";
const PAGE_SIZES: &str = "--bsrange=4k-64k --blockalign=4k";

#[test]
fn file_system_survives_verified_load() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 256 * MIB)?;
    let mut server = Server::start(&lab, &Disk::new(&image))?;
    let script = format!(
        "mkfs.ext4 -q -b 4096 /dev/vda
         mount /dev/vda /mnt
         {FIO_VERIFY} {PAGE_SIZES} --directory=/mnt --size=64m
         echo kept >/mnt/kept
         umount /mnt
         e2fsck -fn /dev/vda
         mount -o ro /dev/vda /mnt
         grep -q kept /mnt/kept
         umount /mnt"
    );
    uml::run(&lab, Kernel::Debian, &[server.device()], &script, LIMIT)?;
    server.check_alive()?;
    let status = server.stop()?;
    ensure!(status.success(), "the server ended with {status}");

    // The image is a plain file system again, with everything that the guest was promised.
    let mut fsck = lab.command_in_root("usr/sbin/e2fsck");
    tests::process::run(fsck.args(["-f", "-n"]).arg(&image))?;
    Ok(())
}

#[test]
fn raw_disk_survives_verified_load() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 128 * MIB)?;
    let mut server = Server::start(&lab, &Disk { direct: true, ..Disk::new(&image) })?;
    let script = format!("{FIO_VERIFY} {SECTOR_SIZES} --filename=/dev/vda --size=48m --fsync=32");
    uml::run(&lab, Kernel::Debian, &[server.device()], &script, LIMIT)?;
    server.check_alive()
}

#[test]
fn discard_gives_blocks_back_to_the_host() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 256 * MIB)?;
    let server = Server::start(&lab, &Disk::new(&image))?;
    let script = "mkfs.ext4 -q /dev/vda
         mount /dev/vda /mnt
         dd if=/dev/urandom of=/mnt/filler bs=1M count=100 conv=fsync status=none
         sync
         touch $job/filled
         until [ -e $job/measured ]; do sleep 0.05; done
         rm /mnt/filler
         sync
         fstrim -v /mnt
         umount /mnt
         e2fsck -fn /dev/vda";
    let mut guest = Guest::boot(&lab, Kernel::Debian, &[server.device()], script)?;
    guest.wait_for("filled", LIMIT)?;
    let filled_bytes = image::allocated_bytes(&image)?;
    ensure!(filled_bytes > 100 * MIB, "the guest wrote 100 MiB, the image has {filled_bytes} bytes");
    guest.tell("measured")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    let trimmed_bytes = image::allocated_bytes(&image)?;
    ensure!(
        trimmed_bytes < filled_bytes - 90 * MIB,
        "after fstrim the image still has {trimmed_bytes} of {filled_bytes} bytes"
    );
    Ok(())
}

#[test]
fn zeroed_range_reads_as_zeroes() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 32 * MIB)?;
    fs::write(&image, vec![0xa5; 32 << 20])?;
    let server = Server::start(&lab, &Disk::new(&image))?;
    // The first with the request's unmap flag, the second without.
    let script = "fallocate --punch-hole --offset 1MiB --length 4MiB /dev/vda
         fallocate --zero-range --offset 8MiB --length 4MiB /dev/vda
         sync";
    uml::run(&lab, Kernel::Debian, &[server.device()], script, LIMIT)?;
    drop(server);
    let content = fs::read(&image)?;
    for (index, mebibyte) in content.chunks(1 << 20).enumerate() {
        let expected = if (1..5).contains(&index) || (8..12).contains(&index) { 0 } else { 0xa5 };
        ensure!(mebibyte.iter().all(|byte| *byte == expected), "mebibyte {index} is not all {expected:#x}");
    }
    Ok(())
}

#[test]
fn guest_sees_the_disk_grow() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 64 * MIB)?;
    let server = Server::start(&lab, &Disk::new(&image))?;
    let script = "mkfs.ext4 -q /dev/vda
         mount /dev/vda /mnt
         touch $job/mounted
         tries=0
         until [ $(cat /sys/block/vda/size) = 262144 ]; do
             tries=$((tries + 1)); [ $tries -lt 600 ]; sleep 0.05
         done
         resize2fs /dev/vda
         dd if=/dev/urandom of=/mnt/filler bs=1M count=100 conv=fsync status=none
         umount /mnt
         e2fsck -fn /dev/vda";
    let mut guest = Guest::boot(&lab, Kernel::Debian, &[server.device()], script)?;
    guest.wait_for("mounted", LIMIT)?;
    server.resize(128 * MIB)?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    ensure!(fs::metadata(&image)?.len() == 128 * MIB, "the image did not grow with the disk");
    Ok(())
}

#[test]
fn two_queues_carry_verified_load() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 128 * MIB)?;
    let disk = Disk { queues: 2, workers: Some("per-queue".to_owned()), ..Disk::new(&image) };
    let mut server = Server::start(&lab, &disk)?;
    uml::run(&lab, Kernel::Smp(2), &[server.device()], &two_queue_script(32), LIMIT)?;
    server.check_alive()
}

/// Keeps both queues busy, one from each processor, with `mebibytes` a processor, and fails if
/// there are not two queues.
fn two_queue_script(mebibytes: u64) -> String {
    let job = |number: u64| {
        format!(
            "{FIO_VERIFY} {SECTOR_SIZES} --filename=/dev/vda --offset={}m --size={mebibytes}m --cpus_allowed={number}",
            number * mebibytes
        )
    };
    format!(
        "test $(nproc) = 2
         test $(ls /sys/block/vda/mq | wc -l) = 2
         touch $job/started
         {} >/tmp/first & first=$!
         {}
         wait $first || {{ cat /tmp/first; exit 1; }}",
        job(0),
        job(1)
    )
}

#[test]
fn rings_move_between_workers_under_verified_load() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 128 * MIB)?;
    let disk = Disk { queues: 2, workers: Some("one".to_owned()), ..Disk::new(&image) };
    let mut server = Server::start(&lab, &disk)?;

    let script = format!("{}\ntouch $job/loaded; until [ -e $job/over ]; do sleep 0.05; done", two_queue_script(48));
    let mut guest = Guest::boot(&lab, Kernel::Smp(2), &[server.device()], &script)?;
    guest.wait_for("started", LIMIT)?;
    let old = server.workers()?;
    ensure!(old.len() == 1, "the server was told to have one worker and names {old:?}");
    let workers = [old[0], server.new_worker()?];
    let mut rounds = 0_usize;
    guest.until("loaded", LIMIT, || {
        for ring in 0..2_u16 {
            server.attach(ring, workers[(rounds + usize::from(ring)) % workers.len()])?;
        }
        rounds += 1;
        ensure!(server.free_worker(workers[0]).is_err(), "a worker was freed that has a ring");
        Ok(())
    })?;
    ensure!(rounds > 4, "only {rounds} rounds of moves happened while the load ran");

    // A worker without rings goes, and nothing can be attached to it any more.
    server.attach(0, workers[0])?;
    server.attach(1, workers[0])?;
    server.free_worker(workers[1])?;
    ensure!(server.attach(0, workers[1]).is_err(), "a ring was attached to a worker that is gone");
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()
}

#[test]
fn readonly_disk_refuses_writes() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 16 * MIB)?;
    fs::write(&image, vec![0x5a; 16 << 20])?;
    let server = Server::start(&lab, &Disk { readonly: true, ..Disk::new(&image) })?;
    let script = "test $(cat /sys/block/vda/ro) = 1
         ! dd if=/dev/zero of=/dev/vda bs=4k count=1 oflag=direct
         # The driver's own guard is taken away: now the server has to refuse.
         blockdev --setrw /dev/vda || true
         ! dd if=/dev/zero of=/dev/vda bs=4k count=1 oflag=direct
         test $(dd if=/dev/vda bs=4k count=1 iflag=direct status=none | tr -d Z | wc -c) = 0";
    uml::run(&lab, Kernel::Debian, &[server.device()], script, LIMIT)?;
    drop(server);
    ensure!(fs::read(&image)?.iter().all(|byte| *byte == 0x5a), "a read-only image has changed");
    Ok(())
}

#[test]
fn next_guest_connects_after_one_was_killed() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 128 * MIB)?;
    let mut server = Server::start(&lab, &Disk::new(&image))?;
    let script = "mkfs.ext4 -q /dev/vda
         mount /dev/vda /mnt
         echo kept >/mnt/kept
         sync
         touch $job/synced
         fio --eta=never --name=busy --directory=/mnt --size=32m --time_based --runtime=600 --ioengine=libaio \
             --direct=1 --iodepth=64 --rw=randwrite --bs=4k";
    for _ in 0..3 {
        let mut guest = Guest::boot(&lab, Kernel::Debian, &[server.device()], script)?;
        guest.wait_for("synced", LIMIT)?;
        // Long enough for the load to be in full swing; no outcome depends on it.
        std::thread::sleep(Duration::from_millis(700));
        guest.kill();
        server.check_alive()?;
        // The journal heals what the cut left; a write that was promised must be there.
        let script = "mount /dev/vda /mnt
             grep -q kept /mnt/kept
             umount /mnt
             e2fsck -fn /dev/vda";
        uml::run(&lab, Kernel::Debian, &[server.device()], script, LIMIT)?;
        server.check_alive()?;
    }
    Ok(())
}
