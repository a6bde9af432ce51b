//! virtio-scsi (virtio 1.3, 5.6): one logical unit of the device, by commands of SPC-5 and SBC-4.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use frontkit::scsi::config::{CDB_SIZE_AT, QUEUES_AT, SENSE_SIZE_AT};
use frontkit::scsi::response::{RESIDUAL_AT, RESPONSE_AT, SENSE_AT, STATUS_AT};
use frontkit::scsi::{self, CDB_AT};
use rustix::io::Errno;
use values::Lun;

use super::queue::{ANSWER_AT, ANSWER_BYTES_MAX, Encoding, Queue};
use super::{Disk, Operation, Verdict, data_bytes, failed, plan, request_queues};
use crate::bytes::u32_at;
use crate::driver::{self, QueuePlan};
use crate::frontend::spec::{Limits, Spec};

/// Descriptors of the control queue and of the event queue, which are set up as a guest does and not used.
const OTHER_QUEUES: QueuePlan = QueuePlan { size: 64, buffer_bytes: 0 };

/// Operation codes (SPC-5, SBC-4: the tables of commands).
mod opcode {
    pub(super) const TEST_UNIT_READY: u8 = 0x00;
    pub(super) const INQUIRY: u8 = 0x12;
    pub(super) const MODE_SENSE_6: u8 = 0x1a;
    pub(super) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(super) const READ_16: u8 = 0x88;
    pub(super) const WRITE_16: u8 = 0x8a;
    pub(super) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    /// With service action 0x10.
    pub(super) const READ_CAPACITY_16: u8 = 0x9e;
}

/// Status codes (SAM-5, "Status codes").
mod status {
    pub(super) const GOOD: u8 = 0x00;
    pub(super) const CHECK_CONDITION: u8 = 0x02;
    pub(super) const BUSY: u8 = 0x08;
    pub(super) const RESERVATION_CONFLICT: u8 = 0x18;
    pub(super) const TASK_SET_FULL: u8 = 0x28;
}

/// Sense keys (SPC-5, "Sense key and additional sense code definitions").
const UNIT_ATTENTION: u8 = 6;
const DATA_PROTECT: u8 = 7;
/// Additional sense: SPACE ALLOCATION FAILED WRITE PROTECT.
const SPACE_ALLOCATION_FAILED: (u8, u8) = (0x27, 0x07);

/// How long a command may take before the load.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// How often a command is made again because the unit has something else to tell, such as that it was just attached.
const ATTENTIONS_MAX: usize = 16;
/// The key with which a reservation is made.
const RESERVATION_KEY: u64 = u64::from_be_bytes(*b"bench\0\0\0");

/// A logical unit, and the sizes that its device has for requests and answers.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    address: [u8; 8],
    cdb_bytes: usize,
    sense_bytes: usize,
    block_bytes: u32,
    tag: u64,
}

impl Unit {
    /// The unit `lun` of a device with this configuration; its blocks are not known yet.
    fn of(lun: Lun, config: &[u8]) -> Result<Self> {
        let size = |at| u32_at(config, at).map(|size| size as usize);
        let unit = Self {
            address: scsi::address(lun.target, lun.number),
            cdb_bytes: size(CDB_SIZE_AT)?,
            sense_bytes: size(SENSE_SIZE_AT)?,
            block_bytes: 0,
            tag: 0,
        };
        let fits = (16..=ANSWER_AT - CDB_AT).contains(&unit.cdb_bytes) && unit.answer_bytes() <= ANSWER_BYTES_MAX;
        ensure!(
            fits,
            "cdb_size {} and sense_size {} are not sizes that a driver uses",
            unit.cdb_bytes,
            unit.sense_bytes
        );
        Ok(unit)
    }

    /// Writes a request with a command; how long it is.
    fn command(&mut self, head: &mut [u8], cdb: &[u8]) -> usize {
        let len = CDB_AT + self.cdb_bytes;
        self.tag += 1;
        scsi::write_head(&mut head[..len], self.address, self.tag, cdb);
        len
    }

