//! Files in the memory of a QEMU guest (DAX), out of process.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::device::Device;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::qemu::{self, BootFrom, Guest};

const LIMIT: Duration = Duration::from_secs(240);
const MIB: usize = 1 << 20;

/// Bytes that are the same nowhere.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..count / 8).flat_map(|_| next()).collect()
}

fn checksum(path: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(path).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("sha256sum says nothing")?.to_owned())
}

/// A directory with a window, to which every file goes that can.
fn served(lab: &Lab, path: &Path, when: &str) -> Result<DirectoryServer> {
    let mut directory = Directory { queues: Some(1), ..Directory::new(path) };
    for option in ["--dax-window", "64M", "--dax", when] {
        directory = directory.option(option);
    }
    DirectoryServer::start(lab, &directory)
}

/// Files are read and written where they are on the host, with and without the mount option, by calls and through mappings, while they are
/// cut and removed; more of them than the window has room for.
#[test]
fn files_are_in_the_guests_memory() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let file = |name: &str| shared.path().join(name);
    fs::write(file("read"), bytes(8 * MIB))?;
    fs::write(file("more"), bytes(96 * MIB))?;
    fs::write(file("written"), vec![0; 4 * MIB])?;
    fs::write(file("cut"), bytes(4 * MIB))?;
    fs::write(file("removed"), bytes(4 * MIB))?;
    let (read, more, cut, removed) =
        (checksum(&file("read"))?, checksum(&file("more"))?, checksum(&file("cut"))?, checksum(&file("removed"))?);
    let root = DirectoryServer::start(&lab, &Directory::new(lab.root()).tag("root").option("--readonly"))?;
    let mut server = served(&lab, shared.path(), "always")?;
    let script = format!(
        "mkdir /root-directory
         mount -t virtiofs root /root-directory
         mount -t tmpfs tmpfs /root-directory/tmp
         mount -t proc proc /root-directory/proc
         for options in rw dax; do
         mount -t virtiofs -o $options share /root-directory/mnt
         cat >/root-directory/tmp/script <<'END'
cd /mnt
same() {{ test \"$(sha256sum <$1)\" = \"$2  -\"; }}
same read {read}
same read {read}
fio --eta=never --name=w --filename=/mnt/written --size=4m --rw=randwrite --bs=4k --overwrite=1 --fallocate=none \\
    --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --ioengine=mmap
fio --eta=never --name=p --filename=/mnt/written --size=4m --rw=randrw --bs=4k --overwrite=1 --fallocate=none \\
    --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --ioengine=psync
sync
same more {more}
END
         chroot /root-directory /bin/sh -eu /tmp/script
         umount /root-directory/mnt
         done
         mount -t virtiofs share /root-directory/mnt
         cd /root-directory/mnt
         exec 5<removed
         rm removed
         test \"$(sha256sum <&5)\" = \"{removed}  -\"
         exec 5<&-
         test \"$(sha256sum <cut)\" = \"{cut}  -\"
         dd if=/dev/zero of=cut bs=1M seek=1 count=0 2>/dev/null
         test $(wc -c <cut) = 1048576
         dd if=cut of=/tmp/front bs=1M count=1 2>/dev/null
         dd if=/dev/zero of=cut bs=1M seek=4 count=0 2>/dev/null
         cmp -n 1048576 cut /tmp/front
         test \"$(dd if=cut bs=1M skip=1 2>/dev/null | tr -d '\\000' | wc -c)\" = 0
         printf guest | dd of=written bs=1 seek=3000000 conv=notrunc 2>/dev/null
         sync
         echo written
         while ! grep -q host written; do sleep 0.1; done
         echo seen"
    );
    let devices = [root.device(), server.dax_device()];
    let mut guest = Guest::boot(&lab, BootFrom::Host, &devices, 1, &script)?;
    guest.wait_for("written\r\n", LIMIT)?;
    let written = fs::read(file("written"))?;
    ensure!(&written[3_000_000..3_000_005] == b"guest", "the host does not see what the guest wrote");
    // And the other way, without a message: nothing of it is cached in the guest.
    let mut host = fs::File::options().write(true).open(file("written"))?;
    std::io::Seek::seek(&mut host, std::io::SeekFrom::Start(1_000_000))?;
    std::io::Write::write_all(&mut host, b"host\n")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed with status {}:\n{}", ended.status, ended.console);
    let (reads, writes, mapped) =
        (server.requests(1, "read")?, server.requests(1, "write")?, server.requests(1, "setupmapping")?);
    ensure!((reads, writes) == (0, 0), "{reads} READ and {writes} WRITE for files in the guest's memory");
    // 96 MiB do not fit into 64.
    ensure!(mapped > 2 * 50, "{mapped} mappings");
    let cut_now = fs::read(file("cut"))?;
    ensure!(cut_now.len() == 4 * MIB && cut_now[MIB..].iter().all(|byte| *byte == 0), "the file that was cut");
    server.check_alive()
}

/// Those that are marked go to the guest's memory, others are read by requests; a guest that ends in the middle leaves nothing to the next
/// one, and QEMU's own devices show no window.
#[test]
fn marked_files_are_in_the_guests_memory() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let file = |name: &str| shared.path().join(name);
    for name in ["marked", "plain"] {
        fs::write(file(name), bytes(4 * MIB))?;
    }
    rustix::fs::setxattr(file("marked"), "user.vringd.dax", b"1", rustix::fs::XattrFlags::empty())?;
    let mut server = served(&lab, shared.path(), "inode")?;
    let reads = |server: &DirectoryServer| server.requests(1, "read");
    let script = "mkdir /work
         mount -t virtiofs share /work
         sha256sum /work/marked
         echo busy
         while :; do dd if=/work/marked of=/dev/null bs=64k 2>/dev/null; done";
    let mut guest = Guest::boot(&lab, BootFrom::Host, &[server.dax_device()], 1, script)?;
    guest.wait_for("busy", LIMIT)?;
    ensure!(reads(&server)? == 0 && server.requests(1, "setupmapping")? >= 2, "the marked file is read by requests");
    guest.kill();
    let sums = |device: Device, marked_reads: bool| -> Result<()> {
        let before = reads(&server)?;
        let script = "mkdir /work; mount -t virtiofs share /work; sha256sum /work/marked";
        let console = qemu::run(&lab, BootFrom::Host, &[device], 1, script, LIMIT)?;
        ensure!(console.contains(&checksum(&file("marked"))?), "{console}");
        ensure!((reads(&server)? > before) == marked_reads, "whether the marked file is read by requests");
        Ok(())
    };
    sums(server.dax_device(), false)?;
    sums(server.device(), true)?;
    let before = reads(&server)?;
    let script = "mkdir /work; mount -t virtiofs share /work; sha256sum /work/plain";
    qemu::run(&lab, BootFrom::Host, &[server.dax_device()], 1, script, LIMIT)?;
    ensure!(reads(&server)? > before, "a file that is not marked is not read by requests");
    server.check_alive()
}
