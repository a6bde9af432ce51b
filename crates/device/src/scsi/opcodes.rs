//! The commands of a disk, in one table: what decodes them, and which bits of a CDB they have. REPORT SUPPORTED OPERATION CODES and
//! `docs/scsi.md` say what stands here.

use super::cdb::Cdb;
use super::command::Command;
use super::sense::Sense;
use super::spec::opcode::{self as op, maintenance_in, reserve_in, reserve_out, service_in_16};
use super::unit::Unit;
use super::{decode_data as data, decode_query as query};

/// What makes a command of a CDB.
#[derive(Clone, Copy)]
pub(super) enum Decode {
    /// The CDB alone.
    Cdb(fn(&Cdb) -> Result<Command, Sense>),
    /// The CDB and what is known of the unit, which has to be started.
    Medium(fn(&Cdb, &Unit) -> Result<Command, Sense>),
}

/// A command.
#[derive(Clone, Copy)]
pub struct Operation {
    /// Operation code.
    pub code: u8,
    /// Service action, of codes that have them: bits 4 to 0 of byte 1.
    pub action: Option<u8>,
    /// Its name in the standard.
    pub name: &'static str,
    /// The standard that has it.
    pub standard: &'static str,
    /// The bits that it has, as long as the CDB; byte 0 is the operation code (SPC-5, "CDB usage data").
    pub usage: &'static [u8],
    pub(super) mask: u128,
    pub(super) decode: Decode,
    /// Whether a unit has the command.
    offered: fn(&Unit) -> bool,
}

/// Bits of byte 1 that a service action takes.
const ACTION_MASK: u8 = 0x1f;

const ROWS: [Operation; 53] = rows();

/// Every command, sorted by operation code and service action.
pub static OPERATIONS: &[Operation] = &ROWS;

/// The first row of each operation code, one more than its number; 0: none.
const FIRST: [u8; 256] = {
    let mut first = [0; 256];
    let mut at = ROWS.len();
    while at > 0 {
        first[ROWS[at - 1].code as usize] = at as u8;
        at -= 1;
    }
    first
};

/// The rows of an operation code.
#[inline]
pub(super) fn of_code(code: u8) -> &'static [Operation] {
    let Some(first) = usize::from(FIRST[usize::from(code)]).checked_sub(1) else {
        return &[];
    };
    let rows = OPERATIONS.get(first..).unwrap_or_default();
    let len = rows.iter().take_while(|row| row.code == code).count();
    rows.get(..len).unwrap_or_default()
}

/// The row that a CDB is of.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE; INVALID FIELD IN CDB when there are other service actions.
#[inline]
pub(super) fn of_cdb(area: &[u8], unit: Option<&Unit>) -> Result<&'static Operation, Sense> {
    let (code, action) = match *area {
        [code, byte, ..] => (code, byte & ACTION_MASK),
        _ => return Err(Sense::INVALID_OPCODE),
    };
    let mut other = false;
    for row in of_code(code).iter().filter(|row| unit.is_none_or(|unit| row.is_offered(unit))) {
        if row.action.is_none_or(|wanted| wanted == action) {
            return Ok(row);
        }
        other = true;
    }
    Err(if other { Sense::cdb_bit(1, 4) } else { Sense::INVALID_OPCODE })
}

impl Operation {
    /// Whether the unit has the command.
    pub fn is_offered(&self, unit: &Unit) -> bool {
        (self.offered)(unit)
    }

    /// CDB usage data: the operation code, the service action, and a mask of everything else.
    pub fn usage_data(&self) -> impl Iterator<Item = u8> + use<> {
        let action = self.action;
        self.usage.iter().enumerate().map(move |(at, mask)| match action {
            Some(action) if at == 1 => mask & !ACTION_MASK | action,
            _ => *mask,
        })
    }
}

