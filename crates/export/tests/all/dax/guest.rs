//! A virtio-fs driver without a kernel, and the frontend's end of the channel on which mappings are asked for.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use frontkit::{Areas, Eventfds, Memory, Queue, Session, readable, writable};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::BackendReq;

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long it waits for something that must not.
pub(crate) const A_WHILE: Duration = Duration::from_millis(50);
const SIZE: u16 = 64;
const ROOM: u64 = 0x1000;
const DATA: u64 = 0x4000;
const RING_BYTES: u64 = DATA + SIZE as u64 * ROOM;
/// Length of whatever is mapped: 2 MiB.
pub(crate) const SLOT_BYTES: u64 = 2 << 20;
/// The queue for requests.
pub(crate) const REQUESTS: usize = 1;
/// The opcodes that tests use (fuse.h).
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const SETUPMAPPING: u32 = 48;
    pub(crate) const REMOVEMAPPING: u32 = 49;
}
/// FUSE_INIT_EXT, FUSE_MAP_ALIGNMENT and FUSE_HAS_INODE_DAX.
pub(crate) const KNOWN: u64 = 1 << 30 | 1 << 26 | 1 << 33;

/// A request that is under way: the place of its chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent(u16);

struct Ring {
    queue: Queue,
    eventfds: Eventfds,
    base: u64,
    free: Vec<u16>,
    done: Vec<u16>,
}

pub(crate) struct Guest {
    pub(crate) session: Session,
    memory: Arc<Memory>,
    rings: Vec<Ring>,
    unique: u64,
}

impl Guest {
    /// Connects, and starts both rings. With `asks`, the frontend asks for the window, as QEMU does before that.
    pub(crate) fn connect(socket: &Path, asks: bool) -> (Guest, Frontend) {
        Guest::connect_with(socket, asks, true)
    }

    /// The same, of a frontend that opens a channel or does not.
    pub(crate) fn connect_with(socket: &Path, asks: bool, opens: bool) -> (Guest, Frontend) {
        let memory = Arc::new(Memory::new(0, 2 * RING_BYTES).unwrap());
        let mut session = Session::negotiate(UnixStream::connect(socket).unwrap(), Ok, Ok).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        if opens {
            session.link().set_backend_request_fd(&near).unwrap();
        }
        if asks {
            let config = session.link().get_shmem_config().unwrap();
            assert_eq!((config.nregions, config.memory_sizes[1]), (1, 0));
            assert_eq!(config.memory_sizes[0], super::WINDOW_BYTES);
        }
        session.share(&[&memory]).unwrap();
        let mut guest = Guest { session, memory, rings: Vec::new(), unique: 0 };
        (0..2).for_each(|index| guest.start(index));
        (guest, Frontend(far))
    }

    fn start(&mut self, index: usize) {
        let base = RING_BYTES * index as u64;
        let areas = Areas { desc: base, avail: base + 0x1000, used: base + 0x2000 };
        let queue = Queue::new(self.memory.clone(), areas, SIZE, true);
        let eventfds = Eventfds::new().unwrap();
        self.session.start(index, &queue, &eventfds, 0).unwrap();
        let (free, done) = ((0..SIZE / 2).rev().collect(), Vec::new());
        let ring = Ring { queue, eventfds, base, free, done };
        if index < self.rings.len() { self.rings[index] = ring } else { self.rings.push(ring) }
    }

    /// Stops the ring for requests, whatever is under way, and starts an empty one in its place.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start(REQUESTS);
    }

    /// Stops it.
    pub(crate) fn stop(&mut self) {
        self.session.link().get_vring_base(REQUESTS).unwrap();
    }

    pub(crate) fn send(&mut self, opcode: u32, node: u64, body: &[u8]) -> Sent {
        self.unique += 2;
        let mut message = Vec::new();
        message.extend((40 + body.len() as u32).to_le_bytes());
        message.extend(opcode.to_le_bytes());
        message.extend(self.unique.to_le_bytes());
        message.extend(node.to_le_bytes());
        message.resize(40, 0);
        message.extend(body);
        let ring = &mut self.rings[REQUESTS];
        let slot = ring.free.pop().unwrap();
        let at = ring.base + DATA + u64::from(slot) * 2 * ROOM;
        self.memory.write(at, &message);
        let chain = [readable(at, message.len() as u32), writable(at + ROOM, ROOM as u32)];
        ring.queue.add(&chain, |position| 2 * slot + position as u16);
        ring.queue.show();
        ring.eventfds.kick().unwrap();
        Sent(slot)
    }

    pub(crate) fn is_answered(&mut self, Sent(slot): Sent) -> bool {
        let ring = &mut self.rings[REQUESTS];
        while let Some(used) = ring.queue.take_used() {
            ring.done.push(used.head as u16 / 2);
        }
        ring.done.contains(&slot)
    }

    /// Waits for an answer: what is behind its header, or the errno.
    pub(crate) fn wait(&mut self, sent: Sent) -> Result<Vec<u8>, i32> {
        let end = Instant::now() + PATIENCE;
        while !self.is_answered(sent) {
            assert!(Instant::now() < end, "no answer");
            std::thread::yield_now();
        }
        let ring = &mut self.rings[REQUESTS];
        ring.done.retain(|slot| *slot != sent.0);
        ring.free.push(sent.0);
        let bytes = self.memory.read(ring.base + DATA + u64::from(sent.0) * 2 * ROOM + ROOM, ROOM as usize);
        let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        if word(4) == 0 { Ok(bytes[16..(word(0) as usize).max(16)].to_vec()) } else { Err(-word(4)) }
    }

    pub(crate) fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let sent = self.send(opcode, node, body);
        self.wait(sent)
    }

    /// INIT: the flags that are granted, and the alignment.
    pub(crate) fn mount(&mut self) -> (u64, u16) {
        let mut body = Vec::new();
        for word in [7, 38, 1 << 20, KNOWN as u32, (KNOWN >> 32) as u32] {
            body.extend(u32::to_le_bytes(word));
        }
        body.resize(64, 0);
        let answer = self.call(opcode::INIT, 0, &body).unwrap();
        let word = |at: usize| u64::from(u32::from_le_bytes(answer[at..at + 4].try_into().unwrap()));
        (word(12) | word(32) << 32, u16::from_le_bytes(answer[30..32].try_into().unwrap()))
    }

    /// LOOKUP in the root: the node, and its flags.
    pub(crate) fn look_up(&mut self, name: &str) -> (u64, u32) {
        let answer = self.call(opcode::LOOKUP, 1, format!("{name}\0").as_bytes()).unwrap();
        let flags = u32::from_le_bytes(answer[124..128].try_into().unwrap());
        (u64::from_le_bytes(answer[..8].try_into().unwrap()), flags)
    }

    /// SETUPMAPPING of `len` bytes at `offset`, at `at` in the window.
    pub(crate) fn map(&mut self, node: u64, offset: u64, len: u64, at: u64) -> Sent {
        let body = [u64::MAX, offset, len, 3, at].map(u64::to_le_bytes).concat();
        self.send(opcode::SETUPMAPPING, node, &body)
    }

    /// REMOVEMAPPING.
    pub(crate) fn unmap(&mut self, parts: &[(u64, u64)]) -> Sent {
        let mut body = (parts.len() as u32).to_le_bytes().to_vec();
        body.extend(parts.iter().flat_map(|(at, len)| [at.to_le_bytes(), len.to_le_bytes()].concat()));
        self.send(opcode::REMOVEMAPPING, 0, &body)
    }
}

