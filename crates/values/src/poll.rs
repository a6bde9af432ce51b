//! How long a worker looks before it sleeps.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;

/// How long a worker looks for work before it arms its wake-ups and sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Sleep at once.
    Off,
    /// Always look for this long.
    ///
    /// The window in microseconds, 1 to [`Poll::WINDOW_US_MAX`].
    Fixed(u32),
    /// Look for as long as looking has paid off lately, up to this long.
    ///
    /// The longest window in microseconds, 1 to [`Poll::WINDOW_US_MAX`].
    Adaptive(u32),
}

impl Poll {
    /// The longest window that is accepted, in microseconds: beyond it a sleep costs nothing by comparison.
    pub const WINDOW_US_MAX: u32 = 1_000_000;
    /// The longest window that a bare `adaptive` means, in microseconds. A sleep and its wake-up cost a few microseconds of CPU on
    /// bare metal and some tens of microseconds of latency in a virtual machine. A learned window is not longer than a sleep is worth; one
    /// that a trial has found better covers a device that answers within this.
    pub const ADAPTIVE_US_DEFAULT: u32 = 200;
    const EXPECTED: &'static str =
        "a poll window: off, fixed=US, adaptive or adaptive=US with US from 1 to 1000000 microseconds";
}

impl Default for Poll {
    fn default() -> Self {
        Self::Adaptive(Self::ADAPTIVE_US_DEFAULT)
    }
}

impl FromStr for Poll {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = || ParseError::new(text, Self::EXPECTED);
        let window = |us: &str| digits(us).filter(|us| (1..=Self::WINDOW_US_MAX).contains(us)).ok_or_else(refuse);
        match text.split_once('=') {
            None if text == "off" => Ok(Self::Off),
            None if text == "adaptive" => Ok(Self::default()),
            Some(("fixed", us)) => Ok(Self::Fixed(window(us)?)),
            Some(("adaptive", us)) => Ok(Self::Adaptive(window(us)?)),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Fixed(window_us) => write!(f, "fixed={window_us}"),
            Self::Adaptive(window_us_max) => write!(f, "adaptive={window_us_max}"),
        }
    }
}

text_value!(
    Poll,
    string,
    "a poll window: off, fixed=US, adaptive or adaptive=US with US from 1 to 1000000 microseconds",
    "^(off|adaptive|(fixed|adaptive)=[0-9]+)$",
    "adaptive=50"
);