const SPC: &str = "SPC-5";
const SPC_2: &str = "SPC-2";
const SBC: &str = "SBC-4";
/// DPO and FUA of byte 1.
const CACHE: u8 = 0x18;
/// DPO, and BYTCHK of verifications and of writes with one.
const VERIFY: u8 = 0x16;
const WRITE_VERIFY: u8 = 0x12;

const fn always(_unit: &Unit) -> bool {
    true
}

fn with_unmap(unit: &Unit) -> bool {
    unit.limits().unmap.is_some()
}

fn with_write_same(unit: &Unit) -> bool {
    unit.limits().write_same_blocks_max > 0
}

fn with_compare_and_write(unit: &Unit) -> bool {
    unit.limits().compare_and_write_blocks_max > 0
}

const fn row(code: u8, name: &'static str, standard: &'static str, usage: &'static [u8], decode: Decode) -> Operation {
    Operation { code, action: None, name, standard, usage, mask: super::cdb::mask(usage), decode, offered: always }
}

impl Operation {
    const fn action(self, action: u8) -> Operation {
        Operation { action: Some(action), ..self }
    }

    const fn only_if(self, offered: fn(&Unit) -> bool) -> Operation {
        Operation { offered, ..self }
    }
}

#[rustfmt::skip]
const fn rows() -> [Operation; 53] {
    use Decode::{Cdb, Medium};
    /// Usage data of the commands with a block and a number of blocks.
    macro_rules! blocks {
        (10, $code:expr, $one:expr) => { &[$code, $one, 255, 255, 255, 255, 0, 255, 255, 0] };
        (12, $code:expr, $one:expr) => { &[$code, $one, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0] };
        (16, $code:expr, $one:expr) => { &[$code, $one, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0] };
    }
    /// Usage data of commands of 12 bytes with a byte 1, bytes 2 to 5, and an allocation length.
    macro_rules! report {
        ($code:expr, $one:expr, $($two_to_five:expr),+) => { &[$code, $one, $($two_to_five),+, 255, 255, 255, 255, 0, 0] };
    }
    const RESERVE_IN: &[u8] = &[op::PERSISTENT_RESERVE_IN, 0x1f, 0, 0, 0, 0, 0, 255, 255, 0];
    const RESERVE_OUT: &[u8] = &[op::PERSISTENT_RESERVE_OUT, 0x1f, 255, 0, 0, 255, 255, 255, 255, 0];
    const SERVICE_IN: u8 = op::SERVICE_ACTION_IN_16;
    const MAINTENANCE: u8 = op::MAINTENANCE_IN;
    [
        row(op::TEST_UNIT_READY, "TEST UNIT READY", SPC, &[op::TEST_UNIT_READY, 0, 0, 0, 0, 0], Medium(query::test_unit_ready)),
        row(op::REQUEST_SENSE, "REQUEST SENSE", SPC, &[op::REQUEST_SENSE, 1, 0, 0, 255, 0], Cdb(query::request_sense)),
        row(op::READ_6, "READ (6)", SBC, &[op::READ_6, 0x1f, 255, 255, 255, 0], Medium(data::read_6)),
        row(op::WRITE_6, "WRITE (6)", SBC, &[op::WRITE_6, 0x1f, 255, 255, 255, 0], Medium(data::write_6)),
        row(op::INQUIRY, "INQUIRY", SPC, &[op::INQUIRY, 1, 255, 255, 255, 0], Cdb(query::inquiry)),
        row(op::MODE_SELECT_6, "MODE SELECT (6)", SPC, &[op::MODE_SELECT_6, 0x10, 0, 0, 255, 0], Cdb(query::mode_select_6)),
        row(op::RESERVE_6, "RESERVE (6)", SPC_2, &[op::RESERVE_6, 0, 0, 0, 0, 0], Cdb(query::reserve)),
        row(op::RELEASE_6, "RELEASE (6)", SPC_2, &[op::RELEASE_6, 0, 0, 0, 0, 0], Cdb(query::release)),
        row(op::MODE_SENSE_6, "MODE SENSE (6)", SPC, &[op::MODE_SENSE_6, 8, 255, 255, 255, 0], Cdb(query::mode_sense_6)),
        row(op::START_STOP_UNIT, "START STOP UNIT", SBC, &[op::START_STOP_UNIT, 1, 0, 0, 5, 0], Cdb(query::start_stop)),
        row(op::PREVENT_ALLOW, "PREVENT ALLOW MEDIUM REMOVAL", SPC, &[op::PREVENT_ALLOW, 0, 0, 0, 3, 0], Cdb(query::prevent_allow)),
        row(op::READ_CAPACITY_10, "READ CAPACITY (10)", SBC, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], Cdb(query::capacity_10)),
        row(op::READ_10, "READ (10)", SBC, blocks!(10, op::READ_10, CACHE), Medium(data::read_10)),
        row(op::WRITE_10, "WRITE (10)", SBC, blocks!(10, op::WRITE_10, CACHE), Medium(data::write_10)),
        row(op::WRITE_VERIFY_10, "WRITE AND VERIFY (10)", SBC, blocks!(10, op::WRITE_VERIFY_10, WRITE_VERIFY), Medium(data::write_verify_10)),
        row(op::VERIFY_10, "VERIFY (10)", SBC, blocks!(10, op::VERIFY_10, VERIFY), Medium(data::verify_10)),
        row(op::SYNCHRONIZE_CACHE_10, "SYNCHRONIZE CACHE (10)", SBC, blocks!(10, op::SYNCHRONIZE_CACHE_10, 2), Medium(data::flush_10)),
        row(op::WRITE_SAME_10, "WRITE SAME (10)", SBC, blocks!(10, op::WRITE_SAME_10, 8), Medium(data::write_same_10)).only_if(with_write_same),
        row(op::UNMAP, "UNMAP", SBC, &[op::UNMAP, 0, 0, 0, 0, 0, 0, 255, 255, 0], Medium(data::unmap)).only_if(with_unmap),
        row(op::LOG_SENSE, "LOG SENSE", SPC, &[op::LOG_SENSE, 0, 255, 255, 0, 255, 255, 255, 255, 0], Cdb(query::log_sense)),
        row(op::MODE_SELECT_10, "MODE SELECT (10)", SPC, &[op::MODE_SELECT_10, 0x10, 0, 0, 0, 0, 0, 255, 255, 0], Cdb(query::mode_select_10)),
        row(op::RESERVE_10, "RESERVE (10)", SPC_2, &[op::RESERVE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], Cdb(query::reserve)),
        row(op::RELEASE_10, "RELEASE (10)", SPC_2, &[op::RELEASE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], Cdb(query::release)),
        row(op::MODE_SENSE_10, "MODE SENSE (10)", SPC, &[op::MODE_SENSE_10, 0x18, 255, 255, 0, 0, 0, 255, 255, 0], Cdb(query::mode_sense_10)),
        row(op::PERSISTENT_RESERVE_IN, "PERSISTENT RESERVE IN: READ KEYS", SPC, RESERVE_IN, Cdb(query::reserve_in)).action(reserve_in::READ_KEYS),
        row(op::PERSISTENT_RESERVE_IN, "PERSISTENT RESERVE IN: READ RESERVATION", SPC, RESERVE_IN, Cdb(query::reserve_in)).action(reserve_in::READ_RESERVATION),
        row(op::PERSISTENT_RESERVE_IN, "PERSISTENT RESERVE IN: REPORT CAPABILITIES", SPC, RESERVE_IN, Cdb(query::reserve_in)).action(reserve_in::REPORT_CAPABILITIES),
        row(op::PERSISTENT_RESERVE_IN, "PERSISTENT RESERVE IN: READ FULL STATUS", SPC, RESERVE_IN, Cdb(query::reserve_in)).action(reserve_in::READ_FULL_STATUS),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: REGISTER", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::REGISTER),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: RESERVE", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::RESERVE),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: RELEASE", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::RELEASE),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: CLEAR", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::CLEAR),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: PREEMPT", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::PREEMPT),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: PREEMPT AND ABORT", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::PREEMPT_AND_ABORT),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::REGISTER_AND_IGNORE),
        row(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT: REGISTER AND MOVE", SPC, RESERVE_OUT, Cdb(query::reserve_out)).action(reserve_out::REGISTER_AND_MOVE),
        row(op::READ_16, "READ (16)", SBC, blocks!(16, op::READ_16, CACHE), Medium(data::read_16)),
        row(op::COMPARE_AND_WRITE, "COMPARE AND WRITE", SBC, &[op::COMPARE_AND_WRITE, CACHE, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0, 0], Medium(data::compare_and_write)).only_if(with_compare_and_write),
        row(op::WRITE_16, "WRITE (16)", SBC, blocks!(16, op::WRITE_16, CACHE), Medium(data::write_16)),
        row(op::WRITE_VERIFY_16, "WRITE AND VERIFY (16)", SBC, blocks!(16, op::WRITE_VERIFY_16, WRITE_VERIFY), Medium(data::write_verify_16)),
        row(op::VERIFY_16, "VERIFY (16)", SBC, blocks!(16, op::VERIFY_16, VERIFY), Medium(data::verify_16)),
        row(op::SYNCHRONIZE_CACHE_16, "SYNCHRONIZE CACHE (16)", SBC, blocks!(16, op::SYNCHRONIZE_CACHE_16, 2), Medium(data::flush_16)),
        row(op::WRITE_SAME_16, "WRITE SAME (16)", SBC, blocks!(16, op::WRITE_SAME_16, 9), Medium(data::write_same_16)).only_if(with_write_same),
        row(SERVICE_IN, "READ CAPACITY (16)", SBC, &[SERVICE_IN, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0], Cdb(query::capacity_16)).action(service_in_16::READ_CAPACITY_16),
        row(SERVICE_IN, "GET LBA STATUS (16)", SBC, blocks!(16, SERVICE_IN, 0x1f), Medium(data::lba_status)).action(service_in_16::GET_LBA_STATUS),
        row(op::REPORT_LUNS, "REPORT LUNS", SPC, report!(op::REPORT_LUNS, 0, 255, 0, 0, 0), Cdb(query::report_luns)),
        row(MAINTENANCE, "REPORT TARGET PORT GROUPS", SPC, report!(MAINTENANCE, 255, 0, 0, 0, 0), Cdb(query::port_groups)).action(maintenance_in::REPORT_TARGET_PORT_GROUPS),
        row(MAINTENANCE, "REPORT SUPPORTED OPERATION CODES", SPC, report!(MAINTENANCE, 0x1f, 0x87, 255, 255, 255), Cdb(query::operations)).action(maintenance_in::REPORT_SUPPORTED_OPERATION_CODES),
        row(MAINTENANCE, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", SPC, report!(MAINTENANCE, 0x1f, 0x80, 0, 0, 0), Cdb(query::task_management)).action(maintenance_in::REPORT_SUPPORTED_TMFS),
        row(op::READ_12, "READ (12)", SBC, blocks!(12, op::READ_12, CACHE), Medium(data::read_12)),
        row(op::WRITE_12, "WRITE (12)", SBC, blocks!(12, op::WRITE_12, CACHE), Medium(data::write_12)),
        row(op::WRITE_VERIFY_12, "WRITE AND VERIFY (12)", SBC, blocks!(12, op::WRITE_VERIFY_12, WRITE_VERIFY), Medium(data::write_verify_12)),
        row(op::VERIFY_12, "VERIFY (12)", SBC, blocks!(12, op::VERIFY_12, VERIFY), Medium(data::verify_12)),
    ]
}
