//! What is known of a logical unit: what commands are checked against, and what they may change.

/// How fast the medium turns (SBC-4, "Block Device Characteristics VPD page").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    /// Not said.
    #[default]
    Unknown,
    /// It does not turn: an SSD.
    Still,
    /// Rotations per minute, 1025 to 65534.
    PerMinute(u16),
}

/// Bounds of UNMAP and of WRITE SAME with UNMAP (SBC-4, "Block Limits VPD page").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapLimits {
    /// Most blocks of one UNMAP, in all its descriptors; 1 or more.
    pub blocks_max: u32,
    /// Most descriptors of one UNMAP, 1 to [`UnmapLimits::DESCRIPTORS_MAX`].
    pub descriptors_max: u32,
    /// Blocks that are given back as a whole, 1 or more; the best granularity, not a condition.
    pub granularity_blocks: u32,
    /// Unmapped blocks read as zeroes (LBPRZ).
    pub zeroes: bool,
}

impl UnmapLimits {
    /// Most descriptors that a unit may announce. The parameter list is copied out of guest memory: this bounds it to 4 KiB.
    pub const DESCRIPTORS_MAX: u32 = 255;
}

/// Bounds of single commands, all of which the Block Limits VPD page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most blocks of a read, a write or a verification; 0: no bound but the length of the chain.
    pub transfer_blocks_max: u32,
    /// Most blocks of a WRITE SAME; 0: not a command of this unit.
    pub write_same_blocks_max: u32,
    /// Most blocks of a COMPARE AND WRITE; 0: not a command of this unit.
    pub compare_and_write_blocks_max: u8,
    /// UNMAP; `None`: not a command of this unit, which is fully provisioned.
    pub unmap: Option<UnmapLimits>,
}

/// The parameters that MODE SELECT may change. Every other one is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// WCE: writes are durable when the cache is flushed, or else when they are answered (SBC-4, "Caching mode page").
    pub write_cache: bool,
    /// D_SENSE: sense data has descriptor format (SPC-5, "Control mode page").
    pub descriptor_sense: bool,
}

impl Default for Mode {
    /// A write cache, and sense data of fixed format.
    fn default() -> Mode {
        Mode { write_cache: true, descriptor_sense: false }
    }
}

/// What is said of the space of a thin unit, in sets of [`SET_BYTES`](Counting::SET_BYTES) (SBC-4, "Logical block provisioning thresholds").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counting {
    /// Drivers are told when fewer bytes than these are left; 0: they are not.
    pub threshold_bytes: u64,
}

impl Counting {
    /// Bytes of a set.
    pub const SET_BYTES: u64 = 1 << 20;
    /// The largest threshold: the sets that its field counts, in bytes.
    pub const THRESHOLD_BYTES_MAX: u64 = u32::MAX as u64 * Counting::SET_BYTES;

    /// The threshold, in sets; `None` where there is none.
    pub fn threshold_sets(self) -> Option<u32> {
        let sets = u32::try_from(self.threshold_bytes.div_ceil(Counting::SET_BYTES)).unwrap_or(u32::MAX);
        (sets > 0).then_some(sets)
    }
}

/// A logical unit as its export wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitSettings {
    /// Size, in bytes: a multiple of the block size.
    pub capacity_bytes: u64,
    /// Logical block size, in bytes: a power of two, 512 to 4096.
    pub block_bytes: u32,
    /// log2 of the logical blocks in a physical block, at most 15.
    pub physical_block_exp: u8,
    /// Best request size, in bytes: a multiple of the block size, 0 = not said.
    pub optimal_bytes: u32,
    /// Refuse everything that changes the medium.
    pub read_only: bool,
    /// How fast the medium turns.
    pub rotation: Rotation,
    /// Bounds of single commands.
    pub limits: Limits,
    /// The mode that it begins with, and that MODE SENSE shows as the default.
    pub mode: Mode,
    /// MODE SELECT may change WCE.
    pub write_cache_changeable: bool,
    /// What is said of its space; `None`: nothing, nobody counts it.
    pub counting: Option<Counting>,
}

