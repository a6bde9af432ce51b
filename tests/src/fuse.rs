//! A FUSE client without a kernel: requests as bytes (linux/fuse.h), on the driver of [`crate::driver`].
//! It can obey the protocol, and it can say anything.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use frontkit::Memory;

use crate::driver::{Buffer, Ring, readable, writable};
use crate::frontend::{DATA, Frontend};

/// Operations (`enum fuse_opcode`).
pub mod op {
    #![allow(missing_docs, reason = "they are the protocol's names")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const STATX: u32 = 52;
}

/// The root of the tree.
pub const ROOT: u64 = 1;
/// `struct fuse_in_header` and `struct fuse_out_header`, in bytes.
pub const IN_HEADER_BYTES: usize = 40;
/// As above.
pub const OUT_HEADER_BYTES: usize = 16;
/// Largest request and largest answer that this client has room for.
pub const ROOM_BYTES: u32 = 1 << 20;

const REQUEST_AT: u64 = DATA;
const REPLY_AT: u64 = DATA + ROOM_BYTES as u64;
/// What the place of an answer holds before the server writes there.
const UNTOUCHED: u8 = 0xee;

const WAITING_AT: u64 = DATA + 2 * ROOM_BYTES as u64;
const WAITING_MAX: u64 = 64;
const WAITING_BYTES: u64 = 512;
/// Room for the answer to such a request.
const ANSWER_BYTES: usize = WAITING_BYTES as usize / 2;

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Its number.
    pub unique: u64,
    head: u16,
    answer_at: u64,
}

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reply {
    /// 0, or a negated error number.
    pub error: i32,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Reply {
    /// A little-endian number of the body.
    pub fn u64_at(&self, at: usize) -> u64 {
        self.body.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// As above.
    pub fn u32_at(&self, at: usize) -> u32 {
        self.body.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    /// The body, if there was no error.
    pub fn ok(self) -> Result<Self> {
        ensure!(self.error == 0, "the server answered with error {}", -self.error);
        Ok(self)
    }
}

/// A connected client with a high-priority queue (0) and one request queue (1).
pub struct Client {
    frontend: Frontend,
    high: Ring,
    requests: Ring,
    unique: u64,
    /// Heads that were used and not asked for yet.
    ended: BTreeSet<u16>,
}

impl Client {
    /// Connects; the session is not begun.
    pub fn connect(socket: &Path) -> Result<Self> {
        let mut frontend = Frontend::connect(socket, 0)?;
        let high = frontend.ring(0, 128)?;
        let requests = frontend.ring(1, 128)?;
        Ok(Self { frontend, high, requests, unique: 0, ended: BTreeSet::new() })
    }

    /// Connects and begins a session (INIT) as Linux does, with version 7.38 and no special wishes.
    pub fn begin(socket: &Path) -> Result<Self> {
        let mut client = Self::connect(socket)?;
        client.call(op::INIT, 0, &init_body(7, 38))?.ok()?;
        Ok(client)
    }

    /// The memory that it shares with the server.
    pub fn memory(&self) -> &Arc<Memory> {
        self.frontend.memory()
    }

    /// The request queue.
    pub fn requests(&mut self) -> &mut Ring {
        &mut self.requests
    }

    /// The high-priority queue.
    pub fn high(&mut self) -> &mut Ring {
        &mut self.high
    }

    /// A request as the protocol wants it, by root.
    pub fn request(&mut self, opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        self.unique += 2;
        request(opcode, self.unique, node, body)
    }

    /// Asks and waits for the answer, which must be one to this request.
    pub fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> Result<Reply> {
        let bytes = self.request(opcode, node, body);
        let unique = self.unique;
        let (used, answer) = self.send(&bytes, ROOM_BYTES);
        ensure!(used >= OUT_HEADER_BYTES as u32, "an answer of {used} bytes");
        let answered = u64::from_le_bytes(answer[8..16].try_into()?);
        ensure!(answered == unique, "an answer to request {answered} instead of {unique}");
        let length = u32::from_le_bytes(answer[..4].try_into()?);
        ensure!(length == used, "an answer of {used} bytes that says it has {length}");
        let error = i32::from_le_bytes(answer[4..8].try_into()?);
        ensure!((-4095..=0).contains(&error), "error {error}");
        ensure!(error == 0 || length as usize == OUT_HEADER_BYTES, "an error with {length} bytes");
        Ok(Reply { error, body: answer[OUT_HEADER_BYTES..].to_vec() })
    }

    /// Sends any bytes, with room for an answer, and returns how much of it was used, and that.
    pub fn send(&mut self, bytes: &[u8], room: u32) -> (u32, Vec<u8>) {
        self.memory().write(REQUEST_AT, bytes);
        let mut buffers = Vec::new();
        if !bytes.is_empty() {
            buffers.push(readable(REQUEST_AT, bytes.len() as u32));
        }
        if room > 0 {
            buffers.push(writable(REPLY_AT, room));
        }
        self.send_chain(&buffers)
    }

    /// Sends any chain; an answer is looked for where [`send`](Self::send) has room for it.
    pub fn send_chain(&mut self, buffers: &[Buffer]) -> (u32, Vec<u8>) {
        self.memory().write(REPLY_AT, &[UNTOUCHED; OUT_HEADER_BYTES]);
        let head = self.requests.add(buffers);
        self.requests.kick_if_wanted();
        // Others that were begun before may end in between.
        let used = loop {
            match self.requests.wait_used() {
                (used_head, used) if used_head == head => break used,
                (other, _) => self.ended.insert(other),
            };
        };
        (used, self.memory().read(REPLY_AT, used.min(ROOM_BYTES) as usize))
    }

    /// Asks and does not wait. Each such request has a place of its own, for up to 64 of them.
    pub fn begin_call(&mut self, opcode: u32, node: u64, body: &[u8]) -> Waiting {
        let bytes = self.request(opcode, node, body);
        let at = WAITING_AT + self.unique / 2 % WAITING_MAX * WAITING_BYTES;
        let answer_at = at + WAITING_BYTES / 2;
        self.memory().write(at, &bytes);
        let head = self.requests.add(&[readable(at, bytes.len() as u32), writable(answer_at, ANSWER_BYTES as u32)]);
        self.requests.kick_if_wanted();
        Waiting { unique: self.unique, head, answer_at }
    }

    /// Whether the answer is there already.
    pub fn has_ended(&mut self, call: Waiting) -> bool {
        while let Some((head, _)) = self.requests.take_used() {
            self.ended.insert(head);
        }
        self.ended.contains(&call.head)
    }

    /// Whether the answer came before that of the last call that was waited for: however late we look.
    pub fn came_first(&self, call: Waiting) -> bool {
        self.ended.contains(&call.head)
    }

    /// Waits for the answer, which must be a short one to this request.
    pub fn end_call(&mut self, call: Waiting) -> Result<Reply> {
        while !self.has_ended(call) {
            let (head, _) = self.requests.wait_used();
            self.ended.insert(head);
        }
        self.ended.remove(&call.head);
        let answer = self.memory().read(call.answer_at, ANSWER_BYTES);
        let answered = u64::from_le_bytes(answer[8..16].try_into()?);
        ensure!(answered == call.unique, "an answer to request {answered} instead of {}", call.unique);
        let length = u32::from_le_bytes(answer[..4].try_into()?) as usize;
        let body = answer.get(OUT_HEADER_BYTES..length).with_context(|| format!("an answer of {length} bytes"))?;
        Ok(Reply { error: i32::from_le_bytes(answer[4..8].try_into()?), body: body.to_vec() })
    }

    /// INTERRUPT: a request need not be finished any more.
    pub fn interrupt(&mut self, unique: u64) {
        let bytes = self.request(op::INTERRUPT, 0, &unique.to_le_bytes());
        self.send_high(&bytes);
    }

    /// Sends without an answer, on the high-priority queue, as Linux forgets.
    pub fn forget(&mut self, node: u64, count: u64) {
        let bytes = self.request(op::FORGET, node, &count.to_le_bytes());
        self.send_high(&bytes);
    }

    /// Sends any bytes on the high-priority queue, without room for an answer.
    pub fn send_high(&mut self, bytes: &[u8]) {
        self.memory().write(REQUEST_AT, bytes);
        let head = self.high.add(&[readable(REQUEST_AT, bytes.len() as u32)]);
        self.high.kick_if_wanted();
        assert_eq!(self.high.wait_used().0, head);
    }

    /// LOOKUP: the node of a name.
    pub fn lookup(&mut self, parent: u64, name: &str) -> Result<u64> {
        Ok(self.call(op::LOOKUP, parent, &name_body(name.as_bytes()))?.ok()?.u64_at(0))
    }

    /// LOOKUP of each component of a path: the node of the last.
    pub fn walk(&mut self, path: &str) -> Result<u64> {
        path.split('/').try_fold(ROOT, |parent, name| self.lookup(parent, name))
    }

    /// OPEN or OPENDIR: the handle.
    pub fn open(&mut self, opcode: u32, node: u64, flags: i32) -> Result<u64> {
        Ok(self.call(opcode, node, &open_body(flags))?.ok()?.u64_at(0))
    }

    /// Whether the session still does what it should.
    pub fn check(&mut self) -> Result<()> {
        let reply = self.call(op::GETATTR, ROOT, &[0; 16])?.ok()?;
        // struct fuse_attr_out has 16 bytes before the attributes, whose first field is the inode.
        ensure!(reply.body.len() == 104 && reply.u64_at(16) != 0, "the root has no attributes: {reply:?}");
        Ok(())
    }
}

/// A request (`struct fuse_in_header` and a body), by root.
pub fn request(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(IN_HEADER_BYTES + body.len());
    bytes.extend(((IN_HEADER_BYTES + body.len()) as u32).to_le_bytes());
    bytes.extend(opcode.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    // Owner, group and process of the caller, and the length of extensions.
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

/// `struct fuse_init_in`.
pub fn init_body(major: u32, minor: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(major.to_le_bytes());
    body.extend(minor.to_le_bytes());
    body.extend((128_u32 << 10).to_le_bytes());
    // No wishes.
    body.extend([0; 52]);
    body
}

/// A name and its end.
pub fn name_body(name: &[u8]) -> Vec<u8> {
    [name, b"\0"].concat()
}

/// `struct fuse_open_in`.
pub fn open_body(flags: i32) -> Vec<u8> {
    [flags.to_le_bytes(), [0; 4]].concat()
}

/// `struct fuse_read_in`, for READ, READDIR and READDIRPLUS.
pub fn read_body(handle: u64, offset: u64, size: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(handle.to_le_bytes());
    body.extend(offset.to_le_bytes());
    body.extend(size.to_le_bytes());
    body.extend([0; 20]);
    body
}

/// `struct fuse_write_in` and data.
pub fn write_body(handle: u64, offset: u64, size: u32, data: &[u8]) -> Vec<u8> {
    let mut body = read_body(handle, offset, size);
    body.extend(data);
    body
}

/// `struct fuse_release_in`.
pub fn release_body(handle: u64) -> Vec<u8> {
    [handle.to_le_bytes().as_slice(), &[0; 16]].concat()
}

/// `struct fuse_create_in` and a name.
pub fn create_body(flags: i32, mode: u32, name: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(flags.to_le_bytes());
    body.extend(mode.to_le_bytes());
    body.extend([0; 8]);
    body.extend(name_body(name));
    body
}
