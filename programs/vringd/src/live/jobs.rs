//! The jobs of a daemon: what begins one, and what it is told.

use super::bitmaps::{Since, Taken};
use super::chain::Chain;
use super::course::{self, Course};
use super::job::{Copier, Job, Part};
use super::pull;
use super::swap::Next;
use crate::daemon::{Daemon, PATIENCE};
use crate::failure::field;
use control::ApiError;
use control::model::{self as api, CopyDisk, CopyFormat, JobKind, JobSettings, NewJob};
use disk::Disk;
use image::tools::{self, Backing, CreateOptions, Destination, Place, ToolError};
use job::Mirror;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use storage::Storage;

/// Jobs that have ended and are still listed; the oldest goes.
const ENDED_MAX: usize = 64;
/// How long the end of a daemon waits for the ends of its jobs.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long a cancellation is waited for. It goes on by itself.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);
/// Largest disk: some marks of a bit for every 64 KiB are in memory, 256 MiB each.
pub(super) const DISK_BYTES_MAX: u64 = 128 << 40;

/// See the module.
#[derive(Default)]
pub(crate) struct Jobs {
    daemon: OnceLock<Weak<Daemon>>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    last: u64,
    jobs: BTreeMap<u64, Arc<Job>>,
    /// Jobs that are about to begin, and their disks.
    reserved: BTreeMap<u64, (JobKind, Vec<String>)>,
}

/// The disks of a job that is about to begin. They are nobody else's until it is listed, or this is dropped.
pub(super) struct Reserved<'a> {
    jobs: &'a Jobs,
    pub(super) id: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.jobs.lock().reserved.remove(&self.id);
    }
}

/// What a job begins with: see [`Course`].
#[derive(Default)]
pub(super) struct Begun {
    pub(super) parts: Vec<Part>,
    /// What stood behind the disks, each of which has a filter now.
    pub(super) before: Vec<Arc<dyn Storage>>,
    pub(super) destinations: Vec<Destination>,
    pub(super) taken: Taken,
    pub(super) chain: Option<Chain>,
}

pub(super) fn unsupported(disk: &Disk, message: &str) -> ApiError {
    ApiError::DiskUnsupported { disk: disk.name().to_owned(), message: message.to_owned() }
}

/// Whether the disk is this daemon's for as long as it is open, and has blocks that can be copied.
pub(super) fn check_stays(disk: &Disk) -> Result<(), ApiError> {
    let storage = disk.storage();
    if storage.passes().is_some() {
        return Err(unsupported(
            disk,
            "is a SCSI device of the host, whose commands are passed through: nobody here knows its blocks",
        ));
    }
    match storage.custody() {
        Some(_) => Err(unsupported(
            disk,
            "is migratable, and open only while its guest runs: add it without `migratable` for that",
        )),
        None => Ok(()),
    }
}

impl List {
    fn check(&self, disk: &str, stands: impl Fn(&Job) -> bool) -> Result<(), ApiError> {
        let reserved = self.reserved.iter().find(|(_, (_, disks))| disks.iter().any(|of| of == disk));
        let reserved = reserved.map(|(id, (kind, _))| (*id, *kind));
        let job = self.jobs.values().find(|job| stands(job)).map(|job| (job.id, job.kind));
        let Some((id, kind)) = job.or(reserved) else { return Ok(()) };
        let message = format!(
            "job {id} ({kind}) copies it: wait until it has ended, or cancel it (`vringd ctl job cancel {id}`)"
        );
        Err(ApiError::DiskUnsupported { disk: disk.to_owned(), message })
    }
}

impl Jobs {
    /// From now on there may be jobs, of this daemon.
    pub(crate) fn belong_to(&self, daemon: &Arc<Daemon>) {
        let _ = self.daemon.set(Arc::downgrade(daemon));
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: u64) -> Result<Arc<Job>, ApiError> {
        self.lock().jobs.get(&id).cloned().ok_or(ApiError::NoSuchJob { id })
    }

