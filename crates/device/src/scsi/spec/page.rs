//! Numbers of vital product data, mode and log pages.

/// Vital product data (SPC-5 and SBC-4, "Vital product data parameters").
pub mod vpd {
    /// Supported VPD pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Unit serial number.
    pub const SERIAL: u8 = 0x80;
    /// Device identification.
    pub const IDENTIFICATION: u8 = 0x83;
    /// Block limits.
    pub const BLOCK_LIMITS: u8 = 0xb0;
    /// Block device characteristics.
    pub const CHARACTERISTICS: u8 = 0xb1;
    /// Logical block provisioning.
    pub const PROVISIONING: u8 = 0xb2;
}

/// Mode pages (SPC-5 and SBC-4, "Mode parameters").
pub mod mode {
    /// Read-write error recovery.
    pub const ERROR_RECOVERY: u8 = 0x01;
    /// Caching.
    pub const CACHING: u8 = 0x08;
    /// Control.
    pub const CONTROL: u8 = 0x0a;
    /// Informational exceptions control.
    pub const EXCEPTIONS: u8 = 0x1c;
    /// Subpage of that: logical block provisioning.
    pub const PROVISIONING: u8 = 0x02;
    /// Every page.
    pub const ALL: u8 = 0x3f;
    /// Every subpage.
    pub const ALL_SUBPAGES: u8 = 0xff;
}

/// Log pages (SPC-5 and SBC-4, "Log parameters").
pub mod log {
    /// Supported log pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Logical block provisioning.
    pub const PROVISIONING: u8 = 0x0c;
    /// Every subpage.
    pub const ALL_SUBPAGES: u8 = 0xff;
}
