//! Linux's SCSI driver in User Mode Linux and QEMU guests, on disks of vringd: file systems, sg3-utils, and what comes, grows and goes.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use tests::daemon::{self, Daemon};
use tests::debian::Debian;
use tests::device::Device;
use tests::image;
use tests::lab::Lab;
use tests::script::WAIT_FOR;
use tests::uml::{self, Guest, Kernel};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(180);
const DISCARD_LIMIT: Duration = Duration::from_secs(60);

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
    let at = |path: &Path| format!("storage = {{ kind = 'file', path = '{}' }}", path.display());
    let disk = |name: &str, path: &Path| format!("[[disk]]\nname = '{name}'\n{}\n", at(path));
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
        "{WAIT_FOR}
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

/// A file system whose deletions become discards, at once (`-o discard`) or by fstrim.
struct FileSystem {
    name: &'static str,
    mkfs: &'static str,
    check: &'static str,
}

const FILE_SYSTEMS: [FileSystem; 2] = [
    FileSystem { name: "ext4", mkfs: "mkfs.ext4 -q -E lazy_itable_init=0", check: "e2fsck -fn" },
    FileSystem { name: "xfs", mkfs: "mkfs.xfs -q", check: "xfs_repair -n" },
];

/// What a deleted file took leaves the image, by either way, and nothing else is lost with it.
#[test]
fn file_systems_give_back_what_is_deleted() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = daemon::directory()?;
    let (mut disks, mut luns, mut images) = (String::new(), String::new(), Vec::new());
    for (lun, FileSystem { name, .. }) in FILE_SYSTEMS.iter().enumerate() {
        // xfs wants 300 MiB.
        let image = image::sparse(directory.path(), name, 320 * MIB)?;
        disks += &format!("[[disk]]\nname = '{name}'\nstorage = {{ kind = 'file', path = '{}' }}\n", image.display());
        luns += &format!("{{ lun = {lun}, disk = '{name}' }}, ");
        images.push(image);
    }
    let export = format!("[[export]]\nname = 'vm'\nkind = 'scsi'\nsocket = '@DIR@/vm.sock'\nluns = [{luns}]\n");
    let daemon = Daemon::serve_in(directory, &format!("{disks}{export}"))?;
    let mut guest = Debian::boot(&lab, &[Device::Scsi { socket: daemon.socket("vm"), queues: 2 }])?;
    guest.load("xfs", "")?;
    for (lun, (system, image)) in FILE_SYSTEMS.iter().zip(&images).enumerate() {
        let tried = gives_back_what_is_deleted(&mut guest, lun, system, image);
        tried.with_context(|| format!("{}; the daemon said:\n{}", system.name, daemon.output()))?;
    }
    drop(guest);
    daemon.stop()
}

