//! What a disk announces: feature bits and configuration space.

use super::spec::{CONFIG_BYTES, RANGE_BYTES, SECTOR_BYTES, config_offset as at, feature};

/// Longest end (offset + length) of a configuration read, in bytes. It is `VHOST_USER_MAX_CONFIG_SIZE` of QEMU and of the `vhost`
/// crate: no frontend can ask beyond it.
pub const CONFIG_READ_MAX: usize = 256;

/// Bounds of discard requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Most sectors of one segment, 1 or more.
    pub max_sectors: u32,
    /// Most segments of one request, 1 to [`DiscardLimits::SEGMENTS_MAX`].
    pub max_segments: u32,
    /// Granularity that frees space, in bytes: a multiple of 512.
    pub alignment_bytes: u32,
}

impl DiscardLimits {
    /// Most segments that a disk may announce. A request's payload is copied out of guest memory: this bounds it to 4 KiB.
    pub const SEGMENTS_MAX: u32 = 256;
}

/// Bounds of write-zeroes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteZeroesLimits {
    /// Most sectors of one segment, 1 or more.
    pub max_sectors: u32,
    /// Most segments of one request, 1 to [`DiscardLimits::SEGMENTS_MAX`].
    pub max_segments: u32,
    /// Whether a request with the unmap flag frees the space.
    pub may_unmap: bool,
}

/// What requests are checked against: the small, copyable part of a disk's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the disk, in bytes.
    pub capacity_bytes: u64,
    /// Refuse everything that changes the disk.
    pub read_only: bool,
    /// Bounds of discard; `None` = not a request of this disk.
    pub discard: Option<DiscardLimits>,
    /// Bounds of write zeroes; `None` = not a request of this disk.
    pub write_zeroes: Option<WriteZeroesLimits>,
}

/// A disk as its export wants it announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Size, in bytes: a multiple of 512.
    pub capacity_bytes: u64,
    /// Logical block size, in bytes: a power of two, 512 to 4096.
    pub block_size_bytes: u32,
    /// log2 of the logical blocks in a physical block, at most 16.
    pub physical_block_exp: u8,
    /// Best request size, in bytes: a multiple of the logical block size, 0 = not said.
    pub optimal_io_bytes: u32,
    /// Number of queues, 1 to 256.
    pub queues: u16,
    /// Longest data segment, in bytes, when there is a limit.
    pub size_max_bytes: Option<u32>,
    /// Most data segments of a request. Drivers assume 1 when it is not said, so it always is. 1 or more.
    pub seg_max: u32,
    /// Refuse everything that changes the disk.
    pub read_only: bool,
    /// Take discard requests.
    pub discard: Option<DiscardLimits>,
    /// Take write-zeroes requests.
    pub write_zeroes: Option<WriteZeroesLimits>,
    /// Start in write-back (true) or write-through (false) mode.
    pub writeback: bool,
    /// Offer the driver to change that.
    pub writeback_changeable: bool,
}

impl Default for Settings {
    /// An empty disk of 512-byte blocks, one queue, write-back, without discard and write zeroes.
    fn default() -> Settings {
        Settings {
            capacity_bytes: 0,
            block_size_bytes: 512,
            physical_block_exp: 0,
            optimal_io_bytes: 0,
            queues: 1,
            size_max_bytes: None,
            seg_max: 126,
            read_only: false,
            discard: None,
            write_zeroes: None,
            writeback: true,
            writeback_changeable: true,
        }
    }
}

