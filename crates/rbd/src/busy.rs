//! Whether threads of ours are in Ceph's library, some of them for as long as a cluster is away. A program that ends like any other has the destructors of
//! that library run meanwhile, and it ends the program by a signal then.

use crate::ffi;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

static BUSY: AtomicUsize = AtomicUsize::new(0);

/// A thread is in the library until this is dropped.
pub(crate) struct Busy(());

impl Busy {
    pub(crate) fn new() -> Busy {
        BUSY.fetch_add(1, Ordering::AcqRel);
        Busy(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Ends the process with this status where a thread is in Ceph's library that cannot be told to leave it: without the destructors of that. For whoever
/// has nothing left to do.
pub fn end_process_if_busy(code: ExitCode) {
    if BUSY.load(Ordering::Acquire) > 0 {
        let status = (0..=u8::MAX).find(|status| ExitCode::from(*status) == code).unwrap_or(1);
        let _ = std::io::stdout().flush();
        ffi::end_process(status);
    }
}
