//! Numbers of the NBD protocol, as far as this client goes. Source: "The NBD protocol", `doc/proto.md` of
//! <https://github.com/NetworkBlockDevice/nbd>; the sections named here are its.
//!
//! Every number is sent with its highest byte first.

/// Longest string of the protocol, in bytes (section "Conventions").
pub(super) const STRING_BYTES_MAX: usize = 4096;

/// Longest data of a reply to an option that is looked at, in bytes: an export's name, its length and a description.
/// Not of the protocol, which has no limit.
pub(super) const OPTION_REPLY_BYTES_MAX: usize = 4 + 2 * STRING_BYTES_MAX;

/// Bytes of a request without its data: magic (32 bits), flags (16), command (16), cookie (64), offset (64), length
/// (32) (section "Request message").
pub(super) const REQUEST_BYTES: usize = 28;

/// Bytes of a simple reply without its data: magic (32 bits), error (32), cookie (64) (section "Simple reply message").
pub(super) const REPLY_BYTES: usize = 16;

/// Smallest block, in bytes, that servers should take that say nothing of block sizes (section "Size constraints").
pub(super) const BLOCK_BYTES_PORTABLE: u32 = 512;

/// Longest payload, in bytes, that servers should take that say nothing of block sizes (section "Size constraints").
pub(super) const PAYLOAD_BYTES_PORTABLE: u32 = 1 << 25;

/// Magic numbers (sections "Newstyle negotiation", "Fixed newstyle negotiation" and "Transmission").
pub(super) mod magic {
    /// `NBDMAGIC`, the first that a server says.
    pub(in super::super) const INIT: u64 = 0x4e42_444d_4147_4943;
    /// `IHAVEOPT`, the second that a server says, and what starts every option.
    pub(in super::super) const OPTION: u64 = 0x4948_4156_454f_5054;
    /// Starts every reply to an option.
    pub(in super::super) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    /// `NBD_REQUEST_MAGIC`.
    pub(in super::super) const REQUEST: u32 = 0x2560_9513;
    /// `NBD_SIMPLE_REPLY_MAGIC`.
    pub(in super::super) const SIMPLE_REPLY: u32 = 0x6744_6698;
}

/// Flags of the handshake, as masks: the server's (16 bits, section "Handshake flags") and the client's (32 bits,
/// section "Client flags"), which are the same.
pub(super) mod handshake_flag {
    /// Options are answered, and there may be several.
    pub(in super::super) const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// There are no zeroes behind the reply to `NBD_OPT_EXPORT_NAME`.
    pub(in super::super) const NO_ZEROES: u16 = 1 << 1;
}

/// Options (section "Option types").
pub(super) mod option {
    /// Name the exports.
    pub(in super::super) const LIST: u32 = 3;
    /// Describe an export and use it.
    pub(in super::super) const GO: u32 = 7;
}

/// Types of replies to options (section "Option reply types").
pub(super) mod option_reply {
    /// Done.
    pub(in super::super) const ACK: u32 = 1;
    /// The name of an export.
    pub(in super::super) const SERVER: u32 = 2;
    /// Something of an export; see [`info`](super::info).
    pub(in super::super) const INFO: u32 = 3;
    /// Set in the type of every error.
    pub(in super::super) const ERROR: u32 = 1 << 31;
    /// The server does not know the option.
    pub(in super::super) const ERR_UNSUP: u32 = ERROR + 1;
    /// The server is not to allow it.
    pub(in super::super) const ERR_POLICY: u32 = ERROR + 2;
    /// TLS comes first.
    pub(in super::super) const ERR_TLS_REQD: u32 = ERROR + 5;
    /// There is no such export.
    pub(in super::super) const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server ends.
    pub(in super::super) const ERR_SHUTDOWN: u32 = ERROR + 7;
}

/// What there is to know of an export (section "Option reply types", under `NBD_REP_INFO`).
pub(super) mod info {
    /// Its size and transmission flags.
    pub(in super::super) const EXPORT: u16 = 0;
    /// Its block sizes and the longest payload.
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// What an export can do (section "Transmission flags"), each as a mask.
pub(super) mod transmission_flag {
    /// Nothing can be written.
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    /// There is the flush.
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
}

/// Commands (section "Request types").
pub(super) mod command {
    /// Read.
    pub(in super::super) const READ: u16 = 0;
    /// Write; the data lies behind the request.
    pub(in super::super) const WRITE: u16 = 1;
    /// The client goes; there is no reply.
    pub(in super::super) const DISC: u16 = 2;
    /// Make completed writes durable.
    pub(in super::super) const FLUSH: u16 = 3;
}
