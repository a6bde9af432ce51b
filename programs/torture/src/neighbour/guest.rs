//! The guest that does it, over either protocol.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::fs::OFlags;
use tests::fuse::{self, ROOT, name_body, op, open_body, release_body};
use tests::p9::{self, Body, kind};

use super::case::Protocol;

const RDWR: i32 = OFlags::RDWR.bits().cast_signed();
/// FATTR_SIZE (linux/fuse.h), and P9_SETATTR_SIZE.
const SIZE: u32 = 1 << 3;
/// Types of FUSE's locks are fcntl's.
const F_WRLCK: u32 = libc::F_WRLCK as u32;
const F_UNLCK: u32 = libc::F_UNLCK as u32;
/// Types of 9P's locks.
const P9_WRLCK: u8 = 1;
const P9_UNLCK: u8 = 2;
/// The owner of all locks.
const OWNER: u32 = 77;
/// Longer than a lease holds anybody up, and than a file system takes for a file: this only tells a hang.
const PATIENCE: Duration = Duration::from_secs(1800);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A file as the guest knows it: a node, or a fid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known(u64);

/// An open file: its node and its handle, or a fid alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    file: Known,
    handle: u64,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act<'a> {
    Unlink(&'a str),
    Empty(Known),
    Rename(&'a str, &'a str),
    Open(Known),
    Release(Opened),
    /// One byte.
    Lock(Opened, u64),
    /// Everything.
    Unlock(Opened),
    /// Whether one byte could be locked by somebody else.
    Test(Opened, u64),
    /// A part of the first file into the second, at the same place.
    Copy(Opened, Opened, u64, u64),
    Sync(Opened),
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Fuse(fuse::Waiting),
    P9(p9::Waiting),
}

/// An answer: 0 or an error number, and what follows.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) error: i32,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Fails where the server refused.
    pub(crate) fn ok(self) -> Result<Vec<u8>> {
        ensure!(self.error == 0, "the server answered with error {}", self.error);
        Ok(self.body)
    }
}

/// A guest.
pub(crate) enum Guest {
    Fuse(Box<fuse::Client>),
    P9(Box<p9::Client>),
}

impl Guest {
    /// Connects.
    pub(crate) fn connect(socket: &Path, protocol: Protocol) -> Result<Self> {
        Ok(match protocol {
            Protocol::Fuse => Self::Fuse(Box::new(fuse::Client::begin(socket)?)),
            Protocol::P9 => Self::P9(Box::new(p9::Client::begin(socket)?)),
        })
    }

    /// Looks a name up.
    pub(crate) fn find(&mut self, name: &str) -> Result<Known> {
        Ok(Known(match self {
            Self::Fuse(client) => client.lookup(ROOT, name)?,
            Self::P9(client) => client.walk(name)?.into(),
        }))
    }

    /// Opens a file to read and write.
    pub(crate) fn open(&mut self, name: &str) -> Result<Opened> {
        let file = self.find(name)?;
        let handle = match self {
            Self::Fuse(client) => client.open(op::OPEN, file.0, RDWR)?,
            Self::P9(client) => {
                client.call(kind::TLOPEN, Body::default().u32(file.0 as u32).u32(RDWR as u32))?.ok()?;
                0
            }
        };
        Ok(Opened { file, handle })
    }

    /// Gives up what [`find`](Self::find) found: over 9P an open file with it.
    pub(crate) fn forget(&mut self, file: Known) -> Result<()> {
        match self {
            Self::Fuse(client) => client.forget(file.0, 1),
            Self::P9(client) => drop(client.call(kind::TCLUNK, Body::default().u32(file.0 as u32))?.ok()?),
        }
        Ok(())
    }

    /// Gives up a file that [`find`](Self::find) found and [`Act::Open`] was asked for.
    pub(crate) fn close_asked(&mut self, file: Known, answer: Answer) -> Result<()> {
        let handle = answer.ok()?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.close(Opened { file, handle })
    }

    /// Makes the handle of an open file the last that keeps it: a node is not known any more.
    pub(crate) fn forget_behind(&mut self, opened: Opened) {
        if let Self::Fuse(client) = self {
            client.forget(opened.file.0, 1);
        }
    }

    /// Closes a file and gives it up.
    pub(crate) fn close(&mut self, opened: Opened) -> Result<()> {
        self.ask(Act::Release(opened))?.ok()?;
        self.forget_behind(opened);
        Ok(())
    }

    /// Asks, and waits.
    pub(crate) fn ask(&mut self, act: Act<'_>) -> Result<Answer> {
        let call = self.begin(act)?;
        self.end(call)
    }

    /// Asks.
    pub(crate) fn begin(&mut self, act: Act<'_>) -> Result<Call> {
        Ok(match self {
            Self::Fuse(client) => {
                let (opcode, node, body) = fuse_request(act);
                Call::Fuse(client.begin_call(opcode, node, &body))
            }
            Self::P9(client) => {
                let (kind, body) = p9_request(act)?;
                Call::P9(client.begin_call(kind, body)?)
            }
        })
    }

