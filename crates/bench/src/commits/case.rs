//! What is compared: rows, their sides, and what is expected of them.

use std::path::Path;

use crate::contest::Contender;

/// A storage, under a kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Row {
    /// Synchronous writes on the disk of --dir
    Disk,
    /// Synchronous writes on a simulated device that does one thing at a time and needs 5 ms for a flush
    Sim,
    /// The same, on a device that does 64 flushes side by side
    SimChannels,
    /// Synchronous writes on qcow2 images in --dir in which nothing is allocated
    Thin,
    /// Synchronous writes on qcow2 images in --dir of which all is allocated
    Qcow2,
    /// Writes without any flush on the disk of --dir, once write-back runs
    Plain,
    /// Writes without any flush on a simulated device, once write-back runs
    PlainSim,
}

impl Row {
    /// All rows, in the order in which they are measured and shown.
    pub const ALL: [Row; 7] = [Row::Disk, Row::Thin, Row::Qcow2, Row::Sim, Row::SimChannels, Row::Plain, Row::PlainSim];

    /// Its name, as --only takes it.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it lies on the disk of --dir.
    pub(super) fn needs_files(self) -> bool {
        matches!(self, Row::Disk | Row::Thin | Row::Qcow2 | Row::Plain)
    }

    /// Whether it needs qcow2 images there.
    pub(super) fn needs_qcow2(self) -> bool {
        matches!(self, Row::Thin | Row::Qcow2)
    }

    /// Whether programs of others are among its sides.
    pub(super) fn needs_peers(self) -> bool {
        matches!(self, Row::Disk | Row::Thin | Row::Qcow2)
    }

    /// Whether its writes are synchronous.
    pub(super) fn is_sync(self) -> bool {
        !matches!(self, Row::Plain | Row::PlainSim)
    }

    /// What it is, for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Row::Disk => "disk: synchronous 4 KiB writes at random places",
            Row::Thin => {
                "thin: synchronous 4 KiB writes at random places of a qcow2 image, where nothing is allocated at first"
            }
            Row::Qcow2 => "qcow2: synchronous 4 KiB writes at random places of a qcow2 image, where all is allocated",
            Row::Sim => "sim: synchronous 4 KiB writes, a write takes 50 us, a flush 5 ms, one at a time",
            Row::SimChannels => "sim-channels: the same, 64 at a time",
            Row::Plain => "plain: 4 KiB writes at random places of the disk, no flush, once write-back runs",
            Row::PlainSim => {
                "plain-sim: 4 KiB writes, no flush, once write-back runs; a write takes 100 us, 4 at a time"
            }
        }
    }
}

/// One table: a row at a number of writes in flight.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) row: Row,
    pub(super) depth: u16,
    /// The volume first: the others are what it is compared with.
    pub(super) sides: Vec<Side>,
}

/// What an image is like when a side begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Image {
    /// As it was laid out, and others have left it.
    AsItIs,
    /// A qcow2 image, in which nothing is allocated.
    Empty,
}

/// One that runs.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Of the qcow2 image.
    pub(super) image: Image,
    /// What the first side is expected to do, as a multiple of this one.
    pub(super) expected: Option<f64>,
}

impl Contender for Side {
    fn name(&self) -> &str {
        self.name
    }

    fn expected(&self) -> Option<f64> {
        self.expected
    }
}

/// Who runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// `vringd disk` with these options; `{image}`, `{volume}`, `{thin}` (a qcow2 image), `{full}` (another one, all of which is
    /// allocated) and `{log}` (of either) are replaced.
    Vringd {
        options: String,
        /// Whether it has a log, and with it figures of one.
        logs: bool,
    },
    /// Another server; `{socket}` and `{image}` are replaced.
    Peer { words: Vec<String> },
    /// fio on the image.
    Fio { direct: bool },
}

