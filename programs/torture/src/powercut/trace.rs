//! What happened while a volume was under load, in one order: what its storage was asked for and when that was done, and
//! what the load asked for and when it was answered.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::stamp::{Content, SECTOR_BYTES};

/// The first bytes of a stored trace. The digit is its version.
const MAGIC: [u8; 8] = *b"PWRCUT1\n";

/// A time of a trace: the number of its latest event. 0 is before all of them.
pub(super) type Time = u32;
/// Has not happened.
pub(super) const NEVER: Time = Time::MAX;

/// What is known of a disk, between two lives of its volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    /// The operations of which one has left what the sector holds.
    pub(super) sectors: Vec<Vec<u32>>,
    /// Least and most bytes that the disk has.
    pub(super) disk_bytes: (u64, u64),
}

/// A guarantee of the volume's that can be taken away, to see that it is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Barrier {
    /// Waiters are told when their log record is on stable storage.
    Commit,
    /// What was written back is on stable storage before the log forgets it.
    WriteBack,
    /// The superblock says that the log has advanced before its space is used again.
    Checkpoint,
    /// Batches are answered in the order of their records.
    Order,
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commit => "commit",
            Self::WriteBack => "write-back",
            Self::Checkpoint => "checkpoint",
            Self::Order => "order",
        })
    }
}

/// What a workload was drawn to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Scene {
    /// Seed of the run.
    pub(super) seed: u64,
    /// Number of the volume within the run.
    pub(super) volume: u32,
    /// How many power cuts this volume has had before.
    pub(super) generation: u32,
    /// Size of the disk at first, in bytes.
    pub(super) disk_bytes: u64,
    /// What it grows by while under load, in bytes each.
    pub(super) growth_bytes: Vec<u64>,
    /// Room of the log, in bytes.
    pub(super) log_bytes: u64,
    /// Whether the log is a device of its own.
    pub(super) external_log: bool,
    /// Memory for what is not written back, in bytes.
    pub(super) dirty_bytes: u64,
    /// Every write is durable (`sync = always`).
    pub(super) always: bool,
    /// Operations of each queue.
    pub(super) operations: u32,
    /// Operations in flight on each queue.
    pub(super) depth: u32,
    /// Sectors of the largest request.
    pub(super) sectors_max: u32,
    /// One flush in so many operations.
    pub(super) flushes: u64,
    /// One durable write in so many.
    pub(super) durables: u64,
    /// The slowest completion of the device, in microseconds; most are quicker by far.
    pub(super) delay_max_us: u64,
    /// The guarantee that is missing.
    pub(super) without: Option<Barrier>,
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, volume, generation, .. } = self;
        write!(f, "seed {seed}, volume {volume} after {generation} cuts")?;
        write!(f, " ({} KiB of log", self.log_bytes >> 10)?;
        for (name, given) in [("on its own device", self.external_log), ("sync=always", self.always)] {
            if given {
                write!(f, ", {name}")?;
            }
        }
        match self.without {
            Some(barrier) => write!(f, ", WITHOUT the barrier `{barrier}`)"),
            None => f.write_str(")"),
        }
    }
}

/// What the load asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Write,
    WriteZeroes,
    Discard,
    Flush,
    Read,
}

/// One request of the load. Its number is its place in [`Trace::operations`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// First sector of the disk.
    pub(super) first: u32,
    /// Sectors.
    pub(super) count: u32,
    /// Answered only once it is on stable storage.
    pub(super) durable: bool,
    pub(super) queue: u8,
}

impl Operation {
    pub(super) fn sectors(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    pub(super) fn changes(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::WriteZeroes | Kind::Discard)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let durable = if self.durable { "durable " } else { "" };
        let kind = match self.kind {
            Kind::Write => "write",
            Kind::WriteZeroes => "write-zeroes",
            Kind::Discard => "discard",
            Kind::Flush => "flush",
            Kind::Read => "read",
        };
        write!(f, "{durable}{kind} of queue {}", self.queue)?;
        if self.kind == Kind::Flush {
            return Ok(());
        }
        write!(f, ", sectors {}..{}", self.first, self.first.saturating_add(self.count))
    }
}

