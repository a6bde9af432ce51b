//! Atomics of the standard library, with a turn before each access. Zero is a value of theirs, as it is of those.

use std::sync::atomic::Ordering;

use crate::turn;

macro_rules! watched {
    (counts, $value:ty) => {
        /// As the standard library's.
        pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
            turn();
            self.0.fetch_add(value, order)
        }

        /// As the standard library's.
        pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
            turn();
            self.0.fetch_sub(value, order)
        }
    };
    ($name:ident, $value:ty $(, $integer:ident)?) => {
        /// The standard library's, with a turn before each access.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$name);

        impl $name {
            /// A new one.
            pub const fn new(value: $value) -> $name {
                $name(std::sync::atomic::$name::new(value))
            }

            /// As the standard library's.
            pub fn load(&self, order: Ordering) -> $value {
                turn();
                self.0.load(order)
            }

            /// As the standard library's.
            pub fn store(&self, value: $value, order: Ordering) {
                turn();
                self.0.store(value, order);
            }

            /// As the standard library's.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                turn();
                self.0.swap(value, order)
            }

            /// As the standard library's.
            ///
            /// # Errors
            /// As the standard library's.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                turn();
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As the standard library's.
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                turn();
                self.0.fetch_or(value, order)
            }

            /// As the standard library's.
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                turn();
                self.0.fetch_and(value, order)
            }

            $(watched!($integer, $value);)?
        }
    };
}

watched!(AtomicBool, bool);
watched!(AtomicU8, u8, counts);
watched!(AtomicU32, u32, counts);
watched!(AtomicU64, u64, counts);