/// What all cases have in common.
#[derive(Debug)]
pub(super) struct Shape<'a> {
    pub(super) depths: &'a [u16],
    pub(super) log_bytes: u64,
    pub(super) dirty_bytes: u64,
    pub(super) storage_daemon: &'a Path,
}

/// Writes in flight where none waits for another.
const PLAIN_DEPTH: u16 = 32;
/// Capacity of simulated devices, which is memory of the server.
const SIM_SIZE: &str = "1G";

/// What is expected at 1, 8 and 32 writes in flight; nothing at other numbers.
fn expected(depth: u16, at: [f64; 3]) -> Option<f64> {
    let [one, eight, many] = at;
    match depth {
        1 => Some(one),
        8 => Some(eight),
        32 => Some(many),
        _ => None,
    }
}

/// The cases of a row.
pub(super) fn cases(row: Row, shape: &Shape<'_>) -> Vec<Case> {
    let at = |depth, sides| Case { row, depth, sides };
    match row {
        Row::Disk => shape.depths.iter().map(|depth| at(*depth, on_disk(*depth, shape))).collect(),
        Row::Thin => shape.depths.iter().map(|depth| at(*depth, on_qcow2("{thin}", Image::Empty, shape))).collect(),
        Row::Qcow2 => shape.depths.iter().map(|depth| at(*depth, on_qcow2("{full}", Image::AsItIs, shape))).collect(),
        Row::Sim => {
            let sides = |depth| on_sim(&sync_sim(1), expected(depth, [1.0, 4.0, 12.0]), shape);
            shape.depths.iter().map(|depth| at(*depth, sides(*depth))).collect()
        }
        Row::SimChannels => shape.depths.iter().map(|depth| at(*depth, on_sim(&sync_sim(64), None, shape))).collect(),
        Row::Plain => vec![at(PLAIN_DEPTH, vec![volume(shape), image(Some(0.95))])],
        Row::PlainSim => {
            let device = format!("--storage sim --size {SIM_SIZE} --write-latency 100us --channels 4");
            vec![at(PLAIN_DEPTH, on_sim(&device, Some(0.95), shape))]
        }
    }
}

fn sync_sim(channels: u16) -> String {
    format!("--storage sim --size {SIM_SIZE} --write-latency 50us --channels {channels} --flush-cost 5ms")
}

fn on_disk(depth: u16, shape: &Shape<'_>) -> Vec<Side> {
    let host = expected(depth, [0.8, 1.0, 1.5]);
    vec![
        volume(shape),
        Side {
            name: "qemu-storage-daemon",
            kind: Kind::Peer { words: storage_daemon(shape.storage_daemon, "{image}", "raw") },
            image: Image::AsItIs,
            expected: expected(depth, [1.0, 2.0, 3.0]),
        },
        // A host's program has the choice: whichever is faster is what a volume is to be held against.
        Side { name: "fio, O_DIRECT", kind: Kind::Fio { direct: true }, image: Image::AsItIs, expected: host },
        Side { name: "fio, page cache", kind: Kind::Fio { direct: false }, image: Image::AsItIs, expected: host },
        image(None),
    ]
}

/// One worker, one queue: what is shared is shared by the log, not by threads. Memory without a name, which costs the same and goes
/// with the process: a volume that is deleted needs none that outlives it.
fn volume(shape: &Shape<'_>) -> Side {
    let options = format!("--storage volume --memory-file none --dirty-memory {} {{volume}}", shape.dirty_bytes);
    Side { name: "volume", kind: Kind::Vringd { options, logs: true }, image: Image::AsItIs, expected: None }
}

/// All of them past the page cache: so it is the image that waits for its disk, and not only its flushes.
fn on_qcow2(path: &str, image: Image, shape: &Shape<'_>) -> Vec<Side> {
    let side = |name, kind| Side { name, kind, image, expected: None };
    let disk = format!("--storage qcow2 --direct {path}");
    let log = format!("--log {{log}} --memory-file none --dirty-memory {}", shape.dirty_bytes);
    vec![
        side("log", Kind::Vringd { options: format!("{log} {disk}"), logs: true }),
        side("no log", Kind::Vringd { options: disk, logs: false }),
        side("qemu-storage-daemon", Kind::Peer { words: storage_daemon(shape.storage_daemon, path, "qcow2") }),
    ]
}

