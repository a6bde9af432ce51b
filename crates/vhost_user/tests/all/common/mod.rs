//! A served export whose target writes down what the link asks of it, and frontends to talk to it.

// Each test binary uses its own part of this.
#![allow(unreachable_pub)]

mod recorder;

pub use recorder::{CONFIG_BYTES, Custody, DEVICE_FEATURES, Event, RING_PROGRESS, Shared};

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use recorder::{Has, Recorder};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;
use vhost::vhost_user::message::{FrontendReq, VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vhost_user::{Endpoint, EndpointState, Handover, Resume, SocketOptions, StopFd, serve_on};
use vmm_sys_util::eventfd::EventFd;
use vring::{Memory, RingPosition};

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// VHOST_USER_F_PROTOCOL_FEATURES.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// VIRTIO_RING_F_EVENT_IDX.
pub const EVENT_IDX: u64 = 1 << 29;

/// An export that is being served.
pub struct Server {
    pub path: PathBuf,
    pub shared: Arc<Shared>,
    pub stop: StopFd,
    pub handover: Handover,
    thread: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl Server {
    pub fn new(queues: u16) -> Server {
        Server::with(queues, Has::default())
    }

    /// A device whose requests must not be done twice.
    pub fn without_inflight(queues: u16) -> Server {
        Server::with(queues, Has { inflight: false, ..Has::default() })
    }

    /// A device that cannot be migrated.
    pub fn without_log(queues: u16) -> Server {
        Server::with(queues, Has { log: false, ..Has::default() })
    }

    /// A device with a state of its own.
    pub fn with_state(queues: u16) -> Server {
        Server::with(queues, Has { state: true, ..Has::default() })
    }

    fn with(queues: u16, has: Has) -> Server {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("disk.sock");
        let endpoint = Endpoint::bind(&path, &SocketOptions::default()).unwrap();
        let shared = Arc::new(Shared::default());
        Server::on(endpoint, path, shared, queues, has, None, dir)
    }

    /// A server that goes on where another one paused, and how that went.
    pub fn resumed(state: EndpointState, queues: u16) -> (Server, Result<usize, String>) {
        let dir = TempDir::new().unwrap();
        let path = state.file.as_ref().unwrap().path.clone();
        let endpoint = Endpoint::adopt(state.socket, state.file).unwrap();
        let (resumed, told) = std::sync::mpsc::channel();
        let resume = state.session.map(|session| Resume { session, resumed });
        let server = Server::on(endpoint, path, Arc::default(), queues, Has::default(), resume, dir);
        let outcome = told.recv_timeout(PATIENCE).unwrap_or(Ok(0));
        (server, outcome)
    }

    fn on(
        endpoint: Endpoint,
        path: PathBuf,
        shared: Arc<Shared>,
        queues: u16,
        has: Has,
        resume: Option<Resume>,
        dir: TempDir,
    ) -> Server {
        let stop = StopFd::new().unwrap();
        let handover = Handover::new().unwrap();
        let config = std::array::from_fn(|at| at as u8);
        let mut target = Recorder { shared: shared.clone(), queues, has, config };
        let (stopped, orders) = (stop.clone(), handover.clone());
        let thread = spawn(move || serve_on(endpoint, &mut target, &stopped, &orders, resume));
        Server { path, shared, stop, handover, thread: Some(thread), _dir: dir }
    }

    /// A frontend that has sent nothing yet.
    pub fn connect(&self) -> Frontend {
        let frontend = Frontend::connect(&self.path, 300).unwrap();
        self.shared.wait_for(|event| *event == Event::SessionStarted);
        frontend
    }

    /// A frontend that negotiated everything and asks for acknowledgements.
    pub fn negotiated(&self) -> Frontend {
        let mut frontend = self.connect();
        negotiate(&mut frontend);
        self.shared.take();
        frontend
    }

    /// A connection for messages that the `vhost` crate would not send.
    pub fn raw(&self) -> Raw {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Raw(stream)
    }

    /// As [`Server::raw`], with acknowledgements negotiated.
    pub fn raw_negotiated(&self) -> Raw {
        let mut raw = self.raw();
        self.shared.wait_for(|event| *event == Event::SessionStarted);
        let features = raw.ask_u64(FrontendReq::GET_FEATURES);
        let protocol = raw.ask_u64(FrontendReq::GET_PROTOCOL_FEATURES);
        raw.send(FrontendReq::SET_FEATURES.into(), 1, &features.to_ne_bytes(), &[]);
        raw.send(FrontendReq::SET_PROTOCOL_FEATURES.into(), 1, &protocol.to_ne_bytes(), &[]);
        // The answer proves that the two before it were handled.
        raw.ask_u64(FrontendReq::GET_FEATURES);
        self.shared.take();
        raw
    }

    pub fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(std::thread::panicking() || result.is_ok(), "the session's thread panicked");
        }
    }
}

/// Does what every frontend does first.
pub fn negotiate(frontend: &mut Frontend) {
    frontend.set_owner().unwrap();
    let features = frontend.get_features().unwrap();
    frontend.set_features(features).unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(protocol.contains(VhostUserProtocolFeatures::REPLY_ACK));
    frontend.set_protocol_features(protocol).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    // An answer of its own proves that everything before it was handled.
    frontend.get_features().unwrap();
}

/// A connection that sends any bytes.
pub struct Raw(pub UnixStream);

/// NEED_REPLY and version 1 in a message's flags.
pub const NEED_REPLY: u32 = 0x9;

