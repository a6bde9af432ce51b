//! The thread of a job: it lets every disk be copied on a thread of its own, and brings things to an end.
//!
//! While a job lasts its filters stand between the disks and their guests. They are taken away before it counts as ended, and a storage
//! that does not answer is waited for: the job's filter does nothing then but pass everything on.

use super::job::{Job, Part};
use super::swap::{Next, close};
use crate::daemon::Daemon;
use control::ApiError;
use control::model::{CopyFormat, JobKind};
use disk::{DiskError, FileOptions, Qcow2Options, StorageSpec};
use image::tools::Destination;
use job::{Copied, JobError};
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use storage::Storage;

/// How long guests may wait for the last bytes of a mirror, and for its target to be opened.
const COMPLETION_PATIENCE: Duration = Duration::from_secs(10);
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What happens to a job.
pub(super) enum Event {
    /// The copy of a disk is over.
    Over(Result<Copied, JobError>),
    /// The disk is to move to the target.
    Complete,
}

/// Why a disk could not move to the target of its mirror.
enum Hitch {
    /// It may be tried again.
    GoesOn(String),
    Ends(String),
}

/// What a job's thread has.
pub(super) struct Course {
    pub(super) daemon: Weak<Daemon>,
    pub(super) job: Arc<Job>,
    /// One for each disk.
    pub(super) destinations: Vec<Destination>,
    pub(super) events: Sender<Event>,
    pub(super) told: Receiver<Event>,
}

/// From the moment at which the filters were put in place. `before`: what stood there.
pub(super) fn run(course: Course, before: Vec<Arc<dyn Storage>>) {
    let job = course.job.clone();
    let ended = engine::catch(|| course.run(before)).unwrap_or_else(|panic| Err(format!("it ended by a {panic}")));
    let id = job.id;
    match &ended {
        Ok(()) => tracing::info!(job = id, "the job is done"),
        Err(_) if job.is_cancelled() => tracing::info!(job = id, "the job is cancelled"),
        Err(why) => tracing::error!(job = id, reason = why, "the job has failed"),
    }
    job.ends(ended);
}

impl Course {
    fn run(mut self, before: Vec<Arc<dyn Storage>>) -> Result<(), String> {
        let mut moved = false;
        let job = self.job.clone();
        let copied = std::thread::scope(|scope| {
            let mut under_way = 0;
            let mut outcome = Ok(());
            for (number, part) in job.parts.iter().enumerate() {
                let Some(copier) = part.copier() else { continue };
                let (events, job) = (self.events.clone(), &*job);
                let copies = move || {
                    let copied = engine::catch(|| copier.run(&mut || job.is_ready()));
                    drop(copier);
                    // Whoever waits for this goes on as for one that was cancelled: the panic was told.
                    let _ = events.send(Event::Over(copied.unwrap_or(Err(JobError::Cancelled))));
                };
                let name = format!("job-{}.{number}", job.id);
                match std::thread::Builder::new().name(name).spawn_scoped(scope, copies) {
                    Ok(_) => under_way += 1,
                    Err(error) => {
                        outcome = Err(format!("cannot start a thread: {error} (check RLIMIT_NPROC)"));
                        job.give_up();
                    }
                }
            }
            while under_way > 0 {
                match self.told.recv() {
                    Ok(Event::Over(copied)) => {
                        under_way -= 1;
                        if let Err(error) = copied {
                            if outcome.is_ok() {
                                outcome = Err(error.to_string());
                            }
                            job.give_up();
                        }
                    }
                    Ok(Event::Complete) => match self.complete(&mut under_way) {
                        Ok(()) => moved = true,
                        Err(Hitch::GoesOn(why)) => {
                            tracing::warn!(
                                job = job.id,
                                reason = why,
                                "the job goes on: its disk could not move to the target"
                            );
                            job.goes_on(why);
                        }
                        Err(Hitch::Ends(why)) => {
                            outcome = Err(why);
                            job.give_up();
                        }
                    },
                    Err(_) => break,
                }
            }
            outcome
        });
        job.parts.iter().for_each(Part::end);
        if moved {
            before.into_iter().for_each(close);
            return Ok(());
        }
        for (part, before) in job.parts.iter().zip(before) {
            self.put_back(part, before);
        }
        if job.kind == JobKind::Mirror && copied.is_ok() {
            return Err("it ended before it was completed".to_owned());
        }
        copied?;
        let keep = |destination: Destination| destination.keep().map_err(|error| error.to_string());
        // All of them: what is whole may be kept even where another one cannot be.
        let kept: Vec<_> = std::mem::take(&mut self.destinations).into_iter().map(keep).collect();
        kept.into_iter().collect()
    }

