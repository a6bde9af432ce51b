//! INIT, and what holds until the next one.

use super::{Answer, Outcome, Service};
use crate::directory::dax::Window;
use crate::directory::policy::Policy;
use device::fs::{Agreement, Dialect, Init, Offer, flags};
use passthrough::Tree;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use values::{CachePolicy, Negotiation, Readdirplus};

/// Largest WRITE, and with it largest READ, in bytes: 256 pages of 4 KiB, which is what Linux asks for at most unless its
/// administrator raises fs.fuse.max_pages_limit.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Requests that the guest may have waiting in the background (read-ahead, asynchronous I/O, write-back): all that fit.
const BACKGROUND_MAX: u16 = u16::MAX;

/// Nodes and open files that are forgotten on the spot: in a millisecond or two.
const KNOWN_MUCH: usize = 2048;

/// What access control lists need of a guest: it reads them, and leaves the umask to whoever knows the directory's defaults.
const ACL: u64 = flags::POSIX_ACL | flags::DONT_MASK;

/// What a FUSE session consists of besides its tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuseSession {
    /// What INIT agreed on: the minor version and the flags (`FUSE_*` of linux/fuse.h). `None` before it.
    pub agreed: Option<(u32, u64)>,
    /// Requests that were interrupted and have not come, the latest first: at most 64 count.
    pub interrupted: Vec<u64>,
}

impl Service {
    pub(crate) fn new(tree: Arc<Tree>, policy: Policy) -> Service {
        let window = policy.dax.map(|dax| Window::new(dax.window_bytes));
        let (session, generation, waits) = (Mutex::new(None), AtomicU64::new(0), Mutex::default());
        Service { tree, policy, session, generation, waits, window }
    }

    /// The DAX window, where there is one.
    pub(crate) fn window(&self) -> Option<&Arc<Window>> {
        self.window.as_ref()
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    fn session(&self) -> MutexGuard<'_, Option<Dialect>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What INIT agreed on.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        *self.session()
    }

    /// Changes with every change of [`dialect`](Self::dialect).
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn set_dialect(&self, dialect: Option<Dialect>) {
        *self.session() = dialect;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// A guest mounts. What an earlier one knew of is forgotten: it is gone, or was reset without saying so.
    pub(super) fn init(&self, init: &Init, reply: &mut Vec<u8>) -> Outcome {
        self.end_session();
        self.refuse_without(init)?;
        let agreement = device::fs::negotiate(init, &self.offer(), reply).map_err(|refused| {
            tracing::warn!(reason = %refused, "a mount is refused");
            Errno::from_raw_os_error(refused.errno())
        })?;
        if let Agreement::Speak(dialect) = agreement {
            self.set_dialect(Some(dialect));
        }
        Ok(Answer::Reply)
    }

    /// What an operator has asked for in any case must be there, or files would get wrong permissions or no label.
    fn refuse_without(&self, init: &Init) -> Result<(), Errno> {
        let policy = &self.policy;
        let wanted = [
            ("POSIX ACLs", policy.posix_acl, ACL),
            ("security labels at creation", policy.security_label, flags::SECURITY_CTX),
        ];
        match wanted.iter().find(|(_, grant, flags)| *grant == Negotiation::Always && init.flags & flags != *flags) {
            Some((what, _, _)) => {
                tracing::warn!(
                    missing = what,
                    "a mount is refused: the guest does not have what the export insists on"
                );
                Err(Errno::PROTO)
            }
            None => Ok(()),
        }
    }

    /// Whether the end of the session takes longer than others of a worker should wait.
    pub(crate) fn knows_much(&self) -> bool {
        self.tree.holds() > KNOWN_MUCH
    }

    /// The guest unmounts, or is gone.
    pub(crate) fn end_session(&self) {
        self.set_dialect(None);
        self.cancel_lock_waits();
        if let Some(window) = &self.window {
            window.clear();
        }
        self.tree.clear();
    }

    /// What holds until the next INIT, for another program. Requests that wait for locks are not part of it.
    pub(crate) fn hand_over(&self) -> FuseSession {
        let agreed = self.dialect().map(|Dialect { minor, flags }| (minor, flags));
        FuseSession { agreed, interrupted: self.interrupted() }
    }

    /// Whether this server could have agreed on that.
    ///
    /// # Errors
    /// What it does not offer.
    pub(crate) fn may_adopt(&self, session: &FuseSession) -> Result<(), String> {
        let agreed = session.agreed.map(|(minor, flags)| Dialect { minor, flags });
        let unknown = agreed.map_or(Ok(()), |dialect| device::fs::may_speak(dialect, &self.offer()));
        unknown.map_err(|error| error.to_string())
    }

    /// Goes on with what held in another program. To be called before any ring starts.
    pub(crate) fn adopt(&self, session: &FuseSession) {
        self.set_dialect(session.agreed.map(|(minor, flags)| Dialect { minor, flags }));
        self.set_interrupted(&session.interrupted);
    }

    fn offer(&self) -> Offer {
        let policy = &self.policy;
        let mut wants = flags::ASYNC_READ
            | flags::BIG_WRITES
            | flags::ASYNC_DIO
            | flags::PARALLEL_DIROPS
            | flags::MAX_PAGES
            | flags::CACHE_SYMLINKS
            | flags::EXPORT_SUPPORT
            | flags::HAS_IOCTL_DIR
            | flags::INIT_EXT
            | flags::CREATE_SUPP_GROUP;
        let mut also = |wanted: bool, flag: u64| {
            if wanted {
                wants |= flag;
            }
        };
        also(policy.cache == CachePolicy::Auto, flags::AUTO_INVAL_DATA);
        also(policy.readdirplus != Readdirplus::Off, flags::DO_READDIRPLUS);
        also(policy.readdirplus == Readdirplus::Auto, flags::READDIRPLUS_AUTO);
        also(policy.writeback, flags::WRITEBACK_CACHE);
        also(policy.allow_mmap, flags::DIRECT_IO_ALLOW_MMAP);
        also(policy.killpriv_v2, flags::HANDLE_KILLPRIV_V2);
        also(policy.posix_acl != Negotiation::Never, ACL | flags::SETXATTR_EXT);
        also(policy.security_label != Negotiation::Never, flags::SECURITY_CTX);
        also(policy.posix_lock, flags::POSIX_LOCKS);
        also(policy.flock, flags::FLOCK_LOCKS);
        also(policy.announce_submounts, flags::SUBMOUNTS);
        // A guest that need not open files truncates by SETATTR, not by an OPEN that it leaves out.
        also(!policy.no_open, flags::ATOMIC_O_TRUNC);
        also(policy.no_open, flags::NO_OPEN_SUPPORT);
        let mut offer = Offer {
            wants,
            max_write: WRITE_BYTES_MAX,
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            ..Offer::default()
        };
        self.offer_dax(&mut offer);
        offer
    }
}
