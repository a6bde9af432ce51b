//! The parts of a request queue's chain, and how its data compares with what the CDB asks for.

use super::address::{Address, BadTarget};
use super::response::ResponseCode;
use super::spec::{REQUEST_BYTES, RESPONSE_BYTES, task_attribute};
use crate::wire::le64;

/// How long the driver makes the CDB and the sense data of its chains; see [`Config::sizes`](super::Config::sizes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub(super) sense: u16,
    pub(super) cdb: u16,
}

impl Sizes {
    /// Bytes of the sense data, 0 to 252.
    pub const fn sense_bytes(self) -> u16 {
        self.sense
    }

    /// Bytes of the CDB, 6 to 260.
    pub const fn cdb_bytes(self) -> u16 {
        self.cdb
    }

    /// Readable bytes before data-out. The caller copies them out of guest memory and hands them to [`decode_request`].
    pub const fn head_bytes(self) -> usize {
        REQUEST_BYTES + self.cdb as usize
    }

    /// Writable bytes before data-in.
    pub const fn response_bytes(self) -> usize {
        RESPONSE_BYTES + self.sense as usize
    }
}

/// Most bytes of [`Sizes::head_bytes`].
pub const HEAD_BYTES_MAX: usize = REQUEST_BYTES + super::spec::CDB_BYTES_MAX as usize;

/// The order that the driver asks for (SAM-5, "Task attributes"). A device may take all of them as SIMPLE (virtio 1.3, section
/// 5.6.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAttribute {
    /// Any order.
    Simple,
    /// Behind everything that came before, ahead of everything that comes later.
    Ordered,
    /// Ahead of everything that has not begun.
    HeadOfQueue,
    /// Only while there is an ACA condition, which our units never have.
    Aca,
    /// No value of the specification.
    Unknown(u8),
}

impl TaskAttribute {
    const fn decode(byte: u8) -> TaskAttribute {
        match byte {
            task_attribute::SIMPLE => TaskAttribute::Simple,
            task_attribute::ORDERED => TaskAttribute::Ordered,
            task_attribute::HEAD => TaskAttribute::HeadOfQueue,
            task_attribute::ACA => TaskAttribute::Aca,
            other => TaskAttribute::Unknown(other),
        }
    }
}

/// A request, cut apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Which logical unit is meant; the response to an error is [`ResponseCode::BadTarget`].
    pub address: Result<Address, BadTarget>,
    /// What task management functions name the request by.
    pub id: u64,
    /// The order asked for.
    pub attribute: TaskAttribute,
    /// The CDB, with what lies behind it in its area.
    pub cdb: &'a [u8],
    /// The data of the chain.
    pub buffers: Buffers,
}

/// Why a chain is no request: the ring breaks, since there is no room for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum Malformed {
    /// the chain is shorter than a request and its CDB
    ShortRequest,
    /// the chain has no room for a response and its sense data
    ShortResponse,
}

/// Cuts a chain apart.
///
/// - `head`: the caller's copy of the first [`Sizes::head_bytes`] readable bytes.
/// - `readable_bytes`, `writable_bytes`: of the whole chain.
///
/// # Errors
/// A chain without a whole request or without room for a response.
#[inline]
pub fn decode_request(
    head: &[u8],
    readable_bytes: u64,
    writable_bytes: u64,
    sizes: Sizes,
) -> Result<Request<'_>, Malformed> {
    let head = head.get(..sizes.head_bytes()).ok_or(Malformed::ShortRequest)?;
    let (fixed, cdb) = head.split_first_chunk::<REQUEST_BYTES>().ok_or(Malformed::ShortRequest)?;
    let (lun, _) = fixed.split_first_chunk::<8>().ok_or(Malformed::ShortRequest)?;
    let out_bytes = readable_bytes.checked_sub(sizes.head_bytes() as u64).ok_or(Malformed::ShortRequest)?;
    let in_bytes = writable_bytes.checked_sub(sizes.response_bytes() as u64).ok_or(Malformed::ShortResponse)?;
    Ok(Request {
        address: Address::decode(lun),
        id: le64::<8, _>(fixed),
        attribute: TaskAttribute::decode(fixed[16]),
        cdb,
        buffers: Buffers { out_bytes, in_bytes },
    })
}

/// How many bytes a command moves, and which way. Lengths of what the device sends are bounds: an answer may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// From the driver, this many bytes.
    Out(u64),
    /// To the driver, at most this many bytes.
    In(u64),
}

/// The data of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes of data-out, behind the CDB.
    pub out_bytes: u64,
    /// Bytes of data-in, behind the sense data.
    pub in_bytes: u64,
}

impl Buffers {
    /// Whether the chain has room for what the command moves. Data that no command asks for stays where it is, and is residual.
    ///
    /// # Errors
    /// The response: FAILURE to data in both directions unless `inout` (`VIRTIO_SCSI_F_INOUT`) was negotiated, OVERRUN when the
    /// command asks for more than there is (virtio 1.3, section 5.6.6.1.1).
    #[inline]
    pub fn admit(&self, transfer: Transfer, inout: bool) -> Result<(), ResponseCode> {
        if self.out_bytes > 0 && self.in_bytes > 0 && !inout {
            return Err(ResponseCode::Failure);
        }
        let fits = match transfer {
            Transfer::None => true,
            Transfer::Out(bytes) => bytes <= self.out_bytes,
            Transfer::In(bytes) => bytes <= self.in_bytes,
        };
        if fits { Ok(()) } else { Err(ResponseCode::Overrun) }
    }

    /// The residual of a response: bytes of data, both ways, that were not moved. Of more than the field holds it says as much as
    /// that.
    #[inline]
    pub fn residual(&self, moved_bytes: u64) -> u32 {
        let left = self.out_bytes.saturating_add(self.in_bytes).saturating_sub(moved_bytes);
        u32::try_from(left).unwrap_or(u32::MAX)
    }
}