/// What the frontend is asked for.
#[derive(Debug)]
pub(crate) enum Asked {
    Map {
        file: OwnedFd,
        file_offset: u64,
        at: u64,
        len: u64,
        flags: u64,
    },
    Unmap {
        at: u64,
        len: u64,
    },
    /// Something that is answered behind all that was asked before.
    Settle,
}

/// The other end of the backend channel.
pub(crate) struct Frontend(pub(crate) UnixStream);

impl Frontend {
    /// The next request.
    pub(crate) fn next(&mut self) -> Asked {
        // A descriptor comes with the first byte.
        let (header, file) = self.receive(12);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(4), 1 | 8, "version 1, and an answer is wanted");
        if word(0) == u32::from(BackendReq::CONFIG_CHANGE_MSG) {
            assert_eq!(word(8), 0);
            return Asked::Settle;
        }
        assert_eq!(word(8), 40);
        let (body, _) = self.receive(40);
        assert_eq!(body[..8], [0; 8], "region 0, and padding");
        let field = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        let (file_offset, at, len, flags) = (field(8), field(16), field(24), field(32));
        match file {
            Some(file) if word(0) == u32::from(BackendReq::SHMEM_MAP) => {
                Asked::Map { file, file_offset, at, len, flags }
            }
            None if word(0) == u32::from(BackendReq::SHMEM_UNMAP) => Asked::Unmap { at, len },
            file => panic!("request {} with {file:?}", word(0)),
        }
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, asked: &Asked, value: u64) {
        let code = match asked {
            Asked::Map { .. } => BackendReq::SHMEM_MAP,
            Asked::Unmap { .. } => BackendReq::SHMEM_UNMAP,
            Asked::Settle => BackendReq::CONFIG_CHANGE_MSG,
        };
        let mut bytes = [u32::from(code), 5, 8].map(u32::to_le_bytes).concat();
        bytes.extend(value.to_le_bytes());
        self.0.write_all(&bytes).unwrap();
    }

    /// Does the next two requests as QEMU does: what is mapped at which place.
    pub(crate) fn map(&mut self) -> (u64, u64) {
        let asked = self.next();
        let Asked::Map { file_offset, at, len, flags, .. } = &asked else { panic!("{asked:?}") };
        assert_eq!((*len, *flags), (SLOT_BYTES, 1));
        let mapped = (*file_offset, *at);
        self.answer(&asked, 0);
        let settle = self.next();
        assert!(matches!(settle, Asked::Settle));
        // It says that it cannot do that. Nobody minds.
        self.answer(&settle, 1);
        mapped
    }

    /// Does the next request, which has to take out something: where.
    pub(crate) fn unmap(&mut self) -> u64 {
        let asked = self.next();
        let Asked::Unmap { at, len } = asked else { panic!("{asked:?}") };
        assert_eq!(len, SLOT_BYTES);
        self.answer(&asked, 0);
        at
    }

    /// Nothing is asked for a while.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.0.set_read_timeout(Some(A_WHILE)).unwrap();
        let idle = rustix::net::recv(&self.0, &mut [0; 1], RecvFlags::PEEK).is_err();
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        idle
    }

    fn receive(&mut self, len: usize) -> (Vec<u8>, Option<OwnedFd>) {
        let mut bytes = vec![0; len];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let got =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).expect("nothing is asked");
        assert_eq!(got.bytes, len, "the channel has ended");
        let mut file = None;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = part {
                file = files.next();
            }
        }
        (bytes, file)
    }
}
