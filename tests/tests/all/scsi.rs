//! Linux's SCSI driver in a User Mode Linux guest, on disks of vringd.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use tests::daemon::{self, Daemon};
use tests::device::Device;
use tests::image;
use tests::lab::Lab;
use tests::uml::{Guest, Kernel};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(180);

/// Writes at random places and reads all of it back, each block with a checksum of its own.
const FIO_VERIFY: &str = "fio --eta=never --name=verify --ioengine=libaio --direct=1 --iodepth=32 --rw=randwrite \
     --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --bsrange=4k-64k --blockalign=4k";

/// Disks that a guest finds at their LUNs, uses at once, also while the program is replaced, and sees come, grow and go.
#[test]
fn a_guest_uses_disks_that_come_grow_and_go() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = daemon::directory()?;
    let images = ["system", "data", "spare"].map(|name| image::sparse(directory.path(), name, 128 * MIB));
    let [system, data, spare] = images;
    let (system, data, spare) = (system?, data?, spare?);
    let at = |path: &std::path::Path| format!("storage = {{ kind = 'file', path = '{}' }}", path.display());
    let disk = |name: &str, path: &std::path::Path| format!("[[disk]]\nname = '{name}'\n{}\n", at(path));
    let socket = directory.path().join("vm.sock");
    let config = format!(
        "{}{}{}[[export]]\nname = 'vm'\nkind = 'scsi'\nsocket = '{}'\nworkers = 'per-queue'\nqueues = 2\n\
         luns = [{{ lun = 0, disk = 'system', serial = 'S-1' }}, {{ lun = '1:3', disk = 'data' }}]\n",
        disk("system", &system),
        disk("data", &data),
        disk("spare", &spare),
        socket.display()
    );
    let daemon = Daemon::serve_in(directory, &config)?;
    let script = format!(
        "wait_for() {{ n=0; until eval \"$1\"; do n=$((n + 1)); [ $n -lt 600 ] || {{ echo \"never: $1\"; exit 9; }}; sleep 0.05; done; }}
         # Their names come as their probes end, in any order.
         named() {{ ls /sys/class/scsi_device/*:$1/device/block 2>/dev/null; }}
         wait_for '[ -b /dev/$(named 0:0) ] && [ -b /dev/$(named 1:3) ]'
         system=$(named 0:0); data=$(named 1:3)
         cat /sys/block/$system/device/vendor | grep VRINGD
         [ \"$(cat /sys/block/$system/queue/write_cache)\" = 'write back' ]
         [ $(cat /sys/block/$system/queue/discard_max_bytes) -gt 0 ]
         {FIO_VERIFY} --filename=/dev/$data --size=32m --fsync=64 &
         fio_of_data=$!
         mkfs.ext4 -q -b 4096 /dev/$system
         mount /dev/$system /mnt
         {FIO_VERIFY} --directory=/mnt --size=32m
         wait $fio_of_data
         dd if=/dev/urandom of=/mnt/filler bs=1M count=32 conv=fsync status=none
         sync; touch $job/filled; wait_for '[ -e $job/measured ]'
         rm /mnt/filler; sync; fstrim -v /mnt
         echo kept >/mnt/kept
         umount /mnt; e2fsck -fn /dev/$system
         touch $job/used
         {FIO_VERIFY} --filename=/dev/$data --size=64m --rate_iops=2000
         touch $job/loaded
         wait_for '[ -b /dev/$(named 0:7) ]'
         # Not by the end of who has it open last, which may be the kernel that looks for partitions.
         spare=$(named 0:7)
         echo other | dd of=/dev/$spare conv=fsync status=none
         touch $job/other
         wait_for '[ $(cat /sys/block/$data/size) = {grown} ]'
         touch $job/grew
         wait_for '[ ! -e /sys/block/$spare ]'",
        grown = 256 * MIB / 512
    );
    let device = Device::Scsi { socket, queues: 2 };
    let mut guest = Guest::boot(&lab, Kernel::Smp(2), &[device], &script)?;
    guest.wait_for("filled", LIMIT)?;
    let filled_bytes = image::allocated_bytes(&system)?;
    guest.tell("measured")?;
    guest.wait_for("used", LIMIT)?;
    let trimmed_bytes = image::allocated_bytes(&system)?;
    ensure!(trimmed_bytes + 24 * MIB < filled_bytes, "{trimmed_bytes} of {filled_bytes} bytes are left by fstrim");
    // The unit that the next program serves says that it was powered on, which the driver takes note of and goes on.
    for _ in 0..3 {
        daemon.upgrade()?;
    }
    guest.wait_for("loaded", LIMIT)?;
    let unit = serde_json::json!({ "lun": 7, "disk": "spare" });
    daemon.client().send::<serde_json::Value>(Method::POST, "/v1/exports/vm/luns", &unit)?;
    guest.wait_for("other", LIMIT)?;
    ensure!(fs::read(&spare)?.starts_with(b"other\n"), "what the guest has written is not there");
    let capacity = serde_json::json!({ "capacity_bytes": 256 * MIB });
    daemon.client().send::<serde_json::Value>(Method::PUT, "/v1/disks/data/capacity", &capacity)?;
    guest.wait_for("grew", LIMIT)?;
    daemon.client().order(Method::DELETE, "/v1/exports/vm/luns/7")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    let mut fsck = lab.command_in_root("usr/sbin/e2fsck");
    tests::process::run(fsck.args(["-f", "-n"]).arg(&system)).context("the file system of LUN 0")?;
    Ok(())
}
