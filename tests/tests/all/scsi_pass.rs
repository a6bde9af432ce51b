//! SCSI devices of a host, passed through: in a QEMU guest, which is the host here. Its devices are a disk of ours, with all that such a disk
//! can, and what Linux plays (scsi_debug), with errors at a place of its own.

use std::time::Duration;

use anyhow::{Context, Result};
use tests::daemon::Daemon;
use tests::debian::Debian;
use tests::device::Device;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::vringd;

const LIMIT: Duration = Duration::from_secs(400);

/// With our programs in /mnt.
const INSIDE: &str = r#"
export HOME=/tmp XDG_RUNTIME_DIR=/tmp
sg_of() { for device in /sys/class/scsi_generic/*; do case $(cat $device/device/vendor) in $1*) echo /dev/${device##*/} ;; esac; done; }
wait_for() { n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 600 ] || { echo "never: $1"; cat /tmp/*.log; exit 9; }; sleep 0.1; done; }
# What comes of a command: response, status, residual, sense data, data.
is() { wanted=$1; shift; got=$(/mnt/scsi_tool "$@"); case $got in $wanted) ;; *) echo "$*: $got instead of $wanted"; cat /tmp/*.log; exit 9 ;; esac; }
refused() { expected=$1 wanted=$2; shift 2; status=0; said=$("$@" 2>&1) || status=$?; [ $status = $expected ] && case $said in *$wanted*) ;; *) false ;; esac || { echo "$*: $status: $said"; exit 9; }; }
serve() { name=$1; shift; /mnt/vringd scsi --socket /tmp/$name.sock --control /tmp/$name.control "$@" >/tmp/$name.log 2>&1 & wait_for "[ -S /tmp/$name.sock ]"; }
ended() { kill $1; wait $1 || true; }

wait_for '[ -n "$(sg_of VRINGD)" ] && [ -n "$(sg_of Linux)" ]'
ours=$(sg_of VRINGD) plays=$(sg_of Linux)
block=/dev/$(ls /sys/class/scsi_generic/${ours#/dev/}/device/block)

mkdir /tmp/there
mke2fs -q -t ext4 $block
mount -t ext4 $block /tmp/there
refused 2 'this host uses its block device' /mnt/vringd scsi --socket /tmp/other.sock --lun 0=sg:$ours
umount /tmp/there
serve pass --lun 0=sg:$ours --lun 1=sg:$plays
pass=$!
# The host could mount it before, cannot now, and can again behind it.
refused 32 'open blockdev' mount -t ext4 $block /tmp/there
# Each says what it is, by itself: vendor, serial number.
is '0 0 0 - ????????????????5652494e4744*' /tmp/pass.sock 0 120000002400 --in 36
is '0 0 0 - ????????????????4c696e7578*' /tmp/pass.sock 1 120000002400 --in 36
is '0 0 * - 00800003532d31' /tmp/pass.sock 0 120180004000 --in 64
# Two units, whatever the devices say.
is '0 0 * - 0000001000000000*' /tmp/pass.sock 0 a00000000000000000400000 --in 64
# What is written is read, here and on the host.
head -c 4096 /dev/urandom >/tmp/data
data=$(od -An -v -tx1 /tmp/data | tr -d ' \n')
is '0 0 0 - -' /tmp/pass.sock 0 2a000000004000000800 --out /tmp/data
is "0 0 0 - $data" /tmp/pass.sock 0 28000000004000000800 --in 4096
dd if=$block bs=512 skip=64 count=8 iflag=direct status=none | cmp - /tmp/data
/mnt/vringd-bench bench disk --socket /tmp/pass.sock --protocol scsi --rw randrw --verify --bs 4k --depth 8 --time 3s >/tmp/bench.log
# Reservations are the device's.
printf '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\241\0\0\0\0\0\0\0\0' >/tmp/register
is '0 0 0 - -' /tmp/pass.sock 0 5f000000000000001800 --out /tmp/register
is '0 0 * - 000000010000000800000000000000a1' /tmp/pass.sock 0 5e000000000000002000 --in 32
sg_persist --no-inquiry --in --read-keys $block | grep 0xa1
# Errors and their places are the device's: UNRECOVERED READ ERROR at block 0x1234.
is '0 2 * ??0003000012*11*' /tmp/pass.sock 1 28000000123400000100 --in 512
is '0 2 * ??0005*21*' /tmp/pass.sock 1 28007fffffff00000100 --in 512
# What reaches beyond the device is not sent.
is '0 2 * ??0005*20*' /tmp/pass.sock 1 83000000000000000000000000000000
is '0 2 * ??0005*20*' /tmp/pass.sock 1 85060000000000000000000000009200
is '0 2 * ??0005*20*' /tmp/pass.sock 1 3b050000000000000000
# Nobody else has it: no other daemon, and not the host.
refused 2 'is in use' /mnt/vringd scsi --socket /tmp/other.sock --lun 0=sg:$ours
refused 2 'passes SCSI commands through' /mnt/vringd disk --socket /tmp/other.sock --storage sg $ours
# The next program goes on with the same descriptor.
/mnt/vringd ctl --control /tmp/pass.control upgrade
is "0 0 0 - $data" /tmp/pass.sock 0 28000000004000000800 --in 4096
refused 2 'is in use' /mnt/vringd scsi --socket /tmp/other.sock --lun 0=sg:$ours
/mnt/vringd ctl --control /tmp/pass.control lun list scsi | grep sg
ended $pass

# This one takes new microcode, if it is sent.
serve wild --lun 0=sg:$plays --sg-unfiltered
wild=$!
is '0 0 * - -' /tmp/wild.sock 0 3b050000000000000000
# Who comes behind a daemon that was killed has the device.
kill -9 $wild
wait $wild || true
rm -f /tmp/wild.sock /tmp/wild.control
serve wild --lun 0=sg:$plays
ended $!

# For reading.
serve reader --lun 0=sg:$ours --readonly
reader=$!
is "0 0 0 - $data" /tmp/reader.sock 0 28000000004000000800 --in 4096
is '0 2 * ??0007*27*' /tmp/reader.sock 0 2a000000004000000800 --out /tmp/data
is '0 2 * ??0007*27*' /tmp/reader.sock 0 5f000000000000001800 --out /tmp/register
is '0 0 * - 000000010000000800000000000000a1' /tmp/reader.sock 0 5e000000000000002000 --in 32
refused 2 'is in use' /mnt/vringd scsi --socket /tmp/other.sock --lun 0=sg:$ours --readonly
ended $reader
mke2fs -q -F -t ext4 $block
mount -t ext4 $block /tmp/there
umount /tmp/there

# Reservations by way of QEMU's helper.
refused 1 'cannot connect to the helper' /mnt/vringd scsi --socket /tmp/other.sock --lun 0=sg:$ours --pr-helper /tmp/helper.sock
qemu-pr-helper -k /tmp/helper.sock >/tmp/helper.log 2>&1 &
helper=$!
wait_for '[ -S /tmp/helper.sock ]'
serve helped --lun 0=sg:$ours --pr-helper /tmp/helper.sock
helped=$!
is '0 0 * - 000000010000000800000000000000a1' /tmp/helped.sock 0 5e000000000000002000 --in 32
printf '\0\0\0\0\0\0\0\241\0\0\0\0\0\0\0\242\0\0\0\0\0\0\0\0' >/tmp/again
is '0 0 0 - -' /tmp/helped.sock 0 5f000000000000001800 --out /tmp/again
is '0 0 * - 000000020000000800000000000000a2' /tmp/helped.sock 0 5e000000000000002000 --in 32
# More than the helper takes at once is asked for in its measure.
is '0 0 * - 000000020000000800000000000000a2' /tmp/helped.sock 0 5e000000000000ffff00 --in 65535
# With a key that is none: RESERVATION CONFLICT, as the device says.
is '0 24 *' /tmp/helped.sock 0 5f010500000000001800 --out /tmp/again
ended $helper
is '0 2 * ??000b*08*' /tmp/helped.sock 0 5e000000000000002000 --in 32
ended $helped
"#;

#[test]
fn devices_of_the_host_are_passed_through() -> Result<()> {
    let lab = Lab::take_turn();
    let daemon = Daemon::serve(
        "[[disk]]\nname = 'd'\nstorage = { kind = 'memory', size = '64M' }\n[[export]]\nname = 'vm'\nkind = 'scsi'\n\
         socket = '@DIR@/vm.sock'\nluns = [{ lun = 0, disk = 'd', serial = 'S-1' }]\n",
    )?;
    let tool = vringd::beside_the_test("scsi_tool")?;
    let place = tool.parent().context("a program lies in a directory")?;
    let programs = DirectoryServer::start(&lab, &Directory::new(place).tag("programs").option("--readonly"))?;
    let devices = [
        Device::Scsi { socket: daemon.socket("vm"), queues: 1 },
        Device::Directory { socket: programs.socket(), tag: "programs".to_owned(), queues: 1 },
    ];
    let mut host = Debian::boot(&lab, &devices)?;
    // A disk of 8 MiB; opts=2: a medium error at block 0x1234.
    host.load("scsi_debug", "dev_size_mb=8 opts=2")?;
    host.run("mount -t virtiofs programs /mnt", LIMIT)?;
    host.run(INSIDE, LIMIT).with_context(|| format!("the daemon said:\n{}", daemon.output()))?;
    daemon.stop()
}
