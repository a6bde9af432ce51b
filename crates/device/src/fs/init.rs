//! INIT: which version and which features a guest and this server use.

use super::dialect::Dialect;
use super::reply::{InitOut, init_out};
use super::request::Init;
use super::spec::{MAJOR, MINOR_MAX, MINOR_MIN, errno, flags};

/// Bytes of the page that `max_pages` counts. Guests with larger pages may read more at once; their writes stay within
/// `max_write`.
const PAGE_BYTES: u32 = 4096;
/// Least `max_write`, in bytes: what Linux takes smaller ones for.
const MAX_WRITE_MIN: u32 = 4096;

/// What a server wants. A guest gets of it what it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// [`flags`] to grant when the guest knows them.
    pub wants: u64,
    /// Longest WRITE, in bytes, 4096 or more; with [`flags::MAX_PAGES`], for guests with pages of 4 KiB, also the longest READ.
    pub max_write: u32,
    /// Most bytes to read ahead; the guest takes the smaller of this and its own.
    pub max_readahead: u32,
    /// Most requests in the background (read-ahead, asynchronous direct I/O, write-back); 0 leaves the choice to the guest.
    pub max_background: u16,
    /// Background requests from which on the guest holds back; 0 leaves the choice to the guest.
    pub congestion_threshold: u16,
    /// Granularity of times, in nanoseconds, 1 to 1,000,000,000.
    pub time_granularity_ns: u32,
    /// With [`flags::REQUEST_TIMEOUT`]: seconds after which the guest gives the connection up when a request has no answer.
    pub request_timeout_s: u16,
    /// With [`flags::MAP_ALIGNMENT`]: offsets of mappings are multiples of this power of two, in bytes.
    pub map_alignment: u16,
}

impl Default for Offer {
    /// Nothing but requests of 1 MiB, and the guest's own choice of everything else.
    fn default() -> Offer {
        Offer {
            wants: flags::MAX_PAGES | flags::INIT_EXT,
            max_write: 1 << 20,
            max_readahead: u32::MAX,
            max_background: 0,
            congestion_threshold: 0,
            time_granularity_ns: 1,
            request_timeout_s: 0,
            map_alignment: 0,
        }
    }
}

/// What came of an INIT that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Requests look like this from now on.
    Speak(Dialect),
    /// The guest speaks a newer major version. It was told ours, and sends another INIT.
    AskAgain,
}

/// the guest speaks FUSE {major}.{minor}, and 7.31 is the oldest that is served
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub struct TooOld {
    /// The guest's major version.
    pub major: u32,
    /// The guest's minor version.
    pub minor: u32,
}

impl TooOld {
    /// The errno to answer with, positive.
    pub const fn errno(&self) -> i32 {
        errno::EPROTO
    }
}

/// What a guest and another server agreed on is none that this one speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum NotSpoken {
    /// the guest speaks FUSE 7.{0} where it comes from, and 7.31 to 7.45 are served here
    Minor(u32),
    /// the guest uses FUSE features {0:#x} (FUSE_* of linux/fuse.h) that are not offered here; give the directory the options that it has there
    Flags(u64),
}

/// Whether an INIT could have ended with this.
///
/// # Errors
/// What could not.
pub fn may_speak(dialect: Dialect, offer: &Offer) -> Result<(), NotSpoken> {
    if !(MINOR_MIN..=MINOR_MAX).contains(&dialect.minor) {
        return Err(NotSpoken::Minor(dialect.minor));
    }
    let offered = (offer.wants | flags::INIT_EXT) & flags::ALL & !flags::NEVER;
    let unknown = dialect.flags & !offered;
    if unknown == 0 { Ok(()) } else { Err(NotSpoken::Flags(unknown)) }
}

/// Settles version and flags, and appends the `fuse_init_out` that says so.
///
/// # Errors
/// A guest older than 7.31, with which virtio-fs began. Nothing is appended then.
pub fn negotiate(init: &Init, offer: &Offer, out: &mut Vec<u8>) -> Result<Agreement, TooOld> {
    if init.major > MAJOR {
        init_out(out, &InitOut { major: MAJOR, minor: MINOR_MAX, ..InitOut::default() });
        return Ok(Agreement::AskAgain);
    }
    if init.major < MAJOR || init.minor < MINOR_MIN {
        return Err(TooOld { major: init.major, minor: init.minor });
    }
    let dialect = Dialect { minor: init.minor.min(MINOR_MAX), flags: granted(init.flags, offer.wants) };
    let max_write = offer.max_write.max(MAX_WRITE_MIN);
    let when = |flag: u64, value: u16| if dialect.has(flag) { value } else { 0 };
    let reply = InitOut {
        major: MAJOR,
        minor: dialect.minor,
        max_readahead: init.max_readahead.min(offer.max_readahead),
        flags: dialect.flags,
        max_background: offer.max_background,
        congestion_threshold: offer.congestion_threshold,
        max_write,
        time_gran: offer.time_granularity_ns,
        max_pages: when(flags::MAX_PAGES, u16::try_from(max_write.div_ceil(PAGE_BYTES)).unwrap_or(u16::MAX)),
        map_alignment: when(flags::MAP_ALIGNMENT, offer.map_alignment),
        request_timeout: when(flags::REQUEST_TIMEOUT, offer.request_timeout_s),
    };
    init_out(out, &reply);
    Ok(Agreement::Speak(dialect))
}

/// What both sides know and the server wants, less what makes no sense.
fn granted(known: u64, wants: u64) -> u64 {
    // Without the long form of the structures, the guest does not see the upper half.
    let visible = if known & flags::INIT_EXT != 0 { u64::MAX } else { u64::from(u32::MAX) };
    // The long form says nothing by itself: a server that wants anything of the upper half has to use it.
    let wants = if wants >> 32 != 0 { wants | flags::INIT_EXT } else { wants };
    let mut granted = known & wants & visible & flags::ALL & !flags::NEVER;
    if granted & flags::DO_READDIRPLUS == 0 {
        granted &= !flags::READDIRPLUS_AUTO;
    }
    // Both together have no meaning: what is dropped on request alone is not dropped by itself.
    if granted & flags::EXPLICIT_INVAL_DATA != 0 {
        granted &= !flags::AUTO_INVAL_DATA;
    }
    granted
}
