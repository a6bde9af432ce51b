//! Files in a guest's memory, with a frontend that does what QEMU does, and one that does not.

mod guest;

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use engine::{Execution, Placement, Poll, WorkerSpec};
use export::{Carried, DaxOptions, DirectoryOptions, Engine, Export, Hosting, Policy, Socket};
use guest::{Asked, Frontend, Guest, SLOT_BYTES, opcode};
use passthrough::{Options, Source, Tree};
use tempfile::TempDir;
use values::{CachePolicy, DaxWhen};
use vhost::VhostBackend;
use vhost_user::SocketOptions;

/// Eight slots.
const WINDOW_BYTES: u64 = 8 * SLOT_BYTES;
/// FUSE_MAP_ALIGNMENT and FUSE_HAS_INODE_DAX of INIT, and FUSE_ATTR_DAX of attributes.
const MAP_ALIGNMENT: u64 = 1 << 26;
const HAS_INODE_DAX: u64 = 1 << 33;
const ATTR_DAX: u32 = 1 << 1;

/// A directory with a file of four slots, `file`, and others, and the socket at which it is served.
struct Server {
    export: Export,
    shared: TempDir,
    files: TempDir,
}

impl Server {
    fn new(when: DaxWhen) -> Server {
        let (shared, files) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        for (name, size) in [("file", 4 * SLOT_BYTES), ("tail", 3 * SLOT_BYTES + 1), ("small", 5000), ("empty", 0)] {
            std::fs::File::create(shared.path().join(name)).unwrap().set_len(size).unwrap();
        }
        let tree = Tree::new(Source::Path(shared.path().to_owned()), Options::default()).unwrap();
        let hosting = Hosting {
            name: "dax".to_owned(),
            socket: Socket::Path { path: files.path().join("fs.sock"), options: SocketOptions::default() },
            queue_size_max: 256,
            placement: Placement::One,
            poll: Poll::Off,
            workers: WorkerSpec::default(),
            session_ended: None,
            failed: None,
            carried: Carried::default(),
            resume: None,
        };
        let dax = Some(DaxOptions { window_bytes: WINDOW_BYTES, when });
        let options = DirectoryOptions {
            tag: Some("dax".to_owned()),
            request_queues: 1,
            policy: Policy { dax, ..Policy::new(CachePolicy::Auto) },
            execution: Execution::Auto,
        };
        let export = Export::directory(hosting, options, Arc::new(tree), &Engine::new(1)).unwrap();
        Server { export, shared, files }
    }

    fn connect(&self, asks: bool) -> (Guest, Frontend) {
        Guest::connect(&self.files.path().join("fs.sock"), asks)
    }

    /// A guest that has mounted.
    fn mounted(&self) -> (Guest, Frontend) {
        let (mut guest, frontend) = self.connect(true);
        guest.mount();
        (guest, frontend)
    }