fn gives_back_what_is_deleted(guest: &mut Debian, lun: usize, system: &FileSystem, image: &Path) -> Result<()> {
    const FILLER_MIB: u64 = 48;
    /// Not to the byte: a journal is written meanwhile.
    const MOST_OF_IT: u64 = (FILLER_MIB - 8) * MIB;
    let FileSystem { name, mkfs, check } = system;
    let fill = format!("dd if=/dev/urandom of=/mnt/filler bs=1M count={FILLER_MIB} conv=fsync status=none; sync");
    let mut run = |script: &str| {
        let script = format!(
            "wait_for '[ -b /dev/$(ls /sys/class/scsi_device/*:{lun}/device/block) ]'
             disk=/dev/$(ls /sys/class/scsi_device/*:{lun}/device/block)
             {script}"
        );
        guest.run(&script, LIMIT)
    };
    run(&format!(
        "{mkfs} $disk
         mount -t {name} -o discard $disk /mnt
         {FIO_VERIFY} --directory=/mnt --size=16m
         sha256sum /mnt/verify.* >/tmp/{name}.sums; sync"
    ))?;
    let used = image::allocated_bytes(image)?;
    run(&fill)?;
    let filled = image_takes(image, |bytes| bytes >= used + MOST_OF_IT)?;
    run("rm /mnt/filler; sync")?;
    let discarded = image_takes(image, |bytes| bytes + MOST_OF_IT <= filled)?;
    // Without the option only fstrim does so.
    run(&format!("umount /mnt; mount -t {name} $disk /mnt; {fill}"))?;
    let filled = image_takes(image, |bytes| bytes >= discarded + MOST_OF_IT)?;
    run("rm /mnt/filler; sync")?;
    ensure!(image::allocated_bytes(image)? + MOST_OF_IT > filled, "it discards without being told to");
    run("fstrim -v /mnt")?;
    image_takes(image, |bytes| bytes + MOST_OF_IT <= filled)?;
    run(&format!(
        "sha256sum -c --quiet /tmp/{name}.sums
         umount /mnt; {check} $disk
         mount -t {name} $disk /mnt; sha256sum -c --quiet /tmp/{name}.sums; umount /mnt"
    ))?;
    Ok(())
}

/// Waits until an image takes as much of the host as wanted: a file system sends discards behind the commit of which they are a part.
fn image_takes(image: &Path, is_enough: impl Fn(u64) -> bool) -> Result<u64> {
    let start = Instant::now();
    loop {
        let bytes = image::allocated_bytes(image)?;
        if is_enough(bytes) {
            return Ok(bytes);
        }
        ensure!(start.elapsed() < DISCARD_LIMIT, "the image still takes {bytes} bytes");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Every command that sg3-utils can send to a disk.
const SG3: &str = r#"
     refused() { wanted=$1; shift; status=0; "$@" >/dev/null 2>&1 || status=$?; [ $status = $wanted ] || { echo "$*: $status"; exit 9; }; }
     wait_for '[ -b /dev/$(ls /sys/class/scsi_device/*:0:0/device/block 2>/dev/null) ]'
     disk=/dev/$(ls /sys/class/scsi_device/*:0:0/device/block)
     # What sg_turs says is not in its status.
     ready() { sg_raw $disk 00 00 00 00 00 00; }
     ready || ready
     sg_turs --number=10 $disk
     sg_inq $disk | grep VRINGD
     sg_inq --page=0x80 $disk | grep S-1
     for page in sv sn di bl bdc lbpv; do sg_vpd --page=$page $disk; done
     sg_vpd --page=lbpv $disk | grep LBPU=1
     sg_luns $disk
     sg_readcap $disk
     sg_readcap --16 $disk | grep 'Number of logical blocks=32768'
     sg_opcodes $disk | grep 'Compare and write'
     sg_opcodes --opcode=0x28 $disk
     sg_opcodes --tmf $disk | grep -i 'logical unit reset'
     sg_requests $disk
     sg_modes --all $disk | grep -i caching
     sg_modes --page=0xa --hex $disk
     # MODE SELECT (6) of the caching page: WCE off, and on again.
     for wce in 0 4; do
         printf '\0\0\0\0\10\22'"\\$wce"'\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >/tmp/page
         sg_raw --send=24 --infile=/tmp/page $disk 15 10 00 00 18 00
         sg_modes --page=8 --hex $disk | grep "00     08 12 0$wce"
     done
     sg_logs --page=0 $disk
     sg_prevent --prevent=1 $disk; sg_prevent --allow $disk
     sg_start --stop $disk
     refused 2 ready
     sg_start --start $disk
     ready
     sg_sync $disk; sg_sync --16 --lba=0 --count=8 $disk
     # What is written is there, is compared, is written over, is gone.
     head -c 8192 /dev/urandom >/tmp/data; head -c 512 /tmp/data >/tmp/block; head -c 512 /dev/zero >/tmp/zeroes
     content() { dd if=$disk bs=512 skip=$1 count=$2 iflag=direct status=none; }
     sg_write_verify --16 --lba=64 --num=16 --in=/tmp/data $disk
     content 64 16 | cmp - /tmp/data
     sg_dd if=$disk of=/tmp/read bs=512 skip=64 count=16 blk_sgio=1; cmp /tmp/read /tmp/data
     sg_dd if=/tmp/data of=$disk bs=512 seek=128 count=16 blk_sgio=1 oflag=fua; content 128 16 | cmp - /tmp/data
     sg_verify --lba=64 --count=16 $disk
     sg_verify --lba=64 --count=16 --ndo=8192 --in=/tmp/data $disk
     refused 14 sg_verify --lba=65 --count=1 --ndo=512 --in=/tmp/block $disk
     cat /tmp/block /tmp/zeroes >/tmp/swap
     sg_compare_and_write --lba=64 --num=1 --in=/tmp/swap $disk
     content 64 1 | cmp - /tmp/zeroes
     refused 14 sg_compare_and_write --lba=64 --num=1 --in=/tmp/swap $disk
     sg_write_same --10 --lba=256 --num=32 --in=/tmp/block $disk; content 287 1 | cmp - /tmp/block
     sg_write_same --16 --lba=256 --num=8 --ndob $disk; content 263 1 | cmp - /tmp/zeroes; content 264 1 | cmp - /tmp/block
     sg_write_same --unmap --lba=264 --num=8 --in=/tmp/zeroes $disk; content 271 1 | cmp - /tmp/zeroes
     sg_unmap --lba=64,128 --num=16,16 --force $disk || sg_unmap --lba=64,128 --num=16,16 $disk
     content 65 1 | cmp - /tmp/zeroes; content 143 1 | cmp - /tmp/zeroes
     sg_get_lba_status --lba=0 $disk
     sg_rtpg $disk
     # Reservations.
     pr() { sg_persist --no-inquiry "$@" $disk; }
     pr --out --register --param-sark=0xa1
     pr --in --read-keys | grep 0xa1
     for type in 1 3 5 6 7 8; do
         pr --out --reserve --param-rk=0xa1 --prout-type=$type
         pr --in --read-reservation | grep scope
         pr --out --release --param-rk=0xa1 --prout-type=$type
     done
     pr --in --report-capabilities; pr --in --read-full-status | grep 'Key=0xa1'
     refused 24 sg_persist --no-inquiry --out --reserve --param-rk=0xbad --prout-type=1 $disk
     pr --out --register-ignore --param-sark=0xa2
     pr --out --reserve --param-rk=0xa2 --prout-type=3
     pr --out --preempt --param-rk=0xa2 --param-sark=0xa2 --prout-type=5
     pr --out --preempt-abort --param-rk=0xa2 --param-sark=0xa2 --prout-type=5
     pr --in --read-reservation | grep 'Write Exclusive, registrants only'
     pr --out --clear --param-rk=0xa2
     pr --in --read-keys | grep 'NO registered'
     refused 19 sg_persist --no-inquiry --out --register --param-aptpl --param-sark=0xa1 $disk
     sg_reset --device $disk
     refused 6 ready; ready
     # What no disk of ours has is said so.
     refused 9 sg_sanitize --quick --crypto $disk
     refused 9 sg_rep_zones $disk
     refused 9 sg_read_long --lba=0 $disk
     refused 5 sg_ident $disk
     dd if=/dev/zero of=$disk bs=1M count=16 oflag=direct status=none
"#;

#[test]
fn sg3_utils_find_what_they_ask_for() -> Result<()> {
    let lab = Lab::take_turn();
    let daemon = Daemon::serve(
        "[[disk]]\nname = 'd'\nstorage = { kind = 'memory', size = '16M' }\n[[export]]\nname = 'vm'\nkind = 'scsi'\n\
         socket = '@DIR@/vm.sock'\nwrite_cache = 'guest'\nluns = [{ lun = 0, disk = 'd', serial = 'S-1' }]\n",
    )?;
    let device = |queues| Device::Scsi { socket: daemon.socket("vm"), queues };
    let said = || format!("the daemon said:\n{}", daemon.output());
    uml::run(&lab, Kernel::Smp(2), &[device(1)], &format!("{WAIT_FOR}\n{SG3}"), LIMIT).with_context(said)?;
    // The same over PCI, by another kernel and another frontend.
    Debian::boot(&lab, &[device(2)])?.run(SG3, LIMIT).with_context(said)?;
    Ok(())
}
