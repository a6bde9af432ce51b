//! virtio-scsi (virtio 1.3, 5.6), by commands of SPC-5 and SBC-4: a disk that is read and written and that the frontend has reserved for
//! good, and beside it in the same device another unit, which is only asked.
//!
//! - `answer`: responses and sense data
//! - `attentions`: what units must say first on a connection, and never again
//! - `reserved`: what must be shown of registration and reservation
//! - `start`: what is asked and done before the load begins

mod answer;
mod attentions;
mod cdb;
mod reserved;
mod start;

use anyhow::{Context, Result, bail, ensure};
use frontkit::Session;
use frontkit::scsi::config::{BYTES, CDB_SIZE_AT, SENSE_SIZE_AT};
use frontkit::scsi::response::SENSE_AT;
use frontkit::scsi::{self, CDB_AT};

use self::answer::{CHECK_CONDITION, GOOD, Response, Sense};
use self::attentions::Attentions;
use self::cdb::{Cdb, Form};
use self::reserved::{Asked, Reserved};
use super::language::{Answered, Durability, Features, Verdict};
use super::pattern::SECTOR_BYTES;
use super::request::{Kind, Question, Request};
use super::ring::{ANSWER_BYTES_MAX, HEAD_BYTES_MAX, Head, Wanted};
use crate::rng::{Rng, mix};

/// The control queue and the event queue.
pub(super) const OTHER_QUEUES: u16 = 2;
/// HOTPLUG and CHANGE: it hears of what happens to units.
pub(super) const FEATURES: Features = Features { required: 1 << 1 | 1 << 2, optional: 0 };
pub(super) const QUESTIONS: &[Question] = &[
    Question::Serial,
    Question::Ready,
    Question::Capacity,
    Question::Keys,
    Question::Reservation,
    Question::OtherReady,
    Question::OtherKeys,
];

/// Where the disk is, and where the other unit is: target and number. Both differ, so that an address in another form is found.
pub(crate) const DISK: (u8, u16) = (0, 0x105);
/// As above.
pub(crate) const OTHER: (u8, u16) = (3, 1);
/// Room for what a question brings, in bytes.
const ROOM_BYTES: u32 = 64;
/// The fields of READ CAPACITY (16), and of a serial number behind the header of its page.
const CAPACITY_BYTES: u32 = 32;
const PAGE_HEADER_BYTES: u32 = 4;
const KEYS_BYTES: u32 = 16;
const RESERVATION_BYTES: u32 = 24;
/// What is said where nobody is registered, whatever happens: no change, no keys.
const NOBODY: [u8; 8] = [0; 8];
/// What an earlier server may have done (ABORTED COMMAND without more).
const MAY_BE_DONE: Sense = Sense { key: 0x0b, code: (0, 0) };

/// What has to be known to speak with the device.
#[derive(Debug)]
pub(crate) struct Scsi {
    run: u64,
    durability: Durability,
    cdb_bytes: usize,
    sense_bytes: usize,
    /// Logical block size in sectors.
    block_sectors: u64,
    tag: u64,
    disk: Attentions,
    other: Attentions,
    reserved: Option<Reserved>,
    /// What was told at the beginning, and stays.
    serial: Vec<u8>,
    capacity: Vec<u8>,
    keys: u64,
}

impl Scsi {
    pub(super) fn new(run: u64, durability: Durability) -> Self {
        Self {
            run,
            durability,
            cdb_bytes: 0,
            sense_bytes: 0,
            block_sectors: 1,
            tag: 0,
            disk: Attentions::new("the disk"),
            other: Attentions::new("the other unit"),
            reserved: None,
            serial: Vec::new(),
            capacity: Vec::new(),
            keys: 0,
        }
    }

    /// The sizes of requests and answers, which must stay.
    pub(super) fn read_config(&mut self, session: &mut Session) -> Result<()> {
        let config = session.config(0, BYTES as u32)?;
        let size = |at: usize| config.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let (cdb, sense) = size(CDB_SIZE_AT).zip(size(SENSE_SIZE_AT)).context("GET_CONFIG: is too short")?;
        let sizes = (cdb as usize, sense as usize);
        ensure!(
            (16..=HEAD_BYTES_MAX - CDB_AT).contains(&sizes.0) && sizes.1 <= ANSWER_BYTES_MAX - SENSE_AT,
            "GET_CONFIG: cdb_size {cdb} and sense_size {sense} are not what drivers use"
        );
        let before = (self.cdb_bytes, self.sense_bytes);
        ensure!(before == (0, 0) || before == sizes, "GET_CONFIG: the sizes were {before:?}, are {sizes:?}");
        (self.cdb_bytes, self.sense_bytes) = sizes;
        Ok(())
    }