impl Raw {
    pub fn send(&mut self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        for field in [request, flags, body.len() as u32] {
            bytes.extend_from_slice(&field.to_ne_bytes());
        }
        bytes.extend_from_slice(body);
        self.send_bytes(&bytes, fds);
    }

    pub fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Waits until the server has read everything that was sent.
    pub fn wait_until_read(&self) {
        let end = Instant::now() + PATIENCE;
        let mut unread: libc::c_int = 1;
        while unread != 0 {
            // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one int.
            let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
            assert_eq!(result, 0);
            assert!(Instant::now() < end, "the server does not read");
            std::thread::yield_now();
        }
    }

    /// The next message: request, flags and body.
    pub fn receive(&mut self) -> (u32, u32, Vec<u8>) {
        let mut header = [0; 12];
        self.0.read_exact(&mut header).unwrap();
        let field = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; field(8) as usize];
        self.0.read_exact(&mut body).unwrap();
        (field(0), field(4), body)
    }

    /// Sends a message that wants an acknowledgement; whether it succeeded.
    pub fn acked(&mut self, request: FrontendReq, body: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.send(request.into(), NEED_REPLY, body, fds);
        let (answered, flags, body) = self.receive();
        assert_eq!((answered, flags), (request.into(), 0x5));
        u64::from_ne_bytes(body.try_into().unwrap()) == 0
    }

    pub fn ask_u64(&mut self, request: FrontendReq) -> u64 {
        self.send(request.into(), 1, &[], &[]);
        let (answered, flags, body) = self.receive();
        assert_eq!((answered, flags), (request.into(), 0x5));
        u64::from_ne_bytes(body.try_into().unwrap())
    }

    /// Whether the other side closed the connection.
    pub fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0; 1]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Guest memory of one region, and where the frontend claims to have mapped it.
pub struct Guest {
    pub file: File,
    pub region: VhostUserMemoryRegionInfo,
}

/// Frontend addresses differ from guest addresses by this.
pub const USER_BASE: u64 = 0x7f00_0000_0000;

pub fn memfd(bytes: u64) -> File {
    let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(fd);
    file.set_len(bytes).unwrap();
    file
}

impl Guest {
    pub fn new(guest_addr: u64, bytes: u64) -> Guest {
        Guest::at(guest_addr, bytes, 0)
    }

    /// As [`Guest::new`], beginning `offset` bytes into its file.
    pub fn at(guest_addr: u64, bytes: u64, offset: u64) -> Guest {
        let file = memfd(offset + bytes);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: guest_addr,
            memory_size: bytes,
            userspace_addr: USER_BASE + guest_addr,
            mmap_offset: offset,
            mmap_handle: file.as_raw_fd(),
        };
        Guest { file, region }
    }

    /// Puts bytes where the guest would.
    pub fn poke(&self, guest_addr: u64, bytes: &[u8]) {
        let at = self.region.mmap_offset + guest_addr - self.region.guest_phys_addr;
        self.file.write_all_at(bytes, at).unwrap();
    }
}

/// Eight bytes of guest memory as the target sees them.
pub fn peek(memory: &Memory, guest_addr: u64) -> u64 {
    let (at, bytes) = memory.translate(guest_addr, 8, &mut 0).unwrap();
    assert_eq!(bytes, 8);
    // SAFETY: `translate` vouches for eight bytes.
    unsafe { at.as_ptr().cast::<u64>().read_unaligned() }
}

/// Addresses of ring `index` of eight entries, in the region that begins at guest address 0.
pub fn addresses(index: usize) -> VringConfigData {
    let base = USER_BASE + index as u64 * 0x400;
    VringConfigData {
        queue_max_size: 8,
        queue_size: 8,
        flags: 0,
        desc_table_addr: base,
        used_ring_addr: base + 0x200,
        avail_ring_addr: base + 0x100,
        log_addr: None,
    }
}

/// Descriptors of one ring.
pub struct RingFds {
    pub kick: EventFd,
    pub call: EventFd,
}

pub fn eventfd() -> EventFd {
    EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).unwrap()
}

/// Whether somebody signalled this eventfd since the last look.
pub fn is_signalled(eventfd: &EventFd) -> bool {
    eventfd.read().is_ok()
}

impl RingFds {
    pub fn new() -> RingFds {
        RingFds { kick: eventfd(), call: eventfd() }
    }
}

/// Sets one ring up as QEMU does, up to the kick descriptor.
pub fn set_up_ring(frontend: &Frontend, index: usize, base: u16) -> RingFds {
    let fds = RingFds::new();
    frontend.set_vring_num(index, 8).unwrap();
    frontend.set_vring_base(index, base).unwrap();
    frontend.set_vring_addr(index, &addresses(index)).unwrap();
    frontend.set_vring_kick(index, &fds.kick).unwrap();
    frontend.set_vring_call(index, &fds.call).unwrap();
    fds
}

/// A frontend with memory and ring 0 running.
pub fn running(server: &Server) -> (Frontend, Guest, RingFds) {
    let mut frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    let fds = set_up_ring(&frontend, 0, 0);
    frontend.set_vring_enable(0, true).unwrap();
    server.shared.take();
    (frontend, guest, fds)
}

pub fn started(index: u16, next_avail: u16, enabled: bool, fds: [bool; 3]) -> Event {
    Event::Start { index, size: 8, position: RingPosition::split(next_avail), enabled, fds }
}

/// Writes without caring whether the other side has closed already.
pub fn write_lossy(stream: &mut UnixStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}
