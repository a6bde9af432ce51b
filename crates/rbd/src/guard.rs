//! Who may write an image: the owner of its exclusive lock.
//!
//! The lock is taken as one that is kept whoever asks for it: librbd refuses the writes of every other client meanwhile. But it asks a client
//! that has the lock on its own behalf, as QEMU's does by default, to let it go, which such a client does, to ask for it again with its next
//! write: so the owner is looked for first, and nobody's lock is asked for.
//!
//! The lock of a daemon of this machine that is gone is broken, which also has the cluster refuse whatever that one had sent and what has not
//! arrived yet (a blocklist). Of anybody else nothing is concluded ([`owner`](crate::owner)): the cluster sees within half a minute that a client is
//! gone, and then librbd itself breaks its lock, in the same way, when it is asked for it.

use crate::error::RbdError;
use crate::ffi::{Errno, Image};
use crate::held::{self, Held};
use crate::owner::{Fate, Owner};
use crate::spec::Spec;

/// Where an owner writes down who it is, among the image's metadata.
const KEY: &str = "vringd.owner";
/// How often a lock is tried that somebody has just given up, or has just taken.
const TRIES: usize = 4;

/// Takes the lock.
pub(crate) fn take(image: &Image, spec: &Spec, user: &str) -> Result<Held, RbdError> {
    if !image.has_lock().map_err(RbdError::failed(spec, "read its features"))? {
        return Err(RbdError::NoLock(spec.to_string()));
    }
    for _ in 0..TRIES {
        if let Some(owner) = owner(image, spec)? {
            step_aside(image, spec, user, owner)?;
        }
        match image.lock() {
            Ok(()) => return taken(image, spec),
            // Both are answers where nobody may write.
            Err(Errno(libc::EPERM | libc::EACCES | libc::EROFS)) if image.is_demoted() => {
                return Err(RbdError::Demoted(spec.to_string()));
            }
            // Somebody was quicker: the next look names who.
            Err(Errno(libc::EROFS | libc::EAGAIN | libc::EBUSY)) => {}
            Err(Errno(libc::EPERM | libc::EACCES)) => {
                return Err(RbdError::Forbidden { user: user.to_owned(), spec: spec.to_string() });
            }
            Err(errno) => return Err(RbdError::failed(spec, "take its lock")(errno)),
        }
    }
    Err(RbdError::failed(spec, "take its lock, which others take at the same time")(Errno(libc::EBUSY)))
}

/// Takes the lock that the client at `before` had, which was this process: guests go on with what they know of the image, so that nobody else may have
/// had it meanwhile. It is not [signed](sign) yet.
pub(crate) fn take_over(image: &Image, spec: &Spec, user: &str, before: &str) -> Result<Held, RbdError> {
    let lost = |why: String| RbdError::Lost { spec: spec.to_string(), why };
    match owner(image, spec)? {
        Some(owner) if owner == before => {}
        Some(owner) => return Err(lost(format!("the client at {owner} has taken its lock"))),
        None => return Err(lost("its lock was taken away".to_owned())),
    }
    match image.break_lock(before) {
        Ok(()) => {}
        Err(Errno(libc::ENOENT | libc::EBUSY | libc::EAGAIN)) => {
            return Err(lost("its lock was taken away".to_owned()));
        }
        Err(errno) => return Err(not_broken(spec, user, errno)),
    }
    // For a moment it is anybody's: one who waits for it by then, has it, writes and gives it up is not seen.
    let mut taken = image.lock();
    for _ in 1..TRIES {
        // Any other error may mean that somebody has it, and would give it up when asked once more.
        if taken != Err(Errno(libc::ETIMEDOUT)) || image.owner() != Ok(None) {
            break;
        }
        taken = image.lock();
    }
    taken.map_err(|errno| lost(format!("its lock could not be taken again: {}", errno.words())))?;
    let address = match image.owner() {
        Ok(Some(owner)) if is_ours(image, &owner) => owner,
        Ok(_) => return Err(lost("its lock was taken away".to_owned())),
        // It is known here, too.
        Err(_) => image.client().map_err(RbdError::failed(spec, "find its address"))?,
    };
    Ok(Held::by(&address))
}