    fn reserve(&self, kind: JobKind, disks: Vec<String>) -> Result<Reserved<'_>, ApiError> {
        let mut list = self.lock();
        disks.iter().try_for_each(|disk| list.check(disk, |job| job.has(disk)))?;
        list.last += 1;
        let id = list.last;
        list.reserved.insert(id, (kind, disks));
        Ok(Reserved { jobs: self, id })
    }

    /// Lists a job, and forgets the oldest of many that have ended.
    fn list(&self, id: u64, job: Arc<Job>) {
        let mut list = self.lock();
        list.jobs.insert(id, job);
        let ended: Vec<_> = list.jobs.iter().filter(|(_, job)| job.has_ended()).map(|(id, _)| *id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            list.jobs.remove(id);
        }
    }

    /// Whether no job stands between this disk and its guests, so that something else may come there.
    ///
    /// # Errors
    /// The job, and what to do.
    pub(crate) fn check_free(&self, disk: &str) -> Result<(), ApiError> {
        self.lock().check(disk, |job| job.has(disk))
    }

    /// Whether no job copies this disk, so that it may go.
    ///
    /// # Errors
    /// The job, and what to do.
    pub(crate) fn check_copied(&self, disk: &str) -> Result<(), ApiError> {
        self.lock().check(disk, |job| job.copies(disk))
    }

    /// A job that has not ended: its disk, its number and what it does.
    pub(crate) fn running(&self) -> Option<(String, u64, JobKind)> {
        let list = self.lock();
        if let Some((id, (kind, disks))) = list.reserved.first_key_value() {
            return Some((disks.first()?.clone(), *id, *kind));
        }
        let job = list.jobs.values().find(|job| !job.has_ended())?;
        Some((job.parts.first()?.name.clone(), job.id, job.kind))
    }

    /// Ends all of them, and waits for that for a while: what hangs ends with the process.
    pub(crate) fn end_all(&self) {
        let jobs: Vec<_> = self.lock().jobs.values().filter(|job| !job.has_ended()).cloned().collect();
        jobs.iter().for_each(|job| job.stop());
        let by = Instant::now() + END_PATIENCE;
        for job in jobs {
            if !job.wait(by.saturating_duration_since(Instant::now())) {
                tracing::warn!(
                    job = job.id,
                    "the job has something under way that does not end, and its target may be left unfinished"
                );
            }
        }
    }
}

impl Daemon {
    pub(crate) fn job_list(&self) -> Vec<api::Job> {
        let jobs: Vec<_> = self.jobs.lock().jobs.values().cloned().collect();
        jobs.iter().map(|job| job.shown()).collect()
    }

    pub(crate) fn job_shown(&self, id: u64) -> Result<api::Job, ApiError> {
        Ok(self.jobs.get(id)?.shown())
    }

    /// Makes what the job writes to, lets it stand between the disks and their guests from one moment on, and lets it run.
    pub(crate) fn begin_job(&self, new: &NewJob) -> Result<api::Job, ApiError> {
        new.check()?;
        let reserved = self.reserve(new)?;
        match new.of_chain() {
            Some(disk) => self.begin_chain(new, disk, reserved),
            None => self.begin_copies(new, reserved),
        }
    }

