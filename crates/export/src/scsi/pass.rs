//! Units that perform commands themselves: devices of the host. A command goes there as it is, and what comes back is the driver's.

use super::commands::MAY_BE_DONE;
use super::kind::Kind;
use super::ring::ScsiRing;
use super::units::Unit;
use super::work::Work;
use crate::buffers;
use device::scsi::spec::opcode as op;
use device::scsi::spec::sense::{code, key};
use device::scsi::{
    BLOCK_LIMITS_BYTES, ResponseCode, Sense, is_block_limits, limit_transfers, may_be_sent_again, sent_cdb,
};
use engine::{Io, Token};
use std::sync::{Arc, OnceLock};
use storage::{Loss, Pass, PassCommand, PassData, PassPlace, Passed, Refusal};
use vring::Segment;

/// Bytes of a block where nobody knows them: no less than there are.
const BLOCK_BYTES_MAX: u32 = 4096;

/// A command that another device performs.
#[derive(Debug)]
pub(crate) struct Passing {
    place: PassPlace,
    data: PassData,
    /// Where the answer goes that says what one command may move, and how many blocks that is: what sends commands for the driver has bounds
    /// of its own.
    limits: Option<(Vec<Segment>, u32)>,
}

/// Whether we answer it, whoever performs the others: which units there are is ours to say, and what a driver hears first.
pub(super) fn is_ours(cdb: &[u8], attention: bool) -> bool {
    match cdb.first() {
        Some(&op::REPORT_LUNS) => true,
        Some(&op::REQUEST_SENSE) => attention,
        _ => false,
    }
}

/// Bytes of data that one command of a driver's may move on all of these units, if one of them has such a bound.
pub(super) fn transfer_bytes_max<'a>(units: impl Iterator<Item = &'a Arc<Unit>>) -> Option<u32> {
    units.filter_map(|unit| unit.storage().passes().map(Pass::transfer_bytes_max)).min()
}

impl ScsiRing {
    /// Has the unit of the request perform a command.
    #[cold]
    pub(super) fn pass(&mut self, head: u16, area: &[u8], again: bool, io: &mut Io<'_>) {
        let Some(entry) = self.entry_of(head) else { return self.transport(head, ResponseCode::BadTarget, io) };
        let (attention, storage) = (entry.attention, entry.storage.clone());
        let Some(pass) = storage.passes() else { return self.check(head, Sense::INTERNAL, io) };
        let cdb = sent_cdb(area);
        // Before anything else is told, as for any other unit.
        if again && !may_be_sent_again(cdb, pass.is_disk()) {
            return self.check(head, MAY_BE_DONE, io);
        }
        if attention && let Some(sense) = self.attention(head, area) {
            return self.check(head, sense, io);
        }
        let (inout, sizes) = (self.terms.inout, self.terms.sizes);
        let slot = &mut self.ring.slots[usize::from(head)];
        slot.kind = kind_of(cdb) as usize;
        let sent = slot.request.buffers;
        let task = &mut slot.request.task;
        let chain = &self.ring.queue.chain;
        let data = match (sent.out_bytes, sent.in_bytes) {
            (0, 0) => PassData::None,
            (0, bytes) => {
                buffers::add(&mut task.buffers, chain.writable_segments(), sizes.response_bytes(), bytes);
                PassData::In
            }
            (bytes, 0) => {
                buffers::add(&mut task.buffers, chain.readable_segments(), sizes.head_bytes(), bytes);
                PassData::Out
            }
            // No command of the host's has both. Without the feature no driver sends it.
            _ if inout => return self.check(head, Sense::INVALID_OPCODE, io),
            _ => return self.transport(head, ResponseCode::Failure, io),
        };
        let limits = is_block_limits(cdb).then(|| {
            let blocks = pass.transfer_bytes_max() / pass.block_bytes().unwrap_or(BLOCK_BYTES_MAX).max(1);
            (chain.writable_segments().to_vec(), blocks)
        });
        self.turns.begun_bytes += sent.out_bytes + sent.in_bytes;
        let place: PassPlace = Arc::new(OnceLock::new());
        let command = PassCommand { cdb: cdb.to_vec(), data, place: place.clone() };
        self.keep(head, Work::Pass(Box::new(Passing { place, data, limits })));
        let reply = io.reply(Token::request(head));
        pass.pass(&mut self.ring.slots[usize::from(head)].request.task, command, reply);
        self.turns.trace.pending(head, io);
    }

