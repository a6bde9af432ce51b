//! What an export's device adds to the life that all exports share.

use crate::Ring;
use crate::label::Label;
use crate::queue::Broken;
use crate::ring_set::RingSet;
use std::num::{NonZeroU8, NonZeroU64};
use std::time::Duration;
use vhost_user::{BackendChannel, RingStart};
use vring::Note;

/// What came of a [`Device::take`] that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Took {
    /// The config space is another one by that.
    pub(crate) config_changed: bool,
    /// What the guest has no more, in words.
    pub(crate) lost: Option<String>,
}

/// A disk's or a directory's part in a session. Calls come from the session's thread.
pub(crate) trait Device: Send + Sync {
    /// Device features offered, without those of the transport.
    fn features(&self) -> u64;

    /// Those and others that a driver may have from an earlier life of the device.
    fn features_known(&self) -> u64 {
        self.features()
    }

    /// The driver acknowledged these, or a session without any has begun (0).
    fn acknowledged(&self, rings: &RingSet, features: u64);

    /// Whether a request that was taken and never answered may be done a second time, by a later process.
    fn has_inflight(&self) -> bool;

    /// Whether a frontend can migrate it: its rings log what they write, and the rest of it is on both sides or goes along ([`Device::save`]).
    fn has_log(&self) -> bool;

    /// Whether something of it has to go along that is not on both sides.
    fn has_device_state(&self) -> bool {
        false
    }

    /// That, in pieces that belong behind each other, as long as `is_wanted` says so. No ring runs. Blocks.
    fn save(&self, is_wanted: &dyn Fn() -> bool) -> Result<Vec<Vec<u8>>, String> {
        let _ = is_wanted;
        Err("it has no state".to_owned())
    }

    /// Goes on with what came from another host, as long as `is_wanted` says so. What the guest has no more, in words. Blocks.
    fn load(&self, state: &[u8], is_wanted: &dyn Fn() -> bool) -> Result<Option<String>, String> {
        let _ = (state, is_wanted);
        Err("it has no state".to_owned())
    }

    /// A frontend is there, which is asked for things by this channel.
    fn session_started(&self, _channel: &BackendChannel) {}

    /// As [`vhost_user::Target::shared_memory_bytes`].
    fn shared_memory_bytes(&self) -> Option<NonZeroU64> {
        None
    }

    /// As [`vhost_user::Target::shared_memory_told`].
    fn shared_memory_told(&self) {}

    /// Whether the device has a config space to show.
    fn has_config(&self) -> bool;

    /// Fills `out` from the config space. `false` refuses the read.
    fn config(&self, offset: u32, out: &mut [u8]) -> bool;

    /// Writes the config space. `false` refuses the write.
    fn set_config(&self, rings: &RingSet, offset: u32, data: &[u8]) -> bool;

    /// What a later process has to know of the device and will not be told ([`vhost_user::Target::note`]).
    fn note(&self) -> Option<NonZeroU8> {
        None
    }

    /// A ring starts next, in whose inflight region this was left.
    fn recall(&self, rings: &RingSet, note: Note) {
        let _ = (rings, note);
    }

    /// A ring is about to start: what rings need is taken for this process, if it can be another one's. Blocks, as long as
    /// `is_wanted` says so where it waits for somebody else.
    fn take(&self, rings: &RingSet, is_wanted: &dyn Fn() -> bool) -> Result<Took, String> {
        let _ = (rings, is_wanted);
        Ok(Took::default())
    }

    /// No ring runs: what they needed may be another process's from now on. Whether it was this one's; an error says why it stays so. Blocks.
    fn give_up(&self, patience: Duration) -> Result<bool, String> {
        let _ = patience;
        Ok(false)
    }

    /// Whether what rings need is this process's.
    fn is_held(&self) -> bool {
        false
    }

    /// Whether that is being opened, or flushed and closed.
    fn changes_hands(&self) -> bool {
        false
    }

    /// A ring that serves requests of queue `index`; `label` names it.
    fn ring(&self, index: u16, start: RingStart, label: Label) -> Result<Ring, Broken>;

    /// The ring has its worker: what changed since it was made has to reach it now.
    fn started(&self, rings: &RingSet, index: u16);

    /// How many queues a placement counts.
    fn places(&self) -> u16;

    /// The place of queue `index` among them.
    fn place_of(&self, index: u16) -> u16 {
        index
    }

    /// Whether limits hold for queue `index`.
    fn limited(&self, index: u16) -> bool {
        let _ = index;
        true
    }

    /// Whether a session could go on in another program: an error says what would stay behind.
    fn hand_over(&self) -> Result<(), String> {
        Ok(())
    }

    /// The driver has given the device up, and every ring has been stopped.
    fn reset(&self) {}

    /// The frontend is gone, and every ring has been stopped.
    fn session_ended(&self);
}
