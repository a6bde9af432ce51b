//! Mappings whose pages may vanish, and accesses to them that do not end the process.
//!
//! Whoever maps a file that others may truncate, or memory that another process owns, meets SIGBUS (there is no page behind
//! the mapping any more, or the disk failed to deliver it) or SIGSEGV (there is no mapping). A [`Guard`] copies by two small
//! routines in assembler; a signal handler that finds one of them interrupted lets it return an error. Where accesses are
//! too many and too short for that, such as those to a guest's memory, a [`Watch`] has the handler put zeroed memory in the place
//! of the mapping. Everything else it hands on to whoever handled these signals before. Nothing else enters this room.

mod handler;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "aarch64"))]
#[path = "aarch64.rs"]
mod machine;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
#[path = "x86_64.rs"]
mod machine;
#[cfg(not(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "elsewhere.rs"]
mod machine;
mod watch;

pub use watch::{Watch, lost};

use std::fmt;

/// A page of the source or of the destination is not there. Of the destination, any part may have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a page of the memory is gone")
    }
}

impl std::error::Error for Gone {}

/// Says that the signal handler is there: copies are made with this in hand only.
#[derive(Clone, Copy, Debug)]
pub struct Guard(());

/// Whether there are guarded copies on this machine: on Linux with the GNU C library on x86-64 and 64-bit ARM.
#[must_use]
pub const fn supported() -> bool {
    machine::SUPPORTED
}

impl Guard {
    /// Installs the handlers of SIGBUS and SIGSEGV, the first time it is called; `None` where that cannot be done.
    ///
    /// The handlers stay for ever, and for the whole process. Who replaces them later hands on to them what is not his, or
    /// guarded copies end the process like any others. A thread that blocks the two signals is ended by the kernel when it
    /// meets one.
    #[must_use]
    pub fn install() -> Option<Guard> {
        (supported() && handler::install()).then_some(Guard(()))
    }

    /// Copies `len` bytes. Other threads and processes may change source and destination meanwhile.
    ///
    /// # Errors
    /// [`Gone`] when a page is missing, or may not be accessed, on either side.
    ///
    /// # Safety
    /// Wherever there is memory within the `len` bytes at `src`, it may be read, and wherever there is memory within those
    /// at `dst`, it may be overwritten: no Rust reference relies on it, and it stays what it is, so that nothing else comes
    /// to lie there during the call. The two do not overlap.
    #[inline]
    pub unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Gone> {
        // SAFETY: the caller has promised what the routine needs; the handler is there, or `self` would not be.
        if unsafe { machine::copy(dst, src, len) } == 0 { Ok(()) } else { Err(Gone) }
    }

    /// Reads one byte, which is at least as new as what [`Guard::copy`] has copied before on this thread, and at most as new
    /// as what it copies afterwards.
    ///
    /// # Errors
    /// [`Gone`] when the page is missing or may not be read.
    ///
    /// # Safety
    /// As for the source of [`Guard::copy`].
    #[inline]
    pub unsafe fn byte(self, at: *const u8) -> Result<u8, Gone> {
        // SAFETY: as for `copy`.
        u8::try_from(unsafe { machine::byte(at) }).map_err(|_| Gone)
    }
}
