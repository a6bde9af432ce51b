//! Answers to [`Query`]s: what is known of a logical unit, its target and its ports, as bytes.

mod capacity;
mod inquiry;
mod log;
mod luns;
mod operations;
mod ports;
mod vpd;

pub use capacity::{Extent, lba_status_out};
pub use log::{Usage, asks_usage};
pub use luns::Inventory;
pub use ports::Ports;

use super::command::Query;
use super::decode::Addressed;
use super::identity::Identity;
use super::mode;
use super::sense::Sense;

/// What answers are made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What is behind the address.
    pub addressed: Addressed<'a>,
    /// Who that is; `None` of what is no disk.
    pub identity: Option<&'a Identity>,
    /// The target's logical units.
    pub inventory: Inventory<'a>,
    /// The target's ports.
    pub ports: Ports<'a>,
    /// What REQUEST SENSE says: the unit attention condition that is thereby reported.
    pub sense: Option<Sense>,
    /// How much of its space the storage has used, for an answer that [has to be told](asks_usage).
    pub usage: Option<Usage>,
}

/// Appends the answer to `out`, at most `allocation` bytes of it: lengths within are those of the whole answer (SPC-5, "Allocation
/// length").
///
/// # Errors
/// The sense data of a CHECK CONDITION; `out` is as it was then.
pub fn answer(query: Query, allocation: u32, facts: &Facts<'_>, out: &mut Vec<u8>) -> Result<(), Sense> {
    let start = out.len();
    let result = append(query, facts, out);
    let kept = match result {
        Ok(()) => usize::try_from(allocation).unwrap_or(usize::MAX),
        Err(_) => 0,
    };
    out.truncate(start.saturating_add(kept));
    result
}

fn append(query: Query, facts: &Facts<'_>, out: &mut Vec<u8>) -> Result<(), Sense> {
    match query {
        Query::Inquiry { page: None } => inquiry::standard(facts, out),
        Query::Inquiry { page: Some(page) } => vpd::page(page, facts, out)?,
        Query::RequestSense { descriptor } => {
            let sense = match facts.addressed {
                Addressed::Nothing => Sense::NO_UNIT,
                Addressed::Disk(_) | Addressed::ReportLuns => facts.sense.unwrap_or(Sense::NONE),
            };
            out.extend_from_slice(&sense.encode(descriptor));
        }
        Query::ReportLuns { select } => luns::report(select, facts.inventory, out),
        Query::Capacity10 => capacity::short(facts.unit()?, out)?,
        Query::Capacity16 => capacity::long(facts.unit()?, out)?,
        Query::ModeSense(pages) => mode::sense(pages, facts.unit()?, out)?,
        Query::LogSense(page) => log::page(page, facts, out)?,
        Query::Operations { which, timeouts } => operations::report(which, timeouts, facts.unit()?, out)?,
        Query::TaskManagement { extended } => operations::task_management(extended, out),
        Query::PortGroups { extended } => ports::groups(extended, facts.ports, out),
    }
    Ok(())
}

impl<'a> Facts<'a> {
    /// The disk. What is none decodes no command that asks for it.
    fn unit(&self) -> Result<&'a super::unit::Unit, Sense> {
        match self.addressed {
            Addressed::Disk(unit) => Ok(unit),
            Addressed::Nothing => Err(Sense::NO_UNIT),
            Addressed::ReportLuns => Err(Sense::INVALID_OPCODE),
        }
    }
}

/// Puts the number of bytes behind a field of 32 bits at `at` into it.
fn put_length(out: &mut [u8], at: usize) {
    const FIELD_BYTES: usize = 4;
    let behind = out.len().saturating_sub(at + FIELD_BYTES);
    if let Some(field) = out.get_mut(at..at + FIELD_BYTES) {
        field.copy_from_slice(&u32::try_from(behind).unwrap_or(u32::MAX).to_be_bytes());
    }
}

/// The same of a field of 16 bits.
fn put_short_length(out: &mut [u8], at: usize) {
    const FIELD_BYTES: usize = 2;
    let behind = out.len().saturating_sub(at + FIELD_BYTES);
    if let Some(field) = out.get_mut(at..at + FIELD_BYTES) {
        field.copy_from_slice(&u16::try_from(behind).unwrap_or(u16::MAX).to_be_bytes());
    }
}
