//! A storage that changes hands: open while a guest runs, and known by what could be seen of it while none does.
//!
//! When a guest migrates, two daemons serve one image, one after the other. Each has looked at it when it was told to serve it, without
//! a lock. The one whose guest runs has it open, with its locks, its tables and its cache; when the guest's rings have stopped it brings
//! everything to stable storage and closes it, and the other one opens it as it is then. So there is nothing in memory that could be
//! old, and no moment at which both write. A volume writes its log back first, so that the other one replays nothing.

mod closing;
mod taking;

pub use closing::CLOSE_THREAD;

use crate::StorageSpec;
use closing::{End, close, closing_by, ended_well, unclosed, writing};
use engine::{Completion, Io, Solo, Token};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use storage::kit::{check_makes_files, check_writable, forget_cached, wait_for};
use storage::{
    Access, Action, Custody, Description, Execution, Handed, Link, LinkState, Look, OPENING_UNKNOWN, OpenError, Opened,
    Operation, Remote, Step, Storage, StorageError, Task, VolumeControl, VolumeStatus,
};
use values::SyncMode;

/// How long the other side may take to give it up, while this side's frontend waits: it has stopped its rings before.
const TAKE_PATIENCE: Duration = Duration::from_secs(5);
/// How long workers may take to let go of it.
const GIVE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a volume that is written back takes to be closed where its disk answers.
const CLOSED_SOON: Duration = Duration::from_secs(1);
/// How long it takes to see that there is nothing to be written back.
const WRITTEN_BACK_SOON: Duration = Duration::from_millis(100);
/// How long somebody waits who changes something else of it, while others may wait for him.
const CHANGE_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// The one that is kept, and the one of whoever looks.
const HELD_BY_US: usize = 2;

/// See the module.
struct Migratable {
    /// Held while it is taken or given up. In it, the end of a volume that is being closed, until it was told to whoever gives it up.
    changing: Mutex<Option<End>>,
    state: Mutex<State>,
    is_volume: bool,
}

struct State {
    /// What opens it.
    spec: StorageSpec,
    has: Has,
    /// The kernel's number of what kept something from stable storage. It says that once, and the next flush succeeds.
    failed: Option<i32>,
    /// It was lost to its guest when it was given up: who has gone on knowing what the disk was like meets errors, until a person says otherwise.
    lost: Option<Lost>,
    /// It was open here, and is not closed in order yet: nobody else can take it. The thread that closes it says when it is.
    is_unclosed: Arc<AtomicBool>,
    /// Which opening that was.
    opening: Arc<AtomicU64>,
}

impl State {
    fn is_unclosed(&self) -> bool {
        self.is_unclosed.load(Ordering::Acquire)
    }
}

/// Since when, and why.
struct Lost {
    since: Instant,
    why: String,
}

enum Has {
    /// What it was when it was last seen, and its size in bytes.
    Seen(Description, u64),
    Open(Arc<dyn Storage>),
}

/// Looks at what `spec` describes, before the process gives up its rights and again when it has: it is opened by its path then.
pub(crate) fn open(spec: &StorageSpec) -> Result<Opened, OpenError> {
    check_access(spec)?;
    look_of(spec)?.look_before()?;
    let spec = spec.clone();
    Ok(Opened::new(spec.clone(), move || {
        let has = seen(&spec)?;
        Ok(Arc::new(Migratable::new(spec, has)))
    }))
}

/// Goes on with what another program has had, or has seen: nothing is looked for, as guests may wait.
pub(crate) fn adopt(spec: &StorageSpec, mut handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
    let has = match handed.seen.take() {
        Some(about) => Has::Seen(about, handed.capacity_bytes),
        None => Has::Open((**spec).adopt(handed)?),
    };
    Ok(Arc::new(Migratable::new(spec.clone(), has)))
}

fn look_of(spec: &StorageSpec) -> Result<&dyn Look, OpenError> {
    spec.migratable().ok_or_else(|| OpenError::Field {
        field: "storage.migratable",
        message: format!("is not for storage `{}`: leave it out", spec.kind()),
    })
}

/// Checks that a writer could open its files.
fn check_access(spec: &StorageSpec) -> Result<(), OpenError> {
    spec.needs().iter().try_for_each(|need| match need.access {
        Access::Write => check_writable(&need.path),
        access if access.makes_files() => check_makes_files(&need.path),
        _ => Ok(()),
    })
}