/// Whether this is the address of the client that has the image open here: the number behind the address is its own (`entity_addr_t`, nonce), however
/// the rest is written.
fn is_ours(image: &Image, owner: &str) -> bool {
    let number = |address: &str| address.rsplit('/').next().map(str::to_owned);
    image.client().is_ok_and(|client| number(&client) == number(owner))
}

fn not_broken(spec: &Spec, user: &str, errno: Errno) -> RbdError {
    match errno {
        Errno(libc::EPERM | libc::EACCES) => RbdError::Break { user: user.to_owned(), source: errno.words() },
        errno => RbdError::failed(spec, "break the lock of the daemon before this one")(errno),
    }
}

/// Gives the lock up, if it is ours still. What is left behind where that fails is what a killed daemon leaves.
pub(crate) fn give_up(image: &Image, spec: &Spec, held: &Held) {
    // Whoever has it by now has signed it, too.
    if !matches!(image.owner(), Ok(Some(owner)) if owner == held.address()) {
        return;
    }
    let removed = match image.remove_metadata(KEY) {
        // Nothing was signed.
        Err(Errno(libc::ENOENT)) => Ok(()),
        removed => removed,
    };
    if let Err(errno) = removed.and(image.unlock()) {
        tracing::warn!(image = %spec, error = %errno.words(), "the lock of an image could not be given up: it lapses within 30 s");
    }
}

fn owner(image: &Image, spec: &Spec) -> Result<Option<String>, RbdError> {
    image.owner().map_err(RbdError::failed(spec, "ask for the owner of its lock"))
}

/// Breaks the lock of a daemon that is gone, leaves that of a client that is gone to librbd, and those of all others alone.
fn step_aside(image: &Image, spec: &Spec, user: &str, owner: String) -> Result<(), RbdError> {
    let written = image.metadata(KEY).map_err(RbdError::failed(spec, "read its metadata"))?;
    let fate = Fate::of(&owner, written.as_deref(), held::is_held(&owner));
    if let Fate::Gone(process) = fate {
        return match image.break_lock(&owner) {
            Ok(()) => {
                tracing::info!(image = %spec, owner, process, "the lock of a daemon that is gone is broken, and its client blocklisted");
                Ok(())
            }
            // It was given up meanwhile, or another daemon that came behind that death was faster: the next look says.
            Err(Errno(libc::ENOENT | libc::EBUSY | libc::EAGAIN)) => Ok(()),
            Err(errno) => Err(not_broken(spec, user, errno)),
        };
    }
    if !image.is_open_at(&owner).map_err(RbdError::failed(spec, "ask who has it open"))? {
        tracing::info!(image = %spec, owner, "the owner of an image's lock is gone, and its lock is broken");
        return Ok(());
    }
    let about = match fate {
        Fate::Here => "this daemon serves it already".to_owned(),
        Fate::Lives(process) => format!("process {process} of this machine serves it: stop it first"),
        Fate::Gone(_) | Fate::Unknown => {
            "stop that client first; if it was killed, the cluster sees that within 30 s: try again then".to_owned()
        }
    };
    Err(RbdError::Locked { spec: spec.to_string(), owner, about })
}

/// The lock is this client's by now.
fn taken(image: &Image, spec: &Spec) -> Result<Held, RbdError> {
    let Some(address) = owner(image, spec)?.filter(|owner| is_ours(image, owner)) else {
        let (spec, what) = (spec.to_string(), "keep its lock, which somebody has broken");
        return Err(RbdError::Failed { spec, what, source: Errno(libc::ESHUTDOWN).words() });
    };
    let held = Held::by(&address);
    sign(image, spec, &held);
    Ok(held)
}

/// Writes down who has the lock, which is needed only by whoever comes after a death. It is [known](Held) here before: whoever reads it must
/// not take us for gone. All who watch the image are told, and waited for.
pub(crate) fn sign(image: &Image, spec: &Spec, held: &Held) {
    if let Some(owner) = Owner::here(held.address())
        && let Err(errno) = image.set_metadata(KEY, &owner.write())
    {
        tracing::warn!(image = %spec, error = %errno.words(), "a daemon that comes after a death of this one will wait for its lock to lapse");
    }
}
