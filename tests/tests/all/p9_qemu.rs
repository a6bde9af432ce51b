//! A directory by 9p in a PC under QEMU: the same driver over PCI, Debian's kernel, files kept on the guest's own disk.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::device::Device;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::p9_guest;
use tests::qemu::{self, BootFrom};

const LIMIT: Duration = Duration::from_secs(300);

/// The lab's root file system is served too, read-only: the programs that run are in it. With `cache=fscache` what was
/// read lies on the guest's disk, and is read from there when the guest's memory has forgotten it.
#[test]
fn machine_lives_in_one_directory_and_works_in_another() -> Result<()> {
    let lab = Lab::take_turn();
    let files = TempDir::new()?;
    let shared = files.path().join("shared");
    fs::create_dir(&shared)?;
    fs::write(shared.join("from-the-host"), "hello guest\n")?;
    fs::write(shared.join("kept"), vec![7; 4 << 20])?;
    let image = files.path().join("image");
    fs::File::create(&image)?.set_len(64 << 20)?;
    let mut root = DirectoryServer::start(&lab, &Directory::p9(lab.root()).option("--readonly"))?;
    let mut work = DirectoryServer::start(&lab, &Directory::p9(&shared))?;
    let (loose, none) = (p9_guest::options("cache=loose"), p9_guest::options("cache=none"));
    let kept = p9_guest::options("cache=fscache,cachetag=lab");
    // Both have one tag; a device that is mounted is not looked at again.
    let script = format!(
        "mkdir /root-directory
         mount -t 9p -o {loose} share /root-directory
         mount -t tmpfs tmpfs /root-directory/tmp
         mount -t proc proc /root-directory/proc
         mount -t devtmpfs dev /root-directory/dev
         mount -t 9p -o {none} share /root-directory/mnt
         cat >/root-directory/tmp/script <<'END'
test \"$(cat /mnt/from-the-host)\" = 'hello guest'
cd /mnt
mkdir dir; echo content >dir/file; ln dir/file dir/link; mv dir/file dir/moved; rm dir/link
test \"$(cat dir/moved)\" = content
fio --eta=never --name=verify --directory=/mnt --size=8m --rw=randwrite --bsrange=4k-64k --blockalign=4k \\
    --fallocate=none --verify=crc32c --verify_fatal=1 --do_verify=1 --ioengine=libaio --direct=1 --iodepth=16
flock dir/moved true
echo 'hello host' >from-the-guest
cd /
umount /mnt
mkdir /tmp/cache
mkfs.ext4 -q /dev/vda
mount -t ext4 /dev/vda /tmp/cache
exec 9<>/dev/cachefiles
echo 'dir /tmp/cache' >&9
echo 'tag lab' >&9
echo bind >&9
mount -t 9p -o {kept} share /mnt
figure() {{ sed -n \"s/^IO .*$1=\\([0-9]*\\).*/\\1/p\" /proc/fs/fscache/stats; }}
cat /proc/fs/fscache/stats
md5sum /mnt/kept >/tmp/first
looks=0
until [ $(figure wr) -gt 0 ]; do
    looks=$((looks + 1))
    [ $looks -lt 100 ]
    sleep 0.1
done
umount /mnt
mount -t 9p -o {kept} share /mnt
before=$(figure rd)
md5sum /mnt/kept >/tmp/second
cmp /tmp/first /tmp/second
test $(figure rd) -gt $before
cat /proc/fs/fscache/stats
umount /mnt
END
         chroot /root-directory /bin/sh -eux /tmp/script"
    );
    let disk = Device::QemuDisk { image, queues: 1, direct: false };
    qemu::run(&lab, BootFrom::Host, &[root.device(), work.device(), disk], 1, &script, LIMIT)?;
    ensure!(fs::read_to_string(shared.join("from-the-guest"))? == "hello host\n");
    root.check_alive()?;
    work.check_alive()
}