/// Looks at it read-only, and checks that a writer could open it.
fn seen(spec: &StorageSpec) -> Result<Has, OpenError> {
    check_access(spec)?;
    let (about, capacity_bytes) = look_of(spec)?.look()?;
    Ok(Has::Seen(promised(about), capacity_bytes))
}

/// The files that are written.
fn written(spec: &StorageSpec) -> impl Iterator<Item = PathBuf> {
    spec.needs().into_iter().filter(|need| need.access == Access::Write).map(|need| need.path)
}

/// What guests are promised before it is open: a discard that a file does not take is left undone.
fn promised(about: Description) -> Description {
    Description { discard: about.discard || matches!(about.kind, "file" | "volume"), ..about }
}

impl Migratable {
    fn new(spec: StorageSpec, has: Has) -> Migratable {
        let is_volume = spec.migratable().and_then(Look::volume).is_some();
        let state = State { spec, has, failed: None, lost: None, is_unclosed: Arc::default(), opening: Arc::default() };
        Migratable { changing: Mutex::default(), state: Mutex::new(state), is_volume }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, Option<End>> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for whoever must not wait for as long as it takes to open it, or to bring everything to stable storage.
    fn changing_soon(&self) -> Option<MutexGuard<'_, Option<End>>> {
        let end = Instant::now() + CHANGE_PATIENCE;
        loop {
            match self.changing.try_lock() {
                Ok(changing) => return Some(changing),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => return None,
                Err(TryLockError::WouldBlock) => sleep(LOOK_AGAIN_AFTER),
            }
        }
    }

    fn synced(&self, sync: impl FnOnce(&dyn VolumeControl) -> Result<(), StorageError>) -> Result<(), StorageError> {
        let source = || io::Error::other("it is not held: ask the daemon whose guest runs");
        let open = self.held().ok_or_else(|| StorageError::Io { action: Action::Flush, source: source() })?;
        open.volume().map_or(Ok(()), sync)
    }

    /// Waits for the end of a close, `by` then at the latest: it goes on by itself.
    fn ended(&self, closing: &mut Option<End>, by: Instant) -> Result<bool, StorageError> {
        let Some(end) = closing else { return Ok(false) };
        let ended = match end.recv_timeout(by.saturating_duration_since(Instant::now())) {
            Ok(ended) => ended,
            Err(RecvTimeoutError::Timeout) => return Err(unclosed(io::ErrorKind::TimedOut, "it is not closed yet")),
            Err(RecvTimeoutError::Disconnected) => Err(unclosed(io::ErrorKind::Other, "what closed it has panicked")),
        };
        *closing = None;
        ended.map(|()| true)
    }

    /// Sees to the close of what was open here, and begins it anew where it has failed. Whether there was anything to be closed.
    fn closed(&self, closing: &mut Option<End>, by: Instant) -> Result<bool, StorageError> {
        if closing.is_none() {
            let (spec, target, is_unclosed, opening) = match &*self.state() {
                state @ State { spec, has: Has::Seen(about, _), is_unclosed, opening, .. } if state.is_unclosed() => {
                    (spec.clone(), about.target.clone(), is_unclosed.clone(), opening.clone())
                }
                _ => return Ok(false),
            };
            let close = move || {
                let look = spec.migratable().ok_or_else(|| io::ErrorKind::Unsupported.into());
                // Another host may have gone on with it.
                let left = written(&spec).try_for_each(|path| forget_cached(&path));
                look.and_then(|look| left.and_then(|()| look.close_left(&opening)).map_err(io::Error::other))
                    .map_err(writing)
            };
            *closing = Some(closing_by(target, by, is_unclosed, close)?);
        }
        self.ended(closing, by)
    }

    /// Waits until this process itself lets go of what it closes.
    fn let_go(&self, closing: &mut Option<End>, is_wanted: &dyn Fn() -> bool) -> Result<(), OpenError> {
        let end = Instant::now() + TAKE_PATIENCE;
        loop {
            match self.ended(closing, Instant::now() + LOOK_AGAIN_AFTER) {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    // Whoever gives it up is to hear of it all the same, unless it is opened.
                    *closing = Some(ended_well());
                    return Ok(());
                }
                // What fails is found by whoever opens it.
                Err(_) if closing.is_none() => return Ok(()),
                Err(_) => {}
            }
            let path = PathBuf::from(self.describe().target);
            if Instant::now() >= end {
                return Err(OpenError::Closing { path, seconds: TAKE_PATIENCE.as_secs() });
            }
            if !is_wanted() {
                return Err(OpenError::Unwanted { path });
            }
        }
    }

    /// It may have been opened, and not be closed in order: that is looked at when it is given up.
    fn leave(&self, opening: u64) {
        let state = self.state();
        state.opening.store(opening, Ordering::Relaxed);
        state.is_unclosed.store(self.is_volume, Ordering::Release);
    }

    /// No request is for the storage itself.
    fn refused(task: &Task) -> Step {
        Step::Done(Err(StorageError::errno(task.operation.action(), libc::ENODEV)))
    }
}

