//! A daemon that serves nothing: it keeps the books that the control API shows and changes.

mod bitmaps;
mod choices;
mod contents;
mod figures;
mod jobs;
mod line;
mod served;
mod traces;

pub(crate) use contents::describe;
pub(crate) use figures::latency;
pub(crate) use line::{ctl, ctl_words};
pub(crate) use served::Served;

use choices::{decisions, placement};
use contents::{directory_info, storage_info, volume_of};
use control::error::RingRefs;
use control::model::config::ExportKind;
use control::model::policy::{PlacementPolicy, Policy, PolicyRecord, PolicySettings, WorkerPolicy, WorkerRecord};
use control::model::trace::{NewTrace, Trace, TraceNews};
use control::model::{
    Attach, Bitmap, Disk, Export, Favour, FileSystem, Frontend, Group, GroupSettings, Info, Job, JobSettings, JobState,
    LATENCY_BOUNDS_US, LandlockInfo, Limits, LinkInfo, LinkState, Lun, NewBitmap, NewDisk, NewExport, NewGroup, NewJob,
    NewSnapshot, NewUnit, NewUpgrade, NewWorker, Owner, PolicyMode, Protocol, Rates, Resize, RingFigures, RingInfo,
    RingRef, RingState, SandboxInfo, SeccompState, SessionFigures, SessionState, Settings, StorageInfo, Unit,
    UnitReservation, Worker, WorkerFigures, WorkerState,
};
use control::{ApiError, Asker, Daemon, Scope};
use disk::{DiskError, Role, Sharing, StorageSpec, User, listed, may_use};
use figures::{figures, ring, visible};
use policy::Tactic;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

/// The most workers the fake runs.
pub(crate) const WORKERS_MAX: usize = 4;

/// The books.
#[derive(Debug, Default)]
struct Books {
    exports: Vec<Export>,
    /// Those apart from exports, without their users.
    disks: Vec<Disk>,
    workers: Vec<Worker>,
    groups: Vec<NewGroup>,
    jobs: Vec<Job>,
    /// Each with its disk.
    bitmaps: Vec<(String, Bitmap)>,
    next_worker: u32,
    stopping: bool,
    looks: u64,
    favour: Favour,
    policy: PolicyMode,
    policy_looks: u64,
}

impl Books {
    /// A disk apart from exports, with its users.
    fn disk(&self, name: &str) -> Result<Disk, DiskError> {
        let disk = self.disks.iter().find(|disk| disk.name == name);
        let disk = disk.ok_or_else(|| DiskError::Missing { name: name.into() })?;
        let using = self.exports.iter().filter(|export| export.disk.as_deref() == Some(name));
        let users = using.map(|export| User::Export(export.name.clone())).collect();
        Ok(Disk { users, ..disk.clone() })
    }

    /// A unit that is to be.
    fn unit(&self, new: &NewUnit, block_size_bytes: u32) -> Result<Unit, ApiError> {
        let missing =
            |error| ApiError::InvalidField { field: "disk".into(), message: format!("{error}: add it first") };
        let storage = StorageInfo { block_size_bytes, ..self.disk(&new.disk).map_err(missing)?.storage };
        let reservation = (new.disk == "store").then(|| UnitReservation {
            kind: Some("write-exclusive-registrants-only".to_owned()),
            holder: Some("vm1".to_owned()),
            registered: vec!["vm1".to_owned(), "vm2".to_owned()],
        });
        Ok(Unit { lun: new.lun, disk: new.disk.clone(), serial: new.serial().to_owned(), storage, reservation })
    }
}

/// A daemon that serves nothing.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    books: Mutex<Books>,
    traces: Mutex<traces::Traces>,
    /// Takes the next one who asks for an upgrade; the call waits until that is done.
    pub(crate) askers: Mutex<Option<SyncSender<Asker>>>,
}