    /// Whether the answer is there.
    pub(crate) fn has_ended(&mut self, call: Call) -> bool {
        match (self, call) {
            (Self::Fuse(client), Call::Fuse(call)) => client.has_ended(call),
            (Self::P9(client), Call::P9(call)) => client.has_ended(call),
            _ => false,
        }
    }

    /// Waits for the answer, however long a file system takes.
    pub(crate) fn end(&mut self, call: Call) -> Result<Answer> {
        let start = Instant::now();
        while !self.has_ended(call) {
            ensure!(start.elapsed() < PATIENCE, "no answer within {} s", PATIENCE.as_secs());
            match self {
                Self::Fuse(client) => client.requests().wait_call(LOOK_EVERY),
                Self::P9(client) => client.ring().wait_call(LOOK_EVERY),
            };
        }
        Ok(match (self, call) {
            (Self::Fuse(client), Call::Fuse(call)) => {
                let reply = client.end_call(call)?;
                Answer { error: -reply.error, body: reply.body }
            }
            (Self::P9(client), Call::P9(call)) => {
                let reply = client.end_call(call)?;
                Answer { error: reply.error, body: reply.body }
            }
            _ => anyhow::bail!("a call of another guest"),
        })
    }
}

/// Numbers of eight bytes, one behind the other.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `struct fuse_lk_in`.
fn lock_body(handle: u64, [start, end]: [u64; 2], kind: u32, owner: u32) -> Vec<u8> {
    let mut body = words(&[handle, owner.into(), start, end]);
    body.extend([kind, owner, 0, 0].into_iter().flat_map(u32::to_le_bytes));
    body
}

fn fuse_request(act: Act<'_>) -> (u32, u64, Vec<u8>) {
    match act {
        Act::Unlink(name) => (op::UNLINK, ROOT, name_body(name.as_bytes())),
        Act::Empty(file) => {
            // struct fuse_setattr_in: valid first, the size is zero as all else.
            let mut body = vec![0; 88];
            body[..4].copy_from_slice(&SIZE.to_le_bytes());
            (op::SETATTR, file.0, body)
        }
        Act::Rename(from, to) => {
            let names = [name_body(from.as_bytes()), name_body(to.as_bytes())].concat();
            (op::RENAME, ROOT, [words(&[ROOT]), names].concat())
        }
        Act::Open(file) => (op::OPEN, file.0, open_body(OFlags::RDONLY.bits().cast_signed())),
        Act::Release(Opened { file, handle }) => (op::RELEASE, file.0, release_body(handle)),
        Act::Lock(Opened { file, handle }, at) => (op::SETLK, file.0, lock_body(handle, [at, at], F_WRLCK, OWNER)),
        Act::Unlock(Opened { file, handle }) => {
            (op::SETLK, file.0, lock_body(handle, [0, i64::MAX.cast_unsigned()], F_UNLCK, OWNER))
        }
        Act::Test(Opened { file, handle }, at) => (op::GETLK, file.0, lock_body(handle, [at, at], F_WRLCK, OWNER + 1)),
        Act::Copy(from, to, at, bytes) => {
            (op::COPY_FILE_RANGE, from.file.0, words(&[from.handle, at, to.file.0, to.handle, at, bytes, 0]))
        }
        Act::Sync(_) => (op::SYNCFS, ROOT, words(&[0])),
    }
}

fn p9_request(act: Act<'_>) -> Result<(u8, Body)> {
    let fid = |file: Known| Body::default().u32(file.0 as u32);
    let lock = |file: Known, kind| fid(file).u8(kind).u32(0);
    Ok(match act {
        Act::Unlink(name) => (kind::TUNLINKAT, Body::default().u32(p9::ROOT).text(name).u32(0)),
        Act::Empty(file) => {
            // valid, mode, uid, gid; size; two times of two words.
            let body = fid(file).u32(SIZE).u32(0).u32(0).u32(0);
            (kind::TSETATTR, body.u64(0).u64(0).u64(0).u64(0).u64(0))
        }
        Act::Rename(from, to) => (kind::TRENAMEAT, Body::default().u32(p9::ROOT).text(from).u32(p9::ROOT).text(to)),
        Act::Open(file) => (kind::TLOPEN, fid(file).u32(OFlags::RDONLY.bits())),
        Act::Release(opened) => (kind::TCLUNK, fid(opened.file)),
        Act::Lock(opened, at) => (kind::TLOCK, lock(opened.file, P9_WRLCK).u64(at).u64(1).u32(OWNER).text("neighbour")),
        // A length of 0 reaches to the end.
        Act::Unlock(opened) => (kind::TLOCK, lock(opened.file, P9_UNLCK).u64(0).u64(0).u32(OWNER).text("neighbour")),
        Act::Test(opened, at) => {
            let body = fid(opened.file).u8(P9_WRLCK).u64(at).u64(1).u32(OWNER + 1);
            (kind::TGETLOCK, body.text("neighbour"))
        }
        Act::Copy(..) => anyhow::bail!("9P has no such message"),
        Act::Sync(opened) => (kind::TFSYNC, fid(opened.file).u32(0)),
    })
}
