//! Why sessions end.

use displaydoc::Display;
use thiserror::Error;

/// Why a session ended.
#[derive(Debug, Display, Error)]
pub enum SessionEnd {
    /// the frontend disconnected
    Disconnected,
    /// the frontend broke the vhost-user protocol: {0}
    Misspoke(Misspoken),
    /// the connection failed: {0}
    Connection(std::io::Error),
    /// the export stopped
    Stopped,
    /// what it serves is unavailable: {0}
    Unavailable(String),
    /// the session could not go on after an upgrade: {0}
    Resume(String),
}

/// A message after which the session cannot go on.
#[derive(Debug, Display, Error)]
pub enum Misspoken {
    /// message header with version {0}, expected 1
    Version(u32),
    /// message header with unknown flags {0:#x}
    Flags(u32),
    /// message of {size} bytes, at most {max} are allowed
    Oversized {
        /// Size that the header claims, in bytes.
        size: u32,
        /// Largest size accepted, in bytes.
        max: u32,
    },
    /// {request} was refused ({reason}) and the protocol has no answer that says so
    Unanswerable {
        /// Name of the message.
        request: String,
        /// Why it was refused.
        reason: String,
    },
}
