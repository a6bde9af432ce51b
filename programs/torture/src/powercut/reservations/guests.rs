//! A daemon's part that serves one disk to two guests, each by a SCSI device of its own: one logical unit, whose reservations a file keeps.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use engine::{Placement, Poll, WorkerSpec};
use export::{Carried, DAEMON, Engine, Export, Hosting, LogicalUnits, ScsiOptions, Socket, UnitOptions};
use storage::{MemoryOptions, MemoryStorage, RecordFile, Storage};
use tempfile::TempDir;
use values::ByteSize;

use super::driver::{Answer, Driver};
use super::load::{self, Names};
use super::state::Found;

/// Name of the disk.
pub(super) const DISK: &str = "quorum";
/// Names of the exports.
const EXPORTS: [&str; 2] = ["node1", "node2"];
const DISK_BYTES: u64 = 1 << 20;

/// Both devices, and their drivers.
pub(super) struct Guests {
    pub(super) drivers: Vec<Driver>,
    pub(super) units: LogicalUnits,
    _exports: Vec<Export>,
    _engine: Engine,
    _directory: TempDir,
}

impl Guests {
    /// `units` may know of reservations that an earlier program has left.
    pub(super) fn new(kept: Option<&Arc<RecordFile>>, units: LogicalUnits) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-torture-")?;
        let engine = Engine::new(1);
        engine.worker_new(DAEMON, WorkerSpec::default(), Poll::Off)?;
        let options = MemoryOptions { size: Some(ByteSize(DISK_BYTES)), ..MemoryOptions::default() };
        let disk: Arc<dyn Storage> = Arc::new(MemoryStorage::open(&options)?);
        let (mut exports, mut drivers) = (Vec::new(), Vec::new());
        for name in EXPORTS {
            let socket = directory.path().join(name);
            exports.push(export(name, &socket, &disk, kept, &units, &engine)?);
            drivers.push(Driver::connect(&socket)?);
        }
        Ok(Self { drivers, units, _exports: exports, _engine: engine, _directory: directory })
    }

    /// What the first guest finds of reservations.
    pub(super) fn find(&mut self) -> Result<Found> {
        self.drivers.first_mut().context("there are guests")?.find()
    }

    /// What the guests are called.
    pub(super) fn names() -> Result<Names> {
        let mut guests = Self::new(None, LogicalUnits::default())?;
        let mut ids = Vec::new();
        for driver in &mut guests.drivers {
            let (cdb, list) = load::register(0, 1);
            anyhow::ensure!(driver.ask(&cdb, &list, 0)? == Answer::Good(Vec::new()), "a guest cannot register");
            let all = driver.find()?.registrations();
            let new = all.iter().find(|it| !ids.contains(&it.id)).context("nobody is registered")?;
            ids.push(new.id);
        }
        let ids = [ids[0], ids[1]];
        Ok(Names { ids, ports: EXPORTS.map(export::port_number) })
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        // Before their devices.
        self.drivers.drain(..).for_each(Driver::leave);
    }
}

fn export(
    name: &str,
    socket: &Path,
    disk: &Arc<dyn Storage>,
    kept: Option<&Arc<RecordFile>>,
    units: &LogicalUnits,
    engine: &Engine,
) -> Result<Export> {
    let hosting = Hosting {
        name: name.to_owned(),
        socket: Socket::Path { path: socket.to_owned(), options: vhost_user::SocketOptions::default() },
        queue_size_max: 64,
        placement: Placement::Shared,
        poll: Poll::Off,
        workers: WorkerSpec::default(),
        session_ended: None,
        failed: None,
        carried: Carried::default(),
        resume: None,
    };
    let unit = UnitOptions {
        lun: "0".parse().map_err(|error| anyhow::anyhow!("a number of a unit: {error}"))?,
        disk: DISK.to_owned(),
        is_shared: true,
        serial: DISK.to_owned(),
        storage: disk.clone(),
        kept: kept.cloned(),
        threshold_bytes: 0,
    };
    let options = ScsiOptions {
        request_queues: 1,
        block_size_bytes: 512,
        write_back: true,
        write_back_changeable: false,
        units: vec![unit],
        logical_units: units.clone(),
    };
    Ok(Export::scsi(hosting, options, engine)?)
}
