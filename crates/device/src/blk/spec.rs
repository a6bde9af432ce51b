//! Numbers of virtio-blk. Source: virtio 1.3, section 5.2; the same values stand in Linux' `include/uapi/linux/virtio_blk.h`.

/// Device id of a block device (virtio 1.3, section 5).
pub const DEVICE_ID: u32 = 2;

/// Unit of every sector number and sector count of the protocol, whatever the block size (section 5.2.6).
pub const SECTOR_BYTES: u64 = 512;

/// Feature bits (section 5.2.3), each as a mask.
pub mod feature {
    /// `size_max` of the configuration holds the longest data segment.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// `seg_max` of the configuration holds the largest number of data segments of a request.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The device is read-only.
    pub const RO: u64 = 1 << 5;
    /// `blk_size` of the configuration holds the logical block size.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// The device has a volatile cache and the flush request.
    pub const FLUSH: u64 = 1 << 9;
    /// The configuration describes physical blocks and the best request sizes.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver may switch between write-back and write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// `num_queues` of the configuration holds the number of queues.
    pub const MQ: u64 = 1 << 12;
    /// The device takes discard requests.
    pub const DISCARD: u64 = 1 << 13;
    /// The device takes write-zeroes requests.
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Request types (section 5.2.6).
pub mod request_type {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Make completed writes durable.
    pub const FLUSH: u32 = 4;
    /// Read the 20 bytes of the serial number.
    pub const GET_ID: u32 = 8;
    /// Contents of ranges no longer matter.
    pub const DISCARD: u32 = 11;
    /// Ranges must read as zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Status bytes (section 5.2.6).
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// The request failed or is malformed.
    pub const IOERR: u8 = 1;
    /// The device does not know the request.
    pub const UNSUPP: u8 = 2;
}

/// Bytes of the request header: type (le32), reserved (le32), sector (le64).
pub const HEADER_BYTES: usize = 16;
/// Bytes of the status that ends a request.
pub const STATUS_BYTES: usize = 1;
/// Bytes of the serial number (section 5.2.6.1); shorter ones are padded with zeroes.
pub const SERIAL_BYTES: usize = 20;
/// Bytes of one discard or write-zeroes segment: sector (le64), number of sectors (le32), flags (le32).
pub const RANGE_BYTES: usize = 16;
/// Flag of a write-zeroes segment: the device may unmap the range.
pub const RANGE_FLAG_UNMAP: u32 = 1;

/// Offsets into `struct virtio_blk_config` (section 5.2.4), in bytes.
pub mod config_offset {
    /// le64, in sectors.
    pub const CAPACITY: usize = 0;
    /// le32, in bytes.
    pub const SIZE_MAX: usize = 8;
    /// le32.
    pub const SEG_MAX: usize = 12;
    /// le32, in bytes.
    pub const BLK_SIZE: usize = 20;
    /// u8, log2 of the logical blocks in a physical block.
    pub const PHYSICAL_BLOCK_EXP: usize = 24;
    /// le16, in logical blocks.
    pub const MIN_IO_SIZE: usize = 26;
    /// le32, in logical blocks.
    pub const OPT_IO_SIZE: usize = 28;
    /// u8, 1 = write-back, 0 = write-through. The only byte a driver may write.
    pub const WRITEBACK: usize = 32;
    /// le16.
    pub const NUM_QUEUES: usize = 34;
    /// le32, in sectors.
    pub const MAX_DISCARD_SECTORS: usize = 36;
    /// le32.
    pub const MAX_DISCARD_SEG: usize = 40;
    /// le32, in sectors.
    pub const DISCARD_SECTOR_ALIGNMENT: usize = 44;
    /// le32, in sectors.
    pub const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    /// le32.
    pub const MAX_WRITE_ZEROES_SEG: usize = 52;
    /// u8, 1 = a write-zeroes request may unmap.
    pub const WRITE_ZEROES_MAY_UNMAP: usize = 56;
}

/// Bytes of the configuration up to and with the write-zeroes fields and their padding. Everything after (secure erase, zones)
/// belongs to features that are not offered and reads as zero.
pub const CONFIG_BYTES: usize = 60;
