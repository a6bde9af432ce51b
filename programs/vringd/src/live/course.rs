//! The thread of a job: it lets every disk be copied on a thread of its own, and brings things to an end.
//!
//! While a job lasts its filters stand between the disks and their guests. They are taken away before it counts as ended, and a storage
//! that does not answer is waited for: the job's filter does nothing then but pass everything on.

use super::bitmaps::Taken;
use super::chain::Chain;
use super::job::{Copier, Job, Part};
use super::swap::{Next, close};
use crate::daemon::{Daemon, PATIENCE};
use control::ApiError;
use control::model::{CopyFormat, JobKind};
use disk::{Disk, DiskError, FileOptions, Qcow2Options, StorageSpec};
use image::tools::{Destination, Streaming};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use storage::{Opened, Storage};

/// How long a mirror that is to be completed may take to come close to its disk, before guests wait for anything.
const CLOSE_PATIENCE: Duration = Duration::from_secs(60);
/// How long guests may wait for the last bytes of a mirror, and for its target to be opened.
const COMPLETION_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// Between attempts to take a filter away: each may hold guests up for a while.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRY_AGAIN_AFTER_MAX: Duration = Duration::from_secs(60);

/// The name of a thread that opens the target of a job, and goes on alone where that takes too long.
pub(crate) const TARGET_THREAD: &str = "job-target";

/// What happens to a job.
pub(super) enum Event {
    /// The copy of the disk of this number is over.
    Over(usize, Result<(), String>),
    /// The disk is to move to the target, or nobody reads it as it was any more.
    Complete,
}

/// Why a disk could not go on as its job wants.
enum Hitch {
    /// It may be tried again.
    GoesOn(String),
    Ends(String),
}

