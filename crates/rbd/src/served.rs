//! The storage: an image that is open.

use crate::budget::Budget;
use crate::error::RbdError;
use crate::ffi::{Flight, Image, Parked, Ready, pad};
use crate::guard;
use crate::open::{OpenImage, open};
use crate::options::RbdOptions;
use crate::spec::Spec;
use engine::{Completion, Io, Token, Ways};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError, Weak};
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
    shared: Arc<Shared>,
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

/// What whoever looks after the size needs to know.
struct Shared {
    image: Image,
    capacity_bytes: AtomicU64,
    /// Held while the size is asked for or changed, until it is known: no older answer comes behind a newer one.
    sizing: Mutex<()>,
}

impl RbdStorage {
    /// Connects to the cluster, and opens the image, with its lock if it is to be written. Waits for the cluster, for a while: not on a worker.
    ///
    /// # Errors
    /// One line that names the field and the fix.
    pub fn open(options: &RbdOptions) -> Result<RbdStorage, RbdError> {
        // Whoever has no rights on OSDs, and whoever comes while they are down, waits without end in librbd.
        let (tell, told) = channel();
        let (asked, wanted) = (options.clone(), Arc::new(()));
        let is_wanted = Arc::downgrade(&wanted);
        let open = move || drop(tell.send(RbdStorage::open_here(&asked, &|| is_wanted.strong_count() > 0)));
        let spec = || options.spec().to_string();
        let started = Builder::new().name("rbd-open".to_owned()).spawn(open);
        started.map_err(|source| RbdError::Thread { spec: spec(), source })?;
        // An image that is open when nobody waits for it any more is closed at once, there.
        told.recv_timeout(OPEN_PATIENCE).unwrap_or_else(|_| {
            Err(RbdError::Late { spec: spec(), user: options.user.clone(), seconds: OPEN_PATIENCE.as_secs() })
        })
    }

    fn open_here(options: &RbdOptions, is_wanted: &dyn Fn() -> bool) -> Result<RbdStorage, RbdError> {
        let OpenImage { image, bytes, object_bytes, discard_bytes, cached } = open(options, is_wanted)?;
        let (spec, read_only) = (options.spec(), options.read_only());
        WORK.prepare();
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let mut image = image;
            // A snapshot stays as it is.
            if options.snapshot.is_none() {
                follow(&mut image, shared.clone(), &spec);
            }
            Shared { image, capacity_bytes: AtomicU64::new(whole_sectors(bytes)), sizing: Mutex::default() }
        });
        // What was changed before anybody was told of changes.
        shared.ask(&spec);
        let jobs = Jobs::on(&WORK);
        let (image, elsewhere) = (Arc::downgrade(&shared), jobs.clone());
        let budget = Budget::new(KEPT_BYTES_MAX, move |Parked { ready, reply }, permit| {
            let image = image.clone();
            // Whose turn has come is seen by a thread of librbd's, among others.
            elsewhere.go(move || {
                // Whoever has the request keeps it.
                if let Some(shared) = image.upgrade() {
                    ready.submit(&shared.image, reply, permit);
                }
            });
        });
        Ok(RbdStorage {
            shared,
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

/// What a guest can have of so many bytes.
fn whole_sectors(bytes: u64) -> u64 {
    bytes / 512 * 512
}

/// Has the size looked at again whenever anybody has changed the image.
fn follow(image: &mut Image, shared: Weak<Shared>, spec: &Spec) {
    let jobs = Jobs::on(&WORK);
    let about = Arc::new((shared, spec.clone(), AtomicBool::new(false)));
    let told = move || {
        let (_, _, asking) = &*about;
        // Without threads it would be done here, where librbd must not be called.
        if !jobs.has_threads() || asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let about = about.clone();
        jobs.go(move || {
            let (shared, spec, asking) = &*about;
            // Before it is asked for: what changes from now on is asked for once more.
            asking.store(false, Ordering::Release);
            // Not before this: whoever has the image last closes it, which waits for those who are being told.
            if let Some(shared) = shared.upgrade() {
                shared.ask(spec);
            }
        });
    };
    if let Err(errno) = image.watch(told) {
        tracing::warn!(image = %spec, error = %errno.words(), "changes of an image's size by others will not be seen");
    }
}

impl Shared {
    fn ask(&self, spec: &Spec) {
        let _in_order = self.sizing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.image.bytes().map(whole_sectors) {
            Ok(bytes) => {
                let before_bytes = self.capacity_bytes.swap(bytes, Ordering::AcqRel);
                if before_bytes != bytes {
                    tracing::info!(image = %spec, before_bytes, bytes, "the size of an image has changed: `vringd ctl disk resize` tells the guest");
                }
            }
            Err(errno) => {
                tracing::warn!(image = %spec, error = %errno.words(), "the size of an image cannot be asked for");
            }
        }
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
        self.shared.capacity_bytes.load(Ordering::Acquire)
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let operation = task.operation;
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
                let shared = self.shared.clone();
                self.jobs.go(move || ready.submit(&shared.image, reply, permit));
            }
            Some((Parked { ready, reply }, permit)) => ready.submit(&self.shared.image, reply, permit),
            None => {}
        }
        Step::Pending
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let (operation, action) = (task.operation, task.operation.action());
        let Ok(bytes) = u64::try_from(completion.result) else {
            return Step::Done(Err(self.failed(action, completion.result.saturating_neg())));
        };
        let flight = task.state.of::<Flight>();
        if self.cached && operation.is_durable() && action != Action::Flush && !flight.flushing {
            flight.flushing = true;
            let (ready, reply) = (Ready::of(task, Operation::Flush), io.reply_by(Ways::THREAD, completion.token));
            if let Some((Parked { ready, reply }, permit)) = self.budget.ask(0, Parked { ready, reply }) {
                ready.submit(&self.shared.image, reply, permit);
            }
            return Step::Pending;
        }
        if action == Action::Read && bytes < task.bytes() {
            pad(task, bytes);
        }
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let target = || self.spec.to_string();
        let _in_order = self.shared.sizing.lock().unwrap_or_else(PoisonError::into_inner);
        // librbd would make it smaller without a word: what others have made of it counts.
        let present_bytes = self.shared.image.bytes().map(whole_sectors);
        let present_bytes = present_bytes.map_err(|errno| StorageError::Grow {
            target: target(),
            asked_bytes: capacity_bytes,
            reason: errno.words().to_string(),
        })?;
        check_growth(&target(), present_bytes, capacity_bytes)?;
        if capacity_bytes == present_bytes {
            self.shared.capacity_bytes.store(capacity_bytes, Ordering::Release);
            return Ok(());
        }
        let refused = |reason| StorageError::Grow { target: target(), asked_bytes: capacity_bytes, reason };
        if self.read_only {
            return Err(refused("it is read-only".to_owned()));
        }
        self.shared.image.resize(capacity_bytes).map_err(|errno| refused(errno.words().to_string()))?;
        self.shared.capacity_bytes.store(capacity_bytes, Ordering::Release);
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
        if !self.read_only {
            guard::give_up(&self.shared.image, &self.spec);
        }
    }
}