/// A write to one of the devices below the volume. Its number is its place in [`Trace::writes`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LowerWrite {
    /// 0: of the data, 1: of a log of its own.
    pub(super) device: u8,
    /// First byte, a multiple of 512.
    pub(super) offset: u64,
    /// Bytes, a multiple of 512.
    pub(super) bytes: u32,
    /// Where its data begins in [`Trace::data`]; zeroes have none.
    pub(super) data: Option<u64>,
    /// On stable storage when it is complete.
    pub(super) durable: bool,
}

/// What a read of the load, or of the whole disk, has given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) contents: Vec<Content>,
}

/// One step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// A device was given a write.
    Written { write: u32 },
    /// A device says that a write is complete.
    WriteDone { write: u32 },
    /// A device was told to flush.
    Flushing { device: u8, flush: u32 },
    /// A device says that a flush is complete.
    FlushDone { device: u8, flush: u32 },
    /// A device has another size, which is sure behind the next flush.
    Resized { device: u8, bytes: u64 },
    /// The volume is open; what all of it reads as stands in [`Trace::found`].
    Opened { found: u32, disk_bytes: u64 },
    /// The load is about to ask.
    Asked { operation: u32 },
    /// The load was answered.
    Answered { operation: u32 },
    /// The load was answered with data, which stands in [`Trace::found`].
    Read { operation: u32, found: u32 },
    /// The volume is about to be given another size.
    Growing { disk_bytes: u64 },
    /// It says that it has that size.
    Grown { disk_bytes: u64 },
    /// The volume was closed.
    Closed,
}

/// A workload as it went.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Trace {
    pub(super) scene: Scene,
    /// What is known of the disk before the first event.
    pub(super) known: Known,
    /// All operations of this volume; those before `operations_before` are of earlier generations.
    pub(super) operations: Vec<Operation>,
    pub(super) operations_before: u32,
    pub(super) writes: Vec<LowerWrite>,
    pub(super) found: Vec<Found>,
    pub(super) events: Vec<Event>,
    /// What was written, one write behind the other.
    #[serde(skip)]
    pub(super) data: Vec<u8>,
    /// What was on the devices before the first event.
    #[serde(skip)]
    pub(super) before: Vec<Vec<u8>>,
}

impl Trace {
    /// The data of a write; none for zeroes.
    pub(super) fn data_of(&self, write: &LowerWrite) -> Option<&[u8]> {
        let start = usize::try_from(write.data?).ok()?;
        self.data.get(start..start + write.bytes as usize)
    }

    /// The largest size that a device has, in bytes.
    pub(super) fn device_bytes_max(&self, device: usize) -> u64 {
        let before = self.before.get(device).map_or(0, Vec::len) as u64;
        let sizes = self.events.iter().filter_map(|event| match event {
            Event::Resized { device: of, bytes } if usize::from(*of) == device => Some(*bytes),
            _ => None,
        });
        sizes.fold(before, u64::max)
    }

    /// Stores it, so that the same cuts can be made again.
    pub(super) fn store(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut file = BufWriter::new(File::create(path)?);
        let lengths: Vec<u64> = self.before.iter().map(|device| device.len() as u64).collect();
        let head = serde_json::to_vec(&(self, lengths, self.data.len() as u64))?;
        file.write_all(&MAGIC)?;
        file.write_all(&(head.len() as u64).to_le_bytes())?;
        file.write_all(&head)?;
        for bytes in self.before.iter().chain([&self.data]) {
            file.write_all(bytes)?;
        }
        file.into_inner()?.sync_all()?;
        Ok(())
    }