impl Custody for Migratable {
    fn take(&self, is_wanted: &dyn Fn() -> bool) -> Result<Arc<dyn Storage>, OpenError> {
        let mut closing = self.changing();
        let (spec, before_bytes) = {
            let state = self.state();
            match &state.has {
                Has::Open(open) => return Ok(open.clone()),
                Has::Seen(about, _) if let Some(Lost { why, .. }) = &state.lost => {
                    return Err(OpenError::Lost { path: PathBuf::from(&about.target), why: why.clone() });
                }
                Has::Seen(_, capacity_bytes) => (state.spec.clone(), *capacity_bytes),
            }
        };
        self.let_go(&mut closing, is_wanted)?;
        let mut begun = false;
        let open = taking::opened(&spec, &mut begun, is_wanted).inspect_err(|_| {
            if begun {
                self.leave(OPENING_UNKNOWN);
            }
        })?;
        let (path, present_bytes) = (open.describe().target, open.capacity_bytes());
        if present_bytes < before_bytes {
            self.leave(open.volume().map_or(OPENING_UNKNOWN, VolumeControl::opening));
            return Err(OpenError::Shrunk { path: path.into(), present_bytes, before_bytes });
        }
        tracing::info!(path, "the image is this daemon's: a guest runs");
        let mut state = self.state();
        // It may have been changed since it was looked for.
        if let (Some(volume), Some(status)) = (open.volume(), state.volume_unheld()) {
            volume.set_sync(status.sync);
        }
        state.has = Has::Open(open.clone());
        *closing = None;
        state.is_unclosed.store(false, Ordering::Release);
        Ok(open)
    }

    fn give_up(&self, patience: Duration) -> Result<bool, StorageError> {
        let by = Instant::now() + patience;
        let closed_by = || by.max(Instant::now() + CLOSED_SOON);
        let mut closing = self.changing();
        let Some(open) = self.held() else { return self.closed(&mut closing, closed_by()) };
        let link = open.remote().and_then(Remote::link);
        let is = |state| link.as_ref().is_some_and(|link| link.state == state);
        if is(LinkState::Opening) {
            // For as long as a cluster is away.
            return Err(unclosed(io::ErrorKind::TimedOut, "it is being opened again"));
        }
        if let Some(errno) = self.state().failed {
            return Err(StorageError::errno(Action::Flush, errno));
        }
        // What fails there is kept, in the log and in memory, and tried again.
        let write_back = |volume: &dyn VolumeControl| {
            volume.sync_within(by.saturating_duration_since(Instant::now()).max(WRITTEN_BACK_SOON))
        };
        // A sync that somebody else has asked for ends with this one, and lets go of it.
        open.volume().map_or(Ok(()), write_back)?;
        let end = Instant::now() + GIVE_PATIENCE;
        while Arc::strong_count(&open) > HELD_BY_US {
            if Instant::now() >= end {
                return Err(StorageError::errno(Action::Flush, libc::EBUSY));
            }
            sleep(LOOK_AGAIN_AFTER);
        }
        match open.volume() {
            Some(volume) => write_back(volume)?,
            // Nothing of it can be brought anywhere, and what was answered is there.
            None if is(LinkState::Lost) => {}
            // There no error is told once only.
            None if link.is_some() => flush(&*open)??,
            None => flush(&*open)?.inspect_err(|error| self.state().failed = Some(error.raw_errno()))?,
        }
        let (about, capacity_bytes, opening) =
            (promised(open.describe()), open.capacity_bytes(), open.volume().map(VolumeControl::opening));
        let is_volume = opening.is_some();
        // Where there is no thread for it, nothing has changed.
        let (gives, given) = channel::<Arc<dyn Storage>>();
        if is_volume {
            let close = move || given.recv().map_or(Ok(()), close);
            let is_unclosed = self.state().is_unclosed.clone();
            *closing = Some(closing_by(about.target.clone(), closed_by(), is_unclosed, close)?);
        }
        tracing::info!(path = about.target, "the image is given up: no guest runs");
        // Nobody who only looks waits for what comes.
        let kept = {
            let mut state = self.state();
            state.opening.store(opening.unwrap_or(OPENING_UNKNOWN), Ordering::Relaxed);
            state.is_unclosed.store(is_volume, Ordering::Release);
            state.lost = link.filter(|link| link.state == LinkState::Lost).map(|link| Lost {
                since: link.since.and_then(|since| Instant::now().checked_sub(since)).unwrap_or_else(Instant::now),
                why: link.why.unwrap_or_default(),
            });
            std::mem::replace(&mut state.has, Has::Seen(about, capacity_bytes))
        };
        drop(kept);
        if !is_volume {
            // It is closed by this.
            drop(open);
            return Ok(true);
        }
        // It waits for that.
        let _ = gives.send(open);
        self.ended(&mut closing, closed_by())
    }

