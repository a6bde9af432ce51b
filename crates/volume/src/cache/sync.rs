//! The atomics that the cache is made of. In this crate's tests every access is a point at which another thread may go on
//! (`interleave`), so that interleavings which a machine rarely shows are tried.

#[cfg(not(test))]
pub(super) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
#[cfg(not(test))]
pub(super) use std::thread::yield_now;

#[cfg(test)]
pub(super) use interleave::atomic::{AtomicU8, AtomicU32, AtomicU64};
#[cfg(test)]
pub(super) use interleave::yield_now;

/// Keeps what many threads change off the cache lines of its neighbours.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);
