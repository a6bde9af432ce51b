//! What servers of disks speak.

use std::fmt;

use serde::Serialize;

/// What a server of a disk speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Protocol {
    /// virtio-blk over vhost-user, by libblkio
    VhostUser,
    /// virtio-blk over vhost-user, by the driver that scsi has too
    Blk,
    /// virtio-scsi over vhost-user, one disk of the device (--lun)
    Scsi,
    /// NBD on a unix socket, one connection a queue
    Nbd,
}

impl Protocol {
    /// The word for it, which is the option's value too.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether it is spoken over vhost-user.
    pub(crate) fn is_device(self) -> bool {
        self != Self::Nbd
    }

    /// Whether our own driver speaks it.
    pub(crate) fn is_driven_here(self) -> bool {
        matches!(self, Self::Blk | Self::Scsi)
    }

    /// What it calls one of several ways to the disk.
    pub(crate) fn queue_word(self) -> &'static str {
        match self {
            Self::VhostUser | Self::Blk | Self::Scsi => "queue",
            Self::Nbd => "connection",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn names_are_those_of_the_option() {
        for protocol in Protocol::value_variants() {
            assert_eq!(protocol.to_possible_value().unwrap().get_name(), protocol.name());
            assert_eq!(serde_json::to_value(protocol).unwrap(), protocol.name());
        }
    }
}