/// What a job's thread has.
pub(super) struct Course {
    pub(super) daemon: Weak<Daemon>,
    pub(super) job: Arc<Job>,
    /// One for each disk of which a copy is made.
    pub(super) destinations: Vec<Destination>,
    /// The images that change, of a job that makes no copy.
    pub(super) chain: Option<Chain>,
    /// What was taken of bitmaps.
    pub(super) taken: Taken,
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
        let job = self.job.clone();
        let (mut copied, mut moved) = self.copy();
        job.parts.iter().for_each(Part::end);
        if job.kind == JobKind::Stream && copied.is_ok() && !job.is_cancelled() {
            copied = self.stand_alone();
            moved = copied.is_ok();
        }
        if moved {
            self.taken.keep();
            self.chain = None;
            before.into_iter().for_each(close);
            return Ok(());
        }
        let mut ended = copied.and_then(|()| self.keep());
        // Targets that nobody wants do not wait for a disk that does not answer, and may have the room that is needed to undo things.
        self.destinations.clear();
        match &mut ended {
            Ok(()) => self.taken.keep(),
            Err(why) => self.taken.undo().into_iter().for_each(|also| why.push_str(&format!("; {also}"))),
        }
        job.copies_no_more();
        for (part, before) in job.parts.iter().zip(before) {
            self.put_back(part, before);
        }
        ended
    }

    /// Copies all disks. Says whether the disk has moved to the target.
    fn copy(&mut self) -> (Result<(), String>, bool) {
        let job = self.job.clone();
        std::thread::scope(|scope| {
            let (mut under_way, mut moved, mut outcome) = (0, false, Ok(()));
            for (number, part) in job.parts.iter().enumerate() {
                let Some(copier) = part.copier() else { continue };
                let (events, job) = (self.events.clone(), &*job);
                let copies = move || {
                    let copied = engine::catch(|| copier.run(&mut || job.is_ready()));
                    drop(copier);
                    let copied = match copied {
                        Ok(copied) => copied.map(drop).map_err(|error| error.to_string()),
                        Err(panic) => Err(format!("it ended by a {panic}")),
                    };
                    let _ = events.send(Event::Over(number, copied));
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
                    Ok(Event::Over(number, copied)) => {
                        under_way -= 1;
                        if let Err(why) = copied {
                            let about = job.parts.get(number).map(Part::about).unwrap_or_default();
                            outcome = outcome.and_then(|()| Err(format!("{about}: {why}")));
                            job.give_up();
                        }
                    }
                    Ok(Event::Complete) if job.kind == JobKind::Pull => {
                        job.parts.iter().filter_map(Part::copier).for_each(|copier| copier.complete());
                    }
                    Ok(Event::Complete) => match self.complete_within(&mut under_way) {
                        Ok(()) => moved = true,
                        Err(Hitch::GoesOn(why)) => {
                            tracing::warn!(job = job.id, reason = why, "the job goes on: it could not be completed");
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
            (outcome, moved)
        })
    }

    /// Makes images of what is copied, unless somebody does not want them any more.
    fn keep(&mut self) -> Result<(), String> {
        if self.job.is_cancelled() {
            return Err("the job was cancelled".to_owned());
        }
        match self.job.kind {
            JobKind::Backup | JobKind::Pull => {}
            _ => return Err("it ended before it was completed".to_owned()),
        }
        let keep = |destination: Destination| destination.keep().map_err(|error| error.to_string());
        // All of them: what is whole may be kept even where another one cannot be.
        let kept: Vec<_> = std::mem::take(&mut self.destinations).into_iter().map(keep).collect();
        kept.into_iter().collect()
    }

    /// Lets the image of a stream go on without what was behind it.
    fn stand_alone(&self) -> Result<(), String> {
        let (Some(Chain::Stream(streaming)), [part]) = (&self.chain, &self.job.parts[..]) else {
            return Err("it has no image".to_owned());
        };
        // Most of it is brought to stable storage before guests wait for the rest.
        sync(&part.target).map_err(|why| format!("{}: {why}", part.about()))?;
        let again = |why| format!("{}: {why}: stream it again, which goes on where this was", part.about());
        let filters = tries(&self.job, || self.try_to_stand_alone(streaming, part)).map_err(again)?;
        filters.into_iter().for_each(close);
        Ok(())
    }

    /// Answers with what stood there before.
    fn try_to_stand_alone(&self, streaming: &Streaming, part: &Part) -> Result<Vec<Arc<dyn Storage>>, Hitch> {
        let gone = || Hitch::Ends("the disk is gone".to_owned());
        let (daemon, disk) = (self.daemon.upgrade().ok_or_else(gone)?, part.disk.upgrade().ok_or_else(gone)?);
        let _open = daemon.upgrade.gate();
        let _changing = daemon.change_lock();
        let _size = disk.capacity_lock_within(PATIENCE).map_err(|error| Hitch::GoesOn(error.to_string()))?;
        let options = image_options(&disk.spec()).ok_or_else(gone)?;
        let mut begun = false;
        let before = daemon.replace(std::slice::from_ref(&disk), || {
            begun = true;
            let storage =
                streaming.finish(&options).map_err(|error| ApiError::Failed { message: error.to_string() })?;
            Ok(vec![Next { storage, spec: None }])
        });
        let hitch = if begun { Hitch::Ends } else { Hitch::GoesOn };
        before.map_err(|error| hitch(error.to_string()))
    }

    /// What stands behind the disk once the job does not: what was there before, or what is the same.
    fn again(&self, disk: &Disk, before: &Arc<dyn Storage>) -> Result<Arc<dyn Storage>, ApiError> {
        match (&self.chain, image_options(&disk.spec())) {
            (Some(Chain::Commit(committing)), Some(options)) => {
                committing.undo(&options).map_err(|error| ApiError::Failed { message: error.to_string() })
            }
            _ => Ok(before.clone()),
        }
    }

    /// Lets the storage that was there before stand behind the disk again.
    fn put_back(&self, part: &Part, before: Arc<dyn Storage>) {
        let mut pauses = Pauses::new();
        let mut has_told = false;
        // Neither a daemon that is gone has disks, nor is there one that was removed meanwhile.
        while let (Some(daemon), Some(disk)) = (self.daemon.upgrade(), part.disk.upgrade()) {
            let put = daemon.settled(&part.name).and_then(|()| {
                let _open = daemon.upgrade.gate();
                let _changing = daemon.change_lock();
                let _size = disk.capacity_lock_within(PATIENCE)?;
                let again = || Ok(vec![Next { storage: self.again(&disk, &before)?, spec: None }]);
                daemon.replace(std::slice::from_ref(&disk), again)
            });
            match put {
                // What was there before stands behind the disk again: it is not closed.
                Ok(filters) => return filters.into_iter().for_each(close),
                Err(ApiError::Disk(DiskError::Missing { .. })) => break,
                Err(_) if daemon.upgrade.is_ending() => break,
                Err(error) if !std::mem::replace(&mut has_told, true) => {
                    tracing::warn!(disk = part.name, %error, "a job is over and waits for the disk to answer");
                    self.job.waits(format!("{}: it is over, and waits for the disk: {error}", part.about()));
                }
                Err(_) => {}
            }
            drop((disk, daemon));
            std::thread::sleep(pauses.next());
        }
        close(before);
    }

    /// Waits until so little differs that guests may wait for it.
    fn come_close(&self, copier: &Copier, by: Instant, under_way: &mut usize) -> Result<(), Hitch> {
        while !copier.hurry() {
            if Instant::now() >= by {
                let kind = self.job.kind;
                let why = format!("guests write faster than the {kind} copies: try again when they write less");
                return Err(Hitch::GoesOn(why));
            }
            self.goes_on_for(LOOK_AGAIN_AFTER, under_way)?;
        }
        Ok(())
    }

    /// Lets it copy for a while. It may fail meanwhile, or be ended.
    fn goes_on_for(&self, a_while: Duration, under_way: &mut usize) -> Result<(), Hitch> {
        let Ok(Event::Over(_, copied)) = self.told.recv_timeout(a_while) else { return Ok(()) };
        *under_way -= 1;
        let why = copied.err().unwrap_or_else(|| "it ended before it was completed".to_owned());
        let about = self.job.parts.first().map(Part::about).unwrap_or_default();
        Err(Hitch::Ends(format!("{about}: {why}")))
    }

    /// As below. Nobody has asked for the end of a commit, so that it may try for a while.
    fn complete_within(&mut self, under_way: &mut usize) -> Result<(), Hitch> {
        let (by, mut pauses) = (Instant::now() + CLOSE_PATIENCE, Pauses::new());
        loop {
            match self.complete(by, under_way) {
                Err(Hitch::GoesOn(_)) if self.job.kind == JobKind::Commit && Instant::now() < by => {
                    self.job.pauses(true);
                    let went_on = self.goes_on_for(pauses.next(), under_way);
                    self.job.pauses(false);
                    went_on?;
                }
                ended => return ended,
            }
        }
    }

    /// Moves the disk of a mirror to the target, or of a commit to its backing file, in the moment at which nothing is in flight.
    fn complete(&mut self, by: Instant, under_way: &mut usize) -> Result<(), Hitch> {
        let goes_on = |why: &str| Hitch::GoesOn(why.to_owned());
        let (Some(daemon), [part]) = (self.daemon.upgrade(), &self.job.parts[..]) else {
            return Err(goes_on("what ends by itself is not completed"));
        };
        let disk = part.disk.upgrade().ok_or_else(|| goes_on("the disk is gone"))?;
        let Some(copier) = part.copier() else { return Err(goes_on("the copy is over")) };
        self.come_close(&copier, by, under_way).inspect_err(|_| copier.go_on())?;
        // The most of it is brought to stable storage before guests wait for the rest.
        sync(&part.target).map_err(Hitch::Ends)?;
        let _open = daemon.upgrade.gate();
        let _changing = daemon.change_lock();
        let size = disk.capacity_lock_within(PATIENCE);
        let _size = size.map_err(|error| Hitch::GoesOn(error.to_string())).inspect_err(|_| copier.go_on())?;
        let (told, destinations, since) = (&self.told, &mut self.destinations, Instant::now());
        let chain = &self.chain;
        let mut begun = false;
        let filters = daemon.replace(std::slice::from_ref(&disk), || {
            begun = true;
            copier.complete();
            drop(copier);
            let by = Instant::now() + COMPLETION_PATIENCE;
            let failed = |why: String| ApiError::Failed { message: format!("{}: {why}", part.about()) };
            loop {
                match told.recv_timeout(by.saturating_duration_since(Instant::now())) {
                    Ok(Event::Over(_, copied)) => {
                        *under_way -= 1;
                        copied.map_err(failed)?;
                        break;
                    }
                    Ok(Event::Complete) => {}
                    Err(_) => return Err(failed("the rest takes too long to write: the job ends".to_owned())),
                }
            }
            part.end();
            if let Some(Chain::Commit(committing)) = chain {
                let storage = committing.finish().map_err(|error| ApiError::Failed { message: error.to_string() })?;
                return Ok(vec![Next { storage, spec: None }]);
            }
            let destination = destinations.pop().ok_or_else(|| failed("it has no target".to_owned()))?;
            if destination.storage().capacity_bytes() != disk.storage().capacity_bytes() {
                return Err(failed("it does not have the size of the disk".to_owned()));
            }
            let spec = spec_of(&disk.spec(), &part.target, part.format);
            let storage = opened(destination, spec.clone(), by).map_err(failed)?;
            Ok(vec![Next { storage, spec: Some(spec) }])
        });
        let hitch = if begun { Hitch::Ends } else { Hitch::GoesOn };
        let filters = filters.map_err(|error| hitch(error.to_string()));
        let filters = filters.inspect_err(|_| part.copier().iter().for_each(|copier| copier.go_on()))?;
        let (disk, target, pause_ms) = (&part.name, part.target.display(), since.elapsed().as_millis());
        let outcome = match self.job.kind {
            JobKind::Commit => "the image is committed: its backing file has its name",
            _ => "the disk lives on in the target: write that down where it is described",
        };
        tracing::info!(disk, %target, pause_ms, "{outcome}");
        filters.into_iter().for_each(close);
        Ok(())
    }
}

/// Attempts until one succeeds: what is in flight takes its time, everything is copied, and guests do not wait meanwhile. None once
/// somebody wants the job to end.
fn tries<T>(job: &Job, mut attempt: impl FnMut() -> Result<T, Hitch>) -> Result<T, String> {
    let (by, mut pauses) = (Instant::now() + CLOSE_PATIENCE, Pauses::new());
    while !job.is_cancelled() {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Hitch::GoesOn(_)) if Instant::now() < by => job.rests(pauses.next()),
            Err(Hitch::GoesOn(why) | Hitch::Ends(why)) => return Err(why),
        }
    }
    Err("the job was cancelled".to_owned())
}

/// The pauses between attempts, each twice as long as the one before: an attempt may hold guests up for a while.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Pauses {
        Pauses(TRY_AGAIN_AFTER)
    }

    fn next(&mut self) -> Duration {
        let longer = (2 * self.0).min(TRY_AGAIN_AFTER_MAX);
        std::mem::replace(&mut self.0, longer)
    }
}

