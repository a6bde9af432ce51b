//! Places: where a client has walked to.
//!
//! A place is a node and the way to it, one link a name, as the client walked it: `..` goes back that way and never further than
//! it began. All fids of a session that went the same way share one place, so that a name that the session changes changes for
//! all of them. Nothing is ever found by a path: the way only says what `..` is, and by which name a file is removed or renamed
//! when the client names nothing but the fid.
//!
//! Locks are taken in this order: renames, and then one at a time of what places have.

use super::bound::Bound;
use super::fids::FIDS_MAX;
use device::p9::qid_type;
use device::p9::spec::NAME_BYTES_MAX;
use passthrough::{Node, ROOT, Tree};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The most places of one session, those on the way to its fids included: a client that makes directories in each other without
/// end is told ENFILE.
pub(super) const PLACES_MAX: usize = FIDS_MAX + FIDS_MAX / 4;

/// The most places of all sessions of an export.
pub(super) const PLACES_OF_ALL_MAX: usize = 2 * PLACES_MAX;

/// How far a rename looks back for what moves: longer than any path that a program can name. What is moved further down is no
/// longer known by its name.
const WAY_MAX: usize = 4096;

/// How many links of a way are given back at once by the last who has it: a way may have a million.
const GIVEN_BACK_AT_ONCE: usize = 64;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One component of a path as system calls take it.
pub(super) struct Name([u8; NAME_BYTES_MAX + 1]);

impl Name {
    /// # Errors
    /// `ENAMETOOLONG`; `EINVAL` for a NUL inside.
    pub(super) fn new(name: &[u8]) -> Result<Name, Errno> {
        let mut bytes = [0; NAME_BYTES_MAX + 1];
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if name.contains(&0) {
            return Err(Errno::INVAL);
        }
        bytes.iter_mut().zip(name).for_each(|(to, &from)| *to = from);
        Ok(Name(bytes))
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// What the places of one session have in common.
pub(super) struct Ground {
    pub(super) tree: Arc<Tree>,
    places: Bound,
    /// Held while a place moves, so that none can get beneath itself.
    renames: Mutex<()>,
    /// Ways that nobody has any more, and of which the rest is still to be given back.
    left: Mutex<Vec<Arc<Place>>>,
    /// Nobody comes to do that later.
    over: AtomicBool,
}

impl Ground {
    pub(super) fn new(tree: Arc<Tree>, places: Bound) -> Arc<Ground> {
        Arc::new(Ground {
            tree,
            places,
            renames: Mutex::default(),
            left: Mutex::default(),
            over: AtomicBool::new(false),
        })
    }

    /// Gives back what begins with `first`, and then what was left before: so many links of it, the rest is left. True when
    /// there is none.
    fn give_back(&self, first: Option<Arc<Place>>, most: usize) -> bool {
        let mut next = first;
        for _ in 0..most {
            let Some(place) = next.or_else(|| lock(&self.left).pop()) else { return true };
            next = Arc::into_inner(place).and_then(|mut last| last.leave());
        }
        let done = next.is_none();
        lock(&self.left).extend(next);
        done && lock(&self.left).is_empty()
    }

    /// Gives back some of what was left; true when there is no more.
    pub(super) fn give_back_some(&self) -> bool {
        self.give_back(None, GIVEN_BACK_AT_ONCE * GIVEN_BACK_AT_ONCE)
    }

    /// The session is over: from now on everything is given back at once.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.give_back(None, usize::MAX);
    }
}

/// The last link of the way.
struct Link {
    /// `None` where the tree begins.
    parent: Option<Arc<Place>>,
    name: Arc<CStr>,
    /// The name is gone, or stands for another file now.
    gone: bool,
}

/// A node that the client knows by a name.
pub(super) struct Place {
    ground: Arc<Ground>,
    /// One reference to it is the place's.
    node: Node,
    /// Type of its qid.
    kind: u8,
    /// Number of its qid.
    path: u64,
    link: Mutex<Link>,
    /// The places beneath this one that somebody still has.
    children: Mutex<BTreeMap<Arc<CStr>, Weak<Place>>>,
}

impl Place {
    /// Where the tree begins. `kind` and `path` are of its qid.
    pub(super) fn root(ground: &Arc<Ground>, (kind, path): (u8, u64)) -> Arc<Place> {
        ground.places.take_anyway(1);
        Place::new(ground, ROOT, (kind, path), Link { parent: None, name: Arc::from(c"/"), gone: false })
    }

