//! Disks at their sockets, and guests that keep an inflight region.

mod figures;
mod hold;
mod inflight;
mod shared;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Placement, Poll, WorkerSpec};
use export::{Carried, DiskOptions, Engine, Export, Hosting, NbdOptions, Socket};
use storage::{MemoryOptions, MemoryStorage, Storage};
use tempfile::TempDir;
use values::ByteSize;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vhost_user::SocketOptions;
use vmm_sys_util::eventfd::EventFd;
use vring::{Chain, InflightQueue, Layout, Mapping, Memory, Region, RingPosition, SplitRing};

/// How long a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(20);
const SIZE: u16 = 32;
const MEMORY_BYTES: u64 = 0x10000;
/// Frontend addresses differ from guest addresses by this.
const USER_BASE: u64 = 0x7f00_0000_0000;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Header and status of each request.
const HEADERS: u64 = 0x3000;
const DATA: u64 = 0x4000;
const SECTOR: u64 = 512;
/// A value that no device writes as a status.
const NO_STATUS: u8 = 0xee;

/// A guest that has made requests, and the memory in which a server says which of them it has taken.
struct Guest {
    memory: File,
    region: (VhostUserInflight, File),
    kick: EventFd,
    call: EventFd,
    offered: u16,
}

/// A disk, and the socket at which it is served.
struct Server {
    export: Export,
    dir: TempDir,
}

/// A few sectors in memory.
fn sectors() -> MemoryStorage {
    let options = MemoryOptions { size: Some(ByteSize(64 * SECTOR)), ..MemoryOptions::default() };
    MemoryStorage::open(&options).unwrap()
}

impl Server {
    fn new() -> Server {
        Server::of("disk", Arc::new(sectors()))
    }

    /// Of what another server may serve as well.
    fn of(name: &str, storage: Arc<dyn Storage>) -> Server {
        let dir = TempDir::new().unwrap();
        let socket = Socket::Path { path: dir.path().join("disk.sock"), options: SocketOptions::default() };
        let hosting = Hosting {
            name: name.to_owned(),
            socket,
            queue_size_max: 256,
            placement: Placement::One,
            poll: Poll::Off,
            workers: WorkerSpec::default(),
            session_ended: None,
            failed: None,
            carried: Carried::default(),
            resume: None,
        };
        let options = DiskOptions {
            queues: 1,
            serial: String::new(),
            write_back: true,
            write_back_changeable: true,
            block_size_bytes: 512,
            nbd: NbdOptions::default(),
        };
        let export = Export::disk(hosting, options, storage, &Engine::new(1)).unwrap();
        Server { export, dir }
    }

    fn connect(&self) -> Frontend {
        let mut frontend = Frontend::connect(self.dir.path().join("disk.sock"), 1).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        frontend.set_features(features).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
        frontend.set_protocol_features(protocol).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend
    }
}

impl Guest {
    fn new(server: &Server) -> Guest {
        Guest::named(server, "guest")
    }

    fn memory(name: &str) -> File {
        let memory = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(MEMORY_BYTES).unwrap();
        memory
    }