    fn held(&self) -> Option<Arc<dyn Storage>> {
        match &self.state().has {
            Has::Open(open) => Some(open.clone()),
            Has::Seen(..) => None,
        }
    }

    fn is_held(&self) -> bool {
        let state = self.state();
        state.is_unclosed() || matches!(state.has, Has::Open(_))
    }

    fn is_to_be_given_up(&self) -> bool {
        self.is_held()
            || match self.changing.try_lock() {
                Ok(closing) => closing.is_some(),
                Err(TryLockError::Poisoned(closing)) => closing.into_inner().is_some(),
                // Whoever does not ask again would never hear of it.
                Err(TryLockError::WouldBlock) => true,
            }
    }

    fn is_changing(&self) -> bool {
        matches!(self.changing.try_lock(), Err(TryLockError::WouldBlock))
    }

    fn is_used(&self) -> bool {
        matches!(&self.state().has, Has::Open(open) if Arc::strong_count(open) > 1)
    }
}

/// Of what is held, and on other machines.
impl Remote for Migratable {
    fn link(&self) -> Option<Link> {
        let state = self.state();
        match &state.has {
            Has::Open(open) => open.remote()?.link(),
            Has::Seen(..) => state.lost.as_ref().map(|Lost { since, why }| Link {
                state: LinkState::Lost,
                since: Some(since.elapsed()),
                why: Some(why.clone()),
            }),
        }
    }

    fn open_again(&self) -> io::Result<()> {
        let Some(open) = self.held() else {
            let lost = self.state().lost.take();
            return lost.map(drop).ok_or_else(|| io::Error::other("it is not held: it is opened when a guest runs"));
        };
        let never_lost = || Err(io::Error::other("it is on this machine, and never lost"));
        open.remote().map_or_else(never_lost, Remote::open_again)
    }

    fn end_waiting(&self, for_good: bool) {
        // Not kept meanwhile: whoever lets go of it last closes it.
        if let Has::Open(open) = &self.state().has
            && let Some(remote) = open.remote()
        {
            remote.end_waiting(for_good);
        }
    }
}

/// Dropped, it is closed, as any disk: the process does not end before.
impl Drop for Migratable {
    fn drop(&mut self) {
        let mut closing = std::mem::take(&mut *self.changing());
        let wait = |closing: &mut Option<End>| {
            while closing.is_some() {
                let _ = self.ended(closing, Instant::now() + TAKE_PATIENCE);
            }
        };
        wait(&mut closing);
        // Once more, for what was well again since.
        let _ = self.closed(&mut closing, Instant::now() + TAKE_PATIENCE);
        wait(&mut closing);
        if self.state().is_unclosed() {
            tracing::error!(
                path = self.describe().target,
                "the volume is not closed in order, and no other daemon can take it"
            );
        }
    }
}

/// The outer error is of a flush that nobody has begun.
fn flush(storage: &dyn Storage) -> Result<Result<(), StorageError>, StorageError> {
    let failed = |source| StorageError::Io { action: Action::Flush, source };
    let mut solo = Solo::for_one().map_err(failed)?;
    let mut task = Task::default();
    task.begin(Operation::Flush);
    Ok(wait_for(storage, &mut solo, &mut task).unwrap_or_else(|source| Err(failed(source))))
}

impl Storage for Migratable {
    fn describe(&self) -> Description {
        match &self.state().has {
            Has::Open(open) => promised(open.describe()),
            Has::Seen(about, _) => about.clone(),
        }
    }

