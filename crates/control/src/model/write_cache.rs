//! The write cache of a disk.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Whether a disk has a volatile write cache (virtio 1.3, section 5.2.6: the `writeback` field).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum WriteCache {
    /// It has: writes are answered early, and a guest sends a flush to make them durable
    #[default]
    On,
    /// It has none: every write is durable when it is answered, and a guest needs no flushes
    Off,
    /// It has one that the guest may turn off and on (`VIRTIO_BLK_F_CONFIG_WCE`), as qemu-storage-daemon offers it, whose guests migrate
    /// here: behind a migration, and after a restart without an inflight region, nobody knows whether it has, and every write is made durable
    Guest,
}

impl fmt::Display for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Guest => "guest",
        })
    }
}

impl WriteCache {
    /// Whether there is one when a guest comes.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }

    /// Whether the guest is offered to change that.
    pub fn is_changeable(self) -> bool {
        self != Self::On
    }
}
