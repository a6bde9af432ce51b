//! From the bytes of a chain to a typed request, and from an outcome to the bytes of an answer.

use super::config::{Limits, PAYLOAD_BYTES_MAX};
use super::ranges::{Ranges, raw_ranges};
use super::spec::{HEADER_BYTES, RANGE_BYTES, RANGE_FLAG_UNMAP, SECTOR_BYTES, SERIAL_BYTES, request_type, status};

/// The status that ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// Failed or malformed.
    IoError,
    /// Not a request of this disk.
    Unsupported,
}

impl Status {
    /// The byte the driver reads.
    pub fn byte(self) -> u8 {
        match self {
            Status::Ok => status::OK,
            Status::IoError => status::IOERR,
            Status::Unsupported => status::UNSUPP,
        }
    }
}

/// The first 16 bytes of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Request type; see [`request_type`](super::spec::request_type).
    pub kind: u32,
    /// First sector of reads and writes.
    pub sector: u64,
}

impl Header {
    /// Takes the fields out; any bytes are a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Header {
        let word = u128::from_le_bytes(*bytes);
        // Truncation picks the fields out of the little-endian word: le32, le32 (reserved), le64.
        Header { kind: word as u32, sector: (word >> 64) as u64 }
    }

    /// How many bytes of the readable data the caller copies out of guest memory before it decodes: the payload of discard and
    /// write zeroes, at most 4 KiB. 0 for every other request. A longer payload is refused by its length alone.
    pub fn payload_bytes(&self, readable_data_bytes: u64) -> usize {
        match self.kind {
            request_type::DISCARD | request_type::WRITE_ZEROES => {
                usize::try_from(readable_data_bytes).unwrap_or(usize::MAX).min(PAYLOAD_BYTES_MAX)
            }
            _ => 0,
        }
    }
}

/// A request that may be carried out: offsets and lengths are multiples of 512 and lie inside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Fill the writable data.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u64,
    },
    /// Store the readable data.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u64,
    },
    /// Make every completed write durable.
    Flush,
    /// Write the serial number (see [`serial`]) to the first 20 bytes of the writable data.
    GetId,
    /// The contents of the ranges no longer matter.
    Discard(Ranges<'a>),
    /// The ranges read as zeroes from now on.
    WriteZeroes(Ranges<'a>),
}

/// A request that is answered at once, without touching the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// What the guest is told.
    pub status: Status,
    /// What the counters and the log are told.
    pub reason: Reason,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, displaydoc::Display)]
pub enum Reason {
    /// the request type is not offered by this disk
    UnknownType,
    /// the request carries data in a direction that its type does not have
    WrongDirection,
    /// the data is not a whole number of 512-byte sectors
    PartialSector,
    /// the request reaches beyond the end of the disk
    BeyondCapacity,
    /// the disk is read-only
    ReadOnly,
    /// the buffer for the serial number is shorter than 20 bytes
    ShortIdBuffer,
    /// the payload is empty or not a whole number of 16-byte segments
    BadPayload,
    /// the payload has more segments than the disk announces
    TooManySegments,
    /// a segment has no sectors
    EmptySegment,
    /// a segment has more sectors than the disk announces
    LongSegment,
    /// a segment has flags that its request does not know
    UnknownFlags,
}

impl Reason {
    /// Every reason, for counters: `ALL[reason as usize] == reason`.
    pub const ALL: [Reason; 11] = [
        Reason::UnknownType,
        Reason::WrongDirection,
        Reason::PartialSector,
        Reason::BeyondCapacity,
        Reason::ReadOnly,
        Reason::ShortIdBuffer,
        Reason::BadPayload,
        Reason::TooManySegments,
        Reason::EmptySegment,
        Reason::LongSegment,
        Reason::UnknownFlags,
    ];

    /// The refusal with the status that section 5.2.6.2 asks for.
    fn refuse(self) -> Refusal {
        let status = match self {
            Reason::UnknownType | Reason::UnknownFlags => Status::Unsupported,
            _ => Status::IoError,
        };
        Refusal { status, reason: self }
    }
}

