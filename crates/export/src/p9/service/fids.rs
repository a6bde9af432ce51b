//! Fids: what a client calls its places, open files and attributes by.

use super::bound::{Bound, Counted};
use super::holdings::LockShare;
use super::place::{Place, lock};
use device::p9::NOFID;
use passthrough::{Handle, OpenFile};
use rustix::io::Errno;
use std::collections::hash_map::IntoValues;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The most fids of one session. Linux keeps one for each open file, and with its cache one for each name that it caches.
pub(super) const FIDS_MAX: usize = 1 << 20;

/// The most fids of all sessions of an export.
pub(super) const FIDS_OF_ALL_MAX: usize = 2 * FIDS_MAX;

/// The most owners of locks that one open fid remembers.
const OWNERS_MAX: usize = 256;

/// How many parts the table of fids has, so that threads seldom meet.
const SHARDS: usize = 16;

/// What a fid stands for. It does not change: a fid that is opened or walked on is another one of the same number, and who uses
/// the old one goes on with it.
pub(super) struct Fid {
    /// Who attached.
    pub(super) uid: u32,
    /// Where it was attached: `..` goes no further.
    pub(super) root: Arc<Place>,
    pub(super) place: Arc<Place>,
    pub(super) used: Use,
    /// Since which version request it is there; see [`Fids::generation`].
    pub(super) born: u64,
}

/// What a fid is good for.
pub(super) enum Use {
    /// Walking, and everything that needs no open file.
    Place,
    /// An open file or directory. In a box, as most fids are nothing of the kind.
    Open(Box<Open>),
    /// An extended attribute's value, or the list of names, to be read.
    Value(Box<Value>),
    /// An extended attribute that is being written.
    NewValue(Box<NewValue>),
}

impl Fid {
    /// The same place, for another use.
    pub(super) fn with(&self, used: Use) -> Arc<Fid> {
        self.at(Arc::clone(&self.place), used)
    }

    /// Another place, for who attached here.
    pub(super) fn at(&self, place: Arc<Place>, used: Use) -> Arc<Fid> {
        Arc::new(Fid { uid: self.uid, root: Arc::clone(&self.root), place, used, born: self.born })
    }

    /// # Errors
    /// `EBADF` unless it is an open file or directory.
    #[inline]
    pub(super) fn open(&self) -> Result<&Open, Errno> {
        match &self.used {
            Use::Open(open) => Ok(open),
            _ => Err(Errno::BADF),
        }
    }

    /// Its name in the tree, if it is open.
    pub(super) fn handle(&self) -> Option<Handle> {
        match &self.used {
            Use::Open(open) => Some(open.handle),
            _ => None,
        }
    }

    /// # Errors
    /// `EBADF` for a fid of an extended attribute.
    pub(super) fn place(&self) -> Result<&Arc<Place>, Errno> {
        match &self.used {
            Use::Place | Use::Open(_) => Ok(&self.place),
            Use::Value(_) | Use::NewValue(_) => Err(Errno::BADF),
        }
    }

    /// # Errors
    /// `EINVAL` for a fid that is open, or an extended attribute's.
    pub(super) fn unopened(&self) -> Result<&Arc<Place>, Errno> {
        if let Use::Place = self.used { Ok(&self.place) } else { Err(Errno::INVAL) }
    }
}

/// An open file or directory. Its locks go and it is closed with the last who has it.
pub(super) struct Open {
    /// Keeps the node known for as long as the file is open.
    place: Arc<Place>,
    pub(super) handle: Handle,
    pub(super) file: Arc<OpenFile>,
    pub(super) directory: bool,
    /// Of the host: major and minor.
    pub(super) device: (u32, u32),
    /// A write drops set-id bits and file capabilities.
    pub(super) kill_privileges: bool,
    /// It is removed when the fid is clunked (`ORCLOSE` of 9P2000.u).
    pub(super) remove_on_clunk: bool,
    /// Whose locks were taken through this fid.
    owners: Mutex<BTreeSet<u64>>,
    locks: Arc<LockShare>,
    _counted: Counted,
    /// Where the next read of a directory goes on in 9P2000.u.
    pub(super) reading: Mutex<Reading>,
}

/// How far a directory was read in 9P2000.u, whose offsets count bytes of answers.
#[derive(Clone, Copy, Default)]
pub(super) struct Reading {
    /// In those bytes.
    pub(super) bytes: u64,
    /// Where the tree goes on.
    pub(super) offset: u64,
}