    pub(super) fn encode(&mut self, head: &mut [u8], operation: Operation, bytes: usize) -> usize {
        let (code, offset) = match operation {
            Operation::Read(offset) => (opcode::READ_16, offset),
            Operation::Write(offset) => (opcode::WRITE_16, offset),
            Operation::Flush => (opcode::SYNCHRONIZE_CACHE_16, 0),
        };
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&(offset / u64::from(self.block_bytes)).to_be_bytes());
        cdb[10..14].copy_from_slice(&(bytes as u32 / self.block_bytes).to_be_bytes());
        self.command(head, &cdb)
    }

    pub(super) fn answer_bytes(&self) -> usize {
        SENSE_AT + self.sense_bytes
    }
}

/// What is asked of a unit before the load begins.
struct Asker<'a> {
    queue: &'a mut Queue,
    unit: Unit,
    lun: Lun,
}

impl Asker<'_> {
    /// What a command brings; otherwise, in words, why the unit does not do it.
    fn try_ask(&mut self, cdb: &[u8], sent: &[u8], received: usize) -> Result<Result<Vec<u8>, String>> {
        let mut head = [0; ANSWER_AT];
        for _ in 0..ATTENTIONS_MAX {
            let len = self.unit.command(&mut head, cdb);
            let (mut answer, data) = self.queue.ask(&head[..len], sent, received, ANSWER_TIME_MAX)?;
            // There is room for more than comes.
            answer[RESIDUAL_AT..][..4].fill(0);
            match judge(&answer) {
                Verdict::Done => return Ok(Ok(data)),
                Verdict::Again => {}
                Verdict::Failed(_) => return Ok(Err(explain(&answer))),
            }
        }
        bail!("LUN {}: has something else to tell each time it is asked", self.lun)
    }

    fn ask(&mut self, what: &str, cdb: &[u8], sent: &[u8], received: usize) -> Result<Vec<u8>> {
        self.try_ask(cdb, sent, received)?.map_err(|why| anyhow!("LUN {}: {what}: {why}", self.lun))
    }

    /// Whether there is a disk, and whether it may be written.
    fn look(&mut self) -> Result<bool> {
        let inquiry = self.ask("INQUIRY", &[opcode::INQUIRY, 0, 0, 0, 36, 0], &[], 36)?;
        ensure!(inquiry[0] == 0, "LUN {}: is no disk, but peripheral device type {:#04x}", self.lun, inquiry[0]);
        self.ask("TEST UNIT READY", &[opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0], &[], 0)?;
        // All pages, of which the header is wanted: WP of the device-specific parameter (SBC-4).
        let modes = self.try_ask(&[opcode::MODE_SENSE_6, 0, 0x3f, 0, 192, 0], &[], 192)?;
        Ok(modes.is_ok_and(|modes| modes[2] & 0x80 != 0))
    }

    /// Capacity in bytes, the size of a block, and the longest transfer in bytes, which is 0 for any.
    fn capacity(&mut self) -> Result<(u64, u32, u32)> {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (opcode::READ_CAPACITY_16, 0x10, 32);
        let data = self.ask("READ CAPACITY(16)", &cdb, &[], 32)?;
        let (last, block) = (be_u64(&data, 0), be_u32(&data, 8));
        ensure!(block.is_power_of_two() && block >= 512, "LUN {}: says that its blocks have {block} bytes", self.lun);
        // Block limits VPD page (SBC-4), if it has that: MAXIMUM TRANSFER LENGTH in blocks.
        let limits = self.try_ask(&[opcode::INQUIRY, 1, 0xb0, 0, 64, 0], &[], 64)?;
        let longest = limits.map_or(0, |page: Vec<u8>| be_u32(&page, 8).saturating_mul(block));
        Ok((last.saturating_add(1).saturating_mul(block.into()), block, longest))
    }

    /// Registers, and takes a reservation: Write Exclusive (SPC-5, "PERSISTENT RESERVE OUT command").
    fn reserve(&mut self) -> Result<()> {
        const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 6;
        const RESERVE: u8 = 1;
        const WRITE_EXCLUSIVE: u8 = 1;
        // The key that one has stands before the key that one is to have.
        let [mut register, mut reserve] = [[0; 24]; 2];
        register[8..16].copy_from_slice(&RESERVATION_KEY.to_be_bytes());
        reserve[..8].copy_from_slice(&RESERVATION_KEY.to_be_bytes());
        let out = |action, scope_type| [opcode::PERSISTENT_RESERVE_OUT, action, scope_type, 0, 0, 0, 0, 0, 24, 0];
        self.ask("PERSISTENT RESERVE OUT, REGISTER", &out(REGISTER_AND_IGNORE_EXISTING_KEY, 0), &register, 0)?;
        self.ask("PERSISTENT RESERVE OUT, RESERVE", &out(RESERVE, WRITE_EXCLUSIVE), &reserve, 0)?;
        Ok(())
    }
}

