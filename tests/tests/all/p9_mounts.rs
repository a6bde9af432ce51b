//! Linux mounts what vringd serves over sockets: `trans=unix`, `trans=tcp` and `trans=fd`, server and client in one guest. And the
//! clients of diod (a 9P server for clusters) find in vringd what they find in their own.
//!
//! The guest is a PC: User Mode Linux 7.3 has a vDSO without `getcpu`, and a program that uses rustix ends there.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::p9_guest;
use tests::qemu::{self, BootFrom};
use tests::vringd;

const LIMIT: Duration = Duration::from_secs(300);

/// Of every mount. The message size is the largest of Linux over a socket (`net/9p/trans_fd.c`, MAX_SOCK_BUF).
const OPTIONS: &str = "version=9p2000.L,msize=1048576,cache=none";

/// What is done to each mount; the content is of two messages. It is looked at from the side of the server too, which is beneath the same kernel.
const BODY: &str = "cd /mnt/share
     mkdir dir; echo content >dir/file; ln dir/file dir/link; mv dir/file dir/moved; rm dir/link; ln -s moved dir/symbolic
     test \"$(cat dir/symbolic)\" = content
     chmod 640 dir/moved; test $(stat -c %a-%h-%s /mnt/served/dir/moved) = 640-1-8
     setfattr -n user.note -v words dir/moved
     test \"$(getfattr --only-values -n user.note dir/moved)\" = words
     flock dir/moved true
     if cat dir/nothing; then exit 1; fi
     mkdir names; for number in $(seq 30); do echo $number >names/$number; done
     diff -r names /mnt/served/names
     head -c 1200001 /dev/urandom >/tmp/content
     cp /tmp/content content
     cmp /tmp/content /mnt/served/content
     echo more >>/mnt/served/content
     test $(stat -c %s content) = 1200006
     tail -c 5 content | grep -qx more
     rm -r dir names content
     test -z \"$(ls -A /mnt/served)\"
     fio --eta=never --size=1m --rw=randwrite --bsrange=512-256k --bs_unaligned --verify=crc32c --verify_state_save=0 \
         --verify_fatal=1 --do_verify=1 --randseed=7 --fallocate=none --name=psync --ioengine=psync --numjobs=2 >/tmp/fio
     rm psync.*
     cd /";

/// Runs `script` in a guest in which `$vringd` is the program and `$tool` this package's; `/mnt/served` is an empty directory in
/// memory, to be mounted on `/mnt/share`.
fn run(script: &str) -> Result<()> {
    let lab = Lab::take_turn();
    let (program, tool) = (vringd::program()?, vringd::beside_the_test("fs_tool")?);
    let serve = |path: &Path| DirectoryServer::start(&lab, &Directory::p9(path).option("--readonly"));
    let beside = |program: &Path| program.parent().map(Path::to_owned).context("a program lies in a directory");
    let (root, ours, theirs) = (serve(&lab.root())?, serve(&beside(&tool)?)?, serve(&beside(&program)?)?);
    let name = program.file_name().context("a program has a name")?.display();
    let loose = p9_guest::options("cache=loose");
    // All have one tag; a device that is mounted is not looked at again.
    let script = format!(
        "root=/root-directory
         mkdir $root
         mount -t 9p -o {loose} share $root
         mount -t proc proc $root/proc
         mount -t devtmpfs dev $root/dev
         mount -t tmpfs tmpfs $root/tmp
         mount -t tmpfs tmpfs $root/mnt
         mkdir $root/mnt/tool $root/mnt/vringd $root/mnt/served $root/mnt/share
         mount -t 9p -o {loose} share $root/mnt/tool
         mount -t 9p -o {loose} share $root/mnt/vringd
         cat >$root/tmp/script <<'END'
tool=/mnt/tool/fs_tool
vringd=/mnt/vringd/{name}
busybox ifconfig lo 127.0.0.1 up
{script}
END
         chroot $root /bin/sh -eux /tmp/script"
    );
    qemu::run(&lab, BootFrom::Host, &[root.device(), ours.device(), theirs.device()], 1, &script, LIMIT)?;
    Ok(())
}

/// Waits for `what`, a command, to succeed.
fn until(what: &str) -> String {
    format!("tries=0; until {what}; do tries=$((tries + 1)); test $tries -lt 400; sleep 0.05; done")
}

/// Serves at `listen`, which has happened when `ready` succeeds, does `body`, and ends the server as an operator does: it must
/// end well.
fn served(listen: &str, ready: &str, body: &str) -> String {
    let ready = until(ready);
    format!(
        "$vringd dir --protocol 9p --listen {listen} --sandbox none /mnt/served &
         server=$!
         {ready}
         {body}
         kill $server
         wait $server"
    )
}

/// Mounts `source` by `transport`, does `body` to it, and unmounts it.
fn mounted(transport: &str, source: &str, body: &str) -> String {
    format!(
        "mount -t 9p -o trans={transport},{OPTIONS} {source} /mnt/share
         grep ' /mnt/share 9p ' /proc/mounts
         {body}
         umount /mnt/share"
    )
}

fn by_unix_socket() -> String {
    served("unix:/tmp/home.9p", "test -S /tmp/home.9p", &mounted("unix", "/tmp/home.9p", BODY))
}

/// 564, which clients take when they are told nothing else.
fn by_port(body: &str) -> String {
    served("tcp:127.0.0.1:564 --clients-may-be-root", "grep -q ':0234 .* 0A ' /proc/net/tcp", body)
}

fn by_pair() -> String {
    let gone = until("! kill -0 $server");
    format!(
        "server=$($tool pair /mnt/share {OPTIONS} $vringd dir --protocol 9p --listen fd:3 --sandbox none /mnt/served)
         {BODY}
         kill -0 $server
         umount /mnt/share
         kill $server
         {gone}"
    )
}

fn by_diod() -> String {
    format!(
        "head -c 300001 /dev/urandom >/mnt/served/content
         mkdir /mnt/served/names; touch $(seq -f /mnt/served/names/%g 1000)
         diodls -s 127.0.0.1 -a / names | sort >/tmp/names
         ls /mnt/served/names | sort | diff - /tmp/names
         diodls -s 127.0.0.1 -a / -l / | grep '^-.* 300001 .* content$'
         diodcat -s 127.0.0.1 -a / content | cmp - /mnt/served/content
         if diodcat -s 127.0.0.1 -a / nothing; then exit 1; fi
         rm -r /mnt/served/names /mnt/served/content
         mount.diod -n 127.0.0.1:/ /mnt/share
         grep ' /mnt/share 9p .*trans=fd' /proc/mounts
         {BODY}
         umount /mnt/share"
    )
}

/// One after the other in one guest, whose start takes longer than each of them.
#[test]
fn every_way_to_mount_it_works() -> Result<()> {
    let steps = [by_unix_socket(), by_port(&mounted("tcp", "127.0.0.1", BODY)), by_pair(), by_port(&by_diod())];
    run(&steps.join("\n"))
}
