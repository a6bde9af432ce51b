//! The storage: an image that is open.

use crate::again::{self, Again};
use crate::budget::Budget;
use crate::connection::{Connection, Opened, Waiting};
use crate::error::RbdError;
use crate::ffi::{Cluster, Flight, Library, Parked, Ready};
use crate::open::{client, open};
use crate::openings::{OPENINGS, Place};
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
use storage::{Action, Description, Execution, Handed, Kind as _, Operation, Step, Storage, StorageError, Task};

/// Smallest block that an OSD of today writes without reading it first (`bluestore_min_alloc_size`).
const PHYSICAL_BLOCK_BYTES: u32 = 4096;
/// How long a cluster may take to open an image. A monitor that does not answer is told of before.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);
/// How long it holds that another program could read its configuration: guests do not wait for that to be found again.
const COULD_GO: Duration = Duration::from_secs(30);

/// An image. Dropped, it waits for the cluster: not on a worker.
pub struct RbdStorage {
    connection: Arc<Connection>,
    budget: Arc<Budget<Parked>>,
    jobs: Jobs,
    spec: Spec,
    /// What guests are told of it.
    about: Description,
    options: RbdOptions,
    /// When it was found last that another program could read what it needs to open it.
    could_go: Mutex<Option<Instant>>,
    /// The last error that was told of, by its number: others of it are as many as requests.
    told: AtomicI32,
    _again: Option<Again>,
}

/// Bytes that librbd keeps of an image's requests, at most: a copy of each write, and what it has read.
const KEPT_BYTES_MAX: u64 = 128 << 20;
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
        let turn = OPENINGS.begin(place.clone())?;
        room::look(OPENINGS.connecting()).map_err(|why| RbdError::NoRoom { spec: spec(), why })?;
        // Whoever has no rights on OSDs, and whoever comes while they are down, waits without end in librbd.
        let (tell, told) = channel();
        let (asked, wanted) = (options.clone(), Arc::new(()));
        let is_wanted = Arc::downgrade(&wanted);
        let open = move || {
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
        let image = open(options, client, None, is_wanted)?;
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
        let opened = Opened::of(image, &spec, read_only)?;
        Ok(RbdStorage::through(Connection::to(opened), options, about))
    }

    /// Goes on with what the program before this one has had open. It is opened again, and requests wait for that.
    pub(crate) fn adopt(options: &RbdOptions, was: Was, capacity_bytes: u64) -> Result<RbdStorage, RbdError> {
        WORK.prepare();
        let mut storage = RbdStorage::through(Connection::awaited(capacity_bytes), options, was.about.clone());
        let budget = storage.budget.clone();
        let go = move |opened: &Opened, (bytes, parked): Waiting| {
            if let Some((Parked { ready, reply }, permit)) = budget.ask(bytes, parked) {
                ready.submit(&opened.live.image, reply, permit);
            }
        };
        let again = again::begin(options, was, &storage.connection, go);
        let spec = || options.spec().to_string();
        storage._again = Some(again.map_err(|source| RbdError::Thread { spec: spec(), source })?);
        Ok(storage)
    }

    fn through(connection: Connection, options: &RbdOptions, about: Description) -> RbdStorage {
        let (connection, jobs) = (Arc::new(connection), Jobs::on(&WORK));
        let (image, elsewhere) = (Arc::downgrade(&connection), jobs.clone());
        let budget = Budget::new(KEPT_BYTES_MAX, move |Parked { ready, reply }, permit| {
            let image = image.clone();
            // Whose turn has come is seen by a thread of librbd's, among others.
            elsewhere.go(move || {
                // Whoever has the request keeps it.
                if let Some(opened) = image.upgrade().as_deref().and_then(Connection::opened) {
                    ready.submit(&opened.live.image, reply, permit);
                }
            });
        });
        let (spec, options) = (options.spec(), options.clone());
        let (told, could_go) = (AtomicI32::new(0), Mutex::default());
        RbdStorage { connection, budget, jobs, spec, about, options, could_go, told, _again: None }
    }

    /// Bytes that librbd keeps of a request until it has ended.
    fn cost_bytes(&self, task: &Task) -> u64 {
        let (_, bytes) = task.extent();
        let objects = bytes / u64::from(self.about.optimal_io_bytes).max(1);
        task.bytes() + objects * OBJECT_COST_BYTES
    }

    /// Why there is no image behind it.
    fn not_open(&self) -> &'static str {
        if self.connection.is_lost() {
            "the image is lost to its guest, as the log says: remove its export and its disk, and add them again"
        } else {
            "the image is being opened again, as the log says: try again when it is"
        }
    }

    /// Looks whether another program could read what it needs to open the image. It is asked twice, and the second time guests wait.
    fn could_go(&self) -> Result<(), RbdError> {
        let mut could_go = self.could_go.lock().unwrap_or_else(PoisonError::into_inner);
        if could_go.is_none_or(|at| at.elapsed() > COULD_GO) {
            client(Library::get()?, &self.options)?;
            *could_go = Some(Instant::now());
        }
        Ok(())
    }

    /// Says what has failed, once for each kind of error.
    fn failed(&self, action: Action, errno: i32) -> StorageError {
        let error = io::Error::from_raw_os_error(errno);
        if self.told.swap(errno, Ordering::Relaxed) != errno {
            let what = if is_over(errno) {
                "another client has taken the lock of an image away"
            } else {
                "an image has failed"
            };
            tracing::error!(image = %self.spec, %action, %error, "{what}");
        }
        if is_over(errno) {
            let reason = format!("another client has taken the lock of {} away", self.spec);
            return StorageError::Failed { action, reason };
        }
        StorageError::Io { action, source: error }
    }
}

