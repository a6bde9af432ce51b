//! From a CDB to a command.

use super::cdb::Cdb;
use super::command::Command;
use super::opcodes::{self, Decode};
use super::sense::Sense;
use super::spec::opcode as op;
use super::unit::Unit;

/// What a request's address leads to.
#[derive(Clone, Copy, Debug)]
pub enum Addressed<'a> {
    /// A disk.
    Disk(&'a Unit),
    /// Nothing, in a target that has other logical units: it says so to INQUIRY, REQUEST SENSE and REPORT LUNS (SPC-5, "Incorrect
    /// logical unit selection"). Without any, the response is BAD_TARGET.
    Nothing,
    /// The well known logical unit REPORT LUNS.
    ReportLuns,
}

/// Decodes a CDB. `area` is all of its [area](super::Request::cdb): what lies behind the CDB is not looked at.
///
/// # Errors
/// The sense data of a CHECK CONDITION.
#[inline]
pub fn decode(area: &[u8], addressed: Addressed<'_>) -> Result<Command, Sense> {
    let unit = match addressed {
        Addressed::Disk(unit) => Some(unit),
        Addressed::Nothing => None,
        Addressed::ReportLuns => None,
    };
    if unit.is_none() {
        answers_without_a_disk(area, addressed)?;
    }
    let row = opcodes::of_cdb(area, unit)?;
    let cdb = Cdb::new(area, row.usage.len()).ok_or(Sense::INVALID_OPCODE)?;
    cdb.only(row.mask)?;
    match (row.decode, unit) {
        (Decode::Cdb(decode), _) => decode(&cdb),
        (Decode::Medium(_), Some(unit)) if unit.is_stopped() => Err(Sense::STOPPED),
        (Decode::Medium(decode), Some(unit)) => decode(&cdb, unit),
        // The one that every logical unit has.
        (Decode::Medium(_), None) => Ok(Command::TestUnitReady),
    }
}

/// What is behind the address has the command, without a disk.
fn answers_without_a_disk(area: &[u8], addressed: Addressed<'_>) -> Result<(), Sense> {
    let code = area.first().copied().unwrap_or_default();
    match (code, addressed) {
        (op::INQUIRY | op::REQUEST_SENSE | op::REPORT_LUNS, _) | (op::TEST_UNIT_READY, Addressed::ReportLuns) => Ok(()),
        (_, Addressed::ReportLuns) => Err(Sense::INVALID_OPCODE),
        _ => Err(Sense::NO_UNIT),
    }
}
