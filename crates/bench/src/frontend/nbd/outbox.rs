//! What is to be sent: requests one behind the other, as many in a call as there are.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::message::Request;
use super::spec::REQUEST_BYTES;
use crate::frontend::buffers::Loan;

/// Pieces in one call.
const PIECES_SENT_MAX: usize = 64;

/// What lies in one place of memory.
enum Piece {
    /// So many bytes of heads, which lie one behind the other.
    Heads(usize),
    /// The data of a write, sent from where it is.
    Data { slot: u16, data: Loan },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Heads(bytes) => *bytes,
            Self::Data { data, .. } => data.len(),
        }
    }
}

/// Requests that have not been sent whole.
pub(super) struct Outbox {
    pieces: VecDeque<Piece>,
    /// How much of the first piece has been sent.
    sent: usize,
    heads: Vec<u8>,
    /// Where the heads of the first piece that has some begin.
    heads_start: usize,
}

impl Outbox {
    /// Room for the requests of `depth` slots.
    pub(super) fn new(depth: u16) -> Self {
        let heads = Vec::with_capacity(2 * usize::from(depth) * REQUEST_BYTES);
        Self { pieces: VecDeque::new(), sent: 0, heads, heads_start: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends a request.
    pub(super) fn push(&mut self, request: &Request) {
        if self.heads.len() + REQUEST_BYTES > self.heads.capacity() {
            self.heads.drain(..self.heads_start);
            self.heads_start = 0;
        }
        self.heads.extend_from_slice(&request.encode());
        match self.pieces.back_mut() {
            Some(Piece::Heads(bytes)) => *bytes += REQUEST_BYTES,
            _ => self.pieces.push_back(Piece::Heads(REQUEST_BYTES)),
        }
    }

    /// Appends the data of the write that was pushed last.
    pub(super) fn push_data(&mut self, slot: u16, data: Loan) {
        self.pieces.push_back(Piece::Data { slot, data });
    }

    /// Whether the data of this slot's write has not been sent whole.
    pub(super) fn has_data_of(&self, slot: u16) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Data { slot: of, .. } if *of == slot))
    }

    /// Sends as much as the socket takes now.
    pub(super) fn send(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        while !self.pieces.is_empty() {
            let mut parts = [IoSlice::new(&[]); PIECES_SENT_MAX];
            let (mut count, mut bytes, mut from, mut heads_at) = (0, 0, self.sent, self.heads_start);
            for (part, piece) in parts.iter_mut().zip(&self.pieces) {
                let whole = match piece {
                    Piece::Heads(len) => {
                        heads_at += len;
                        &self.heads[heads_at - len..heads_at]
                    }
                    Piece::Data { data, .. } => data.data(),
                };
                *part = IoSlice::new(&whole[from..]);
                bytes += part.len();
                (count, from) = (count + 1, 0);
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(socket, &parts[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => {
                    self.advance(sent);
                    if sent < bytes {
                        // It is full.
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Notes that `bytes` more have been sent.
    fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(piece) = self.pieces.front() {
            let len = piece.len();
            if self.sent < len {
                return;
            }
            if let Piece::Heads(_) = piece {
                self.heads_start += len;
            }
            self.sent -= len;
            self.pieces.pop_front();
        }
        self.heads.clear();
        self.heads_start = 0;
    }
}
