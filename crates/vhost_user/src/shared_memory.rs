//! What is put into a device's region of shared memory, and taken out (vhost-user, "VHOST_USER_BACKEND_SHMEM_MAP").

use std::os::fd::OwnedFd;
use std::time::Duration;

use vhost::vhost_user::message::{BackendReq, VhostUserMMapFlags};

use crate::{BackendChannel, NoAnswer};

/// The region's id. For virtio-fs it is the DAX window (virtio 1.3, section 5.11.6.4).
const REGION: u8 = 0;
/// Bytes of `VhostUserMMap`.
const MESSAGE_BYTES: usize = 40;

/// A part of the region and of a file, of the same length. All are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMap {
    /// Where in the region.
    pub offset: u64,
    /// Length, not 0.
    pub len: u64,
    /// Where in the file; 0 for what is taken out.
    pub file_offset: u64,
    /// Whether the guest may write to it.
    pub writable: bool,
}

impl SharedMap {
    /// `VhostUserMMap`: the region's id in its first byte, and seven bytes of padding; file offset, offset, length and flags.
    fn message(self) -> [u8; MESSAGE_BYTES] {
        let flags = if self.writable { VhostUserMMapFlags::WRITABLE.bits() } else { 0 };
        let mut message = [0; MESSAGE_BYTES];
        message[0] = REGION;
        let (fields, _) = message[8..].as_chunks_mut();
        for (field, value) in fields.iter_mut().zip([self.file_offset, self.offset, self.len, flags]) {
            *field = value.to_ne_bytes();
        }
        message
    }
}

impl BackendChannel {
    /// Has the frontend map a part of `file`. `told` and `patience` are as for [`BackendChannel::ask`]; a number other than 0 is a refusal.
    pub fn map(
        &self,
        map: SharedMap,
        file: OwnedFd,
        patience: Duration,
        told: impl FnOnce(Result<u64, NoAnswer>) + Send + 'static,
    ) {
        self.ask(BackendReq::SHMEM_MAP, &map.message(), Some(file), patience, told);
    }

    /// Tells when the frontend has ended all that it was asked before, and not only answered it. QEMU 11.1 answers a SHMEM_MAP before the
    /// guest can see what was mapped (`vhost_user_backend_handle_shmem_map` of hw/virtio/vhost-user.c answers, and commits its memory
    /// transaction then): a guest that hears of it too early reads zeroes. This is a CONFIG_CHANGE_MSG, the only request that any
    /// frontend takes and answers, and of which the guest has no more than a configuration interrupt, which its driver of directories ignores;
    /// what the answer is means nothing.
    pub fn settle(&self, patience: Duration, told: impl FnOnce(Result<u64, NoAnswer>) + Send + 'static) {
        self.ask(BackendReq::CONFIG_CHANGE_MSG, &[], None, patience, told);
    }

    /// Has the frontend take out what it mapped there with this length.
    pub fn unmap(&self, map: SharedMap, patience: Duration, told: impl FnOnce(Result<u64, NoAnswer>) + Send + 'static) {
        self.ask(BackendReq::SHMEM_UNMAP, &map.message(), None, patience, told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the structure lies in the memory of a frontend.
    #[test]
    fn fields_are_where_the_protocol_has_them() {
        let map = SharedMap { offset: 2 << 20, len: 3 << 20, file_offset: 5 << 20, writable: true };
        let fields = [0, 5 << 20, 2 << 20, 3 << 20, 1].map(u64::to_ne_bytes);
        assert_eq!(map.message().as_slice(), fields.as_flattened());
    }
}
