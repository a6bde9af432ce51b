//! CDBs of all other commands.

use super::cdb::Cdb;
use super::command::{Command, LogPage, ModePages, Operations, PageControl, Query};
use super::reservations::{ReserveIn, ReserveOut};
use super::sense::Sense;
use super::spec::data::CAPACITY_10_BYTES;
use super::unit::Unit;

fn query(query: Query, allocation: u32) -> Result<Command, Sense> {
    Ok(Command::Query { query, allocation })
}

pub(super) fn test_unit_ready(_cdb: &Cdb, _unit: &Unit) -> Result<Command, Sense> {
    Ok(Command::TestUnitReady)
}

pub(super) fn request_sense(cdb: &Cdb) -> Result<Command, Sense> {
    query(Query::RequestSense { descriptor: cdb.bit::<1, 0>() }, u32::from(cdb.byte::<4>()))
}

pub(super) fn inquiry(cdb: &Cdb) -> Result<Command, Sense> {
    let page = match (cdb.bit::<1, 0>(), cdb.byte::<2>()) {
        (true, page) => Some(page),
        (false, 0) => None,
        (false, _) => return Err(Sense::cdb(2)),
    };
    query(Query::Inquiry { page }, u32::from(cdb.u16::<3>()))
}

pub(super) fn report_luns(cdb: &Cdb) -> Result<Command, Sense> {
    match cdb.byte::<2>() {
        select @ 0..=2 => query(Query::ReportLuns { select }, cdb.u32::<6>()),
        _ => Err(Sense::cdb(2)),
    }
}

pub(super) fn capacity_10(_cdb: &Cdb) -> Result<Command, Sense> {
    query(Query::Capacity10, CAPACITY_10_BYTES)
}

pub(super) fn capacity_16(cdb: &Cdb) -> Result<Command, Sense> {
    query(Query::Capacity16, cdb.u32::<10>())
}

fn mode_sense(cdb: &Cdb, long: bool, allocation: u32) -> Result<Command, Sense> {
    let control = match cdb.byte::<2>() >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => return Err(Sense::SAVING_NOT_SUPPORTED),
    };
    let pages = ModePages {
        long,
        descriptor: !cdb.bit::<1, 3>(),
        long_lba: long && cdb.bit::<1, 4>(),
        control,
        page: cdb.byte::<2>() & 0x3f,
        subpage: cdb.byte::<3>(),
    };
    query(Query::ModeSense(pages), allocation)
}

pub(super) fn mode_sense_6(cdb: &Cdb) -> Result<Command, Sense> {
    mode_sense(cdb, false, u32::from(cdb.byte::<4>()))
}

pub(super) fn mode_sense_10(cdb: &Cdb) -> Result<Command, Sense> {
    mode_sense(cdb, true, u32::from(cdb.u16::<7>()))
}

/// PF: without it, pages would have a form of the vendor's.
fn mode_select(cdb: &Cdb, long: bool, list_bytes: u16) -> Result<Command, Sense> {
    if cdb.bit::<1, 4>() { Ok(Command::ModeSelect { list_bytes, long }) } else { Err(Sense::cdb_bit(1, 4)) }
}

pub(super) fn mode_select_6(cdb: &Cdb) -> Result<Command, Sense> {
    mode_select(cdb, false, u16::from(cdb.byte::<4>()))
}

pub(super) fn mode_select_10(cdb: &Cdb) -> Result<Command, Sense> {
    mode_select(cdb, true, cdb.u16::<7>())
}

/// Threshold or cumulative, current or default: counters without thresholds have the same values (SPC-5, "LOG SENSE command", PC).
pub(super) fn log_sense(cdb: &Cdb) -> Result<Command, Sense> {
    let page = LogPage { page: cdb.byte::<2>() & 0x3f, subpage: cdb.byte::<3>(), first: cdb.u16::<5>() };
    query(Query::LogSense(page), u32::from(cdb.u16::<7>()))
}

pub(super) fn start_stop(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::StartStop { start: cdb.bit::<4, 0>(), flush: !cdb.bit::<4, 2>(), immediate: cdb.bit::<1, 0>() })
}

pub(super) fn prevent_allow(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::PreventAllow { prevent: cdb.byte::<4>() & 3 != 0 })
}

pub(super) fn reserve(_cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::Reserve)
}

pub(super) fn release(_cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::Release)
}

pub(super) fn reserve_in(cdb: &Cdb) -> Result<Command, Sense> {
    let action = ReserveIn::decode(cdb.byte::<1>() & 0x1f).ok_or(Sense::cdb_bit(1, 4))?;
    Ok(Command::ReserveIn { action, allocation: cdb.u16::<7>() })
}

pub(super) fn reserve_out(cdb: &Cdb) -> Result<Command, Sense> {
    ReserveOut::decode(cdb.byte::<1>() & 0x1f, cdb.byte::<2>(), cdb.u32::<5>()).map(Command::ReserveOut)
}

pub(super) fn operations(cdb: &Cdb) -> Result<Command, Sense> {
    let (code, action) = (cdb.byte::<3>(), cdb.u16::<4>());
    let which = match cdb.byte::<2>() & 7 {
        0 => Operations::All,
        1 => Operations::Code(code),
        2 => Operations::Action(code, action),
        3 => Operations::Either(code, action),
        _ => return Err(Sense::cdb_bit(2, 2)),
    };
    query(Query::Operations { which, timeouts: cdb.bit::<2, 7>() }, cdb.u32::<6>())
}

/// The allocation length is at least 4 (SPC-5, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS command").
pub(super) fn task_management(cdb: &Cdb) -> Result<Command, Sense> {
    if cdb.u32::<6>() < 4 {
        return Err(Sense::cdb(6));
    }
    query(Query::TaskManagement { extended: cdb.bit::<2, 7>() }, cdb.u32::<6>())
}

/// PARAMETER DATA FORMAT: length only, or extended.
pub(super) fn port_groups(cdb: &Cdb) -> Result<Command, Sense> {
    match cdb.byte::<1>() >> 5 {
        format @ 0..=1 => query(Query::PortGroups { extended: format == 1 }, cdb.u32::<6>()),
        _ => Err(Sense::cdb_bit(1, 7)),
    }
}
