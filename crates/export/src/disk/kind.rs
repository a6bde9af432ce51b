//! Kinds of virtio-blk requests, as figures tell them apart.

/// Kinds of virtio-blk requests, as figures tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// VIRTIO_BLK_T_IN.
    Read,
    /// VIRTIO_BLK_T_OUT.
    Write,
    /// VIRTIO_BLK_T_FLUSH.
    Flush,
    /// VIRTIO_BLK_T_DISCARD.
    Discard,
    /// VIRTIO_BLK_T_WRITE_ZEROES.
    WriteZeroes,
    /// VIRTIO_BLK_T_GET_ID.
    GetId,
    /// NBD_CMD_BLOCK_STATUS.
    BlockStatus,
    /// A request that was refused as it came.
    Refused,
}

impl Kind {
    /// Names of the kinds, in their order.
    pub(crate) const NAMES: [&str; 8] =
        ["read", "write", "flush", "discard", "write_zeroes", "get_id", "block_status", "unsupported"];
}
