//! What another host has to know of a tree, and the locks that it is to have.

use super::form::{FileState, FoundBy, HandleState, HeadState, MOUNTS_MAX, NodeState, OwnerState, RangeState, Way};
use super::places::{Found, Path, Place, Places};
use super::{LOOK_EVERY, SaveError, Saved};
use crate::handle::FileHandle;
use crate::handover::bytes;
use crate::lock::{Holding, LockKind};
use crate::node::Inode;
use crate::options::MigrationMode;
use crate::stat::MountKey;
use crate::sync::lock;
use crate::{ROOT, Result, Tree};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How long files may take to be closed, and how often that is looked at.
const CLOSED_BY: Duration = Duration::from_secs(30);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// What all paths may take, in bytes, while they are put in order: those of a million files by long names.
const PATH_BYTES_MAX: usize = 256 << 20;

impl Tree {
    /// What another host needs to go on with all that the client knows and has, as long as `is_wanted` says so. No operation is under way,
    /// and nobody waits for a lock. The tree stays as it is.
    ///
    /// # Errors
    /// What cannot go along whatever is made of it there.
    pub fn save(&self, is_wanted: &dyn Fn() -> bool) -> std::result::Result<Saved, SaveError> {
        let by_handles = self.options.migration.mode == MigrationMode::FileHandles;
        if by_handles && self.mapped.as_ref().is_some_and(|mapped| mapped.is_beside_names()) {
            return Err(SaveError::RecordsBesideNames);
        }
        let places = Places::new(self).map_err(SaveError::Root)?;
        let inodes: Vec<_> = self.table.all().into_iter().filter(|inode| inode.node != ROOT).collect();
        let mut saving = Saving {
            tree: self,
            is_wanted,
            places,
            path_bytes: Cell::new(0),
            mounts: HashMap::new(),
            ways: Vec::new(),
        };
        let has_handles = by_handles || self.options.migration.verify_handles;
        let root = has_handles.then(|| saving.root_handle()).transpose().map_err(SaveError::Handles)?;
        let nodes = if by_handles { saving.by_handles(&inodes)? } else { saving.by_paths(&inodes)? };
        let lost = nodes.iter().filter(|node| matches!(node.found, FoundBy::Lost(_))).count();
        let (ways, files, owners) = (saving.ways, self.file_states(), self.locks.holdings());
        self.write_back(is_wanted)?;
        let head = HeadState {
            security: self.options.security.name().to_owned(),
            writeback: self.options.writeback,
            root,
            next_node: self.table.next(),
            next_handle: self.files.next(),
            mounts: ways.len(),
            files: files.len(),
            owners: owners.len(),
            nodes: nodes.len(),
        };
        let mut first = Vec::new();
        bytes::write(&head, &mut first)?;
        ways.iter().try_for_each(|way| bytes::write(way, &mut first))?;
        files.iter().try_for_each(|file| bytes::write(file, &mut first))?;
        owners.iter().try_for_each(|owner| write_owner(owner, &mut first))?;
        let mut rest = Vec::new();
        nodes.iter().try_for_each(|node| bytes::write(node, &mut rest))?;
        Ok(Saved { bytes: vec![first, rest], nodes: nodes.len(), files: files.len(), owners: owners.len(), lost })
    }

    /// What file systems write back when a file is closed, or its lock is dropped, is written back now: the other host reads it before
    /// this one closes anything.
    fn write_back(&self, is_wanted: &dyn Fn() -> bool) -> std::result::Result<(), SaveError> {
        if !self.share.reports_at_close() {
            return Ok(());
        }
        // What this tree's client has released and is closed elsewhere: others may go on releasing, or have closes that hang.
        let by = Instant::now() + CLOSED_BY;
        while self.share.is_writing_back() && is_wanted() {
            if Instant::now() >= by {
                return Err(SaveError::Closing);
            }
            thread::sleep(LOOK_AGAIN_AFTER);
        }
        if !is_wanted() {
            return Err(SaveError::Unwanted);
        }
        for (handle, file) in self.files.all() {
            if !is_wanted() {
                return Err(SaveError::Unwanted);
            }
            if file.is_writable() && file.mount.reports_at_close() {
                rustix::fs::fsync(&*file).map_err(|error| SaveError::WriteBack { handle, node: file.node(), error })?;
            }
        }
        Ok(())
    }

    fn file_states(&self) -> Vec<FileState> {
        let state = |(handle, file): (u64, Arc<crate::OpenFile>)| {
            let flock = lock(&file.flock).kind.map(crate::LockKind::is_exclusive);
            FileState { handle, node: file.node(), flags: file.flags().cast_unsigned(), flock }
        };
        self.files.all().into_iter().map(state).collect()
    }
}

fn write_owner(holding: &Holding, out: &mut Vec<u8>) -> std::result::Result<(), postcard::Error> {
    let Holding { node, owner, pid, handle, ref ranges } = *holding;
    bytes::write(&OwnerState { node, owner, pid, handle, ranges: ranges.len() }, out)?;
    let range = |&(start, end, kind): &(u64, u64, LockKind)| -> RangeState { (start, end, kind.is_exclusive()) };
    ranges.iter().map(range).try_for_each(|range| bytes::write(&range, out))
}

