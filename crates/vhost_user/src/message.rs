//! Bodies of messages, decoded into the `vhost` crate's types and checked for form.

use std::mem::size_of;
use std::os::fd::OwnedFd;

use vhost::vhost_user::message::{
    FrontendReq, VhostUserConfig, VhostUserInflight, VhostUserMemory, VhostUserMemoryRegion, VhostUserMsgValidator,
    VhostUserU64,
};

use crate::refusal::Refusal;
use crate::wire::Message;

/// The low byte of SET_VRING_KICK, CALL and ERR is the ring's index (vhost-user, "Vring descriptor index").
const RING_INDEX_MASK: u64 = 0xff;
/// No descriptor comes with SET_VRING_KICK, CALL or ERR (vhost-user, same place).
const RING_NO_FD: u64 = 0x100;

/// Two u64 and two u16 (vhost-user, "Inflight description").
const INFLIGHT_BYTES: usize = 20;

impl Message {
    /// The whole body as one value.
    pub(crate) fn decode<T: VhostUserMsgValidator + Default>(&self) -> Result<T, Refusal> {
        decode(&self.body)
    }

    /// For messages without a body.
    pub(crate) fn no_body(&self) -> Result<(), Refusal> {
        self.body_bytes(0)
    }

    fn body_bytes(&self, expected: usize) -> Result<(), Refusal> {
        let got = self.body.len();
        if got == expected { Ok(()) } else { Err(Refusal::BodySize { got, expected }) }
    }

    /// For messages that carry exactly so many descriptors.
    pub(crate) fn fds(&mut self, expected: usize) -> Result<Vec<OwnedFd>, Refusal> {
        if self.fd_count != expected {
            return Err(Refusal::Fds { got: self.fd_count, expected });
        }
        Ok(std::mem::take(&mut self.fds))
    }

    /// For messages that carry exactly one descriptor.
    pub(crate) fn fd(&mut self) -> Result<OwnedFd, Refusal> {
        self.fds(1)?.pop().ok_or(Refusal::Fds { got: 0, expected: 1 })
    }

    /// Ring index and descriptor of SET_VRING_KICK, CALL and ERR.
    pub(crate) fn ring_fd(&mut self) -> Result<(u32, Option<OwnedFd>), Refusal> {
        let value = self.decode::<VhostUserU64>()?.value;
        let fd = if value & RING_NO_FD == 0 {
            Some(self.fd()?)
        } else {
            self.fds(0)?;
            None
        };
        Ok(((value & RING_INDEX_MASK) as u32, fd))
    }

    /// Regions of SET_MEM_TABLE, each with its file.
    pub(crate) fn regions(&mut self) -> Result<Vec<(VhostUserMemoryRegion, OwnedFd)>, Refusal> {
        let head_bytes = size_of::<VhostUserMemory>();
        let Some((head, rest)) = self.body.split_at_checked(head_bytes) else {
            return Err(Refusal::BodySize { got: self.body.len(), expected: head_bytes });
        };
        let count = decode::<VhostUserMemory>(head)?.num_regions as usize;
        let region_bytes = size_of::<VhostUserMemoryRegion>();
        if rest.len() != count * region_bytes {
            let expected = head_bytes + count * region_bytes;
            return Err(Refusal::BodySize { got: self.body.len(), expected });
        }
        let regions =
            rest.chunks_exact(region_bytes).map(decode::<VhostUserMemoryRegion>).collect::<Result<Vec<_>, _>>()?;
        Ok(regions.into_iter().zip(self.fds(count)?).collect())
    }

    /// The region that GET_INFLIGHT_FD asks for or SET_INFLIGHT_FD shows. Its fields take 20 bytes, as the specification
    /// writes them down, and 24 where a C compiler lays them out, as for QEMU.
    pub(crate) fn inflight(&self) -> Result<VhostUserInflight, Refusal> {
        let mut body = self.body.clone();
        if body.len() == INFLIGHT_BYTES {
            body.resize(size_of::<VhostUserInflight>(), 0);
        }
        decode(&body)
    }

    /// Header and data of GET_CONFIG and SET_CONFIG.
    pub(crate) fn config(&self) -> Result<(VhostUserConfig, &[u8]), Refusal> {
        let head_bytes = size_of::<VhostUserConfig>();
        let Some((head, data)) = self.body.split_at_checked(head_bytes) else {
            return Err(Refusal::BodySize { got: self.body.len(), expected: head_bytes });
        };
        let head: VhostUserConfig = decode(head)?;
        let expected = head_bytes + head.size as usize;
        self.body_bytes(expected)?;
        Ok((head, data))
    }
}

/// A value from exactly its bytes, checked by the `vhost` crate's rules for that type.
fn decode<T: VhostUserMsgValidator + Default>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut value = T::default();
    let expected = size_of::<T>();
    if bytes.len() != expected {
        return Err(Refusal::BodySize { got: bytes.len(), expected });
    }
    value.as_mut_slice().copy_from_slice(bytes);
    if value.is_valid() { Ok(value) } else { Err(Refusal::Body) }
}

/// The name of a request for the log.
pub(crate) fn name(request: u32) -> String {
    FrontendReq::try_from(request).map_or_else(|_| format!("unknown message {request}"), |code| format!("{code:?}"))
}

/// Whether the frontend waits for an answer of this message's own, for which a failing acknowledgement is no
/// substitute.
pub(crate) fn has_own_answer(request: FrontendReq) -> bool {
    use FrontendReq as R;
    matches!(
        request,
        R::GET_FEATURES
            | R::GET_PROTOCOL_FEATURES
            | R::GET_QUEUE_NUM
            | R::GET_VRING_BASE
            | R::GET_CONFIG
            | R::GET_MAX_MEM_SLOTS
            | R::GET_INFLIGHT_FD
            | R::GET_STATUS
            | R::GET_SHARED_OBJECT
            | R::GET_SHMEM_CONFIG
            | R::SET_LOG_BASE
            | R::SET_DEVICE_STATE_FD
            | R::CHECK_DEVICE_STATE
            | R::POSTCOPY_ADVISE
            | R::CREATE_CRYPTO_SESSION
    )
}
