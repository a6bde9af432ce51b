//! What a session acts upon, and what it tells it.

use std::fmt;
use std::num::{NonZeroU8, NonZeroU64};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vring::{InflightQueue, Layout, Memory, Note, RingLog, RingPosition};

use crate::{BackendChannel, SessionEnd};

/// Most rings that one export can have: SET_VRING_KICK and its siblings carry the index in eight bits (vhost-user,
/// "Vring descriptor index for vhost-user messages").
pub const QUEUES_MAX: u16 = 256;

/// What a frontend's messages act upon: one export.
///
/// Called on the session's thread only, never concurrently. Ring indices are always below [`Target::queues_max`].
pub trait Target: Send {
    /// Device features offered, without the ones that the transport owns (VERSION_1, the RING_* features and
    /// VHOST_USER_F_PROTOCOL_FEATURES), which the link adds.
    fn features(&self) -> u64;

    /// Those that a frontend may acknowledge: the ones that are offered, and others that a driver may have from an earlier backend
    /// of the same device, whose frontend asks for what it has.
    fn features_known(&self) -> u64 {
        self.features()
    }

    /// Number of rings the frontend may use, 1 to [`QUEUES_MAX`].
    fn queues_max(&self) -> u16;

    /// The frontend acknowledged these features, transport features included. Rings that run keep what they started
    /// with.
    fn set_features(&mut self, acked: u64);

    /// Whether the device shows its config space; where it does not, the frontend has to know it by other means.
    fn has_config(&self) -> bool {
        true
    }

    /// Whether a request that was taken and never answered may be done a second time, so that what is in flight can be
    /// written down for the next backend ([`RingStart::inflight`]).
    fn has_inflight(&self) -> bool {
        false
    }

    /// Whether the device can be migrated by a frontend that copies the guest's memory while rings run: each of them marks what
    /// it writes ([`RingStart::log`], [`Target::set_log`]), and nothing else of the device has to be carried over but what
    /// [`Target::save`] gives.
    fn has_log(&self) -> bool {
        false
    }

    /// Whether the frontend that migrates the device has to move a state of it to the other backend.
    fn has_device_state(&self) -> bool {
        false
    }

    /// What another backend has to know to go on, in pieces that belong behind each other. No ring runs, and if one starts again
    /// the migration has come to nothing. An error is reported to the frontend, and so ends the migration.
    fn save(&mut self) -> Result<Vec<Vec<u8>>, String> {
        Err("the device has no state".to_owned())
    }

    /// Goes on where another backend stopped; whatever was before is forgotten. No ring runs. An error is reported to the
    /// frontend, and so ends the migration.
    fn load(&mut self, _state: Vec<u8>) -> Result<(), String> {
        Err("the device has no state".to_owned())
    }

    /// Length of the device's region of shared memory, whose id is 0 (virtio 1.3, section 2.10). `None`: it has none.
    fn shared_memory_bytes(&self) -> Option<NonZeroU64> {
        None
    }

    /// The frontend has asked for that: it shows the region to the guest, and takes
    /// [`SharedMap`](crate::SharedMap)s by the [`BackendChannel`].
    fn shared_memory_told(&mut self) {}

    /// Fills `out` with the device's config space from `offset` on. `false` refuses the read.
    fn config(&self, offset: u32, out: &mut [u8]) -> bool;

    /// Writes the device's config space. `false` refuses the write.
    fn set_config(&mut self, offset: u32, data: &[u8]) -> bool;

    /// What the next backend has to know of the device because a frontend that comes back will not say it again. It is kept
    /// with what is in flight, for those that keep such a region. `None`: nothing, or nothing that is certain.
    fn note(&self) -> Option<NonZeroU8> {
        None
    }

    /// Ring `index` starts next. `note` is what was left in its inflight region, by this backend or an earlier one; a ring
    /// without a region has an unused one.
    fn recall(&mut self, _index: u16, _note: Note) {}

    /// A ring is complete and begins to live. An error leaves the ring stopped and is reported to the frontend.
    fn start(&mut self, index: u16, ring: RingStart) -> Result<(), String>;

    /// Ends a running ring once every request it took is completed. Returns where it stands (the answer to
    /// GET_VRING_BASE). Only called for rings that run; the same index may be started again later.
    fn stop(&mut self, index: u16) -> RingPosition;

