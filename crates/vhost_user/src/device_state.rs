//! The device's state on its way to another backend, or from one, through a pipe or a socket that the frontend has opened
//! (vhost-user, "Migrating back-end state").
//!
//! It is moved between messages, as far as that goes along: a frontend that does not read or write holds nobody up. What is
//! in it is the target's.

mod conduit;

pub(crate) use conduit::Conduit;

use std::io;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::refusal::Refusal;

/// The longest state, in bytes: what a guest makes of it is some 50 bytes for each file that it knows.
const BYTES_MAX: usize = 1 << 30;
/// So much is moved before others are looked at.
const TURN_BYTES: usize = 1 << 20;
/// So much is read at once: what a pipe holds unless somebody asked for more.
const PIECE_BYTES: usize = 64 << 10;

/// SET_DEVICE_STATE_FD is answered with this: it goes through what the frontend has opened (vhost-user, "Invalid FD flag").
pub(crate) const THROUGH_YOURS: u64 = 0x100;
/// Bits 0 to 7 of an answer that are not 0 are an error.
pub(crate) const FAILED: u64 = 1;

#[derive(Debug)]
enum Way {
    /// What is still to be written: pieces, the first of them last, and how much of it has gone.
    Save(Vec<Vec<u8>>, usize),
    /// What has come.
    Load(Vec<u8>),
}

/// A state that is being moved.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Closed when nothing more is to be moved, which is how the other end knows.
    conduit: Option<Conduit>,
    way: Way,
    failed: Option<io::Error>,
}

impl Transfer {
    /// A state to be read by the frontend.
    pub(crate) fn save(conduit: Conduit, mut pieces: Vec<Vec<u8>>) -> Result<Transfer, Refusal> {
        let bytes = pieces.iter().map(Vec::len).sum();
        if bytes > BYTES_MAX {
            return Err(Refusal::StateBytes { bytes, most: BYTES_MAX });
        }
        pieces.reverse();
        Ok(Transfer { conduit: Some(conduit), way: Way::Save(pieces, 0), failed: None })
    }

    /// A state that the frontend writes.
    pub(crate) fn load(conduit: Conduit) -> Transfer {
        Transfer { conduit: Some(conduit), way: Way::Load(Vec::new()), failed: None }
    }

    /// What to poll for, while there is anything to move.
    pub(crate) fn fd(&self) -> Option<PollFd<'_>> {
        let flags = match self.way {
            Way::Save(..) => PollFlags::OUT,
            Way::Load(_) => PollFlags::IN,
        };
        self.conduit.as_ref().map(|conduit| PollFd::new(conduit.theirs(), flags))
    }

    /// Moves what is possible without blocking, within reason.
    pub(crate) fn turn(&mut self) {
        let mut moved = 0;
        while moved < TURN_BYTES
            && let Some(bytes) = self.step()
        {
            moved += bytes;
        }
    }

    /// How many bytes were moved; `None` when there are none to move, now or at all.
    fn step(&mut self) -> Option<usize> {
        let conduit = self.conduit.as_mut()?;
        let moved = match &mut self.way {
            Way::Save(pieces, at) => save_some(conduit, pieces, at),
            Way::Load(state) => load_some(conduit, state),
        };
        match moved {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => self.conduit = None,
            Err(Errno::AGAIN) => {}
            Err(Errno::INTR) => return Some(0),
            Err(error) => (self.conduit, self.failed) = (None, Some(error.into())),
        }
        None
    }

    /// CHECK_DEVICE_STATE: the frontend says that it has read or written all. The state that came.
    pub(crate) fn end(mut self) -> Result<Option<Vec<u8>>, Refusal> {
        while self.step().is_some() {}
        match (self.failed, self.conduit, self.way) {
            (Some(error), ..) => Err(Refusal::StateConduit(error)),
            (None, Some(_), _) => Err(Refusal::StateUnfinished),
            (None, None, Way::Save(..)) => Ok(None),
            (None, None, Way::Load(state)) => Ok(Some(state)),
        }
    }
}

fn save_some(conduit: &mut Conduit, pieces: &mut Vec<Vec<u8>>, at: &mut usize) -> Result<Option<usize>, Errno> {
    while pieces.last().is_some_and(|piece| *at >= piece.len()) {
        pieces.pop();
        *at = 0;
    }
    let rest = pieces.last().and_then(|piece| piece.get(*at..)).unwrap_or_default();
    if rest.is_empty() && conduit.is_empty() {
        return Ok(None);
    }
    let (taken, gone) = conduit.write(rest)?;
    *at += taken;
    Ok(Some(taken.max(gone)))
}

fn load_some(conduit: &mut Conduit, state: &mut Vec<u8>) -> Result<Option<usize>, Errno> {
    let mut piece = [0; PIECE_BYTES];
    let bytes = conduit.read(&mut piece)?;
    let piece = piece.get(..bytes).unwrap_or_default();
    if state.len() + piece.len() > BYTES_MAX {
        return Err(Errno::FBIG);
    }
    state.extend_from_slice(piece);
    Ok((bytes > 0).then_some(bytes))
}
