//! What a request asks.

use super::spec::command;

/// A command (section "Request types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read,
    /// Write; the data lies behind the request.
    Write,
    /// The client goes.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// The contents of a range no longer matter.
    Trim,
    /// A range will be accessed soon.
    Cache,
    /// A range must read as zeroes.
    WriteZeroes,
    /// Where there is data and where there is none.
    BlockStatus,
    /// Any other number.
    Unknown(u16),
}

impl Command {
    /// The command of this number.
    #[inline]
    pub const fn from_raw(raw: u16) -> Command {
        match raw {
            command::READ => Command::Read,
            command::WRITE => Command::Write,
            command::DISC => Command::Disconnect,
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Trim,
            command::CACHE => Command::Cache,
            command::WRITE_ZEROES => Command::WriteZeroes,
            command::BLOCK_STATUS => Command::BlockStatus,
            _ => Command::Unknown(raw),
        }
    }
}