/// Decodes one request.
///
/// - `readable_data_bytes`: readable bytes behind the header.
/// - `writable_data_bytes`: writable bytes before the status byte.
/// - `payload`: the caller's copy of the first [`Header::payload_bytes`] readable data bytes.
///
/// # Errors
/// A refusal for everything that cannot be carried out; its status is the answer.
pub fn decode_request<'a>(
    header: &[u8; HEADER_BYTES],
    readable_data_bytes: u64,
    writable_data_bytes: u64,
    payload: &'a [u8],
    limits: &Limits,
) -> Result<Request<'a>, Refusal> {
    let header = Header::decode(header);
    let checked = match header.kind {
        request_type::IN => check_none(readable_data_bytes)
            .and_then(|()| extent(header.sector, writable_data_bytes, limits))
            .map(|(offset, len)| Request::Read { offset, len }),
        request_type::OUT => check_none(writable_data_bytes)
            .and_then(|()| check_writable(limits))
            .and_then(|()| extent(header.sector, readable_data_bytes, limits))
            .map(|(offset, len)| Request::Write { offset, len }),
        request_type::FLUSH => {
            check_none(readable_data_bytes).and_then(|()| check_none(writable_data_bytes)).map(|()| Request::Flush)
        }
        request_type::GET_ID => {
            check_none(readable_data_bytes).and_then(|()| check_id(writable_data_bytes)).map(|()| Request::GetId)
        }
        request_type::DISCARD => {
            let bounds = limits.discard.map(|d| RangeRules {
                max_sectors: d.max_sectors,
                max_segments: d.max_segments,
                known_flags: 0,
            });
            check_none(writable_data_bytes)
                .and_then(|()| ranges(bounds, readable_data_bytes, payload, limits))
                .map(Request::Discard)
        }
        request_type::WRITE_ZEROES => {
            let bounds = limits.write_zeroes.map(|w| RangeRules {
                max_sectors: w.max_sectors,
                max_segments: w.max_segments,
                known_flags: RANGE_FLAG_UNMAP,
            });
            check_none(writable_data_bytes)
                .and_then(|()| ranges(bounds, readable_data_bytes, payload, limits))
                .map(Request::WriteZeroes)
        }
        _ => Err(Reason::UnknownType),
    };
    checked.map_err(Reason::refuse)
}

/// What the used ring says about an answer: bytes written from the start of the writable part without a gap (section 2.7.8.2).
/// `written_data_bytes` is what the request filled, 0 when it failed; the status byte counts only when everything before it was
/// written.
pub fn used_bytes(writable_data_bytes: u64, written_data_bytes: u64) -> u32 {
    let whole = written_data_bytes >= writable_data_bytes;
    let bytes = written_data_bytes.saturating_add(u64::from(whole));
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The 20 bytes that answer GET_ID: `text` cut or padded with zeroes.
pub fn serial(text: &str) -> [u8; SERIAL_BYTES] {
    let mut out = [0; SERIAL_BYTES];
    for (to, from) in out.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    out
}

fn check_none(bytes: u64) -> Result<(), Reason> {
    if bytes == 0 { Ok(()) } else { Err(Reason::WrongDirection) }
}

fn check_writable(limits: &Limits) -> Result<(), Reason> {
    if limits.read_only { Err(Reason::ReadOnly) } else { Ok(()) }
}

fn check_id(writable_data_bytes: u64) -> Result<(), Reason> {
    if writable_data_bytes < SERIAL_BYTES as u64 { Err(Reason::ShortIdBuffer) } else { Ok(()) }
}

/// Offset and length in bytes of a request that lies inside the disk.
fn extent(sector: u64, len: u64, limits: &Limits) -> Result<(u64, u64), Reason> {
    if !len.is_multiple_of(SECTOR_BYTES) {
        return Err(Reason::PartialSector);
    }
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Reason::BeyondCapacity)?;
    let end = offset.checked_add(len).ok_or(Reason::BeyondCapacity)?;
    if end > limits.capacity_bytes {
        return Err(Reason::BeyondCapacity);
    }
    Ok((offset, len))
}

struct RangeRules {
    max_sectors: u32,
    max_segments: u32,
    known_flags: u32,
}

fn ranges<'a>(
    rules: Option<RangeRules>,
    readable_data_bytes: u64,
    payload: &'a [u8],
    limits: &Limits,
) -> Result<Ranges<'a>, Reason> {
    let rules = rules.ok_or(Reason::UnknownType)?;
    check_writable(limits)?;
    if readable_data_bytes > u64::from(rules.max_segments) * RANGE_BYTES as u64 {
        return Err(Reason::TooManySegments);
    }
    let whole = payload.len().is_multiple_of(RANGE_BYTES) && !payload.is_empty();
    if !whole || payload.len() as u64 != readable_data_bytes {
        return Err(Reason::BadPayload);
    }
    for raw in raw_ranges(payload) {
        if raw.flags & !rules.known_flags != 0 {
            return Err(Reason::UnknownFlags);
        }
        if raw.sectors == 0 {
            return Err(Reason::EmptySegment);
        }
        if raw.sectors > rules.max_sectors {
            return Err(Reason::LongSegment);
        }
        extent(raw.sector, u64::from(raw.sectors) * SECTOR_BYTES, limits)?;
    }
    Ok(Ranges::checked(payload))
}