fn be_u32(data: &[u8], at: usize) -> u32 {
    data.get(at..at + 4).and_then(|field| field.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn be_u64(data: &[u8], at: usize) -> u64 {
    data.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// The device has started with these queues, and the unit has been asked what it is.
pub(super) fn set_up(mut link: driver::Device, spec: &Spec) -> Result<Disk> {
    let config = link.config(scsi::config::BYTES as u32)?.context("the server shows no configuration")?;
    let lun = spec.lun.unwrap_or_default();
    let unit = Unit::of(lun, &config)?;
    let offered = u16::try_from(u32_at(&config, QUEUES_AT)?).unwrap_or(u16::MAX);
    let mut plans = vec![OTHER_QUEUES; 2];
    plans.resize(plans.len() + request_queues(spec, offered), plan(spec));
    let started = link.start(&plans)?;
    let encoding = Encoding::Scsi(unit.clone());
    let queue = |(queue, buffers)| Queue::new(queue, buffers, encoding.clone(), spec.depth, data_bytes(spec));
    let mut queues: Vec<Queue> = started.into_iter().skip(2).map(queue).collect();
    let first = queues.first_mut().context("the server offers no request queue")?;
    let mut asker = Asker { queue: first, unit: unit.clone(), lun };
    let is_read_only = asker.look()?;
    let (capacity_bytes, block_bytes, segment_bytes_max) = asker.capacity()?;
    if spec.reserve {
        asker.reserve()?;
    }
    for (index, queue) in queues.iter_mut().enumerate() {
        // No two requests of an I_T nexus that are in flight have one tag (SAM-5, "Command identifier").
        queue.encode_as(Encoding::Scsi(Unit { block_bytes, tag: (index as u64) << 48, ..unit.clone() }));
    }
    let limits = Limits { capacity_bytes, block_bytes, segment_bytes_max, queues: offered };
    Ok(Disk { link, queues, limits, is_read_only, has_flush: true })
}

/// Key, and additional code and qualifier of sense data in either format (SPC-5, "Sense data").
fn sense(answer: &[u8]) -> (u8, (u8, u8)) {
    let at = |at: usize| answer.get(SENSE_AT + at).copied().unwrap_or(0);
    // Descriptor format is 0x72 and 0x73, fixed format 0x70 and 0x71.
    if at(0) & 0x7e == 0x72 { (at(1) & 0xf, (at(2), at(3))) } else { (at(2) & 0xf, (at(12), at(13))) }
}

/// What an answer means for its request.
pub(super) fn judge(answer: &[u8]) -> Verdict {
    let residual = u32_at(answer, RESIDUAL_AT).unwrap_or(u32::MAX);
    match (answer[RESPONSE_AT], answer[STATUS_AT]) {
        (0, status::GOOD) if residual == 0 => Verdict::Done,
        (0, status::BUSY | status::TASK_SET_FULL) => Verdict::Again,
        (0, status::RESERVATION_CONFLICT) => failed(Errno::BADE),
        (0, status::CHECK_CONDITION) => match sense(answer) {
            (UNIT_ATTENTION, _) => Verdict::Again,
            (DATA_PROTECT, SPACE_ALLOCATION_FAILED) => failed(Errno::NOSPC),
            (DATA_PROTECT, _) => failed(Errno::ROFS),
            _ => failed(Errno::IO),
        },
        _ => failed(Errno::IO),
    }
}

/// An answer in words.
pub(super) fn explain(answer: &[u8]) -> String {
    match (answer[RESPONSE_AT], answer[STATUS_AT]) {
        (0, status::CHECK_CONDITION) => {
            let (key, (code, qualifier)) = sense(answer);
            format!("sense key {key:x}h, additional sense {code:02x}h/{qualifier:02x}h")
        }
        // BAD TARGET (virtio 1.3, 5.6.6.1.1).
        (3, _) => "there is no such target".to_owned(),
        (0, status) => format!("status {status:02x}h"),
        (response, _) => format!("response {response}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cdb_bytes: u32, sense_bytes: u32) -> Vec<u8> {
        let mut config = vec![0; scsi::config::BYTES];
        config[SENSE_SIZE_AT..][..4].copy_from_slice(&sense_bytes.to_le_bytes());
        config[CDB_SIZE_AT..][..4].copy_from_slice(&cdb_bytes.to_le_bytes());
        config
    }

    fn answer(response: u8, status: u8, residual: u32, sense: &[u8]) -> Vec<u8> {
        let mut answer = vec![0; SENSE_AT + 96];
        answer[RESIDUAL_AT..][..4].copy_from_slice(&residual.to_le_bytes());
        (answer[RESPONSE_AT], answer[STATUS_AT]) = (response, status);
        answer[SENSE_AT..][..sense.len()].copy_from_slice(sense);
        answer
    }

    #[test]
    fn a_request_names_its_unit_and_its_blocks() {
        let lun = Lun { target: 2, number: 0x1234 };
        let mut unit = Unit { block_bytes: 4096, ..Unit::of(lun, &config(32, 96)).unwrap() };
        let mut head = [0xff; ANSWER_AT];
        assert_eq!(unit.encode(&mut head, Operation::Write(0x12_3456_7000), 8192), 19 + 32);
        assert_eq!(head[..8], [1, 2, 0x52, 0x34, 0, 0, 0, 0]);
        assert_eq!(head[16..19], [0; 3], "a simple task");
        assert_eq!(head[19..35], [0x8a, 0, 0, 0, 0, 0, 1, 0x23, 0x45, 0x67, 0, 0, 0, 2, 0, 0]);
        assert_eq!(head[35..51], [0; 16]);
        let tag = head[8];
        assert_eq!(unit.encode(&mut head, Operation::Flush, 0), 51);
        assert_eq!((head[19], &head[21..33]), (0x91, &[0; 12][..]));
        assert_ne!(head[8], tag);
        assert_eq!(unit.answer_bytes(), 108);
    }

    #[test]
    fn sizes_that_have_no_room_are_refused() {
        for (cdb, sense) in [(15, 96), (238, 96), (32, 245), (u32::MAX, 96), (32, u32::MAX)] {
            assert!(Unit::of(Lun::default(), &config(cdb, sense)).is_err(), "{cdb} {sense}");
        }
    }

    #[test]
    fn answers_are_what_they_say() {
        let fixed = |key, code, qualifier| [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier];
        let cases = [
            (answer(0, 0, 0, &[]), Verdict::Done),
            (answer(0, 0, 512, &[]), failed(Errno::IO)),
            (answer(0, 2, 0, &fixed(6, 0x29, 0)), Verdict::Again),
            (answer(0, 2, 0, &[0x72, 6, 0x2a, 9]), Verdict::Again),
            (answer(0, 2, 0, &fixed(7, 0x27, 7)), failed(Errno::NOSPC)),
            (answer(0, 2, 0, &[0x72, 7, 0x27, 0]), failed(Errno::ROFS)),
            (answer(0, 2, 0, &fixed(3, 0x11, 0)), failed(Errno::IO)),
            (answer(0, 8, 0, &[]), Verdict::Again),
            (answer(0, 0x18, 0, &[]), failed(Errno::BADE)),
            (answer(9, 0, 0, &[]), failed(Errno::IO)),
            (vec![super::super::queue::UNANSWERED; SENSE_AT + 96], failed(Errno::IO)),
        ];
        for (answer, verdict) in cases {
            assert_eq!(judge(&answer), verdict, "{}", explain(&answer));
        }
        assert_eq!(explain(&answer(0, 2, 0, &fixed(5, 0x24, 0))), "sense key 5h, additional sense 24h/00h");
    }
}
