//! The device's state on its way to another backend, or from one, through a pipe that the frontend has opened (vhost-user,
//! "Migrating back-end state").
//!
//! It is moved between messages, as far as the pipe goes along: a frontend that does not read or write holds nobody up. What is
//! in it is the target's.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, read, write};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::refusal::Refusal;

/// The longest state, in bytes: what a guest makes of it is some 50 bytes for each file that it knows.
const BYTES_MAX: usize = 1 << 30;
/// So much is moved before others are looked at.
const TURN_BYTES: usize = 1 << 20;
/// What a pipe holds unless somebody asked for more.
const PIECE_BYTES: usize = 64 << 10;
/// A pipe has none (pwritev2(2)).
const NO_POSITION: u64 = u64::MAX;

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

/// What a state goes through. Its flags are the frontend's as well: each call says for itself that it does not wait.
#[derive(Debug)]
pub(crate) struct Pipe {
    fd: OwnedFd,
    is_socket: bool,
    /// Nobody else has this open file, and it does not block.
    is_ours: bool,
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
        self.pipe.as_ref().map(|pipe| PollFd::new(&pipe.fd, flags))
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
    /// Reading or writing it could block whatever it is told.
    pub(crate) fn new(fd: OwnedFd) -> Result<Pipe, Refusal> {
        let stat = fstat(&fd).map_err(|error| Refusal::StatePipe(error.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo => Ok(Pipe { fd, is_socket: false, is_ours: false }),
            FileType::Socket => Ok(Pipe { fd, is_socket: true, is_ours: false }),
            _ => Err(Refusal::StateFile),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.is_socket {
            return send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        match pwritev2(&self.fd, &[IoSlice::new(bytes)], NO_POSITION, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) => {}
            written => return written,
        }
        self.make_ours(OFlags::WRONLY)?;
        write(&self.fd, bytes)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        if self.is_socket {
            return recv(&self.fd, bytes, RecvFlags::DONTWAIT).map(|(read, _)| read);
        }
        match preadv2(&self.fd, &mut [IoSliceMut::new(bytes)], NO_POSITION, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) => {}
            read => return read,
        }
        self.make_ours(OFlags::RDONLY)?;
        read(&self.fd, bytes)
    }

    /// Before Linux 6.4, and for named pipes, calls cannot say so: the pipe is opened once more then, with flags that are nobody else's.
    /// Where there is no /proc, it cannot be.
    fn make_ours(&mut self, access: OFlags) -> Result<(), Errno> {
        if !self.is_ours {
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            let opened = open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
            (self.fd, self.is_ours) = (opened.map_err(|_| Errno::OPNOTSUPP)?, true);
        }
        Ok(())
    }
}

fn save_some(pipe: &mut Pipe, pieces: &mut Vec<Vec<u8>>, at: &mut usize) -> Result<Option<usize>, Errno> {
    let Some(piece) = pieces.last() else { return Ok(None) };
    let rest = piece.get(*at..).unwrap_or_default();
    let written = if rest.is_empty() { 0 } else { pipe.write(rest)? };
    *at += written;
    if written == rest.len() {
        pieces.pop();
        *at = 0;
    }
    Ok(Some(written))
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
