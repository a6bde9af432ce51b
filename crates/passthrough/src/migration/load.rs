//! A tree that has come from another host: each node is found, each file opened and each lock taken anew.

use super::form::{self, FileState, FoundBy, HandleState, HeadState, NodeState, OwnerState, RangeState, Way};
use super::walk::Walk;
use super::{LOOK_EVERY, LoadError, Loaded};
use crate::file::Flock;
use crate::handle::FileHandle;
use crate::handover::bytes::Reader;
use crate::handover::form::NodeForm;
use crate::lock::{Limits, LockKind};
use crate::mount::Mount;
use crate::node::Inode;
use crate::options::{Migration, MigrationMode, MigrationOnError};
use crate::patience::without_waiting;
use crate::stat::{Key, Kind, stat};
use crate::sync::lock;
use crate::table::Hold;
use crate::{Handle, Lock, Node, ROOT, Result, Tree, lock as locks};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So much of a path is told.
const SHOWN: usize = 100;

impl Tree {
    /// Goes on with what a tree on another host was; its client has nothing here yet. As long as `is_wanted` says so.
    ///
    /// # Errors
    /// A state that contradicts itself or these options; what is not found here, unless the options say to go on without. The
    /// client has nothing then.
    pub fn load(&self, bytes: &[u8], is_wanted: &dyn Fn() -> bool) -> std::result::Result<Loaded, LoadError> {
        let loaded = self.load_all(bytes, is_wanted);
        if loaded.is_err() {
            self.begin_anew();
        }
        loaded
    }

    fn load_all(&self, bytes: &[u8], is_wanted: &dyn Fn() -> bool) -> std::result::Result<Loaded, LoadError> {
        let mut bytes = Reader::new(bytes);
        let head: HeadState = bytes.next()?;
        self.fits(&head)?;
        let walk = Walk::new(self).map_err(LoadError::Root)?;
        let mut loading = Loading {
            tree: self,
            walk,
            mounts: Vec::new(),
            open: HashSet::new(),
            locked_by: HashSet::new(),
            handles: Handles::default(),
            without_locks: HashSet::new(),
            next: (head.next_node, head.next_handle),
            loaded: Loaded::default(),
        };
        let each = |count: usize, act: &mut dyn FnMut() -> std::result::Result<(), LoadError>| {
            for at in 0..count {
                if at.is_multiple_of(LOOK_EVERY) && !is_wanted() {
                    return Err(LoadError::Unwanted);
                }
                act()?;
            }
            Ok(())
        };
        let mut files: Vec<FileState> = Vec::new();
        let mut owners: Vec<(OwnerState, Vec<RangeState>)> = Vec::new();
        let mut ranges_left = Limits::default().ranges;
        each(head.mounts, &mut || {
            loading.find_mount(&bytes.next()?);
            Ok(())
        })?;
        each(head.files, &mut || {
            files.push(bytes.next()?);
            Ok(())
        })?;
        each(head.owners, &mut || {
            let owner: OwnerState = bytes.next()?;
            at_most("ranges of locks", owner.ranges, ranges_left)?;
            ranges_left -= owner.ranges;
            let mut ranges = Vec::new();
            each(owner.ranges, &mut || {
                ranges.push(bytes.next()?);
                Ok(())
            })?;
            owners.push((owner, ranges));
            Ok(())
        })?;
        loading.open = files.iter().map(|file| file.node).collect();
        loading.locked_by = owners.iter().map(|(owner, _)| owner.handle).collect();
        bytes.has_room_for(head.nodes, form::NODE_BYTES_MIN)?;
        self.table.expect(head.nodes);
        // Numbers that were given away are not given away again.
        self.table.go_on_from(head.next_node);
        self.files.go_on_from(head.next_handle);
        // What its client knows may be among them.
        self.group_bits.store(true, Ordering::Relaxed);
        each(head.nodes, &mut || loading.node(&bytes.next()?))?;
        bytes.end()?;
        loading.lose_another_file_system();
        let mut files = files.iter();
        each(files.len(), &mut || files.next().map_or(Ok(()), |file| loading.file(file)))?;
        for (owner, ranges) in &owners {
            let mut taken = Ok(());
            let mut left = ranges.iter();
            each(ranges.len(), &mut || {
                if let Some(range) = left.next().filter(|_| taken.is_ok()) {
                    taken = loading.take(owner, range);
                }
                Ok(())
            })?;
            loading.owner(owner, taken);
        }
        // Behind all that were taken.
        self.lose_files_of(&loading.without_locks);
        let loaded = loading.loaded;
        match &loaded.first_lost {
            Some(first) if self.options.migration.on_error == MigrationOnError::Abort => {
                Err(LoadError::Lost { first: first.clone(), others: loaded.lost - 1 })
            }
            _ => Ok(loaded),
        }
    }

