//! One disk behind several SCSI devices, in guests: whoever has reserved it keeps the others out, in the order of Pacemaker's `fence_scsi` and in that
//! of Windows clusters, and a guest that has two of the devices has one disk on two paths.

use std::time::Duration;

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

/// Finds the disk of a guest, and sends commands on its reservations: one that hears of something else first is sent again, as the kernel does
/// with its own.
const ON_THE_DISK: &str = "wait_for '[ -b /dev/$(ls /sys/class/scsi_device/*:0:0/device/block 2>/dev/null) ]'
         disk=/dev/$(ls /sys/class/scsi_device/*:0:0/device/block)
         pr() { sg_persist --no-inquiry \"$@\" $disk || sg_persist --no-inquiry \"$@\" $disk; }
         sg_turs $disk || true";

const IN_MEMORY: &str = "storage = { kind = 'memory', size = '64M' }";

/// A disk of which each node has a device.
fn cluster(disk: &str, nodes: &[&str]) -> String {
    let mut config = format!("[[disk]]\nname = 'quorum'\nshared = true\n{disk}\n");
    for node in nodes {
        let luns = "[{ lun = 0, disk = 'quorum' }]";
        config += &format!("[[export]]\nname = '{node}'\nkind = 'scsi'\nsocket = '@DIR@/{node}.sock'\nluns = {luns}\n");
    }
    config
}

/// What a guest has reserved for good (APTPL) keeps others out behind the death of the daemon, in a live upgrade and until an operator says
/// otherwise.
#[test]
fn what_is_reserved_for_good_outlives_the_daemon() -> Result<()> {
    let lab = Lab::take_turn();
    let place = daemon::directory()?;
    let image = image::sparse(place.path(), "quorum.img", 16 * MIB)?;
    let kept = place.path().join("quorum.reservations");
    let disk =
        format!("storage = {{ kind = 'file', path = '{}' }}\nreservations = '{}'", image.display(), kept.display());
    let config = cluster(&disk, &["node1", "node2"]);
    let reserves = format!(
        "{WAIT_FOR}
         {ON_THE_DISK}
         pr --in --report-capabilities >/tmp/can; grep 'PTPL_C): 1' /tmp/can; grep 'PTPL_A): 0' /tmp/can
         pr --out --register-ignore --param-sark=0x1 --param-aptpl
         pr --out --reserve --param-rk=0x1 --prout-type=3
         pr --in --report-capabilities | grep 'PTPL_A): 1'"
    );
    let is_out = format!(
        "{WAIT_FOR}
         {ON_THE_DISK}
         pr --in --read-keys | grep 0x1
         ! dd if=$disk of=/dev/null bs=4k count=1 iflag=direct
         touch $job/out; wait_for '[ -e $job/broken ]'
         ! pr --in --read-keys | grep 0x1
         dd if=/dev/zero of=$disk bs=4k count=1 oflag=direct"
    );
    let boot = |daemon: &Daemon, export: &str, script: &str| {
        let device = Device::Scsi { socket: daemon.socket(export), queues: 1 };
        Guest::boot(&lab, Kernel::Smp(2), &[device], script)
    };
    let daemon = Daemon::serve(&config)?;
    let ended = boot(&daemon, "node1", &reserves)?.wait(LIMIT)?;
    ensure!(ended.status == 0, "{}\nthe daemon said:\n{}", ended.console, daemon.output());
    daemon.upgrade()?;
    // SIGKILL.
    drop(daemon);
    let daemon = Daemon::serve(&config)?;
    let mut out = boot(&daemon, "node2", &is_out)?;
    out.wait_for("out", LIMIT)?;
    daemon.client().order(Method::DELETE, "/v1/disks/quorum/reservations")?;
    out.tell("broken")?;
    let ended = out.wait(LIMIT)?;
    ensure!(ended.status == 0, "{}\nthe daemon said:\n{}", ended.console, daemon.output());
    daemon.stop()
}

/// Two guests have one disk, and one of them fences the other in the order of Pacemaker's `fence_scsi`, while that writes.
#[test]
fn a_guest_that_is_fenced_writes_nothing_any_more() -> Result<()> {
    let lab = Lab::take_turn();
    let daemon = Daemon::serve(&cluster(IN_MEMORY, &["node1", "node2"]))?;
    let common = format!(
        "{WAIT_FOR}
         {ON_THE_DISK}
         put() {{ dd if=/tmp/$1 of=$disk bs=64k count=4 oflag=direct conv=notrunc status=none; }}
         head -c 262144 /dev/urandom >/tmp/mine"
    );
    let fenced = format!(
        "{common}
         pr --out --register-ignore --param-sark=0x1
         touch $job/registered; wait_for '[ -e $job/held ]'
         put mine; touch $job/writes
         while put mine 2>/dev/null; do :; done
         # It reads, and knows that it is out.
         dd if=$disk of=/dev/null bs=64k count=4 iflag=direct status=none
         pr --in --read-keys | grep 0x2
         ! pr --in --read-keys | grep 0x1
         ! put mine
         touch $job/out; wait_for '[ -e $job/unfenced ]'
         pr --out --register-ignore --param-sark=0x1
         put mine
         touch $job/done"
    );
    let fences = format!(
        "{common}
         pr --out --register-ignore --param-sark=0x2
         pr --out --reserve --param-rk=0x2 --prout-type=5
         touch $job/held; wait_for '[ -e $job/writes ]'
         pr --out --preempt-abort --param-rk=0x2 --param-sark=0x1 --prout-type=5
         put mine
         n=0; while [ $n -lt 100 ]; do dd if=$disk bs=64k count=4 iflag=direct status=none | cmp - /tmp/mine; n=$((n + 1)); done
         touch $job/fenced; wait_for '[ -e $job/out ]'
         dd if=$disk bs=64k count=4 iflag=direct status=none | cmp - /tmp/mine
         touch $job/unfenced; wait_for '[ -e $job/done ]'
         ! dd if=$disk bs=64k count=4 iflag=direct status=none | cmp -s - /tmp/mine"
    );
    let boot = |export: &str, script: &str| {
        let device = Device::Scsi { socket: daemon.socket(export), queues: 1 };
        Guest::boot(&lab, Kernel::Smp(2), &[device], script)
    };
    let (mut fenced, mut fences) = (boot("node1", &fenced)?, boot("node2", &fences)?);
    fenced.wait_for("registered", LIMIT)?;
    fences.wait_for("held", LIMIT)?;
    fenced.tell("held")?;
    fenced.wait_for("writes", LIMIT)?;
    fences.tell("writes")?;
    fences.wait_for("fenced", LIMIT)?;
    fenced.wait_for("out", LIMIT)?;
    fences.tell("out")?;
    fences.wait_for("unfenced", LIMIT)?;
    fenced.tell("unfenced")?;
    fenced.wait_for("done", LIMIT)?;
    fences.tell("done")?;
    for (name, guest) in [("node1", fenced), ("node2", fences)] {
        let ended = guest.wait(LIMIT)?;
        ensure!(ended.status == 0, "{name} failed:\n{}\nthe daemon said:\n{}", ended.console, daemon.output());
    }
    Ok(())
}

/// The map that multipathd makes of two paths, and what goes on there.
const ON_THE_MAP: &str = r#"
map=/dev/mapper/1VRINGD_quorum
active() { dmsetup status $map | grep -o ' [0-9]*:[0-9]* A ' | wc -l; }
failed() { dmsetup status $map | grep -o ' [0-9]*:[0-9]* F ' | wc -l; }
# What was written by a path since it came.
written() { read -r _ _ _ _ _ _ sectors _ </sys/block/$1/stat; echo $sectors; }
works() { before=$(written $1); wait_for '[ $(written '$1') -gt $((before + 1000)) ]'; }
"#;

/// A guest with udev and multipathd. Debian's root is read-only, and they write to /etc.
const MULTIPATH: &str = r#"
mkdir /tmp/etc
cd /etc; cp -a passwd group nsswitch.conf ld.so.cache udev /tmp/etc; cd /tmp
mount --bind /tmp/etc /etc
cat >/etc/multipath.conf <<'END'
defaults {
    find_multipaths no
    user_friendly_names no
    polling_interval 1
    max_polling_interval 1
    path_checker tur
    no_path_retry queue
    reservation_key 0xa1
}
END
/usr/lib/systemd/systemd-udevd --daemon
udevadm trigger --subsystem-match=block --action=add
udevadm settle
multipathd -v2 -d >/tmp/multipathd.log 2>&1 &
wait_for '[ -b $map ] && [ $(active) = 2 ]'
# It is one disk on two ports of one group, which is active and optimized.
sg_rtpg --decode $map | grep -i 'active/optimized'
[ "$(cat /sys/class/scsi_device/*/device/access_state | uniq -c | tr -s ' ')" = ' 2 active/optimized' ]