    /// Another key, which this run has not used yet.
    fn next_key(&mut self) -> u64 {
        self.keys += 1;
        // Never 0, which would unregister.
        mix(self.run ^ self.keys) | 1
    }

    fn wanted(&mut self, unit: (u8, u16), cdb: Cdb, bytes: u32, from_device: bool) -> Wanted {
        self.tag += 1;
        let mut head = [0; HEAD_BYTES_MAX];
        let head = &mut head[..CDB_AT + self.cdb_bytes];
        scsi::write_head(head, scsi::address(unit.0, unit.1), self.tag, &cdb);
        Wanted {
            head: Head::of(head),
            answer_bytes: (SENSE_AT + self.sense_bytes) as u32,
            answer_first: true,
            bytes,
            from_device,
            torn_at: 0,
            indirect: false,
            turn: 0,
        }
    }

    pub(super) fn encode(&mut self, request: &Request, rng: &mut Rng, data: &mut [u8]) -> Wanted {
        let (at, count) = (request.first / self.block_sectors, (request.count / self.block_sectors) as u32);
        let long = rng.once_in(2);
        let fua = match request.kind {
            Kind::Write | Kind::Swap => self.durability == Durability::Forced || rng.once_in(4),
            _ => rng.once_in(8),
        };
        let cdb = match request.kind {
            Kind::Read => cdb::read(Form { long, fua }, at, count),
            Kind::Write => cdb::write(Form { long, fua }, at, count),
            Kind::Swap => cdb::compare_and_write(fua, at, count),
            Kind::Flush => cdb::synchronize_cache(long),
            Kind::Zeroes => {
                let block = &mut data[..self.block_bytes() as usize];
                block.fill(0);
                cdb::write_zeroes(rng.once_in(2), at, count)
            }
            Kind::Discard => {
                data[..cdb::UNMAP_BYTES].copy_from_slice(&cdb::unmap_list(at, count));
                cdb::unmap()
            }
            Kind::Reserve => {
                let old = self.reserved.as_ref().and_then(Reserved::key).unwrap_or_default();
                let new = self.next_key();
                data[..cdb::RESERVE_BYTES].copy_from_slice(&cdb::reserve_list(old, new));
                if let Some(reserved) = &mut self.reserved {
                    reserved.change(new);
                }
                cdb::reserve_out(cdb::REGISTER, 0)
            }
            Kind::Ask(question) => cdb::ask(question, ROOM_BYTES as u8),
        };
        let unit = if of_other(request.kind) { OTHER } else { DISK };
        self.wanted(unit, cdb, self.data_bytes(request), request.reads())
    }

    fn block_bytes(&self) -> u32 {
        self.block_sectors as u32 * SECTOR_BYTES as u32
    }

    /// Bytes of data behind head or answer.
    fn data_bytes(&self, request: &Request) -> u32 {
        match request.kind {
            Kind::Read | Kind::Write => request.sector_bytes(),
            Kind::Swap => 2 * request.sector_bytes(),
            Kind::Zeroes => self.block_bytes(),
            Kind::Discard => cdb::UNMAP_BYTES as u32,
            Kind::Reserve => cdb::RESERVE_BYTES as u32,
            Kind::Ask(Question::Ready | Question::OtherReady) | Kind::Flush => 0,
            Kind::Ask(_) => ROOM_BYTES,
        }
    }

    /// Those among them that a device moves.
    fn moved(&self, request: &Request) -> u32 {
        match request.kind {
            Kind::Ask(Question::Serial) => self.serial.len() as u32,
            Kind::Ask(Question::Capacity) => CAPACITY_BYTES,
            Kind::Ask(Question::Keys) => KEYS_BYTES,
            Kind::Ask(Question::Reservation) => RESERVATION_BYTES,
            Kind::Ask(Question::OtherKeys) => NOBODY.len() as u32,
            _ => self.data_bytes(request),
        }
    }

