//! What a client is told of an export.

/// An export, as `NBD_REP_INFO` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo<'a> {
    /// Size in bytes, a multiple of [`BlockSizes::minimum`]: a client cannot reach what lies behind the last whole block.
    pub size_bytes: u64,
    /// Transmission flags; see [`transmission_flag`](super::spec::transmission_flag).
    pub flags: u16,
    /// Block sizes and the longest payload.
    pub block: BlockSizes,
    /// Name, at most [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX) bytes.
    pub name: &'a str,
}

/// Sizes of requests, in bytes (section "Size constraints").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it: a power of 2 up to 65536.
    pub minimum: u32,
    /// Multiples of it are fast: a power of 2, 512 or more, not less than `minimum`.
    pub preferred: u32,
    /// Longest data of a read or a write, not less than `preferred`.
    pub maximum: u32,
}