# Both paths are registered, and write beside the reservation that one of them has made.
mpathpersist --out --register --param-sark=0xa1 $map
mpathpersist --out --reserve --param-rk=0xa1 --prout-type=5 $map
mpathpersist --in --read-full-status $map >/tmp/status
[ $(grep -c 'Key = 0xa1' /tmp/status) = 2 ]
[ $(grep 'Relative port address' /tmp/status | sort -u | wc -l) = 2 ]
[ $(grep -c 'Reservation holder' /tmp/status) = 1 ]

fio --eta=never --name=verify --ioengine=libaio --direct=1 --iodepth=8 --rw=randwrite --bsrange=4k-64k --blockalign=4k --randseed=7 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_backlog=256 --filename=$map --size=16m --time_based --runtime=170 >/tmp/fio.log 2>&1 &
echo $! >/tmp/fio.pid
for path in /sys/block/dm-0/slaves/*; do works ${path##*/}; done
"#;

/// Linux's multipath driver takes the disk of two devices for one disk on two paths: it goes on by the other one when one is taken out of its
/// device, and by both when that is back, under a reservation all the while.
#[test]
fn a_guest_goes_on_by_the_path_that_is_left() -> Result<()> {
    let lab = Lab::take_turn();
    let daemon = Daemon::serve(&cluster(IN_MEMORY, &["path1", "path2"]))?;
    let device = |export| Device::Scsi { socket: daemon.socket(export), queues: 2 };
    let mut guest = Debian::boot(&lab, &[device("path1"), device("path2")])?;
    guest.load("multipath", "")?;
    let mut run = |script: &str| {
        let ended = guest.run(&format!("{ON_THE_MAP}\n{script}"), LIMIT);
        ended.with_context(|| format!("the daemon said:\n{}", daemon.output()))
    };
    run(MULTIPATH)?;
    daemon.client().order(Method::DELETE, "/v1/exports/path2/luns/0")?;
    // What was under way there fails, and is sent by the other path; then the path is none any more.
    run("wait_for '[ $(active) = 1 ] && [ $(failed) = 0 ]'
         dmesg | grep 'multipath: .* Failing path'
         works $(ls /sys/block/dm-0/slaves)")?;
    let unit = serde_json::json!({ "lun": 0, "disk": "quorum" });
    daemon.client().send::<serde_json::Value>(Method::POST, "/v1/exports/path2/luns", &unit)?;
    run("wait_for '[ $(active) = 2 ]'
         for path in /sys/block/dm-0/slaves/*; do works ${path##*/}; done
         # One that the driver takes for failed is so until TEST UNIT READY says otherwise.
         dev=$(cat $path/dev)
         dmsetup message $map 0 \"fail_path $dev\"
         wait_for '[ $(active) = 2 ]'
         # The driver counts failures, and takes none back by itself: multipathd did, which need not have known of it before.
         dmsetup status $map | grep \" $dev A [1-9]\"
         works ${path##*/}
         # Each block was read again soon after it was written.
         kill -INT $(cat /tmp/fio.pid); wait_for '! [ -e /proc/$(cat /tmp/fio.pid) ]'
         grep 'err= 0' /tmp/fio.log || { cat /tmp/fio.log; exit 9; }
         mpathpersist --out --release --param-rk=0xa1 --prout-type=5 $map
         mpathpersist --out --register --param-rk=0xa1 --param-sark=0 $map
         mpathpersist --in --read-keys $map | grep '[^0-9]0 registered'")?;
    drop(guest);
    daemon.stop()
}

/// Three nodes and their disk, commands of theirs, and what must come of them.
const NODES: &str = r#"
disks() { for block in /sys/class/scsi_device/*:0:0/device/block/*; do [ -e $block ] && echo /dev/${block##*/}; done; }
wait_for '[ $(disks | wc -l) = 3 ]'
set -- $(disks); one=$1 two=$2 three=$3
fails() { echo "$*"; exit 9; }
ready() { sg_raw $1 00 00 00 00 00 00; }
for node in $one $two $three; do until ready $node; do :; done; done
# STATUS NODE SERVICE-ACTION OPTIONS: a PERSISTENT RESERVE OUT ends with this status of sg_persist's: 0 is GOOD, 24 RESERVATION CONFLICT.
out() {
    wanted=$1 node=$2 action=$3; shift 3; status=0
    sg_persist --no-inquiry --out --$action "$@" $node || status=$?
    [ $status = $wanted ] || fails "$action $* of $node: $status instead of $wanted"
}
registers() { out 0 $1 register-ignore --param-sark=$2; }
reserves() { out $1 $2 reserve --param-rk=$3 --prout-type=5; }
releases() { out $1 $2 release --param-rk=$3 --prout-type=5; }
# ACTION NODE KEY VICTIMS-KEY
preempts() { out 0 $2 $1 --param-rk=$3 --param-sark=$4 --prout-type=5; }
# Every node reads the same keys, in any order, and the same holder.
keys() {
    for node in $one $two $three; do
        read_keys=$(sg_persist --no-inquiry --in --read-keys $node | grep -o '^ *0x[0-9a-f]*$' | sort | tr -d '\n' | tr -s ' ')
        [ "$read_keys" = "${1:+ $1}" ] || fails "the keys are$read_keys instead of $1"
    done
}
held_by() {
    for node in $one $two $three; do
        sg_persist --no-inquiry --in --read-reservation $node >/tmp/held
        case $1 in
        nobody) grep 'there is NO reservation held' /tmp/held ;;
        *) grep "Key=$1\$" /tmp/held && grep 'LU_SCOPE,  type: Write Exclusive, registrants only' /tmp/held ;;
        esac || fails "$node does not read that $1 holds it: $(cat /tmp/held)"
    done
}
# NODE TEXT: the next command hears a unit attention, once.
hears() {
    status=0; heard=$(ready $1 2>&1) || status=$?
    [ $status = 6 ] && case $heard in *"$2"*) ;; *) false ;; esac || fails "$1 hears $heard instead of $2"
    ready $1 || fails "$1 hears more than $2"
}
hears_nothing() { for node; do ready $node || fails "$node hears something"; done; }
content() { dd if=$1 bs=64k count=4 iflag=direct status=none; }
puts() { dd if=/tmp/$2 of=$1 bs=64k count=4 oflag=direct conv=notrunc status=none; }
writes() {
    head -c 262144 /dev/urandom >/tmp/mine; puts $1 mine
    for node in $one $two $three; do content $node | cmp - /tmp/mine; done
}
# EBADE is what Linux makes of RESERVATION CONFLICT. It reads, and what was there is there.
cannot_write() {
    head -c 262144 /dev/urandom >/tmp/other
    ! puts $1 other 2>/tmp/error || fails "$1 writes"
    grep 'Invalid exchange' /tmp/error
    content $1 | cmp - /tmp/mine
}
"#;

