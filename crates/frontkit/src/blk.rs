//! Requests of virtio-blk (virtio 1.3, 5.2.6), encoded here and not taken from the server's rooms, so that a mistake there
//! cannot hide behind the same mistake here.

/// Bytes of a request's header.
pub const HEADER_BYTES: u32 = 16;
/// What a status byte is set to before the device writes it: a value that none has.
pub const NO_STATUS: u8 = 0xee;

/// Types of requests.
pub mod kind {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Make writes durable.
    pub const FLUSH: u32 = 4;
    /// Read the serial number.
    pub const GET_ID: u32 = 8;
    /// Contents no longer matter.
    pub const DISCARD: u32 = 11;
    /// Must read as zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Status bytes.
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// Failed or malformed.
    pub const IOERR: u8 = 1;
    /// Not known.
    pub const UNSUPP: u8 = 2;
}

/// The header of a request.
pub fn header(kind: u32, sector: u64) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[8..].copy_from_slice(&sector.to_le_bytes());
    header
}