impl Default for UnitSettings {
    /// An empty unit of 512-byte blocks with a write cache, WRITE SAME and COMPARE AND WRITE, fully provisioned.
    fn default() -> UnitSettings {
        UnitSettings {
            capacity_bytes: 0,
            block_bytes: 512,
            physical_block_exp: 0,
            optimal_bytes: 0,
            read_only: false,
            rotation: Rotation::Unknown,
            limits: Limits {
                transfer_blocks_max: 0,
                write_same_blocks_max: 1 << 21,
                compare_and_write_blocks_max: u8::MAX,
                unmap: None,
            },
            mode: Mode::default(),
            write_cache_changeable: true,
            counting: None,
        }
    }
}

/// Why there can be no such unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum UnitError {
    /// a logical block size of {0} bytes is not a power of two from 512 to 4096
    BlockSize(u32),
    /// a capacity of {0} bytes is not a multiple of the block size of {1} bytes
    Capacity(u64, u32),
    /// a physical block of 2^{0} logical blocks is beyond 2^15
    PhysicalBlock(u8),
    /// an optimal request size of {0} bytes is not a multiple of the block size of {1} bytes
    Optimal(u32, u32),
    /// a rotation of {0} per minute is not from 1025 to 65534
    Rotation(u16),
    /// UNMAP needs 1 or more blocks, 1 to 255 descriptors, and a granularity of 1 or more blocks
    Unmap,
}

/// A logical unit: settings that were checked, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    settings: UnitSettings,
    mode: Mode,
    stopped: bool,
}

impl Unit {
    /// Checks the settings.
    ///
    /// # Errors
    /// One that names the first setting out of its range.
    pub fn new(settings: UnitSettings) -> Result<Unit, UnitError> {
        let s = &settings;
        if !s.block_bytes.is_power_of_two() || !(512..=4096).contains(&s.block_bytes) {
            return Err(UnitError::BlockSize(s.block_bytes));
        }
        check_capacity(s.capacity_bytes, s.block_bytes)?;
        if s.physical_block_exp > 15 {
            return Err(UnitError::PhysicalBlock(s.physical_block_exp));
        }
        if !s.optimal_bytes.is_multiple_of(s.block_bytes) {
            return Err(UnitError::Optimal(s.optimal_bytes, s.block_bytes));
        }
        if let Rotation::PerMinute(rpm) = s.rotation
            && !(1025..=65534).contains(&rpm)
        {
            return Err(UnitError::Rotation(rpm));
        }
        if let Some(u) = s.limits.unmap
            && (u.blocks_max == 0
                || u.granularity_blocks == 0
                || !(1..=UnmapLimits::DESCRIPTORS_MAX).contains(&u.descriptors_max))
        {
            return Err(UnitError::Unmap);
        }
        Ok(Unit { settings, mode: settings.mode, stopped: false })
    }

    /// What was asked for; the capacity is that of this moment.
    pub fn settings(&self) -> &UnitSettings {
        &self.settings
    }

    /// Logical block size, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.settings.block_bytes
    }

    /// Number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.settings.capacity_bytes / u64::from(self.settings.block_bytes)
    }

    /// Bounds of single commands.
    pub fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// The mode of this moment.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Changes the mode: MODE SELECT, or the export.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Whether a START STOP UNIT has stopped it: commands on data are NOT READY until another one starts it.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Stops or starts it.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// A reset of the unit (SAM-5, "Logical unit reset"): it is started, and its mode is the default.
    pub fn reset(&mut self) {
        self.mode = self.settings.mode;
        self.stopped = false;
    }

    /// Changes the size. The caller establishes CAPACITY DATA HAS CHANGED.
    ///
    /// # Errors
    /// A capacity that is not a multiple of the block size.
    pub fn set_capacity_bytes(&mut self, capacity_bytes: u64) -> Result<(), UnitError> {
        check_capacity(capacity_bytes, self.settings.block_bytes)?;
        self.settings.capacity_bytes = capacity_bytes;
        Ok(())
    }
}

fn check_capacity(capacity_bytes: u64, block_bytes: u32) -> Result<(), UnitError> {
    if capacity_bytes.is_multiple_of(u64::from(block_bytes)) {
        Ok(())
    } else {
        Err(UnitError::Capacity(capacity_bytes, block_bytes))
    }
}
