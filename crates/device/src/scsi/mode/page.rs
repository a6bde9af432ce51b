//! The mode pages of a disk.

use crate::scsi::spec::page::mode;
use crate::scsi::unit::{Counting, Mode, Unit};

/// Bytes of the longest page, with its header.
const PAGE_BYTES_MAX: usize = 24;

/// A page: its code, the bytes behind its header in each state, and what of them can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) code: u8,
    /// 0: it is no subpage.
    pub(super) subpage: u8,
    /// Bytes, with the header.
    pub(super) bytes: usize,
}

const PROVISIONING: Page = Page { code: mode::EXCEPTIONS, subpage: mode::PROVISIONING, bytes: 24 };

/// Every page, in the order in which they are sent: by code and subpage.
const PAGES: [Page; 5] = [
    Page { code: mode::ERROR_RECOVERY, subpage: 0, bytes: 12 },
    Page { code: mode::CACHING, subpage: 0, bytes: 20 },
    Page { code: mode::CONTROL, subpage: 0, bytes: 12 },
    Page { code: mode::EXCEPTIONS, subpage: 0, bytes: 12 },
    PROVISIONING,
];

/// Those of a unit.
pub(super) fn pages_of(unit: &Unit) -> impl Iterator<Item = Page> + use<> {
    let is_counted = unit.settings().counting.is_some();
    PAGES.into_iter().filter(move |page| is_counted || *page != PROVISIONING)
}

/// SBC-4, "Read-Write Error Recovery mode page": LBPERE of byte 7 (thresholds of provisioning are told).
const RECOVERY_7_LBPERE: u8 = 0x80;
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
/// SPC-5, "Mode page and subpage formats": SPF of byte 0.
pub(super) const SUBPAGE_FORMAT: u8 = 0x40;
/// SBC-4, "Logical Block Provisioning mode page": a descriptor at byte 16, with ENABLED of a threshold that is soft, in sets, and reached from
/// above; THRESHOLD RESOURCE, as the log page's parameter code, and THRESHOLD COUNT. SITUA of byte 4 is 0: all hear of it.
const PROVISIONING_16_ENABLED: u8 = 0x80;
const PROVISIONING_17_AVAILABLE: u8 = 0x01;
const PROVISIONING_COUNT_AT: usize = 20;

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
    pub(super) fn values(self, mode: Mode, unit: &Unit) -> PageBytes {
        let mut page = self.header();
        let flag = |when: bool, bit: u8| if when { bit } else { 0 };
        match self.code {
            _ if self == PROVISIONING => {
                let sets = unit.settings().counting.and_then(Counting::threshold_sets);
                page.bytes[16] = flag(sets.is_some(), PROVISIONING_16_ENABLED);
                page.bytes[17] = PROVISIONING_17_AVAILABLE;
                page.bytes[PROVISIONING_COUNT_AT..].copy_from_slice(&sets.unwrap_or(0).to_be_bytes());
            }
            mode::CACHING => page.bytes[2] = flag(mode.write_cache, CACHING_2_WCE),
            mode::CONTROL => {
                page.bytes[2] = CONTROL_2_TST_OWN | CONTROL_2_GLTSD | flag(mode.descriptor_sense, CONTROL_2_D_SENSE);
                page.bytes[3] = CONTROL_3_UNRESTRICTED;
                page.bytes[5] = CONTROL_5_TAS;
            }
            mode::EXCEPTIONS => page.bytes[2] = EXCEPTIONS_2_DEXCPT,
            // Errors are recovered below us, and nothing of it can be told.
            mode::ERROR_RECOVERY => {
                let warns = unit.settings().counting.and_then(Counting::threshold_sets).is_some();
                page.bytes[7] = flag(warns, RECOVERY_7_LBPERE);
            }
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
        // A page has at most 24 bytes.
        match self.subpage {
            0 => [bytes[0], bytes[1]] = [self.code, (self.bytes - 2) as u8],
            subpage => {
                [bytes[0], bytes[1], bytes[3]] = [self.code | SUBPAGE_FORMAT, subpage, (self.bytes - 4) as u8];
            }
        }
        PageBytes { bytes, len: self.bytes }
    }
}