/// Why a disk cannot be announced, or its configuration space not be read or written.
#[derive(Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum ConfigError {
    /// a capacity of {0} bytes is not a multiple of 512
    Capacity(u64),
    /// a logical block size of {0} bytes is not a power of two from 512 to 4096
    BlockSize(u32),
    /// a physical block of 2^{0} logical blocks is beyond 2^16
    PhysicalBlock(u8),
    /// an optimal request size of {0} bytes is not a multiple of the block size of {1} bytes
    OptimalIo(u32, u32),
    /// {0} queues: 1 to 256 are possible
    Queues(u16),
    /// seg_max and size_max must be at least 1
    Segments,
    /// discard and write zeroes need 1 or more sectors and 1 to 256 segments
    RangeLimits,
    /// a discard alignment of {0} bytes is not a multiple of 512
    DiscardAlignment(u32),
    /// a configuration access of {len} bytes at offset {offset} is out of bounds
    OutOfBounds {
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: usize,
    },
    /// only the writeback byte of the configuration may be written, and only with VIRTIO_BLK_F_CONFIG_WCE
    NotWritable,
    /// {0} is no value for the writeback byte: 0 or 1
    Writeback(u8),
}

/// Features and configuration space of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    settings: Settings,
}

impl Config {
    /// Most queues of a disk.
    pub const QUEUES_MAX: u16 = 256;

    /// Checks the settings.
    ///
    /// # Errors
    /// One that names the first setting out of its range.
    pub fn new(settings: Settings) -> Result<Config, ConfigError> {
        let s = &settings;
        check_capacity(s.capacity_bytes)?;
        if !s.block_size_bytes.is_power_of_two() || !(512..=4096).contains(&s.block_size_bytes) {
            return Err(ConfigError::BlockSize(s.block_size_bytes));
        }
        if s.physical_block_exp > 16 {
            return Err(ConfigError::PhysicalBlock(s.physical_block_exp));
        }
        if !s.optimal_io_bytes.is_multiple_of(s.block_size_bytes) {
            return Err(ConfigError::OptimalIo(s.optimal_io_bytes, s.block_size_bytes));
        }
        if s.queues == 0 || s.queues > Config::QUEUES_MAX {
            return Err(ConfigError::Queues(s.queues));
        }
        if s.seg_max == 0 || s.size_max_bytes == Some(0) {
            return Err(ConfigError::Segments);
        }
        if let Some(d) = s.discard {
            check_ranges(d.max_sectors, d.max_segments)?;
            if d.alignment_bytes == 0 || !u64::from(d.alignment_bytes).is_multiple_of(SECTOR_BYTES) {
                return Err(ConfigError::DiscardAlignment(d.alignment_bytes));
            }
        }
        if let Some(w) = s.write_zeroes {
            check_ranges(w.max_sectors, w.max_segments)?;
        }
        Ok(Config { settings })
    }

    /// What was asked for; `writeback` and `capacity_bytes` are those of this moment.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What requests are checked against.
    pub fn limits(&self) -> Limits {
        let s = &self.settings;
        Limits {
            capacity_bytes: s.capacity_bytes,
            read_only: s.read_only,
            discard: s.discard,
            write_zeroes: s.write_zeroes,
        }
    }

    /// The device's feature bits. Discard and write zeroes are not offered by a read-only disk.
    pub fn features(&self) -> u64 {
        let s = &self.settings;
        let mut bits = feature::SEG_MAX | feature::BLK_SIZE | feature::FLUSH | feature::TOPOLOGY;
        let mut offer = |when: bool, bit: u64| bits |= if when { bit } else { 0 };
        offer(s.size_max_bytes.is_some(), feature::SIZE_MAX);
        offer(s.read_only, feature::RO);
        offer(s.queues > 1, feature::MQ);
        offer(s.writeback_changeable, feature::CONFIG_WCE);
        offer(!s.read_only && s.discard.is_some(), feature::DISCARD);
        offer(!s.read_only && s.write_zeroes.is_some(), feature::WRITE_ZEROES);
        bits
    }

    /// Whether every write must be durable before it completes, given the features the driver took (section 5.2.6.2): with
    /// CONFIG_WCE the writeback byte decides; without, a driver that can flush gets write-back and one that cannot gets
    /// write-through.
    pub fn write_through(&self, negotiated: u64) -> bool {
        if negotiated & feature::CONFIG_WCE != 0 { !self.settings.writeback } else { negotiated & feature::FLUSH == 0 }
    }

