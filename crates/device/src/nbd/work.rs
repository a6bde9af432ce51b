//! From the fields of a request to what may be done.

use super::command::Command;
use super::refusal::{Reason, Refusal};
use super::request::Request;
use super::spec::command_flag::{DF, FUA, NO_HOLE, REQ_ONE};

/// What a client may do with an export: what it was told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Block size in bytes, 512 or 4096: offsets and lengths are multiples of it.
    pub block_bytes: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// Trims are offered.
    pub trim: bool,
    /// Writes of zeroes are offered.
    pub write_zeroes: bool,
    /// The client has chosen a metadata context of block status.
    pub block_status: bool,
    /// Longest data of a read or a write, in bytes.
    pub payload_max: u32,
}

/// A request that may be carried out: offsets and lengths are multiples of the block size and lie inside the export.
///
/// `fua`: the reply has to wait until what was written is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Send the contents of a range.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes, at most [`Terms::payload_max`]; 0 is possible.
        len: u32,
    },
    /// Store the request's data.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes, at most [`Terms::payload_max`]; 0 is possible.
        len: u32,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make every completed write durable.
    Flush,
    /// The contents of the range no longer matter.
    Trim {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u32,
        /// Durable before the reply.
        fua: bool,
    },
    /// The range reads as zeroes from now on.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u32,
        /// The range may lose its space.
        unmap: bool,
        /// Durable before the reply.
        fua: bool,
    },
    /// Say where the range has data.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Number of bytes, 1 or more.
        len: u32,
        /// One extent is enough, and no more are wanted.
        one: bool,
    },
    /// End the connection when every request before has been answered. There is no reply.
    Disconnect,
}

impl Request {
    /// Whether the request may be carried out.
    ///
    /// `FUA` is taken with every command, and means nothing to those that do not write (section "Command flags"). So is `DF` with
    /// reads, whose data comes in one chunk anyway. A disconnect is one whatever its other fields say: nobody waits for an error.
    ///
    /// # Errors
    /// A refusal for everything that cannot be carried out; its error is the reply.
    #[inline]
    pub fn check(&self, terms: &Terms) -> Result<Work, Refusal> {
        self.work(terms).map_err(Reason::refuse)
    }

    #[inline]
    fn work(&self, terms: &Terms) -> Result<Work, Reason> {
        let Request { offset, len, .. } = *self;
        let fua = self.flags & FUA != 0;
        match self.command {
            Command::Read => {
                self.known_flags(DF)?;
                self.inside(terms, Reason::BeyondEnd)?;
                if len > terms.payload_max { Err(Reason::LongRead) } else { Ok(Work::Read { offset, len }) }
            }
            Command::Write => {
                self.known_flags(0)?;
                writable(terms)?;
                self.inside(terms, Reason::NoSpace)?;
                if len > terms.payload_max { Err(Reason::LongWrite) } else { Ok(Work::Write { offset, len, fua }) }
            }
            Command::Disconnect => Ok(Work::Disconnect),
            Command::Flush => {
                self.known_flags(0)?;
                if offset == 0 && len == 0 { Ok(Work::Flush) } else { Err(Reason::FlushRange) }
            }
            Command::Trim => {
                self.known_flags(0)?;
                writable(terms)?;
                offered(terms.trim)?;
                self.inside(terms, Reason::BeyondEnd)?;
                Ok(Work::Trim { offset, len, fua })
            }
            Command::Cache => Err(Reason::NotOffered),
            Command::BlockStatus => {
                self.known_flags(REQ_ONE)?;
                offered(terms.block_status)?;
                self.inside(terms, Reason::BeyondEnd)?;
                let one = self.flags & REQ_ONE != 0;
                if len == 0 { Err(Reason::NoRange) } else { Ok(Work::BlockStatus { offset, len, one }) }
            }
            Command::WriteZeroes => {
                // FAST_ZERO is not offered, and then unknown (section "Request types", under NBD_CMD_WRITE_ZEROES).
                self.known_flags(NO_HOLE)?;
                writable(terms)?;
                offered(terms.write_zeroes)?;
                self.inside(terms, Reason::NoSpace)?;
                Ok(Work::WriteZeroes { offset, len, unmap: self.flags & NO_HOLE == 0, fua })
            }
            Command::Unknown(_) => Err(Reason::UnknownCommand),
        }
    }

    /// No flags but these and `FUA`.
    #[inline]
    fn known_flags(&self, known: u16) -> Result<(), Reason> {
        if self.flags & !(known | FUA) == 0 { Ok(()) } else { Err(Reason::UnknownFlags) }
    }

    /// Whole blocks inside the export.
    #[inline]
    fn inside(&self, terms: &Terms, beyond: Reason) -> Result<(), Reason> {
        let block = u64::from(terms.block_bytes);
        let len = u64::from(self.len);
        if !self.offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Reason::Unaligned);
        }
        match self.offset.checked_add(len) {
            Some(end) if end <= terms.size_bytes => Ok(()),
            _ => Err(beyond),
        }
    }
}

#[inline]
fn writable(terms: &Terms) -> Result<(), Reason> {
    if terms.read_only { Err(Reason::ReadOnly) } else { Ok(()) }
}

#[inline]
fn offered(offered: bool) -> Result<(), Reason> {
    if offered { Ok(()) } else { Err(Reason::NotOffered) }
}