impl Fake {
    /// Two exports: `root` with two rings on worker 1, `data` with a broken ring on its private worker 2; worker 3 is
    /// dead.
    pub(crate) fn with_content() -> Arc<Self> {
        let fake = Self::default();
        fake.worker_new(&Scope::Daemon, NewWorker { cpus: "0-3".parse().ok(), ..NewWorker::default() }).unwrap();
        fake.add_export(describe("root", "kind = 'file', path = '/images/root.img', direct = true", 2)).unwrap();
        fake.add_export(describe("data", "kind = 'memory', size = '1G'", 1)).unwrap();
        fake.worker_new(&Scope::Export("data".into()), NewWorker::default()).unwrap();
        fake.worker_new(&Scope::Daemon, NewWorker::default()).unwrap();
        fake.ring_attach("data", 0, Attach { worker: 2 }).unwrap();
        let mut books = fake.books.lock().unwrap();
        let root = &mut books.exports[0];
        root.state = SessionState::Connected;
        root.frontend = Some(Frontend { pid: 4242, uid: 107 });
        root.features = vec!["VERSION_1".into(), "RING_EVENT_IDX".into(), "MQ".into()];
        root.sessions = SessionFigures { connects: 2, disconnects: 1, failures: 0 };
        root.errors = 2;
        root.rings[0].figures = figures();
        let data = &mut books.exports[1];
        data.rings[0].state = RingState::Broken;
        data.rings[0].broken = Some("available index 700 is 512 ahead of a ring of 256".into());
        data.broken_rings = 1;
        books.workers[0].figures = WorkerFigures {
            turns: 5000,
            syscalls: 5100,
            sleeps: 40,
            polls_hit: 900,
            polls_missed: 40,
            policy_trials: 3,
            policy_changes: 1,
            sqes: 3000,
            cqes: 3001,
            mailbox_messages: 6,
            cpu_seconds: 1.25,
            busy_seconds: 0.75,
        };
        books.workers[2].state = WorkerState::Dead;
        drop(books);
        Arc::new(fake)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.books.lock().unwrap().stopping
    }

    fn with_job<T>(&self, id: u64, change: impl FnOnce(&mut Job) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut books = self.books.lock().unwrap();
        let job = books.jobs.iter_mut().find(|job| job.id == id);
        change(job.ok_or(ApiError::NoSuchJob { id })?)
    }

    fn with<T>(&self, name: &str, change: impl FnOnce(&mut Export) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut books = self.books.lock().unwrap();
        let export = books.exports.iter_mut().find(|export| export.name == name);
        change(export.ok_or_else(|| ApiError::NoSuchExport { name: name.into() })?)
    }
}

impl Daemon for Fake {
    fn info(&self) -> Result<Info, ApiError> {
        let books = self.books.lock().unwrap();
        Ok(Info {
            version: "0.1.0".into(),
            pid: 4000,
            uptime_seconds: 3725.5,
            exports: books.exports.len(),
            workers: books.workers.len(),
            workers_max: WORKERS_MAX,
            upgrades: 0,
            takeover: None,
            latency_bounds_us: LATENCY_BOUNDS_US.to_vec(),
            sandbox: SandboxInfo {
                no_new_privs: true,
                capabilities: vec!["cap_chown".into(), "cap_dac_override".into()],
                seccomp: SeccompState::Kill,
                file_system: FileSystem::Host,
                landlock: Some(LandlockInfo { abi: 6, complete: true, paths: vec!["/images".into(), "/run".into()] }),
                landlock_off: None,
                uid: 107,
                gid: 36,
            },
        })
    }

    /// Every look finds a little more done, so that rates are not zero.
    fn exports(&self) -> Result<Vec<Export>, ApiError> {
        let mut books = self.books.lock().unwrap();
        books.looks += 1;
        let looks = books.looks;
        let mut exports = books.exports.clone();
        if let Some(figures) = exports.iter_mut().find_map(|export| Some(&mut export.rings.first_mut()?.figures)) {
            figures.latency_served.buckets.resize(LATENCY_BOUNDS_US.len() + 1, 0);
            *figures.requests.entry("read".into()).or_default() += 100 * (looks - 1);
            figures.latency_served.buckets[5] += 100 * (looks - 1);
        }
        Ok(exports)
    }

    fn export(&self, name: &str) -> Result<Export, ApiError> {
        self.with(name, |export| Ok(export.clone()))
    }