    /// One that is counted already.
    fn new(ground: &Arc<Ground>, node: Node, (kind, path): (u8, u64), link: Link) -> Arc<Place> {
        let (ground, link, children) = (Arc::clone(ground), Mutex::new(link), Mutex::default());
        Arc::new(Place { ground, node, kind, path, link, children })
    }

    pub(super) fn node(&self) -> Node {
        self.node
    }

    pub(super) fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == qid_type::DIR
    }

    /// Type and number of its qid.
    pub(super) fn qid(&self) -> (u8, u64) {
        (self.kind, self.path)
    }

    pub(super) fn parent(&self) -> Option<Arc<Place>> {
        lock(&self.link).parent.clone()
    }

    /// The name by which it was reached; "/" where the tree begins.
    pub(super) fn name(&self) -> Arc<CStr> {
        Arc::clone(&lock(&self.link).name)
    }

    /// The directory and the name by which it was reached, if that is still its name as far as this session knows.
    ///
    /// # Errors
    /// `EBUSY` where the tree begins, `ENOENT` when the name is gone.
    pub(super) fn reached_by(&self) -> Result<(Arc<Place>, Arc<CStr>), Errno> {
        let link = lock(&self.link);
        let parent = link.parent.as_ref().ok_or(Errno::BUSY)?;
        if link.gone { Err(Errno::NOENT) } else { Ok((Arc::clone(parent), Arc::clone(&link.name))) }
    }

    /// The place of `name` in this one, which was just found to be `node`; the reference that finding it gave becomes the
    /// place's, or is given back.
    ///
    /// # Errors
    /// `ENFILE` when there are too many places.
    pub(super) fn child(
        self: &Arc<Place>,
        name: &CStr,
        node: Node,
        (kind, path): (u8, u64),
    ) -> Result<Arc<Place>, Errno> {
        let mut children = lock(&self.children);
        let known = children.get(name).and_then(Weak::upgrade);
        if let Some(known) = known.as_ref().filter(|known| known.node == node) {
            let known = Arc::clone(known);
            drop(children);
            self.ground.tree.forget(node, 1);
            return Ok(known);
        }
        if !self.ground.places.take() {
            drop(children);
            self.ground.tree.forget(node, 1);
            return Err(Errno::NFILE);
        }
        let name: Arc<CStr> = Arc::from(name);
        let link = Link { parent: Some(Arc::clone(self)), name: Arc::clone(&name), gone: false };
        let place = Place::new(&self.ground, node, (kind, path), link);
        children.insert(name, Arc::downgrade(&place));
        drop(children);
        if let Some(known) = known {
            lock(&known.link).gone = true;
        }
        Ok(place)
    }

    /// A name in this place was removed.
    pub(super) fn removed(&self, name: &CStr) {
        let child = lock(&self.children).remove(name);
        if let Some(child) = child.and_then(|child| child.upgrade()) {
            lock(&child.link).gone = true;
        }
    }