    /// Reads what [`store`](Self::store) has written.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("--replay {}: cannot read it", path.display()))?;
        Self::read(BufReader::new(file)).with_context(|| {
            format!("--replay {}: this is no whole trace of `torture powercut` of this version", path.display())
        })
    }

    fn read(mut file: impl Read) -> Result<Self> {
        let mut start = [0; 16];
        file.read_exact(&mut start)?;
        let (magic, len) = start.split_at(8);
        ensure!(magic == MAGIC, "it begins otherwise");
        let len = u64::from_le_bytes(len.try_into()?);
        let mut head = Vec::new();
        file.by_ref().take(len).read_to_end(&mut head)?;
        let (mut trace, lengths, data): (Self, Vec<u64>, u64) = serde_json::from_slice(&head)?;
        let mut part = |len: u64| -> Result<Vec<u8>> {
            let mut bytes = Vec::new();
            file.by_ref().take(len).read_to_end(&mut bytes)?;
            ensure!(bytes.len() as u64 == len, "its end is missing");
            Ok(bytes)
        };
        for len in lengths {
            trace.before.push(part(len)?);
        }
        trace.data = part(data)?;
        trace.check()?;
        Ok(trace)
    }

    /// Fails on a file that was changed in a way that would make later steps look outside their tables.
    fn check(&self) -> Result<()> {
        let (operations, writes, found) = (self.operations.len(), self.writes.len(), self.found.len());
        ensure!((1..=2).contains(&self.before.len()), "it has {} devices", self.before.len());
        ensure!(self.operations_before as usize <= operations && operations > 0, "it lacks operations");
        for write in &self.writes {
            ensure!(usize::from(write.device) < self.before.len(), "it writes to a device that it lacks");
            ensure!(
                (write.offset | u64::from(write.bytes)).is_multiple_of(SECTOR_BYTES as u64),
                "it writes half sectors"
            );
            ensure!(write.data.is_none() || self.data_of(write).is_some(), "it lacks data");
        }
        for event in &self.events {
            let inside = match *event {
                Event::Written { write } | Event::WriteDone { write } => (write as usize) < writes,
                Event::Flushing { device, .. } | Event::FlushDone { device, .. } | Event::Resized { device, .. } => {
                    usize::from(device) < self.before.len()
                }
                Event::Opened { found: at, .. } => (at as usize) < found,
                Event::Asked { operation } | Event::Answered { operation } => (operation as usize) < operations,
                Event::Read { operation, found: at } => (operation as usize) < operations && (at as usize) < found,
                Event::Growing { .. } | Event::Grown { .. } | Event::Closed => true,
            };
            ensure!(inside, "{event:?} leads nowhere");
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A trace in which nothing happens, on devices that hold `before`.
    pub(crate) fn trace(before: &[Vec<u8>]) -> Trace {
        let scene = Scene {
            seed: 1,
            volume: 2,
            generation: 0,
            disk_bytes: 2048,
            growth_bytes: Vec::new(),
            log_bytes: 65536,
            external_log: false,
            dirty_bytes: 1 << 20,
            always: false,
            operations: 1,
            depth: 1,
            sectors_max: 1,
            flushes: 1,
            durables: 1,
            delay_max_us: 1,
            without: None,
        };
        let new = Operation { kind: Kind::WriteZeroes, first: 0, count: u32::MAX, durable: true, queue: 0 };
        Trace {
            scene,
            known: Known { sectors: vec![vec![0]; 4], disk_bytes: (2048, 2048) },
            operations: vec![new],
            operations_before: 1,
            writes: Vec::new(),
            found: Vec::new(),
            events: Vec::new(),
            data: Vec::new(),
            before: before.to_vec(),
        }
    }

    #[test]
    fn a_stored_trace_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a").join("trace");
        let mut trace = trace(&[vec![7; 1024], vec![8; 512]]);
        trace.writes.push(LowerWrite { device: 1, offset: 512, bytes: 512, data: Some(0), durable: true });
        trace.data = vec![9; 512];
        trace.found.push(Found { contents: vec![Content::Zeroes, Content::Of(3), Content::Foreign] });
        trace.events = vec![Event::Written { write: 0 }, Event::Opened { found: 0, disk_bytes: 1536 }];
        trace.store(&file).unwrap();
        let found = Trace::load(&file).unwrap();
        assert_eq!(format!("{found:?}"), format!("{trace:?}"));

        let whole = fs::read(&file).unwrap();
        for end in [0, 8, 20, whole.len() - 1] {
            fs::write(&file, &whole[..end]).unwrap();
            assert!(Trace::load(&file).is_err(), "of {} bytes {end}", whole.len());
        }
        trace.events.push(Event::WriteDone { write: 1 });
        trace.store(&file).unwrap();
        assert!(format!("{:#}", Trace::load(&file).unwrap_err()).contains("leads nowhere"));
    }
}