    fn add_export(&self, new: NewExport) -> Result<Export, ApiError> {
        // Before the lock, so that what comes after the panic finds the books intact.
        assert!(
            !matches!(new.storage, Some(StorageSpec::Sim(_))),
            "the fake cannot simulate: it stands for a bug in the daemon"
        );
        let mut books = self.books.lock().unwrap();
        if books.exports.iter().any(|export| export.name == new.name) {
            return Err(ApiError::ExportExists { name: new.name });
        }
        let mut storage =
            new.storage.as_ref().map(|storage| storage_info(new.block_size_bytes(), storage)).transpose()?;
        if let Some(name) = &new.disk {
            let disk = books.disk(name).map_err(|error| ApiError::InvalidField {
                field: "disk".into(),
                message: format!("{error}: add it first"),
            })?;
            let user = User::Export(new.name.clone());
            let sharing = match (disk.shared, disk.storage.read_only) {
                (true, _) => Sharing::Units,
                (false, true) => Sharing::Readers,
                (false, false) => Sharing::One,
            };
            may_use(name, sharing, &disk.users, (&user, Role::Whole))
                .map_err(|error| ApiError::InvalidField { field: "disk".into(), message: error.to_string() })?;
            storage = Some(disk.storage);
        }
        let luns = new.luns.iter().map(|unit| books.unit(unit, new.block_size_bytes())).collect::<Result<_, _>>()?;
        let directory = new.directory.as_ref().map(|directory| directory_info(directory, &new.name));
        // The queue for urgent requests comes first.
        let urgent = new.directory.as_ref().is_some_and(|directory| directory.protocol == Protocol::Virtiofs);
        // Whoever is offered all there can be uses two.
        let rings = new.queues.unwrap_or(2) + u16::from(urgent);
        let path = new.socket.as_ref().map(|path| path.display().to_string());
        let socket = path.or(new.listen.as_ref().map(ToString::to_string)).unwrap_or_default();
        let export = Export {
            name: new.name.clone(),
            kind: new.kind,
            storage,
            disk: new.disk.clone(),
            directory,
            luns,
            socket,
            state: SessionState::Listening,
            frontend: None,
            features: vec![],
            queues_max: new.queues(),
            placement: new.workers,
            poll: new.poll.unwrap_or_default(),
            limits: Limits::default().changed(&new.limits),
            errors: 0,
            oldest_in_flight_ms: None,
            broken_rings: 0,
            last_error: None,
            sessions: SessionFigures::default(),
            rings: (0..rings).map(|index| ring(index, 1, RingFigures::default())).collect(),
            workers: vec![],
        };
        for ring in &export.rings {
            if let Some(worker) = books.workers.first_mut() {
                worker.rings.push(RingRef { export: new.name.clone(), index: ring.index });
            }
        }
        books.exports.push(export.clone());
        Ok(export)
    }

    fn remove_export(&self, name: &str, force: bool) -> Result<(), ApiError> {
        self.with(name, |export| match export.state {
            SessionState::Connected if !force => Err(ApiError::Connected { name: name.into() }),
            _ => Ok(()),
        })?;
        self.books.lock().unwrap().exports.retain(|export| export.name != name);
        Ok(())
    }

    fn resize(&self, name: &str, resize: Resize) -> Result<Export, ApiError> {
        self.with(name, |export| {
            let Some(storage) = export.storage.as_mut().filter(|storage| storage.kind != "memory") else {
                let message = "it keeps the size it was made with".to_owned();
                return Err(ApiError::Unsupported { export: name.into(), message });
            };
            storage.capacity_bytes = resize.capacity_bytes.0;
            Ok(export.clone())
        })
    }

    fn change(&self, name: &str, settings: Settings) -> Result<Export, ApiError> {
        self.with(name, |export| {
            export.poll = settings.poll.unwrap_or(export.poll);
            export.placement = settings.placement.unwrap_or(export.placement);
            if let Some(change) = &settings.limits {
                let limits = export.limits.changed(change);
                limits.check()?;
                export.limits = limits;
            }
            if let Some(sync) = settings.sync {
                volume_of(export, name)?.sync = sync;
            }
            if let Some(execution) = settings.execution {
                if let Some(storage) = &mut export.storage {
                    (storage.execution, storage.execution_chosen) = (execution, execution);
                }
                if let Some(directory) = &mut export.directory {
                    (directory.execution, directory.execution_chosen) = (execution, execution);
                }
            }
            Ok(export.clone())
        })
    }

