//! The driver's side of a SCSI device: its queues, one request at a time or several.

use engine::{Placement, Poll, WorkerSpec};
use export::{Carried, DAEMON, Engine, Export, ExportError, Hosting, LogicalUnits, ScsiOptions, Socket, UnitOptions};
use frontkit::scsi::response::{RESIDUAL_AT, RESPONSE_AT, SENSE_AT, SENSE_LEN_AT, STATUS_AT};
use frontkit::scsi::{self, CDB_AT};
use frontkit::{Areas, Buffer, Eventfds, Memory, Queue, Session, readable, writable};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::Storage;
use tempfile::TempDir;
use values::Lun;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user::SocketOptions;
use vmm_sys_util::eventfd::EventFd;

/// How long something is waited for that must happen.
pub(super) const HANG: Duration = Duration::from_secs(60);
const QUEUE_SIZE: u16 = 64;
const QUEUE_ROOM: u64 = 0x4000;
/// Behind the queues: requests, and what they move.
const SLOTS: u64 = 0x4_0000;
const SLOT_BYTES: u64 = 0x4_0000;
const MEMORY_BYTES: u64 = 0x100_0000;
/// Header with a CDB of 32 bytes, response with sense data of 96 (virtio 1.3, 5.6.6.1).
const HEAD_BYTES: u32 = CDB_AT as u32 + 32;
pub(super) const RESPONSE_BYTES: u32 = SENSE_AT as u32 + 96;
pub(super) const CONTROL: usize = 0;
pub(super) const EVENT: usize = 1;
/// The first request queue.
pub(super) const REQUEST: usize = 2;

/// A device that is served.
pub(super) struct Server {
    pub(super) export: Export,
    pub(super) logical_units: LogicalUnits,
    pub(super) engine: Engine,
    dir: TempDir,
}

/// A unit as tests want it.
pub(super) fn unit(lun: &str, disk: &str, storage: Arc<dyn Storage>) -> UnitOptions {
    let (disk, serial) = (disk.to_owned(), disk.to_owned());
    UnitOptions { lun: lun.parse().unwrap(), disk, is_shared: false, serial, storage, kept: None, threshold_bytes: 0 }
}

/// One whose disk other devices may have, too.
pub(super) fn shared_unit(lun: &str, disk: &str, storage: Arc<dyn Storage>) -> UnitOptions {
    UnitOptions { is_shared: true, ..unit(lun, disk, storage) }
}

impl Server {
    pub(super) fn new(units: Vec<UnitOptions>) -> Server {
        Server::with_write_cache(units, true, false)
    }

    pub(super) fn with_write_cache(units: Vec<UnitOptions>, write_back: bool, write_back_changeable: bool) -> Server {
        let engine = Engine::new(2);
        for _ in 0..2 {
            engine.worker_new(DAEMON, WorkerSpec::default(), Poll::Off).unwrap();
        }
        let device = ("scsi", units, (write_back, write_back_changeable));
        Server::serve(device, LogicalUnits::default(), engine).unwrap()
    }

    /// The first device of a daemon that has these logical units.
    pub(super) fn going_on(units: Vec<UnitOptions>, logical_units: LogicalUnits) -> Server {
        let engine = Engine::new(1);
        engine.worker_new(DAEMON, WorkerSpec::default(), Poll::Off).unwrap();
        Server::serve(("scsi", units, (true, false)), logical_units, engine).unwrap()
    }

    /// Another device of the same daemon.
    pub(super) fn beside(&self, name: &str, units: Vec<UnitOptions>) -> Result<Server, ExportError> {
        Server::serve((name, units, (true, false)), self.logical_units.clone(), self.engine.clone())
    }

    fn serve(
        (name, units, (write_back, write_back_changeable)): (&str, Vec<UnitOptions>, (bool, bool)),
        logical_units: LogicalUnits,
        engine: Engine,
    ) -> Result<Server, ExportError> {
        let dir = TempDir::new().unwrap();
        let hosting = Hosting {
            name: name.to_owned(),
            socket: Socket::Path { path: dir.path().join("scsi.sock"), options: SocketOptions::default() },
            queue_size_max: 256,
            placement: Placement::Shared,
            poll: Poll::Off,
            workers: WorkerSpec::default(),
            session_ended: None,
            failed: None,
            carried: Carried::default(),
            resume: None,
        };
        let options = ScsiOptions {
            request_queues: 4,
            block_size_bytes: 512,
            write_back,
            write_back_changeable,
            units,
            logical_units: logical_units.clone(),
        };
        Ok(Server { export: Export::scsi(hosting, options, &engine)?, logical_units, engine, dir })
    }