    pub(super) fn judge(&mut self, request: &Request, answer: &[u8], how: Answered) -> Result<Verdict> {
        let response = Response::of(answer)?;
        let Response { code, status, residual, sense } = response;
        let is_good = (code, status) == (0, GOOD);
        let moved = if is_good { self.moved(request) } else { 0 };
        let delivered = if request.reads() { moved } else { 0 };
        let (written, left) = (answer.len() as u32 + delivered, self.data_bytes(request) - moved);
        ensure!(how.written == written, "wrote {} bytes, not {written}: {response:?}", how.written);
        ensure!(residual == left, "says that {residual} bytes were not moved, not {left}: {response:?}");
        let verdict = match sense {
            _ if is_good => Verdict::Done,
            Some(sense) if Attentions::is_one(sense) => {
                ensure!(hears_first(request.kind), "was not done because of {sense:?}, which it is not to be told");
                self.attentions(request.kind).tell(sense, how.earlier)?;
                Verdict::NotBegun
            }
            Some(MAY_BE_DONE) if matches!(request.kind, Kind::Swap | Kind::Reserve) => {
                ensure!(how.resubmitted, "may have been done before, and no server was lost with it: {response:?}");
                Verdict::MayBeDone
            }
            _ if (code, status) == (0, CHECK_CONDITION) => bail!("failed: {sense:?}"),
            _ => bail!("failed: {response:?}"),
        };
        if hears_first(request.kind) && verdict == Verdict::Done {
            self.attentions(request.kind).answered(how.earlier);
        }
        if let (Kind::Reserve, Some(reserved)) = (request.kind, &mut self.reserved) {
            match verdict {
                Verdict::Done => reserved.changed(how.earlier),
                Verdict::NotBegun => reserved.not_begun(),
                Verdict::MayBeDone => reserved.may_be_changed(),
            }
        }
        Ok(verdict)
    }

    fn attentions(&mut self, kind: Kind) -> &mut Attentions {
        if of_other(kind) { &mut self.other } else { &mut self.disk }
    }

    pub(super) fn judge_data(&mut self, question: Question, data: &[u8], moment: usize, earlier: bool) -> Result<()> {
        let is_same = |known: &[u8]| {
            let found = data.get(..known.len()).unwrap_or_default();
            ensure!(found == known, "{question} was {known:02x?}, is {found:02x?}");
            Ok(())
        };
        let asked = match question {
            Question::Ready | Question::OtherReady => return Ok(()),
            Question::Serial => return is_same(&self.serial),
            Question::Capacity => return is_same(&self.capacity),
            Question::OtherKeys => return is_same(&NOBODY),
            Question::Keys => (Asked::Keys, KEYS_BYTES),
            Question::Reservation => (Asked::Reservation, RESERVATION_BYTES),
        };
        let reserved = self.reserved.as_mut().context("nothing is reserved")?;
        reserved.judge(asked.0, &data[..asked.1 as usize], moment, earlier)
    }

    /// Counts what becomes of the reservation.
    pub(super) fn moment(&self) -> usize {
        self.reserved.as_ref().map_or(0, Reserved::moment)
    }

    pub(super) fn may_reserve(&self) -> bool {
        self.reserved.as_ref().is_some_and(|reserved| reserved.key().is_some())
    }

    pub(super) fn begin_life(&mut self, power_lost: bool) {
        self.disk.begin(self.reserved.is_some());
        self.other.begin(false);
        if let Some(reserved) = &mut self.reserved {
            reserved.begin(power_lost);
        }
    }

    pub(super) fn earlier_is_over(&mut self) {
        self.disk.earlier_is_over();
        self.other.earlier_is_over();
    }

    pub(super) fn check_settled(&self) -> Result<()> {
        self.disk.check_settled()?;
        self.other.check_settled()
    }
}

/// Whether a request is for the other unit.
fn of_other(kind: Kind) -> bool {
    matches!(kind, Kind::Ask(Question::OtherReady | Question::OtherKeys))
}

/// Whether a command is told of unit attentions before it is done: every one but INQUIRY (SPC-5, "INQUIRY command").
fn hears_first(kind: Kind) -> bool {
    kind != Kind::Ask(Question::Serial)
}