    /// Whether what has come is a tree of these options.
    fn fits(&self, head: &HeadState) -> std::result::Result<(), LoadError> {
        let ours = self.options.security.name();
        if head.security != ours {
            let theirs = head.security.chars().take(SHOWN).flat_map(char::escape_debug).collect();
            return Err(LoadError::Security { theirs, ours });
        }
        if head.writeback != self.options.writeback {
            return Err(LoadError::Writeback { theirs: head.writeback, ours: self.options.writeback });
        }
        at_most("mounts", head.mounts, form::MOUNTS_MAX)?;
        at_most("open files", head.files, self.options.open_files_max)?;
        at_most("owners of locks", head.owners, Limits::default().owners)?;
        at_most("nodes", head.nodes, self.options.nodes_max.saturating_sub(1))?;
        number("node", head.next_node)?;
        number("open file", head.next_handle)?;
        if let Some(theirs) = &head.root {
            let root = self.table.get(ROOT).and_then(|root| self.table.pin(&root)).map_err(LoadError::Root)?;
            if !is_handle(theirs, &FileHandle::of(root.as_fd(), c"").map_err(LoadError::Root)?) {
                return Err(LoadError::AnotherRoot);
            }
        }
        Ok(())
    }
}

/// A number that a client may have been given.
fn number(what: &'static str, number: u64) -> std::result::Result<(), LoadError> {
    if number < form::NUMBER_MAX { Ok(()) } else { Err(LoadError::Number { what, number }) }
}

fn at_most(what: &'static str, count: usize, most: usize) -> std::result::Result<(), LoadError> {
    if count <= most { Ok(()) } else { Err(LoadError::TooMany { what, count, most }) }
}

fn is_handle((kind, bytes): &HandleState, handle: &FileHandle) -> bool {
    handle.parts() == (*kind, bytes.as_slice())
}

/// What a way led to.
struct Seen {
    key: Key,
    kind: Kind,
    mount: Arc<Mount>,
    hold: Hold,
}

/// Why something is not had here.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
enum Why {
    /// {0}
    Kernel(#[from] Errno),
    /// it is another file than where the guest comes from
    Another,
    /// it is of another type than where the guest comes from
    Type,
}

struct Loading<'a> {
    tree: &'a Tree,
    walk: Walk<'a>,
    /// Where file handles are opened.
    mounts: Vec<Result<Arc<Mount>>>,
    /// Nodes that the client has open.
    open: HashSet<Node>,
    /// Open files by which locks came.
    locked_by: HashSet<Handle>,
    handles: Handles,
    /// Nodes whose locks are not all had here.
    without_locks: HashSet<Node>,
    /// Above all numbers of nodes, and of open files.
    next: (u64, u64),
    loaded: Loaded,
}

/// What became of file handles.
#[derive(Default)]
struct Handles {
    opened: usize,
    /// The first that led nowhere, of a node that nobody has open.
    stale: Option<Node>,
}