    fn capacity_bytes(&self) -> u64 {
        match &self.state().has {
            Has::Open(open) => open.capacity_bytes(),
            Has::Seen(_, capacity_bytes) => *capacity_bytes,
        }
    }

    fn start(&self, task: &mut Task, _token: Token, _io: &mut Io<'_>) -> Step {
        Migratable::refused(task)
    }

    fn resume(&self, task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        Migratable::refused(task)
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let refused = |reason: &str| {
            let target = self.describe().target;
            Err(StorageError::Grow { target, asked_bytes: capacity_bytes, reason: reason.to_owned() })
        };
        let Some(_changing) = self.changing_soon() else { return refused("it is changing hands: try again") };
        match self.held() {
            Some(open) => open.resize(capacity_bytes),
            None => refused("no guest runs, so the image may be another daemon's: try again when one does"),
        }
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        // Another program would not know of it.
        let failed = self.state().failed;
        if let Some(errno) = failed {
            let (target, why) = (self.describe().target, std::io::Error::from_raw_os_error(errno));
            let message =
                format!("{target} could not be flushed ({why}) and is kept: remove its export and its disk first");
            return Err(std::io::Error::other(message));
        }
        if self.state().lost.is_some() {
            let target = self.describe().target;
            return Err(std::io::Error::other(format!(
                "{target} was lost to its guest, which another program would not know of: `vringd ctl disk reopen` first"
            )));
        }
        if self.state().is_unclosed() {
            let target = self.describe().target;
            return Err(std::io::Error::other(format!("{target} is not closed in order yet: try again when it is")));
        }
        match self.held() {
            Some(open) => {
                // Of what is kept though nobody uses it: other guests wait for whether this one's disk answers.
                if Arc::strong_count(&open) <= HELD_BY_US
                    && let Some(volume) = open.volume()
                {
                    volume.sync_within(WRITTEN_BACK_SOON).map_err(|error| {
                        let target = self.describe().target;
                        io::Error::other(format!("{target} is kept, and its disk does not answer in time: {error}"))
                    })?;
                }
                open.hand_over()
            }
            None => Ok(Handed { seen: Some(self.describe()), ..Handed::empty(self.capacity_bytes()) }),
        }
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        let busy = || StorageError::errno(Action::Look, libc::EBUSY);
        let _changing = self.changing_soon().ok_or_else(busy)?;
        if let Some(open) = self.held() {
            open.set_execution(execution)?;
        }
        let mut state = self.state();
        state.spec.set_execution(execution);
        if let Has::Seen(about, _) = &mut state.has {
            *about = about.clone().executed(execution);
        }
        Ok(())
    }

    fn volume(&self) -> Option<&dyn VolumeControl> {
        self.is_volume.then_some(self)
    }

    fn custody(&self) -> Option<&dyn Custody> {
        Some(self)
    }

    fn remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }
}

impl State {
    /// What can be said of a volume while nobody here has it. `None`: it is none.
    fn volume_unheld(&self) -> Option<VolumeStatus> {
        self.spec.migratable().and_then(Look::volume)
    }
}

impl VolumeControl for Migratable {
    fn status(&self) -> VolumeStatus {
        let state = self.state();
        let status = match &state.has {
            Has::Open(open) => open.volume().map(VolumeControl::status),
            Has::Seen(..) => state.volume_unheld(),
        };
        status.unwrap_or_default()
    }

    /// The last one, while nobody here has it.
    fn opening(&self) -> u64 {
        let state = self.state();
        match &state.has {
            Has::Open(open) => open.volume().map_or(0, VolumeControl::opening),
            Has::Seen(..) => state.opening.load(Ordering::Relaxed),
        }
    }

    fn set_sync(&self, mode: SyncMode) {
        let mut state = self.state();
        state.spec.set_sync(mode);
        if let Has::Open(open) = &state.has
            && let Some(volume) = open.volume()
        {
            volume.set_sync(mode);
        }
    }

    fn sync_now(&self) -> Result<(), StorageError> {
        self.synced(|volume| volume.sync_now())
    }

    fn sync_within(&self, patience: Duration) -> Result<(), StorageError> {
        self.synced(|volume| volume.sync_within(patience))
    }

    /// By giving it up.
    fn close(&self) -> Result<(), StorageError> {
        self.give_up(Duration::ZERO).map(drop)
    }
}

#[cfg(test)]
#[path = "migratable_tests.rs"]
mod tests;
