//! Numbers of the NBD protocol. Source: "The NBD protocol", `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>; the
//! sections named here are its. Linux' `include/uapi/linux/nbd.h` has some of those of the transmission phase.
//!
//! Every number is sent with its highest byte first.

/// Longest string of the protocol, in bytes: names of exports, queries, messages for people (section "Conventions").
pub const NAME_BYTES_MAX: usize = 4096;

/// Longest data of an option that is looked at, in bytes; a client that announces more is cut off. The longest useful one, a
/// request for metadata contexts, has a name and a few short queries. Not of the protocol, which has no limit.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// Bytes of the header of an option: magic (64 bits), number (32 bits), bytes of data (32 bits) (section "Newstyle negotiation").
pub const OPTION_HEADER_BYTES: usize = 16;

/// Bytes of the header of a reply to an option: magic (64 bits), number (32 bits), type (32 bits), bytes of data (32 bits)
/// (section "Fixed newstyle negotiation").
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;

/// Bytes of the flags that a client begins with (section "Newstyle negotiation").
pub const CLIENT_FLAGS_BYTES: usize = 4;

/// Bytes of zeroes that end the reply to `NBD_OPT_EXPORT_NAME` (section "Newstyle negotiation").
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Bytes of a request without its data: magic (32 bits), flags (16), command (16), cookie (64), offset (64), length (32) (section
/// "Request message").
pub const REQUEST_BYTES: usize = 28;

/// Bytes of a simple reply without its data: magic (32 bits), error (32), cookie (64) (section "Simple reply message").
pub const SIMPLE_REPLY_BYTES: usize = 16;

/// Bytes of the header of a structured reply's chunk: magic (32 bits), flags (16), type (16), cookie (64), bytes of payload (32)
/// (section "Structured reply chunk message").
pub const CHUNK_HEADER_BYTES: usize = 20;

/// Bytes of an extent in a chunk of block status: length and flags (32 bits each) (section "Structured reply types").
pub const EXTENT_BYTES: usize = 8;

/// Bytes before the data of a chunk with data: its header and the offset (64 bits) (section "Structured reply types").
pub const DATA_HEAD_BYTES: usize = CHUNK_HEADER_BYTES + 8;

/// Longest payload, in bytes, that every server should take from a client that has not asked for the block sizes, and that none
/// should take for an attack (section "Size constraints").
pub const PAYLOAD_BYTES_PORTABLE: u32 = 1 << 25;

/// Magic numbers (sections "Newstyle negotiation", "Fixed newstyle negotiation" and "Transmission").
pub mod magic {
    /// `NBDMAGIC`, the first that a server says.
    pub const INIT: u64 = 0x4e42_444d_4147_4943;
    /// `IHAVEOPT`, the second that a server says, and what starts every option.
    pub const OPTION: u64 = 0x4948_4156_454f_5054;
    /// Starts every reply to an option.
    pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
    /// `NBD_REQUEST_MAGIC`.
    pub const REQUEST: u32 = 0x2560_9513;
    /// `NBD_SIMPLE_REPLY_MAGIC`.
    pub const SIMPLE_REPLY: u32 = 0x6744_6698;
    /// `NBD_STRUCTURED_REPLY_MAGIC`.
    pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;
}

/// What the server can do during the handshake (section "Handshake flags"), each as a mask.
pub mod handshake_flag {
    /// Options are answered, and there may be several.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The zeroes behind the reply to `NBD_OPT_EXPORT_NAME` can be left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// What the client can do during the handshake (section "Client flags"), each as a mask.
pub mod client_flag {
    /// It knows replies to options.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// It does not expect zeroes behind the reply to `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Options (section "Option types").
pub mod option {
    /// Use this export, without a way to be told why not.
    pub const EXPORT_NAME: u32 = 1;
    /// The client goes.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Use TLS from now on.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and use it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name an export's metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose among an export's metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options (section "Option reply types"). Errors have bit 31.
pub mod option_reply_type {
    /// Done.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// Something of an export; see [`info`](super::info).
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in the type of every error.
    pub const ERROR: u32 = 1 << 31;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The server is not to allow it.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option's data is wrong, or it does not fit what was agreed on before.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// The server was built without it or runs where it cannot be.
    pub const ERR_PLATFORM: u32 = ERROR + 4;
    /// TLS comes first.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server ends.
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    /// The client has to ask for the block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR + 8;
    /// The option or its reply is too long.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// What there is to know of an export (section "Option reply types", under `NBD_REP_INFO`).
pub mod info {
    /// Its size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Its name, as the server writes it.
    pub const NAME: u16 = 1;
    /// A line for people.
    pub const DESCRIPTION: u16 = 2;
    /// Its block sizes and the longest payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do (section "Transmission flags"), each as a mask.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Nothing can be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// There is the flush.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// There is [`command_flag::FUA`](super::command_flag::FUA).
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks are slow.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// There is the trim.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// There is the write of zeroes, and [`command_flag::NO_HOLE`](super::command_flag::NO_HOLE).
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// There is [`command_flag::DF`](super::command_flag::DF); only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush holds for what came by every connection.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// There is the cache request.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// There is [`command_flag::FAST_ZERO`](super::command_flag::FAST_ZERO).
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands (section "Request types").
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the data lies behind the request.
    pub const WRITE: u16 = 1;
    /// The client goes; there is no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// The contents of a range no longer matter.
    pub const TRIM: u16 = 4;
    /// A range will be accessed soon.
    pub const CACHE: u16 = 5;
    /// A range must read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Where there is data and where there is none.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands (section "Command flags"), each as a mask.
pub mod command_flag {
    /// Any command: what it writes is durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Write zeroes: the range stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Read: all data comes in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Block status: one extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Write zeroes: fail at once if it is no faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Flags of a structured reply's chunk (section "Structured reply flags").
pub mod chunk_flag {
    /// The last chunk of the reply.
    pub const DONE: u16 = 1 << 0;
}

/// Types of a structured reply's chunks (section "Structured reply types"). Errors have bit 15.
pub mod chunk_type {
    /// Nothing.
    pub const NONE: u16 = 0;
    /// An offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and a number of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error and a message.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// An error, a message and an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// Metadata contexts (section "Metadata contexts"), and their namespaces, with their colons.
pub mod context {
    /// The namespace of the protocol itself.
    pub const BASE: &[u8] = b"base:";
    /// Where there is data.
    pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
    /// The namespace of QEMU (its `docs/interop/nbd.txt`).
    pub const QEMU: &[u8] = b"qemu:";
    /// QEMU's dirty bitmaps: behind it comes the name of one.
    pub const QEMU_DIRTY_BITMAP: &[u8] = b"qemu:dirty-bitmap:";
    /// What a list may ask for instead of a context.
    pub const NAMESPACES: [&[u8]; 3] = [BASE, QEMU, QEMU_DIRTY_BITMAP];
}

/// What an extent of `qemu:dirty-bitmap:NAME` is (QEMU's `docs/interop/nbd.txt`), as a mask.
pub mod dirty {
    /// It was written.
    pub const DIRTY: u32 = 1 << 0;
}

/// What an extent of `base:allocation` is (section "Metadata contexts"), each as a mask.
pub mod state {
    /// It takes no space.
    pub const HOLE: u32 = 1 << 0;
    /// It reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// Errors of replies (section "Error values"); the same on every system.
pub mod errno {
    /// Not permitted.
    pub const EPERM: u32 = 1;
    /// The storage failed.
    pub const EIO: u32 = 5;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// The request is no valid one.
    pub const EINVAL: u32 = 22;
    /// No space, or beyond the end.
    pub const ENOSPC: u32 = 28;
    /// Longer than what is answered at once.
    pub const EOVERFLOW: u32 = 75;
    /// Zeroes cannot be written faster than data.
    pub const ENOTSUP: u32 = 95;
    /// The server ends; the client has to go.
    pub const ESHUTDOWN: u32 = 108;
}
