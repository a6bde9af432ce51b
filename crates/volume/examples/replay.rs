//! What recovery costs: time, and the memory that the format's description promises a bound of.
//!
//! `cargo run --release -p volume --example replay -- MIB [DIRECTORY]`: a log of so many MiB is written to a file in DIRECTORY (the
//! system's directory for temporary files), full of records of one kind, and replayed to a disk that keeps nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;
use volume::format::{CreateOptions, EXTERNAL_LOG_OFFSET, LOG_BYTES_MIN, Superblock, Uuid, create};
use volume::log::{ENTRIES_MAX, LogSpace, RecordBuilder};
use volume::recover::recover;
use volume::{BLOCK_BYTES, Blocks, SectorMask};

/// Blocks of the disk: 4 TiB.
const BLOCKS: u64 = 1 << 30;

/// The log's file.
struct Log(File, u64);

impl Blocks for Log {
    fn len(&self) -> u64 {
        self.1
    }
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }
    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.0.write_all_at(&vec![0; len as usize], offset)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk that keeps its superblocks and counts the rest.
#[derive(Default)]
struct Disk {
    head: Vec<u8>,
    writes: u64,
}

impl Blocks for Disk {
    fn len(&self) -> u64 {
        u64::MAX
    }
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.copy_from_slice(&self.head[offset as usize..][..buf.len()]);
        Ok(())
    }
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        if let Some(place) = self.head.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..buf.len())) {
            place.copy_from_slice(buf);
        }
        self.writes += 1;
        Ok(())
    }
    fn zero_at(&mut self, _: u64, _: u64) -> io::Result<()> {
        self.writes += 1;
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the records say.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One block at a random place: a database that commits alone.
    Single,
    /// As many random blocks as a record takes.
    Full,
    /// As many runs of zeroes as a record takes, none beside another: the most that a log can say.
    Zeroes,
}

fn fill(log: &mut Log, superblock: &Superblock, kind: Kind) -> u64 {
    let mut space = LogSpace::new(superblock.log.len, 0, 0);
    let mut builder = RecordBuilder::new(&superblock.log.uuid, superblock.epoch, space.record_bytes_max());
    let (mut chain, mut records, mut state) = (superblock.tail.chain, 0, 1u64);
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % BLOCKS
    };
    loop {
        builder.begin();
        let mut blocks = 0;
        match kind {
            Kind::Single => blocks += u64::from(builder.data(random(), SectorMask::ALL, &[7; BLOCK_BYTES])),
            Kind::Full => {
                while builder.data(random(), SectorMask::ALL, &[7; BLOCK_BYTES]) {
                    blocks += 1;
                }
            }
            Kind::Zeroes => {
                let first = records * 2 * ENTRIES_MAX as u64;
                (0..ENTRIES_MAX as u64).take_while(|run| builder.zeroes((first + run * 2) % BLOCKS, 1)).for_each(drop);
            }
        }
        let Some((position, _)) = space.reserve(builder.bytes()) else {
            return records;
        };
        chain = builder.finish(superblock.tail.sequence + records, position, chain).chain;
        log.write_at(superblock.log.offset + position, builder.header()).expect("written");
        let payload = vec![7; blocks as usize * BLOCK_BYTES];
        log.write_at(superblock.log.offset + position + builder.header().len() as u64, &payload).expect("written");
        records += 1;
    }
}

/// The most memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() / 1024
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mib: u64 = arguments.next().and_then(|mib| mib.parse().ok()).unwrap_or(64);
    let directory = arguments.next().map_or(std::env::temp_dir(), PathBuf::from);
    let path = directory.join(format!("vringd-replay-{}", std::process::id()));
    for kind in [Kind::Single, Kind::Full, Kind::Zeroes] {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        let mut log = Log(file, EXTERNAL_LOG_OFFSET + (mib << 20));
        let mut disk = Disk { head: vec![0; 1 << 16], writes: 0 };
        let options = CreateOptions {
            capacity_bytes: BLOCKS * BLOCK_BYTES as u64,
            log_bytes: LOG_BYTES_MIN,
            volume: Uuid::new_v4(),
            log: Uuid::new_v4(),
            log_path: None,
            apart: false,
            created_by: "replay".to_string(),
        };
        create(&mut disk, Some(&mut log), &options, &mut |_| ()).expect("made");
        let opened = recover(&mut disk, Some(&mut log), &mut |_| ()).expect("opens").superblock;
        fill(&mut log, &opened, kind);
        // The peak begins anew here.
        std::fs::write("/proc/self/clear_refs", "5").expect("Linux 4.0");
        disk.writes = 0;
        let before = Instant::now();
        let recovered = recover(&mut disk, Some(&mut log), &mut |_| ()).expect("recovers");
        let seconds = before.elapsed().as_secs_f64();
        println!(
            "{kind:?}: {} records, {} MiB of log in {seconds:.2} s ({:.0} MiB/s), {} writes, {} MiB of memory at most",
            recovered.records,
            recovered.log_bytes >> 20,
            (recovered.log_bytes >> 20) as f64 / seconds,
            disk.writes,
            peak_mib()
        );
    }
    let _ = std::fs::remove_file(path);
}