    fn mapped(&self) -> usize {
        match self.export.status().content {
            export::Content::Directory(directory) => directory.dax_mapped,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_window_is_used_once_the_frontend_has_asked_for_it() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.connect(false);
    assert_eq!(guest.mount().0 & (MAP_ALIGNMENT | HAS_INODE_DAX), 0);
    let (node, flags) = guest.look_up("file");
    assert_eq!(flags, 0);
    let sent = guest.map(node, 0, SLOT_BYTES, 0);
    assert_eq!(guest.wait(sent), Err(libc::ENOSYS));
    assert!(frontend.is_idle());
    drop((guest, frontend));
    // One that has it and could not be told what to map there.
    let (mut guest, frontend) = Guest::connect_with(&server.files.path().join("fs.sock"), true, false);
    assert_eq!(guest.mount().0 & (MAP_ALIGNMENT | HAS_INODE_DAX), 0);
    assert_eq!(guest.look_up("file").1, 0);
    drop((guest, frontend));
    let (mut guest, _frontend) = server.connect(true);
    let (granted, alignment) = guest.mount();
    assert_eq!((granted & (MAP_ALIGNMENT | HAS_INODE_DAX), alignment), (MAP_ALIGNMENT | HAS_INODE_DAX, 21));
}

#[test]
fn guests_are_told_to_map_what_can_be_mapped_to_its_end() {
    for when in [DaxWhen::Never, DaxWhen::Inode, DaxWhen::Always] {
        let server = Server::new(when);
        let (mut guest, _frontend) = server.mounted();
        for name in ["tail", "small", "empty"] {
            assert_eq!(guest.look_up(name).1, 0, "{name}");
        }
        assert_eq!(guest.look_up("file").1, if when == DaxWhen::Always { ATTR_DAX } else { 0 }, "{when:?}");
    }
}

/// And not when it has answered: QEMU shows the guest what is mapped behind that.
#[test]
fn a_mapping_is_told_when_the_frontend_has_ended_it() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.mounted();
    let (node, _) = guest.look_up("file");
    let sent = guest.map(node, 2 * SLOT_BYTES, SLOT_BYTES, 5 * SLOT_BYTES);
    let asked = frontend.next();
    let Asked::Map { file, file_offset, at, len, flags } = &asked else { panic!("{asked:?}") };
    assert_eq!((*file_offset, *at, *len, *flags), (2 * SLOT_BYTES, 5 * SLOT_BYTES, SLOT_BYTES, 1));
    let inode = std::fs::metadata(server.shared.path().join("file")).unwrap().ino();
    assert_eq!(rustix::fs::fstat(file).unwrap().st_ino, inode);
    // The session serves its main channel meanwhile, as QEMU needs it to.
    guest.session.link().get_features().unwrap();
    frontend.answer(&asked, 0);
    let settle = frontend.next();
    std::thread::sleep(guest::A_WHILE);
    assert!(!guest.is_answered(sent));
    frontend.answer(&settle, 0);
    assert_eq!(guest.wait(sent), Ok(vec![]));
    assert_eq!(server.mapped(), 1);
    // Once more the same is nothing to be said, and something else goes there behind what was there.
    let sent = guest.map(node, 2 * SLOT_BYTES, SLOT_BYTES, 5 * SLOT_BYTES);
    assert_eq!(guest.wait(sent), Ok(vec![]));
    let sent = guest.map(node, 0, SLOT_BYTES, 5 * SLOT_BYTES);
    assert_eq!(frontend.unmap(), 5 * SLOT_BYTES);
    assert_eq!(frontend.map(), (0, 5 * SLOT_BYTES));
    assert_eq!((guest.wait(sent), server.mapped()), (Ok(vec![]), 1));
    // A file that is removed stays where it is.
    std::fs::remove_file(server.shared.path().join("file")).unwrap();
    let sent = guest.map(node, SLOT_BYTES, SLOT_BYTES, 0);
    assert_eq!(frontend.map(), (SLOT_BYTES, 0));
    assert_eq!((guest.wait(sent), server.mapped()), (Ok(vec![]), 2));
}

#[test]
fn what_a_guest_gives_up_is_taken_out() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.mounted();
    let fill = |guest: &mut Guest, frontend: &mut Frontend| {
        let (node, _) = guest.look_up("file");
        for slot in 0..4 {
            let sent = guest.map(node, slot * SLOT_BYTES, SLOT_BYTES, slot * SLOT_BYTES);
            frontend.map();
            guest.wait(sent).unwrap();
        }
        node
    };
    fill(&mut guest, &mut frontend);
    // What is not there is passed over.
    let sent = guest.unmap(&[(SLOT_BYTES, SLOT_BYTES), (6 * SLOT_BYTES, SLOT_BYTES)]);
    assert_eq!(frontend.unmap(), SLOT_BYTES);
    assert_eq!((guest.wait(sent), server.mapped()), (Ok(vec![]), 3));
    let sent = guest.unmap(&[(0, u64::MAX)]);
    assert_eq!([(); 3].map(|()| frontend.unmap()), [0, 2 * SLOT_BYTES, 3 * SLOT_BYTES]);
    assert_eq!((guest.wait(sent), server.mapped()), (Ok(vec![]), 0));

    // FORGET: the second look-up counted as well.
    let node = fill(&mut guest, &mut frontend);
    guest.send(opcode::FORGET, node, &1_u64.to_le_bytes());
    assert!(frontend.is_idle());
    guest.send(opcode::FORGET, node, &1_u64.to_le_bytes());
    assert_eq!([(); 4].map(|()| frontend.unmap() / SLOT_BYTES), [0, 1, 2, 3]);

    fill(&mut guest, &mut frontend);
    let sent = guest.send(opcode::DESTROY, 0, &[]);
    assert_eq!([(); 3].map(|()| frontend.unmap() / SLOT_BYTES), [0, 1, 2]);
    // Its machine may end with the answer.
    std::thread::sleep(guest::A_WHILE);
    assert!(!guest.is_answered(sent));
    assert_eq!(frontend.unmap() / SLOT_BYTES, 3);
    let settle = frontend.next();
    assert!(matches!(settle, Asked::Settle));
    assert!(!guest.is_answered(sent));
    frontend.answer(&settle, 1);
    assert_eq!(guest.wait(sent), Ok(vec![]));

