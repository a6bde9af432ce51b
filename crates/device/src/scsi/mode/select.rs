//! MODE SELECT (SPC-5, "MODE SELECT (6) command" and "(10)").

use super::page::{Page, SUBPAGE_FORMAT, pages_of};
use super::{
    HEADER_6_BYTES, HEADER_10_BYTES, LONG_DESCRIPTOR_BYTES, LONG_LBA, SHORT_DESCRIPTOR_BYTES, long_descriptor,
    short_descriptor,
};
use crate::scsi::sense::Sense;
use crate::scsi::unit::{Mode, Unit};

/// The mode that a parameter list asks for; `list` is all of it, and `long` says that it is of MODE SELECT (10). The caller puts
/// it in force ([`Unit::set_mode`]), and where it is another one establishes MODE PARAMETERS CHANGED for the other nexuses.
///
/// # Errors
/// The sense data of a CHECK CONDITION: a list that ends within something, and values that cannot be changed. Nothing is changed
/// then.
pub fn select_mode(list: &[u8], long: bool, unit: &Unit) -> Result<Mode, Sense> {
    // An empty list is no error, and changes nothing.
    if list.is_empty() {
        return Ok(unit.mode());
    }
    let (header_bytes, descriptor_bytes, long_lba) = header(list, long)?;
    let end = header_bytes + descriptor_bytes;
    let descriptor = list.get(header_bytes..end).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    check_descriptor(descriptor, long_lba, header_bytes, unit)?;
    let mut mode = unit.mode();
    let mut at = end;
    while let Some(rest) = list.get(at..).filter(|rest| !rest.is_empty()) {
        let page = page_of(rest, at, unit)?;
        let values = rest.get(..page.bytes).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        check_values(page, values, at, unit)?;
        mode = page.apply(values, mode);
        at += page.bytes;
    }
    Ok(mode)
}

/// Bytes of the header, of the block descriptors, and whether these are long. MODE DATA LENGTH is reserved and so is all but the
/// device-specific parameter, which is ignored (SBC-4, "Mode parameter header").
fn header(list: &[u8], long: bool) -> Result<(usize, usize, bool), Sense> {
    if long {
        let header = list.first_chunk::<HEADER_10_BYTES>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let [length_high, length_low, medium, _, flags, _, high, low] = *header;
        reserved(&[(0, length_high), (1, length_low), (2, medium), (4, flags & !LONG_LBA)])?;
        Ok((HEADER_10_BYTES, usize::from(u16::from_be_bytes([high, low])), flags & LONG_LBA != 0))
    } else {
        let header = list.first_chunk::<HEADER_6_BYTES>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let [length, medium, _, descriptor] = *header;
        reserved(&[(0, length), (1, medium)])?;
        Ok((HEADER_6_BYTES, usize::from(descriptor), false))
    }
}

fn reserved(bytes: &[(u16, u8)]) -> Result<(), Sense> {
    match bytes.iter().find(|(_, byte)| *byte != 0) {
        Some((at, _)) => Err(Sense::list(*at)),
        None => Ok(()),
    }
}

/// No descriptor, or one that says what is so: blocks and their size do not change. No blocks and all ones mean those that there
/// are.
fn check_descriptor(descriptor: &[u8], long_lba: bool, at: usize, unit: &Unit) -> Result<(), Sense> {
    // A header has at most 8 bytes.
    let at = at as u16;
    let matches = |given: &[u8], known: &[u8], blocks_bytes: usize| {
        let (given_blocks, given_rest) = given.split_at(blocks_bytes);
        let (known_blocks, known_rest) = known.split_at(blocks_bytes);
        let unchanged = given_blocks.iter().all(|byte| *byte == 0) || given_blocks.iter().all(|byte| *byte == 0xff);
        if !unchanged && given_blocks != known_blocks {
            Err(Sense::list(at))
        } else if given_rest != known_rest {
            Err(Sense::list(at + blocks_bytes as u16))
        } else {
            Ok(())
        }
    };
    match (descriptor.len(), long_lba) {
        (0, _) => Ok(()),
        (SHORT_DESCRIPTOR_BYTES, false) => matches(descriptor, &short_descriptor(unit), 4),
        (LONG_DESCRIPTOR_BYTES, true) => matches(descriptor, &long_descriptor(unit), 8),
        // BLOCK DESCRIPTOR LENGTH ends the header.
        _ => Err(Sense::list(at - 1)),
    }
}

/// The page that begins here, with its own length.
fn page_of(rest: &[u8], at: usize, unit: &Unit) -> Result<Page, Sense> {
    // Everything before was checked: a few pages.
    let at = u16::try_from(at).unwrap_or(u16::MAX);
    let [code, second] = *rest.first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    // PS is reserved here: with that bit it is no page of ours.
    let mut pages = pages_of(unit).filter(|page| page.code == code & !SUBPAGE_FORMAT);
    if code & SUBPAGE_FORMAT == 0 {
        let page = pages.find(|page| page.subpage == 0).ok_or(Sense::list(at))?;
        return if usize::from(second) == page.bytes - 2 { Ok(page) } else { Err(Sense::list(at + 1)) };
    }
    let mut subpages = pages.filter(|page| page.subpage > 0).peekable();
    if subpages.peek().is_none() {
        return Err(Sense::list(at));
    }
    let page = subpages.find(|page| page.subpage == second).ok_or(Sense::list(at + 1))?;
    let [_, _, high, low] = *rest.first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    if usize::from(u16::from_be_bytes([high, low])) == page.bytes - 4 { Ok(page) } else { Err(Sense::list(at + 2)) }
}

/// What is not changeable is as it is.
fn check_values(page: Page, values: &[u8], at: usize, unit: &Unit) -> Result<(), Sense> {
    let current = page.values(unit.mode(), unit);
    let changeable = page.changeable(unit);
    let fields = values.iter().zip(current.iter()).zip(changeable.iter()).enumerate().skip(2);
    for (offset, ((given, now), mask)) in fields {
        let wrong = (given ^ now) & !mask;
        if wrong != 0 {
            let byte = u16::try_from(at + offset).unwrap_or(u16::MAX);
            return Err(Sense::list_bit(byte, wrong.ilog2() as u8));
        }
    }
    Ok(())
}