    /// A driver with both queues and two for requests.
    pub(super) fn driver(&self) -> Driver {
        let memory = Arc::new(Memory::new(0, MEMORY_BYTES).unwrap());
        let session = self.connect(&memory);
        let event_idx = session.features & frontkit::feature::EVENT_IDX != 0;
        let queue = |index| {
            let areas = Areas::packed(index * QUEUE_ROOM, QUEUE_SIZE);
            (Queue::new(memory.clone(), areas, QUEUE_SIZE, event_idx), Eventfds::new().unwrap())
        };
        let queues: Vec<_> = (0..4).map(queue).collect();
        let mut driver = Driver { session, memory, queues, next_slot: 0, tag: 0 };
        (0..4).for_each(|queue| driver.start(queue, 0));
        driver
    }

    /// Goes on with a driver that another server had until now.
    pub(super) fn take_over(&self, mut driver: Driver) -> Driver {
        let bases: Vec<_> = (0..4).map(|queue| driver.stop(queue)).collect();
        driver.session = self.connect(&driver.memory);
        bases.into_iter().enumerate().for_each(|(queue, base)| driver.start(queue, base));
        driver
    }

    fn connect(&self, memory: &Arc<Memory>) -> Session {
        let stream = UnixStream::connect(self.dir.path().join("scsi.sock")).unwrap();
        let wanted =
            VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::MQ;
        let mut session = Session::negotiate(stream, Ok, |offered| Ok(offered & wanted)).unwrap();
        session.share(&[memory]).unwrap();
        session
    }
}

/// A driver.
pub(super) struct Driver {
    session: Session,
    memory: Arc<Memory>,
    queues: Vec<(Queue, Eventfds)>,
    next_slot: u64,
    tag: u64,
}

/// A request that was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    queue: usize,
    slot: u64,
    head: u16,
    pub(super) tag: u64,
    in_bytes: u32,
    reply_bytes: u32,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) response: u8,
    pub(super) status: u8,
    pub(super) residual: u32,
    pub(super) sense: Vec<u8>,
    /// Bytes behind the response that were written.
    pub(super) data: Vec<u8>,
}

impl Answer {
    /// Sense key, additional code and its qualifier, of fixed format sense data.
    pub(super) fn sense_code(&self) -> (u8, u8, u8) {
        assert_eq!((self.response, self.status), (0, 2), "{self:?}");
        (self.sense[2], self.sense[12], self.sense[13])
    }

    /// What was read, of a command that went well.
    pub(super) fn good(self) -> Vec<u8> {
        assert_eq!((self.response, self.status), (0, 0), "{self:?}");
        self.data
    }
}

