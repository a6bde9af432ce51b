//! One job, as others see it: what it copies, how far it is, and what it can be told.

use super::course::Event;
use super::pull::Pulling;
use control::ApiError;
use control::model::{self as api, CopyFormat, JobKind, JobState};
use disk::Disk;
use image::tools::{Committing, Streaming};
use job::{Backup, Copied, Fill, JobError, Mirror, Progress};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

/// The time over which a rate is told, and the time between two of its samples.
const RATE_OVER: Duration = Duration::from_secs(5);
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// What copies one disk.
pub(super) enum Copier {
    Backup(Backup),
    Mirror(Mirror),
    Stream(Fill, Arc<Streaming>),
    Commit(Mirror, Arc<Committing>),
    Pull(Box<Pulling>),
}

impl Copier {
    pub(super) fn run(&self, ready: &mut dyn FnMut()) -> Result<Copied, JobError> {
        match self {
            Copier::Backup(backup) => backup.run(),
            Copier::Mirror(mirror) => mirror.run(ready),
            Copier::Stream(fill, streaming) => fill.run(&mut |show| streaming.gaps(show)),
            Copier::Commit(mirror, committing) => mirror.run_with(&mut |show| committing.parts(show), ready),
            Copier::Pull(pulling) => pulling.run(ready),
        }
    }

    /// What follows its disk until it is completed.
    fn mirror(&self) -> Option<&Mirror> {
        match self {
            Copier::Mirror(mirror) | Copier::Commit(mirror, _) => Some(mirror),
            Copier::Backup(_) | Copier::Stream(..) | Copier::Pull(_) => None,
        }
    }

    pub(super) fn complete(&self) {
        match self {
            Copier::Pull(pulling) => pulling.pull.complete(),
            _ => self.mirror().into_iter().for_each(Mirror::complete),
        }
    }

    /// Lets the limit not hold for now, and says whether so little is left that guests may wait for it.
    pub(super) fn hurry(&self) -> bool {
        self.mirror().is_none_or(|mirror| {
            mirror.hurry();
            mirror.is_close()
        })
    }

    /// Nobody wants it completed any more.
    pub(super) fn go_on(&self) {
        self.mirror().into_iter().for_each(Mirror::go_on);
    }

    fn cancel(&self) {
        match self {
            Copier::Backup(backup) => backup.cancel(),
            Copier::Mirror(mirror) | Copier::Commit(mirror, _) => mirror.cancel(),
            Copier::Stream(fill, _) => fill.cancel(),
            Copier::Pull(pulling) => pulling.pull.cancel(),
        }
    }

    fn set_limit(&self, bytes_per_second: Option<u64>) {
        match self {
            Copier::Backup(backup) => backup.set_limit(bytes_per_second),
            Copier::Mirror(mirror) | Copier::Commit(mirror, _) => mirror.set_limit(bytes_per_second),
            Copier::Stream(fill, _) => fill.set_limit(bytes_per_second),
            // Nothing that a guest waits for is limited.
            Copier::Pull(_) => {}
        }
    }

    fn progress(&self) -> Progress {
        match self {
            Copier::Backup(backup) => backup.progress(),
            Copier::Mirror(mirror) | Copier::Commit(mirror, _) => mirror.progress(),
            Copier::Stream(fill, _) => fill.progress(),
            Copier::Pull(pulling) => pulling.pull.progress(),
        }
    }
}

/// A disk in a job.
pub(super) struct Part {
    pub(super) name: String,
    /// It may go while the job is listed.
    pub(super) disk: Weak<Disk>,
    pub(super) target: PathBuf,
    pub(super) format: CopyFormat,
    /// The bitmap, and whether it says what is copied.
    since: (Option<String>, bool),
    copying: Mutex<Copying>,
}

enum Copying {
    On(Arc<Copier>),
    /// How far it came.
    Over(Progress),
}

impl Part {
    pub(super) fn new(
        disk: &Arc<Disk>,
        (target, format): (PathBuf, CopyFormat),
        since: (Option<String>, bool),
        copier: Copier,
    ) -> Part {
        let copying = Mutex::new(Copying::On(Arc::new(copier)));
        Part { name: disk.name().to_owned(), disk: Arc::downgrade(disk), target, format, since, copying }
    }

    fn copying(&self) -> MutexGuard<'_, Copying> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What copies it, if that is not over.
    pub(super) fn copier(&self) -> Option<Arc<Copier>> {
        match &*self.copying() {
            Copying::On(copier) => Some(copier.clone()),
            Copying::Over(_) => None,
        }
    }

