//! What others make of an image that is served: another size, or nothing.
//!
//! librbd reads zeroes where an object is not there, and of a snapshot that was removed whatever has come in its place. Whoever writes an
//! image has its lock, which nobody can remove it under; of one that is only read it is for us to see whether it is still there. The cluster
//! tells of changes (a watch), before whoever has made one goes on; where the user's rights allow none, and where it was lost for a while, the image is
//! looked at again from time to time.

use crate::busy::Busy;
use crate::ffi::{Errno, Image, Opening};
use crate::held::Held;
use crate::open::OpenImage;
use crate::spec::Spec;
use crate::was::Was;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};
use storage::kit::{Jobs, WORK};
use storage::{Action, Description};

/// How often an image is looked at of whose changes nobody tells.
const UNTOLD_EVERY: Duration = Duration::from_secs(5);
/// How often one is looked at of whose changes the cluster tells: a client that it has lost for half a minute has no watch meanwhile.
const TOLD_EVERY: Duration = Duration::from_secs(30);
/// How long an image that is being looked at may keep whoever closes it: a cluster that does not answer has it then.
const END_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// An open image, and what is known of it.
pub(crate) struct Live {
    pub(crate) image: Image,
    /// That it may be written. Behind the image, which is closed before: until then its lock is ours.
    held: Option<Held>,
    spec: Spec,
    opening: Opening,
    id: Option<String>,
    /// Which snapshot is served.
    snapshot_id: Option<u64>,
    capacity_bytes: AtomicU64,
    is_gone: AtomicBool,
    /// Held while the size is asked for or changed, until it is known: no older answer comes behind a newer one.
    sizing: Mutex<()>,
    /// What has kept us from asking for it, as it was told last; 0 for nothing.
    told: AtomicI32,
    /// What is done when the cluster refuses this client.
    refused: OnceLock<Refused>,
}

type Refused = Box<dyn Fn() + Send + Sync>;

impl Live {
    /// What has been opened just now.
    pub(crate) fn of(opened: OpenImage, spec: &Spec) -> Arc<Live> {
        let OpenImage { mut image, bytes, opening, id, snapshot_id, lock: held, .. } = opened;
        let live = Arc::new_cyclic(|live: &Weak<Live>| {
            if opening == Opening::Watched {
                follow(&mut image, live.clone(), spec);
            }
            Live {
                image,
                held,
                spec: spec.clone(),
                opening,
                id,
                snapshot_id,
                capacity_bytes: AtomicU64::new(whole_sectors(bytes)),
                is_gone: AtomicBool::new(false),
                sizing: Mutex::default(),
                told: AtomicI32::new(0),
                refused: OnceLock::new(),
            }
        });
        // What was changed before anybody was told of changes.
        live.ask();
        live
    }

    /// That it may be written.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// What whoever opens it again has to know of it.
    pub(crate) fn was(&self, about: Description) -> Was {
        let owner = self.held.as_ref().map(|held| held.address().to_owned());
        let watches = owner.is_none() && self.opening == Opening::Watched;
        let watcher = watches.then(|| self.image.client().ok()).flatten();
        Was { bytes: self.capacity_bytes(), about, id: self.id.clone(), snapshot_id: self.snapshot_id, owner, watcher }
    }

    /// Has `refused` done when the cluster is found to refuse this client, by nobody's request.
    pub(crate) fn when_refused(&self, refused: impl Fn() + Send + Sync + 'static) {
        let _ = self.refused.set(Box::new(refused));
    }