    /// It has ended.
    pub(super) fn passed(&mut self, head: u16, io: &Io<'_>) {
        let request = &mut self.ring.slot(head).request;
        let Work::Pass(passing) = std::mem::replace(&mut request.work, Work::Answer { moved: 0 }) else { return };
        let Passing { place, data, limits } = *passing;
        // There is nothing when the thread panicked.
        let passed = Arc::into_inner(place).and_then(OnceLock::into_inner).unwrap_or(Passed::Lost(Loss::Other));
        match passed {
            Passed::Answered { status, sense, moved_bytes } => {
                if let (Some((room, blocks)), 0) = (limits, status) {
                    self.limit(&room, moved_bytes, blocks);
                }
                self.say(head, status, &sense, (data, moved_bytes), io);
            }
            Passed::Lost(loss) => self.transport(head, code_of(loss), io),
            Passed::Refused(refusal) => self.check(head, sense_of(refusal), io),
        }
    }

    /// Bounds what the page of limits says that is in the chain.
    fn limit(&self, room: &[Segment], bytes: u64, blocks: u32) {
        let skip = self.terms.sizes.response_bytes() as u64;
        let mut page = [0; BLOCK_LIMITS_BYTES];
        let len = usize::try_from(bytes).unwrap_or(usize::MAX).min(page.len());
        let page = &mut page[..len];
        vring::copy::read_at(room, skip, page);
        limit_transfers(page, blocks);
        vring::copy::write_at(room, skip, page);
    }

    /// Answers with what the device has said.
    fn say(&mut self, head: u16, status: u8, sense: &[u8], (data, moved_bytes): (PassData, u64), io: &Io<'_>) {
        let sent = match data {
            PassData::In => {
                self.turns.figures.bytes_read.add(moved_bytes);
                moved_bytes
            }
            PassData::Out => {
                self.turns.figures.bytes_written.add(moved_bytes);
                0
            }
            PassData::None => 0,
        };
        let request = &mut self.ring.slots[usize::from(head)].request;
        let residual = request.buffers.residual(moved_bytes);
        let bytes = self.response.passed(request.sizes, status, sense, residual);
        let written = request.answer(bytes) + sent;
        self.end(head, written, status != 0, io);
    }
}

/// The transport's word for what became of it.
fn code_of(loss: Loss) -> ResponseCode {
    match loss {
        Loss::Gone => ResponseCode::BadTarget,
        Loss::Busy => ResponseCode::Busy,
        Loss::Aborted => ResponseCode::Aborted,
        Loss::Reset => ResponseCode::Reset,
        Loss::Transport => ResponseCode::TransportFailure,
        Loss::Target => ResponseCode::TargetFailure,
        Loss::Nexus => ResponseCode::NexusFailure,
        Loss::Other => ResponseCode::Failure,
    }
}

fn sense_of(refusal: Refusal) -> Sense {
    match refusal {
        Refusal::Opcode => Sense::INVALID_OPCODE,
        Refusal::Field => Sense::new(key::ILLEGAL_REQUEST, code::INVALID_FIELD_IN_CDB),
        Refusal::WriteProtected => Sense::WRITE_PROTECTED,
        Refusal::Helper => Sense::new(key::ABORTED_COMMAND, code::COMMUNICATION_FAILURE),
    }
}

/// As the figures tell commands apart: those of disks.
fn kind_of(cdb: &[u8]) -> Kind {
    match cdb.first().copied().unwrap_or_default() {
        op::READ_6 | op::READ_10 | op::READ_12 | op::READ_16 => Kind::Read,
        op::WRITE_6 | op::WRITE_10 | op::WRITE_12 | op::WRITE_16 => Kind::Write,
        op::SYNCHRONIZE_CACHE_10 | op::SYNCHRONIZE_CACHE_16 => Kind::Flush,
        op::UNMAP => Kind::Discard,
        op::WRITE_SAME_10 | op::WRITE_SAME_16 => Kind::WriteZeroes,
        op::COMPARE_AND_WRITE => Kind::CompareAndWrite,
        op::PERSISTENT_RESERVE_IN | op::PERSISTENT_RESERVE_OUT => Kind::Reserve,
        _ => Kind::Other,
    }
}
