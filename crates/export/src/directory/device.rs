//! A directory's part in its export: config space, sessions, and where its calls run.

use super::service::Service;
use super::{DirectoryRing, FuseSession, Policy};
use crate::calls::Executing;
use crate::device::{Device, Took};
use crate::label::Label;
use crate::queue::Broken;
use crate::ring_set::RingSet;
use crate::{ExportError, Ring};
use device::fs::Config;
use engine::Execution;
use passthrough::{LetGo, Tree};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use vhost_user::{BackendChannel, RingStart};

/// Request queues a directory may have, besides the one for high-priority requests.
pub const REQUEST_QUEUES_MAX: u16 = 64;

/// A directory to serve.
#[derive(Clone, Debug)]
pub struct DirectoryOptions {
    /// What a guest mounts it by, 1 to 36 bytes. Without one, the device shows no config space.
    pub tag: Option<String>,
    /// Request queues a frontend may use, 1 to [`REQUEST_QUEUES_MAX`].
    pub request_queues: u16,
    /// What the guest may cache, and the like.
    pub policy: Policy,
    /// Where its calls run.
    pub execution: Execution,
}

/// A directory as it is at one moment.
#[derive(Clone, Debug)]
pub struct DirectoryStatus {
    /// What a guest mounts it by.
    pub tag: Option<String>,
    /// What the guest may cache, and the like.
    pub policy: Policy,
    /// Where its calls run.
    pub execution: Execution,
    /// Minor version of the FUSE protocol that the guest speaks; `None` before it has said so.
    pub protocol_minor: Option<u32>,
    /// Locks that are waited for.
    pub locks_waiting: usize,
    /// Mappings of 2 MiB in the DAX window.
    pub dax_mapped: usize,
    /// The tree itself.
    pub tree: passthrough::Description,
}

/// A directory that is served.
pub(crate) struct Directory {
    tag: Option<String>,
    config: Option<Config>,
    request_queues: u16,
    pub(super) service: Arc<Service>,
    executing: Executing,
    /// The locks of its guest, while another host may have them.
    pub(super) away: Mutex<Option<LetGo>>,
}

impl Directory {
    pub(crate) fn new(options: DirectoryOptions, tree: Arc<Tree>) -> Result<Directory, ExportError> {
        let queues = options.request_queues;
        if !(1..=REQUEST_QUEUES_MAX).contains(&queues) {
            return Err(ExportError::RequestQueues(queues));
        }
        let config = options.tag.as_deref().map(|tag| Config::new(tag, u32::from(queues))).transpose()?;
        Ok(Directory {
            tag: options.tag,
            config,
            request_queues: queues,
            service: Arc::new(Service::new(tree, options.policy)),
            executing: Executing::new(options.execution, "directory", "long-calls")?,
            away: Mutex::default(),
        })
    }

    /// All queues: those for requests, and the one before them for what must not wait behind requests.
    pub(crate) fn queues(&self) -> u16 {
        self.request_queues + 1
    }

    /// Changes where calls run; requests that have begun end where they are.
    pub(crate) fn set_execution(&self, rings: &RingSet, execution: Execution) -> Result<(), ExportError> {
        self.executing.set(rings, execution)
    }

    /// Its session, and its tree with what the guest knows and has open, for another program. Every ring is stopped.
    ///
    /// # Errors
    /// What would stay behind.
    pub(crate) fn hand_over_session(&self) -> Result<(FuseSession, passthrough::Handed), passthrough::NotHandedOver> {
        Ok((self.service.hand_over(), self.service.tree().hand_over()?))
    }

    /// Goes on with a session that another program has begun.
    pub(crate) fn adopt(&self, session: &FuseSession) {
        self.service.adopt(session);
    }

    /// The guest is gone, with all that it knew and had. No ring runs.
    pub(crate) fn end(&self) {
        self.forget_away();
        self.service.end_session();
        self.service.tree().begin_anew();
    }

