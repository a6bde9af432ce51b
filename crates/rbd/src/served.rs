//! The storage: an image that is open.

use crate::budget::Budget;
use crate::error::RbdError;
use crate::ffi::{Cluster, Flight, Library, Parked, Ready};
use crate::guard;
use crate::live::{Live, Look};
use crate::open::{OpenImage, client, open};
use crate::openings::{OPENINGS, Place};
use crate::options::RbdOptions;
use crate::room;
use crate::spec::Spec;
use engine::{Completion, Io, Token, Ways};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;
use storage::kit::{Jobs, ON_THE_SPOT_MAX, WORK, check_growth};
use storage::{Action, Description, Execution, Handed, Kind as _, Operation, Step, Storage, StorageError, Task};

/// Smallest block that an OSD of today writes without reading it first (`bluestore_min_alloc_size`).
const PHYSICAL_BLOCK_BYTES: u32 = 4096;
/// How long a cluster may take to open an image. A monitor that does not answer is told of before.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);

/// An image that is open. Dropped, it waits for the cluster: not on a worker.
pub struct RbdStorage {
    live: Arc<Live>,
    /// Looks again from time to time.
    look: Option<Look>,
    budget: Arc<Budget<Parked>>,
    jobs: Jobs,
    spec: Spec,
    read_only: bool,
    object_bytes: u32,
    discard_bytes: u32,
    cached: bool,
    /// The last error that was told of, by its number: others of it are as many as requests.
    told: AtomicI32,
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
        let opened = open(options, client, is_wanted)?;
        let OpenImage { object_bytes, discard_bytes, cached, .. } = opened;
        let (spec, read_only) = (options.spec(), options.read_only());
        WORK.prepare();
        let live = Live::of(opened, &spec);
        // Of one that is written the lock keeps everybody off who would remove it.
        let look = if read_only { live.look_often() } else { Ok(None) };
        let look = look.map_err(|source| RbdError::Thread { spec: spec.to_string(), source })?;
        let jobs = Jobs::on(&WORK);
        let (image, elsewhere) = (Arc::downgrade(&live), jobs.clone());
        let budget = Budget::new(KEPT_BYTES_MAX, move |Parked { ready, reply }, permit| {
            let image = image.clone();
            // Whose turn has come is seen by a thread of librbd's, among others.
            elsewhere.go(move || {
                // Whoever has the request keeps it.
                if let Some(live) = image.upgrade() {
                    ready.submit(&live.image, reply, permit);
                }
            });
        });
        Ok(RbdStorage {
            live,
            look,
            budget,
            jobs,
            spec,
            read_only,
            object_bytes: u32::try_from(object_bytes).unwrap_or(0),
            discard_bytes,
            cached,
            told: AtomicI32::new(0),
        })
    }

    /// Bytes that librbd keeps of a request until it has ended.
    fn cost_bytes(&self, task: &Task) -> u64 {
        let (_, bytes) = task.extent();
        let objects = bytes / u64::from(self.object_bytes).max(1);
        task.bytes() + objects * OBJECT_COST_BYTES
    }

    /// Says what has failed, once for each kind of error.
    fn failed(&self, action: Action, errno: i32) -> StorageError {
        let error = std::io::Error::from_raw_os_error(errno);
        let is_over = matches!(errno, libc::ESHUTDOWN | libc::EROFS);
        if self.told.swap(errno, Ordering::Relaxed) != errno {
            let what =
                if is_over { "another client has taken the lock of an image away" } else { "an image has failed" };
            tracing::error!(image = %self.spec, %action, %error, "{what}");
        }
        if is_over {
            let reason = format!("another client has taken the lock of {} away", self.spec);
            return StorageError::Failed { action, reason };
        }
        StorageError::Io { action, source: error }
    }
}

impl Storage for RbdStorage {
    fn describe(&self) -> Description {
        Description {
            kind: "rbd",
            target: self.spec.to_string(),
            read_only: self.read_only,
            // Ceph's servers have a cache, this host has none of it.
            direct: true,
            block_size_bytes: 512,
            physical_block_bytes: PHYSICAL_BLOCK_BYTES,
            optimal_io_bytes: self.object_bytes,
            discard: !self.read_only,
            discard_granularity_bytes: self.discard_bytes,
            write_zeroes: !self.read_only,
            execution: Execution::Auto,
            // Handed over on the worker, whatever librbd does then.
            execution_chosen: Execution::Inline,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.live.capacity_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let operation = task.operation;
        if self.live.is_gone() {
            return Step::Done(Err(StorageError::errno(operation.action(), libc::EIO)));
        }
        match task.check(self.capacity_bytes(), self.read_only) {
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
        match self.budget.ask(self.cost_bytes(task), parked) {
            Some((Parked { ready, reply }, permit)) if is_long => {
                let live = self.live.clone();
                self.jobs.go(move || ready.submit(&live.image, reply, permit));
            }
            Some((Parked { ready, reply }, permit)) => ready.submit(&self.live.image, reply, permit),
            None => {}
        }
        Step::Pending
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let (operation, action) = (task.operation, task.operation.action());
        // What is not there any more reads as zeroes, or as what has come later.
        if self.live.is_gone() || self.live.is_loss(action, completion.result) {
            return Step::Done(Err(StorageError::errno(action, libc::EIO)));
        }
        let Ok(bytes) = u64::try_from(completion.result) else {
            return Step::Done(Err(self.failed(action, completion.result.saturating_neg())));
        };
        let flight = task.state.of::<Flight>();
        if self.cached && operation.is_durable() && action != Action::Flush && !flight.flushing {
            flight.flushing = true;
            let (ready, reply) = (Ready::of(task, Operation::Flush), io.reply_by(Ways::THREAD, completion.token));
            if let Some((Parked { ready, reply }, permit)) = self.budget.ask(0, Parked { ready, reply }) {
                ready.submit(&self.live.image, reply, permit);
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
        let target = || self.spec.to_string();
        let _in_order = self.live.in_order();
        // librbd would make it smaller without a word: what others have made of it counts.
        let present_bytes = self.live.look_at_size().map_err(|errno| StorageError::Grow {
            target: target(),
            asked_bytes: capacity_bytes,
            reason: errno.words().to_string(),
        })?;
        check_growth(&target(), present_bytes, capacity_bytes)?;
        if capacity_bytes == present_bytes {
            self.live.set_capacity(capacity_bytes);
            return Ok(());
        }
        let refused = |reason| StorageError::Grow { target: target(), asked_bytes: capacity_bytes, reason };
        if self.read_only {
            return Err(refused("it is read-only".to_owned()));
        }
        self.live.image.resize(capacity_bytes).map_err(|errno| refused(errno.words().to_string()))?;
        self.live.set_capacity(capacity_bytes);
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        let why = format!(
            "{}: librbd's connection does not pass to another program: stop the daemon and start the new one",
            self.spec
        );
        Err(std::io::Error::other(why))
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        match execution {
            Execution::Auto | Execution::Inline => Ok(()),
            Execution::Uring | Execution::Pool(_) => Err(StorageError::Execution { execution, kind: "rbd" }),
        }
    }
}

impl Drop for RbdStorage {
    fn drop(&mut self) {
        self.look = None;
        if self.live.is_locked() {
            guard::give_up(&self.live.image, &self.spec);
        }
    }
}
