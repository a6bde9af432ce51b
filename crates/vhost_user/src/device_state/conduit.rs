//! What a state goes through, and how nobody waits for whoever is at its other end.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, read, write};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, sockopt};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::refusal::Refusal;

/// What the frontend has opened: QEMU a pipe, Cloud Hypervisor a socket.
#[derive(Debug)]
pub(crate) enum Conduit {
    /// A pipe, with or without a name.
    Pipe(Pipe),
    /// A connected stream socket of this host. Each call can be told not to wait.
    Socket(OwnedFd),
}

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

impl Conduit {
    /// # Errors
    /// It is neither: reading, writing or closing anything else could block whatever it is told.
    pub(crate) fn new(theirs: OwnedFd) -> Result<Conduit, Refusal> {
        let failed = |error: Errno| Refusal::StateConduit(error.into());
        match FileType::from_raw_mode(fstat(&theirs).map_err(failed)?.st_mode) {
            FileType::Fifo => {
                let ours = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
                Ok(Conduit::Pipe(Pipe { theirs, ours, bytes: 0 }))
            }
            FileType::Socket
                if sockopt::socket_domain(&theirs).map_err(failed)? == AddressFamily::UNIX
                    && sockopt::socket_type(&theirs).map_err(failed)? == SocketType::STREAM =>
            {
                Ok(Conduit::Socket(theirs))
            }
            _ => Err(Refusal::StateFile),
        }
    }

    /// What to poll.
    pub(crate) fn theirs(&self) -> &OwnedFd {
        match self {
            Conduit::Pipe(pipe) => &pipe.theirs,
            Conduit::Socket(socket) => socket,
        }
    }

    /// Whether all that was taken has gone.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Conduit::Pipe(pipe) => pipe.bytes == 0,
            Conduit::Socket(_) => true,
        }
    }

    /// How many of these bytes it has taken, and how many have gone.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(usize, usize), Errno> {
        match self {
            Conduit::Pipe(pipe) => pipe.write(bytes),
            Conduit::Socket(socket) => {
                let gone = send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
                Ok((gone, gone))
            }
        }
    }

    /// How many bytes were read; none at the end.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Conduit::Pipe(pipe) => pipe.read(bytes),
            Conduit::Socket(socket) => Ok(recv(socket, bytes, RecvFlags::DONTWAIT)?.0),
        }
    }
}

impl Pipe {
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
