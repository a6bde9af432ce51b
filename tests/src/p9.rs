//! A 9P2000.L client without a kernel, on a device: messages as bytes (include/net/9p/9p.h), on the driver of
//! [`crate::driver`].

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::driver::{Ring, readable, writable};
use crate::frontend::{DATA, Frontend};

/// Types of messages. An answer is one more.
pub mod kind {
    #![allow(missing_docs, reason = "they are the protocol's names")]
    pub const RLERROR: u8 = 7;
    pub const TLOPEN: u8 = 12;
    pub const TGETATTR: u8 = 24;
    pub const TSETATTR: u8 = 26;
    pub const TFSYNC: u8 = 50;
    pub const TLOCK: u8 = 52;
    pub const TGETLOCK: u8 = 54;
    pub const TRENAMEAT: u8 = 74;
    pub const TUNLINKAT: u8 = 76;
    pub const TVERSION: u8 = 100;
    pub const TATTACH: u8 = 104;
    pub const TWALK: u8 = 110;
    pub const TCLUNK: u8 = 120;
}

/// The fid of the root.
pub const ROOT: u32 = 0;
const NO_TAG: u16 = u16::MAX;
const NO_FID: u32 = u32::MAX;
/// size[4] type[1] tag[2].
const HEADER_BYTES: usize = 7;
const MSIZE: u32 = 8192;
/// Places for requests under way: a message, then room for its answer.
const PLACES: u16 = 32;
const PLACE_BYTES: u64 = 2 * MSIZE as u64;

/// One message's fields.
#[derive(Clone, Debug, Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// A number of one byte.
    #[must_use]
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// A number of two bytes.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A number of four bytes.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A number of eight bytes.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A string.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u16).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    kind: u8,
    tag: u16,
    head: u16,
    answer_at: u64,
}

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reply {
    /// 0, or an error number.
    pub error: i32,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body, if there was no error.
    pub fn ok(self) -> Result<Self> {
        ensure!(self.error == 0, "the server answered with error {}", self.error);
        Ok(self)
    }
}

/// A connected client that has attached to the root.
pub struct Client {
    frontend: Frontend,
    ring: Ring,
    requests: u16,
    fids: u32,
    /// Heads that were used and not asked for yet.
    ended: BTreeSet<u16>,
}

impl Client {
    /// Connects and begins a session as root.
    pub fn begin(socket: &Path) -> Result<Self> {
        let mut frontend = Frontend::connect(socket, 0)?;
        let ring = frontend.ring(0, 128)?;
        let mut client = Self { frontend, ring, requests: 0, fids: ROOT, ended: BTreeSet::new() };
        client.call(kind::TVERSION, Body::default().u32(MSIZE).text("9P2000.L"))?.ok()?;
        client.call(kind::TATTACH, Body::default().u32(ROOT).u32(NO_FID).text("root").text("").u32(0))?.ok()?;
        Ok(client)
    }

    /// The queue.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Asks and waits for the answer.
    pub fn call(&mut self, kind: u8, body: Body) -> Result<Reply> {
        let call = self.begin_call(kind, body)?;
        self.end_call(call)
    }

    /// Asks and does not wait. Each such request has a place of its own, for up to 32 of them.
    pub fn begin_call(&mut self, kind: u8, body: Body) -> Result<Waiting> {
        self.requests = self.requests.wrapping_add(1) % (NO_TAG - NO_TAG % PLACES);
        let tag = if kind == kind::TVERSION { NO_TAG } else { self.requests };
        let size = HEADER_BYTES + body.0.len();
        ensure!(size <= MSIZE as usize, "a message of {size} bytes");
        let mut message = (size as u32).to_le_bytes().to_vec();
        message.push(kind);
        message.extend(tag.to_le_bytes());
        message.extend(body.0);
        let at = DATA + u64::from(self.requests % PLACES) * PLACE_BYTES;
        let answer_at = at + PLACE_BYTES / 2;
        self.frontend.memory().write(at, &message);
        let head = self.ring.add(&[readable(at, size as u32), writable(answer_at, MSIZE)]);
        self.ring.kick_if_wanted();
        Ok(Waiting { kind, tag, head, answer_at })
    }

    /// Whether the answer is there already.
    pub fn has_ended(&mut self, call: Waiting) -> bool {
        while let Some((head, _)) = self.ring.take_used() {
            self.ended.insert(head);
        }
        self.ended.contains(&call.head)
    }

    /// Waits for the answer, which must be one to this request.
    pub fn end_call(&mut self, call: Waiting) -> Result<Reply> {
        while !self.has_ended(call) {
            let (head, _) = self.ring.wait_used();
            self.ended.insert(head);
        }
        self.ended.remove(&call.head);
        let memory = self.frontend.memory();
        let header = memory.read(call.answer_at, HEADER_BYTES);
        let size = u32::from_le_bytes(header[..4].try_into()?);
        let body = (size as usize).checked_sub(HEADER_BYTES).filter(|_| size <= MSIZE);
        let body = memory.read(call.answer_at + HEADER_BYTES as u64, body.context("an answer's size")?);
        let (answered, tag) = (header[4], u16::from_le_bytes(header[5..].try_into()?));
        ensure!(tag == call.tag, "an answer to tag {tag} instead of {}", call.tag);
        if answered == kind::RLERROR {
            let error = u32::from_le_bytes(body.try_into().ok().context("an error is four bytes")?);
            return Ok(Reply { error: i32::try_from(error)?, body: Vec::new() });
        }
        ensure!(answered == call.kind + 1, "request {} is answered by {answered}", call.kind);
        Ok(Reply { error: 0, body })
    }

    /// A new fid for a name in the root.
    pub fn walk(&mut self, name: &str) -> Result<u32> {
        self.fids += 1;
        let fid = self.fids;
        self.call(kind::TWALK, Body::default().u32(ROOT).u32(fid).u16(1).text(name))?.ok()?;
        Ok(fid)
    }

    /// A new fid for a name in the root, opened.
    pub fn open(&mut self, name: &str, flags: u32) -> Result<u32> {
        let fid = self.walk(name)?;
        self.call(kind::TLOPEN, Body::default().u32(fid).u32(flags))?.ok()?;
        Ok(fid)
    }
}