    fn sync(&self, name: &str) -> Result<Export, ApiError> {
        self.with(name, |export| {
            let volume = volume_of(export, name)?;
            (volume.log_used_bytes, volume.dirty_bytes, volume.sweeps) = (0, 0, volume.sweeps + 1);
            Ok(export.clone())
        })
    }

    fn disks(&self) -> Result<Vec<Disk>, ApiError> {
        let books = self.books.lock().unwrap();
        let mut disks: Vec<Disk> = books.disks.iter().map(|disk| books.disk(&disk.name).unwrap()).collect();
        let own = |export: &Export| {
            let owner = User::Export(export.name.clone());
            let storage = export.storage.clone().filter(|_| export.disk.is_none())?;
            let (name, users) = (export.name.clone(), vec![owner.clone()]);
            Some(Disk {
                name,
                owner: Some(owner),
                storage,
                shared: false,
                reservations: None,
                space_threshold_bytes: None,
                users,
            })
        };
        disks.extend(books.exports.iter().filter_map(own));
        Ok(disks)
    }

    fn disk(&self, name: &str) -> Result<Disk, ApiError> {
        let found = self.disks()?.into_iter().find(|disk| disk.name == name);
        Ok(found.ok_or_else(|| DiskError::Missing { name: name.into() })?)
    }

    fn unit_add(&self, export: &str, new: NewUnit) -> Result<Unit, ApiError> {
        let mut unit = self.books.lock().unwrap().unit(&new, 512)?;
        self.with(export, |export| {
            if export.kind != ExportKind::Scsi {
                let message = "it is no SCSI device".to_owned();
                return Err(ApiError::Unsupported { export: export.name.clone(), message });
            }
            if export.luns.iter().any(|unit| unit.lun == new.lun) {
                return Err(ApiError::InvalidField { field: "lun".into(), message: "is taken".into() });
            }
            unit.storage.block_size_bytes = export.luns.first().map_or(512, |unit| unit.storage.block_size_bytes);
            export.luns.push(unit.clone());
            Ok(unit)
        })
    }

    fn unit_remove(&self, export: &str, lun: Lun) -> Result<(), ApiError> {
        self.with(export, |export| {
            let before = export.luns.len();
            export.luns.retain(|unit| unit.lun != lun);
            let gone = export.luns.len() < before;
            if gone { Ok(()) } else { Err(ApiError::NoSuchUnit { export: export.name.clone(), lun }) }
        })
    }

    fn disk_add(&self, new: NewDisk) -> Result<Disk, ApiError> {
        if self.disk(&new.name).is_ok() {
            return Err(DiskError::Exists { name: new.name }.into());
        }
        let storage = storage_info(512, &new.storage)?;
        let space_threshold_bytes = new.space_threshold.map(|size| size.0);
        let (name, shared) = (new.name, new.shared);
        let disk =
            Disk { name, owner: None, storage, shared, reservations: None, space_threshold_bytes, users: vec![] };
        self.books.lock().unwrap().disks.push(disk.clone());
        Ok(disk)
    }

    fn disk_resize(&self, name: &str, resize: Resize) -> Result<Disk, ApiError> {
        let disk = self.disk(name)?;
        if disk.storage.kind == "memory" {
            let message = "it keeps the size it was made with".to_owned();
            return Err(ApiError::DiskUnsupported { disk: name.into(), message });
        }
        let mut books = self.books.lock().unwrap();
        let used = disk.users.iter().map(|User::Export(name)| name);
        for export in used {
            let export = books.exports.iter_mut().find(|other| other.name == *export).unwrap();
            export.storage.as_mut().unwrap().capacity_bytes = resize.capacity_bytes.0;
        }
        for disk in books.disks.iter_mut().filter(|disk| disk.name == name) {
            disk.storage.capacity_bytes = resize.capacity_bytes.0;
        }
        drop(books);
        self.disk(name)
    }