    /// Bytes that a guest can have.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    /// They have changed.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.capacity_bytes.store(bytes, Ordering::Release);
    }

    /// What is served is not there any more, for good.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether a request has ended because it is not there any more.
    pub(crate) fn is_loss(&self, action: Action, result: i32) -> bool {
        let is_loss = action == Action::Read && result == -libc::ENOENT;
        if is_loss {
            self.lose();
        }
        is_loss
    }

    /// Nobody else looks at the size meanwhile.
    pub(crate) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.sizing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size as librbd knows it, in whole sectors. Where nobody tells it of changes it was once, and the image may have become smaller.
    pub(crate) fn look_at_size(&self) -> Result<u64, Errno> {
        let bytes = self.image.bytes().map(whole_sectors)?;
        Ok(match self.opening {
            Opening::Watched => bytes,
            Opening::Unwatched => bytes.min(self.capacity_bytes()),
        })
    }

    /// Looks what has become of it, as librbd has been told.
    fn ask(&self) {
        let _in_order = self.in_order();
        self.hear(self.look(&self.image));
    }

    /// Looks what has become of it, whatever librbd has been told.
    fn ask_again(&self, id: &str) {
        let seen = self.image.open_again(id).and_then(|image| self.look(&image));
        let _in_order = self.in_order();
        self.hear(seen.and_then(|bytes| match self.opening {
            // Behind that answer it may have changed once more.
            Opening::Watched => self.look(&self.image),
            // Beyond the size that librbd knows it reads nothing.
            Opening::Unwatched => Ok(bytes.min(self.image.bytes().map(whole_sectors)?)),
        }));
    }

    /// Bytes of the image, or of the snapshot that is served.
    fn look(&self, image: &Image) -> Result<u64, Errno> {
        match self.snapshot_id {
            None => image.bytes().map(whole_sectors),
            // It stays as it is, or goes; its name may be another's by now.
            Some(id) if image.snapshots()?.iter().any(|snapshot| snapshot.id == id) => Ok(self.capacity_bytes()),
            Some(_) => Err(Errno(libc::ENOENT)),
        }
    }

    fn hear(&self, seen: Result<u64, Errno>) {
        let image = &self.spec;
        if seen == Err(Errno(libc::ESHUTDOWN))
            && let Some(refused) = self.refused.get()
        {
            return refused();
        }
        match seen {
            Ok(bytes) => {
                self.told.store(0, Ordering::Relaxed);
                let before_bytes = self.capacity_bytes.swap(bytes, Ordering::AcqRel);
                if before_bytes != bytes {
                    tracing::info!(%image, before_bytes, bytes, "the size of an image has changed: `vringd ctl disk resize` tells the guest");
                }
            }
            Err(Errno(libc::ENOENT)) => self.lose(),
            // Once, and not every few seconds.
            Err(errno) if self.told.swap(errno.0, Ordering::Relaxed) != errno.0 => {
                tracing::warn!(%image, error = %errno.words(), "an image cannot be asked for its size");
            }
            Err(_) => {}
        }
    }

    fn lose(&self) {
        if !self.is_gone.swap(true, Ordering::AcqRel) {
            let what = if self.spec.snapshot.is_some() { "a snapshot" } else { "an image" };
            tracing::error!(image = %self.spec, "{what} that is served was removed: all its reads fail from now on");
        }
    }
}

/// What a guest can have of so many bytes.
fn whole_sectors(bytes: u64) -> u64 {
    bytes / 512 * 512
}

/// Has the image looked at again whenever anybody has changed it.
fn follow(image: &mut Image, live: Weak<Live>, spec: &Spec) {
    let jobs = Jobs::on(&WORK);
    let about = Arc::new((live, AtomicBool::new(false)));
    let told = move || {
        let (_, asking) = &*about;
        // Without threads it would be done here, where librbd must not be called.
        if !jobs.has_threads() || asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let about = about.clone();
        jobs.go(move || {
            let _busy = Busy::new();
            let (live, asking) = &*about;
            // Before it is asked for: what changes from now on is asked for once more.
            asking.store(false, Ordering::Release);
            // Not before this: whoever has the image last closes it, which waits for those who are being told.
            if let Some(live) = live.upgrade() {
                live.ask();
            }
        });
    };
    if let Err(errno) = image.watch(told) {
        tracing::warn!(image = %spec, error = %errno.words(), "changes of an image's size by others will not be seen");
    }
}

/// A thread that looks at an image again from time to time, while this is there.
pub(crate) struct Look {
    ends: Option<Sender<()>>,
    thread: JoinHandle<()>,
}

impl Drop for Look {
    /// Waits, for a while, until it has let go of the image: whoever says that this is closed means it.
    fn drop(&mut self) {
        self.ends = None;
        let start = Instant::now();
        while !self.thread.is_finished() && start.elapsed() < END_PATIENCE {
            sleep(LOOK_AGAIN_AFTER);
        }
    }
}

impl Live {
    /// Looks at it again from time to time. Not where it has no id, as images of the first format.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn look_often(self: &Arc<Self>) -> io::Result<Option<Look>> {
        let Some(id) = self.id.clone() else { return Ok(None) };
        let every = match self.opening {
            Opening::Watched => TOLD_EVERY,
            Opening::Unwatched => UNTOLD_EVERY,
        };
        let (ends, ended) = channel();
        let live = Arc::downgrade(self);
        let thread = Builder::new().name("rbd-look".to_owned());
        let thread = thread.spawn(move || keep_looking(&live, &id, every, &ended))?;
        Ok(Some(Look { ends: Some(ends), thread }))
    }
}

fn keep_looking(live: &Weak<Live>, id: &str, every: Duration, ended: &Receiver<()>) {
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let _busy = Busy::new();
        let Some(live) = live.upgrade().filter(|live| !live.is_gone()) else { return };
        live.ask_again(id);
    }
}
