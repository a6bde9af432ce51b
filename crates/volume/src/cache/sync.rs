//! The atomics that the cache is made of. In this crate's tests every access is a point at which another thread may go on
//! (`tests::turns`), so that interleavings which a machine rarely shows are tried, and tried again from their seed.

#[cfg(not(test))]
pub(super) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

#[cfg(test)]
pub(super) use watched::{AtomicU8, AtomicU32, AtomicU64};

/// Keeps what many threads change off the cache lines of its neighbours.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

#[cfg(test)]
mod watched {
    use std::sync::atomic::Ordering;

    use super::super::tests::turns::turn;

    macro_rules! watched {
        ($name:ident, $value:ty) => {
            #[derive(Default)]
            #[repr(transparent)]
            pub(in super::super) struct $name(std::sync::atomic::$name);

            #[allow(dead_code)]
            impl $name {
                pub(in super::super) fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$name::new(value))
                }

                pub(in super::super) fn load(&self, order: Ordering) -> $value {
                    turn();
                    self.0.load(order)
                }

                pub(in super::super) fn store(&self, value: $value, order: Ordering) {
                    turn();
                    self.0.store(value, order);
                }

                pub(in super::super) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    turn();
                    self.0.compare_exchange(current, new, success, failure)
                }

                pub(in super::super) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    turn();
                    self.0.fetch_add(value, order)
                }

                pub(in super::super) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    turn();
                    self.0.fetch_sub(value, order)
                }

                pub(in super::super) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    turn();
                    self.0.fetch_or(value, order)
                }

                pub(in super::super) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    turn();
                    self.0.fetch_and(value, order)
                }
            }
        };
    }

    watched!(AtomicU8, u8);
    watched!(AtomicU32, u32);
    watched!(AtomicU64, u64);
}
