//! Why the control API cannot be served.

use displaydoc::Display;
use std::io;
use std::path::PathBuf;

/// Why the control API cannot be served. The doc comments are the messages.
#[derive(Debug, Display, thiserror::Error)]
pub enum StartError {
    /// control {0}
    Bind(#[from] socket::BindError),
    /// cannot {action} control socket {path}: {source}
    Io {
        /// What was tried.
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// How the system answered.
        source: io::Error,
    },
    /// cannot start the control thread: {source}
    Thread {
        /// How the system answered.
        source: io::Error,
    },
}