fn image(expected: Option<f64>) -> Side {
    let kind = Kind::Vringd { options: "--direct {image}".into(), logs: false };
    Side { name: "no log", kind, image: Image::AsItIs, expected }
}

fn on_sim(device: &str, expected: Option<f64>, shape: &Shape<'_>) -> Vec<Side> {
    let log = format!("--intent-log {} --dirty-memory {}", shape.log_bytes, shape.dirty_bytes);
    vec![
        Side {
            name: "volume",
            kind: Kind::Vringd { options: format!("{device} {log}"), logs: true },
            image: Image::AsItIs,
            expected: None,
        },
        Side {
            name: "no log",
            kind: Kind::Vringd { options: device.into(), logs: false },
            image: Image::AsItIs,
            expected,
        },
    ]
}

fn storage_daemon(program: &Path, path: &str, format: &str) -> Vec<String> {
    let file = format!("driver=file,node-name=file,filename={path},aio=io_uring,cache.direct=on");
    let disk = format!("driver={format},node-name=disk,file=file");
    let words = [
        "--blockdev",
        &file,
        "--blockdev",
        &disk,
        "--export",
        "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={socket},writable=on,num-queues=1",
    ];
    std::iter::once(program.to_string_lossy().into_owned()).chain(words.map(String::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Case> {
        let shape = Shape {
            depths: &[1, 8, 32, 64],
            log_bytes: 64 << 20,
            dirty_bytes: 1 << 20,
            storage_daemon: Path::new("qsd"),
        };
        Row::ALL.into_iter().flat_map(|row| cases(row, &shape)).collect()
    }

    fn expectation(row: Row, depth: u16, side: &str) -> Option<f64> {
        let case = all().into_iter().find(|case| case.row == row && case.depth == depth).unwrap();
        case.sides.iter().find(|it| it.name == side).unwrap().expected
    }

    #[test]
    fn the_first_side_has_a_log_and_no_other_does() {
        for case in all() {
            let (first, others) = case.sides.split_first().unwrap();
            assert!(matches!(first.kind, Kind::Vringd { logs: true, .. }), "{case:?}");
            assert!(!others.is_empty() && !others.iter().any(|it| matches!(it.kind, Kind::Vringd { logs: true, .. })));
            assert_eq!(first.expected, None);
        }
    }

    #[test]
    fn what_is_expected_stands_at_its_depth() {
        assert_eq!(expectation(Row::Disk, 8, "qemu-storage-daemon"), Some(2.0));
        assert_eq!(expectation(Row::Disk, 1, "fio, O_DIRECT"), Some(0.8));
        assert_eq!(expectation(Row::Disk, 32, "fio, page cache"), Some(1.5));
        assert_eq!(expectation(Row::Disk, 64, "fio, page cache"), None);
        assert_eq!(expectation(Row::Sim, 32, "no log"), Some(12.0));
        assert_eq!(expectation(Row::SimChannels, 32, "no log"), None);
        assert_eq!(expectation(Row::Plain, PLAIN_DEPTH, "no log"), Some(0.95));
    }

    #[test]
    fn a_simulated_device_is_the_same_with_and_without_a_log() {
        for case in all().iter().filter(|case| !case.row.needs_files()) {
            let [
                Side { kind: Kind::Vringd { options: with, .. }, .. },
                Side { kind: Kind::Vringd { options, .. }, .. },
            ] = &case.sides[..]
            else {
                panic!("{case:?}")
            };
            let log = with.strip_prefix(options.as_str()).unwrap();
            assert_eq!(log, " --intent-log 67108864 --dirty-memory 1048576");
        }
    }
}
