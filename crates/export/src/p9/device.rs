//! A 9P directory's part in its export: config space, sessions, and where its calls run.

use super::P9Ring;
use super::service::{P9Policy, Service, Session};
use super::siblings::Siblings;
use super::stream::StreamRing;
use crate::calls::Executing;
use crate::device::Device;
use crate::label::Label;
use crate::queue::Broken;
use crate::ring_set::RingSet;
use crate::stream::{CONNECTIONS_MAX, Clients, Greeted, Pipe};
use crate::{ExportError, REQUEST_QUEUES_MAX, Ring};
use device::p9::{Config, Dialect};
use engine::Execution;
use passthrough::Tree;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use vhost_user::RingStart;

/// A directory to serve by 9P.
#[derive(Clone, Debug)]
pub struct P9Options {
    /// What a guest mounts it by, 1 to 36 bytes. Without one, the device shows no config space, and Linux does not take it.
    pub tag: Option<String>,
    /// Queues a frontend may use, 1 to [`REQUEST_QUEUES_MAX`]. Linux uses one. Over streams: clients that may be connected at
    /// once, 1 to [`CONNECTIONS_MAX`].
    pub queues: u16,
    /// What clients are granted.
    pub policy: P9Policy,
    /// Where its calls run.
    pub execution: Execution,
}

/// A directory served by 9P as it is at one moment.
#[derive(Clone, Debug)]
pub struct P9Status {
    /// What a guest mounts it by.
    pub tag: Option<String>,
    /// What clients are granted.
    pub policy: P9Policy,
    /// Where its calls run.
    pub execution: Execution,
    /// What the client speaks that agreed on a version last: `9P2000.L` or `9P2000.u`. `None` before one has.
    pub dialect: Option<&'static str>,
    /// Largest message of that client, in bytes; 0 before there is one.
    pub msize: u32,
    /// Fids of all clients.
    pub fids: usize,
    /// Clients that have agreed on a version.
    pub connections: usize,
    /// Locks that are waited for.
    pub locks_waiting: usize,
    /// The tree itself.
    pub tree: passthrough::Description,
}

/// A directory that is served by 9P.
pub(crate) struct P9 {
    tag: Option<String>,
    config: Option<Config>,
    queues: u16,
    service: Arc<Service>,
    /// The client of the virtqueues.
    session: Arc<Session>,
    /// All clients, in the order in which they came.
    sessions: Mutex<Vec<Weak<Session>>>,
    /// How many virtqueues are served.
    rings: Arc<AtomicUsize>,
    executing: Executing,
}

impl P9 {
    /// `streams` says that clients have connections of their own.
    pub(crate) fn new(options: P9Options, tree: Arc<Tree>, streams: bool) -> Result<P9, ExportError> {
        let queues = options.queues;
        match queues {
            1..=CONNECTIONS_MAX if streams => {}
            _ if streams => return Err(ExportError::Connections(queues)),
            1..=REQUEST_QUEUES_MAX => {}
            _ => return Err(ExportError::RequestQueues(queues)),
        }
        if tree.allows_direct_io() {
            return Err(ExportError::DirectIo);
        }
        let config = options.tag.as_deref().map(Config::new).transpose()?;
        let clients = if streams { usize::from(queues) } else { 1 };
        let service = Service::new(tree, options.policy, clients);
        let session = Session::new(&service);
        Ok(P9 {
            tag: options.tag,
            config,
            queues,
            sessions: Mutex::new(vec![Arc::downgrade(&session)]),
            session,
            service,
            rings: Arc::default(),
            executing: Executing::new(options.execution, "9p", "long-calls")?,
        })
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues
    }

    /// Changes where calls run; requests that have begun end where they are.
    pub(crate) fn set_execution(&self, rings: &RingSet, execution: Execution) -> Result<(), ExportError> {
        self.executing.set(rings, execution)
    }

    fn sessions(&self) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn status(&self) -> P9Status {
        let sessions = self.sessions();
        let speaking: Vec<_> = sessions.iter().filter(|session| session.dialect() != Dialect::Unknown).collect();
        let last = speaking.last();
        P9Status {
            tag: self.tag.clone(),
            policy: self.service.policy().clone(),
            execution: self.executing.execution(),
            dialect: last.map(|session| session.dialect().version()),
            msize: last.map_or(0, |session| session.msize()),
            fids: sessions.iter().map(|session| session.fids()).sum(),
            connections: speaking.len(),
            locks_waiting: sessions.iter().map(|session| session.locks_waiting()).sum(),
            tree: self.service.tree().describe(),
        }
    }
}

impl Clients for P9 {
    fn connect(&self, pipe: Pipe, label: Label) -> (Ring, Arc<dyn Greeted>) {
        let session = Session::new(&self.service);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&session));
        let ring = StreamRing::new(pipe, session.clone(), self.executing.executor(), label);
        (Ring::new(ring), session)
    }

    /// Until a version is agreed on.
    fn greeting(&self) -> Duration {
        self.service.policy().greeting
    }

    fn stay(&self, clients: usize) -> String {
        format!(
            "it is a 9p export with {clients} connected client(s), whose fids and open files cannot be handed over: \
             disconnect them, or restart the daemon instead"
        )
    }
}

impl Greeted for Session {
    fn has_greeted(&self) -> bool {
        self.has_greeted()
    }
}

impl Device for P9 {
    fn features(&self) -> u64 {
        self.config.as_ref().map_or(0, Config::features)
    }

    fn acknowledged(&self, _rings: &RingSet, _features: u64) {}

    /// A name that was made or removed cannot be made or removed once more, and fids are gone with the process.
    fn has_inflight(&self) -> bool {
        false
    }

    /// As for virtio-fs: its fids would stay behind.
    fn has_log(&self) -> bool {
        false
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
        // A ring that stopped may have left something, and this thread keeps nobody waiting.
        self.session.give_up_rest();
        let siblings = Siblings::one_more(&self.rings);
        let ring = P9Ring::new(start, (self.session.clone(), siblings), self.executing.executor(), label)?;
        Ok(Ring::new(ring))
    }

    fn started(&self, rings: &RingSet, index: u16) {
        self.executing.started(rings, index);
    }

    fn places(&self) -> u16 {
        self.queues
    }

    fn hand_over(&self) -> Result<(), String> {
        let why = "it is a 9P directory with a connected frontend, whose fids and open files cannot be handed over: \
                   disconnect the frontend, or restart the daemon instead";
        Err(why.to_owned())
    }

    /// A client that begins anew says so by a version; until then, others wait for the locks of the one before.
    fn reset(&self) {
        self.session.reset();
    }

    fn session_ended(&self) {
        self.session.reset();
    }
}
