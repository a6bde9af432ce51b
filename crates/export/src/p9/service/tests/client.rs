//! A client that speaks to a session in messages: what it sends goes through the codec, and what it hears is taken apart here.

use super::super::{P9Policy, Service, Session};
use crate::calls::{Answer, Moved, Scene};
use device::p9::{Dialect, Kind, NOFID, Qid, READ_HEAD_BYTES, decode};
use passthrough::{Options, Source, Tree};
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::Arc;
use tempfile::TempDir;
use vring::Segment;

/// How many clients there may be.
pub(super) const CLIENTS: usize = 8;
/// What the client of most tests agrees on.
pub(super) const MSIZE: u32 = 65_536;

/// A directory that is served, and a way to its files.
pub(super) struct Served {
    pub(super) service: Arc<Service>,
    pub(super) directory: TempDir,
}

impl Served {
    pub(super) fn new() -> Served {
        Served::with(Options { xattr: true, ..Options::default() })
    }

    pub(super) fn with(options: Options) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), options).unwrap();
        Served { service: Service::new(Arc::new(tree), P9Policy::default(), CLIENTS), directory }
    }

    /// A client that speaks 9P2000.L and has the root as fid 0.
    pub(super) fn client(&self) -> Client {
        self.client_of("9P2000.L")
    }

    pub(super) fn client_of(&self, version: &str) -> Client {
        let client = Client { session: Session::new(&self.service) };
        assert_eq!(client.version(MSIZE, version).unwrap(), (MSIZE, version.to_owned()));
        client.attach(0, "", 0).unwrap();
        client
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn put(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub(super) fn get(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

pub(super) struct Client {
    pub(super) session: Arc<Session>,
}

/// A message, field by field.
#[derive(Default)]
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn of(fid: u32) -> Body {
        Body::default().u32(fid)
    }

    pub(super) fn u8(self, number: u8) -> Body {
        self.raw(&[number])
    }

    pub(super) fn u16(self, number: u16) -> Body {
        self.raw(&number.to_le_bytes())
    }

    pub(super) fn u32(self, number: u32) -> Body {
        self.raw(&number.to_le_bytes())
    }

    pub(super) fn u64(self, number: u64) -> Body {
        self.raw(&number.to_le_bytes())
    }

    pub(super) fn string(self, text: &str) -> Body {
        self.u16(text.len() as u16).raw(text.as_bytes())
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Body {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An answer, field by field.
pub(super) struct Fields(Vec<u8>, usize);

impl Fields {
    pub(super) fn new(bytes: Vec<u8>) -> Fields {
        Fields(bytes, 0)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.0[self.1..self.1 + N].try_into().unwrap();
        self.1 += N;
        bytes
    }

    pub(super) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let bytes = self.0[self.1..self.1 + count].to_vec();
        self.1 += count;
        bytes
    }

    pub(super) fn string(&mut self) -> String {
        let count = self.u16();
        String::from_utf8(self.take(count.into())).unwrap()
    }

    pub(super) fn qid(&mut self) -> Qid {
        Qid { kind: self.u8(), version: self.u32(), path: self.u64() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.1 == self.0.len()
    }
}

/// One name in a directory.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) qid: Qid,
    pub(super) offset: u64,
    pub(super) kind: u8,
    pub(super) name: String,
}

/// What `Rgetattr` tells of interest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) qid: Qid,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u64,
    pub(super) rdev: u64,
    pub(super) size: u64,
}

impl Client {
    /// Sends a message and hands out the answer's payload.
    pub(super) fn ask(&self, kind: Kind, body: &Body) -> Result<Fields, Errno> {
        let size = 7 + body.0.len() as u32;
        let mut message = [&size.to_le_bytes()[..], &[kind as u8, 1, 0], &body.0].concat();
        let mut answer = vec![0; self.session.msize() as usize];
        let readable = [segment(&mut message)];
        let writable = [segment(&mut answer)];
        let (mut reply, mut data, mut moved) = (Vec::new(), Vec::new(), Moved::default());
        let mut scene =
            Scene { readable: &readable, writable: &writable, reply: &mut reply, data: &mut data, moved: &mut moved };
        // Its own copy: the session may read the message meanwhile.
        let bytes = message.clone();
        let (header, request) = decode(&bytes, u64::from(size), self.session.dialect())
            .map_err(|malformed| Errno::from_raw_os_error(malformed.errno()))?;
        match self.session.perform(&header, &request, &mut scene) {
            Ok(Answer::Reply) => Ok(Fields(reply, 0)),
            Ok(Answer::Data(count)) => {
                let data = &answer[READ_HEAD_BYTES..READ_HEAD_BYTES + count];
                Ok(Fields([&(count as u32).to_le_bytes()[..], data].concat(), 0))
            }
            Ok(Answer::Silence) => panic!("{kind:?} has no answer"),
            Err(error) => {
                assert!(reply.is_empty(), "an error of {kind:?} comes with something else");
                Err(error)
            }
        }
    }

    /// As [`ask`](Self::ask), for requests whose answers are empty.
    pub(super) fn tell(&self, kind: Kind, body: &Body) -> Result<(), Errno> {
        let fields = self.ask(kind, body)?;
        assert!(fields.is_empty(), "{kind:?} says something");
        Ok(())
    }

    pub(super) fn version(&self, msize: u32, version: &str) -> Result<(u32, String), Errno> {
        let mut answer = self.ask(Kind::Version, &Body::of(msize).string(version))?;
        Ok((answer.u32(), answer.string()))
    }

    pub(super) fn attach(&self, fid: u32, aname: &str, uid: u32) -> Result<Qid, Errno> {
        let body = Body::of(fid).u32(NOFID).string("").string(aname).u32(uid);
        Ok(self.ask(Kind::Attach, &body)?.qid())
    }

    pub(super) fn walk(&self, fid: u32, newfid: u32, names: &[&str]) -> Result<Vec<Qid>, Errno> {
        let body = Body::of(fid).u32(newfid).u16(names.len() as u16);
        let body = names.iter().fold(body, |body, name| body.string(name));
        let mut answer = self.ask(Kind::Walk, &body)?;
        let count = answer.u16();
        Ok((0..count).map(|_| answer.qid()).collect())
    }

    pub(super) fn clunk(&self, fid: u32) -> Result<(), Errno> {
        self.tell(Kind::Clunk, &Body::of(fid))
    }

    pub(super) fn lopen(&self, fid: u32, flags: u32) -> Result<(Qid, u32), Errno> {
        let mut answer = self.ask(Kind::Lopen, &Body::of(fid).u32(flags))?;
        Ok((answer.qid(), answer.u32()))
    }

    pub(super) fn lcreate(&self, fid: u32, name: &str, flags: u32, mode: u32) -> Result<Qid, Errno> {
        let body = Body::of(fid).string(name).u32(flags).u32(mode).u32(0);
        Ok(self.ask(Kind::Lcreate, &body)?.qid())
    }

    /// Walks there and opens.
    pub(super) fn open(&self, fid: u32, name: &str, flags: u32) -> Result<(), Errno> {
        self.walk(0, fid, &[name])?;
        self.lopen(fid, flags).map(|_| ())
    }

    pub(super) fn read(&self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let mut answer = self.ask(Kind::Read, &Body::of(fid).u64(offset).u32(count))?;
        let count = answer.u32();
        Ok(answer.take(count as usize))
    }

    pub(super) fn write(&self, fid: u32, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let body = Body::of(fid).u64(offset).u32(data.len() as u32).raw(data);
        Ok(self.ask(Kind::Write, &body)?.u32())
    }

    pub(super) fn look(&self, fid: u32) -> Result<Looked, Errno> {
        let mut answer = self.ask(Kind::GetAttr, &Body::of(fid).u64(0x7ff))?;
        assert_eq!(answer.u64(), 0x7ff);
        Ok(Looked {
            qid: answer.qid(),
            mode: answer.u32(),
            uid: answer.u32(),
            gid: answer.u32(),
            links: answer.u64(),
            rdev: answer.u64(),
            size: answer.u64(),
        })
    }

    /// A change of attributes: which of them, the mode and the size.
    pub(super) fn change(&self, fid: u32, valid: u32, mode: u32, size: u64) -> Result<(), Errno> {
        let body = Body::of(fid).u32(valid).u32(mode).u32(0).u32(0).u64(size).u64(0).u64(0).u64(0).u64(0);
        self.tell(Kind::SetAttr, &body)
    }

    pub(super) fn mkdir(&self, dfid: u32, name: &str) -> Result<Qid, Errno> {
        Ok(self.ask(Kind::Mkdir, &Body::of(dfid).string(name).u32(0o755).u32(0))?.qid())
    }

    pub(super) fn unlink(&self, dfid: u32, name: &str, flags: u32) -> Result<(), Errno> {
        self.tell(Kind::UnlinkAt, &Body::of(dfid).string(name).u32(flags))
    }

    pub(super) fn rename_at(&self, (from, name): (u32, &str), (to, new_name): (u32, &str)) -> Result<(), Errno> {
        self.tell(Kind::RenameAt, &Body::of(from).string(name).u32(to).string(new_name))
    }

    pub(super) fn list(&self, fid: u32, offset: u64, count: u32) -> Result<Vec<Listed>, Errno> {
        let mut answer = self.ask(Kind::ReadDir, &Body::of(fid).u64(offset).u32(count))?;
        let bytes = answer.u32();
        assert!(bytes <= count);
        let mut listed = Vec::new();
        while !answer.is_empty() {
            let (qid, offset, kind) = (answer.qid(), answer.u64(), answer.u8());
            listed.push(Listed { qid, offset, kind, name: answer.string() });
        }
        Ok(listed)
    }

    pub(super) fn xattr_walk(&self, fid: u32, newfid: u32, name: &str) -> Result<u64, Errno> {
        Ok(self.ask(Kind::XattrWalk, &Body::of(fid).u32(newfid).string(name))?.u64())
    }

    pub(super) fn xattr_create(&self, fid: u32, name: &str, size: u64, flags: u32) -> Result<(), Errno> {
        self.tell(Kind::XattrCreate, &Body::of(fid).string(name).u64(size).u32(flags))
    }
}

/// The body of a `Tlock`.
pub(super) fn lock_body(fid: u32, kind: u8, flags: u32, (start, length): (u64, u64), process: u32) -> Body {
    Body::of(fid).u8(kind).u32(flags).u64(start).u64(length).u32(process).string("host")
}

/// The whole message, for what takes a decoded request.
pub(super) fn message(kind: Kind, body: &Body) -> Vec<u8> {
    [&(7 + body.bytes().len() as u32).to_le_bytes()[..], &[kind as u8, 1, 0], body.bytes()].concat()
}

/// Decodes a message of [`message`].
pub(super) fn decoded(message: &[u8], dialect: Dialect) -> device::p9::Request<'_> {
    decode(message, message.len() as u64, dialect).unwrap().1
}

fn segment(buffer: &mut [u8]) -> Segment {
    let len = buffer.len();
    // SAFETY: the buffer outlives the request that uses the segment, and nobody looks at it meanwhile.
    unsafe { Segment::from_raw_parts(NonNull::from(buffer).cast(), len) }
}