impl Storage for RbdStorage {
    fn describe(&self) -> Description {
        self.about.clone()
    }

    fn capacity_bytes(&self) -> u64 {
        self.connection.capacity_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let operation = task.operation;
        let opened = self.connection.opened();
        if opened.map_or_else(|| self.connection.is_lost(), |opened| opened.live.is_gone()) {
            return Step::Done(Err(StorageError::errno(operation.action(), libc::EIO)));
        }
        match task.check(self.capacity_bytes(), self.about.read_only) {
            // librbd takes no empty list.
            Ok((_, 0)) if operation != Operation::Flush => return Step::Done(Ok(())),
            Ok((_, bytes)) if task.bytes() > 0 && bytes > REQUEST_BYTES_MAX => {
                return Step::Done(Err(StorageError::errno(operation.action(), libc::EINVAL)));
            }
            Ok(_) => {}
            Err(error) => return Step::Done(Err(error)),
        }
        task.state.of::<Flight>().flushing = false;
        // What is written is copied. A worker's other rings do not wait for much of that.
        let is_long = operation.action() == Action::Write && task.bytes() > ON_THE_SPOT_MAX && !io.may_block();
        let parked = Parked { ready: Ready::of(task, operation), reply: io.reply_by(Ways::THREAD, token) };
        let mut request = Some((self.cost_bytes(task), parked));
        if opened.is_none() {
            request = request.and_then(|request| self.connection.wait(request));
        }
        // It may have been opened just now. Where it is lost the reply says so as it goes.
        let (Some((bytes, parked)), Some(opened)) = (request, self.connection.opened()) else { return Step::Pending };
        match self.budget.ask(bytes, parked) {
            Some((Parked { ready, reply }, permit)) if is_long => {
                let live = opened.live.clone();
                self.jobs.go(move || ready.submit(&live.image, reply, permit));
            }
            Some((Parked { ready, reply }, permit)) => ready.submit(&opened.live.image, reply, permit),
            None => {}
        }
        Step::Pending
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let (operation, action) = (task.operation, task.operation.action());
        // Without an image it has waited for one in vain.
        let opened = self.connection.opened();
        let is_there = |opened: &&Opened| {
            // What is not there any more reads as zeroes, or as what has come later.
            !opened.live.is_gone() && !opened.live.is_loss(action, completion.result)
        };
        let Some(opened) = opened.filter(is_there) else {
            return Step::Done(Err(StorageError::errno(action, libc::EIO)));
        };
        let Ok(bytes) = u64::try_from(completion.result) else {
            return Step::Done(Err(self.failed(action, completion.result.saturating_neg())));
        };
        let flight = task.state.of::<Flight>();
        if opened.cached && operation.is_durable() && action != Action::Flush && !flight.flushing {
            flight.flushing = true;
            let (ready, reply) = (Ready::of(task, Operation::Flush), io.reply_by(Ways::THREAD, completion.token));
            if let Some((Parked { ready, reply }, permit)) = self.budget.ask(0, Parked { ready, reply }) {
                ready.submit(&opened.live.image, reply, permit);
            }
            return Step::Pending;
        }
        // Somebody has made the image smaller meanwhile: librbd reads nothing behind its end.
        if action == Action::Read && bytes < task.bytes() {
            return Step::Done(Err(self.failed(action, libc::EIO)));
        }
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let target = self.spec.to_string();
        let refused =
            |reason: String| StorageError::Grow { target: target.clone(), asked_bytes: capacity_bytes, reason };
        let live = match self.connection.opened() {
            Some(opened) => &opened.live,
            None => return Err(refused(self.not_open().to_owned())),
        };
        let _in_order = live.in_order();
        // librbd would make it smaller without a word: what others have made of it counts.
        let present_bytes = live.look_at_size().map_err(|errno| refused(errno.words().to_string()))?;
        check_growth(&target, present_bytes, capacity_bytes)?;
        if capacity_bytes == present_bytes {
            live.set_capacity(capacity_bytes);
            return Ok(());
        }
        if self.about.read_only {
            return Err(refused("it is read-only".to_owned()));
        }
        live.image.resize(capacity_bytes).map_err(|errno| refused(errno.words().to_string()))?;
        live.set_capacity(capacity_bytes);
        Ok(())
    }

    fn hand_over(&self) -> io::Result<Handed> {
        let cannot = |why: &str| io::Error::other(format!("{}: {why}", self.spec));
        let opened = self.connection.opened().ok_or_else(|| cannot(self.not_open()))?;
        if opened.live.is_gone() {
            return Err(cannot("what is served was removed: remove its export and its disk first"));
        }
        if is_over(self.told.load(Ordering::Relaxed)) {
            return Err(cannot("another client has taken its lock away: remove its export and its disk first"));
        }
        self.could_go().map_err(|error| cannot(&error.to_string()))?;
        let again = Some(opened.live.was(self.about.clone()).write()?);
        Ok(Handed { again, ..Handed::empty(self.capacity_bytes()) })
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        match execution {
            Execution::Auto | Execution::Inline => Ok(()),
            Execution::Uring | Execution::Pool(_) => Err(StorageError::Execution { execution, kind: "rbd" }),
        }
    }
}

/// Whether this is what librbd says to whoever has the lock no more.
fn is_over(errno: i32) -> bool {
    matches!(errno, libc::ESHUTDOWN | libc::EROFS)
}
