//! A mapped tree looks like a passthrough of the same history: random operations on both, compared after each. The
//! passthrough gives files to their owners, so that its daemon has to be root.

use crate::common::{Fixture, c, is_root};
use passthrough::{Attributes, Caller, Change, FileHandles, Node, Options, ROOT, Security};
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;

/// A name in a directory that is found by up to two names.
#[derive(Clone, Debug)]
struct Spot {
    above: Vec<u8>,
    name: u8,
}

#[derive(Clone, Debug)]
struct Who {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

#[derive(Clone, Debug)]
enum Operation {
    Create {
        who: Who,
        at: Spot,
        flags: i32,
        kill: bool,
        mode: u32,
        umask: u32,
    },
    Mkdir {
        who: Who,
        at: Spot,
        mode: u32,
        umask: u32,
    },
    Mknod {
        who: Who,
        at: Spot,
        kind: u32,
        mode: u32,
        rdev: (u32, u32),
        umask: u32,
    },
    Symlink {
        who: Who,
        at: Spot,
        target: String,
    },
    Link {
        from: Spot,
        to: Spot,
    },
    Unlink {
        at: Spot,
    },
    Rmdir {
        at: Spot,
    },
    Rename {
        from: Spot,
        to: Spot,
        flags: u32,
    },
    Set {
        at: Spot,
        change: Change,
    },
    Write {
        at: Spot,
        kill: bool,
    },
    SetXattr {
        at: Spot,
        value: Vec<u8>,
    },
    /// Keeps a node, whatever becomes of its names.
    Hold {
        slot: usize,
        at: Spot,
    },
    SetHeld {
        slot: usize,
        change: Change,
    },
    LinkHeld {
        slot: usize,
        to: Spot,
    },
}

/// What a client can compare: not the links of a directory, which has one more where there are metadata files, nor what a
/// file system counts as a directory's size.
type View = (u32, u32, u32, (u32, u32), Option<(u64, u32)>);

fn view(attributes: &Attributes) -> View {
    let counts = (attributes.mode & libc::S_IFMT != libc::S_IFDIR).then_some((attributes.size, attributes.links));
    (attributes.mode, attributes.uid, attributes.gid, attributes.rdev, counts)
}

struct World {
    at: Fixture,
    held: [Option<Node>; 3],
}

impl World {
    fn new(place: &Path, security: Security) -> World {
        let file_handles = FileHandles::Never;
        let at = Fixture::within(place, Options { security, file_handles, xattr: true, ..Options::default() });
        World { at, held: [None; 3] }
    }

    fn is_file_model(&self) -> bool {
        matches!(self.at.tree.describe().options.security, Security::MappedFile { .. })
    }

    /// Finds a directory, and forgets what it met on the way to it.
    fn directory(&self, spot: &Spot) -> Result<Node, Errno> {
        let mut node = ROOT;
        for &name in &spot.above {
            let next = self.at.tree.lookup(node, &name_of(name));
            self.at.tree.forget(node, 1);
            node = next?.node;
        }
        Ok(node)
    }

    /// Calls `then` with a directory and a name.
    fn at<T>(&self, spot: &Spot, then: impl FnOnce(Node, &std::ffi::CStr) -> Result<T, Errno>) -> Result<T, Errno> {
        let dir = self.directory(spot)?;
        let answer = then(dir, &name_of(spot.name));
        self.at.tree.forget(dir, 1);
        answer
    }

    /// Calls `then` with the node of a name.
    fn of<T>(&self, spot: &Spot, then: impl FnOnce(Node) -> Result<T, Errno>) -> Result<T, Errno> {
        let node = self.at(spot, |dir, name| self.at.tree.lookup(dir, name))?.node;
        let answer = then(node);
        self.at.tree.forget(node, 1);
        answer
    }

