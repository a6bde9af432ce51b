//! The daemon behind the control API: exports and disks by name, workers by number.

use crate::choices;
use crate::confine::Held;
use crate::convert;
use crate::directory;
use crate::disks::is_late;
use crate::failure::field;
use crate::limit::Groups;
use crate::live::Jobs;
use crate::p9;
use crate::placer::Placements;
use crate::prepared::{Begun, Contents, DiskContents, Prepared, certificates, hosting_in};
use crate::space::Asking;
use crate::traces::Traces;
use crate::units::{self, Leases};
use crate::upgrade::{self, Upgrade};
use crate::workers;
use control::model::config::{ExportKind, NewExport};
use control::model::policy::{PlacementPolicy, Policy, PolicyRecord, PolicySettings};
use control::model::trace::{NewTrace, Trace, TraceNews};
use control::model::{
    self as api, Attach, GroupSettings, Info, NewDisk, NewGroup, NewWorker, Protocol, Resize, Settings,
};
use control::{ApiError, Asker, Scope};
use disk::{Disk, Disks, Lease};
use engine::WorkerSpec;
use export::{DAEMON, DiskOptions, Engine, Export, ExportError, Hosting, LogicalUnits, NbdOptions};
use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use storage::StorageError;

/// Why a daemon that was made for one export takes on nothing else.
const ALONE: &str = "this daemon is isolated and serves one directory: start another";

/// Longest wait for the requests of an earlier user of a disk, for a change of its capacity, and for who looks at an export that goes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// An export, and what it uses. In this order: the export ends before its lease does.
struct Served {
    export: Arc<Export>,
    /// The disk that it serves.
    disk: Option<Lease>,
    /// The disks of a SCSI device.
    units: Leases,
}

/// Everything that runs.
pub(crate) struct Daemon {
    engine: Engine,
    pub(crate) workers_max: usize,
    pub(crate) started: Instant,
    exports: RwLock<BTreeMap<String, Served>>,
    pub(crate) disks: Disks,
    /// What SCSI devices make of them.
    pub(crate) logical_units: LogicalUnits,
    /// Disks whose space is asked at this moment.
    pub(crate) asking: Asking,
    /// Copies of disks, while guests use them.
    pub(crate) jobs: Jobs,
    pub(crate) groups: Groups,
    /// Held while an export or a disk is added or removed, so that names and sockets are taken once.
    changing: Mutex<()>,
    stop: Mutex<Option<Sender<()>>>,
    /// Its isolation is made for the one export it has.
    pub(crate) alone: bool,
    /// Where the socket of that export was made, if it was not inherited.
    bound_at: Option<String>,
    /// What holds the process.
    pub(crate) held: Held,
    /// For the program that follows this one.
    pub(crate) upgrade: Upgrade,
    /// Rings that the policy has moved.
    pub(crate) placements: Placements,
    /// Who traces slow requests.
    pub(crate) traces: Traces,
}

impl Daemon {
    /// A daemon with shared workers and no exports yet. `stop` is told when somebody asks for the end.
    pub(crate) fn new(
        shared: usize,
        workers_max: usize,
        poll: engine::Poll,
        stop: Sender<()>,
    ) -> Result<Daemon, ApiError> {
        let engine = Engine::new(workers_max);
        engine.on_death(workers::replace_shared);
        for _ in 0..shared {
            engine
                .worker_new(DAEMON, WorkerSpec::default(), poll)
                .map_err(|error| convert::engine_error(error, &Scope::Daemon, ""))?;
        }
        Ok(Daemon {
            engine,
            workers_max,
            started: Instant::now(),
            exports: RwLock::default(),
            disks: Disks::default(),
            logical_units: LogicalUnits::default(),
            asking: Asking::default(),
            jobs: Jobs::default(),
            groups: Groups::default(),
            changing: Mutex::new(()),
            stop: Mutex::new(Some(stop)),
            alone: false,
            bound_at: None,
            held: Held::default(),
            upgrade: Upgrade::default(),
            placements: Placements::default(),
            traces: Traces::default(),
        })
    }

