//! Replies, in the order of their completion, on their way to the client.

use super::buffers::Buffers;
use engine::Counter;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Pieces that one call sends at most.
const PIECES_MAX: usize = 16;

/// How far sending got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// There is nothing left.
    All,
    /// The client has to read first.
    Full,
    /// Nothing can be sent any more.
    Failed(Errno),
}

/// Replies that were not sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    /// Bytes that were not, in all pieces.
    bytes: usize,
    /// The kernel has the first piece.
    lent: bool,
}

impl Outbox {
    /// Bytes that were not sent.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the kernel sends a piece.
    #[inline]
    pub(crate) fn lent(&self) -> bool {
        self.lent
    }

    /// Room for a reply of at most `bytes` bytes, behind all others; it is one once [`written`](Self::written) is called.
    pub(crate) fn room(&mut self, bytes: usize, buffers: &mut Buffers) -> (NonNull<u8>, usize) {
        // A piece that the kernel has is left alone.
        let last_is_lent = self.lent && self.pieces.len() == 1;
        let fits = |piece: &Vec<u8>| piece.capacity() - piece.len() >= bytes;
        if last_is_lent || !self.pieces.back().is_some_and(fits) {
            self.pieces.push_back(buffers.take(bytes));
        }
        match self.pieces.back_mut() {
            Some(piece) => {
                let spare = piece.spare_capacity_mut();
                let room = bytes.min(spare.len());
                (NonNull::from(spare).cast(), room)
            }
            None => (NonNull::dangling(), 0),
        }
    }

    /// The room that was asked for last holds a reply.
    ///
    /// # Safety
    /// Its first `bytes` bytes were written, which are at most as many as there was room for.
    pub(crate) unsafe fn written(&mut self, bytes: usize) {
        if let Some(piece) = self.pieces.back_mut() {
            // SAFETY: as our caller says, these are in the piece's capacity and initialized.
            unsafe { piece.set_len(piece.len() + bytes) };
            self.bytes += bytes;
        }
    }

    /// Puts a reply behind all others that was written somewhere else: long ones as they are, short ones by a copy.
    pub(crate) fn push(&mut self, reply: Vec<u8>, buffers: &mut Buffers) {
        /// A copy of less costs less than a piece of its own, in bytes.
        const COPIED_BYTES_MAX: usize = 8 << 10;
        if reply.len() > COPIED_BYTES_MAX {
            self.bytes += reply.len();
            self.pieces.push_back(reply);
            return;
        }
        self.say(&reply, buffers);
        buffers.give(reply);
    }

    /// Puts a copy of a reply behind all others.
    pub(crate) fn say(&mut self, reply: &[u8], buffers: &mut Buffers) {
        let (place, room) = self.room(reply.len(), buffers);
        debug_assert!(room >= reply.len());
        // SAFETY: there is room for as many bytes, in memory of ours that is not the reply's.
        unsafe {
            std::ptr::copy_nonoverlapping(reply.as_ptr(), place.as_ptr(), reply.len().min(room));
            self.written(reply.len().min(room));
        }
    }