    fn disk_break_reservations(&self, name: &str) -> Result<(), ApiError> {
        self.disk(name).map(drop)
    }

    fn disk_reopen(&self, name: &str) -> Result<Disk, ApiError> {
        let mut disk = self.disk(name)?;
        disk.storage.link =
            Some(LinkInfo { state: LinkState::Opening, for_ms: Some(12), reason: Some("it was lost".into()) });
        Ok(disk)
    }

    fn disk_remove(&self, name: &str) -> Result<(), ApiError> {
        let disk = self.disk(name)?;
        if !disk.users.is_empty() {
            return Err(DiskError::InUse { name: name.into(), users: listed(&disk.users) }.into());
        }
        self.books.lock().unwrap().disks.retain(|disk| disk.name != name);
        Ok(())
    }

    fn disk_bitmaps(&self, disk: &str) -> Result<Vec<Bitmap>, ApiError> {
        self.disk(disk)?;
        Ok(bitmaps::of(&self.books.lock().unwrap().bitmaps, disk))
    }

    fn disk_bitmap_add(&self, disk: &str, new: NewBitmap) -> Result<Bitmap, ApiError> {
        let disk = self.disk(disk)?;
        bitmaps::add(&mut self.books.lock().unwrap().bitmaps, &disk, &new)
    }

    fn disk_bitmap_remove(&self, disk: &str, bitmap: &str) -> Result<(), ApiError> {
        self.disk(disk)?;
        bitmaps::remove(&mut self.books.lock().unwrap().bitmaps, disk, bitmap)
    }

    fn snapshot(&self, new: NewSnapshot) -> Result<Vec<Disk>, ApiError> {
        let disks = new.disks.iter().map(|disk| self.disk(&disk.disk)).collect::<Result<Vec<_>, _>>()?;
        if let Some(other) = disks.iter().find(|disk| disk.storage.kind != "qcow2") {
            let message = format!("its storage is {}, and only qcow2 images have snapshots", other.storage.kind);
            return Err(ApiError::DiskUnsupported { disk: other.name.clone(), message });
        }
        Ok(disks)
    }

    fn jobs(&self) -> Result<Vec<Job>, ApiError> {
        Ok(self.books.lock().unwrap().jobs.clone())
    }

    fn job(&self, id: u64) -> Result<Job, ApiError> {
        self.with_job(id, |job| {
            jobs::go_on(job);
            Ok(job.clone())
        })
    }

    fn job_add(&self, new: NewJob) -> Result<Job, ApiError> {
        let copied: Vec<String> = new.copies().into_iter().map(|copy| copy.disk).collect();
        let names = copied.iter().map(String::as_str).chain(new.of_chain());
        let disks = names.map(|name| self.disk(name)).collect::<Result<Vec<_>, _>>()?;
        let mut books = self.books.lock().unwrap();
        let id = books.jobs.last().map_or(1, |last| last.id + 1);
        let job = jobs::begun(id, &new, &disks, &mut books.bitmaps)?;
        books.jobs.push(job.clone());
        Ok(job)
    }

    fn job_change(&self, id: u64, settings: JobSettings) -> Result<Job, ApiError> {
        self.with_job(id, |job| {
            job.may_change()?;
            job.limit_bytes_per_second = settings.changed(job.limit_bytes_per_second);
            Ok(job.clone())
        })
    }

    fn job_complete(&self, id: u64) -> Result<Job, ApiError> {
        self.with_job(id, |job| {
            job.may_complete()?;
            job.state = JobState::Completing;
            Ok(job.clone())
        })
    }

    fn job_remove(&self, id: u64) -> Result<(), ApiError> {
        let ended = self.with_job(id, |job| {
            job.may_cancel()?;
            let ended = job.state.has_ended();
            if !ended {
                jobs::end(job, JobState::Cancelled);
            }
            Ok(ended)
        })?;
        self.books.lock().unwrap().jobs.retain(|job| !ended || job.id != id);
        Ok(())
    }