    /// A ring is complete and starts next: what rings need is taken, if others may have it while none runs. An error ends the session:
    /// whoever connects again has it tried again.
    fn take(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// No ring runs any more: what was taken is given up, if it can be. `is_awaited`: somebody waits until this returns, as a
    /// frontend for its answer, or whoever ends the endpoint.
    fn give_up(&mut self, _is_awaited: bool) {}

    /// Whether anything that was taken is held. Where that is so and no ring runs, [`Target::give_up`] is called from time to time.
    fn is_held(&self) -> bool {
        false
    }

    /// As [`Target::stop`], for a ring that is started again at once, here or by another program: what would have to be waited
    /// for without end may be left to its next life.
    fn suspend(&mut self, index: u16) -> Suspended {
        Suspended { position: self.stop(index), owed: Vec::new() }
    }

    /// The frontend replaced the notification fd of a running ring. `None`: it wants no notifications.
    fn set_call(&mut self, index: u16, call: Option<OwnedFd>);

    /// Pauses or resumes a running ring without stopping it: a disabled ring takes no new request.
    fn set_enabled(&mut self, index: u16, enabled: bool);

    /// The memory table changed while rings may run. Returns only when no ring uses the old table for new requests;
    /// requests in flight keep the mappings they use alive. The areas of every running ring are inside the new table,
    /// at the same guest addresses.
    fn set_memory(&mut self, memory: &Arc<Memory>);

    /// A running ring marks what it writes in this dirty log from now on, or in none. Returns when it does, and no longer
    /// uses another one; what its requests in flight write is marked in the new one. Only called where [`Target::has_log`] says so.
    fn set_log(&mut self, _index: u16, _log: Option<RingLog>) {}

    /// How many requests a running ring has taken that have to be answered before [`Target::suspend`]. An error says why that cannot be told: the ring
    /// is lost, or would not stop. Asked of rings that are to be handed over; a target whose [`Target::suspend`] never has to
    /// wait need not say more than 0.
    fn in_flight(&mut self, _index: u16) -> Result<usize, String> {
        Ok(0)
    }

    /// The driver has given the device up (RESET_DEVICE): every ring has been stopped, and whoever starts one knows nothing of
    /// what was.
    fn reset(&mut self) {}

    /// Whether the session could go on in another program: an error says what would stay behind.
    fn hand_over(&self) -> Result<(), String> {
        Ok(())
    }

    /// A frontend connected. `channel` stays usable (and becomes a no-op) after the session.
    fn session_started(&mut self, frontend: SessionInfo, channel: BackendChannel);

    /// As [`Target::session_started`], for a session that another program has begun.
    fn session_resumed(&mut self, frontend: SessionInfo, channel: BackendChannel) {
        self.session_started(frontend, channel);
    }

    /// The session is over: every ring has been stopped and the link has let go of the guest's memory.
    fn session_ended(&mut self, reason: &SessionEnd);
}

/// Where a ring stands that pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    /// Where it goes on.
    pub position: RingPosition,
    /// Head descriptors of requests that were taken before that and are to be taken again, the oldest first.
    pub owed: Vec<u16>,
}

/// Everything a ring needs to be served.
#[derive(Debug)]
pub struct RingStart {
    /// The guest's memory.
    pub memory: Arc<Memory>,
    /// Size, areas and ring features.
    pub layout: Layout,
    /// Where the ring goes on, unless `inflight` says otherwise.
    pub position: RingPosition,
    /// Heads that were taken before and are to be taken again before anything new ([`Suspended::owed`]).
    pub owed: Vec<u16>,
    /// Where requests in flight are to be written down, and what an earlier backend left there. `None`: the frontend did
    /// not ask for it.
    pub inflight: Option<InflightQueue>,
    /// Where to mark what is written. `None`: the frontend does not want it now; see [`Target::set_log`].
    pub log: Option<RingLog>,
    /// Whether requests may be taken now; see [`Target::set_enabled`].
    pub enabled: bool,
    /// Eventfd that the guest signals. `None`: the ring is to be polled.
    pub kick: Option<OwnedFd>,
    /// Where to signal completions: eight bytes, as to an eventfd, though UML passes a stream socket here. It may also arrive
    /// later, by [`Target::set_call`]. `None`: no notifications.
    pub call: Option<OwnedFd>,
    /// Where to signal that the ring is broken, if the frontend wants to know.
    pub err: Option<OwnedFd>,
}

/// Who is at the other end (SO_PEERCRED).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionInfo {
    /// Process id, where the kernel tells.
    pub pid: Option<u32>,
    /// User id, where the kernel tells.
    pub uid: Option<u32>,
}

impl fmt::Display for SessionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, self.uid) {
            (Some(pid), Some(uid)) => write!(f, "process {pid} of user {uid}"),
            _ => f.write_str("an unknown process"),
        }
    }
}