impl Open {
    /// `device` is where the inode numbers of a directory's names count.
    ///
    /// # Errors
    /// `EBADF` when the tree has closed it already.
    pub(super) fn new(
        place: &Arc<Place>,
        handle: Handle,
        device: (u32, u32),
        (kill_privileges, remove_on_clunk): (bool, bool),
        (counted, locks): (Counted, &Arc<LockShare>),
    ) -> Result<Open, Errno> {
        let file = place.ground().tree.file(handle)?;
        Ok(Open {
            place: Arc::clone(place),
            handle,
            file,
            directory: place.is_directory(),
            device,
            kill_privileges,
            remove_on_clunk,
            owners: Mutex::default(),
            locks: Arc::clone(locks),
            _counted: counted,
            reading: Mutex::default(),
        })
    }

    /// A regular file, for data.
    ///
    /// # Errors
    /// `EISDIR`.
    #[inline]
    pub(super) fn data(&self) -> Result<&Arc<OpenFile>, Errno> {
        if self.directory { Err(Errno::ISDIR) } else { Ok(&self.file) }
    }

    /// `owner` is about to have locks.
    ///
    /// # Errors
    /// `ENOLCK` when too many have had some.
    pub(super) fn add_owner(&self, owner: u64) -> Result<(), Errno> {
        let mut owners = lock(&self.owners);
        if owners.len() >= OWNERS_MAX && !owners.contains(&owner) {
            return Err(Errno::NOLCK);
        }
        owners.insert(owner);
        Ok(())
    }

    /// How many have had some.
    pub(super) fn owners(&self) -> usize {
        lock(&self.owners).len()
    }

    /// `owner` has no locks any more.
    pub(super) fn remove_owner(&self, owner: u64) {
        lock(&self.owners).remove(&owner);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let tree = &self.place.ground().tree;
        for &owner in self.owners.get_mut().unwrap_or_else(PoisonError::into_inner).iter() {
            // It is the locks that matter; what the file system says at a close was told when the fid was clunked.
            let _ = tree.flush(self.place.node(), self.handle, owner);
            self.locks.settle(tree, self.place.node(), owner);
        }
        if self.directory {
            tree.release_dir(self.handle);
        } else {
            tree.release(self.handle, None);
        }
    }
}

/// An extended attribute as it was when the client asked for it.
pub(super) struct Value {
    pub(super) bytes: Vec<u8>,
    pub(super) _counted: Counted,
}

/// An extended attribute that is set when its fid is clunked.
pub(super) struct NewValue {
    pub(super) name: Box<[u8]>,
    /// `XATTR_*` of `linux/xattr.h`.
    pub(super) flags: u32,
    pub(super) bytes: Mutex<NewBytes>,
    pub(super) _counted: Counted,
}

/// A value that is being written.
pub(super) struct NewBytes {
    /// As long as it will be.
    pub(super) bytes: Vec<u8>,
    /// So much of it, from the front, was written.
    filled: usize,
}

impl NewBytes {
    pub(super) fn new(size: usize) -> NewBytes {
        NewBytes { bytes: vec![0; size], filled: 0 }
    }

    /// So many bytes were put to `offset`.
    pub(super) fn written(&mut self, offset: usize, count: usize) {
        if offset <= self.filled {
            self.filled = self.filled.max(offset.saturating_add(count));
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.filled >= self.bytes.len()
    }
}

/// Hashes the numbers of a client, who does not know the factor and so cannot choose them so that they collide.
#[derive(Clone, Copy)]
struct Hashing(u64);

impl Default for Hashing {
    fn default() -> Hashing {
        Hashing(RandomState::new().hash_one(0) | 1)
    }
}

impl BuildHasher for Hashing {
    type Hasher = Hash;

    fn build_hasher(&self) -> Hash {
        Hash { factor: self.0, hash: 0 }
    }
}

struct Hash {
    factor: u64,
    hash: u64,
}

impl Hasher for Hash {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.hash = (self.hash ^ u64::from(number)).wrapping_mul(self.factor);
    }

    fn finish(&self) -> u64 {
        // A table takes its bucket from the lowest bits, and the highest are the good ones.
        self.hash.swap_bytes()
    }
}

#[derive(Default)]
#[repr(align(64))]
struct Shard(RwLock<HashMap<u32, Arc<Fid>, Hashing>>);