    fn apply(&mut self, operation: &Operation) -> Result<Option<View>, Errno> {
        let tree = &self.at.tree;
        let told = |entry: passthrough::Entry| {
            tree.forget(entry.node, 1);
            Some(view(&entry.attributes))
        };
        match operation {
            Operation::Create { who, at, flags, kill, mode, umask } => self.at(at, |dir, name| {
                let (entry, opened) = tree.create(caller(who), dir, name, *flags, *mode, *umask, *kill, None)?;
                tree.release(opened.handle, None);
                Ok(told(entry))
            }),
            Operation::Mkdir { who, at, mode, umask } => {
                self.at(at, |dir, name| tree.mkdir(caller(who), dir, name, *mode, *umask, None).map(told))
            }
            Operation::Mknod { who, at, kind, mode, rdev, umask } => {
                self.at(at, |dir, name| tree.mknod(caller(who), dir, name, kind | mode, *rdev, *umask, None).map(told))
            }
            Operation::Symlink { who, at, target } => {
                self.at(at, |dir, name| tree.symlink(caller(who), dir, name, &c(target), None).map(told))
            }
            Operation::Link { from, to } => {
                self.of(from, |node| self.at(to, |dir, name| tree.link(node, dir, name).map(told)))
            }
            Operation::Unlink { at } => self.at(at, |dir, name| tree.unlink(dir, name).map(|()| None)),
            Operation::Rmdir { at } => self.at(at, |dir, name| tree.rmdir(dir, name).map(|()| None)),
            Operation::Rename { from, to, flags } => self.at(from, |dir, name| {
                self.at(to, |new_dir, new_name| tree.rename(dir, name, new_dir, new_name, *flags).map(|()| None))
            }),
            Operation::Set { at, change } => {
                self.of(at, |node| tree.set_attributes(node, None, change).map(|after| Some(view(&after))))
            }
            Operation::Write { at, kill } => self.of(at, |node| {
                let handle = tree.open(node, libc::O_WRONLY, false)?.handle;
                let file = tree.file(handle).unwrap();
                let write = || rustix::io::pwrite(&*file, b"written", 1);
                let written = if *kill { tree.killing_privileges(&file, write) } else { write() };
                tree.release(handle, None);
                written.and_then(|_| tree.attributes(node, None)).map(|after| Some(view(&after)))
            }),
            Operation::SetXattr { at, value } => self.of(at, |node| {
                // The kernel of the client keeps the others from having such.
                let mode = tree.attributes(node, None)?.mode & libc::S_IFMT;
                if mode == libc::S_IFREG || mode == libc::S_IFDIR {
                    tree.set_xattr(node, c"user.mine", value, 0, false)?;
                }
                Ok(None)
            }),
            Operation::Hold { slot, at } => {
                let node = self.at(at, |dir, name| tree.lookup(dir, name))?.node;
                if let Some(before) = self.held[*slot].replace(node) {
                    self.at.tree.forget(before, 1);
                }
                Ok(None)
            }
            Operation::SetHeld { slot, change } => {
                let Some(node) = self.held[*slot] else { return Ok(None) };
                tree.set_attributes(node, None, change).map(|after| Some(view(&after)))
            }
            Operation::LinkHeld { slot, to } => {
                let Some(node) = self.held[*slot] else { return Ok(None) };
                self.at(to, |dir, name| tree.link(node, dir, name).map(told))
            }
        }
    }

    /// Everything that a client can see, by path, and what is held.
    fn seen(&self) -> BTreeMap<String, (View, Vec<u8>)> {
        let mut all = BTreeMap::new();
        self.look(ROOT, String::new(), &mut all);
        for (slot, node) in self.held.iter().enumerate() {
            if let Some(node) = node {
                let attributes = self.at.tree.attributes(*node, None).unwrap();
                all.insert(format!("held {slot}"), (view(&attributes), Vec::new()));
            }
        }
        all
    }

    fn look(&self, node: Node, path: String, all: &mut BTreeMap<String, (View, Vec<u8>)>) {
        let tree = &self.at.tree;
        let attributes = tree.attributes(node, None).unwrap();
        let mut more = Vec::new();
        match attributes.mode & libc::S_IFMT {
            libc::S_IFLNK => tree.read_link(node, &mut more).unwrap(),
            libc::S_IFREG | libc::S_IFDIR => {
                if let Err(error) = tree.get_xattr(node, c"user.mine", &mut more, 100) {
                    assert_eq!(error, Errno::NODATA);
                }
            }
            _ => {}
        }
        if attributes.mode & libc::S_IFMT == libc::S_IFDIR {
            for name in self.at.names(node) {
                let entry = tree.lookup(node, &c(&name)).unwrap();
                assert_eq!(view(&entry.attributes), view(&tree.attributes(entry.node, None).unwrap()));
                self.look(entry.node, format!("{path}/{name}"), all);
                tree.forget(entry.node, 1);
            }
        }
        all.insert(path, (view(&attributes), more));
    }
}

fn name_of(name: u8) -> std::ffi::CString {
    c(&char::from(b'a' + name).to_string())
}

fn caller(who: &Who) -> Caller<'_> {
    Caller { uid: who.uid, gid: who.gid, groups: &who.groups }
}

fn spot() -> impl Strategy<Value = Spot> {
    (vec(0..3_u8, 0..3), 0..4_u8).prop_map(|(above, name)| Spot { above, name })
}

fn who() -> impl Strategy<Value = Who> {
    let id = || prop::sample::select(vec![0_u32, 100, 200]);
    (id(), id(), prop::sample::select(vec![vec![], vec![200], vec![100, 7]])).prop_map(|(uid, gid, groups)| Who {
        uid,
        gid,
        groups,
    })
}

/// A set-group-id bit comes with the right to execute, which no umask here takes away: without it, whether the bit goes is
/// a matter of the daemon's groups.
fn mode() -> impl Strategy<Value = u32> {
    (0..0o10_000_u32).prop_map(|mode| if mode & 0o2000 == 0 { mode } else { mode | 0o10 })
}