    /// `name` in this place has become `new_name` in `to`.
    pub(super) fn renamed(&self, name: &CStr, to: &Arc<Place>, new_name: &CStr) {
        if std::ptr::eq(self, Arc::as_ptr(to)) && name == new_name {
            return;
        }
        let _one_at_a_time = lock(&self.ground.renames);
        let moved = lock(&self.children).remove(name).and_then(|child| child.upgrade());
        let Some(moved) = moved else { return to.removed(new_name) };
        // Within one directory nothing can get beneath itself.
        if !std::ptr::eq(self, Arc::as_ptr(to)) && !to.is_elsewhere_than(&moved) {
            // The host knows better: somebody else has moved one of them. The way there would never end.
            lock(&moved.link).gone = true;
            return;
        }
        let new_name: Arc<CStr> = Arc::from(new_name);
        let replaced = lock(&to.children).insert(Arc::clone(&new_name), Arc::downgrade(&moved));
        if let Some(replaced) = replaced.and_then(|place| place.upgrade()) {
            lock(&replaced.link).gone = true;
        }
        let link = Link { parent: Some(Arc::clone(to)), name: new_name, gone: false };
        let old = std::mem::replace(&mut *lock(&moved.link), link);
        // The last to have the old parent, perhaps: without the lock.
        drop(old);
    }

    /// Whether this is neither `other` nor beneath it, as far back as is looked.
    fn is_elsewhere_than(self: &Arc<Place>, other: &Arc<Place>) -> bool {
        if !other.is_directory() {
            return true;
        }
        let mut at = Some(Arc::clone(self));
        for _ in 0..WAY_MAX {
            let Some(place) = at else { return true };
            if Arc::ptr_eq(&place, other) {
                return false;
            }
            at = place.parent();
        }
        false
    }

    /// A child is gone, unless there is another of its name.
    fn lose(&self, name: &CStr) {
        let mut children = lock(&self.children);
        if children.get(name).is_some_and(|child| child.strong_count() == 0) {
            children.remove(name);
        }
    }

    /// Leaves its parent, which is answered.
    fn leave(&mut self) -> Option<Arc<Place>> {
        let link = self.link.get_mut().unwrap_or_else(PoisonError::into_inner);
        let parent = link.parent.take();
        if let Some(parent) = &parent {
            parent.lose(&link.name);
        }
        parent
    }
}