    /// The copy is over: what is copied to can be closed.
    pub(super) fn end(&self) {
        let mut copying = self.copying();
        let progress = progress(&copying);
        let before = std::mem::replace(&mut *copying, Copying::Over(progress));
        drop(copying);
        drop(before);
    }

    /// What it copies where, for an error.
    pub(super) fn about(&self) -> String {
        format!("disk `{}` to {}", self.name, self.target.display())
    }

    fn tell(&self, tell: impl FnOnce(&Copier)) {
        if let Copying::On(copier) = &*self.copying() {
            tell(copier);
        }
    }

    fn shown(&self, kind: JobKind) -> api::JobDisk {
        let Progress { done_bytes, total_bytes, dirty_bytes } = progress(&self.copying());
        api::JobDisk {
            disk: self.name.clone(),
            target: self.target.clone(),
            format: self.format,
            done_bytes,
            total_bytes,
            dirty_bytes: matches!(kind, JobKind::Mirror | JobKind::Commit).then_some(dirty_bytes),
            bitmap: self.since.0.clone(),
            incremental: self.since.1,
        }
    }
}

fn progress(copying: &Copying) -> Progress {
    match copying {
        Copying::On(copier) => copier.progress(),
        Copying::Over(progress) => *progress,
    }
}

/// See the module.
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) kind: JobKind,
    pub(super) parts: Vec<Part>,
    started: u64,
    events: Sender<Event>,
    state: Mutex<State>,
    /// The state has changed.
    changed: Condvar,
}