/// Where a node is, and its handle if that is to be compared.
struct Seen {
    place: Place,
    handle: Option<HandleState>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { place: Place::Unknown, handle: None }
    }
}

struct Saving<'a> {
    tree: &'a Tree,
    is_wanted: &'a dyn Fn() -> bool,
    /// What all paths take.
    path_bytes: Cell<usize>,
    places: Places<'a>,
    /// By their places among `ways`.
    mounts: HashMap<MountKey, u32>,
    ways: Vec<Way>,
}

impl Saving<'_> {
    fn root_handle(&self) -> Result<HandleState> {
        let root = self.tree.table.get(ROOT).and_then(|root| self.tree.table.pin(&root))?;
        FileHandle::of(root.as_fd(), c"").map(|handle| handle.to_parts())
    }

    /// Once in a while whether anybody waits for it, and each time what it takes.
    fn goes_on(&self, at: usize, place: &Place) -> std::result::Result<(), SaveError> {
        if at.is_multiple_of(LOOK_EVERY) && !(self.is_wanted)() {
            return Err(SaveError::Unwanted);
        }
        if let Place::At(path) = place {
            self.path_bytes.set(self.path_bytes.get() + path.len());
        }
        if self.path_bytes.get() > PATH_BYTES_MAX { Err(SaveError::Paths) } else { Ok(()) }
    }

    /// Nodes by where they lie, in the order of their paths; others behind them.
    fn by_paths(&self, inodes: &[Arc<Inode>]) -> std::result::Result<Vec<NodeState>, SaveError> {
        let seen = self.places_of(inodes)?;
        let mut named: Vec<(&Path, &Arc<Inode>, Option<HandleState>)> = Vec::with_capacity(inodes.len());
        let mut others = Vec::new();
        for (Seen { place, handle }, inode) in seen.iter().zip(inodes) {
            let found = match place {
                Place::At(path) => {
                    named.push((path, inode, handle.clone()));
                    continue;
                }
                // A name that only the guest remembers is looked up again.
                Place::Nameless | Place::Unknown if !inode.is_open() => FoundBy::Gone,
                Place::Failed(Errno::STALE) => FoundBy::Gone,
                Place::Nameless | Place::Unknown => FoundBy::Lost(Errno::NOENT.raw_os_error()),
                Place::Failed(error) => FoundBy::Lost(error.raw_os_error()),
            };
            others.push(node_state(inode, found));
        }
        // By components: no name has the byte that a slash becomes.
        named.sort_by_cached_key(|(path, ..)| {
            path.iter().map(|&byte| if byte == b'/' { 0 } else { byte }).collect::<Vec<u8>>()
        });
        let mut before: &[u8] = b"";
        let mut nodes = Vec::with_capacity(inodes.len());
        for (path, inode, handle) in named {
            if self.verifies() && handle.is_none() {
                others.push(node_state(inode, FoundBy::Lost(Errno::OPNOTSUPP.raw_os_error())));
                continue;
            }
            nodes.push(node_state(inode, FoundBy::Path { way: way(before, path), handle }));
            before = path;
        }
        nodes.append(&mut others);
        Ok(nodes)
    }

    fn places_of(&self, inodes: &[Arc<Inode>]) -> std::result::Result<Vec<Seen>, SaveError> {
        let is_directory = |inode: &Arc<Inode>| inode.kind.is_directory();
        let mut seen = Vec::with_capacity(inodes.len());
        for (at, inode) in inodes.iter().enumerate() {
            seen.push(if is_directory(inode) { self.look(inode) } else { Seen::default() });
            self.goes_on(at, &seen[at].place)?;
        }
        let dirs: Vec<_> = inodes
            .iter()
            .zip(&seen)
            .filter_map(|(inode, seen)| match &seen.place {
                Place::At(path) => Some((Arc::clone(inode), path.clone())),
                _ => None,
            })
            .collect();
        self.find(&dirs, inodes, &mut seen, true)?;
        for (at, (inode, seen)) in inodes.iter().zip(&mut seen).enumerate() {
            if seen.place == Place::Unknown && !is_directory(inode) {
                *seen = self.look(inode);
                self.goes_on(at, &seen.place)?;
            }
        }
        self.find(&dirs, inodes, &mut seen, false)?;
        Ok(seen)
    }

    /// Looks for those of which nobody could tell.
    fn find(
        &self,
        dirs: &[(Arc<Inode>, Path)],
        inodes: &[Arc<Inode>],
        seen: &mut [Seen],
        thriftily: bool,
    ) -> std::result::Result<(), SaveError> {
        let unknown = seen.iter().enumerate().filter(|(_, seen)| seen.place == Place::Unknown).map(|(at, _)| at);
        let found = self.places.search(dirs, inodes, (unknown, thriftily), self.is_wanted);
        for Found { at, path, handle } in found.ok_or(SaveError::Unwanted)? {
            if let Some(seen) = seen.get_mut(at) {
                let handle = handle.filter(|_| self.verifies()).as_ref().map(FileHandle::to_parts);
                *seen = Seen { place: Place::At(path), handle };
                self.goes_on(1, &seen.place)?;
            }
        }
        Ok(())
    }

    fn verifies(&self) -> bool {
        self.tree.options.migration.verify_handles
    }

    fn look(&self, inode: &Arc<Inode>) -> Seen {
        self.try_look(inode).unwrap_or_else(|error| Seen { place: Place::Failed(error), handle: None })
    }

    /// A descriptor that has to be made for that is not kept: most of them are looked at this once.
    fn try_look(&self, inode: &Arc<Inode>) -> Result<Seen> {
        if let Some(pin) = inode.pin() {
            return Ok(self.look_at(inode, pin.as_fd(), true));
        }
        let handle = inode.handle.as_ref().filter(|_| !inode.gone.load(Ordering::Relaxed)).ok_or(Errno::STALE)?;
        let fd = handle.open(inode.mount.file()?, OFlags::PATH)?;
        Ok(self.look_at(inode, fd.as_fd(), inode.verified.load(Ordering::Relaxed)))
    }

    fn look_at(&self, inode: &Inode, fd: BorrowedFd<'_>, is_certain: bool) -> Seen {
        let handle = self.verifies().then(|| FileHandle::of(fd, c"").ok()).flatten();
        Seen { place: self.places.of(inode, fd, is_certain), handle: handle.as_ref().map(FileHandle::to_parts) }
    }

    /// Nodes by their handles, and the mounts to open them on.
    fn by_handles(&mut self, inodes: &[Arc<Inode>]) -> std::result::Result<Vec<NodeState>, SaveError> {
        let mut nodes = Vec::with_capacity(inodes.len());
        for (at, inode) in inodes.iter().enumerate() {
            self.goes_on(at, &Place::Unknown)?;
            nodes.push(node_state(inode, self.by_handle(inode)));
        }
        Ok(nodes)
    }

    fn by_handle(&mut self, inode: &Arc<Inode>) -> FoundBy {
        if inode.gone.load(Ordering::Relaxed) && !inode.is_open() {
            return FoundBy::Gone;
        }
        let handle = match &inode.handle {
            Some(handle) => Ok(handle.clone()),
            None => self.tree.table.pin(inode).and_then(|pin| FileHandle::of(pin.as_fd(), c"")),
        };
        match (handle, self.mount_of(inode)) {
            // Whether it leads to this inode is seen where it is opened.
            (Ok(handle), Some(mount)) => FoundBy::Handle { mount, handle: handle.to_parts(), ino: inode.key.ino },
            (Err(Errno::STALE), _) => FoundBy::Gone,
            (Err(error), _) => FoundBy::Lost(error.raw_os_error()),
            (Ok(_), None) => FoundBy::Lost(Errno::XDEV.raw_os_error()),
        }
    }

    /// The place of an inode's mount among those that go along.
    fn mount_of(&mut self, inode: &Arc<Inode>) -> Option<u32> {
        let key = inode.key.mount;
        if let Some(known) = self.mounts.get(&key) {
            return Some(*known);
        }
        let path = if self.tree.table.get(ROOT).is_ok_and(|root| root.key.mount == key) {
            Some(Path::new())
        } else {
            self.way_to_mount(inode, key)
        };
        // Where none leads there, one may through another inode.
        let path = path.filter(|_| self.ways.len() < MOUNTS_MAX)?;
        let place = self.ways.len() as u32;
        self.ways.push(way(b"", &path));
        self.mounts.insert(key, place);
        Some(place)
    }

    /// The first part of an inode's path that is on its mount.
    fn way_to_mount(&self, inode: &Arc<Inode>, key: MountKey) -> Option<Path> {
        let Place::At(path) = self.look(inode).place else { return None };
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
        let parts = ends.filter_map(|end| path.get(..end));
        parts
            .into_iter()
            .find(|part| self.places.key_at(part).is_ok_and(|found| found.mount == key))
            .map(<[u8]>::to_vec)
    }
}

fn node_state(inode: &Inode, found: FoundBy) -> NodeState {
    let references = inode.references.load(Ordering::Relaxed);
    NodeState { node: inode.node, references, kind: inode.kind.mode(), found }
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

/// The way from one path to another.
fn way(before: &[u8], path: &[u8]) -> Way {
    let kept = components(before).zip(components(path)).take_while(|(one, other)| one == other).count();
    Way { kept, names: components(path).skip(kept).collect::<Vec<_>>().join(&b'/') }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ways_lead_from_path_to_path(paths in proptest::collection::vec("[ab](/[ab.]{1,2}){0,4}", 1..20)) {
            let mut here: Vec<Vec<u8>> = Vec::new();
            let mut before: &[u8] = b"";
            for path in &paths {
                let Way { kept, names } = way(before, path.as_bytes());
                prop_assert!(kept <= here.len());
                here.truncate(kept);
                here.extend(names.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec));
                prop_assert_eq!(here.join(&b'/'), path.as_bytes());
                before = path.as_bytes();
            }
        }
    }
}
