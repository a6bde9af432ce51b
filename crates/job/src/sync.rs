//! The atomics and the lock that guests and the job share. In this crate's tests every access is a point at which another thread may go on
//! (`interleave`), so that interleavings which a machine rarely shows are tried.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use interleave::atomic::{AtomicBool, AtomicU64};
#[cfg(test)]
pub(crate) use interleave::{Mutex, MutexGuard};