    /// The same daemon, started by another program before.
    pub(crate) fn since(self, started: Instant) -> Daemon {
        Daemon { started, ..self }
    }

    /// The same daemon in a process that is held by something.
    pub(crate) fn held_by(self, held: Held) -> Daemon {
        Daemon { held, ..self }
    }

    /// The same daemon for one export, whose socket was made at this path; nobody can add others from outside.
    pub(crate) fn alone(self, bound_at: Option<String>) -> Daemon {
        Daemon { alone: true, bound_at, ..self }
    }

    pub(crate) fn get(&self, name: &str) -> Result<Arc<Export>, ApiError> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        let served = exports.get(name).ok_or_else(|| ApiError::NoSuchExport { name: name.to_owned() })?;
        Ok(served.export.clone())
    }

    /// The disk that an export serves.
    pub(crate) fn disk_of(&self, export: &str) -> Option<Arc<Disk>> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        exports.get(export)?.disk.as_ref().map(|lease| lease.disk().clone())
    }

    /// Does something with the disks of a SCSI device; nothing where there is no such export.
    pub(crate) fn with_units<T>(&self, export: &str, f: impl FnOnce(&mut Leases) -> Option<T>) -> Option<T> {
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        exports.get_mut(export).and_then(|served| f(&mut served.units))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The exports, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Export>> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        exports.values().map(|served| served.export.clone()).collect()
    }

    /// The exports that share the limits of a group.
    fn members(&self, group: &str) -> Vec<Arc<Export>> {
        let member = |export: &Arc<Export>| export.group().is_some_and(|of| of.name() == group);
        self.all().into_iter().filter(member).collect()
    }

    fn group_out(&self, group: &NewGroup) -> api::Group {
        group.with_exports(self.members(&group.name).iter().map(|export| export.name().to_owned()).collect())
    }

    pub(crate) fn change_lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, export: &Export) -> api::Export {
        let own = self.engine.workers().into_iter().filter(|worker| worker.owner == export.name());
        let mut shown =
            convert::export_out(export.status(), &export.rings(), own.map(|worker| worker.number).collect());
        if let Some(path) = &self.bound_at {
            shown.socket.clone_from(path);
        }
        let apart = self.disk_of(export.name()).filter(|disk| disk.owner().is_none());
        shown.disk = apart.map(|disk| disk.name().to_owned());
        shown
    }

    fn in_scope(&self, scope: &Scope, owner: &str) -> Result<bool, ApiError> {
        match scope {
            Scope::Daemon => Ok(true),
            Scope::Export(name) => self.get(name).map(|export| export.name() == owner),
        }
    }

    /// Adds an export, of which something was made before.
    pub(crate) fn add(&self, mut new: NewExport, mut prepared: Prepared) -> Result<api::Export, ApiError> {
        // What another program has begun was checked there, and may have been changed since to what no description says.
        if prepared.begun.is_none() {
            new.check()?;
            self.held.admit(&mut new)?;
            // What was opened before has its memory file.
            if let (Contents::Paths, Some(storage)) = (&prepared.contents, &new.storage) {
                self.held.admit_made(storage)?;
            }
            // And what listens already goes on listening.
            if prepared.socket.is_none() {
                self.held.admit_address(&new)?;
            }
        }
        let check_free = |new: &NewExport| match self.get(&new.name) {
            Ok(_) => Err(ApiError::ExportExists { name: new.name.clone() }),
            Err(_) => Ok(()),
        };
        check_free(&new)?;
        if let Some(storage) = &new.storage {
            prepared.contents = prepared.contents.unlocked(&new.name, storage)?;
        }
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        check_free(&new)?;
        let _limiting = self.groups.changing();
        let (limits, group) = self.groups.resolve(&new.limits)?;
        if let (None, Some(tls)) = (&prepared.tls, &new.tls) {
            prepared.tls = Some(certificates(tls)?);
        }
        let Prepared { socket, contents, tls, tree, session_ended, failed, begun, .. } = prepared;
        let Begun { tree: adopted, carried, resume } = begun.unwrap_or_default();
        let hosting = Hosting { session_ended, failed, carried, resume, ..hosting_in(&new, socket)? };
        let disk = match new.kind {
            ExportKind::Disk => Some(self.lease(&new, contents)?),
            ExportKind::Dir | ExportKind::Scsi => None,
        };
        let leases = self.lease_units(&new)?;
        let changes_hands = disk.as_ref().is_some_and(|lease| lease.disk().storage().custody().is_some());
        if changes_hands && new.listen.is_some() {
            return Err(field("listen", api::NO_NBD));
        }
        // A change of its capacity finds the export among the others, or is over.
        let used: Vec<_> = disk.iter().chain(leases.values()).map(|lease| lease.disk().clone()).collect();
        let _in_order = units::capacity_locks(&used)?;
        let export = match &disk {
            Some(lease) => {
                let write_cache = new.write_cache.unwrap_or_default();
                let options = DiskOptions {
                    queues: new.queues(),
                    serial: new.serial(),
                    block_size_bytes: new.block_size_bytes(),
                    write_back: write_cache.is_on(),
                    write_back_changeable: write_cache.is_changeable(),
                    nbd: NbdOptions { tls, ..NbdOptions::default() },
                };
                Export::disk(hosting, options, lease.disk().storage(), &self.engine)
            }
            None if new.kind == ExportKind::Scsi => {
                Export::scsi(hosting, units::device_in(&new, &leases, self.logical_units.clone()), &self.engine)
            }
            None => {
                let about = new.directory()?;
                let tree = match adopted {
                    Some(adopted) => directory::adopt(about, adopted)?,
                    None => directory::open(about, tree)?,
                };
                match about.protocol {
                    Protocol::Virtiofs => {
                        let options = directory::device_in(about, &new.name, new.queues());
                        Export::directory(hosting, options, tree, &self.engine)
                    }
                    Protocol::P9 => Export::p9(hosting, p9::options_in(about, &new), tree, &self.engine),
                }
            }
        };
        let export = export.map_err(|error| convert::export_error(error, &new.name))?;
        export.set_limits(limits, group);
        let export = Arc::new(export);
        self.upgrade.describe(new.clone());
        let served = Served { export: export.clone(), disk, units: leases };
        self.exports.write().unwrap_or_else(PoisonError::into_inner).insert(new.name, served);
        Ok(self.show(&export))
    }

    /// Ends every export, whose sessions are closed and rings drained, and closes every disk.
    pub(crate) fn end_all(&self) {
        for (disk, _) in self.disks.all() {
            // Otherwise requests, of jobs too, may wait for ever for a cluster.
            if let Some(remote) = disk.storage().remote() {
                remote.end_waiting(true);
            }
        }
        self.jobs.end_all();
        let exports = std::mem::take(&mut *self.exports.write().unwrap_or_else(PoisonError::into_inner));
        drop(exports);
        for (disk, _) in self.disks.all() {
            // Nobody uses it any more.
            drop(self.disks.remove(disk.name()));
        }
    }
}

