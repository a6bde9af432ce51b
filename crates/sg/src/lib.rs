//! SCSI devices of the host, passed through: a guest's commands go to the device as they are, and its answers come back.
//!
//! Linux' generic driver (`/dev/sgN`) performs them. Its `SG_IO` waits until a command has ended, so each has a thread meanwhile.
//!
//! | file | concern |
//! |---|---|
//! | `ffi` | the driver's `ioctl`s: all that is unsafe of them |
//! | `options` | what may be chosen |
//! | `open` | from a path to a device that answers, and that nobody else on this host drives |
//! | `admit` | which commands are sent |
//! | `outcome` | what the driver says of one that has ended |
//! | `helper` | reservations by way of `qemu-pr-helper` |
//! | `served` | the storage |

mod admit;
mod error;
mod ffi;
mod helper;
mod open;
mod options;
mod outcome;
mod served;

pub use error::SgError;
pub use options::SgOptions;
pub use served::{COMMANDS_MAX, SgStorage};

/// Operation codes that this crate looks at (SPC-5, SBC-4, SSC-5; Linux' `include/scsi/scsi_proto.h` has the same).
mod opcode {
    pub(crate) const INQUIRY: u8 = 0x12;
    pub(crate) const READ_CAPACITY_10: u8 = 0x25;
    pub(crate) const WRITE_BUFFER: u8 = 0x3b;
    pub(crate) const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub(crate) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(crate) const EXTENDED_COPY: u8 = 0x83;
    pub(crate) const ACCESS_CONTROL_OUT: u8 = 0x87;
    pub(crate) const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub(crate) const MAINTENANCE_OUT: u8 = 0xa4;
}
