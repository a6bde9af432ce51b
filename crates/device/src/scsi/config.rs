//! What a SCSI host announces: feature bits and configuration space.

use super::chain::Sizes;
use super::spec::{
    CDB_BYTES_DEFAULT, CDB_BYTES_MAX, CONFIG_BYTES, EVENT_BYTES, LUNS_MAX, SENSE_BYTES_DEFAULT, SENSE_BYTES_MAX,
    config_offset as at, feature,
};
use crate::wire::put;

/// Longest end (offset + length) of a configuration read, in bytes; see [`blk::CONFIG_READ_MAX`](crate::blk::CONFIG_READ_MAX).
pub const CONFIG_READ_MAX: usize = crate::blk::CONFIG_READ_MAX;

/// Shortest CDB area: a CDB has 6 bytes or more.
const CDB_BYTES_MIN: u32 = 6;

/// A SCSI host as its export wants it announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of request queues, 1 to [`Config::REQUEST_QUEUES_MAX`].
    pub request_queues: u16,
    /// Most data segments of a request in each direction, 1 or more.
    pub seg_max: u32,
    /// Longest transfer that the driver should ask for, in sectors of 512 bytes; 1 or more.
    pub max_sectors: u32,
    /// Most commands that a logical unit has at once, 1 or more.
    pub commands_per_lun: u32,
    /// Highest number of a target.
    pub target_max: u8,
    /// Highest number of a logical unit, below [`LUNS_MAX`].
    pub lun_max: u16,
}

impl Default for Settings {
    /// One queue, 126 segments and 32 MiB a request, 128 commands a unit, every target and unit.
    fn default() -> Settings {
        Settings {
            request_queues: 1,
            seg_max: 126,
            max_sectors: 65536,
            commands_per_lun: 128,
            target_max: u8::MAX,
            lun_max: (LUNS_MAX - 1) as u16,
        }
    }
}

/// Why a host cannot be announced, or its configuration space not be read or written.
#[derive(Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum ConfigError {
    /// {0} request queues: 1 to 256 are possible
    Queues(u16),
    /// segments, sectors and commands per logical unit must be at least 1
    Zero,
    /// a logical unit number of {0} is beyond 16383
    Lun(u16),
    /// a configuration access of {len} bytes at offset {offset} is out of bounds
    OutOfBounds {
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: usize,
    },
    /// of the configuration only sense_size and cdb_size may be written, each as a whole
    NotWritable,
    /// a sense_size of {0} bytes is beyond 252
    SenseSize(u32),
    /// a cdb_size of {0} bytes is not from 6 to 260
    CdbSize(u32),
}

/// Features and configuration space of one SCSI host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    settings: Settings,
    sizes: Sizes,
}

impl Config {
    /// Most request queues.
    pub const REQUEST_QUEUES_MAX: u16 = 256;

    /// Checks the settings.
    ///
    /// # Errors
    /// One that names the first setting out of its range.
    pub fn new(settings: Settings) -> Result<Config, ConfigError> {
        let s = &settings;
        if s.request_queues == 0 || s.request_queues > Config::REQUEST_QUEUES_MAX {
            return Err(ConfigError::Queues(s.request_queues));
        }
        if s.seg_max == 0 || s.max_sectors == 0 || s.commands_per_lun == 0 {
            return Err(ConfigError::Zero);
        }
        if u32::from(s.lun_max) >= LUNS_MAX {
            return Err(ConfigError::Lun(s.lun_max));
        }
        Ok(Config { settings, sizes: Sizes::DEFAULT })
    }

    /// What was asked for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How long CDB and sense data are in chains, at this moment.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The device's feature bits.
    pub fn features(&self) -> u64 {
        feature::INOUT | feature::HOTPLUG | feature::CHANGE
    }

    /// A reset takes back what the driver has written (section 5.6.4.2).
    pub fn reset(&mut self) {
        self.sizes = Sizes::DEFAULT;
    }

    /// `struct virtio_scsi_config` as the driver sees it.
    pub fn bytes(&self) -> [u8; CONFIG_BYTES] {
        let s = &self.settings;
        let mut out = [0; CONFIG_BYTES];
        put::<{ at::NUM_QUEUES }, _, _>(&mut out, u32::from(s.request_queues).to_le_bytes());
        put::<{ at::SEG_MAX }, _, _>(&mut out, s.seg_max.to_le_bytes());
        put::<{ at::MAX_SECTORS }, _, _>(&mut out, s.max_sectors.to_le_bytes());
        put::<{ at::CMD_PER_LUN }, _, _>(&mut out, s.commands_per_lun.to_le_bytes());
        put::<{ at::EVENT_INFO_SIZE }, _, _>(&mut out, (EVENT_BYTES as u32).to_le_bytes());
        put::<{ at::SENSE_SIZE }, _, _>(&mut out, u32::from(self.sizes.sense_bytes()).to_le_bytes());
        put::<{ at::CDB_SIZE }, _, _>(&mut out, u32::from(self.sizes.cdb_bytes()).to_le_bytes());
        put::<{ at::MAX_TARGET }, _, _>(&mut out, u16::from(s.target_max).to_le_bytes());
        put::<{ at::MAX_LUN }, _, _>(&mut out, u32::from(s.lun_max).to_le_bytes());
        out
    }

    /// Reads the configuration space; what lies behind our fields reads as zero.
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

    /// Writes the configuration space: `sense_size`, `cdb_size`, or both. Linux writes each of them, with the value it has.
    ///
    /// # Errors
    /// Any other place or length, and a size that no sense data or CDB can have. Nothing changes then.
    pub fn write(&mut self, offset: u32, data: &[u8]) -> Result<(), ConfigError> {
        const BOTH: usize = 8;
        let mut fields = [0; BOTH];
        fields[..4].copy_from_slice(&u32::from(self.sizes.sense_bytes()).to_le_bytes());
        fields[4..].copy_from_slice(&u32::from(self.sizes.cdb_bytes()).to_le_bytes());
        let start = (offset as usize).checked_sub(at::SENSE_SIZE).ok_or(ConfigError::NotWritable)?;
        let whole = start.is_multiple_of(4) && data.len().is_multiple_of(4) && !data.is_empty();
        match fields.get_mut(start..start.saturating_add(data.len())) {
            Some(place) if whole => place.copy_from_slice(data),
            _ => return Err(ConfigError::NotWritable),
        }
        let sense_bytes = crate::wire::le32::<0, BOTH>(&fields);
        let cdb_bytes = crate::wire::le32::<4, BOTH>(&fields);
        self.sizes = Sizes::new(sense_bytes, cdb_bytes)?;
        Ok(())
    }
}

impl Sizes {
    /// What a device has after a reset: 96 bytes of sense data, 32 of CDB.
    pub const DEFAULT: Sizes = Sizes { sense: SENSE_BYTES_DEFAULT as u16, cdb: CDB_BYTES_DEFAULT as u16 };

    /// Sizes that a driver has written.
    ///
    /// # Errors
    /// One that no sense data or CDB can have.
    pub fn new(sense_bytes: u32, cdb_bytes: u32) -> Result<Sizes, ConfigError> {
        if sense_bytes > SENSE_BYTES_MAX {
            return Err(ConfigError::SenseSize(sense_bytes));
        }
        if !(CDB_BYTES_MIN..=CDB_BYTES_MAX).contains(&cdb_bytes) {
            return Err(ConfigError::CdbSize(cdb_bytes));
        }
        Ok(Sizes { sense: sense_bytes as u16, cdb: cdb_bytes as u16 })
    }
}
