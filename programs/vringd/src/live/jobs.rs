//! The jobs of a daemon: what begins one, and what it is told.

use super::course::{self, Course};
use super::job::{Copier, Job, Part};
use super::swap::Next;
use crate::daemon::{Daemon, NO_BITMAPS, PATIENCE};
use crate::failure::field;
use control::ApiError;
use control::model::{self as api, CopyDisk, CopyFormat, JobSettings, NewJob};
use image::tools::{CreateOptions, Destination, ToolError};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Jobs that have ended and are still listed; the oldest goes.
const ENDED_MAX: usize = 64;
/// How long a cancellation is waited for. It goes on by itself.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);
/// Largest disk: some marks of a bit for every 64 KiB are in memory, 256 MiB each.
const DISK_BYTES_MAX: u64 = 128 << 40;
/// Clusters of a new image, as every program makes them.
const CLUSTER_BYTES: u64 = 64 << 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Jobs {
    daemon: OnceLock<Weak<Daemon>>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    last: u64,
    jobs: BTreeMap<u64, Entry>,
}

struct Entry {
    job: Arc<Job>,
    thread: Option<JoinHandle<()>>,
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
        self.lock().jobs.get(&id).map(|entry| entry.job.clone()).ok_or(ApiError::NoSuchJob { id })
    }

    /// Whether no job stands between this disk and its guests, so that something else may come there.
    ///
    /// # Errors
    /// The job, and what to do.
    pub(crate) fn check_free(&self, disk: &str) -> Result<(), ApiError> {
        self.check(disk, |job| job.has(disk))
    }

    /// Whether no job copies this disk, so that it may go.
    ///
    /// # Errors
    /// The job, and what to do.
    pub(crate) fn check_copied(&self, disk: &str) -> Result<(), ApiError> {
        self.check(disk, |job| job.copies(disk))
    }

    fn check(&self, disk: &str, stands: impl Fn(&Job) -> bool) -> Result<(), ApiError> {
        match self.lock().jobs.values().find(|entry| stands(&entry.job)) {
            None => Ok(()),
            Some(Entry { job, .. }) => {
                let (id, kind) = (job.id, job.kind);
                let message = format!(
                    "job {id} ({kind}) copies it: wait until it has ended, or cancel it (`vringd ctl job cancel {id}`)"
                );
                Err(ApiError::DiskUnsupported { disk: disk.to_owned(), message })
            }
        }
    }

    /// A job that has not ended: its disk, its number and what it does.
    pub(crate) fn running(&self) -> Option<(String, u64, api::JobKind)> {
        let list = self.lock();
        let job = list.jobs.values().map(|entry| &entry.job).find(|job| !job.has_ended())?;
        Some((job.parts.first()?.name.clone(), job.id, job.kind))
    }

    /// Ends all of them, and waits for that.
    pub(crate) fn end_all(&self) {
        let mut list = self.lock();
        let threads: Vec<_> = list
            .jobs
            .values_mut()
            .filter_map(|entry| {
                entry.job.stop();
                entry.thread.take()
            })
            .collect();
        drop(list);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Daemon {
    pub(crate) fn job_list(&self) -> Vec<api::Job> {
        let jobs: Vec<_> = self.jobs.lock().jobs.values().map(|entry| entry.job.clone()).collect();
        jobs.iter().map(|job| job.shown()).collect()
    }

    pub(crate) fn job_shown(&self, id: u64) -> Result<api::Job, ApiError> {
        Ok(self.jobs.get(id)?.shown())
    }

    /// Makes the targets, lets the job stand between the disks and their guests from one moment on, and lets it run.
    pub(crate) fn begin_job(&self, new: &NewJob) -> Result<api::Job, ApiError> {
        new.check()?;
        let missing =
            || ApiError::Failed { message: "this daemon is part of another program and has no jobs".to_owned() };
        let daemon = self.jobs.daemon.get().ok_or_else(missing)?.clone();
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        let copies = new.copies();
        let disks =
            copies.iter().map(|copy| Ok(self.disks.get(&copy.disk)?.0)).collect::<Result<Vec<_>, ApiError>>()?;
        let mut sizes = Vec::new();
        for (index, (disk, copy)) in disks.iter().zip(&copies).enumerate() {
            self.jobs.check_free(disk.name())?;
            self.held.admit_new(&new.target_field(index), &copy.target)?;
            sizes.push(disk.capacity_lock_within(PATIENCE)?);
        }
        let (mut parts, mut destinations, mut filters) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (disk, copy)) in disks.iter().zip(&copies).enumerate() {
            if copy.bitmap.is_some() {
                let message = NO_BITMAPS.to_owned();
                return Err(ApiError::DiskUnsupported { disk: disk.name().to_owned(), message });
            }
            let from = disk.storage();
            if from.capacity_bytes() > DISK_BYTES_MAX {
                let message = format!("has {} bytes, and a job copies {DISK_BYTES_MAX} at most", from.capacity_bytes());
                return Err(ApiError::DiskUnsupported { disk: disk.name().to_owned(), message });
            }
            let to = destination(copy, from.capacity_bytes());
            let to = to.map_err(|error| field(&new.target_field(index), error))?;
            let copier = Copier::new(new.kind(), from, &to);
            let copier = copier.map_err(|error| field(&new.target_field(index), error))?;
            filters.push(Next { storage: copier.filter(), spec: None });
            parts.push(Part::new(disk, (copy.target.clone(), copy.format), copier));
            destinations.push(to);
        }
        let (events, told) = channel();
        let mut list = self.jobs.lock();
        list.last += 1;
        let id = list.last;
        drop(list);
        let job = Arc::new(Job::new(id, new.kind(), parts, events.clone()));
        job.set_limit(new.limit_bytes_per_second());
        // There is a thread before anything waits for it. It ends where nobody tells it to go.
        let (go, goes) = channel();
        let course = Course { daemon, job: job.clone(), destinations, events, told };
        let thread = std::thread::Builder::new().name(format!("job-{id}")).spawn(move || {
            if let Ok(before) = goes.recv() {
                course::run(course, before);
            }
        });
        let thread = thread.map_err(|error| ApiError::Failed {
            message: format!("cannot start a thread: {error} (check RLIMIT_NPROC)"),
        })?;
        let before = self.replace(&disks, || Ok(filters))?;
        let shown = job.shown();
        let mut list = self.jobs.lock();
        list.jobs.insert(id, Entry { job, thread: Some(thread) });
        let ended: Vec<_> = list.jobs.iter().filter(|(_, entry)| entry.job.has_ended()).map(|(id, _)| *id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            list.jobs.remove(id);
        }
        drop(list);
        // It waits for this, and for nothing else.
        let _ = go.send(before);
        for part in &shown.disks {
            tracing::info!(job = id, kind = %shown.kind, disk = part.disk, target = %part.target.display(), "a job begins");
        }
        Ok(shown)
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
        Ok(())
    }
}

/// Where a copy goes.
fn destination(copy: &CopyDisk, size_bytes: u64) -> Result<Destination, ToolError> {
    match copy.format {
        CopyFormat::Raw => Destination::raw(&copy.target, size_bytes, copy.force),
        CopyFormat::Qcow2 => {
            let options = CreateOptions {
                size_bytes: Some(size_bytes),
                cluster_bytes: CLUSTER_BYTES,
                refcount_bits: 16,
                subclusters: false,
                backing: None,
                force: copy.force,
            };
            Destination::qcow2(&copy.target, &options)
        }
    }
}