/// PERSISTENT RESERVE OUT, and its parameter list with these flags of byte 20.
pub(super) fn reserve_out((action, kind): (u8, u8), keys: [u64; 2], flags: u8) -> ([u8; 10], [u8; 24]) {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&keys[0].to_be_bytes());
    list[8..16].copy_from_slice(&keys[1].to_be_bytes());
    list[20] = flags;
    ([0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

/// The bytes of an address.
pub(super) fn address(lun: Lun) -> [u8; 8] {
    scsi::address(lun.target, lun.number)
}

impl Driver {
    fn slot(&mut self) -> u64 {
        self.next_slot = (self.next_slot + 1) % 32;
        SLOTS + self.next_slot * SLOT_BYTES
    }

    fn post(&mut self, queue: usize, buffers: &[Buffer]) -> u16 {
        let (ring, eventfds) = &mut self.queues[queue];
        // Chains of six descriptors at most, a few at a time; or many of two.
        let first = if queue == CONTROL { self.next_slot as u16 * 2 } else { (self.next_slot as u16 % 10) * 6 };
        ring.add(buffers, |at| first + at as u16);
        ring.show();
        eventfds.kick().unwrap();
        first
    }

    /// Has a queue take requests, or none.
    pub(super) fn enable(&mut self, queue: usize, enabled: bool) {
        self.session.link().set_vring_enable(queue, enabled).unwrap();
        self.queues[queue].1.kick().unwrap();
    }

    /// Stops a queue: what it has taken is answered by then.
    pub(super) fn stop(&mut self, queue: usize) -> u16 {
        self.session.link().get_vring_base(queue).unwrap() as u16
    }

    /// As [`stop`](Driver::stop), on a thread that waits for it.
    pub(super) fn begin_to_stop(&mut self, queue: usize) -> JoinHandle<u16> {
        let link = self.session.link().clone();
        std::thread::spawn(move || link.get_vring_base(queue).unwrap() as u16)
    }

    /// Has a queue call by something that cannot be called.
    pub(super) fn break_call(&mut self, queue: usize) {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: the descriptor is open, and nobody else's.
        let call = unsafe { EventFd::from_raw_fd(file.into_raw_fd()) };
        // A server that takes it for an error says so: what is wanted has happened.
        let _ = self.session.link().set_vring_call(queue, &call);
    }

    /// Starts it again.
    pub(super) fn start(&mut self, queue: usize, base: u16) {
        let (ring, eventfds) = &self.queues[queue];
        self.session.start(queue, ring, eventfds, base).unwrap();
    }

    /// Says how long the sense data of its requests are.
    pub(super) fn set_sense_bytes(&mut self, bytes: u32) {
        self.session.set_config(scsi::config::SENSE_SIZE_AT as u32, &bytes.to_le_bytes()).unwrap();
    }

    /// Makes a request on a request queue.
    pub(super) fn begin(&mut self, queue: usize, lun: &str, cdb: &[u8], out: &[u8], in_bytes: u32) -> Posted {
        let slot = self.slot();
        self.tag += 1;
        let tag = self.tag;
        let mut head = vec![0; HEAD_BYTES as usize];
        scsi::write_head(&mut head, address(lun.parse().unwrap()), tag, cdb);
        self.memory.write(slot, &head);
        self.memory.write(slot + 0x100, &[0xee; RESPONSE_BYTES as usize]);
        self.memory.write(slot + 0x200, out);
        let data = slot + 0x2_0000;
        let mut buffers = vec![readable(slot, HEAD_BYTES)];
        if !out.is_empty() {
            buffers.push(readable(slot + 0x200, out.len() as u32));
        }
        buffers.push(writable(slot + 0x100, RESPONSE_BYTES));
        if in_bytes > 0 {
            buffers.push(writable(data, in_bytes));
        }
        let head = self.post(queue, &buffers);
        Posted { queue, slot, head, tag, in_bytes, reply_bytes: RESPONSE_BYTES }
    }

    /// Answers on a queue that nobody has looked at.
    pub(super) fn answers(&self, queue: usize) -> u16 {
        self.queues[queue].0.unseen()
    }

    /// Whether there is one.
    pub(super) fn has_answer(&self, queue: usize) -> bool {
        self.answers(queue) > 0
    }

    fn used(&mut self, queue: usize, head: u16) -> u32 {
        let by = Instant::now() + HANG;
        loop {
            if let Some(used) = self.queues[queue].0.take_used() {
                assert_eq!(used.head, u32::from(head), "another request was answered first");
                return used.len;
            }
            assert!(Instant::now() < by, "nothing is answered");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits for the answer to the oldest request of its queue, which has to be this one, and says how long it is.
    pub(super) fn written(&mut self, posted: Posted) -> u32 {
        self.used(posted.queue, posted.head)
    }

    /// As above, and reads it.
    pub(super) fn end(&mut self, posted: Posted) -> Answer {
        let written = self.written(posted);
        let response = self.memory.read(posted.slot + 0x100, RESPONSE_BYTES as usize);
        let word = |at: usize| u32::from_le_bytes(response[at..at + 4].try_into().unwrap());
        let sense_bytes = word(SENSE_LEN_AT) as usize;
        let data = written.saturating_sub(posted.reply_bytes).min(posted.in_bytes);
        Answer {
            response: response[RESPONSE_AT],
            status: response[STATUS_AT],
            residual: word(RESIDUAL_AT),
            sense: response[SENSE_AT..][..sense_bytes].to_vec(),
            data: self.memory.read(posted.slot + 0x2_0000, data as usize),
        }
    }

    pub(super) fn ask(&mut self, lun: &str, cdb: &[u8], out: &[u8], in_bytes: u32) -> Answer {
        let posted = self.begin(REQUEST, lun, cdb, out, in_bytes);
        self.end(posted)
    }

    /// Hears of what there is to hear first: power on.
    pub(super) fn settle(&mut self, lun: &str) {
        self.hears(lun, (6, 0x29, 1));
        self.ask(lun, &[0; 6], &[], 0).good();
    }

    /// Is told of something before it gets on.
    #[track_caller]
    pub(super) fn hears(&mut self, lun: &str, sense_code: (u8, u8, u8)) {
        assert_eq!(self.ask(lun, &[0; 6], &[], 0).sense_code(), sense_code);
    }

    /// PERSISTENT RESERVE OUT, with the key of the driver and that of the service action.
    pub(super) fn reserve_out(&mut self, lun: &str, (action, kind): (u8, u8), keys: [u64; 2], flags: u8) -> Answer {
        let (cdb, list) = reserve_out((action, kind), keys, flags);
        self.ask(lun, &cdb, &list, 0)
    }

    pub(super) fn write(&mut self, lun: &str, block: u32, data: &[u8]) -> Answer {
        self.ask(lun, &write_10(block, data), data, 0)
    }

    pub(super) fn read(&mut self, lun: &str, block: u32, blocks: u16) -> Vec<u8> {
        self.ask(lun, &read_10(block, blocks), &[], u32::from(blocks) * 512).good()
    }

    /// Makes a request of task management.
    pub(super) fn manage(&mut self, function: u32, lun: &str, tag: u64) -> Posted {
        let slot = self.slot();
        let mut request = vec![0; 24];
        request[4..8].copy_from_slice(&function.to_le_bytes());
        request[8..16].copy_from_slice(&address(lun.parse().unwrap()));
        request[16..24].copy_from_slice(&tag.to_le_bytes());
        self.memory.write(slot, &request);
        self.memory.write(slot + 0x100, &[0xee]);
        let head = self.post(CONTROL, &[readable(slot, 24), writable(slot + 0x100, 1)]);
        Posted { queue: CONTROL, slot, head, tag, in_bytes: 0, reply_bytes: 1 }
    }

    /// The response to it.
    pub(super) fn managed(&mut self, posted: Posted) -> u8 {
        assert_eq!(self.used(CONTROL, posted.head), 1);
        self.memory.read_byte(posted.slot + 0x100)
    }

    /// Gives the device a buffer for an event.
    pub(super) fn offer_event(&mut self) -> Posted {
        let slot = self.slot();
        self.memory.write(slot, &[0xee; 16]);
        let head = self.post(EVENT, &[writable(slot, 16)]);
        Posted { queue: EVENT, slot, head, tag: 0, in_bytes: 0, reply_bytes: 16 }
    }

    /// The event: its kind, the unit, the reason.
    pub(super) fn event(&mut self, posted: Posted) -> (u32, [u8; 8], u32) {
        assert_eq!(self.used(EVENT, posted.head), 16);
        let bytes = self.memory.read(posted.slot, 16);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (word(0), bytes[4..12].try_into().unwrap(), word(12))
    }
}

pub(super) fn read_10(block: u32, blocks: u16) -> [u8; 10] {
    let ([a, b, c, d], [e, f]) = (block.to_be_bytes(), blocks.to_be_bytes());
    [0x28, 0, a, b, c, d, 0, e, f, 0]
}

pub(super) fn write_10(block: u32, data: &[u8]) -> [u8; 10] {
    let [_, one, a, b, c, d, _, e, f, _] = read_10(block, (data.len() / 512) as u16);
    [0x2a, one, a, b, c, d, 0, e, f, 0]
}