    // A driver that comes after a reset, with which the frontend has taken out everything, or after a stop, with which it has not.
    guest.mount();
    fill(&mut guest, &mut frontend);
    for is_reset in [true, false] {
        guest.restart();
        guest.mount();
        for slot in 0..4 {
            let asked = frontend.next();
            assert!(matches!(asked, Asked::Unmap { at, .. } if at == slot * SLOT_BYTES), "{asked:?}");
            frontend.answer(&asked, u64::from(is_reset));
        }
        fill(&mut guest, &mut frontend);
    }
    // And one that only says so.
    guest.mount();
    assert_eq!([(); 4].map(|()| frontend.unmap() / SLOT_BYTES), [0, 1, 2, 3]);
    fill(&mut guest, &mut frontend);
    drop((guest, frontend));
    let (mut guest, mut frontend) = server.mounted();
    fill(&mut guest, &mut frontend);
    assert_eq!(server.mapped(), 4);
}

#[test]
fn hostile_requests_end_in_their_error_and_nobody_is_asked() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.mounted();
    let nodes = ["file", "tail", "small", "empty"].map(|name| guest.look_up(name).0);
    let [file, tail, small, empty] = nodes;
    for (node, offset, len, at, error) in [
        // Past the window, and into the middle of things.
        (file, 0, SLOT_BYTES, WINDOW_BYTES, libc::EINVAL),
        (file, 0, SLOT_BYTES, u64::MAX, libc::EINVAL),
        (file, 0, SLOT_BYTES, 4096, libc::EINVAL),
        (file, 4096, SLOT_BYTES, 0, libc::EINVAL),
        (file, 0, 0, 0, libc::EINVAL),
        (file, 0, 4096, 0, libc::EINVAL),
        (file, 0, 2 * SLOT_BYTES, 0, libc::EINVAL),
        (file, 0, 1 << 63, 0, libc::EINVAL),
        (file, 0, u64::MAX, 0, libc::EINVAL),
        (file, u64::MAX, SLOT_BYTES, 0, libc::EINVAL),
        // Past the end of the file. QEMU would make the empty one longer.
        (file, 4 * SLOT_BYTES, SLOT_BYTES, 0, libc::EIO),
        (file, 1 << 62, SLOT_BYTES, 0, libc::EIO),
        (tail, 3 * SLOT_BYTES, SLOT_BYTES, 0, libc::EIO),
        (small, 0, SLOT_BYTES, 0, libc::EIO),
        (empty, 0, SLOT_BYTES, 0, libc::EIO),
        // What is no file, and nobody.
        (1, 0, SLOT_BYTES, 0, libc::ENODEV),
        (1 << 40, 0, SLOT_BYTES, 0, libc::ESTALE),
    ] {
        let sent = guest.map(node, offset, len, at);
        assert_eq!(guest.wait(sent), Err(error), "{node} {offset:#x} {len:#x} {at:#x}");
    }
    let parts: [&[(u64, u64)]; 5] = [
        &[(0, 0)],
        &[(4096, SLOT_BYTES)],
        &[(0, 1 << 63)],
        &[(0, SLOT_BYTES), (WINDOW_BYTES, SLOT_BYTES)],
        &[(u64::MAX, SLOT_BYTES)],
    ];
    for parts in parts {
        let sent = guest.unmap(parts);
        assert_eq!(guest.wait(sent), Err(libc::EINVAL), "{parts:x?}");
    }
    let sent = guest.unmap(&[]);
    assert_eq!(guest.wait(sent), Ok(vec![]));
    assert!(frontend.is_idle() && server.mapped() == 0);
    // All slots, and no more.
    for slot in 0..8 {
        let sent = guest.map(file, slot % 4 * SLOT_BYTES, SLOT_BYTES, slot * SLOT_BYTES);
        frontend.map();
        assert_eq!(guest.wait(sent), Ok(vec![]));
    }
    let sent = guest.map(file, 0, SLOT_BYTES, 8 * SLOT_BYTES);
    assert_eq!((guest.wait(sent), server.mapped()), (Err(libc::EINVAL), 8));
}

