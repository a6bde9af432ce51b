//! One life of a volume: opened on what a cut has left, used, closed; all on tape.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use storage::{Storage, VolumeFigures};
use values::SyncMode;
use volume::format::{self, CreateOptions, EXTERNAL_LOG_OFFSET, Uuid};
use volume::{Barriers, LoggedOptions, LoggedStorage};
use volume::{Blocks, Ram};

use super::load;
use super::oracle::NEW;
use super::record::{Recorder, Tape};
use super::stamp::SECTOR_BYTES;
use super::trace::{Barrier, Event, Kind, Known, Operation, Scene, Trace};
use crate::rng::Rng;

/// A workload takes a second; a volume that hangs takes for ever.
const LIFE_LIMIT: Duration = Duration::from_secs(120);

/// What there is before a volume is opened.
#[derive(Clone)]
pub(super) struct Before {
    /// The devices' contents.
    pub(super) devices: Vec<Vec<u8>>,
    /// What is known of the disk.
    pub(super) known: Known,
    /// All that was ever asked of it.
    pub(super) operations: Vec<Operation>,
}

impl Before {
    /// A new volume.
    pub(super) fn new(scene: &Scene) -> Result<Self> {
        let mut names = Rng::new(scene.seed, u64::from(scene.volume));
        let mut name = || Uuid::from_u64_pair(names.next(), names.next());
        let options = CreateOptions {
            capacity_bytes: scene.disk_bytes,
            log_bytes: scene.log_bytes,
            volume: name(),
            log: name(),
            log_path: scene.external_log.then(|| "the second device".to_owned()),
            apart: false,
            created_by: "torture powercut".to_owned(),
        };
        let mut data = Ram::new(usize::try_from(options.storage_bytes()?)?);
        let mut log = scene.external_log.then(|| Ram::new((EXTERNAL_LOG_OFFSET + scene.log_bytes) as usize));
        let log_device = log.as_mut().map(|log| -> &mut dyn Blocks { log });
        format::create(&mut data, log_device, &options, &mut |_| {})?;
        let sectors = scene.disk_bytes as usize / SECTOR_BYTES;
        let new = Operation { kind: Kind::WriteZeroes, first: 0, count: u32::MAX, durable: true, queue: 0 };
        Ok(Self {
            devices: [data].into_iter().chain(log).map(|device| device.0).collect(),
            known: Known { sectors: vec![vec![NEW]; sectors], disk_bytes: (scene.disk_bytes, scene.disk_bytes) },
            operations: vec![new],
        })
    }
}

/// A life, over.
pub(super) struct Life {
    pub(super) trace: Trace,
    /// Batches that the volume committed.
    pub(super) commits: u64,
    /// How often it wrote back.
    pub(super) sweeps: u64,
}

/// Lives it, on a thread of its own: if the volume hangs, this one does not.
pub(super) fn live(scene: &Scene, before: &Before, rng: &mut Rng) -> Result<Life> {
    let (say, hear) = mpsc::channel();
    let (scene, before, mut rng) = (scene.clone(), before.clone(), Rng::new(rng.next(), 1));
    let named = scene.to_string();
    let thread = thread::Builder::new().name("volume".into()).spawn(move || {
        // Nobody hears it if it came too late.
        say.send(life(&scene, before, &mut rng)).ok();
    })?;
    match hear.recv_timeout(LIFE_LIMIT) {
        Ok(life) => {
            thread.join().ok();
            life.with_context(|| named)
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            bail!("{named}: the volume hangs: its load is not answered within {} s", LIFE_LIMIT.as_secs())
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(anyhow!("{named}: the volume has panicked")),
    }
}

fn life(scene: &Scene, before: Before, rng: &mut Rng) -> Result<Life> {
    let devices = before.devices.len();
    let tape = Tape::new(before.into_trace(scene.clone()), Rng::new(rng.next(), 0));
    let device = |number| -> Arc<dyn Storage> { Arc::new(Recorder::new(&tape, number, scene.delay_max_us)) };
    let log = (devices > 1).then(|| device(1));
    let figures = serve(device(0), log, &tape, scene, rng)?;
    let trace = tape.finish().context("a volume that was closed still holds its storage")?;
    Ok(Life { trace, commits: figures.commits, sweeps: figures.sweeps })
}

impl Before {
    /// A trace that begins with it.
    pub(super) fn into_trace(self, scene: Scene) -> Trace {
        Trace {
            scene,
            known: self.known,
            operations_before: self.operations.len() as u32,
            operations: self.operations,
            writes: Vec::new(),
            found: Vec::new(),
            events: Vec::new(),
            data: Vec::new(),
            before: self.devices,
        }
    }
}

/// Opens the volume, looks at it, uses it and closes it.
pub(super) fn serve(
    data: Arc<dyn Storage>,
    log: Option<Arc<dyn Storage>>,
    tape: &Tape,
    scene: &Scene,
    rng: &mut Rng,
) -> Result<VolumeFigures> {
    let options = LoggedOptions {
        dirty_bytes: scene.dirty_bytes,
        sync: if scene.always { SyncMode::Always } else { SyncMode::Standard },
        barriers: barriers(scene.without),
    };
    let volume = LoggedStorage::open(data, log, &options).context("opening the volume")?;
    let found = load::read_all(&volume)?;
    tape.lock().opened(found, volume.capacity_bytes());
    load::run(&volume, tape, scene, rng)?;
    let figures = volume.figures();
    volume.close().context("closing the volume")?;
    drop(volume);
    tape.note(Event::Closed);
    Ok(figures)
}

fn barriers(without: Option<Barrier>) -> Barriers {
    let mut barriers = Barriers::default();
    match without {
        Some(Barrier::Commit) => barriers.commit = false,
        Some(Barrier::WriteBack) => barriers.write_back = false,
        Some(Barrier::Checkpoint) => barriers.checkpoint = false,
        Some(Barrier::Order) => barriers.order = false,
        None => {}
    }
    barriers
}