impl Shard {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u32, Arc<Fid>, Hashing>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u32, Arc<Fid>, Hashing>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fids of a session. What is dropped, with the files that it closes, is dropped without a lock.
pub(super) struct Fids {
    shards: [Shard; SHARDS],
    count: Bound,
    generation: AtomicU64,
    /// Those of before the client began anew, which nobody can name any more. They count until they are taken.
    old: Mutex<Vec<IntoValues<u32, Arc<Fid>>>>,
}

impl Fids {
    pub(super) fn new(count: Bound) -> Fids {
        Fids { shards: Default::default(), count, generation: AtomicU64::new(0), old: Mutex::default() }
    }

    #[inline]
    fn shard(&self, fid: u32) -> &Shard {
        // The remainder is below the length.
        &self.shards[fid as usize % SHARDS]
    }

    /// # Errors
    /// `EBADF` for a fid that the client does not have.
    #[inline]
    pub(super) fn get(&self, fid: u32) -> Result<Arc<Fid>, Errno> {
        self.shard(fid).read().get(&fid).cloned().ok_or(Errno::BADF)
    }

    /// As [`Fids::get`], for who needs only a part of it.
    #[inline]
    pub(super) fn with<T>(&self, fid: u32, look: impl FnOnce(&Fid) -> Result<T, Errno>) -> Result<T, Errno> {
        look(self.shard(fid).read().get(&fid).ok_or(Errno::BADF)?)
    }

    /// Whether the client may give this number to something new, as far as can be told before.
    ///
    /// # Errors
    /// As [`Fids::insert`].
    pub(super) fn check_new(&self, fid: u32) -> Result<(), Errno> {
        if fid == NOFID || self.shard(fid).read().contains_key(&fid) {
            return Err(Errno::BADF);
        }
        if self.count.is_full() { Err(Errno::MFILE) } else { Ok(()) }
    }

    /// How often the client has begun anew. What was made for a request of before finds no place any more: a slow one may end
    /// when the next version is agreed on already.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// # Errors
    /// `EBADF` for a fid that the client has already and for the one that means none, `EMFILE` when it has too many.
    pub(super) fn insert(&self, fid: u32, new: Arc<Fid>) -> Result<(), Errno> {
        if fid == NOFID {
            return Err(Errno::BADF);
        }
        let mut map = self.shard(fid).write();
        // Who clears grows the generation first, so that what is put here before is cleared.
        if map.contains_key(&fid) || new.born != self.generation() {
            return Err(Errno::BADF);
        }
        if !self.count.take() {
            return Err(Errno::MFILE);
        }
        map.insert(fid, new);
        Ok(())
    }

    /// Puts `new` in the place of `old`.
    ///
    /// # Errors
    /// `EBADF` when the fid stands for something else meanwhile.
    pub(super) fn replace(&self, fid: u32, old: &Arc<Fid>, new: Arc<Fid>) -> Result<(), Errno> {
        let mut map = self.shard(fid).write();
        let present = map.get_mut(&fid).filter(|present| Arc::ptr_eq(present, old)).ok_or(Errno::BADF)?;
        // The caller still has the old one, so nothing ends here.
        *present = new;
        Ok(())
    }

    /// # Errors
    /// `EBADF` for a fid that the client does not have.
    pub(super) fn remove(&self, fid: u32) -> Result<Arc<Fid>, Errno> {
        let removed = self.shard(fid).write().remove(&fid).ok_or(Errno::BADF)?;
        self.count.give(1);
        Ok(removed)
    }

    /// How many there are, those that were set aside included.
    pub(super) fn len(&self) -> usize {
        self.count.len()
    }

    /// The client begins anew: no number stands for anything any more. What it had waits for [`Fids::take_old`]; there may be
    /// so much of it that dropping it takes a second.
    pub(super) fn set_aside(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        for shard in &self.shards {
            let fids = std::mem::take(&mut *shard.write());
            if !fids.is_empty() {
                lock(&self.old).push(fids.into_values());
            }
        }
    }

    /// Takes some of those that were set aside, as many as weigh so much, and one at least; false when there are more. An open
    /// file weighs more with each owner of locks.
    pub(super) fn take_old(&self, weight_max: usize) -> (Vec<Arc<Fid>>, bool) {
        let (mut taken, mut weight) = (Vec::new(), 0);
        let mut old = lock(&self.old);
        while weight < weight_max
            && let Some(part) = old.last_mut()
        {
            match part.next() {
                Some(fid) => {
                    weight += 1 + fid.open().map_or(0, Open::owners);
                    taken.push(fid);
                }
                None => drop(old.pop()),
            }
        }
        old.retain(|part| part.len() > 0);
        let all = old.is_empty();
        drop(old);
        self.count.give(taken.len());
        (taken, all)
    }
}
