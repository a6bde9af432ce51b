//! The atomics and the lock of a [`Line`](crate::kit::Line). In this crate's tests every access is a point at which another thread may go
//! on (`interleave`), so that interleavings which a machine rarely shows are tried.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::AtomicU64;
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use interleave::atomic::AtomicU64;
#[cfg(test)]
pub(crate) use interleave::{Mutex, MutexGuard};
