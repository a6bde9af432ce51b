//! The nodes that a client knows: by number, by identity, and with a bounded number of descriptors.
//!
//! No lock here is held during a system call, but for the close of a descriptor that is found superfluous. Locks are taken
//! in this order: identities, nodes; clock, nodes, slot of a node.

mod handover;

use crate::error::Result;
use crate::file::OpenFile;
use crate::handle::FileHandle;
use crate::ids::{Node, ROOT};
use crate::mount::Mount;
use crate::node::{Held, Inode, Pin, Slot};
use crate::share::{Place, Share};
use crate::stat::{Key, Kind, stat};
use crate::sync::{Counted, Numbers, lock, read, write};
use crate::trim::Trim;
use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// How many parts each map has, so that threads seldom meet. A power of two.
const SHARDS: usize = 16;

/// A clock shorter than this is not looked through for nodes that are gone.
const CLOCK_LEN_MIN: usize = 64;

/// A map that is smaller than this keeps its memory.
const CAPACITY_MIN: usize = 256;

/// Nodes whose descriptors may be closed, the one that waits longest in front.
#[derive(Debug, Default)]
struct Clock {
    nodes: VecDeque<Node>,
    /// Beyond this length those that are gone are dropped.
    len_max: usize,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    nodes: RwLock<HashMap<Node, Arc<Inode>, Numbers>>,
    clock: Mutex<Clock>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Identities(RwLock<HashMap<Key, Arc<Inode>>>);

/// What is known of an inode that a name led to.
#[derive(Debug)]
pub(crate) enum Found {
    /// The client knows it; it has been referenced once more.
    Known(Arc<Inode>),
    /// Nothing is known by this key, or only its file handle can tell.
    Unsure {
        /// A handle is worth a system call: it may be the same inode.
        perhaps: bool,
    },
}

/// How a new node is held.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// An `O_PATH` descriptor.
    pub(crate) path: Option<OwnedFd>,
    /// A file handle.
    pub(crate) handle: Option<FileHandle>,
    /// The handle was taken through a descriptor, not by name.
    pub(crate) verified: bool,
}

/// How much a table holds at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Nodes, the root included.
    pub(crate) nodes: usize,
    /// Descriptors of nodes that can do without.
    pub(crate) descriptors: usize,
    /// Descriptors that are never closed, because their nodes have no file handle.
    pub(crate) permanent: usize,
}

/// The nodes of one tree.
#[derive(Debug)]
pub(crate) struct Table {
    nodes: [Shard; SHARDS],
    identities: [Identities; SHARDS],
    hasher: RandomState,
    next: AtomicU64,
    max: Bounds,
    /// Nodes that there are.
    count: AtomicUsize,
    /// Descriptors held for nodes.
    descriptors: Arc<AtomicUsize>,
    share: Arc<Share>,
    permanent: AtomicUsize,
    trim: Trim,
}

impl Table {
    /// A table with the root alone.
    pub(crate) fn new(root: OwnedFd, key: Key, kind: Kind, mount: Arc<Mount>, max: Bounds, share: Arc<Share>) -> Table {
        let table = Table {
            nodes: Default::default(),
            identities: Default::default(),
            hasher: RandomState::new(),
            next: AtomicU64::new(ROOT + 1),
            max,
            count: AtomicUsize::new(1),
            descriptors: Arc::default(),
            share,
            permanent: AtomicUsize::new(1),
            trim: Trim::default(),
        };
        let held = Held::new(root, table.place_anyway(), kind);
        let root = Arc::new(Inode {
            node: ROOT,
            key,
            kind,
            mount,
            handle: None,
            references: AtomicU64::new(1),
            used: AtomicBool::new(true),
            verified: AtomicBool::new(true),
            displaced: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            slot: Mutex::new(Slot { held: Some(held), ..Slot::default() }),
        });
        write(&table.shard(ROOT).nodes).insert(ROOT, Arc::clone(&root));
        write(table.identity(&key)).insert(key, root);
        table
    }

    fn shard(&self, node: Node) -> &Shard {
        // The remainder is below the length.
        &self.nodes[node as usize % SHARDS]
    }

    fn identity(&self, key: &Key) -> &RwLock<HashMap<Key, Arc<Inode>>> {
        // The upper bits: the map within uses the lower ones of a hash of its own.
        let hash = self.hasher.hash_one(key);
        &self.identities[(hash >> 32) as usize % SHARDS].0
    }

    /// The inode of a node.
    ///
    /// # Errors
    /// `ESTALE` for a node that the client does not know.
    pub(crate) fn get(&self, node: Node) -> Result<Arc<Inode>> {
        read(&self.shard(node).nodes).get(&node).cloned().ok_or(Errno::STALE)
    }