impl control::Daemon for Daemon {
    fn info(&self) -> Result<Info, ApiError> {
        Ok(Info {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            exports: self.all().len(),
            workers: self.engine.workers().len(),
            workers_max: self.workers_max,
            upgrades: self.upgrade.past().map_or(0, |past| past.upgrades),
            takeover: self.upgrade.past().map(|past| past.takeover.clone()),
            latency_bounds_us: api::LATENCY_BOUNDS_US.to_vec(),
            sandbox: self.held.shown()?,
        })
    }

    fn exports(&self) -> Result<Vec<api::Export>, ApiError> {
        Ok(self.all().iter().map(|export| self.show(export)).collect())
    }

    fn export(&self, name: &str) -> Result<api::Export, ApiError> {
        Ok(self.show(&*self.get(name)?))
    }

    fn add_export(&self, new: NewExport) -> Result<api::Export, ApiError> {
        if self.alone {
            return Err(ApiError::Unsupported { export: new.name, message: ALONE.to_owned() });
        }
        self.add(new, Prepared::default())
    }

    fn remove_export(&self, name: &str, force: bool) -> Result<(), ApiError> {
        let _open = self.upgrade.gate();
        let changing = self.change_lock();
        let export = self.get(name)?;
        if export.connected() && !force {
            return Err(ApiError::Connected { name: name.to_owned() });
        }
        let own = self.disk_of(name).filter(|disk| disk.owner().is_some());
        if let Some(disk) = &own {
            self.jobs.check_copied(disk.name())?;
        }
        export.end_soon(|| self.end_waiting(name)).map_err(|error| convert::export_error(error, name))?;
        // Closed by its end, it would hold up all who change something, for as long as it takes.
        if own.as_deref().is_some_and(is_late) {
            return Err(convert::export_error(export.undrained(), name));
        }
        drop(own);
        let mut served = self.exports.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.upgrade.forget(name);
        let units = served.as_mut().map(|served| std::mem::take(&mut served.units)).unwrap_or_default();
        let watches = export.watch_units();
        drop(export);
        // Whoever still looks at it would end it later, and hold the image's lock until then. Nobody finds it any more.
        let by = Instant::now() + PATIENCE;
        while served.as_ref().is_some_and(|served| Arc::strong_count(&served.export) > 1) && Instant::now() < by {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Its name and its disks are free when others may change something again.
        let disk = served.and_then(|served| served.disk);
        for (lun, lease) in units {
            units::end(lease, watches.get(&lun));
        }
        let own = disk.filter(|lease| lease.disk().owner().is_some());
        // To close its own disk may take a volume's write-back, or a cluster's time: nobody else waits meanwhile.
        drop(changing);
        drop(own);
        // Workers still hold the image's descriptor, and with it its lock.
        self.engine.sweep_files();
        Ok(())
    }

    fn resize(&self, name: &str, resize: Resize) -> Result<api::Export, ApiError> {
        let _open = self.upgrade.gate();
        let export = self.get(name)?;
        let disk = self.disk_of(name).ok_or_else(|| convert::export_error(ExportError::NoCapacity, name))?;
        let refused = |error| convert::export_error(ExportError::Storage(error), name);
        self.resize_disk(&disk, resize.capacity_bytes.0, refused)?;
        Ok(self.show(&export))
    }

    fn change(&self, name: &str, settings: Settings) -> Result<api::Export, ApiError> {
        let _open = self.upgrade.gate();
        let export = self.get(name)?;
        export.takes_changes().map_err(|error| convert::export_error(error, name))?;
        let _limiting = settings.limits.is_some().then(|| self.groups.changing());
        let limits = settings.limits.as_ref().map(|change| self.groups.changed(&export, change)).transpose()?;
        let before = export.status();
        apply(&export, &settings).map_err(|error| {
            let back = Settings {
                execution: settings.execution.map(|_| convert::execution_set(&before.content)),
                poll: settings.poll.map(|_| before.poll),
                placement: settings.placement.map(|_| before.placement),
                sync: settings.sync.and_then(|_| convert::sync_set(&before.content)),
                // They come last, and cannot fail.
                limits: None,
            };
            // What was possible before is possible again; the refusal is what the caller has to know.
            let _ = apply(&export, &back);
            convert::export_error(error, name)
        })?;
        if let Some((limits, group)) = limits {
            export.set_limits(limits, group);
        }
        Ok(self.show(&export))
    }

    fn sync(&self, name: &str) -> Result<api::Export, ApiError> {
        let _open = self.upgrade.gate();
        let export = self.get(name)?;
        export.sync().map_err(|error| convert::export_error(error, name))?;
        Ok(self.show(&export))
    }

    fn unit_add(&self, export: &str, new: api::NewUnit) -> Result<api::Unit, ApiError> {
        self.add_unit(export, &new)
    }

    fn unit_remove(&self, export: &str, lun: api::Lun) -> Result<(), ApiError> {
        self.remove_unit(export, lun)
    }

    fn disks(&self) -> Result<Vec<api::Disk>, ApiError> {
        Ok(self.disk_list())
    }

    fn disk(&self, name: &str) -> Result<api::Disk, ApiError> {
        self.disk_shown(name)
    }

    fn disk_add(&self, new: NewDisk) -> Result<api::Disk, ApiError> {
        if self.alone {
            return Err(ApiError::DiskUnsupported { disk: new.name, message: ALONE.to_owned() });
        }
        self.add_disk(new, DiskContents::default())
    }

    fn disk_resize(&self, name: &str, resize: Resize) -> Result<api::Disk, ApiError> {
        let _open = self.upgrade.gate();
        let refused =
            |error: StorageError| ApiError::DiskUnsupported { disk: name.to_owned(), message: error.to_string() };
        let (disk, _) = self.disks.get(name)?;
        self.resize_disk(&disk, resize.capacity_bytes.0, refused)?;
        self.disk_shown(name)
    }

    fn disk_break_reservations(&self, name: &str) -> Result<(), ApiError> {
        self.break_reservations(name)
    }

    fn disk_reopen(&self, name: &str) -> Result<api::Disk, ApiError> {
        self.reopen_disk(name)
    }

    fn disk_remove(&self, name: &str) -> Result<(), ApiError> {
        self.remove_disk(name)
    }

    fn disk_bitmaps(&self, disk: &str) -> Result<Vec<api::Bitmap>, ApiError> {
        self.bitmaps(disk)
    }

    fn disk_bitmap_add(&self, disk: &str, new: api::NewBitmap) -> Result<api::Bitmap, ApiError> {
        self.add_bitmap(disk, &new)
    }

    fn disk_bitmap_remove(&self, disk: &str, bitmap: &str) -> Result<(), ApiError> {
        self.remove_bitmap(disk, bitmap)
    }

    fn snapshot(&self, new: api::NewSnapshot) -> Result<Vec<api::Disk>, ApiError> {
        self.take_snapshot(&new)
    }

    fn jobs(&self) -> Result<Vec<api::Job>, ApiError> {
        Ok(self.job_list())
    }

    fn job(&self, id: u64) -> Result<api::Job, ApiError> {
        self.job_shown(id)
    }

    fn job_add(&self, new: api::NewJob) -> Result<api::Job, ApiError> {
        self.begin_job(&new)
    }

    fn job_change(&self, id: u64, settings: api::JobSettings) -> Result<api::Job, ApiError> {
        self.change_job(id, &settings)
    }

    fn job_complete(&self, id: u64) -> Result<api::Job, ApiError> {
        self.complete_job(id)
    }

    fn job_remove(&self, id: u64) -> Result<(), ApiError> {
        self.remove_job(id)
    }

    fn groups(&self) -> Result<Vec<api::Group>, ApiError> {
        Ok(self.groups.all().iter().map(|group| self.group_out(group)).collect())
    }

    fn group(&self, name: &str) -> Result<api::Group, ApiError> {
        Ok(self.group_out(&self.groups.get(name)?))
    }

    fn group_add(&self, new: NewGroup) -> Result<api::Group, ApiError> {
        let _open = self.upgrade.gate();
        let _limiting = self.groups.changing();
        let name = new.name.clone();
        self.groups.add(new)?;
        self.group(&name)
    }

    fn group_change(&self, name: &str, settings: GroupSettings) -> Result<api::Group, ApiError> {
        let _open = self.upgrade.gate();
        let _limiting = self.groups.changing();
        let members = self.members(name);
        for export in &members {
            export.takes_changes().map_err(|error| convert::export_error(error, export.name()))?;
        }
        let group = self.groups.change(name, settings, &members)?;
        Ok(self.group_out(&group))
    }

    fn group_remove(&self, name: &str) -> Result<(), ApiError> {
        let _open = self.upgrade.gate();
        let _limiting = self.groups.changing();
        self.groups.remove(name, &self.members(name))
    }

    fn workers(&self, scope: &Scope) -> Result<Vec<api::Worker>, ApiError> {
        let mut rings = workers::rings_of_each(&self.all());
        let mut shown = Vec::new();
        for worker in self.engine.workers() {
            if self.in_scope(scope, &worker.owner)? {
                shown.push(workers::shown(&self.engine, &worker, rings.remove(&worker.number).unwrap_or_default()));
            }
        }
        Ok(shown)
    }

    fn worker(&self, scope: &Scope, id: u32) -> Result<api::Worker, ApiError> {
        let missing = || ApiError::NoSuchWorker { scope: scope.clone(), id };
        self.workers(scope)?.into_iter().find(|worker| worker.id == id).ok_or_else(missing)
    }

    fn worker_new(&self, scope: &Scope, new: NewWorker) -> Result<api::Worker, ApiError> {
        let _open = self.upgrade.gate();
        let owner = match scope {
            Scope::Daemon => DAEMON.to_owned(),
            Scope::Export(name) => self.get(name)?.name().to_owned(),
        };
        let poll = new.poll.unwrap_or_default();
        let id = self
            .engine
            .worker_new(&owner, convert::worker_in(&new), poll)
            .map_err(|error| convert::engine_error(error, scope, ""))?;
        self.worker(scope, id)
    }

    fn worker_free(&self, scope: &Scope, id: u32) -> Result<(), ApiError> {
        let _open = self.upgrade.gate();
        let worker = self.worker(scope, id)?;
        self.engine.worker_free(id).map_err(|error| match error {
            engine::EngineError::Busy { .. } => ApiError::Busy { id, rings: control::error::RingRefs(worker.rings) },
            other => convert::engine_error(other, scope, ""),
        })
    }

    fn ring_attach(&self, export: &str, index: u16, attach: Attach) -> Result<api::RingInfo, ApiError> {
        let _open = self.upgrade.gate();
        self.get(export)?.attach(index, attach.worker).map_err(|error| convert::export_error(error, export))?;
        self.ring(export, index)
    }

    fn ring(&self, export: &str, index: u16) -> Result<api::RingInfo, ApiError> {
        let served = self.get(export)?;
        let ring = served.ring(index);
        ring.map(|ring| convert::ring_out(&ring)).ok_or_else(|| ApiError::NoSuchRing {
            export: export.to_owned(),
            index,
            last: served.queues() - 1,
        })
    }

    fn policy(&self) -> Result<Policy, ApiError> {
        Ok(choices::policy(&self.engine, self.placements.told()))
    }

    fn placement(&self) -> Result<PlacementPolicy, ApiError> {
        Ok(self.placements.told())
    }

    fn policy_change(&self, settings: PolicySettings) -> Result<Policy, ApiError> {
        let _open = self.upgrade.gate();
        if let Some(favour) = settings.favour {
            self.engine.set_favour(favour);
            tracing::info!(%favour, "another preference");
        }
        if let Some(policy) = settings.policy {
            self.engine.set_policy_mode(policy);
            tracing::info!(%policy, "another policy");
        }
        self.policy()
    }

    fn policy_record(&self) -> Result<PolicyRecord, ApiError> {
        Ok(choices::record(&self.engine, self.placements.record()))
    }

    fn traces(&self) -> Result<Vec<Trace>, ApiError> {
        Ok(self.trace_list())
    }

    fn trace_begin(&self, new: NewTrace) -> Result<Trace, ApiError> {
        self.begin_trace(new)
    }

    fn trace_take(&self, id: u64) -> Result<TraceNews, ApiError> {
        self.take_trace(id)
    }

    fn trace_end(&self, id: u64) -> Result<(), ApiError> {
        self.end_trace(id)
    }

    fn upgrade(&self, new: api::NewUpgrade, asker: &Asker) -> ApiError {
        upgrade::perform(self, &new, asker)
    }

    fn shutdown(&self) -> Result<(), ApiError> {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(ApiError::Stopping)?;
        // The receiver is the main thread; when it is gone the daemon is ending already.
        stop.send(()).map_err(|_| ApiError::Stopping)
    }
}

/// Applies one after the other, and stops at the first that is refused.
fn apply(export: &Export, settings: &Settings) -> Result<(), ExportError> {
    if let Some(sync) = settings.sync {
        export.set_sync(sync)?;
    }
    if let Some(execution) = settings.execution {
        export.set_execution(execution)?;
    }
    if let Some(poll) = settings.poll {
        export.set_poll(poll)?;
    }
    if let Some(placement) = settings.placement {
        export.set_placement(placement)?;
    }
    Ok(())
}
