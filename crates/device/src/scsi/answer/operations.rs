//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.

use super::put_length;
use crate::scsi::command::Operations;
use crate::scsi::opcodes::{OPERATIONS, Operation, of_code};
use crate::scsi::sense::Sense;
use crate::scsi::unit::Unit;

/// SPC-5, "REPORT SUPPORTED OPERATION CODES command".
pub(super) fn report(which: Operations, timeouts: bool, unit: &Unit, out: &mut Vec<u8>) -> Result<(), Sense> {
    let (code, action) = match which {
        Operations::All => {
            all(timeouts, unit, out);
            return Ok(());
        }
        Operations::Code(code) => (code, None),
        Operations::Action(code, action) | Operations::Either(code, action) => (code, Some(action)),
    };
    let mut rows = of_code(code).iter().filter(|row| row.is_offered(unit)).peekable();
    let with_actions = rows.peek().is_some_and(|row| row.action.is_some());
    let found = match which {
        Operations::Code(_) if with_actions => return Err(Sense::cdb_bit(2, 2)),
        Operations::Action(..) if rows.peek().is_some() && !with_actions => return Err(Sense::cdb_bit(2, 2)),
        Operations::All | Operations::Code(_) => rows.next(),
        Operations::Action(..) | Operations::Either(..) if with_actions => {
            rows.find(|row| row.action.map(u16::from) == action)
        }
        // No service actions: of none it is zero.
        Operations::Action(..) | Operations::Either(..) => rows.next().filter(|_| action == Some(0)),
    };
    one(found, timeouts, out);
    Ok(())
}

/// CTDP, of one command and of all.
const ONE_TIMEOUTS: u8 = 0x80;
const ALL_TIMEOUTS: u8 = 0x02;
/// SERVACTV.
const HAS_ACTION: u8 = 0x01;
/// SUPPORT: as the standard says, or not.
const SUPPORTED: u8 = 3;
const NOT_SUPPORTED: u8 = 1;
/// A command timeouts descriptor that says nothing: how long a command takes is the storage's.
const NO_TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn all(timeouts: bool, unit: &Unit, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for row in OPERATIONS.iter().filter(|row| row.is_offered(unit)) {
        let with_timeouts = if timeouts { ALL_TIMEOUTS } else { 0 };
        let with_action = if row.action.is_some() { HAS_ACTION } else { 0 };
        // A CDB has at most 16 bytes.
        let cdb_bytes = row.usage.len() as u8;
        let action = row.action.unwrap_or_default();
        out.extend_from_slice(&[row.code, 0, 0, action, 0, with_timeouts | with_action, 0, cdb_bytes]);
        if timeouts {
            out.extend_from_slice(&NO_TIMEOUTS);
        }
    }
    put_length(out, start);
}

fn one(found: Option<&Operation>, timeouts: bool, out: &mut Vec<u8>) {
    let Some(row) = found else {
        out.extend_from_slice(&[0, NOT_SUPPORTED, 0, 0]);
        return;
    };
    let with_timeouts = if timeouts { ONE_TIMEOUTS } else { 0 };
    out.extend_from_slice(&[0, with_timeouts | SUPPORTED, 0, row.usage.len() as u8]);
    out.extend(row.usage_data());
    if timeouts {
        out.extend_from_slice(&NO_TIMEOUTS);
    }
}

/// SPC-5, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS command": ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET and
/// QUERY TASK; QUERY TASK SET and I_T NEXUS RESET. There is no ACA condition to clear.
pub(super) fn task_management(extended: bool, out: &mut Vec<u8>) {
    const ATS: u8 = 0x80;
    const ATSS: u8 = 0x40;
    const CTSS: u8 = 0x10;
    const LURS: u8 = 0x08;
    const QTS: u8 = 0x04;
    const QTSS: u8 = 0x02;
    const ITNRS: u8 = 0x01;
    /// Bytes of timeouts, all of them unknown.
    const EXTENDED_BYTES: u8 = 12;
    let additional = if extended { EXTENDED_BYTES } else { 0 };
    out.extend_from_slice(&[ATS | ATSS | CTSS | LURS | QTS, QTSS | ITNRS, 0, additional]);
    out.extend_from_slice(&[0; EXTENDED_BYTES as usize][..usize::from(additional)]);
}
