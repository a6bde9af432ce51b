//! What an attack is, and what it is given to work with.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use tests::driver::Ring;

use super::raw::Raw;
use super::session::{BLOCK, BUFFER, Device, HEADER, PATIENCE, Session, lay_out, settle};
use crate::neighbour::case::Protocol;
use crate::neighbour::guest::Guest;
use crate::rng::Rng;

/// How long the end of an idle session takes at most, as a rule.
const BETWEEN: Duration = Duration::from_millis(20);

/// What vringd must make of it, beyond serving everybody else and whoever comes next. Other servers owe nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Expect {
    /// The ring stops, and the API says why.
    Broken,
    /// Whatever it likes: refuse, answer with an error, end the session.
    Anything,
}

/// Exports that it is tried on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum On {
    Any,
    Disk,
    Directory,
    P9,
    /// Directories, over either protocol.
    Tree,
    Scsi,
    /// Not an export: whoever may be on the host. It is tried once, if this process is root's and can become anybody.
    Host,
}

/// A user of the host got where only root may be.
#[derive(Debug)]
pub(crate) struct Admitted(pub(crate) String);

impl fmt::Display for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Admitted {}

/// One attack.
#[derive(Debug)]
pub(crate) struct Attack {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) what: &'static str,
    pub(crate) on: On,
    pub(crate) expect: Expect,
    /// An error says that it did not come as far as attacking.
    pub(crate) run: fn(&mut Scene<'_>) -> Result<()>,
}

impl Attack {
    /// Whether it is tried on such an export.
    pub(crate) fn suits(&self, device: Device) -> bool {
        match self.on {
            On::Any => true,
            On::Disk => device == Device::Disk,
            On::Directory => device == Device::Directory,
            On::P9 => device == Device::P9,
            On::Tree => matches!(device, Device::Directory | Device::P9),
            On::Scsi => device == Device::Scsi,
            On::Host => device == Device::Disk && rustix::process::geteuid().is_root(),
        }
    }
}

/// What an attack works with.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) device: Device,
    pub(crate) random: Rng,
    kept: Vec<Box<dyn Kept>>,
}

/// Anything at all.
trait Kept: Any + std::fmt::Debug {}

impl<T: Any + std::fmt::Debug> Kept for T {}

impl<'a> Scene<'a> {
    /// An attack on the export that listens at `socket`.
    pub(crate) fn new(socket: &'a Path, device: Device, random: Rng) -> Self {
        Self { socket, device, random, kept: Vec::new() }
    }

    /// Keeps something until the server has been looked at after the attack.
    pub(crate) fn keep(&mut self, what: impl Any + std::fmt::Debug) {
        self.kept.push(Box::new(what));
    }

    /// Lets go of all that was kept: a server has one session at a time.
    pub(crate) fn let_go(&mut self) {
        self.kept.clear();
    }

    /// A place where the server has its sockets and files.
    pub(crate) fn place(&self) -> &Path {
        self.socket.parent().unwrap_or(self.socket)
    }

    /// A guest that behaves, of a directory.
    pub(crate) fn guest(&self) -> Result<Guest> {
        let protocol = if self.device == Device::P9 { Protocol::P9 } else { Protocol::Fuse };
        let end = Instant::now() + PATIENCE;
        loop {
            match Guest::connect(self.socket, protocol) {
                // The session before may still be ending.
                Err(_) if Instant::now() < end => thread::sleep(BETWEEN),
                guest => return guest,
            }
        }
    }

    /// A session without a ring.
    pub(crate) fn session(&self) -> Result<Session> {
        Session::open_patiently(self.socket, 0, 0)
    }

    /// A session with a running ring, to be spoilt.
    pub(crate) fn victim(&self) -> Result<Victim> {
        self.victim_without(0)
    }

    /// As above, without some features.
    pub(crate) fn victim_without(&self, features: u64) -> Result<Victim> {
        let mut session = Session::open_patiently(self.socket, features, 0)?;
        let ring = session.ring(self.device.request_ring())?;
        Ok(Victim { session, ring })
    }

    /// A connection on which all has been negotiated, without memory of its own.
    pub(crate) fn raw(&self) -> Result<Raw> {
        // The session before may still be ending, and then this one is turned away: whoever gets memory across is served.
        Ok(self.session()?.raw)
    }

    /// A connection on which nothing has been said.
    pub(crate) fn fresh(&self) -> Result<Raw> {
        // A server that has served one session to its end takes the next at once.
        drop(self.session()?);
        thread::sleep(BETWEEN);
        Raw::connect(self.socket)
    }
}

/// A session with a running ring.
#[derive(Debug)]
pub(crate) struct Victim {
    pub(crate) session: Session,
    pub(crate) ring: Ring,
}

impl Victim {
    /// Writes a read in three descriptors from `at` on.
    pub(crate) fn lay_out(&self, at: u16) {
        self.session.memory.write(HEADER, &[0; 16]);
        lay_out(&self.ring, at, BUFFER, BLOCK);
    }

    /// Kicks, and gives the server time to look.
    pub(crate) fn kick(&self) {
        self.ring.kick();
        settle();
    }
}
