//! The storage: requests to an image, whatever has become of that.

use crate::busy::Busy;
use crate::connection::{Connection, Opened, REFUSED};
use crate::error::RbdError;
use crate::ffi::{Cluster, Flight, Library, Parked, Ready};
use crate::open::{Expected, client, open};
use crate::openings::{OPENINGS, Place, Waits};
use crate::options::RbdOptions;
use crate::room;
use crate::spec::Spec;
use crate::was::Was;
use engine::{Completion, Io, Token, Ways};
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use storage::kit::{Jobs, ON_THE_SPOT_MAX, WORK, check_growth};
use storage::{
    Action, Description, Execution, Handed, Kind as _, Link, Operation, Remote, Step, Storage, StorageError, Task,
};

/// Smallest block that an OSD of today writes without reading it first (`bluestore_min_alloc_size`).
const PHYSICAL_BLOCK_BYTES: u32 = 4096;
/// How long a cluster may take to open an image. A monitor that does not answer is told of before.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);
/// How long it holds that another program could read its configuration: guests do not wait for that to be found again.
const COULD_GO: Duration = Duration::from_secs(30);

/// An image. Dropped, it waits for the cluster: not on a worker.
pub struct RbdStorage {
    connection: Arc<Connection>,
    jobs: Jobs,
    spec: Spec,
    /// When it was found last that another program could read what it needs to open it.
    could_go: Mutex<Option<Instant>>,
    /// The last error that was told of, by its number: others of it are as many as requests.
    told: AtomicI32,
}

/// Bytes of one read or write, at most.
const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// What it keeps of a request for each object that this is about.
const OBJECT_COST_BYTES: u64 = 1024;