    fn groups(&self) -> Result<Vec<Group>, ApiError> {
        let books = self.books.lock().unwrap();
        let members = |group: &NewGroup| {
            let of = |export: &&Export| export.limits.group.as_ref() == Some(&group.name);
            books.exports.iter().filter(of).map(|export| export.name.clone()).collect()
        };
        Ok(books.groups.iter().map(|group| group.with_exports(members(group))).collect())
    }

    fn group(&self, name: &str) -> Result<Group, ApiError> {
        let found = self.groups()?.into_iter().find(|group| group.name == name);
        found.ok_or_else(|| ApiError::NoSuchGroup { name: name.into() })
    }

    fn group_add(&self, new: NewGroup) -> Result<Group, ApiError> {
        let name = new.name.clone();
        if self.group(&name).is_ok() {
            return Err(ApiError::GroupExists { name });
        }
        self.books.lock().unwrap().groups.push(new);
        self.group(&name)
    }

    fn group_change(&self, name: &str, settings: GroupSettings) -> Result<Group, ApiError> {
        let rates = Rates::from(&self.group(name)?).changed(Rates::from(&settings));
        rates.check("")?;
        for group in self.books.lock().unwrap().groups.iter_mut().filter(|group| group.name == name) {
            *group = NewGroup::new(name, rates);
        }
        self.group(name)
    }

    fn group_remove(&self, name: &str) -> Result<(), ApiError> {
        let group = self.group(name)?;
        if !group.exports.is_empty() {
            return Err(ApiError::GroupInUse { name: name.into(), exports: group.exports.join(", ") });
        }
        self.books.lock().unwrap().groups.retain(|group| group.name != name);
        Ok(())
    }

    fn workers(&self, scope: &Scope) -> Result<Vec<Worker>, ApiError> {
        if let Scope::Export(name) = scope {
            self.export(name)?;
        }
        let books = self.books.lock().unwrap();
        Ok(books.workers.iter().filter(|worker| visible(worker, scope)).cloned().collect())
    }

    fn worker(&self, scope: &Scope, id: u32) -> Result<Worker, ApiError> {
        let found = self.workers(scope)?.into_iter().find(|worker| worker.id == id);
        found.ok_or_else(|| ApiError::NoSuchWorker { scope: scope.clone(), id })
    }

    fn worker_new(&self, scope: &Scope, new: NewWorker) -> Result<Worker, ApiError> {
        let owner = match scope {
            Scope::Daemon => Owner::Daemon,
            Scope::Export(name) => Owner::Export(self.export(name)?.name),
        };
        let mut books = self.books.lock().unwrap();
        if books.workers.len() == WORKERS_MAX {
            return Err(ApiError::TooManyWorkers { max: WORKERS_MAX });
        }
        books.next_worker += 1;
        let id = books.next_worker;
        let worker = Worker {
            id,
            name: format!("vringd-w{id}"),
            owner,
            cpus: new.cpus,
            numa_node: new.numa_node,
            cgroup: new.cgroup,
            poll: new.poll.unwrap_or_default(),
            poll_window_us_now: 12,
            tactic: matches!(new.poll.unwrap_or_default(), control::model::Poll::Adaptive(_))
                .then_some(Tactic::Learned),
            tid: 4000 + i32::try_from(id).unwrap(),
            state: WorkerState::Running,
            rings: vec![],
            figures: WorkerFigures::default(),
        };
        if let Scope::Export(name) = scope
            && let Some(export) = books.exports.iter_mut().find(|export| export.name == *name)
        {
            export.workers.push(id);
        }
        books.workers.push(worker.clone());
        Ok(worker)
    }

    fn policy(&self) -> Result<Policy, ApiError> {
        let mut books = self.books.lock().unwrap();
        // A trial passes between two looks.
        books.policy_looks += 1;
        let looks = books.policy_looks - 1;
        let of = |worker: &Worker| WorkerPolicy {
            id: worker.id,
            name: worker.name.clone(),
            poll: worker.poll,
            pinned: worker.tactic.is_none(),
            tactic: worker.tactic,
            since_seconds: (worker.figures.policy_changes > 0).then_some(75.0),
            chosen_by: (worker.figures.policy_changes > 0).then(|| decisions().remove(1)),
            poll_window_us_now: worker.poll_window_us_now,
            trials: if worker.figures.policy_trials == 0 { 0 } else { worker.figures.policy_trials + looks },
            changes: worker.figures.policy_changes,
            decisions: if worker.figures.policy_trials == 0 { vec![] } else { decisions() },
        };
        let workers = books.workers.iter().map(of).collect();
        Ok(Policy { favour: books.favour, policy: books.policy, workers, placement: placement(looks) })
    }

