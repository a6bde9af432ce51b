//! What a guest is given.

use std::path::PathBuf;

/// A vhost-user device, by the socket of its server.
#[derive(Clone, Debug)]
pub enum Device {
    /// A disk.
    Disk {
        /// Where its server listens.
        socket: PathBuf,
    },
    /// A directory of the host.
    Directory {
        /// Where its server listens.
        socket: PathBuf,
        /// The name by which the guest mounts it.
        tag: String,
    },
}