    /// All nodes that there are, the root included.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.nodes.iter().flat_map(|shard| read(&shard.nodes).values().cloned().collect::<Vec<_>>()).collect()
    }

    /// The number that the next node gets.
    pub(crate) fn next(&self) -> Node {
        self.next.load(Ordering::Relaxed)
    }

    /// How many nodes there are, the root included.
    pub(crate) fn len(&self) -> usize {
        self.nodes.iter().map(|shard| read(&shard.nodes).len()).sum()
    }

    /// Room for a descriptor that is kept, unless the tree holds enough.
    fn place(&self) -> Option<Place> {
        Some((Counted::new(&self.descriptors), self.share.take()?))
    }

    /// Room for one that is there already, or goes with its operation.
    fn place_anyway(&self) -> Place {
        (Counted::new(&self.descriptors), self.share.take_anyway())
    }

    /// Whether a node more is allowed; one that keeps its descriptor for ever, as it has no file handle, if it is `permanent`.
    ///
    /// # Errors
    /// `ENFILE`.
    pub(crate) fn has_room(&self, permanent: bool) -> Result<()> {
        let full = self.count.load(Ordering::Relaxed) >= self.max.nodes
            || permanent && (self.permanent.load(Ordering::Relaxed) >= self.max.permanent || self.share.is_exceeded());
        if full { Err(Errno::NFILE) } else { Ok(()) }
    }

    /// Whether there is room for descriptors that can be had again.
    pub(crate) fn keeps_more(&self) -> bool {
        self.descriptors() < self.max.descriptors && !self.share.is_exceeded()
    }

    /// Nobody knows a number but the root's.
    pub(crate) fn begin_anew(&self) {
        self.next.store(ROOT + 1, Ordering::Relaxed);
    }

    /// A number that no node has or gets.
    pub(crate) fn take_number(&self) -> Node {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How many descriptors are held for nodes.
    pub(crate) fn descriptors(&self) -> usize {
        self.descriptors.load(Ordering::Relaxed)
    }

    /// References what is known by this key, if a descriptor is open that makes sure that it is the same inode.
    pub(crate) fn reference(&self, key: &Key) -> Found {
        let map = read(self.identity(key));
        match map.get(key) {
            None => Found::Unsure { perhaps: false },
            Some(inode) if inode.handle.is_none() || inode.is_pinned() => {
                inode.references.fetch_add(1, Ordering::Relaxed);
                Found::Known(Arc::clone(inode))
            }
            Some(_) => Found::Unsure { perhaps: true },
        }
    }

    /// The node that is known by this key, which is not referenced.
    pub(crate) fn node_of(&self, key: &Key) -> Option<Node> {
        read(self.identity(key)).get(key).map(|inode| inode.node)
    }

    /// The host has removed the last name of what is known by this key, and frees it when nobody has it open.
    pub(crate) fn is_removed(&self, key: &Key) {
        if let Some(inode) = read(self.identity(key)).get(key) {
            inode.gone.store(true, Ordering::Relaxed);
        }
    }

    /// References an inode that an operation has in hand, unless it was forgotten meanwhile.
    pub(crate) fn reference_again(&self, inode: &Inode) -> Result<()> {
        // The lock keeps the count from reaching 0.
        let _map = read(self.identity(&inode.key));
        if inode.references.load(Ordering::Relaxed) == 0 {
            return Err(Errno::STALE);
        }
        inode.references.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// References an inode that was found on the host, whether it is known or new.
    ///
    /// # Errors
    /// `ENFILE` when it is new and there are as many nodes as allowed, or as many descriptors, and it needs one for ever.
    pub(crate) fn intern(&self, key: Key, kind: Kind, mount: &Arc<Mount>, hold: Hold) -> Result<Arc<Inode>> {
        let identities = self.identity(&key);
        if let Some(known) = read(identities).get(&key)
            && known.is(hold.handle.as_ref())
        {
            known.references.fetch_add(1, Ordering::Relaxed);
            return Ok(Arc::clone(known));
        }
        let mut map = write(identities);
        // Another thread may have been faster.
        if let Some(known) = map.get(&key)
            && known.is(hold.handle.as_ref())
        {
            known.references.fetch_add(1, Ordering::Relaxed);
            return Ok(Arc::clone(known));
        }
        let permanent = hold.handle.is_none();
        let place = if hold.path.is_some() { self.place() } else { None };
        if permanent && place.is_none() {
            return Err(Errno::NFILE);
        }
        one_more(&self.count, self.max.nodes)?;
        if permanent {
            one_more(&self.permanent, self.max.permanent).inspect_err(|_| one_less(&self.count))?;
        }
        // Without room a descriptor that can be had again is not kept.
        let held = hold.path.zip(place).map(|(fd, place)| Held::new(fd, place, kind));
        let listed = held.is_some() && !permanent;
        let inode = Arc::new(Inode {
            node: self.next.fetch_add(1, Ordering::Relaxed),
            key,
            kind,
            mount: Arc::clone(mount),
            handle: hold.handle,
            references: AtomicU64::new(1),
            used: AtomicBool::new(true),
            verified: AtomicBool::new(hold.verified),
            displaced: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            slot: Mutex::new(Slot { held, listed, ..Slot::default() }),
        });
        write(&self.shard(inode.node).nodes).insert(inode.node, Arc::clone(&inode));
        // What was known by this key before is another inode, which is gone from the host: the client may still name it.
        if let Some(before) = map.insert(key, Arc::clone(&inode)) {
            before.displaced.store(true, Ordering::Relaxed);
        }
        drop(map);
        if listed {
            self.list(&inode);
        }
        Ok(inode)
    }

    /// Takes references back. The node is gone with the last of them, which is told; too many are as good as the last.
    pub(crate) fn forget(&self, node: Node, count: u64) -> bool {
        if node == ROOT || count == 0 {
            return false;
        }
        let Ok(inode) = self.get(node) else { return false };
        let more = |now: u64| (now > count).then(|| now - count);
        if inode.references.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            return false;
        }
        let mut map = write(self.identity(&inode.key));
        let all = |now: u64| Some(now.saturating_sub(count));
        let before = inode.references.fetch_update(Ordering::Relaxed, Ordering::Relaxed, all).unwrap_or(0);
        if before == 0 || before > count {
            return false;
        }
        if map.get(&inode.key).is_some_and(|present| present.node == node) {
            map.remove(&inode.key);
            give_memory_back(&mut map);
        }
        let mut nodes = write(&self.shard(node).nodes);
        nodes.remove(&node);
        give_memory_back(&mut nodes);
        drop(nodes);
        drop(map);
        one_less(&self.count);
        if inode.handle.is_none() {
            one_less(&self.permanent);
        }
        // An operation that has the inode in hand may still use what it holds: it goes with the last of them.
        self.trim.freed();
        true
    }

    /// The size of a file has changed, or it has got holes: who reads it through a mapping looks again.
    pub(crate) fn forget_size(&self, node: Node) {
        if let Ok(inode) = self.get(node) {
            inode.forget_size();
        }
    }

    /// Forgets everything but the root.
    pub(crate) fn clear(&self) {
        for shard in &self.nodes {
            let nodes: Vec<Node> = read(&shard.nodes).keys().copied().collect();
            for node in nodes {
                self.forget(node, u64::MAX);
            }
            let mut clock = lock(&shard.clock);
            let map = read(&shard.nodes);
            clock.nodes.retain(|node| map.contains_key(node));
            clock.nodes.shrink_to_fit();
        }
        if let Ok(root) = self.get(ROOT) {
            lock(&root.slot).read = None;
        }
        self.trim.end();
    }

    /// A descriptor of the inode.
    ///
    /// # Errors
    /// `ESTALE` when the inode is gone from the host; the kernel's for opening a file handle.
    pub(crate) fn pin(&self, inode: &Arc<Inode>) -> Result<Pin> {
        if let Some(pin) = inode.pin() {
            return Ok(pin);
        }
        let (pin, _) = self.reopen(inode)?;
        Ok(pin)
    }

    /// As [`Table::pin`], with a fresh look at the inode: one system call when a descriptor is held.
    pub(crate) fn pin_and_stat(&self, inode: &Arc<Inode>) -> Result<(Pin, Statx)> {
        let (pin, seen) = match inode.pin() {
            Some(pin) => (pin, None),
            None => self.reopen(inode)?,
        };
        let stat = seen.map_or_else(|| stat(pin.as_fd(), c""), Ok)?;
        Ok((pin, stat))
    }

    /// Opens an inode that holds no descriptor by its handle, and looks at it if nobody has done so yet.
    fn reopen(&self, inode: &Arc<Inode>) -> Result<(Pin, Option<Statx>)> {
        let handle = inode.handle.as_ref().ok_or(Errno::STALE)?;
        // The kernel would have us wait until all of it is freed, and say so then.
        if inode.gone.load(Ordering::Relaxed) {
            return Err(Errno::STALE);
        }
        let fd = handle.open(inode.mount.file()?, OFlags::PATH)?;
        let mut seen = None;
        if !inode.verified.load(Ordering::Relaxed) {
            let stat = stat(fd.as_fd(), c"")?;
            if Key::of(&stat) != inode.key || Kind::of(&stat) != inode.kind {
                return Err(Errno::STALE);
            }
            inode.verified.store(true, Ordering::Relaxed);
            seen = Some(stat);
        }
        let held = Held::new(fd, self.place_anyway(), inode.kind);
        let mut slot = lock(&inode.slot);
        // Another thread may have been faster, or there is no room to keep it: then ours serves this operation alone.
        if slot.held.is_none() && !self.share.is_exceeded() {
            slot.held = Some(Arc::clone(&held));
            let listed = std::mem::replace(&mut slot.listed, true);
            drop(slot);
            if !listed {
                self.list(inode);
            }
        }
        Ok((Pin::Held(held), seen))
    }

    /// The inode opened for reading, by `open` when nobody has done so.
    pub(crate) fn read_file(
        &self,
        inode: &Arc<Inode>,
        open: impl FnOnce(Place) -> Result<Arc<OpenFile>>,
    ) -> Result<Arc<OpenFile>> {
        if let Some(file) = lock(&inode.slot).read.clone() {
            inode.used.store(true, Ordering::Relaxed);
            return Ok(file);
        }
        let file = open(self.place_anyway())?;
        let mut slot = lock(&inode.slot);
        if let Some(faster) = &slot.read {
            return Ok(Arc::clone(faster));
        }
        if self.share.is_exceeded() {
            return Ok(file);
        }
        slot.read = Some(Arc::clone(&file));
        let listed = std::mem::replace(&mut slot.listed, true);
        drop(slot);
        if !listed {
            self.list(inode);
        }
        Ok(file)
    }

    /// Puts a node among those whose descriptors may be closed, and closes the least recently used beyond the bound.
    fn list(&self, inode: &Inode) {
        let shard = self.shard(inode.node);
        let mut clock = lock(&shard.clock);
        clock.nodes.push_back(inode.node);
        if clock.nodes.len() > clock.len_max.max(CLOCK_LEN_MIN) {
            let nodes = read(&shard.nodes);
            clock.nodes.retain(|node| nodes.contains_key(node));
            drop(nodes);
            clock.len_max = clock.nodes.len() * 2;
            let capacity = clock.len_max;
            clock.nodes.shrink_to(capacity);
        }
        drop(clock);
        // Two at most: a descriptor that an operation uses is closed a little later and counts until then.
        for _ in 0..2 {
            if self.descriptors() <= self.max.descriptors || !self.close_one(inode.node) {
                return;
            }
        }
    }

    /// Closes a descriptor that can be had again, if there is one.
    pub(crate) fn close_any(&self) -> bool {
        self.close_one(ROOT)
    }

    /// Closes what the node holds that was not used for longest, in the shard of `near` if there is one.
    fn close_one(&self, near: Node) -> bool {
        (0..SHARDS as u64).any(|step| self.close_one_of(self.shard(near.wrapping_add(step)), near))
    }

    fn close_one_of(&self, shard: &Shard, spare: Node) -> bool {
        let mut clock = lock(&shard.clock);
        // Twice around, and everybody has had the second chance.
        for _ in 0..clock.nodes.len() * 2 {
            let Some(node) = clock.nodes.pop_front() else { return false };
            let Some(inode) = read(&shard.nodes).get(&node).cloned() else { continue };
            if node == spare || inode.used.swap(false, Ordering::Relaxed) {
                clock.nodes.push_back(node);
                continue;
            }
            let mut slot = lock(&inode.slot);
            slot.listed = false;
            let held = if inode.handle.is_some() { slot.held.take() } else { None };
            let file = slot.read.take();
            drop(slot);
            // The close of a file may take its time on some file systems.
            drop(clock);
            // It cannot be had again.
            if held.as_ref().is_some_and(|held| stat(held.as_fd(), c"").is_ok_and(|stat| stat.stx_nlink == 0)) {
                inode.gone.store(true, Ordering::Relaxed);
            }
            return held.is_some() || file.is_some();
        }
        false
    }
}

/// Counts one more, unless there are as many as allowed.
fn one_more(count: &AtomicUsize, max: usize) -> Result<()> {
    let room = |now: usize| (now < max).then_some(now + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).map(drop).map_err(|_| Errno::NFILE)
}

fn one_less(count: &AtomicUsize) {
    count.fetch_sub(1, Ordering::Relaxed);
}

/// Lets a map shrink when most of it has become empty, at a cost that its removals have earned.
fn give_memory_back<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > CAPACITY_MIN && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
