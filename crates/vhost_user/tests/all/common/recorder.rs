//! A target that writes down what the link asks of it.

use super::PATIENCE;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;
use vhost_user::{BackendChannel, RingStart, SessionEnd, SessionInfo, Suspended, Target};
use vring::{InflightQueue, Layout, Memory, RingLog, RingPosition};

/// Features that the recording device offers.
pub const DEVICE_FEATURES: u64 = 1 << 9 | 1 << 12;
/// How far a recorded ring moves while it runs.
pub const RING_PROGRESS: u16 = 5;
/// Length of the recording device's config space in bytes.
pub const CONFIG_BYTES: usize = 64;

/// What the link asked of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Features(u64),
    SetConfig(u32, Vec<u8>),
    Start {
        index: u16,
        size: u16,
        position: RingPosition,
        enabled: bool,
        fds: [bool; 3],
    },
    /// Follows a start whose ring is to write down what is in flight: room for so many descriptors.
    Inflight(u16, u16),
    Stop(u16),
    Call(u16, bool),
    Enabled(u16, bool),
    Memory(usize),
    /// A ring that runs is to log or not; with an address where its used ring is.
    Log(u16, Option<Option<u64>>),
    SessionStarted,
    SessionEnded(String),
}

/// A ring that runs, and what it uses.
pub struct Running {
    pub memory: Arc<Memory>,
    pub layout: Layout,
    pub inflight: Option<InflightQueue>,
    pub owed: Vec<u16>,
    pub log: Option<RingLog>,
    position: RingPosition,
}

pub struct Shared {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
    pub rings: Mutex<HashMap<u16, Running>>,
    pub info: Mutex<Option<SessionInfo>>,
    pub channel: Mutex<Option<BackendChannel>>,
    /// Requests that every ring has in flight, or why it cannot tell.
    pub in_flight: Mutex<Result<usize, String>>,
    /// What a ring that is suspended leaves to its next life.
    pub owed: Mutex<Vec<u16>>,
    /// The next start fails with this.
    pub start_error: Mutex<Option<String>>,
    pub custody: Mutex<Custody>,
    /// What the device gives out, or has taken in.
    pub state: Mutex<Vec<u8>>,
}

/// Of a device that others may have while no ring runs.
#[derive(Default)]
pub struct Custody {
    /// Why it cannot be had.
    pub refuses: Option<String>,
    /// Whether it is kept when it is to be given up.
    pub sticks: bool,
    pub is_held: bool,
    pub given_up: usize,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            events: Mutex::default(),
            changed: Condvar::default(),
            rings: Mutex::default(),
            info: Mutex::default(),
            channel: Mutex::default(),
            in_flight: Mutex::new(Ok(0)),
            owed: Mutex::default(),
            start_error: Mutex::default(),
            custody: Mutex::default(),
            state: Mutex::default(),
        }
    }
}

impl Shared {
    fn record(&self, event: Event) {
        self.events.lock().unwrap().push(event);
        self.changed.notify_all();
    }

