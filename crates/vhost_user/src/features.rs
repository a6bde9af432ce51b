//! What the link itself offers and negotiates.

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};

/// VIRTIO_RING_F_INDIRECT_DESC, virtio 1.3 section 6.
pub(crate) const RING_INDIRECT_DESC: u64 = 1 << 28;
/// VIRTIO_RING_F_EVENT_IDX, virtio 1.3 section 6.
pub(crate) const RING_EVENT_IDX: u64 = 1 << 29;
/// VIRTIO_F_VERSION_1, virtio 1.3 section 6.
const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_RING_RESET, virtio 1.3 section 6: over vhost-user it is GET_VRING_BASE and a fresh start of the ring.
const RING_RESET: u64 = 1 << 40;

/// VHOST_USER_F_PROTOCOL_FEATURES, which the frontend acknowledges beside the device's features.
pub(crate) const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// VHOST_F_LOG_ALL (vhost-user, "Migration"; linux/vhost.h): what the device writes is marked in the dirty log. Offered for
/// devices that can be migrated; it is the link's, and no target hears of it.
pub(crate) const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();

/// Features of the transport, offered for every device.
pub(crate) const TRANSPORT: u64 = RING_INDIRECT_DESC | RING_EVENT_IDX | VERSION_1 | RING_RESET | PROTOCOL_FEATURES;

/// What a device with regions of shared memory needs (vhost-user, "VHOST_USER_BACKEND_SHMEM_MAP").
pub(crate) const SHMEM: VhostUserProtocolFeatures =
    VhostUserProtocolFeatures::SHMEM.union(VhostUserProtocolFeatures::BACKEND_SEND_FD);

/// Protocol features offered: CONFIG only for devices that show one, INFLIGHT_SHMFD only for those whose requests can be
/// done twice, LOG_SHMFD only for those that can be migrated, DEVICE_STATE only for those of which something goes along then, SHMEM
/// and BACKEND_SEND_FD, which it needs, only for those with regions of shared memory.
pub(crate) const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::DEVICE_STATE)
    .union(SHMEM)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::RESET_DEVICE);

/// What the frontend of one session has acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acked {
    pub(crate) virtio: u64,
    pub(crate) protocol: u64,
}

impl Acked {
    /// Whether NEED_REPLY asks for an answer.
    pub(crate) fn reply_ack(self) -> bool {
        self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    /// Whether files may come along with requests of ours.
    pub(crate) fn backend_send_fd(self) -> bool {
        self.protocol & VhostUserProtocolFeatures::BACKEND_SEND_FD.bits() != 0
    }

    /// Whether requests in flight are written down for a later backend.
    pub(crate) fn inflight(self) -> bool {
        self.protocol & VhostUserProtocolFeatures::INFLIGHT_SHMFD.bits() != 0
    }

    /// Whether the frontend may show a dirty log.
    pub(crate) fn log(self) -> bool {
        self.protocol & VhostUserProtocolFeatures::LOG_SHMFD.bits() != 0
    }

    /// Whether the frontend may move the device's state.
    pub(crate) fn device_state(self) -> bool {
        self.protocol & VhostUserProtocolFeatures::DEVICE_STATE.bits() != 0
    }

    /// Whether the frontend may ask for the regions of shared memory.
    pub(crate) fn shmem(self) -> bool {
        self.protocol & VhostUserProtocolFeatures::SHMEM.bits() != 0
    }

    /// Whether what is written is to be marked in it.
    pub(crate) fn log_all(self) -> bool {
        self.virtio & LOG_ALL != 0
    }

    /// Whether rings start disabled until SET_VRING_ENABLE (vhost-user, "Ring states").
    pub(crate) fn starts_disabled(self) -> bool {
        self.virtio & PROTOCOL_FEATURES != 0
    }
}
