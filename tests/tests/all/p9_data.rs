//! What a guest wrote by 9p is what it reads: fsx under each cache mode, fio with each engine, every size of messages.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::fs_guest::{self, Script};
use tests::lab::Lab;
use tests::long;
use tests::p9_guest::{self, KERNEL};

const LIMIT: Duration = Duration::from_secs(300);

/// Of each mode, and more at night.
const OPERATIONS: u32 = 12_000;

/// Everything that Linux has a message for, most of it thousands of times; what waits for the host's disk, less.
const WEIGHTS: &str = "
nomsyncafterwrite = true
[opsize]
max = 16384
[weights]
close_open = 1
read = 10
write = 10
truncate = 4
fsync = 0.1
fdatasync = 0.1
posix_fallocate = 0
punch_hole = 0
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
";
const MAPPING_WEIGHTS: &str = "mapread = 2\nmapwrite = 2\ninvalidate = 1\n";
const NO_MAPPING_WEIGHTS: &str = "mapread = 0\nmapwrite = 0\n";

/// All modes at once: fsx waits for each of its operations, so a guest alone leaves the processors idle and is slow.
#[test]
fn fsx_finds_nothing_in_any_cache_mode() -> Result<()> {
    let lab = Lab::take_turn();
    // In memory, for the pace is otherwise set by the host's disk.
    let shared = TempDir::new_in("/dev/shm")?;
    let modes = [("none", false), ("readahead", false), ("mmap", true), ("loose", true)];
    let operations = OPERATIONS * long::more();
    let mut running = Vec::new();
    for (cache, mappings) in modes {
        let path = shared.path().join(cache);
        fs::create_dir(&path)?;
        let server = DirectoryServer::start(&lab, &Directory::p9(path))?;
        let more = if mappings { MAPPING_WEIGHTS } else { NO_MAPPING_WEIGHTS };
        let body = format!(
            "cat >/tmp/fsx.toml <<'END'\n{WEIGHTS}{more}END
             $programs/fsx -N {operations} -S 7 -f /tmp/fsx.toml -P /tmp /mnt/share/fsx-file"
        );
        let guest = p9_guest::boot(&lab, KERNEL, &server, &format!("cache={cache}"), &body)?;
        running.push((cache, server, guest));
    }
    for (cache, mut server, guest) in running {
        let ended = guest.wait(LIMIT).context(cache)?;
        ensure!(ended.status == 0, "{cache}: fsx failed:\n{}", ended.console);
        server.check_alive().context(cache)?;
    }
    Ok(())
}

/// Writes at random places and reads all of it back, each block with a checksum of its own.
const FIO_VERIFY: &str = "fio --eta=never --directory=/mnt/share --size=6m --rw=randwrite --verify=crc32c --verify_fatal=1 \
     --do_verify=1 --randseed=7 --fallocate=none";
/// Sizes for what needs whole pages, and for what does not, some of them not aligned to anything.
const PAGE_SIZES: &str = "--bsrange=4k-256k --blockalign=4k";
const ANY_SIZES: &str = "--bsrange=512-256k --bs_unaligned";

/// A way to mount a directory and to serve it: options of the mount, whether files may be mapped shared, and what is made of the usual one.
type Way = (&'static str, bool, fn(Directory) -> Directory);

#[test]
fn fio_verifies_what_it_wrote() -> Result<()> {
    let lab = Lab::take_turn();
    let ways: [Way; 2] = [
        ("cache=none", false, |directory| directory),
        ("cache=loose", true, |directory| Directory { execution: Some("uring"), ..directory }),
    ];
    let mut served = Vec::new();
    for (options, mappings, adapt) in ways {
        let shared = TempDir::new()?;
        let server =
            DirectoryServer::start(&lab, &adapt(Directory::p9(shared.path()).tag(options.replace("cache=", ""))))?;
        let mapped =
            if mappings { format!("{FIO_VERIFY} {PAGE_SIZES} --name=mmap --ioengine=mmap") } else { String::new() };
        let body = format!(
            "{FIO_VERIFY} {ANY_SIZES} --name=psync --ioengine=psync --fsync=64
             {FIO_VERIFY} {PAGE_SIZES} --name=libaio --ioengine=libaio --direct=1 --iodepth=32 --numjobs=2
             {mapped}"
        );
        served.push((options, shared, server, body));
    }
    let scripts: Vec<Script<'_>> =
        served.iter().map(|(options, _, server, body)| Script { name: options, server, options, body }).collect();
    fs_guest::run_each(&lab, KERNEL, &scripts, LIMIT)?;
    served.iter_mut().try_for_each(|(name, _, server, _)| server.check_alive().context(*name))
}

/// Messages from the smallest that lists a directory at a good pace to the largest that Linux makes. What is larger
/// than the server's limit is granted up to that.
#[test]
fn messages_of_every_size_carry_data_and_listings() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let names = shared.path().join("names");
    fs::create_dir(&names)?;
    for number in 0..3000 {
        fs::write(names.join(format!("{number}-{}", "n".repeat(number % 200))), "")?;
    }
    let server = DirectoryServer::start(&lab, &Directory::p9(shared.path()))?;
    let body = "head -c 5000001 /dev/urandom >/tmp/content
         cd /
         for msize in 8192 65537 512000 4194304; do
             umount /mnt/share
             mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=$msize share /mnt/share
             granted=$(sed -n 's/.* \\/mnt\\/share 9p .*msize=\\([0-9]*\\).*/\\1/p' /proc/mounts)
             echo msize: $msize granted: ${granted:-$msize}
             cp /tmp/content /mnt/share/content$msize
             cmp /tmp/content /mnt/share/content$msize
             dd if=/mnt/share/content$msize of=/tmp/back bs=1M iflag=direct 2>/dev/null
             cmp /tmp/content /tmp/back
             test $(ls -U /mnt/share/names | sort -u | wc -l) = 3000
             ls -l /mnt/share/names >/dev/null
         done
         cd /mnt/share";
    p9_guest::run(&lab, &server, "cache=none", body, LIMIT)?;
    for msize in [8192, 65537, 512_000, 4_194_304] {
        let length = fs::metadata(shared.path().join(format!("content{msize}")))?.len();
        ensure!(length == 5_000_001, "{length} bytes with msize={msize}");
    }
    Ok(())
}

/// A server that grants less than the guest asks for.
#[test]
fn smaller_messages_are_granted_where_the_server_says_so() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let server = DirectoryServer::start(&lab, &Directory::p9(shared.path()).option("--msize=8K"))?;
    let body = "head -c 1000001 /dev/urandom >/tmp/content
         cp /tmp/content content
         cmp /tmp/content content
         touch $job/written
         until [ -e $job/over ]; do sleep 0.05; done";
    let mut guest = p9_guest::boot(&lab, KERNEL, &server, "cache=none", body)?;
    guest.wait_for("written", LIMIT)?;
    let shown = server.export()?.directory.and_then(|directory| directory.p9).context("a 9p export")?;
    ensure!(shown.msize == Some(8192) && shown.connections == 1 && shown.fids > 0, "{shown:?}");
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    Ok(())
}