    pub(crate) fn status(&self) -> DirectoryStatus {
        DirectoryStatus {
            tag: self.tag.clone(),
            policy: self.service.policy().clone(),
            execution: self.executing.execution(),
            protocol_minor: self.service.dialect().map(|dialect| dialect.minor),
            locks_waiting: self.service.locks_waiting(),
            dax_mapped: self.service.window().map_or(0, |window| window.mapped()),
            tree: self.service.tree().describe(),
        }
    }
}

impl Device for Directory {
    fn features(&self) -> u64 {
        0
    }

    fn acknowledged(&self, _rings: &RingSet, _features: u64) {}

    /// A name that was made or removed cannot be made or removed once more, and what a request refers to (inodes, open
    /// files, locks) is gone with the process.
    fn has_inflight(&self) -> bool {
        false
    }

    /// Files that a guest maps stay behind, and QEMU refuses to migrate a device with a window anyway.
    fn has_log(&self) -> bool {
        self.service.window().is_none()
    }

    /// What the guest knows and has open. Without it there is nothing to log for either.
    fn has_device_state(&self) -> bool {
        self.service.window().is_none()
    }

    fn session_started(&self, channel: &BackendChannel) {
        if let Some(window) = self.service.window() {
            window.session_started(channel.clone());
        }
    }

    fn shared_memory_bytes(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.service.window()?.bytes())
    }

    fn shared_memory_told(&self) {
        if let Some(window) = self.service.window() {
            window.shown();
        }
    }

    fn save(&self, is_wanted: &dyn Fn() -> bool) -> Result<Vec<Vec<u8>>, String> {
        self.save_state(is_wanted)
    }

    fn load(&self, state: &[u8], is_wanted: &dyn Fn() -> bool) -> Result<Option<String>, String> {
        self.load_state(state, is_wanted)
    }

    fn take(&self, _rings: &RingSet, is_wanted: &dyn Fn() -> bool) -> Result<Took, String> {
        Ok(Took { config_changed: false, lost: self.come_back(is_wanted) })
    }

    fn has_config(&self) -> bool {
        self.config.is_some()
    }

    fn config(&self, offset: u32, out: &mut [u8]) -> bool {
        self.config.as_ref().is_some_and(|config| config.read(offset, out).is_ok())
    }

    fn set_config(&self, _rings: &RingSet, _offset: u32, _data: &[u8]) -> bool {
        false
    }

    fn ring(&self, _index: u16, start: RingStart, label: Label) -> Result<Ring, Broken> {
        let ring = DirectoryRing::new(start, self.service.clone(), self.executing.executor(), label)?;
        Ok(Ring::new(ring))
    }

    fn started(&self, rings: &RingSet, index: u16) {
        self.executing.started(rings, index);
    }

    fn places(&self) -> u16 {
        self.request_queues
    }

    /// The high-priority queue goes with the first request queue: it carries little, but must not depend on others' load.
    fn place_of(&self, index: u16) -> u16 {
        index.saturating_sub(1)
    }

    /// What ends or interrupts requests must not wait behind them.
    fn limited(&self, index: u16) -> bool {
        index != 0
    }

    fn hand_over(&self) -> Result<(), String> {
        if self.is_away() {
            return Err("its guest's state has gone to another host, and the frontend has not ended since".to_owned());
        }
        if self.service.window().is_some_and(|window| window.is_shown()) {
            let why = "its guest may have files in its memory (dax), of which another program would not know: end that guest first";
            return Err(why.to_owned());
        }
        self.service.tree().may_be_handed_over().map_err(|why| why.to_string())
    }

    fn reset(&self) {
        self.forget_away();
        if let Some(window) = self.service.window() {
            window.forget();
        }
    }

    fn session_ended(&self) {
        if let Some(window) = self.service.window() {
            window.forget();
        }
        self.end();
    }
}