impl RbdStorage {
    /// Connects to the cluster, and opens the image, with its lock if it is to be written. Waits for the cluster, for a while: not on a worker.
    ///
    /// # Errors
    /// One line that names the field and the fix.
    pub fn open(options: &RbdOptions) -> Result<RbdStorage, RbdError> {
        let spec = || options.spec().to_string();
        let client = client(Library::get()?, options)?;
        let place = Place { monitors: client.setting("mon_host").unwrap_or_default(), spec: options.spec() };
        let turn = OPENINGS.begin(place.clone(), Waits::Asker)?;
        room::look(OPENINGS.connecting()).map_err(|why| RbdError::NoRoom { spec: spec(), why })?;
        // Whoever has no rights on OSDs, and whoever comes while they are down, waits without end in librbd.
        let (tell, told) = channel();
        let (asked, wanted) = (options.clone(), Arc::new(()));
        let is_wanted = Arc::downgrade(&wanted);
        let open = move || {
            let _busy = Busy::new();
            let opened = RbdStorage::open_here(&asked, client, &|| is_wanted.strong_count() > 0);
            if is_wanted.strong_count() == 0 {
                // Closed at once, which waits for the cluster, too.
                drop(opened);
                return drop(turn);
            }
            // Before whoever waits is told, who may open it once more.
            drop(turn);
            drop(tell.send(opened));
        };
        let started = Builder::new().name("rbd-open".to_owned()).spawn(open);
        started.map_err(|source| RbdError::Thread { spec: spec(), source })?;
        told.recv_timeout(OPEN_PATIENCE).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                OPENINGS.give_up(&place);
                Err(RbdError::Late { spec: spec(), user: options.user.clone(), seconds: OPEN_PATIENCE.as_secs() })
            }
            RecvTimeoutError::Disconnected => Err(RbdError::Vanished { spec: spec() }),
        })
    }

    fn open_here(options: &RbdOptions, client: Cluster, is_wanted: &dyn Fn() -> bool) -> Result<RbdStorage, RbdError> {
        let image = open(options, client, &Expected::Anything, is_wanted)?;
        let (spec, read_only) = (options.spec(), options.read_only());
        let about = Description {
            kind: "rbd",
            target: spec.to_string(),
            read_only,
            // Ceph's servers have a cache, this host has none of it.
            direct: true,
            block_size_bytes: 512,
            physical_block_bytes: PHYSICAL_BLOCK_BYTES,
            optimal_io_bytes: u32::try_from(image.object_bytes).unwrap_or(0),
            discard: !read_only,
            discard_granularity_bytes: image.discard_bytes,
            write_zeroes: !read_only,
            execution: Execution::Auto,
            // Handed over on the worker, whatever librbd does then.
            execution_chosen: Execution::Inline,
        };
        WORK.prepare();
        let (opened, jobs) = (Opened::of(image, &spec, read_only)?, Jobs::on(&WORK));
        Ok(RbdStorage::through(Connection::to(opened, options, about, &jobs), jobs))
    }

    /// Goes on with what the program before this one has had open. It is opened again, and requests wait for that.
    pub(crate) fn adopt(options: &RbdOptions, was: Was) -> Result<RbdStorage, RbdError> {
        WORK.prepare();
        let (spec, jobs) = (options.spec(), Jobs::on(&WORK));
        let connection = Connection::again(was, options, &jobs);
        let connection = connection.map_err(|source| RbdError::Thread { spec: spec.to_string(), source })?;
        Ok(RbdStorage::through(connection, jobs))
    }

    fn through(connection: Arc<Connection>, jobs: Jobs) -> RbdStorage {
        let spec = connection.options().spec();
        RbdStorage { connection, jobs, spec, could_go: Mutex::default(), told: AtomicI32::new(0) }
    }

    /// Bytes that librbd keeps of a request until it has ended.
    fn cost_bytes(&self, task: &Task) -> u64 {
        let (_, bytes) = task.extent();
        let objects = bytes / u64::from(self.connection.about().optimal_io_bytes).max(1);
        task.bytes() + objects * OBJECT_COST_BYTES
    }

    /// Hands `operation` on what the task has to librbd, or has it wait until there is an image.
    fn hand_on(&self, task: &mut Task, operation: Operation, token: Token, io: &mut Io<'_>) -> Step {
        // What is written is copied. A worker's other rings do not wait for much of that.
        let is_long = operation.action() == Action::Write && task.bytes() > ON_THE_SPOT_MAX && !io.may_block();
        let cost_bytes = if operation == Operation::Flush { 0 } else { self.cost_bytes(task) };
        let follows = task.follows.then(|| task.state.of::<Flight>().image());
        let parked = Parked { ready: Ready::of(task, operation), reply: io.reply_by(Ways::THREAD, token), follows };
        self.connection.go((cost_bytes, parked), |opened, Parked { ready, reply, .. }, permit| {
            if is_long {
                self.jobs.go(move || ready.submit(&opened.live.image, reply, permit));
            } else {
                ready.submit(&opened.live.image, reply, permit);
            }
        });
        Step::Pending
    }

    /// Looks whether another program could read what it needs to open the image. It is asked twice, and the second time guests wait.
    fn could_go(&self) -> Result<(), RbdError> {
        let mut could_go = self.could_go.lock().unwrap_or_else(PoisonError::into_inner);
        if could_go.is_none_or(|at| at.elapsed() > COULD_GO) {
            client(Library::get()?, self.connection.options())?;
            *could_go = Some(Instant::now());
        }
        Ok(())
    }

    /// Says what has failed, once for each kind of error.
    fn failed(&self, action: Action, errno: i32) -> StorageError {
        let error = io::Error::from_raw_os_error(errno);
        if self.told.swap(errno, Ordering::Relaxed) != errno {
            tracing::error!(image = %self.spec, %action, %error, "an image has failed");
        }
        match over(errno) {
            Some(why) => StorageError::Failed { action, reason: format!("{}: {why}", self.spec) },
            None => StorageError::Io { action, source: error },
        }
    }
}

impl Storage for RbdStorage {
    fn describe(&self) -> Description {
        self.connection.about().clone()
    }