struct State {
    state: JobState,
    /// Somebody wants it to end.
    is_cancelled: bool,
    /// It completes, and waits until it tries that again.
    pauses: bool,
    is_over: bool,
    limit_bytes_per_second: Option<u64>,
    error: Option<String>,
    ended: Option<u64>,
    /// Bytes done at some times.
    samples: VecDeque<(Instant, u64)>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Job {
    pub(super) fn new(id: u64, kind: JobKind, parts: Vec<Part>, events: Sender<Event>) -> Job {
        let state = State {
            state: JobState::Running,
            is_cancelled: false,
            pauses: false,
            is_over: false,
            limit_bytes_per_second: None,
            error: None,
            ended: None,
            samples: VecDeque::from([(Instant::now(), 0)]),
        };
        Job { id, kind, parts, started: now(), events, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().state.has_ended()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.state().is_cancelled
    }

    /// Whether it stands between a disk and its guests.
    pub(super) fn has(&self, disk: &str) -> bool {
        !self.has_ended() && self.parts.iter().any(|part| part.name == disk)
    }

    /// Whether it copies a disk, and has not come to its end.
    pub(super) fn copies(&self, disk: &str) -> bool {
        !self.state().is_over && self.parts.iter().any(|part| part.name == disk)
    }

    /// Nothing of it is left but its filters.
    pub(super) fn copies_no_more(&self) {
        self.state().is_over = true;
    }

    /// Everything is copied but for what guests write. Nobody has to say where a commit ends.
    pub(super) fn is_ready(&self) {
        let mut state = self.state();
        if state.state == JobState::Running {
            state.state = JobState::Ready;
        }
        if self.kind == JobKind::Commit {
            self.completes(&mut state);
        }
        self.changed.notify_all();
    }

    /// If it can, its thread hears of it.
    fn completes(&self, state: &mut State) {
        if state.state == JobState::Ready && !state.is_cancelled {
            (state.state, state.error) = (JobState::Completing, None);
            // As long as it has not ended.
            let _ = self.events.send(Event::Complete);
        }
    }

    /// What was begun to complete it could not be done: it goes on.
    pub(super) fn goes_on(&self, why: String) {
        let mut state = self.state();
        state.state = JobState::Ready;
        state.error = Some(why);
        self.changed.notify_all();
    }

    /// Whether it waits between two attempts to complete it: then it can be cancelled.
    pub(super) fn pauses(&self, pauses: bool) {
        self.state().pauses = pauses;
    }

    /// Waits for so long, unless somebody wants it to end.
    pub(super) fn rests(&self, for_so_long: Duration) {
        let rest = self.changed.wait_timeout_while(self.state(), for_so_long, |state| !state.is_cancelled);
        drop(rest);
    }

    /// It is over, and cannot end yet.
    pub(super) fn waits(&self, why: String) {
        self.state().error = Some(why);
    }

    pub(super) fn ends(&self, ended: Result<(), String>) {
        self.parts.iter().for_each(Part::end);
        let mut state = self.state();
        state.is_over = true;
        (state.state, state.error) = match ended {
            Ok(()) => (JobState::Done, None),
            Err(_) if state.is_cancelled => (JobState::Cancelled, None),
            Err(why) => (JobState::Failed, Some(why)),
        };
        state.ended = Some(now());
        self.changed.notify_all();
    }

    /// Waits until it has ended. False if that takes longer.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let ends = self.changed.wait_timeout_while(self.state(), patience, |state| !state.state.has_ended());
        let (state, _) = ends.unwrap_or_else(PoisonError::into_inner);
        state.state.has_ended()
    }

    /// Ends it without a copy. What it has under way ends by itself.
    ///
    /// # Errors
    /// It is completing.
    pub(super) fn cancel(&self) -> Result<(), ApiError> {
        let shown = self.shown();
        let mut state = self.state();
        if state.state == JobState::Completing && !state.pauses {
            drop(state);
            return shown.may_cancel();
        }
        state.is_cancelled = true;
        drop(state);
        self.stop();
        Ok(())
    }

    /// As above, also while it completes, since the daemon ends.
    pub(super) fn stop(&self) {
        self.state().is_cancelled = true;
        self.changed.notify_all();
        self.parts.iter().for_each(|part| part.tell(Copier::cancel));
    }

    /// One of its copies has failed: the others are worth nothing.
    pub(super) fn give_up(&self) {
        self.parts.iter().for_each(|part| part.tell(Copier::cancel));
    }

    /// Lets its disk move to the target.
    ///
    /// # Errors
    /// It cannot now.
    pub(super) fn complete(&self) -> Result<(), ApiError> {
        self.shown().may_complete()?;
        self.completes(&mut self.state());
        Ok(())
    }

    /// Bytes that are copied a second at most; the copies of a job share them.
    pub(super) fn set_limit(&self, bytes_per_second: Option<u64>) {
        let share = bytes_per_second.map(|limit| (limit / self.parts.len().max(1) as u64).max(1));
        let mut state = self.state();
        state.limit_bytes_per_second = bytes_per_second;
        self.parts.iter().for_each(|part| part.tell(|copier| copier.set_limit(share)));
    }

    pub(super) fn limit(&self) -> Option<u64> {
        self.state().limit_bytes_per_second
    }

    pub(super) fn shown(&self) -> api::Job {
        let disks: Vec<_> = self.parts.iter().map(|part| part.shown(self.kind)).collect();
        let sum = |of: fn(&api::JobDisk) -> u64| disks.iter().map(of).sum::<u64>();
        let (done_bytes, total_bytes) = (sum(|disk| disk.done_bytes), sum(|disk| disk.total_bytes));
        let mut state = self.state();
        let bytes_per_second = if state.state.has_ended() { 0 } else { state.rate(done_bytes) };
        let left_bytes = total_bytes.saturating_sub(done_bytes);
        let goes = state.state == JobState::Running && bytes_per_second > 0;
        api::Job {
            id: self.id,
            kind: self.kind,
            state: state.state,
            done_bytes,
            total_bytes,
            bytes_per_second,
            seconds_left: goes.then(|| left_bytes.div_ceil(bytes_per_second)),
            limit_bytes_per_second: state.limit_bytes_per_second,
            error: state.error.clone(),
            started: self.started,
            ended: state.ended,
            disks,
        }
    }
}

impl State {
    /// Bytes a second since the oldest sample that is not too old.
    fn rate(&mut self, done_bytes: u64) -> u64 {
        let now = Instant::now();
        while self.samples.len() > 1 && self.samples.front().is_some_and(|(at, _)| now - *at > RATE_OVER) {
            self.samples.pop_front();
        }
        let rate = self.samples.front().map_or(0, |(since, before)| {
            let nanoseconds = (now - *since).as_nanos().max(1);
            (u128::from(done_bytes.saturating_sub(*before)) * 1_000_000_000 / nanoseconds) as u64
        });
        if self.samples.back().is_none_or(|(at, _)| now - *at >= SAMPLE_EVERY) {
            self.samples.push_back((now, done_bytes));
        }
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_commit_can_be_cancelled_between_its_attempts_alone() {
        let (events, told) = channel();
        let job = Job::new(1, JobKind::Commit, Vec::new(), events);
        job.is_ready();
        assert!(matches!(told.try_recv(), Ok(Event::Complete)));
        job.cancel().unwrap_err();
        job.pauses(true);
        job.pauses(false);
        job.cancel().unwrap_err();
        assert!(!job.is_cancelled());
        job.pauses(true);
        job.cancel().unwrap();
        assert!(job.is_cancelled());
        // Nobody rests who is to end.
        job.rests(Duration::MAX);
        job.ends(Err("cancelled".to_owned()));
        assert_eq!(job.shown().state, JobState::Cancelled);
    }
}
