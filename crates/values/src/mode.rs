//! Permission bits.

use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;

/// Permission bits of a socket or a file, written in octal: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl FileMode {
    const EXPECTED: &'static str = "a mode: up to four octal digits in quotes, as in \"0660\"";
}

impl FromStr for FileMode {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let octal = (1..=4).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
        let mode = octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
        // Set-user-id and its kin mean nothing there: refuse them rather than drop them.
        mode.filter(|&mode| mode <= 0o777).map(Self).ok_or_else(|| ParseError::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

text_value!(FileMode, string, "a mode: up to four octal digits in quotes, as in \"0660\"", "^[0-7]{1,4}$", "0660");