    fn capacity_bytes(&self) -> u64 {
        self.connection.capacity_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let operation = task.operation;
        // What is not there any more reads as zeroes, or as what has come later.
        if self.connection.opened().is_some_and(|opened| opened.live.is_gone()) {
            return Step::Done(Err(StorageError::errno(operation.action(), libc::EIO)));
        }
        match task.check(self.capacity_bytes(), self.connection.about().read_only) {
            // librbd takes no empty list.
            Ok((_, 0)) if operation != Operation::Flush => return Step::Done(Ok(())),
            Ok((_, bytes)) if task.bytes() > 0 && bytes > REQUEST_BYTES_MAX => {
                return Step::Done(Err(StorageError::errno(operation.action(), libc::EINVAL)));
            }
            Ok(_) => {}
            Err(error) => return Step::Done(Err(error)),
        }
        task.state.of::<Flight>().flushing = None;
        self.hand_on(task, operation, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let (operation, action) = (task.operation, task.operation.action());
        let opened = self.connection.opened();
        let flight = task.state.of::<Flight>();
        let is_its_own = |opened: &Opened| opened.live.image.number == flight.image();
        let is_gone = |opened: &Opened| {
            opened.live.is_gone() || is_its_own(opened) && opened.live.is_loss(action, completion.result)
        };
        if opened.as_deref().is_some_and(is_gone) {
            return Step::Done(Err(StorageError::errno(action, libc::EIO)));
        }
        let Ok(bytes) = u64::try_from(completion.result) else {
            let errno = completion.result.saturating_neg();
            // It has changed nothing then, and is done again.
            if flight.flushing.is_none()
                && let Some(why) = over(errno)
                && self.connection.refused(flight.image(), why)
            {
                return self.hand_on(task, operation, completion.token, io);
            }
            if action == Action::Flush {
                // The guest is told by this.
                self.connection.takes_loss();
            }
            return Step::Done(Err(self.failed(action, errno)));
        };
        let number = flight.image();
        // What a cache has had of it is gone, or another image was flushed.
        let is_elsewhere = flight.flushing.is_some_and(|written| written != number);
        if action != Action::Read && self.connection.is_lost(number) || is_elsewhere {
            return Step::Done(Err(self.failed(action, libc::EIO)));
        }
        let is_cached = opened.is_some_and(|opened| opened.cached);
        if is_cached && operation.is_durable() && action != Action::Flush && flight.flushing.is_none() {
            flight.flushing = Some(number);
            return self.hand_on(task, Operation::Flush, completion.token, io);
        }
        // It was flushed, and what a cache has had of the image before it was not.
        if action == Action::Flush && self.connection.takes_loss() {
            return Step::Done(Err(self.failed(action, libc::EIO)));
        }
        // Somebody has made the image smaller meanwhile: librbd reads and writes nothing behind its end.
        let is_outside = task.check(self.capacity_bytes(), self.connection.about().read_only).is_err();
        if action == Action::Read && bytes < task.bytes() || is_outside {
            return Step::Done(Err(self.failed(action, libc::EIO)));
        }
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let target = self.spec.to_string();
        let refused =
            |reason: String| StorageError::Grow { target: target.clone(), asked_bytes: capacity_bytes, reason };
        let opened = self.connection.opened().ok_or_else(|| refused(self.connection.not_open()))?;
        let live = &opened.live;
        let _in_order = live.in_order();
        // librbd would make it smaller without a word: what others have made of it counts.
        let present_bytes = live.look_at_size().map_err(|errno| refused(errno.words().to_string()))?;
        check_growth(&target, present_bytes, capacity_bytes)?;
        if capacity_bytes == present_bytes {
            live.set_capacity(capacity_bytes);
            return Ok(());
        }
        if self.connection.about().read_only {
            return Err(refused("it is read-only".to_owned()));
        }
        live.image.resize(capacity_bytes).map_err(|errno| refused(errno.words().to_string()))?;
        live.set_capacity(capacity_bytes);
        Ok(())
    }

    fn hand_over(&self) -> io::Result<Handed> {
        let cannot = |why: &str| io::Error::other(format!("{}: {why}", self.spec));
        let opened = self.connection.opened().ok_or_else(|| cannot(&self.connection.not_open()))?;
        if opened.live.is_gone() {
            return Err(cannot("what is served was removed: remove its export and its disk first"));
        }
        if opened.cached {
            let why = "what librbd has in its cache, which its pool or the image has turned on (`rbd config image get`), does not go along";
            return Err(cannot(&format!("{why}: turn it off, or stop the daemon and start the new one")));
        }
        self.could_go().map_err(|error| cannot(&error.to_string()))?;
        let was = opened.live.was(self.connection.about().clone());
        Ok(Handed { again: Some(was.write()?), ..Handed::empty(was.bytes) })
    }

    fn remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        match execution {
            Execution::Auto | Execution::Inline => Ok(()),
            Execution::Uring | Execution::Pool(_) => Err(StorageError::Execution { execution, kind: "rbd" }),
        }
    }
}

impl Remote for RbdStorage {
    fn link(&self) -> Option<Link> {
        Some(self.connection.link())
    }

    fn open_again(&self) -> io::Result<()> {
        self.connection.open_again()
    }

    fn end_waiting(&self, for_good: bool) {
        self.connection.end_waiting(for_good);
    }
}

/// Why nothing that goes to the image succeeds any more, if this is what librbd says then.
fn over(errno: i32) -> Option<&'static str> {
    match errno {
        libc::ESHUTDOWN => Some(REFUSED),
        libc::EROFS => Some("its lock was taken away"),
        _ => None,
    }
}