    /// Keeps the disks of a new job for it.
    fn reserve(&self, new: &NewJob) -> Result<Reserved<'_>, ApiError> {
        let copied = new.copies().into_iter().map(|copy| copy.disk);
        let disks: Vec<String> = copied.chain(new.of_chain().map(str::to_owned)).collect();
        for disk in &disks {
            check_stays(&self.disks.get(disk)?.0)?;
        }
        // From now on the daemon is not upgraded.
        let _open = self.upgrade.gate();
        if self.upgrade.is_ending() {
            return Err(ApiError::Stopping);
        }
        self.jobs.reserve(new.kind(), disks)
    }

    /// Makes copies of disks.
    fn begin_copies(&self, new: &NewJob, reserved: Reserved<'_>) -> Result<api::Job, ApiError> {
        // Nothing is made, or overwritten, before all is looked at that can be refused.
        let mut copies = new.copies();
        let mut disks = Vec::new();
        for (index, copy) in copies.iter().enumerate() {
            let (disk, _) = self.disks.get(&copy.disk)?;
            self.settled(disk.name())?;
            self.admit_copy(new, (index, copy), &disk)?;
            disks.push(disk);
        }
        // A file system that hangs holds up nobody else: whether the disks are still the same is looked at again.
        let mut taken = Taken::default();
        for (index, (disk, copy)) in disks.iter().zip(&copies).enumerate() {
            let _in_order = disk.capacity_lock_within(PATIENCE)?;
            let added = taken.add(disk.storage(), copy);
            added.map_err(|(name, message)| field(&new.copy_field(index, name), message))?;
        }
        let destinations = match new {
            NewJob::Pull(pull) => {
                let scratch = |disk: &Arc<Disk>| {
                    warn_of_plaintext(disk, &pull.scratch());
                    pull::scratch(pull, disk.storage().capacity_bytes())
                };
                disks.iter().map(scratch).collect::<Result<_, _>>()?
            }
            _ => destinations(new, &copies, &disks)?,
        };
        let mut doors = pull::doors(new, &mut copies)?.into_iter();
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        if self.upgrade.is_ending() {
            return Err(ApiError::Stopping);
        }
        let mut sizes = Vec::new();
        for ((disk, to), (storage, _)) in disks.iter().zip(&destinations).zip(taken.iter_mut()) {
            sizes.push(disk.capacity_lock_within(PATIENCE)?);
            let is_same = Arc::ptr_eq(storage, &disk.storage());
            if !is_same || to.storage().capacity_bytes() != storage.capacity_bytes() {
                return Err(unsupported(disk, "was changed meanwhile: try again"));
            }
        }
        let id = reserved.id;
        self.launch(new, reserved, || {
            let mut parts = Vec::new();
            let before = self.replace(&disks, || {
                let mut next = Vec::new();
                for (((disk, copy), to), (from, since)) in
                    disks.iter().zip(&copies).zip(&destinations).zip(taken.iter_mut())
                {
                    let copier = match new.kind() {
                        JobKind::Mirror => mirror_of(from, to),
                        JobKind::Pull => {
                            pull::copier(self, (id, disk.name()), (from, since), to, doors.next().flatten())
                        }
                        _ => since.backup(from, to),
                    };
                    let (filter, copier) = copier.map_err(|message| unsupported(disk, &message))?;
                    next.push(Next { storage: filter, spec: None });
                    let format = if new.kind() == JobKind::Pull { CopyFormat::Raw } else { copy.format };
                    parts.push(Part::new(disk, (copy.target.clone(), format), since.shown(), copier));
                }
                Ok(next)
            })?;
            Ok(Begun { parts, before, destinations, taken, chain: None })
        })
    }

    /// Lets a job run that `put` lets stand between the disks and their guests.
    pub(super) fn launch(
        &self,
        new: &NewJob,
        reserved: Reserved<'_>,
        put: impl FnOnce() -> Result<Begun, ApiError>,
    ) -> Result<api::Job, ApiError> {
        let missing =
            || ApiError::Failed { message: "this daemon is part of another program and has no jobs".to_owned() };
        let daemon = self.jobs.daemon.get().ok_or_else(missing)?.clone();
        let id = reserved.id;
        // There is a thread before anything waits for it. It ends where nobody tells it to go.
        let (go, goes) = channel::<(Course, Vec<Arc<dyn Storage>>)>();
        let thread = std::thread::Builder::new().name(format!("job-{id}")).spawn(move || {
            if let Ok((course, before)) = goes.recv() {
                course::run(course, before);
            }
        });
        thread.map_err(|error| ApiError::Failed {
            message: format!("cannot start a thread: {error} (check RLIMIT_NPROC)"),
        })?;
        let Begun { parts, before, destinations, taken, chain } = put()?;
        let (events, told) = channel();
        let job = Arc::new(Job::new(id, new.kind(), parts, events.clone()));
        job.set_limit(new.limit_bytes_per_second());
        let shown = job.shown();
        self.jobs.list(id, job.clone());
        drop(reserved);
        // It waits for this, and for nothing else.
        let _ = go.send((Course { daemon, job, destinations, chain, taken, events, told }, before));
        for part in &shown.disks {
            tracing::info!(job = id, kind = %shown.kind, disk = part.disk, target = %part.target.display(), "a job begins");
        }
        Ok(shown)
    }

    /// Refuses a copy that cannot be, as far as that can be told before its target is made.
    fn admit_copy(&self, new: &NewJob, (index, copy): (usize, &CopyDisk), disk: &Disk) -> Result<(), ApiError> {
        let storage = disk.storage();
        if storage.capacity_bytes() > DISK_BYTES_MAX {
            let message = format!("has {} bytes, and a job copies {DISK_BYTES_MAX} at most", storage.capacity_bytes());
            return Err(unsupported(disk, &message));
        }
        if new.kind() == JobKind::Mirror && storage.describe().read_only {
            return Err(unsupported(disk, "is read-only, and would be written where it lives on: copy it by a backup"));
        }
        Since::of(&storage, copy).map_err(|(name, message)| field(&new.copy_field(index, name), message))?;
        if let NewJob::Pull(pull) = new {
            return self.admit_pull(new, index, pull);
        }
        self.held.admit_new(&new.target_field(index), &copy.target)?;
        if let Some(backing) = &copy.backing {
            let name = new.copy_field(index, "backing");
            self.held.admit_new(&name, backing)?;
            let about = tools::info(backing).map_err(|error| field(&name, error))?;
            if about.format != "qcow2" {
                return Err(field(&name, format_args!("{} is no qcow2 image", backing.display())));
            }
        }
        let target =
            |message: &str| field(&new.target_field(index), format_args!("{}: {message}", copy.target.display()));
        if copy.target.parent().is_none_or(|directory| !directory.is_dir()) {
            return Err(target("there is no such directory"));
        }
        match self.owner_of(&copy.target, None) {
            Some(owner) => Err(target(&format!("belongs to {owner}: choose another file"))),
            None => Ok(()),
        }
    }

    /// Whose file this is, whatever locks say: a disk's, but for one, or a job's.
    pub(super) fn owner_of(&self, path: &Path, but_for: Option<&str>) -> Option<String> {
        let identity = |path: &Path| std::fs::metadata(path).map(|about| (about.dev(), about.ino())).ok();
        let target = identity(path)?;
        for (disk, _) in self.disks.all().into_iter().filter(|(disk, _)| Some(disk.name()) != but_for) {
            let needs = disk.spec().needs();
            if needs.iter().any(|need| !need.access.makes_files() && identity(&need.path) == Some(target)) {
                return Some(format!("disk `{}`", disk.name()));
            }
        }
        let jobs: Vec<_> = self.jobs.lock().jobs.values().cloned().collect();
        let copies = |job: &&Arc<Job>| job.parts.iter().any(|part| identity(&part.target) == Some(target));
        jobs.iter().filter(|job| !job.has_ended()).find(copies).map(|job| format!("job {}", job.id))
    }

    pub(crate) fn change_job(&self, id: u64, settings: &JobSettings) -> Result<api::Job, ApiError> {
        settings.check()?;
        let job = self.jobs.get(id)?;
        job.shown().may_change()?;
        job.set_limit(settings.changed(job.limit()));
        Ok(job.shown())
    }

    pub(crate) fn complete_job(&self, id: u64) -> Result<api::Job, ApiError> {
        let job = self.jobs.get(id)?;
        job.complete()?;
        Ok(job.shown())
    }

    /// Cancels a job, or forgets one that has ended.
    pub(crate) fn remove_job(&self, id: u64) -> Result<(), ApiError> {
        let job = self.jobs.get(id)?;
        if job.has_ended() {
            self.jobs.lock().jobs.remove(&id);
            return Ok(());
        }
        job.cancel()?;
        if !job.wait(CANCEL_PATIENCE) {
            let message =
                format!("job {id} ends as soon as what it has under way does, which takes long: look at its storage");
            return Err(ApiError::Failed { message });
        }
        job.shown().is_cancelled()
    }
}