impl Loading<'_> {
    fn migration(&self) -> Migration {
        self.tree.options.migration
    }

    fn lose(&mut self, what: impl FnOnce() -> String, why: impl Into<Why>) {
        self.loaded.lost += 1;
        if self.loaded.first_lost.is_none() {
            self.loaded.first_lost = Some(format!("{}: {}", what(), why.into()));
        }
    }

    fn find_mount(&mut self, way: &Way) {
        let mount = self.look_for_mount(way);
        self.mounts.push(mount);
    }

    fn look_for_mount(&mut self, way: &Way) -> Result<Arc<Mount>> {
        self.walk.go(&Way { kept: 0, ..way.clone() })?;
        let fd = self.walk.here()?;
        let seen = stat(fd, c"")?;
        let mount = self.tree.mounts.get(Key::of(&seen).mount);
        let (proc_self_fd, wish) = (self.tree.proc_self_fd.as_fd(), self.tree.options.file_handles);
        mount.explore(proc_self_fd, fd, Kind::of(&seen), wish);
        Ok(mount)
    }

    /// Single files may be gone. Where none of their handles leads anywhere, the file system is another one: roots of two can have the same.
    fn lose_another_file_system(&mut self) {
        if let (0, Some(node)) = (self.handles.opened, self.handles.stale) {
            self.lose(|| format!("inode {node}, as all others"), Errno::STALE);
        }
    }

    fn node(&mut self, state: &NodeState) -> std::result::Result<(), LoadError> {
        if !(ROOT + 1..self.next.0).contains(&state.node) {
            return Err(LoadError::Number { what: "node", number: state.node });
        }
        self.loaded.nodes += 1;
        let seen = match &state.found {
            FoundBy::Path { way, handle } => match self.walk.go(way) {
                Err(Errno::INVAL) => return Err(LoadError::Way(state.node)),
                gone => gone.map_err(Why::from).and_then(|()| self.see(handle.as_ref())),
            },
            FoundBy::Handle { .. } if self.migration().mode != MigrationMode::FileHandles => {
                return Err(LoadError::Handles);
            }
            FoundBy::Handle { mount, handle, ino } => match self.open_handle(*mount, handle) {
                Ok(seen) if seen.key.ino != *ino => Err(Why::Another),
                opened => opened.inspect(|_| self.handles.opened += 1).map_err(Why::from),
            },
            FoundBy::Gone => return self.adopt(state, None).map(drop),
            FoundBy::Lost(error) => Err(errno(*error).into()),
        };
        let seen = seen.and_then(|seen| if seen.kind.mode() == state.kind { Ok(seen) } else { Err(Why::Type) });
        let named = matches!(state.found, FoundBy::Path { .. });
        match seen.and_then(|seen| Ok(self.has_room(&seen).map(|()| seen)?)) {
            Ok(seen) => {
                let inode = self.adopt(state, Some(seen))?;
                if named {
                    self.walk.found(&inode);
                    if let Err(error) = self.find_record(&inode) {
                        self.lose(|| format!("record of inode {}", state.node), error);
                    }
                }
                Ok(())
            }
            // It was gone where it comes from.
            Err(Why::Kernel(Errno::STALE)) if !named && !self.open.contains(&state.node) => {
                self.handles.stale.get_or_insert(state.node);
                self.adopt(state, None).map(drop)
            }
            Err(why) => {
                let path = (named && self.loaded.lost == 0).then(|| self.walk.path(SHOWN));
                self.lose(|| path.unwrap_or_else(|| format!("inode {}", state.node)), why);
                self.adopt(state, None).map(drop)
            }
        }
    }

    /// What is where we are.
    fn see(&mut self, expected: Option<&HandleState>) -> std::result::Result<Seen, Why> {
        let (tree, mapped) = (self.tree, self.tree.mapped.as_deref());
        let near = tree.table.get(ROOT)?.mount.clone();
        let Some((dir, name)) = self.walk.last()? else { return Err(Errno::INVAL.into()) };
        let by_name = if mapped.is_some() {
            None
        } else {
            let seen = stat(dir, &name)?;
            tree.handle_of_name(dir, &near, &name, &seen, false)?.map(|(mount, handle)| {
                let hold = Hold { path: None, handle: Some(handle), verified: false };
                Seen { key: Key::of(&seen), kind: Kind::of(&seen), mount, hold }
            })
        };
        let seen = match by_name {
            Some(seen) => seen,
            None => {
                let (seen, mount, hold) = tree.hold_by_path(dir, &near, &name)?;
                Seen { key: Key::of(&seen), kind: Kind::of(&seen), mount, hold }
            }
        };
        if let Some(wanted) = expected {
            let is_it = match &seen.hold.handle {
                Some(handle) => is_handle(wanted, handle),
                None => FileHandle::of(dir, &name).is_ok_and(|handle| is_handle(wanted, &handle)),
            };
            if !is_it {
                return Err(Why::Another);
            }
        }
        Ok(seen)
    }

    fn open_handle(&self, mount: u32, (kind, bytes): &HandleState) -> Result<Seen> {
        let mount = self.mounts.get(mount as usize).ok_or(Errno::INVAL)?.as_ref().map_err(|error| *error)?;
        if bytes.len() > form::HANDLE_MAX {
            return Err(Errno::INVAL);
        }
        let handle = FileHandle::again(*kind, bytes);
        let fd = handle.open(mount.file()?, OFlags::PATH)?;
        let seen = stat(fd.as_fd(), c"")?;
        let (mount, own) = self.tree.hold_of(mount, fd.as_fd(), &seen)?;
        let hold = Hold { path: Some(fd), handle: own, verified: true };
        Ok(Seen { key: Key::of(&seen), kind: Kind::of(&seen), mount, hold })
    }

    /// The bounds that look-ups have.
    fn has_room(&self, seen: &Seen) -> Result<()> {
        self.tree.table.has_room(seen.hold.handle.is_none())
    }

    /// Makes the node again; one that nothing was seen of is stale from the beginning.
    fn adopt(&self, state: &NodeState, seen: Option<Seen>) -> std::result::Result<Arc<Inode>, LoadError> {
        let root = self.tree.table.get(ROOT).map_err(LoadError::Root)?;
        let (key, mount, hold) = match seen {
            Some(Seen { key, mount, hold, .. }) => (key, mount, hold),
            None => (root.key, Arc::clone(&root.mount), Hold::default()),
        };
        let handle = hold.handle.as_ref().map(FileHandle::to_parts);
        let form = NodeForm {
            node: state.node,
            ino: key.ino,
            mount: 0,
            kind: state.kind,
            references: state.references.clamp(1, form::REFERENCES_MAX),
            verified: hold.verified,
            current: (hold.path.is_some() || handle.is_some()) && self.tree.table.node_of(&key).is_none(),
            handle,
            path: None,
            read: None,
        };
        let path = hold.path.filter(|_| form.handle.is_none() || self.tree.table.keeps_more());
        let adopted = self.tree.table.adopt(&form, mount, path);
        adopted.map_err(|_| LoadError::Number { what: "node", number: state.node })
    }

    fn find_record(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let Some(mapped) = self.tree.mapped.as_deref().filter(|mapped| mapped.is_beside_names()) else { return Ok(()) };
        let above = self.walk.above()?;
        let Some((dir, name)) = self.walk.last()? else { return Ok(()) };
        self.tree.find_record(mapped, (&above, dir, &name), inode)
    }

    fn file(&mut self, state: &FileState) -> std::result::Result<(), LoadError> {
        if !(1..self.next.1).contains(&state.handle) || self.tree.files.get(state.handle).is_ok() {
            return Err(LoadError::Number { what: "open file", number: state.handle });
        }
        self.loaded.files += 1;
        if let Err(error) = self.open_file(state) {
            // Nobody could unlock what came by it.
            if state.flock.is_some() || self.locked_by.contains(&state.handle) {
                self.without_locks.insert(state.node);
            }
            self.lose(|| format!("open file {} of inode {}", state.handle, state.node), error);
        }
        Ok(())
    }

    fn open_file(&self, state: &FileState) -> Result<()> {
        let tree = self.tree;
        let inode = tree.table.get(state.node)?;
        let flags = if inode.kind.is_directory() {
            OFlags::RDONLY | OFlags::DIRECTORY
        } else {
            // It was emptied when it was opened, if at all.
            tree.host_flags(state.flags.cast_signed())?.difference(OFlags::TRUNC)
        };
        let room = tree.room()?;
        // Whoever has a lease on it would have the frontend wait for him.
        let fd: OwnedFd = without_waiting(|| tree.open_node(&inode, flags)).ok_or(Errno::BUSY)??;
        let file = tree.opened(&inode, fd, flags, room);
        if file.is_writable() {
            // Nobody wrote down whether it was.
            file.empties();
        }
        if let Some(exclusive) = state.flock {
            let kind = LockKind::exclusive(exclusive);
            let joined = Some(tree.join_flocks(&file)?);
            locks::flock(file.as_fd(), kind)?;
            *lock(&file.flock) = Flock { joined, kind: Some(kind) };
        }
        lock(&inode.slot).opened(&file);
        tree.files.adopt(state.handle, file);
        Ok(())
    }

    fn owner(&mut self, state: &OwnerState, taken: Result<()>) {
        self.loaded.owners += 1;
        let OwnerState { node, owner, handle, .. } = *state;
        match taken {
            Ok(()) => self.tree.locks.came_by(node, owner, handle),
            Err(error) => {
                self.without_locks.insert(node);
                self.lose(|| format!("locks of open file {handle} of inode {node}"), error);
            }
        }
    }

    fn take(&self, state: &OwnerState, &(start, end, exclusive): &RangeState) -> Result<()> {
        let inode = self.tree.table.get(state.node)?;
        let wanted = Lock { kind: LockKind::exclusive(exclusive), start, end, pid: state.pid };
        let open = |flags| without_waiting(|| self.tree.open_to_lock(&inode, flags)).ok_or(Errno::BUSY)?;
        self.tree.locks.set(state.node, state.owner, wanted, open)
    }
}

/// The error that somebody had elsewhere.
fn errno(number: i32) -> Errno {
    // The numbers of the kernel are 1 to 4095.
    if (1..4096).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO }
}
