//! What an export's clients share, what each of them has, and the version that begins it.

use super::bound::Bound;
use super::fids::{FIDS_MAX, Fid, Fids, Use};
use super::holdings::{LockShare, Supplies};
use super::locks::Waits;
use super::place::{Ground, Place};
use super::policy::P9Policy;
use super::qids::{self, Qids};
use super::tags::Tags;
use crate::calls::{Answer, Outcome};
use device::p9::{Dialect, IO_HEADER_BYTES, MSIZE_MIN, qid_type};
use passthrough::{ROOT, Tree};
use rustix::io::Errno;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What reads and writes are best multiples of, in bytes: a page of most machines.
const PAGE_BYTES: u32 = 4096;

/// How many fids of a client that begins anew are given up in one turn of its ring: each may be a file to close, with locks to
/// drop, and a client may have a million.
pub(super) const GIVEN_UP_AT_ONCE: usize = 64;

/// What all clients of a 9P export share.
pub(crate) struct Service {
    tree: Arc<Tree>,
    policy: P9Policy,
    qids: Qids,
    /// Type and number of the root's qid.
    root: (u8, u64),
    /// Makes the numbers of lock owners, which nobody can choose so that two are the same.
    owners: RandomState,
    sessions: AtomicU64,
    supplies: Supplies,
}

impl Service {
    /// For so many clients at once.
    pub(crate) fn new(tree: Arc<Tree>, policy: P9Policy, clients: usize) -> Arc<Service> {
        let (home, ino, kind) = match tree.attributes(ROOT, None) {
            Ok(root) => (root.device, root.ino, qids::kind(root.mode)),
            Err(error) => {
                // Its descriptor is open: only a network file system that is gone could refuse, and clients will hear of it.
                tracing::warn!(%error, "cannot look at the directory of a 9p export");
                ((0, 0), 0, qid_type::DIR)
            }
        };
        if let Err(error) = tree.allow_exclusive_locks() {
            tracing::warn!(%error, "clients of a read-only 9p export cannot lock a file for themselves alone");
        }
        let qids = Qids::new(home, policy.multidevs);
        let root = (kind, qids.path(home, ino).unwrap_or(ino));
        let supplies = Supplies::new(&tree, clients);
        Arc::new(Service {
            tree,
            policy,
            qids,
            root,
            owners: RandomState::new(),
            sessions: AtomicU64::new(0),
            supplies,
        })
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    pub(crate) fn policy(&self) -> &P9Policy {
        &self.policy
    }
}

/// One client: whoever uses a device, or one connection of a stream. Its requests may be performed on any threads at the same
/// time. What it has goes with it.
pub(crate) struct Session {
    service: Arc<Service>,
    /// Which of the export's.
    number: u64,
    pub(super) root: Arc<Place>,
    pub(super) fids: Fids,
    /// How many fids stand for extended attributes.
    pub(super) values: Arc<Bound>,
    /// How many files and directories are open.
    pub(super) files: Arc<Bound>,
    pub(super) locks: Arc<LockShare>,
    pub(super) waits: Arc<Waits>,
    tags: Tags,
    /// What the version agreed on: the dialect above 32 bits of the message size; 0 before.
    agreed: AtomicU64,
    /// It has agreed on a version, at any time.
    greeted: AtomicBool,
}

impl Session {
    pub(crate) fn new(service: &Arc<Service>) -> Arc<Session> {
        Session::with_fids(service, FIDS_MAX)
    }

    /// A client that may have so many fids.
    pub(super) fn with_fids(service: &Arc<Service>, fids_max: usize) -> Arc<Session> {
        let supplies = &service.supplies;
        let ground = Ground::new(Arc::clone(&service.tree), supplies.places());
        Arc::new(Session {
            service: Arc::clone(service),
            number: service.sessions.fetch_add(1, Ordering::Relaxed),
            root: Place::root(&ground, service.root),
            fids: Fids::new(supplies.fids(fids_max)),
            values: supplies.values(),
            files: supplies.files(),
            locks: supplies.locks(),
            waits: Arc::default(),
            tags: Tags::default(),
            agreed: AtomicU64::new(0),
            greeted: AtomicBool::new(false),
        })
    }

    pub(super) fn tree(&self) -> &Arc<Tree> {
        &self.service.tree
    }

    pub(super) fn qids(&self) -> &Qids {
        &self.service.qids
    }

