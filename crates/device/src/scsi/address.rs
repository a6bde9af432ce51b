//! The eight bytes that address a logical unit.

use super::spec::LUNS_MAX;

/// The first byte of an address with a target (virtio 1.3, section 5.6.6.1).
const TARGET: u8 = 1;
/// The first two bytes of the well known logical unit REPORT LUNS (SAM-5, "Well known logical unit addressing").
const WELL_KNOWN_REPORT_LUNS: [u8; 2] = [0xc1, 0x01];
/// Address method of the first byte of a LUN: peripheral device addressing (00b), flat space addressing (01b).
const METHOD_SHIFT: u8 = 6;
const METHOD_PERIPHERAL: u8 = 0;
const METHOD_FLAT: u8 = 1;
/// Numbers below this have the peripheral form in what we send.
const PERIPHERAL_LUNS: u16 = 256;

/// The number of a logical unit of a target, 0 to 16383.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lun(u16);

impl Lun {
    /// The boot LUN, and the one that answers for its target.
    pub const ZERO: Lun = Lun(0);

    /// `None` from 16384 on.
    pub const fn new(number: u16) -> Option<Lun> {
        if (number as u32) < LUNS_MAX { Some(Lun(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The two bytes of a single level LUN structure: peripheral device addressing below 256, flat space addressing from there on
    /// (SAM-5, "Single level LUN structure").
    pub(super) const fn bytes(self) -> [u8; 2] {
        let [high, low] = self.0.to_be_bytes();
        if self.0 < PERIPHERAL_LUNS { [0, low] } else { [METHOD_FLAT << METHOD_SHIFT | high, low] }
    }

    /// Both forms of either number: Linux sends the flat one for all.
    const fn decode([high, low]: [u8; 2]) -> Option<Lun> {
        match high >> METHOD_SHIFT {
            METHOD_PERIPHERAL if high == 0 => Some(Lun(low as u16)),
            METHOD_FLAT => Some(Lun(u16::from_be_bytes([high & 0x3f, low]))),
            _ => None,
        }
    }
}

/// What a request, a task management function or an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A logical unit of a target: `01 TT LL LL`.
    Unit {
        /// Number of the target.
        target: u8,
        /// Number of the logical unit.
        lun: Lun,
    },
    /// The well known logical unit REPORT LUNS of a target (`01 TT C1 01`), or of the whole device (`C1 01`).
    ReportLuns {
        /// Number of the target; `None`: all of them.
        target: Option<u8>,
    },
}

/// no device has this address
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct BadTarget;

impl Address {
    /// Takes the bytes apart.
    ///
    /// # Errors
    /// All forms that a virtio-scsi device does not have (virtio 1.3, section 5.6.6.1); the response is BAD_TARGET.
    #[inline]
    pub const fn decode(bytes: &[u8; 8]) -> Result<Address, BadTarget> {
        match *bytes {
            [TARGET, target, high, low, 0, 0, 0, 0] => {
                if let Some(lun) = Lun::decode([high, low]) {
                    return Ok(Address::Unit { target, lun });
                }
                if high == WELL_KNOWN_REPORT_LUNS[0] && low == WELL_KNOWN_REPORT_LUNS[1] {
                    return Ok(Address::ReportLuns { target: Some(target) });
                }
                Err(BadTarget)
            }
            [0xc1, 0x01, 0, 0, 0, 0, 0, 0] => Ok(Address::ReportLuns { target: None }),
            _ => Err(BadTarget),
        }
    }

    /// The bytes, as events have them.
    pub const fn bytes(self) -> [u8; 8] {
        match self {
            Address::Unit { target, lun } => {
                let [high, low] = lun.bytes();
                [TARGET, target, high, low, 0, 0, 0, 0]
            }
            Address::ReportLuns { target: Some(target) } => {
                let [high, low] = WELL_KNOWN_REPORT_LUNS;
                [TARGET, target, high, low, 0, 0, 0, 0]
            }
            Address::ReportLuns { target: None } => {
                let [high, low] = WELL_KNOWN_REPORT_LUNS;
                [high, low, 0, 0, 0, 0, 0, 0]
            }
        }
    }

    /// The target; `None` of the device's own well known logical unit.
    pub const fn target(self) -> Option<u8> {
        match self {
            Address::Unit { target, .. } => Some(target),
            Address::ReportLuns { target } => target,
        }
    }
}