impl Drop for Place {
    /// The way back may be longer than a stack is deep, and take longer than others want to wait.
    fn drop(&mut self) {
        self.ground.tree.forget(self.node, 1);
        self.ground.places.give(1);
        if let Some(parent) = self.leave() {
            let most = if self.ground.over.load(Ordering::Acquire) { usize::MAX } else { GIVEN_BACK_AT_ONCE };
            self.ground.give_back(Some(parent), most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bound::Supply;
    use super::*;
    use passthrough::{Options, Source};

    const FILE: (u8, u64) = (0, 1);
    const DIRECTORY: (u8, u64) = (0x80, 1);

    fn ground(places_max: usize) -> (Arc<Ground>, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        (Ground::new(Arc::new(tree), Bound::new(places_max, &Supply::new(usize::MAX, 1))), directory)
    }

    /// Nodes that the tree does not know: what is forgotten of them is nothing.
    fn child(parent: &Arc<Place>, name: &CStr, node: Node) -> Arc<Place> {
        parent.child(name, node, DIRECTORY).unwrap()
    }

    #[test]
    fn fids_that_went_the_same_way_share_a_place() {
        let (ground, _directory) = ground(10);
        let root = Place::root(&ground, DIRECTORY);
        let one = child(&root, c"name", 1001);
        assert!(Arc::ptr_eq(&one, &child(&root, c"name", 1001)));
        let another = child(&root, c"name", 1002);
        assert_eq!(one.reached_by().err(), Some(Errno::NOENT), "the name stands for another file now");
        assert!(another.reached_by().is_ok());
        assert_eq!(root.reached_by().err(), Some(Errno::BUSY));
        drop((one, another));
        assert!(lock(&root.children).is_empty());
        assert_eq!(ground.places.len(), 1);
    }

    #[test]
    fn a_rename_takes_along_what_is_beneath() {
        let (ground, _directory) = ground(10);
        let root = Place::root(&ground, DIRECTORY);
        let (from, to) = (child(&root, c"from", 1001), child(&root, c"to", 1002));
        let moved = child(&from, c"directory", 1003);
        let inner = moved.child(c"inner", 1004, FILE).unwrap();
        let replaced = child(&to, c"new", 1005);
        from.renamed(c"directory", &to, c"new");
        assert_eq!(&*moved.name(), c"new");
        assert!(Arc::ptr_eq(&moved.parent().unwrap(), &to));
        assert!(Arc::ptr_eq(&inner.parent().unwrap(), &moved));
        assert_eq!(replaced.reached_by().err(), Some(Errno::NOENT));
        // Its place is taken: that it goes leaves the other's.
        drop(replaced);
        assert!(Arc::ptr_eq(&child(&to, c"new", 1003), &moved));
        to.removed(c"new");
        assert_eq!(moved.reached_by().err(), Some(Errno::NOENT));
    }

    #[test]
    fn no_place_gets_beneath_itself() {
        let (ground, _directory) = ground(10);
        let root = Place::root(&ground, DIRECTORY);
        let outer = child(&root, c"outer", 1001);
        let inner = child(&outer, c"inner", 1002);
        // As when somebody else has moved the inner one out of the outer before.
        root.renamed(c"outer", &inner, c"outer");
        assert_eq!(outer.reached_by().err(), Some(Errno::NOENT));
        drop((outer, inner));
        assert_eq!(ground.places.len(), 1);
    }

    #[test]
    fn ways_are_long_and_bounded() {
        let (ground, _directory) = ground(200_000);
        let mut at = Place::root(&ground, DIRECTORY);
        for node in 0..199_999 {
            at = child(&at, c"d", 1000 + node);
        }
        assert_eq!(at.child(c"d", 1, DIRECTORY).err(), Some(Errno::NFILE));
        // Nobody looks back all the way when something moves to its end.
        let mut first = Arc::clone(&at);
        while let Some(parent) = first.parent().filter(|parent| parent.parent().is_some()) {
            first = parent;
        }
        let root = first.parent().unwrap();
        root.renamed(c"d", &at, c"moved");
        assert_eq!(first.reached_by().err(), Some(Errno::NOENT));
        drop((first, root));
        // The last who has it gives back a piece of the way, and others the rest.
        drop(at);
        let mut left = vec![ground.places.len()];
        while !ground.give_back_some() {
            left.push(ground.places.len());
        }
        assert!(left.len() > 40 && left.windows(2).all(|pair| pair[0] - pair[1] <= 4096), "{left:?}");
        assert_eq!(ground.places.len(), 0);
    }

    #[test]
    fn what_is_left_of_a_way_goes_with_other_places_and_at_the_end() {
        let (ground, _directory) = ground(10_000);
        let root = Place::root(&ground, DIRECTORY);
        let long_way = || (0..1000).fold(Arc::clone(&root), |at, node| child(&at, c"d", 1000 + node));
        drop(long_way());
        assert_eq!(ground.places.len(), 1000 - GIVEN_BACK_AT_ONCE);
        // It can be walked again meanwhile.
        let found = child(&root, c"d", 1000);
        for _ in 0..20 {
            drop(child(&root, c"other", 9999));
        }
        assert_eq!(ground.places.len(), 2, "the root, and what was walked again");
        drop(found);
        drop(long_way());
        ground.end();
        assert_eq!(ground.places.len(), 1);
        drop(long_way());
        assert_eq!(ground.places.len(), 1);
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(Name::new(b"name").unwrap().as_c_str(), c"name");
        assert_eq!(Name::new(&[b'x'; 255]).unwrap().as_c_str().count_bytes(), 255);
        assert_eq!(Name::new(&[b'x'; 256]).err(), Some(Errno::NAMETOOLONG));
        assert_eq!(Name::new(b"a\0b").err(), Some(Errno::INVAL));
        assert_eq!(Name::new(b"").unwrap().as_c_str(), c"");
    }
}