/// Makes an image of the target, and opens it. Somebody else waits for a file system that hangs.
fn opened(destination: Destination, spec: StorageSpec, by: Instant) -> Result<Arc<dyn Storage>, String> {
    let (done, storage) = channel();
    let open = move || {
        let kept = destination.keep().map_err(|error| error.to_string());
        let opened = kept.and_then(|()| spec.open().and_then(Opened::start).map_err(|error| error.to_string()));
        let _ = done.send(opened);
    };
    let started = std::thread::Builder::new().name(TARGET_THREAD.to_owned()).spawn(open);
    started.map_err(|error| format!("cannot start a thread: {error} (check RLIMIT_NPROC)"))?;
    // What is under way goes on, and may end with an image.
    let why = "it takes too long to bring to stable storage and to open: the job ends; remove what is there, which the disk does not follow";
    let late = |_| Err(why.to_owned());
    storage.recv_timeout(by.saturating_duration_since(Instant::now())).unwrap_or_else(late)
}

/// Brings a file to stable storage, for as long as that takes. What somebody else has put into its place holds up nobody.
pub(super) fn sync(path: &Path) -> Result<(), String> {
    // NONBLOCK: for a FIFO, until it is seen to be one.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let failed = |error: std::io::Error| format!("{}: cannot flush: {error}", path.display());
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let file = File::from(file);
    storage::kit::check_kind(path, &file).map_err(|error| error.to_string())?;
    file.sync_all().map_err(failed)
}

