//! The target that a fuzzed session acts upon. It asserts what sessions promise to targets.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vring::{Chain, Memory, RingLog, RingPosition, SplitRing};

use super::{CONFIG_BYTES, QUEUES};
use crate::{BackendChannel, RingStart, SessionEnd, SessionInfo, Target};

/// Chains that a ring takes at a time.
const CHAINS_MAX: usize = 4;

/// A device that takes what its rings offer and gives it back.
#[derive(Default)]
pub(super) struct Device {
    pub(super) rings: [Option<SplitRing>; QUEUES],
    chain: Chain,
    pub(super) started: usize,
    pub(super) ended: bool,
}

impl Device {
    fn serve(&mut self) {
        for ring in self.rings.iter_mut().flatten() {
            for _ in 0..CHAINS_MAX {
                let Ok(Some(head)) = ring.pop(&mut self.chain) else { break };
                let mut bytes = [0; 100];
                let read = vring::copy::read_at(self.chain.readable_segments(), 0, &mut bytes);
                let written = vring::copy::write_at(self.chain.writable_segments(), 0, &bytes[..read]);
                ring.push(head, written as u32);
            }
            ring.publish();
        }
    }
}

impl Target for Device {
    fn features(&self) -> u64 {
        1 << 9 | 1 << 12
    }

    fn queues_max(&self) -> u16 {
        QUEUES as u16
    }

    fn set_features(&mut self, _acked: u64) {
        self.serve();
    }

    fn has_inflight(&self) -> bool {
        true
    }

    fn has_log(&self) -> bool {
        true
    }

    fn has_device_state(&self) -> bool {
        true
    }

    fn save(&mut self) -> Result<Vec<Vec<u8>>, String> {
        assert!(self.rings.iter().all(Option::is_none), "a ring runs");
        Ok(vec![vec![1; 100], vec![2; 100]])
    }

    fn load(&mut self, state: Vec<u8>) -> Result<(), String> {
        assert!(self.rings.iter().all(Option::is_none), "a ring runs");
        if state.len().is_multiple_of(2) { Ok(()) } else { Err("it is odd".to_owned()) }
    }

    fn set_log(&mut self, index: u16, log: Option<RingLog>) {
        self.serve();
        // All that was popped is pushed.
        self.rings[usize::from(index)].as_mut().expect("only a ring that runs logs").set_log(log);
        self.serve();
    }

    fn config(&self, offset: u32, out: &mut [u8]) -> bool {
        let inside = (offset as usize).checked_add(out.len()).is_some_and(|end| end <= CONFIG_BYTES);
        if inside {
            out.fill(1);
        }
        inside
    }

    fn set_config(&mut self, offset: u32, data: &[u8]) -> bool {
        offset == 32 && data.len() == 1
    }

    fn start(&mut self, index: u16, ring: RingStart) -> Result<(), String> {
        let slot = &mut self.rings[usize::from(index)];
        assert!(slot.is_none(), "ring {index} is started twice");
        let mut split = SplitRing::new(ring.memory, ring.layout, ring.position).map_err(|error| error.to_string())?;
        if let Some(inflight) = ring.inflight {
            split.track(inflight).map_err(|error| error.to_string())?;
        }
        split.set_log(ring.log);
        *slot = Some(split);
        self.started += 1;
        self.serve();
        Ok(())
    }

    fn stop(&mut self, index: u16) -> RingPosition {
        self.serve();
        let ring = self.rings[usize::from(index)].take();
        ring.expect("only a ring that runs is stopped").position()
    }

    fn set_call(&mut self, index: u16, _call: Option<OwnedFd>) {
        assert!(self.rings[usize::from(index)].is_some(), "ring {index} does not run");
    }

    fn set_enabled(&mut self, index: u16, _enabled: bool) {
        assert!(self.rings[usize::from(index)].is_some(), "ring {index} does not run");
        self.serve();
    }

    fn set_memory(&mut self, memory: &Arc<Memory>) {
        for ring in self.rings.iter_mut().flatten() {
            // Addresses are right, but a mapping at an odd place misaligns them here.
            let _misaligned = ring.set_memory(memory.clone());
        }
        self.serve();
    }

    fn session_started(&mut self, _frontend: SessionInfo, _config_change: BackendChannel) {}

    fn session_ended(&mut self, _reason: &SessionEnd) {
        assert!(!self.ended, "the session ends twice");
        self.ended = true;
    }
}