#[test]
fn a_frontend_that_refuses_or_goes_costs_the_request() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.mounted();
    let (node, _) = guest.look_up("file");
    let sent = guest.map(node, 0, SLOT_BYTES, 0);
    let asked = frontend.next();
    frontend.answer(&asked, 1);
    assert_eq!((guest.wait(sent), server.mapped()), (Err(libc::EIO), 0));
    // It may have refused because something is there: that goes first, and if there is nothing it does not matter.
    let sent = guest.map(node, 0, SLOT_BYTES, 0);
    let asked = frontend.next();
    assert!(matches!(asked, Asked::Unmap { at: 0, len: SLOT_BYTES }), "{asked:?}");
    frontend.answer(&asked, 1);
    frontend.map();
    guest.wait(sent).unwrap();
    let sent = guest.unmap(&[(0, SLOT_BYTES)]);
    let asked = frontend.next();
    frontend.answer(&asked, 1);
    assert_eq!((guest.wait(sent), server.mapped()), (Ok(vec![]), 0));

    let waiting = [0, 1, 2].map(|slot| guest.map(node, slot * SLOT_BYTES, SLOT_BYTES, slot * SLOT_BYTES));
    frontend.next();
    drop(frontend);
    for sent in waiting {
        assert_eq!(guest.wait(sent), Err(libc::EIO));
    }
    // The session goes on without, and so does the next one with.
    guest.look_up("small");
    let sent = guest.map(node, 0, SLOT_BYTES, 0);
    assert_eq!(guest.wait(sent), Err(libc::EIO));
    drop(guest);
    let (mut guest, mut frontend) = server.mounted();
    let (node, _) = guest.look_up("file");
    let sent = guest.map(node, 0, SLOT_BYTES, 0);
    frontend.map();
    assert_eq!((guest.wait(sent), server.mapped()), (Ok(vec![]), 1));
}

/// Who stops a ring waits for what it has under way, and would have to answer for it.
#[test]
fn a_ring_stops_without_the_frontends_answer() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.mounted();
    let (node, _) = guest.look_up("file");
    let waiting = [0, 1].map(|slot| guest.map(node, slot * SLOT_BYTES, SLOT_BYTES, slot * SLOT_BYTES));
    let asked = frontend.next();
    guest.stop();
    for sent in waiting {
        assert_eq!(guest.wait(sent), Err(libc::EINTR));
    }
    // A session that ends in the middle is over.
    frontend.answer(&asked, 0);
    drop((guest, frontend));
    let (mut guest, _frontend) = server.mounted();
    guest.look_up("file");
    assert_eq!(server.mapped(), 0);
}

/// Of this one the other threads hear: one that shrinks on the host while it is mapped is the host's affair, and so is what the guest asks
/// for itself.
#[test]
fn a_mapped_file_can_be_cut() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.mounted();
    let (node, _) = guest.look_up("file");
    let sent = guest.map(node, 3 * SLOT_BYTES, SLOT_BYTES, 0);
    frontend.map();
    guest.wait(sent).unwrap();
    // FATTR_SIZE, in the first word; the size is the third field.
    let mut body = vec![0; 88];
    body[0] = 1 << 3;
    body[16..24].copy_from_slice(&SLOT_BYTES.to_le_bytes());
    guest.call(opcode::SETATTR, node, &body).unwrap();
    assert_eq!(std::fs::metadata(server.shared.path().join("file")).unwrap().len(), SLOT_BYTES);
    let sent = guest.map(node, SLOT_BYTES, SLOT_BYTES, SLOT_BYTES);
    assert_eq!(guest.wait(sent), Err(libc::EIO));
    assert!(frontend.is_idle());
}

/// The guest unmounts while its machine is about to stop: what the frontend was told stays said.
#[test]
fn what_was_to_be_taken_out_is_not_forgotten_when_rings_stop() {
    let server = Server::new(DaxWhen::Always);
    let (mut guest, mut frontend) = server.mounted();
    let (node, _) = guest.look_up("file");
    for slot in 0..4 {
        let sent = guest.map(node, slot * SLOT_BYTES, SLOT_BYTES, slot * SLOT_BYTES);
        frontend.map();
        guest.wait(sent).unwrap();
    }
    let sent = guest.send(opcode::DESTROY, 0, &[]);
    assert_eq!(frontend.unmap(), 0);
    guest.stop();
    assert_eq!(guest.wait(sent), Err(libc::EINTR));
    guest.restart();
    guest.mount();
    assert_eq!([(); 3].map(|()| frontend.unmap() / SLOT_BYTES), [1, 2, 3]);
    let settle = frontend.next();
    frontend.answer(&settle, 1);
    let (node, _) = guest.look_up("file");
    let sent = guest.map(node, 0, SLOT_BYTES, 0);
    assert_eq!(frontend.map(), (0, 0));
    assert_eq!((guest.wait(sent), server.mapped()), (Ok(vec![]), 1));
}
