//! What threads share that move rings and mail: the standard library's, and in this crate's unit tests the same with a point at
//! each access at which another thread may go on (`interleave`, `models`).

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use interleave::atomic::{AtomicBool, AtomicU32, AtomicU64};
#[cfg(test)]
pub(crate) use interleave::{Mutex, MutexGuard};