    fn placement(&self) -> Result<PlacementPolicy, ApiError> {
        Ok(placement(0))
    }

    fn policy_change(&self, settings: PolicySettings) -> Result<Policy, ApiError> {
        let mut books = self.books.lock().unwrap();
        books.favour = settings.favour.unwrap_or(books.favour);
        books.policy = settings.policy.unwrap_or(books.policy);
        drop(books);
        self.policy()
    }

    fn traces(&self) -> Result<Vec<Trace>, ApiError> {
        Ok(self.list_traces())
    }

    fn trace_begin(&self, new: NewTrace) -> Result<Trace, ApiError> {
        if let Some(name) = &new.export {
            self.export(name)?;
        }
        self.begin_trace(new)
    }

    fn trace_take(&self, id: u64) -> Result<TraceNews, ApiError> {
        self.take_trace(id)
    }

    fn trace_end(&self, id: u64) -> Result<(), ApiError> {
        self.end_trace(id)
    }

    fn policy_record(&self) -> Result<PolicyRecord, ApiError> {
        let favour = self.books.lock().unwrap().favour;
        let workers = vec![WorkerRecord { id: 0, stretches: vec![] }];
        Ok(PolicyRecord { version: PolicyRecord::VERSION, program: "0.1.0".into(), favour, workers, placement: vec![] })
    }

    fn worker_free(&self, scope: &Scope, id: u32) -> Result<(), ApiError> {
        let worker = self.worker(scope, id)?;
        if !worker.rings.is_empty() {
            return Err(ApiError::Busy { id, rings: RingRefs(worker.rings) });
        }
        self.books.lock().unwrap().workers.retain(|worker| worker.id != id);
        Ok(())
    }

    fn ring_attach(&self, export: &str, index: u16, attach: Attach) -> Result<RingInfo, ApiError> {
        let id = attach.worker;
        self.ring(export, index)?;
        let mut books = self.books.lock().unwrap();
        let reachable = |owner: &Owner| *owner == Owner::Daemon || *owner == Owner::Export(export.into());
        let worker = books.workers.iter().find(|worker| worker.id == id && reachable(&worker.owner));
        let Some(worker) = worker else {
            return Err(ApiError::NoSuchWorker { scope: Scope::Export(export.into()), id });
        };
        if worker.state == WorkerState::Dead {
            return Err(ApiError::WorkerDead { id });
        }
        let moved = RingRef { export: export.into(), index };
        for worker in &mut books.workers {
            worker.rings.retain(|ring| *ring != moved);
            if worker.id == id {
                worker.rings.push(moved.clone());
            }
        }
        drop(books);
        self.with(export, |found| {
            let ring = &mut found.rings[usize::from(index)];
            ring.worker = Some(id);
            ring.figures.moves += 1;
            Ok(ring.clone())
        })
    }

    fn ring(&self, export: &str, index: u16) -> Result<RingInfo, ApiError> {
        self.with(export, |found| {
            let last = u16::try_from(found.rings.len() - 1).unwrap();
            let ring = found.rings.get(usize::from(index)).cloned();
            ring.ok_or_else(|| ApiError::NoSuchRing { export: export.into(), index, last })
        })
    }

    fn upgrade(&self, _new: NewUpgrade, asker: &Asker) -> ApiError {
        if let Some(told) = self.askers.lock().unwrap().take() {
            // The second one waits for the test, whatever comes of it.
            told.send(asker.clone()).unwrap();
            let _ = told.send(asker.clone());
        }
        ApiError::Failed { message: "this daemon cannot be upgraded".into() }
    }

    fn shutdown(&self) -> Result<(), ApiError> {
        let mut books = self.books.lock().unwrap();
        if std::mem::replace(&mut books.stopping, true) {
            return Err(ApiError::Stopping);
        }
        Ok(())
    }
}