/// What the validation of a disk does, and the arbitration for it.
const VALIDATION: &str = r#"
# A clean disk, whatever was there: CprepDiskPRUnRegister on each node, CprepDiskPRClear on one.
for node in $one $two $three; do registers $node 0; done
registers $one 0xa; out 0 $one clear --param-rk=0xa
keys ''; held_by nobody

# CprepDiskPRRegister on two nodes, CprepDiskPRReserve on one of them.
registers $one 0xa; registers $two 0xb
keys '0xa 0xb'
reserves 0 $one 0xa; reserves 0 $one 0xa
reserves 24 $two 0xb
held_by 0xa
writes $one; writes $two; cannot_write $three
# Who is not registered does nothing about it.
reserves 24 $three 0x0; releases 24 $three 0x0; out 24 $three clear --param-rk=0x0
out 24 $three preempt --param-rk=0x0 --param-sark=0xa --prout-type=5
sg_persist --no-inquiry --in --read-full-status $three >/tmp/status
[ $(grep -c '^ *Key=0x' /tmp/status) = 2 ]
[ $(grep -c 'Reservation holder' /tmp/status) = 1 ]
grep -A 4 'Key=0xa$' /tmp/status | grep 'type: Write Exclusive, registrants only'
[ $(grep 'Relative port address' /tmp/status | sort -u | wc -l) = 2 ]

