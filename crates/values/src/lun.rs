//! The address of a logical unit behind a SCSI device.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;

/// A logical unit: its target, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lun {
    /// The target, 0 to 255 (virtio 1.3, 5.6.6.1).
    pub target: u8,
    /// The number, 0 to [`Lun::NUMBER_MAX`].
    pub number: u16,
}

impl Lun {
    /// The largest number: 14 bits, as flat addressing has (SAM-5, 4.7.7.3).
    pub const NUMBER_MAX: u16 = 0x3fff;
    const EXPECTED: &'static str = "a LUN: its number, 0 to 16383, or TARGET:NUMBER with a target from 0 to 255";
}

impl FromStr for Lun {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (target, number) = text.split_once(':').unwrap_or(("0", text));
        let lun = digits(target).zip(digits(number)).map(|(target, number)| Lun { target, number });
        lun.filter(|lun| lun.number <= Self::NUMBER_MAX).ok_or_else(|| ParseError::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            0 => write!(f, "{}", self.number),
            target => write!(f, "{target}:{}", self.number),
        }
    }
}

text_value!(
    Lun,
    integer,
    "a LUN: its number, 0 to 16383, or TARGET:NUMBER with a target from 0 to 255 (a bare number is read too)",
    "^([0-9]+:)?[0-9]+$",
    "1:0"
);
