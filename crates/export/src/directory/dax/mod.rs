//! The DAX window: files of the directory in a guest's own memory.
//!
//! | file | concern |
//! |---|---|
//! | `table` | what is in the window, or is going to be: pure |
//! | `window` | the frontend is told, and requests wait for what it says |
//! | `files` | which files a guest is to map |

mod files;
mod table;
#[cfg(test)]
mod table_tests;
mod window;

pub use table::WINDOW_BYTES_MAX;
pub(crate) use window::Window;

use device::fs::Dialect;
use values::DaxWhen;

/// A window, and which files go there without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaxOptions {
    /// Length of the window in bytes: a multiple of 2 MiB, at most [`WINDOW_BYTES_MAX`].
    pub window_bytes: u64,
    /// Which files a guest is told to map that leaves it to the server.
    pub when: DaxWhen,
}

/// Whether a guest maps files at all.
pub(crate) fn is_spoken(dialect: Option<Dialect>) -> bool {
    dialect.is_some_and(|dialect| dialect.has(device::fs::flags::MAP_ALIGNMENT))
}