/// What mirrors a disk, and what guests use meanwhile.
fn mirror_of(from: &Arc<dyn Storage>, to: &Destination) -> Result<(Arc<dyn Storage>, Copier), String> {
    let mirror = Mirror::new(from.clone(), to.storage().clone(), to.is_blank()).map_err(|error| error.to_string())?;
    Ok((mirror.filter(), Copier::Mirror(mirror)))
}

/// Makes the targets of all copies: one after the other is overwritten when nothing stands against any of them.
fn destinations(new: &NewJob, copies: &[CopyDisk], disks: &[Arc<Disk>]) -> Result<Vec<Destination>, ApiError> {
    let place = |(index, (disk, copy)): (usize, (&Arc<Disk>, &CopyDisk))| {
        place(copy, disk.storage().capacity_bytes()).map_err(|error| field(&new.target_field(index), error))
    };
    let places = disks.iter().zip(copies).enumerate().map(place).collect::<Result<Vec<_>, _>>()?;
    let all = disks.iter().zip(copies).zip(places).enumerate();
    all.map(|(index, ((disk, copy), place))| destination(new, (index, copy), place, disk)).collect()
}

/// Takes the place of a copy.
fn destination(
    new: &NewJob,
    (index, copy): (usize, &CopyDisk),
    place: Place,
    disk: &Disk,
) -> Result<Destination, ApiError> {
    let storage = disk.storage();
    let (about, size_bytes) = (storage.describe(), storage.capacity_bytes());
    let target = |error: &dyn std::fmt::Display| field(&new.target_field(index), error);
    let to = place.take().map_err(|error| target(&error))?;
    let there = to.storage();
    if there.capacity_bytes() != size_bytes {
        let have = there.capacity_bytes();
        return Err(target(&format_args!("has {have} bytes, and the disk {size_bytes}: use a target of that size")));
    }
    if new.kind() == JobKind::Mirror && there.describe().block_size_bytes > about.block_size_bytes {
        let have = there.describe().block_size_bytes;
        let message = format_args!("has blocks of {have} bytes, which the guest does not know: use another target");
        return Err(target(&message));
    }
    warn_of_plaintext(disk, &copy.target);
    Ok(to)
}

/// What is copied of an encrypted disk is what its guest sees.
fn warn_of_plaintext(disk: &Disk, target: &Path) {
    if disk.storage().describe().kind == "luks" {
        let (disk, target) = (disk.name(), target.display());
        tracing::warn!(disk, %target, "the copy of an encrypted disk is not encrypted: encrypt what holds it");
    }
}

fn place(copy: &CopyDisk, size_bytes: u64) -> Result<Place, ToolError> {
    match copy.format {
        CopyFormat::Raw => Place::raw(&copy.target, size_bytes, copy.force),
        CopyFormat::Qcow2 => {
            let options = CreateOptions {
                size_bytes: Some(size_bytes),
                backing: copy.backing.as_ref().map(|backing| Backing::qcow2(&copy.target, backing)).transpose()?,
                force: copy.force,
                ..CreateOptions::default()
            };
            Place::qcow2(&copy.target, &options)
        }
    }
}
