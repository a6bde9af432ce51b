//! A vhost-user server as its frontend sees it: a connection, features, memory and queues.

use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};

use crate::{DirtyLog, Eventfds, Memory, Queue};

/// Most queues of a device.
const QUEUES_MAX: u64 = 256;

/// Features that are no device's own (virtio 1.3, 6; vhost-user, "Feature bits").
pub mod feature {
    /// The device marks what it writes in a dirty log.
    pub const LOG_ALL: u64 = 1 << 26;
    /// Descriptors may stand in tables of their own.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Both sides say by index when they want to be told.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The server knows protocol features.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// The device is one of virtio 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;
}

/// A connection on which all is negotiated. Dropping it ends it.
pub struct Session {
    link: Frontend,
    /// The features that were agreed on.
    pub features: u64,
    /// The protocol features that were agreed on.
    pub protocol: VhostUserProtocolFeatures,
}

impl Session {
    /// Introduces itself to a server. `features` and `protocol` are told what is offered, and say what is taken. With
    /// REPLY_ACK, every message is acknowledged from then on.
    ///
    /// # Errors
    /// The server hangs up, or what it offers is refused.
    pub fn negotiate(
        stream: UnixStream,
        features: impl FnOnce(u64) -> Result<u64>,
        protocol: impl FnOnce(VhostUserProtocolFeatures) -> Result<VhostUserProtocolFeatures>,
    ) -> Result<Self> {
        let mut link = Frontend::from_stream(stream, QUEUES_MAX);
        link.set_owner().context("SET_OWNER")?;
        let features = features(link.get_features().context("GET_FEATURES: is another frontend connected?")?)?;
        link.set_features(features).context("SET_FEATURES")?;
        let protocol = protocol(link.get_protocol_features().context("GET_PROTOCOL_FEATURES")?)?;
        link.set_protocol_features(protocol).context("SET_PROTOCOL_FEATURES")?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            link.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        Ok(Self { link, features, protocol })
    }

    /// The connection, for any other message.
    pub fn link(&mut self) -> &mut Frontend {
        &mut self.link
    }

    /// Shares memory, in place of all that was shared before (SET_MEM_TABLE).
    pub fn share(&mut self, memory: &[&Memory]) -> Result<()> {
        let table: Vec<_> = memory.iter().map(|region| region.info()).collect();
        self.link.set_mem_table(&table).context("SET_MEM_TABLE")?;
        Ok(())
    }

    /// Starts a queue at the available index `base`.
    pub fn start(&mut self, index: usize, queue: &Queue, eventfds: &Eventfds, base: u16) -> Result<()> {
        self.set_up(index, queue, eventfds, base)?;
        self.enable(index)
    }

    /// As [`start`](Self::start), all but the last step.
    pub fn set_up(&mut self, index: usize, queue: &Queue, eventfds: &Eventfds, base: u16) -> Result<()> {
        let link = &mut self.link;
        link.set_vring_num(index, queue.size()).context("SET_VRING_NUM")?;
        link.set_vring_base(index, base).context("SET_VRING_BASE")?;
        link.set_vring_addr(index, &queue.addresses()).context("SET_VRING_ADDR")?;
        link.set_vring_call(index, &eventfds.call).context("SET_VRING_CALL")?;
        link.set_vring_kick(index, &eventfds.kick).context("SET_VRING_KICK")
    }

    /// Shows a dirty log (SET_LOG_BASE), and has the server mark in it what it writes by every queue that runs (SET_FEATURES,
    /// SET_VRING_ADDR with the log's flag), as QEMU does it when a migration begins.
    pub fn log(&mut self, log: &DirtyLog, queues: &[(usize, &Queue)]) -> Result<()> {
        self.link.set_log_base(0, Some(log.region())).context("SET_LOG_BASE")?;
        self.features |= feature::LOG_ALL;
        self.link.set_features(self.features).context("SET_FEATURES")?;
        self.log_used(queues)
    }

    /// The last part of [`log`](Self::log), which starting a queue undoes.
    pub fn log_used(&mut self, queues: &[(usize, &Queue)]) -> Result<()> {
        for (index, queue) in queues {
            let areas = VringConfigData { flags: 1, log_addr: Some(queue.areas().used), ..queue.addresses() };
            self.link.set_vring_addr(*index, &areas).context("SET_VRING_ADDR")?;
        }
        Ok(())
    }

    /// Ends that.
    pub fn log_no_more(&mut self, queues: &[(usize, &Queue)]) -> Result<()> {
        self.features &= !feature::LOG_ALL;
        self.link.set_features(self.features).context("SET_FEATURES")?;
        for (index, queue) in queues {
            self.link.set_vring_addr(*index, &queue.addresses()).context("SET_VRING_ADDR")?;
        }
        Ok(())
    }

    /// The last step of [`start`](Self::start).
    pub fn enable(&mut self, index: usize) -> Result<()> {
        self.link.set_vring_enable(index, true).context("SET_VRING_ENABLE")
    }

    /// Reads the configuration space.
    pub fn config(&mut self, offset: u32, bytes: u32) -> Result<Vec<u8>> {
        let blank = vec![0; bytes as usize];
        let (_, config) =
            self.link.get_config(offset, bytes, VhostUserConfigFlags::empty(), &blank).context("GET_CONFIG")?;
        Ok(config)
    }

    /// Writes the configuration space.
    pub fn set_config(&mut self, offset: u32, data: &[u8]) -> Result<()> {
        self.link.set_config(offset, VhostUserConfigFlags::WRITABLE, data).context("SET_CONFIG")
    }
}
