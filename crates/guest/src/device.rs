//! What a guest is given.

use std::path::{Path, PathBuf};

/// A device of a guest.
///
/// Disks are `/dev/vda`, `/dev/vdb`, … in the order given; directories are mounted by a script,
/// `mount -t virtiofs TAG` or `mount -t 9p -o trans=virtio TAG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A vhost-user disk.
    Disk {
        /// Where its server listens.
        socket: PathBuf,
        /// Queues, at least 1. User Mode Linux has as many as the server offers and the guest has
        /// processors.
        queues: u16,
    },
    /// A vhost-user disk whose server may die: the guest waits and connects again. QEMU only.
    ReconnectingDisk {
        /// Where its server listens.
        socket: PathBuf,
        /// Queues, at least 1.
        queues: u16,
        /// How long to wait between two attempts, in milliseconds, at least 1.
        again_after_ms: u32,
    },
    /// A vhost-user SCSI device: its disks are `/dev/sda`, `/dev/sdb`, … by LUN.
    Scsi {
        /// Where its server listens.
        socket: PathBuf,
        /// Request queues, at least 1; User Mode Linux as above.
        queues: u16,
    },
    /// A vhost-user directory.
    Directory {
        /// Where its server listens.
        socket: PathBuf,
        /// The name by which the guest mounts it. For User Mode Linux it is the server's to tell.
        tag: String,
        /// Request queues, at least 1; User Mode Linux as above.
        queues: u16,
    },
    /// A vhost-user directory with a DAX window, if its server has one. It has one request queue. For QEMU it needs a version that
    /// gives a guest any vhost-user device, as below.
    DirectoryDax {
        /// Where its server listens.
        socket: PathBuf,
        /// The name by which the guest mounts it, as its server tells it.
        tag: String,
    },
    /// A vhost-user directory that is spoken to in 9p. It has one queue: Linux uses no more. For QEMU it needs a
    /// version that gives a guest any vhost-user device, see [`Lab::any_device_qemu`](crate::lab::Lab::any_device_qemu).
    Directory9p {
        /// Where its server listens.
        socket: PathBuf,
        /// The name by which the guest mounts it, as its server tells it.
        tag: String,
    },
    /// A disk that QEMU serves itself, in a thread of its own (virtio-blk with an iothread).
    QemuDisk {
        /// A raw image or a block device.
        image: PathBuf,
        /// Queues, at least 1.
        queues: u16,
        /// Whether the host's page cache is bypassed.
        direct: bool,
    },
    /// A directory that QEMU serves itself by 9p.
    Qemu9p {
        /// The directory.
        directory: PathBuf,
        /// The name by which the guest mounts it.
        tag: String,
        /// How owners and modes are kept, as QEMU spells it: `none`, `passthrough`, `mapped-xattr`, `mapped-file`.
        security_model: String,
    },
}

impl Device {
    /// The same with another number of queues; 9p has one.
    pub fn with_queues(mut self, number: u16) -> Self {
        match &mut self {
            Self::Disk { queues, .. }
            | Self::ReconnectingDisk { queues, .. }
            | Self::Scsi { queues, .. }
            | Self::Directory { queues, .. }
            | Self::QemuDisk { queues, .. } => {
                *queues = number;
            }
            Self::DirectoryDax { .. } | Self::Directory9p { .. } | Self::Qemu9p { .. } => {}
        }
        self
    }

    /// Whether QEMU has to be one that gives a guest any vhost-user device.
    pub fn needs_any_device_qemu(&self) -> bool {
        matches!(self, Self::DirectoryDax { .. } | Self::Directory9p { .. })
    }

    /// The socket of a vhost-user device.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Disk { socket, .. }
            | Self::ReconnectingDisk { socket, .. }
            | Self::Scsi { socket, .. }
            | Self::Directory { socket, .. }
            | Self::DirectoryDax { socket, .. }
            | Self::Directory9p { socket, .. } => Some(socket),
            Self::QemuDisk { .. } | Self::Qemu9p { .. } => None,
        }
    }
}