fn umask() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0_u32, 0o022, 0o066])
}

fn change() -> impl Strategy<Value = Change> {
    let id = || proptest::option::of(prop::sample::select(vec![0_u32, 100, 200]));
    let size = proptest::option::weighted(0.2, 0..100_u64);
    (proptest::option::of(mode()), id(), id(), size, any::<bool>()).prop_map(
        |(mode, uid, gid, size, kill_suid_sgid)| Change { mode, uid, gid, size, kill_suid_sgid, ..Change::default() },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as O;
    let kind = prop::sample::select(vec![libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK]);
    let flags = prop::sample::select(vec![0, libc::O_EXCL, libc::O_TRUNC]).prop_map(|flags| flags | libc::O_RDWR);
    let moves = prop::sample::select(vec![0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]);
    let device = (0..4096_u32, 0..0x10_0000_u32);
    prop_oneof![
        3 => (who(), spot(), flags, any::<bool>(), mode(), umask())
            .prop_map(|(who, at, flags, kill, mode, umask)| O::Create { who, at, flags, kill, mode, umask }),
        4 => (who(), spot(), mode(), umask()).prop_map(|(who, at, mode, umask)| O::Mkdir { who, at, mode, umask }),
        3 => (who(), spot(), kind, mode(), device, umask()).prop_map(|(who, at, kind, mode, device, umask)| {
            // The kernel of the client keeps devices to its superuser, as the host's does.
            let is_device = kind == libc::S_IFCHR || kind == libc::S_IFBLK;
            let (who, rdev) = if is_device { (Who { uid: 0, ..who }, device) } else { (who, (0, 0)) };
            O::Mknod { who, at, kind, mode, rdev, umask }
        }),
        2 => (who(), spot(), "[a-z/]{1,40}").prop_map(|(who, at, target)| O::Symlink { who, at, target }),
        3 => (spot(), spot()).prop_map(|(from, to)| O::Link { from, to }),
        2 => spot().prop_map(|at| O::Unlink { at }),
        2 => spot().prop_map(|at| O::Rmdir { at }),
        5 => (spot(), spot(), moves).prop_map(|(from, to, flags)| O::Rename { from, to, flags }),
        4 => (spot(), change()).prop_map(|(at, change)| O::Set { at, change }),
        2 => (spot(), any::<bool>()).prop_map(|(at, kill)| O::Write { at, kill }),
        1 => (spot(), vec(any::<u8>(), 0..20)).prop_map(|(at, value)| O::SetXattr { at, value }),
        2 => (0..3_usize, spot()).prop_map(|(slot, at)| O::Hold { slot, at }),
        2 => (0..3_usize, change()).prop_map(|(slot, change)| O::SetHeld { slot, change }),
        1 => (0..3_usize, spot()).prop_map(|(slot, to)| O::LinkHeld { slot, to }),
    ]
}

fn compare(security: Security, operations: &[Operation]) -> Result<(), TestCaseError> {
    let place = Path::new("/dev/shm");
    let mut mapped = World::new(place, security);
    let mut host = World::new(place, Security::Passthrough);
    for operation in operations {
        let found = mapped.apply(operation);
        // A held file may have names that the client has not looked up since: it is asked to.
        if found == Err(Errno::STALE) && matches!(operation, Operation::SetHeld { .. }) && mapped.is_file_model() {
            continue;
        }
        prop_assert_eq!(found, host.apply(operation), "{:?}", operation);
        prop_assert_eq!(mapped.seen(), host.seen(), "after {:?}", operation);
    }
    let records = |world: &World| walk(world.at.dir.path());
    if mapped.is_file_model() {
        let (files, records) = records(&mapped);
        prop_assert_eq!(records, files, "every file has its record, and every record its file");
    }
    Ok(())
}

/// The files beneath a directory, and those that have a metadata file.
fn walk(dir: &Path) -> (Vec<String>, Vec<String>) {
    let (mut files, mut records) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name == ".virtfs_metadata" {
            let names = std::fs::read_dir(entry.path()).unwrap().map(|entry| entry.unwrap().path());
            records.extend(names.map(|path| dir.join(path.file_name().unwrap()).display().to_string()));
            continue;
        }
        files.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            let (more_files, more_records) = walk(&entry.path());
            files.extend(more_files);
            records.extend(more_records);
        }
    }
    files.sort();
    records.sort();
    (files, records)
}

proptest! {
    #[test]
    fn mapped_xattr_looks_like_a_passthrough(operations in vec(operation(), 1..60)) {
        if is_root() {
            compare(Security::MappedXattr { fmode: 0o600, dmode: 0o700 }, &operations)?;
        }
    }

    #[test]
    fn mapped_file_looks_like_a_passthrough(operations in vec(operation(), 1..60)) {
        if is_root() {
            compare(Security::MappedFile { fmode: 0o600, dmode: 0o700 }, &operations)?;
        }
    }
}
