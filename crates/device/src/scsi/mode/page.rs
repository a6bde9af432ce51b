//! The mode pages of a disk.

use crate::scsi::spec::page::mode;
use crate::scsi::unit::{Mode, Unit};

/// Bytes of the longest page, with its header.
const PAGE_BYTES_MAX: usize = 20;

/// A page: its code, the bytes behind its header in each state, and what of them can be changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) code: u8,
    /// Bytes, with the header.
    pub(super) bytes: usize,
}

/// Every page, in the order in which they are sent: by code.
pub(super) const PAGES: [Page; 4] = [
    Page { code: mode::ERROR_RECOVERY, bytes: 12 },
    Page { code: mode::CACHING, bytes: 20 },
    Page { code: mode::CONTROL, bytes: 12 },
    Page { code: mode::EXCEPTIONS, bytes: 12 },
];

/// SBC-4, "Caching mode page": WCE of byte 2.
const CACHING_2_WCE: u8 = 0x04;
/// SPC-5, "Control mode page": TST (each nexus has a task set of its own), D_SENSE and GLTSD (log parameters are not saved) of byte 2, QUEUE ALGORITHM MODIFIER of byte 3
/// (commands go in any order), TAS of byte 5 (commands that another initiator ends say so).
const CONTROL_2_TST_OWN: u8 = 0x20;
const CONTROL_2_D_SENSE: u8 = 0x04;
const CONTROL_2_GLTSD: u8 = 0x02;
const CONTROL_3_UNRESTRICTED: u8 = 0x10;
const CONTROL_5_TAS: u8 = 0x40;
/// SPC-5, "Informational Exceptions Control mode page": DEXCPT of byte 2 (there are none).
const EXCEPTIONS_2_DEXCPT: u8 = 0x08;

/// A page as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageBytes {
    bytes: [u8; PAGE_BYTES_MAX],
    len: usize,
}

impl std::ops::Deref for PageBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Page {
    /// The values that it has in a mode.
    pub(super) fn values(self, mode: Mode) -> PageBytes {
        let mut page = self.header();
        let flag = |when: bool, bit: u8| if when { bit } else { 0 };
        match self.code {
            mode::CACHING => page.bytes[2] = flag(mode.write_cache, CACHING_2_WCE),
            mode::CONTROL => {
                page.bytes[2] = CONTROL_2_TST_OWN | CONTROL_2_GLTSD | flag(mode.descriptor_sense, CONTROL_2_D_SENSE);
                page.bytes[3] = CONTROL_3_UNRESTRICTED;
                page.bytes[5] = CONTROL_5_TAS;
            }
            mode::EXCEPTIONS => page.bytes[2] = EXCEPTIONS_2_DEXCPT,
            // Read-Write Error Recovery: errors are recovered below us, and nothing of it can be told.
            _ => {}
        }
        page
    }

    /// What of it MODE SELECT can change, as a mask; its header is the page's.
    pub(super) fn changeable(self, unit: &Unit) -> PageBytes {
        let mut page = self.header();
        match self.code {
            mode::CACHING if unit.settings().write_cache_changeable => page.bytes[2] = CACHING_2_WCE,
            mode::CONTROL => page.bytes[2] = CONTROL_2_D_SENSE,
            _ => {}
        }
        page
    }

    /// The mode with this page's changeable values taken from `values`, which has the page's length.
    pub(super) fn apply(self, values: &[u8], mode: Mode) -> Mode {
        let byte = |at: usize| values.get(at).copied().unwrap_or_default();
        match self.code {
            mode::CACHING => Mode { write_cache: byte(2) & CACHING_2_WCE != 0, ..mode },
            mode::CONTROL => Mode { descriptor_sense: byte(2) & CONTROL_2_D_SENSE != 0, ..mode },
            _ => mode,
        }
    }

    fn header(self) -> PageBytes {
        let mut bytes = [0; PAGE_BYTES_MAX];
        bytes[0] = self.code;
        // A page has at most 20 bytes.
        bytes[1] = (self.bytes - 2) as u8;
        PageBytes { bytes, len: self.bytes }
    }
}
