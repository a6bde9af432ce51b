//! What workers share to hand out buffers. In this crate's tests every access is a point at which another thread may go on
//! (`interleave`), so that interleavings which a machine rarely shows are tried.

#[cfg(not(test))]
pub(super) use std::sync::atomic::AtomicU64;
#[cfg(not(test))]
pub(super) use std::sync::{Mutex, MutexGuard};
#[cfg(not(test))]
pub(super) use storage::kit::Line;

#[cfg(test)]
pub(super) use interleave::atomic::AtomicU64;
#[cfg(test)]
pub(super) use interleave::{Mutex, MutexGuard};
#[cfg(test)]
pub(super) use watched::Line;

#[cfg(test)]
mod watched {
    use std::ops::Deref;

    /// The line comes from another crate, built with plain atomics (its own tests run it with watched ones): one such point before each
    /// call, none inside.
    pub(crate) struct Line<W>(storage::kit::Line<W>);

    impl<W> Line<W> {
        pub(crate) const fn new() -> Line<W> {
            Line(storage::kit::Line::new())
        }
    }

    impl<W> Deref for Line<W> {
        type Target = storage::kit::Line<W>;

        fn deref(&self) -> &Self::Target {
            interleave::turn();
            &self.0
        }
    }
}