    /// Changes the size. The caller announces it to the guest.
    ///
    /// # Errors
    /// A capacity that is not a multiple of 512.
    pub fn set_capacity_bytes(&mut self, capacity_bytes: u64) -> Result<(), ConfigError> {
        check_capacity(capacity_bytes)?;
        self.settings.capacity_bytes = capacity_bytes;
        Ok(())
    }

    /// Changes between write-back and write-through mode without being asked by the driver.
    pub fn set_writeback(&mut self, writeback: bool) {
        self.settings.writeback = writeback;
    }

    /// `struct virtio_blk_config` as the driver sees it.
    pub fn bytes(&self) -> [u8; CONFIG_BYTES] {
        let s = &self.settings;
        let mut out = [0; CONFIG_BYTES];
        let mut put = |offset: usize, bytes: &[u8]| {
            out[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put(at::CAPACITY, &(s.capacity_bytes / SECTOR_BYTES).to_le_bytes());
        put(at::SIZE_MAX, &s.size_max_bytes.unwrap_or_default().to_le_bytes());
        put(at::SEG_MAX, &s.seg_max.to_le_bytes());
        put(at::BLK_SIZE, &s.block_size_bytes.to_le_bytes());
        put(at::PHYSICAL_BLOCK_EXP, &[s.physical_block_exp]);
        put(at::MIN_IO_SIZE, &min_io_blocks(s).to_le_bytes());
        put(at::OPT_IO_SIZE, &(s.optimal_io_bytes / s.block_size_bytes).to_le_bytes());
        put(at::WRITEBACK, &[u8::from(s.writeback)]);
        put(at::NUM_QUEUES, &s.queues.to_le_bytes());
        if let Some(d) = s.discard.filter(|_| !s.read_only) {
            put(at::MAX_DISCARD_SECTORS, &d.max_sectors.to_le_bytes());
            put(at::MAX_DISCARD_SEG, &d.max_segments.to_le_bytes());
            let alignment_sectors = d.alignment_bytes / 512;
            put(at::DISCARD_SECTOR_ALIGNMENT, &alignment_sectors.to_le_bytes());
        }
        if let Some(w) = s.write_zeroes.filter(|_| !s.read_only) {
            put(at::MAX_WRITE_ZEROES_SECTORS, &w.max_sectors.to_le_bytes());
            put(at::MAX_WRITE_ZEROES_SEG, &w.max_segments.to_le_bytes());
            put(at::WRITE_ZEROES_MAY_UNMAP, &[u8::from(w.may_unmap)]);
        }
        out
    }

    /// Reads the configuration space: QEMU reads as much as the features need, Cloud Hypervisor its whole structure. What lies
    /// behind our fields reads as zero.
    ///
    /// # Errors
    /// An access that ends beyond [`CONFIG_READ_MAX`]; `out` is untouched then.
    pub fn read(&self, offset: u32, out: &mut [u8]) -> Result<(), ConfigError> {
        let start = offset as usize;
        if start.saturating_add(out.len()) > CONFIG_READ_MAX {
            let len = out.len();
            return Err(ConfigError::OutOfBounds { offset, len });
        }
        let mut space = [0; CONFIG_READ_MAX];
        space[..CONFIG_BYTES].copy_from_slice(&self.bytes());
        out.copy_from_slice(&space[start..start + out.len()]);
        Ok(())
    }

    /// Whether the writeback byte is among `bytes` bytes from `offset` on.
    pub fn is_writeback_among(&self, offset: u32, bytes: usize) -> bool {
        let start = offset as usize;
        (start..start.saturating_add(bytes)).contains(&at::WRITEBACK)
    }

    /// Writes the configuration space: the writeback byte alone, when the driver took CONFIG_WCE.
    ///
    /// # Errors
    /// Any other place, length or value, and a driver that did not take CONFIG_WCE. Nothing changes then.
    pub fn write(&mut self, offset: u32, data: &[u8], negotiated: u64) -> Result<(), ConfigError> {
        let [value] = *data else {
            return Err(ConfigError::NotWritable);
        };
        if offset as usize != at::WRITEBACK || negotiated & feature::CONFIG_WCE == 0 {
            return Err(ConfigError::NotWritable);
        }
        match value {
            0 | 1 => self.settings.writeback = value == 1,
            other => return Err(ConfigError::Writeback(other)),
        }
        Ok(())
    }
}

/// A physical block is the smallest request that costs no read-modify-write.
fn min_io_blocks(settings: &Settings) -> u16 {
    u16::try_from(1u32 << settings.physical_block_exp).unwrap_or(u16::MAX)
}

fn check_capacity(capacity_bytes: u64) -> Result<(), ConfigError> {
    if capacity_bytes.is_multiple_of(SECTOR_BYTES) { Ok(()) } else { Err(ConfigError::Capacity(capacity_bytes)) }
}

fn check_ranges(max_sectors: u32, max_segments: u32) -> Result<(), ConfigError> {
    if max_sectors == 0 || max_segments == 0 || max_segments > DiscardLimits::SEGMENTS_MAX {
        return Err(ConfigError::RangeLimits);
    }
    Ok(())
}

/// Most bytes of a discard or write-zeroes payload.
pub(super) const PAYLOAD_BYTES_MAX: usize = DiscardLimits::SEGMENTS_MAX as usize * RANGE_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Settings {
        Settings {
            capacity_bytes: 0x0012_3456_7800,
            block_size_bytes: 4096,
            physical_block_exp: 3,
            optimal_io_bytes: 1 << 20,
            queues: 0x0102 - 2,
            size_max_bytes: Some(0x1122_3344),
            seg_max: 0x55,
            read_only: false,
            discard: Some(DiscardLimits { max_sectors: 0x0a0b_0c0d, max_segments: 32, alignment_bytes: 4096 }),
            write_zeroes: Some(WriteZeroesLimits { max_sectors: 0x0102_0304, max_segments: 16, may_unmap: true }),
            writeback: true,
            writeback_changeable: true,
        }
    }

    #[test]
    fn every_field_stands_where_the_specification_puts_it() {
        let bytes = Config::new(full()).unwrap().bytes();
        let expected: [u8; 60] = [
            0x3c, 0x2b, 0x1a, 0x09, 0, 0, 0, 0, // capacity
            0x44, 0x33, 0x22, 0x11, // size_max
            0x55, 0, 0, 0, // seg_max
            0, 0, 0, 0, // geometry
            0, 0x10, 0, 0, // blk_size
            3, 0, 8, 0, // physical_block_exp, alignment_offset, min_io_size
            0, 1, 0, 0, // opt_io_size: 256 blocks
            1, 0, // writeback
            0, 1, // num_queues
            0x0d, 0x0c, 0x0b, 0x0a, 32, 0, 0, 0, 8, 0, 0, 0, // discard
            0x04, 0x03, 0x02, 0x01, 16, 0, 0, 0, 1, 0, 0, 0, // write zeroes
        ];
        assert_eq!(bytes[8..], expected[8..]);
        assert_eq!(bytes[..8], (0x0012_3456_7800u64 / 512).to_le_bytes());
    }

    #[test]
    fn features_follow_the_settings() {
        let all = Config::new(full()).unwrap().features();
        // Bits 1, 2, 6, 9, 10, 11, 12, 13, 14.
        assert_eq!(all, 0b0111_1110_0100_0110);
        let read_only = Settings { read_only: true, queues: 1, size_max_bytes: None, ..full() };
        let config = Config::new(read_only).unwrap();
        // Bits 2, 5, 6, 9, 10, 11.
        assert_eq!(config.features(), 0b1110_0110_0100);
        assert_eq!(config.bytes()[36..], [0; 24], "limits of features not offered are zero");
    }

    #[test]
    fn reads_any_part_and_zeroes_behind_the_fields() {
        let config = Config::new(full()).unwrap();
        let mut whole = [0xff; CONFIG_READ_MAX];
        config.read(0, &mut whole).unwrap();
        assert_eq!(whole[..CONFIG_BYTES], config.bytes());
        assert!(whole[CONFIG_BYTES..].iter().all(|b| *b == 0));
        for offset in 0..=CONFIG_READ_MAX {
            for len in 0..=CONFIG_READ_MAX - offset {
                let mut part = vec![0xff; len];
                config.read(u32::try_from(offset).unwrap(), &mut part).unwrap();
                assert_eq!(part, whole[offset..offset + len]);
            }
        }
    }

    #[test]
    fn refuses_reads_out_of_bounds() {
        let config = Config::new(full()).unwrap();
        let mut out = [7; 2];
        for offset in [255, 256, u32::MAX] {
            let refused = config.read(offset, &mut out);
            assert_eq!(refused, Err(ConfigError::OutOfBounds { offset, len: 2 }));
        }
        assert_eq!(out, [7; 2]);
    }

    #[test]
    fn only_the_writeback_byte_can_be_written() {
        let mut config = Config::new(full()).unwrap();
        let before = config.clone();
        let wce = feature::CONFIG_WCE;
        for offset in (0..70).filter(|o| *o != 32) {
            assert_eq!(config.write(offset, &[0], wce), Err(ConfigError::NotWritable));
        }
        for data in [&[][..], &[0, 0], &[0; 60]] {
            assert_eq!(config.write(32, data, wce), Err(ConfigError::NotWritable));
        }
        assert_eq!(config.write(32, &[0], !wce), Err(ConfigError::NotWritable));
        assert_eq!(config.write(32, &[2], wce), Err(ConfigError::Writeback(2)));
        assert_eq!(config, before);
        config.write(32, &[0], wce).unwrap();
        assert_eq!(config.bytes()[32], 0);
        config.write(32, &[1], wce).unwrap();
        assert_eq!(config, before);
    }

    #[test]
    fn write_through_follows_what_was_negotiated() {
        let mut config = Config::new(full()).unwrap();
        let (wce, flush) = (feature::CONFIG_WCE, feature::FLUSH);
        assert!(!config.write_through(wce | flush));
        assert!(!config.write_through(flush));
        assert!(config.write_through(0), "a driver that cannot flush gets durable writes");
        config.write(32, &[0], wce).unwrap();
        assert!(config.write_through(wce | flush));
        assert!(!config.write_through(flush));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        type Edit = fn(&mut Settings);
        let cases: [(Edit, ConfigError); 14] = [
            (|s| s.capacity_bytes = 513, ConfigError::Capacity(513)),
            (|s| s.block_size_bytes = 256, ConfigError::BlockSize(256)),
            (|s| s.block_size_bytes = 8192, ConfigError::BlockSize(8192)),
            (|s| s.block_size_bytes = 513, ConfigError::BlockSize(513)),
            (|s| s.physical_block_exp = 17, ConfigError::PhysicalBlock(17)),
            (|s| s.optimal_io_bytes = 512, ConfigError::OptimalIo(512, 4096)),
            (|s| s.queues = 0, ConfigError::Queues(0)),
            (|s| s.queues = 257, ConfigError::Queues(257)),
            (|s| s.seg_max = 0, ConfigError::Segments),
            (|s| s.size_max_bytes = Some(0), ConfigError::Segments),
            (|s| s.discard.as_mut().unwrap().max_segments = 257, ConfigError::RangeLimits),
            (|s| s.discard.as_mut().unwrap().alignment_bytes = 100, ConfigError::DiscardAlignment(100)),
            (|s| s.discard.as_mut().unwrap().alignment_bytes = 0, ConfigError::DiscardAlignment(0)),
            (|s| s.write_zeroes.as_mut().unwrap().max_sectors = 0, ConfigError::RangeLimits),
        ];
        for (edit, expected) in cases {
            let mut settings = full();
            edit(&mut settings);
            assert_eq!(Config::new(settings), Err(expected));
        }
    }

    #[test]
    fn the_capacity_can_change() {
        let mut config = Config::new(full()).unwrap();
        config.set_capacity_bytes(1 << 30).unwrap();
        assert_eq!(config.bytes()[..8], (1u64 << 21).to_le_bytes());
        assert_eq!(config.limits().capacity_bytes, 1 << 30);
        assert_eq!(config.set_capacity_bytes(1), Err(ConfigError::Capacity(1)));
    }
}