# The defender registers again, with a key that says that it lives; its reservation stays.
out 24 $one register --param-rk=0xbad --param-sark=0xa1
out 0 $one register --param-rk=0xa --param-sark=0xa1
registers $one 0xa1
keys '0xa1 0xb'; held_by 0xa1; hears_nothing $one $two
# So the challenger's PREEMPT finds nobody of the key that it has read.
out 24 $two preempt --param-rk=0xb --param-sark=0xa --prout-type=5
held_by 0xa1; writes $one

# A defender that does not: CprepDiskPRPreempt.
preempts preempt $two 0xb 0xa1
hears $one 'Registrations preempted'
keys 0xb; held_by 0xb
writes $two; cannot_write $one; cannot_write $three; hears_nothing $two $three
# It comes back as one of them, and holds nothing.
registers $one 0xa
writes $one; reserves 24 $one 0xa; held_by 0xb

# The other way round, with what is under way: the third does nothing meanwhile and hears of it, the second writes until it cannot.
registers $three 0xc
preempts preempt-abort $one 0xa 0xc
hears $three 'Registrations preempted'
(while puts $two other 2>/dev/null; do touch /tmp/writing; done) &
wait_for '[ -e /tmp/writing ]'
preempts preempt-abort $one 0xa 0xb
writes $one
wait
n=0; while [ $n -lt 20 ]; do content $one | cmp - /tmp/mine; n=$((n + 1)); done
keys 0xa; held_by 0xa; cannot_write $two