    /// Which requests are under way.
    pub(crate) fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Whether the client has agreed on a version, at any time.
    pub(crate) fn has_greeted(&self) -> bool {
        self.greeted.load(Ordering::Acquire)
    }

    /// How many fids the client has.
    pub(crate) fn fids(&self) -> usize {
        self.fids.len()
    }

    /// How many requests wait for locks.
    pub(crate) fn locks_waiting(&self) -> usize {
        self.waits.len()
    }

    /// What the client speaks.
    #[inline]
    pub(crate) fn dialect(&self) -> Dialect {
        match self.agreed.load(Ordering::Acquire) >> 32 {
            1 => Dialect::L,
            2 => Dialect::U,
            _ => Dialect::Unknown,
        }
    }

    /// Longest message, in bytes: what was agreed on, and before that what would be granted at most.
    #[inline]
    pub(crate) fn msize(&self) -> u32 {
        match self.agreed.load(Ordering::Acquire) as u32 {
            0 => self.service.policy.msize_max,
            agreed => agreed,
        }
    }

    /// The most bytes that a read or a write should have, of whole pages where there is room for one.
    pub(super) fn iounit(&self) -> u32 {
        let most = self.msize().saturating_sub(IO_HEADER_BYTES);
        if most < PAGE_BYTES { most } else { most - most % PAGE_BYTES }
    }

    /// The client is gone: everything that it has is given up, and lock waits are cancelled. What is performed meanwhile ends by
    /// itself. Takes its time where the client has much; a worker calls [`Session::begin_anew`].
    pub(crate) fn reset(&self) {
        while !self.begin_anew() {}
    }

    /// The client begins anew. Nothing that it has can be named any more, lock waits are cancelled, and some of what it has is
    /// given up; false when there is more. Its version is answered when this has been called until nothing is left.
    pub(crate) fn begin_anew(&self) -> bool {
        self.agreed.store(0, Ordering::Release);
        self.fids.set_aside();
        self.waits.cancel();
        self.give_up_some()
    }

    /// Gives up all that was set aside when the client began anew.
    pub(crate) fn give_up_rest(&self) {
        while !self.give_up_some() {}
    }

    /// Gives up a part of what was set aside; false when there is more.
    fn give_up_some(&self) -> bool {
        let (old, all) = self.fids.take_old(GIVEN_UP_AT_ONCE);
        old.iter().for_each(|fid| self.end(fid));
        drop(old);
        all && self.root.ground().give_back_some()
    }

    /// A fid goes with its client. What it has open is closed with it, and nobody hears what comes of that.
    fn end(&self, fid: &Fid) {
        if !matches!(&fid.used, Use::Open(open) if open.remove_on_clunk) {
            return;
        }
        let place = Arc::clone(&fid.place);
        let remove = move || {
            if let Err(error) = place.remove() {
                tracing::debug!(%error, "a file that was to be removed with its client stays");
            }
        };
        if self.is_removed_slowly(&fid.place) {
            let changing = self.changed_by_removal(&fid.place);
            self.tree().when_there_is_time(move || passthrough::with_time(Some(changing), remove));
        } else {
            remove();
        }
    }

    /// What the client has had is given up before by [`Session::begin_anew`], as far as its ring does not stop meanwhile.
    pub(super) fn version(&self, msize: u32, version: &[u8], reply: &mut Vec<u8>) -> Outcome {
        self.begin_anew();
        let granted = msize.min(self.service.policy.msize_max);
        if granted < MSIZE_MIN {
            return Err(Errno::MSGSIZE);
        }
        let dialect = Dialect::from_version(version);
        let code: u64 = match dialect {
            Dialect::Unknown => 0,
            Dialect::L => 1,
            Dialect::U => 2,
        };
        if code != 0 {
            self.agreed.store(code << 32 | u64::from(granted), Ordering::Release);
            self.greeted.store(true, Ordering::Release);
        }
        device::p9::version_out(reply, granted, dialect);
        Ok(Answer::Reply)
    }

    /// The number by which the tree knows a process of a client: another one for every session, and never 0.
    pub(super) fn owner(&self, client_id: &[u8], proc_id: u32) -> u64 {
        self.service.owners.hash_one((self.number, client_id, proc_id)).max(1)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reset();
        // What waits for a lock lets go of its fid a little later.
        self.root.ground().end();
    }
}