/// How the image of a disk is opened by now.
fn image_options(spec: &StorageSpec) -> Option<Qcow2Options> {
    match spec {
        StorageSpec::Qcow2(options) => Some(options.clone()),
        _ => None,
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
        CopyFormat::Qcow2 => {
            let new = Qcow2Options { direct, execution, lock, ..Qcow2Options::new(target) };
            match before {
                StorageSpec::Qcow2(Qcow2Options { allow, table_memory, .. }) => {
                    StorageSpec::Qcow2(Qcow2Options { allow: allow.clone(), table_memory: *table_memory, ..new })
                }
                _ => StorageSpec::Qcow2(new),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_any_more_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        let error = sync(&path).unwrap_err();
        assert!(error.ends_with("disk.img: cannot flush: No such file or directory (os error 2)"), "{error}");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = sync(&path).unwrap_err();
        assert!(error.contains("disk.img") && error.contains("named pipe"), "{error}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        sync(&path).unwrap();
    }

    fn course(kind: JobKind) -> Course {
        let (events, told) = channel();
        let job = Arc::new(Job::new(1, kind, Vec::new(), events.clone()));
        let (destinations, taken) = (Vec::new(), Taken::default());
        Course { daemon: Weak::new(), job, destinations, chain: None, taken, events, told }
    }

    #[test]
    fn a_commit_that_fails_between_its_attempts_cannot_be_cancelled_any_more() {
        let mut course = course(JobKind::Commit);
        course.job.is_ready();
        assert!(matches!(course.told.try_recv(), Ok(Event::Complete)));
        // Without a daemon an attempt has to be made again.
        course.events.send(Event::Over(0, Err("the copy failed".to_owned()))).unwrap();
        let mut under_way = 1;
        let ended = course.complete_within(&mut under_way);
        assert!(matches!(ended, Err(Hitch::Ends(why)) if why.ends_with("the copy failed")));
        assert_eq!(under_way, 0);
        course.job.cancel().unwrap_err();
        course.job.ends(Err("the copy failed".to_owned()));
        assert_eq!(course.job.shown().error.as_deref(), Some("the copy failed"));
    }

    #[test]
    fn what_is_cancelled_between_its_attempts_makes_none_any_more() {
        let Course { job, .. } = course(JobKind::Stream);
        let mut attempts = 0;
        let ended = tries(&job, || {
            attempts += 1;
            job.cancel().unwrap();
            Err::<(), _>(Hitch::GoesOn("requests are in flight".to_owned()))
        });
        assert_eq!((ended, attempts), (Err("the job was cancelled".to_owned()), 1));
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let mut pauses = Pauses::new();
        let seconds: Vec<_> = (0..9).map(|_| pauses.next().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
