//! Guests of QEMU that are moved while they work: into a file and out of it, there and back, cancelled, and to a target that dies.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::device::Device;
use crate::lab::Lab;
use crate::long;
use crate::qemu::{BootFrom, Guest};

/// How long anything may take that a guest is waited for.
pub const LIMIT: Duration = Duration::from_secs(240);

/// What a guest does in rounds for ever, each of which it tells the end of (`round 7 ends`). It ends where something is wrong.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// What it executes.
    pub script: &'a str,
    /// Rounds behind which all was looked at that was there before a move.
    pub rounds: usize,
    /// Rounds that end while it is moved.
    pub rounds_of_a_move: usize,
}

/// Rounds that ended by a console, or a part of it.
pub fn rounds(console: &str) -> usize {
    console.matches(" ends").count()
}

impl Load<'_> {
    /// Boots a guest that does it.
    pub fn boot(self, lab: &Lab, device: Device) -> Result<Guest> {
        let mut guest = Guest::boot(lab, BootFrom::HostToMove, &[device], 1, self.script)?;
        self.goes_on(&mut guest)?;
        Ok(guest)
    }

    /// A guest that goes on with it when another one's memory has come.
    pub fn incoming(self, lab: &Lab, device: Device, uri: &str) -> Result<Guest> {
        Guest::incoming(lab, &[device], 1, self.script, uri)
    }

    /// It goes on for some rounds more.
    pub fn goes_on(self, guest: &mut Guest) -> Result<()> {
        let before = rounds(&guest.console());
        let enough = |console: &str| rounds(console) >= before + self.rounds;
        guest.wait_until(LIMIT, enough).context("the load goes on in the guest")
    }

    /// Moves it while its load goes on.
    pub fn migrate(self, guest: &mut Guest, uri: &str) -> Result<()> {
        guest.migrate(uri, LIMIT, |since| rounds(since) >= self.rounds_of_a_move)
    }
}

/// Where a QEMU waits for a guest from another one.
pub fn unix(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

/// Where a guest is kept.
pub fn file(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// Servers of one and the same thing, to which guests are moved.
pub struct Sides<'a, S> {
    /// Where the sockets of QEMUs are made.
    pub place: &'a Path,
    /// Starts one.
    pub start: &'a dyn Fn() -> Result<S>,
    /// What a guest sees of it.
    pub device: fn(&S) -> Device,
    /// How it is while a guest runs on the first and not on the second.
    pub check: &'a dyn Fn(&S, &S) -> Result<()>,
}

impl<S> Sides<'_, S> {
    /// As often as the night wants it, has a migration cancelled, another one's target killed with its server, and the guest moved there
    /// and back. Both servers, and the guest, which is on the first.
    pub fn there_and_back(&self, lab: &Lab, load: Load<'_>) -> Result<(S, S, Guest)> {
        let (here, mut there) = ((self.start)()?, (self.start)()?);
        let mut guest = load.boot(lab, (self.device)(&here))?;
        let incoming = |server: &S, name: &str| {
            let uri = unix(&self.place.join(name));
            load.incoming(lab, (self.device)(server), &uri).map(|guest| (guest, uri))
        };
        for _ in 0..long::more() {
            (self.check)(&here, &there)?;
            let (left, uri) = incoming(&there, "left")?;
            guest.migrate_and_cancel(&uri, LIMIT, |since| rounds(since) >= 1)?;
            left.kill();
            (self.check)(&here, &there)?;
            let (lost, uri) = incoming(&there, "lost")?;
            guest.migrate_and_lose(lost, &uri, LIMIT, |since| rounds(since) >= 1)?;
            drop(there);
            there = (self.start)()?;
            (self.check)(&here, &there)?;
            let (mut moved, uri) = incoming(&there, "moved")?;
            load.migrate(&mut guest, &uri)?;
            load.goes_on(&mut moved)?;
            (self.check)(&there, &here)?;
            // Not before the guest runs elsewhere: a file without a name is there as long as somebody has it open.
            guest.kill();
            (self.check)(&there, &here)?;
            let (back, uri) = incoming(&here, "back")?;
            load.migrate(&mut moved, &uri)?;
            guest = back;
            load.goes_on(&mut guest)?;
            moved.kill();
        }
        (self.check)(&here, &there)?;
        Ok((here, there, guest))
    }
}
