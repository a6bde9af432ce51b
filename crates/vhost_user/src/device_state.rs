//! The device's state on its way to another backend, or from one, through a pipe that the frontend has opened (vhost-user,
//! "Migrating back-end state").
//!
//! It is moved between messages, as far as the pipe goes along: a frontend that does not read or write holds nobody up. What is
//! in it is the target's.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::refusal::Refusal;

/// The longest state, in bytes: what a guest makes of it is some 50 bytes for each file that it knows.
const BYTES_MAX: usize = 1 << 30;
/// So much is moved before others are looked at.
const TURN_BYTES: usize = 1 << 20;
/// What a pipe holds unless somebody asked for more.
const PIECE_BYTES: usize = 64 << 10;

/// SET_DEVICE_STATE_FD is answered with this: it goes through the frontend's pipe (vhost-user, "Invalid FD flag").
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

/// What a state goes through.
///
/// The flags of the frontend's pipe are the frontend's as well, and `RWF_NOWAIT` is for pipes without a name alone, since Linux 6.4. splice(2)
/// can be told for itself not to wait, from one pipe to another. So there is one of our own between.
#[derive(Debug)]
pub(crate) struct Pipe {
    theirs: OwnedFd,
    /// Where our own is read, and where it is written to.
    ours: (OwnedFd, OwnedFd),
    /// What is in it.
    bytes: usize,
}

/// A state that is being moved.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Closed when nothing more is to be moved, which is how the other end knows.
    pipe: Option<Pipe>,
    way: Way,
    failed: Option<io::Error>,
}

impl Transfer {
    /// A state to be read by the frontend.
    pub(crate) fn save(pipe: Pipe, mut pieces: Vec<Vec<u8>>) -> Result<Transfer, Refusal> {
        let bytes = pieces.iter().map(Vec::len).sum();
        if bytes > BYTES_MAX {
            return Err(Refusal::StateBytes { bytes, most: BYTES_MAX });
        }
        pieces.reverse();
        Ok(Transfer { pipe: Some(pipe), way: Way::Save(pieces, 0), failed: None })
    }

    /// A state that the frontend writes.
    pub(crate) fn load(pipe: Pipe) -> Transfer {
        Transfer { pipe: Some(pipe), way: Way::Load(Vec::new()), failed: None }
    }

    /// What to poll for, while there is anything to move.
    pub(crate) fn fd(&self) -> Option<PollFd<'_>> {
        let flags = match self.way {
            Way::Save(..) => PollFlags::OUT,
            Way::Load(_) => PollFlags::IN,
        };
        self.pipe.as_ref().map(|pipe| PollFd::new(&pipe.theirs, flags))
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
        let pipe = self.pipe.as_mut()?;
        let moved = match &mut self.way {
            Way::Save(pieces, at) => save_some(pipe, pieces, at),
            Way::Load(state) => load_some(pipe, state),
        };
        match moved {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => self.pipe = None,
            Err(Errno::AGAIN) => {}
            Err(Errno::INTR) => return Some(0),
            Err(error) => (self.pipe, self.failed) = (None, Some(error.into())),
        }
        None
    }

    /// CHECK_DEVICE_STATE: the frontend says that it has read or written all. The state that came.
    pub(crate) fn end(mut self) -> Result<Option<Vec<u8>>, Refusal> {
        while self.step().is_some() {}
        match (self.failed, self.pipe, self.way) {
            (Some(error), ..) => Err(Refusal::StatePipe(error)),
            (None, Some(_), _) => Err(Refusal::StateUnfinished),
            (None, None, Way::Save(..)) => Ok(None),
            (None, None, Way::Load(state)) => Ok(Some(state)),
        }
    }
}

impl Pipe {
    /// # Errors
    /// It is none: reading or writing anything else could block whatever it is told.
    pub(crate) fn new(theirs: OwnedFd) -> Result<Pipe, Refusal> {
        let failed = |error: Errno| Refusal::StatePipe(error.into());
        let stat = fstat(&theirs).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
            return Err(Refusal::StateFile);
        }
        let ours = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
        Ok(Pipe { theirs, ours, bytes: 0 })
    }

    /// How many of these bytes it has taken, and whether any went on.
    fn write(&mut self, bytes: &[u8]) -> Result<(usize, usize), Errno> {
        let taken = if self.bytes > 0 || bytes.is_empty() { 0 } else { write(&self.ours.1, bytes)? };
        self.bytes += taken;
        let gone = splice(&self.ours.0, None, &self.theirs, None, self.bytes, SpliceFlags::NONBLOCK);
        let gone = match gone {
            // They are taken nevertheless.
            Err(Errno::AGAIN | Errno::INTR) if taken > 0 => 0,
            gone => gone?,
        };
        self.bytes -= gone;
        Ok((taken, gone))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        if self.bytes == 0 {
            self.bytes = splice(&self.theirs, None, &self.ours.1, None, bytes.len(), SpliceFlags::NONBLOCK)?;
        }
        let most = self.bytes.min(bytes.len());
        let read = if most == 0 { 0 } else { read(&self.ours.0, bytes.get_mut(..most).unwrap_or_default())? };
        self.bytes -= read;
        Ok(read)
    }
}

fn save_some(pipe: &mut Pipe, pieces: &mut Vec<Vec<u8>>, at: &mut usize) -> Result<Option<usize>, Errno> {
    while pieces.last().is_some_and(|piece| *at >= piece.len()) {
        pieces.pop();
        *at = 0;
    }
    let rest = pieces.last().and_then(|piece| piece.get(*at..)).unwrap_or_default();
    if rest.is_empty() && pipe.bytes == 0 {
        return Ok(None);
    }
    let (taken, gone) = pipe.write(rest)?;
    *at += taken;
    Ok(Some(taken.max(gone)))
}

fn load_some(pipe: &mut Pipe, state: &mut Vec<u8>) -> Result<Option<usize>, Errno> {
    let mut piece = [0; PIECE_BYTES];
    let bytes = pipe.read(&mut piece)?;
    let piece = piece.get(..bytes).unwrap_or_default();
    if state.len() + piece.len() > BYTES_MAX {
        return Err(Errno::FBIG);
    }
    state.extend_from_slice(piece);
    Ok((bytes > 0).then_some(bytes))
}