    /// Lets the storage that was there before stand behind the disk again.
    fn put_back(&self, part: &Part, before: Arc<dyn Storage>) {
        let mut has_said = false;
        // Neither a daemon that is gone has disks, nor is there one that was removed meanwhile.
        while let (Some(daemon), Some(disk)) = (self.daemon.upgrade(), part.disk.upgrade()) {
            let put = {
                let _open = daemon.upgrade.gate();
                let _changing = daemon.change_lock();
                let _size = disk.capacity_lock();
                daemon.replace(std::slice::from_ref(&disk), || Ok(vec![Next { storage: before.clone(), spec: None }]))
            };
            match put {
                Ok(filters) => {
                    filters.into_iter().for_each(close);
                    break;
                }
                Err(ApiError::Disk(DiskError::Missing { .. })) => break,
                Err(_) if daemon.upgrade.is_ending() => break,
                Err(error) => {
                    if !std::mem::replace(&mut has_said, true) {
                        tracing::warn!(disk = part.name, %error, "a job is over and waits for the disk to answer");
                    }
                }
            }
            drop((disk, daemon));
            std::thread::sleep(TRY_AGAIN_AFTER);
        }
        close(before);
    }

    /// Moves the disk of a mirror to the target, in the moment at which nothing is in flight.
    fn complete(&mut self, under_way: &mut usize) -> Result<(), Hitch> {
        let goes_on = |why: &str| Hitch::GoesOn(why.to_owned());
        let (Some(daemon), [part]) = (self.daemon.upgrade(), &self.job.parts[..]) else {
            return Err(goes_on("only a mirror is completed"));
        };
        let disk = part.disk.upgrade().ok_or_else(|| goes_on("the disk is gone"))?;
        let Some(copier) = part.copier() else { return Err(goes_on("the copy is over")) };
        // The most of it is brought to stable storage before guests wait for the rest.
        if let Err(error) = File::open(&part.target).and_then(|file| file.sync_all()) {
            return Err(Hitch::GoesOn(format!("{}: cannot flush: {error}", part.target.display())));
        }
        let _open = daemon.upgrade.gate();
        let _changing = daemon.change_lock();
        let _size = disk.capacity_lock();
        let spec = spec_of(&disk.spec(), &part.target, part.format);
        let told = &self.told;
        let destination = &mut self.destinations;
        let since = Instant::now();
        let failed = |message: String| ApiError::Failed { message };
        let mut begun = false;
        let filters = daemon.replace(std::slice::from_ref(&disk), || {
            begun = true;
            copier.complete();
            drop(copier);
            let by = Instant::now() + COMPLETION_PATIENCE;
            let copied = loop {
                match told.recv_timeout(by.saturating_duration_since(Instant::now())) {
                    Ok(Event::Over(copied)) => break copied,
                    Ok(Event::Complete) => {}
                    Err(_) => {
                        let target = part.target.display();
                        return Err(failed(format!("{target}: takes too long to write the rest: the job ends")));
                    }
                }
            };
            *under_way -= 1;
            copied.map_err(|error| failed(error.to_string()))?;
            part.end();
            let destination = destination.pop().ok_or_else(|| failed("has no target".to_owned()))?;
            destination.keep().map_err(|error| failed(error.to_string()))?;
            let storage = spec.open().and_then(storage::Opened::start).map_err(|error| failed(error.to_string()))?;
            Ok(vec![Next { storage, spec: Some(spec) }])
        });
        let hitch = if begun { Hitch::Ends } else { Hitch::GoesOn };
        let filters = filters.map_err(|error| hitch(error.to_string()))?;
        let (disk, target, pause_ms) = (&part.name, part.target.display(), since.elapsed().as_millis());
        tracing::info!(disk, %target, pause_ms, "the disk lives on in the target: write that down where it is described");
        filters.into_iter().for_each(close);
        Ok(())
    }
}

/// What opens the target as the disk was open.
fn spec_of(before: &StorageSpec, target: &Path, format: CopyFormat) -> StorageSpec {
    let (direct, execution, lock) = match before {
        StorageSpec::File(FileOptions { direct, execution, lock, .. })
        | StorageSpec::Qcow2(Qcow2Options { direct, execution, lock, .. }) => (*direct, *execution, *lock),
        _ => (false, storage::Execution::Auto, true),
    };
    match format {
        CopyFormat::Raw => StorageSpec::File(FileOptions { direct, execution, lock, ..FileOptions::new(target) }),
        CopyFormat::Qcow2 => StorageSpec::Qcow2(Qcow2Options { direct, execution, lock, ..Qcow2Options::new(target) }),
    }
}
