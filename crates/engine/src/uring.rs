//! Setting io_urings up, which the kernel counts against a limit of the user's.

use io_uring::IoUring;
use std::io;
use std::time::{Duration, Instant};

/// How long a set-up that lacks memory is tried again. Without CAP_IPC_LOCK the memory of an io_uring counts towards
/// RLIMIT_MEMLOCK, for all processes of a user together, and the kernel gives the charge back up to half a second after
/// the close: a program that takes over from another one meets that one's charge.
const PATIENCE: Duration = Duration::from_secs(2);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Sets an io_uring up by `build`, and waits for memory that is about to be given back.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn patiently(build: impl Fn() -> io::Result<IoUring>) -> io::Result<IoUring> {
    let began = Instant::now();
    loop {
        match build() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && began.elapsed() < PATIENCE => {
                std::thread::sleep(TRY_AGAIN_AFTER);
            }
            other => return other,
        }
    }
}