    /// Sends what the client has room for, without waiting for it. `calls` counts how often the kernel was asked.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, buffers: &mut Buffers, calls: &Counter) -> Sent {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while self.bytes > 0 && !self.lent {
            calls.add(1);
            let sent = match self.pieces.as_slices() {
                ([one], []) => rustix::net::send(socket, one.get(self.sent..).unwrap_or_default(), flags),
                _ => {
                    let mut skip = self.sent;
                    let slices: Vec<IoSlice<'_>> = (self.pieces.iter().take(PIECES_MAX))
                        .map(|piece| IoSlice::new(piece.get(std::mem::take(&mut skip)..).unwrap_or_default()))
                        .collect();
                    rustix::net::sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)
                }
            };
            match sent {
                Ok(bytes) => self.advance(bytes, buffers),
                Err(Errno::INTR) => {}
                // NOBUFS: a datagram-like transport (vsock) that is short of memory for now.
                Err(Errno::AGAIN | Errno::NOBUFS) => return Sent::Full,
                Err(error) => return Sent::Failed(error),
            }
        }
        if self.lent { Sent::Full } else { Sent::All }
    }

    /// Lends what is left of the first piece to the kernel. It stays as it is until [`returned`](Self::returned) is called.
    pub(super) fn lend(&mut self) -> Option<(NonNull<u8>, usize)> {
        let first = self.pieces.front_mut()?;
        let left = first.get_mut(self.sent..).filter(|left| !left.is_empty())?;
        self.lent = true;
        let bytes = left.len();
        Some((NonNull::from(left).cast(), bytes))
    }

    /// The kernel has sent so many bytes of the piece that it had.
    pub(super) fn returned(&mut self, bytes: usize, buffers: &mut Buffers) {
        self.lent = false;
        self.advance(bytes, buffers);
    }

    /// So many bytes more were sent.
    fn advance(&mut self, mut bytes: usize, buffers: &mut Buffers) {
        self.bytes = self.bytes.saturating_sub(bytes);
        bytes += self.sent;
        self.sent = 0;
        while let Some(first) = self.pieces.front() {
            if bytes < first.len() {
                self.sent = bytes;
                return;
            }
            bytes -= first.len();
            if let Some(piece) = self.pieces.pop_front() {
                buffers.give(piece);
            }
        }
    }

    /// What leaves next: the rest of the first piece.
    pub(super) fn first(&self) -> &[u8] {
        self.pieces.front().and_then(|piece| piece.get(self.sent..)).unwrap_or_default()
    }

    /// So many bytes of the first piece leave by another way.
    pub(super) fn skip(&mut self, bytes: usize, buffers: &mut Buffers) {
        self.advance(bytes, buffers);
    }

    /// Drops everything that was not sent and that the kernel does not have.
    pub(super) fn clear(&mut self) {
        self.pieces.truncate(usize::from(self.lent));
        self.bytes = self.pieces.front().map_or(0, |piece| piece.len() - self.sent);
        if self.pieces.is_empty() {
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
    use std::os::fd::{AsFd, OwnedFd};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn write(outbox: &mut Outbox, buffers: &mut Buffers, room: usize, reply: &[u8]) {
        let (place, there) = outbox.room(room, buffers);
        assert!(there >= room.min(reply.len()));
        // SAFETY: there is room for as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(reply.as_ptr(), place.as_ptr(), reply.len());
            outbox.written(reply.len());
        }
    }

    fn read(socket: &OwnedFd, bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < bytes {
            let mut some = vec![0; bytes - all.len()];
            let (got, _) = rustix::net::recv(socket, &mut some[..], RecvFlags::empty()).unwrap();
            assert!(got > 0, "it ended after {} of {bytes} bytes", all.len());
            all.extend_from_slice(&some[..got]);
        }
        all
    }

    #[test]
    fn replies_leave_in_their_order_wherever_they_were_written() {
        let (ours, theirs) = pair();
        let (mut outbox, mut buffers, calls) = (Outbox::default(), Buffers::default(), Counter::default());
        let long = vec![7; 40_000];
        write(&mut outbox, &mut buffers, 1000, b"one");
        outbox.push(b"two".to_vec(), &mut buffers);
        outbox.push(long.clone(), &mut buffers);
        write(&mut outbox, &mut buffers, 100_000, b"four");
        assert_eq!(outbox.bytes(), 10 + long.len());
        assert_eq!(outbox.send(ours.as_fd(), &mut buffers, &calls), Sent::All);
        assert_eq!((outbox.bytes(), calls.get()), (0, 1));
        assert_eq!(read(&theirs, 10 + long.len()), [b"onetwo", &long[..], b"four"].concat());
    }

    #[test]
    fn what_the_client_has_no_room_for_stays_until_it_reads() {
        let (ours, theirs) = pair();
        let (mut outbox, mut buffers, calls) = (Outbox::default(), Buffers::default(), Counter::default());
        let sent: Vec<u8> = (0..4 << 20).map(|at| (at / 777) as u8).collect();
        for piece in sent.chunks(300_000) {
            outbox.push(piece.to_vec(), &mut buffers);
        }
        assert_eq!(outbox.send(ours.as_fd(), &mut buffers, &calls), Sent::Full);
        let mut got = Vec::new();
        while got.len() < sent.len() {
            if !outbox.lent()
                && let Some((place, bytes)) = outbox.lend()
            {
                // As the kernel would do with it, some at a time, while more is added behind.
                let some = bytes.min(100_000);
                // SAFETY: these bytes are lent.
                let lent = unsafe { std::slice::from_raw_parts(place.as_ptr(), some) };
                let left = outbox.bytes();
                assert_eq!(outbox.send(ours.as_fd(), &mut buffers, &calls), Sent::Full, "the order is lost");
                got.extend(read(&theirs, sent.len() - left - got.len()));
                got.extend_from_slice(lent);
                outbox.returned(some, &mut buffers);
            }
            outbox.send(ours.as_fd(), &mut buffers, &calls);
            got.extend(read(&theirs, sent.len() - outbox.bytes() - got.len()));
        }
        assert!(got == sent, "not what was sent");
    }

    #[test]
    fn what_is_lent_outlives_the_rest() {
        let (mut outbox, mut buffers) = (Outbox::default(), Buffers::default());
        outbox.push(vec![1; 10_000], &mut buffers);
        outbox.push(vec![2; 10_000], &mut buffers);
        let (place, bytes) = outbox.lend().unwrap();
        write(&mut outbox, &mut buffers, 10, b"three");
        outbox.clear();
        assert_eq!(outbox.bytes(), 10_000);
        // SAFETY: these bytes are lent.
        assert!(unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) }.iter().all(|byte| *byte == 1));
        outbox.returned(10_000, &mut buffers);
        outbox.clear();
        assert_eq!((outbox.bytes(), outbox.lent()), (0, false));
        let (ours, theirs) = pair();
        drop(theirs);
        write(&mut outbox, &mut buffers, 10, b"nobody");
        assert_eq!(outbox.send(ours.as_fd(), &mut buffers, &Counter::default()), Sent::Failed(Errno::PIPE));
    }
}