    fn named(server: &Server, name: &str) -> Guest {
        let memory = Guest::memory(name);
        let region = server.connect().get_inflight_fd(&VhostUserInflight::new(0, 0, 1, SIZE)).unwrap();
        let eventfd = || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).unwrap();
        Guest { memory, region, kick: eventfd(), call: eventfd(), offered: 0 }
    }

    /// Makes a request available: a write of a sector full of `fill`, or a read of one.
    fn offer(&mut self, sector: u64, fill: Option<u8>) {
        let number = self.offered;
        let (head, at) = (3 * number, u64::from(number));
        let (header, data) = (HEADERS + 32 * at, DATA + SECTOR * at);
        let mut bytes = [0; 25];
        bytes[..4].copy_from_slice(&u32::from(fill.is_some()).to_le_bytes());
        bytes[8..16].copy_from_slice(&sector.to_le_bytes());
        bytes[24] = NO_STATUS;
        self.memory.write_all_at(&bytes, header).unwrap();
        self.memory.write_all_at(&[fill.unwrap_or(0xaa); SECTOR as usize], data).unwrap();
        let writable = if fill.is_some() { 0 } else { 2 };
        self.descriptor(head, (header, 16), 1, head + 1);
        self.descriptor(head + 1, (data, SECTOR as u32), 1 | writable, head + 2);
        self.descriptor(head + 2, (header + 24, 1), 2, 0);
        self.memory.write_all_at(&head.to_le_bytes(), AVAIL + 4 + 2 * at).unwrap();
        self.offered += 1;
        self.memory.write_all_at(&self.offered.to_le_bytes(), AVAIL + 2).unwrap();
    }

    fn descriptor(&self, index: u16, (addr, len): (u64, u32), flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_all_at(&bytes, 16 * u64::from(index)).unwrap();
    }

    fn u16(file: &File, at: u64) -> u16 {
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, at).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn used_idx(&self) -> u16 {
        Guest::u16(&self.memory, USED + 2)
    }

    fn used_head(&self, index: u16) -> u16 {
        Guest::u16(&self.memory, USED + 4 + 8 * u64::from(index))
    }

    fn status(&self, number: u16) -> u8 {
        let mut status = [0];
        self.memory.read_exact_at(&mut status, HEADERS + 32 * u64::from(number) + 24).unwrap();
        status[0]
    }

    fn data(&self, number: u16) -> Vec<u8> {
        let mut data = vec![0; SECTOR as usize];
        self.memory.read_exact_at(&mut data, DATA + SECTOR * u64::from(number)).unwrap();
        data
    }

    /// A life of the ring that takes `taken` requests, shows those numbered `shown`, and ends.
    fn live(&self, taken: u16, shown: &[u16]) {
        let mapping = Arc::new(Mapping::shared(&self.memory, 0, MEMORY_BYTES as usize).unwrap());
        let region = Region { guest_addr: 0, user_addr: USER_BASE, len: MEMORY_BYTES, mapping, offset: 0 };
        let memory = Arc::new(Memory::new(vec![region]).unwrap());
        let layout = Layout { size: SIZE, desc: 0, avail: AVAIL, used: USED, event_idx: true, indirect: true };
        let mut ring = SplitRing::new(memory, layout, RingPosition::default()).unwrap();
        let mapping = Mapping::shared(&self.region.1, 0, InflightQueue::bytes(SIZE)).unwrap();
        ring.track(InflightQueue::new(Arc::new(mapping), 0, SIZE).unwrap()).unwrap();
        for number in 0..taken {
            assert_eq!(ring.pop(&mut Chain::default()), Ok(Some(3 * number)));
        }
        shown.iter().for_each(|number| ring.push(3 * number, 1));
        ring.publish();
    }

    fn table(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_BYTES,
            userspace_addr: USER_BASE,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        }
    }

    /// Sets the ring up at a server, as QEMU does that has lost the one before: from the used index.
    fn set_up(&self, frontend: &mut Frontend) {
        let (region, file) = &self.region;
        frontend.set_inflight_fd(region, file.as_raw_fd()).unwrap();
        frontend.set_mem_table(&[self.table()]).unwrap();
        let areas = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER_BASE,
            used_ring_addr: USER_BASE + USED,
            avail_ring_addr: USER_BASE + AVAIL,
            log_addr: None,
        };
        frontend.set_vring_num(0, SIZE).unwrap();
        frontend.set_vring_base(0, self.used_idx()).unwrap();
        frontend.set_vring_addr(0, &areas).unwrap();
        frontend.set_vring_call(0, &self.call).unwrap();
        frontend.set_vring_kick(0, &self.kick).unwrap();
    }

    fn wait_for_used_idx(&self, index: u16) {
        let end = Instant::now() + PATIENCE;
        while self.used_idx() != index {
            assert!(Instant::now() < end, "the used index is {}, waiting for {index}", self.used_idx());
            std::thread::yield_now();
        }
    }

    /// Whether the region says that nothing is in flight.
    fn is_settled(&self) -> bool {
        let region = &self.region.1;
        // The byte behind it is padding.
        let marked = (0..u64::from(SIZE)).any(|entry| Guest::u16(region, 16 + 16 * entry) & 0xff != 0);
        !marked && Guest::u16(region, 14) == self.used_idx()
    }
}