# CprepDiskPRRelease, of what is held alone.
registers $two 0xb
releases 0 $two 0xb; held_by 0xa; hears_nothing $one
out 5 $one release --param-rk=0xa --prout-type=6
releases 0 $one 0xa
hears $two 'Reservations released'; hears_nothing $one $three
held_by nobody; keys '0xa 0xb'
writes $three

# Who unregisters has no reservation any more, and CLEAR tells all but its own.
reserves 0 $one 0xa
registers $one 0
hears $two 'Reservations released'; keys 0xb; held_by nobody
registers $one 0xa; reserves 0 $one 0xa
out 0 $two clear --param-rk=0xb
hears $one 'Reservations preempted'; hears_nothing $two $three
keys ''; held_by nobody; writes $three

# Arbitration: of two that reserve at once exactly one has it, and of two that preempt its holder exactly one is the next.
registers $one 0xa; registers $two 0xb
at_once() {
    sg_persist --no-inquiry --out "$@" --param-rk=0xa --prout-type=5 $one 2>/dev/null & first=$!
    sg_persist --no-inquiry --out "$@" --param-rk=0xb --prout-type=5 $two 2>/dev/null & second=$!
    status=0; wait $first || status=$?; first=$status
    status=0; wait $second || status=$?; second=$status
    case $first$second in
    024) winner=$one key=0xa loser=$two ;;
    240) winner=$two key=0xb loser=$one ;;
    *) fails "$* at once: $first and $second" ;;
    esac
    echo "$* at once: $key"
}
n=0
while [ $n -lt 8 ]; do
    n=$((n + 1))
    at_once --reserve
    held_by $key; cannot_write $three
    releases 0 $winner $key
    hears $loser 'Reservations released'
    registers $three 0xc; reserves 0 $three 0xc
    at_once --preempt-abort --param-sark=0xc
    hears $three 'Registrations preempted'
    keys '0xa 0xb'; held_by $key; cannot_write $three
    releases 0 $winner $key
    hears $loser 'Reservations released'
done
"#;

/// Three nodes in the order of Windows' failover clusters, whose validation ("Validate SCSI-3 Persistent Reservation") has its nodes unregister
/// (REGISTER AND IGNORE EXISTING KEY of zero), clear, register, reserve, preempt and release by the methods named here: [MS-CSVP], *Failover
/// Cluster: Setup and Validation Protocol*, section 3.2.4 "Message Processing Events and Sequencing Rules" and those of the methods
/// (<https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-csvp/adf8b623-2b6c-4358-aa06-e77b251bdd98>). How an owner defends a disk,
/// and a challenger takes one that is not defended, is by US patents 7,277,952 and 8,719,473.
///
/// Each node is a device of its own; that all are one guest's is nothing to the disk, and lets one script say what comes when.
#[test]
fn nodes_reserve_in_the_order_of_windows_clusters() -> Result<()> {
    let lab = Lab::take_turn();
    let nodes = ["node1", "node2", "node3"];
    let daemon = Daemon::serve(&cluster(IN_MEMORY, &nodes))?;
    let devices = nodes.map(|node| Device::Scsi { socket: daemon.socket(node), queues: 1 });
    let script = format!("{WAIT_FOR}\n{NODES}\n{VALIDATION}");
    uml::run(&lab, Kernel::Smp(2), &devices, &script, LIMIT)
        .with_context(|| format!("the daemon said:\n{}", daemon.output()))?;
    daemon.stop()
}
