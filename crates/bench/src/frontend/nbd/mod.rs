//! A client of NBD servers that is as quick as we can make it: it is to hide nothing of the server that it measures.
//!
//! | module | |
//! |---|---|
//! | `spec` | numbers of the protocol |
//! | `handshake` | from a new connection to the disk behind it |
//! | `message` | requests and replies |
//! | `outbox`, `inbox` | many requests in one call, many replies in one call |
//! | `connection` | requests in flight |
//!
//! Replies are simple ones: structured replies are not asked for, so a read's data is always in one piece.

mod connection;
mod handshake;
mod inbox;
mod message;
mod outbox;
mod spec;
#[cfg(test)]
mod tests;

use std::os::unix::net::UnixStream;
use std::path::Path;

use super::Error;
use super::buffers::Buffers;
use super::device::{Device, Memory};
use super::queue::Queue;
use super::spec::{Limits, Spec};
use handshake::Export;

pub(crate) use connection::Connection;
pub use connection::ConnectionError;
pub use handshake::HandshakeError;

/// Buffers begin at a multiple of this, as those of other protocols.
const PAGE_BYTES: usize = 4096;

/// Connects to `socket` as often as `spec` says, and sets up what it asks for. A server is waited for without end.
pub(crate) fn set_up(socket: &Path, spec: &Spec) -> Result<Device, Error> {
    let (stream, export) = connect(socket)?;
    if export.is_read_only() && spec.rw.writes() {
        return Err(Error::ReadOnly);
    }
    if !export.has_flush() && spec.flushes() {
        return Err(Error::NoFlush);
    }
    let limits = Limits {
        capacity_bytes: export.capacity_bytes,
        block_bytes: export.block_bytes,
        segment_bytes_max: export.payload_bytes_max,
        // The protocol has no word for how many connections there may be.
        queues: u16::MAX,
    };
    let parts = spec.parts(&limits)?;
    let mut streams = vec![stream];
    for _ in 1..spec.queues {
        streams.push(connect(socket)?.0);
    }
    let connection = |stream: UnixStream| Connection::new(stream.into(), spec.depth, spec.block_bytes);
    let queues = streams.into_iter().map(|stream| Queue::Nbd(Box::new(connection(stream)))).collect();
    let mut memory = vec![0; spec.buffer_bytes() as usize + PAGE_BYTES];
    let buffers = Buffers::side_by_side((memory.as_mut_ptr() as usize).next_multiple_of(PAGE_BYTES), spec);
    Ok(Device { queues, buffers, parts, limits, memory: Memory::Own(memory) })
}

fn connect(socket: &Path) -> Result<(UnixStream, Export), Error> {
    let failed = |cause| Error::NbdConnect { socket: socket.to_owned(), cause };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    let export = handshake::negotiate(&mut stream);
    let export = export.map_err(|cause| Error::Handshake { socket: socket.to_owned(), cause })?;
    Ok((stream, export))
}