    /// Everything recorded since the last look.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    /// Waits until `wanted` is recorded and returns everything up to and including it.
    pub fn wait_for(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let end = Instant::now() + PATIENCE;
        let mut events = self.events.lock().unwrap();
        loop {
            if let Some(at) = events.iter().position(&wanted) {
                return events.drain(..=at).collect();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it did not happen; recorded: {events:?}");
            events = self.changed.wait_timeout(events, left).unwrap().0;
        }
    }

    /// Waits for the end of the session; returns its reason and what came before it.
    pub fn wait_for_end(&self) -> (String, Vec<Event>) {
        let mut before = self.wait_for(|event| matches!(event, Event::SessionEnded(_)));
        match before.pop() {
            Some(Event::SessionEnded(reason)) => (reason, before),
            other => panic!("not an end: {other:?}"),
        }
    }
}

/// What the recording device can do.
#[derive(Clone, Copy)]
pub(super) struct Has {
    pub(super) inflight: bool,
    pub(super) log: bool,
    pub(super) state: bool,
}

impl Default for Has {
    fn default() -> Has {
        Has { inflight: true, log: true, state: false }
    }
}

/// The target. Signals each call descriptor it is given, so that a test sees which one arrived.
pub(super) struct Recorder {
    pub(super) shared: Arc<Shared>,
    pub(super) queues: u16,
    pub(super) has: Has,
    pub(super) config: [u8; CONFIG_BYTES],
}

fn signal(fd: Option<&OwnedFd>) {
    if let Some(fd) = fd {
        rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Target for Recorder {
    fn features(&self) -> u64 {
        DEVICE_FEATURES
    }

    fn queues_max(&self) -> u16 {
        self.queues
    }

    fn has_inflight(&self) -> bool {
        self.has.inflight
    }

    fn has_log(&self) -> bool {
        self.has.log
    }

    fn has_device_state(&self) -> bool {
        self.has.state
    }

    fn save(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let state = self.shared.state.lock().unwrap();
        if *state == b"cannot be saved" {
            return Err("it cannot be saved".to_owned());
        }
        let (front, rest) = state.split_at(state.len() / 3);
        Ok(vec![front.to_vec(), Vec::new(), rest.to_vec()])
    }

    fn load(&mut self, state: Vec<u8>) -> Result<(), String> {
        if state == b"refused" {
            return Err("it is not wanted".to_owned());
        }
        *self.shared.state.lock().unwrap() = state;
        Ok(())
    }

    fn set_features(&mut self, acked: u64) {
        self.shared.record(Event::Features(acked));
    }

    fn config(&self, offset: u32, out: &mut [u8]) -> bool {
        let start = offset as usize;
        let Some(bytes) = self.config.get(start..start + out.len()) else { return false };
        out.copy_from_slice(bytes);
        true
    }

    fn set_config(&mut self, offset: u32, data: &[u8]) -> bool {
        self.shared.record(Event::SetConfig(offset, data.to_vec()));
        offset < CONFIG_BYTES as u32
    }

    fn start(&mut self, index: u16, ring: RingStart) -> Result<(), String> {
        if let Some(error) = self.shared.start_error.lock().unwrap().take() {
            return Err(error);
        }
        signal(ring.call.as_ref());
        let fds = [ring.kick.is_some(), ring.call.is_some(), ring.err.is_some()];
        let started =
            Event::Start { index, size: ring.layout.size, position: ring.position, enabled: ring.enabled, fds };
        let entries = ring.inflight.as_ref().map(InflightQueue::entries);
        let RingStart { memory, layout, inflight, owed, position, log, .. } = ring;
        let used = Running { memory, layout, inflight, owed, log, position };
        let before = self.shared.rings.lock().unwrap().insert(index, used);
        assert!(before.is_none(), "ring {index} was started twice");
        self.shared.record(started);
        if let Some(entries) = entries {
            self.shared.record(Event::Inflight(index, entries));
        }
        Ok(())
    }

    fn stop(&mut self, index: u16) -> RingPosition {
        let ring = self.shared.rings.lock().unwrap().remove(&index);
        let ring = ring.expect("only a ring that runs can be stopped");
        self.shared.record(Event::Stop(index));
        RingPosition::split(ring.position.avail() + RING_PROGRESS)
    }

    fn take(&mut self) -> Result<(), String> {
        let mut custody = self.shared.custody.lock().unwrap();
        custody.refuses.clone().map_or(Ok(()), Err)?;
        custody.is_held = true;
        Ok(())
    }

    fn give_up(&mut self, _is_awaited: bool) {
        let mut custody = self.shared.custody.lock().unwrap();
        if custody.is_held && !custody.sticks {
            custody.is_held = false;
            custody.given_up += 1;
        }
    }

    fn is_held(&self) -> bool {
        self.shared.custody.lock().unwrap().is_held
    }

    fn suspend(&mut self, index: u16) -> Suspended {
        Suspended { position: self.stop(index), owed: self.shared.owed.lock().unwrap().clone() }
    }

    fn in_flight(&mut self, _index: u16) -> Result<usize, String> {
        self.shared.in_flight.lock().unwrap().clone()
    }

    fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        signal(call.as_ref());
        self.shared.record(Event::Call(index, call.is_some()));
    }

    fn set_enabled(&mut self, index: u16, enabled: bool) {
        self.shared.record(Event::Enabled(index, enabled));
    }

    fn set_memory(&mut self, memory: &Arc<Memory>) {
        for ring in self.shared.rings.lock().unwrap().values_mut() {
            ring.memory = memory.clone();
        }
        self.shared.record(Event::Memory(memory.regions().len()));
    }

    fn set_log(&mut self, index: u16, log: Option<RingLog>) {
        self.shared.record(Event::Log(index, log.as_ref().map(|log| log.used)));
        self.shared.rings.lock().unwrap().get_mut(&index).expect("only a ring that runs logs").log = log;
    }

    fn session_started(&mut self, frontend: SessionInfo, channel: BackendChannel) {
        *self.shared.info.lock().unwrap() = Some(frontend);
        *self.shared.channel.lock().unwrap() = Some(channel);
        self.shared.record(Event::SessionStarted);
    }

    fn session_ended(&mut self, reason: &SessionEnd) {
        assert!(self.shared.rings.lock().unwrap().is_empty(), "a ring outlived its session");
        self.shared.record(Event::SessionEnded(reason.to_string()));
    }
}
