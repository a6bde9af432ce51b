//! What a guest wrote is what it reads: fsx under each cache policy, fio with each engine.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest::{self, Script};
use tests::lab::Lab;
use tests::long;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(400);

/// Of each policy, and more at night.
const OPERATIONS: u32 = 20_000;

/// Everything that fsx can do, most of it thousands of times; what waits for the host's disk, less.
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
posix_fallocate = 1
punch_hole = 1
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
";
const MAPPING_WEIGHTS: &str = "mapread = 2\nmapwrite = 2\ninvalidate = 1\n";
const NO_MAPPING_WEIGHTS: &str = "mapread = 0\nmapwrite = 0\n";

/// All policies at once: fsx waits for each of its operations, so a guest alone leaves the
/// processors idle and is slow.
#[test]
fn fsx_finds_nothing_under_any_policy() -> Result<()> {
    let lab = Lab::take_turn();
    // In memory, for the pace is otherwise set by the host's disk.
    let shared = TempDir::new_in("/dev/shm")?;
    let policies = [
        ("never", Cache::Never, "", false),
        ("never-mmap", Cache::Never, "--allow-mmap", true),
        ("metadata", Cache::Metadata, "", false),
        ("auto", Cache::Auto, "", true),
        ("always", Cache::Always, "", true),
        ("writeback", Cache::Always, "--writeback", true),
    ];
    let operations = OPERATIONS * long::more();
    let mut running = Vec::new();
    for (name, cache, option, mappings) in policies {
        let path = shared.path().join(name);
        fs::create_dir(&path)?;
        let mut directory = Directory::new(path).cache(cache);
        directory.options.extend((!option.is_empty()).then(|| option.to_owned()));
        let server = DirectoryServer::start(&lab, &directory)?;
        let more = if mappings { MAPPING_WEIGHTS } else { NO_MAPPING_WEIGHTS };
        let body = format!(
            "cat >/tmp/fsx.toml <<'END'\n{WEIGHTS}{more}END
             $programs/fsx -N {operations} -S 7 -f /tmp/fsx.toml -P /tmp /mnt/share/fsx-file"
        );
        let guest = fs_guest::boot(&lab, Kernel::Debian, &server, &body)?;
        running.push((name, server, guest));
    }
    for (name, mut server, guest) in running {
        let ended = guest.wait(LIMIT).context(name)?;
        ensure!(ended.status == 0, "{name}: fsx failed:\n{}", ended.console);
        server.check_alive().context(name)?;
    }
    Ok(())
}

/// Writes at random places and reads all of it back, each block with a checksum of its own.
const FIO_VERIFY: &str = "fio --eta=never --directory=/mnt/share --size=24m --rw=randwrite --verify=crc32c --verify_fatal=1 \
     --do_verify=1 --randseed=7";
/// Sizes for what needs whole pages, and for what does not, some of them not aligned to anything.
const PAGE_SIZES: &str = "--bsrange=4k-256k --blockalign=4k";
const ANY_SIZES: &str = "--bsrange=512-256k --bs_unaligned";

/// A way to serve a directory: its name, whether a guest may map files shared, and what it makes of the usual one.
type Way = (&'static str, bool, fn(Directory) -> Directory);

/// One guest, on a directory served in each way.
fn fio_with(ways: &[Way], kernel: Kernel) -> Result<()> {
    let lab = Lab::take_turn();
    let mut served = Vec::new();
    for (number, (name, mappings, adapt)) in ways.iter().enumerate() {
        let shared = TempDir::new()?;
        let server = DirectoryServer::start(&lab, &adapt(Directory::new(shared.path()).tag(format!("share{number}"))))?;
        let mapped =
            if *mappings { format!("{FIO_VERIFY} {PAGE_SIZES} --name=mmap --ioengine=mmap") } else { String::new() };
        let body = format!(
            "{FIO_VERIFY} {ANY_SIZES} --name=psync --ioengine=psync --fsync=64
             {FIO_VERIFY} {PAGE_SIZES} --name=libaio --ioengine=libaio --direct=1 --iodepth=32 --numjobs=2
             {mapped}"
        );
        served.push((*name, shared, server, body));
    }
    let scripts: Vec<Script<'_>> =
        served.iter().map(|(name, _, server, body)| Script { name, server, options: "", body }).collect();
    fs_guest::run_each(&lab, kernel, &scripts, LIMIT)?;
    served.iter_mut().try_for_each(|(name, _, server, _)| server.check_alive().context(*name))
}

#[test]
fn fio_verifies_what_it_wrote() -> Result<()> {
    fio_with(
        &[
            ("auto", true, |directory| directory),
            ("never", false, |directory| directory.cache(Cache::Never)),
            ("past the page cache of the host", true, |directory| directory.option("--allow-direct-io")),
        ],
        Kernel::Debian,
    )
}

#[test]
fn fio_verifies_what_it_wrote_with_writeback_and_two_processors() -> Result<()> {
    fio_with(&[("writeback", true, |directory| directory.cache(Cache::Always).option("--writeback"))], Kernel::Smp(2))
}
