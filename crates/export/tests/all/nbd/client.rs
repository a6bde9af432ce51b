//! A client of NBD that says what a test wants. It has its own encoder and decoder, so that it is a second opinion of the protocol.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// Options ("Option types" of the protocol).
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const INFO: u32 = 3;
pub const META_CONTEXT: u32 = 4;
pub const ERR_UNSUP: u32 = 0x8000_0001;
pub const ERR_INVALID: u32 = 0x8000_0003;
pub const ERR_TLS_REQD: u32 = 0x8000_0005;
pub const ERR_UNKNOWN: u32 = 0x8000_0006;

/// Kinds of information on an export.
pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of clients.
pub const FIXED_NEWSTYLE: u32 = 1;
pub const NO_ZEROES: u32 = 2;

/// Commands.
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

/// Flags of commands.
pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 1 << 1;
pub const DF: u16 = 1 << 2;
pub const REQ_ONE: u16 = 1 << 3;
pub const FAST_ZERO: u16 = 1 << 4;

/// Errors.
pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const ENOMEM: u32 = 12;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ESHUTDOWN: u32 = 108;

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x3_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Numbers as they are sent.
#[derive(Clone, Default)]
pub struct Fields(pub Vec<u8>);

impl Fields {
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend(value);
        self
    }

    /// A string behind its length.
    pub fn text(self, value: &[u8]) -> Self {
        self.u32(value.len() as u32).bytes(value)
    }
}

pub fn fields() -> Fields {
    Fields::default()
}

/// Numbers as they were received.
struct Taken<'a>(&'a [u8]);

impl Taken<'_> {
    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("it is too short");
        self.0 = rest;
        *taken
    }
}

/// An option with its data.
pub fn option_of(number: u32, data: &[u8]) -> Vec<u8> {
    fields().u64(OPTION_MAGIC).u32(number).text(data).0
}

/// The data of `GO` and `INFO`.
pub fn go_of(name: &[u8], wanted: &[u16]) -> Vec<u8> {
    let begin = fields().text(name).u16(wanted.len() as u16);
    wanted.iter().fold(begin, |fields, info| fields.u16(*info)).0
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn contexts_of(name: &[u8], queries: &[&str]) -> Vec<u8> {
    let begin = fields().text(name).u32(queries.len() as u32);
    queries.iter().fold(begin, |fields, query| fields.text(query.as_bytes())).0
}

/// Reads as many bytes; `None` when the server has ended the connection instead.
fn receive(mut stream: &UnixStream, bytes: usize) -> Option<Vec<u8>> {
    let mut received = vec![0; bytes];
    let mut there = 0;
    while there < bytes {
        match stream.read(&mut received[there..]) {
            Ok(0) if there == 0 => return None,
            Ok(0) => panic!("it ended after {there} of {bytes} bytes"),
            Ok(some) => there += some,
            Err(error) if error.kind() == ErrorKind::ConnectionReset && there == 0 => return None,
            Err(error) => panic!("nothing comes: {error}"),
        }
    }
    Some(received)
}

/// How reads are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    Simple,
    Structured,
}

pub const REPLIES: [Replies; 2] = [Replies::Simple, Replies::Structured];

/// What a client was told of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub size_bytes: u64,
    pub flags: u16,
    /// Least, best and largest size of a request.
    pub block: [u32; 3],
}

/// A reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub kind: u32,
    pub data: Vec<u8>,
}

impl OptionReply {
    pub fn is_last(&self) -> bool {
        self.kind == ACK || self.kind >> 31 == 1
    }
}

/// A connection on which nothing has been chosen yet.
pub struct Handshake {
    pub stream: UnixStream,
    replies: Replies,
    /// The number of `base:allocation`, if it was chosen.
    allocation: Option<u32>,
    /// That of a dirty bitmap.
    bitmap: Option<u32>,
}

impl Handshake {
    /// Hears what the server begins with.
    pub fn greeted(stream: UnixStream) -> Handshake {
        let greeting = receive(&stream, 18).expect("turned away");
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\x00\x03");
        Handshake { stream, replies: Replies::Simple, allocation: None, bitmap: None }
    }

    /// As [`greeted`](Self::greeted), and says what the client knows.
    pub fn begun(stream: UnixStream, flags: u32) -> Handshake {
        let mut handshake = Handshake::greeted(stream);
        handshake.send(&flags.to_be_bytes());
        handshake
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn receive(&mut self, bytes: usize) -> Option<Vec<u8>> {
        receive(&self.stream, bytes)
    }

    /// The next reply; `None` when the server has ended the connection.
    pub fn next(&mut self) -> Option<OptionReply> {
        let header = self.receive(20)?;
        let mut taken = Taken(&header);
        assert_eq!(taken.u64(), OPTION_REPLY_MAGIC);
        let (option, kind, bytes) = (taken.u32(), taken.u32(), taken.u32() as usize);
        let data = if bytes > 0 { self.receive(bytes).unwrap() } else { Vec::new() };
        Some(OptionReply { option, kind, data })
    }

    /// Replies to one option up to the last.
    pub fn answers(&mut self, option: u32) -> Vec<OptionReply> {
        let mut replies = Vec::new();
        loop {
            let reply = self.next().expect("the server hung up");
            assert_eq!(reply.option, option);
            replies.push(reply);
            if replies.last().is_some_and(OptionReply::is_last) {
                return replies;
            }
        }
    }

    /// Sends one option; its replies.
    pub fn ask(&mut self, option: u32, data: &[u8]) -> Vec<OptionReply> {
        self.send(&option_of(option, data));
        self.answers(option)
    }

    /// As [`ask`](Self::ask), of what has one reply: its type.
    pub fn kind(&mut self, option: u32, data: &[u8]) -> u32 {
        let replies = self.ask(option, data);
        assert_eq!(replies.len(), 1, "{replies:?}");
        replies[0].kind
    }

    /// What `INFO` or `GO` tell of an export.
    pub fn told(&mut self, option: u32, name: &str) -> Told {
        let replies = self.ask(option, &go_of(name.as_bytes(), &[INFO_BLOCK_SIZE]));
        told_by(&replies)
    }

    pub fn structured(mut self) -> Handshake {
        assert_eq!(self.kind(option::STRUCTURED_REPLY, &[]), ACK);
        self.replies = Replies::Structured;
        self
    }

    /// Chooses metadata contexts: the names of those that there are.
    pub fn contexts(&mut self, option: u32, name: &str, queries: &[&str]) -> Vec<String> {
        let replies = self.ask(option, &contexts_of(name.as_bytes(), queries));
        let (last, named) = replies.split_last().unwrap();
        assert_eq!((last.kind, last.data.len()), (ACK, 0), "{replies:?}");
        let names: Vec<_> = named
            .iter()
            .map(|reply| {
                assert_eq!(reply.kind, META_CONTEXT);
                let mut taken = Taken(&reply.data);
                (taken.u32(), String::from_utf8(taken.0.to_vec()).unwrap())
            })
            .collect();
        assert!(
            option == option::SET_META_CONTEXT || names.iter().all(|(id, _)| *id == 0),
            "a number that means nothing"
        );
        if option == option::SET_META_CONTEXT {
            let id = |begin: &str| names.iter().find(|(_, name)| name.starts_with(begin)).map(|(id, _)| *id);
            (self.allocation, self.bitmap) = (id("base:allocation"), id("qemu:dirty-bitmap:"));
            assert!(self.allocation.is_none() || self.allocation != self.bitmap, "one number for two contexts");
        }
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// Chooses to be told where there is data.
    pub fn allocation(mut self) -> Handshake {
        assert_eq!(self.contexts(option::SET_META_CONTEXT, "", &["base:allocation"]), ["base:allocation"]);
        self
    }

    pub fn go(mut self, name: &str) -> Client {
        let told = self.told(option::GO, name);
        self.gone(told)
    }

    /// Goes on with requests, as an option was answered that chooses an export.
    pub fn gone(self, told: Told) -> Client {
        let Handshake { stream, replies, allocation, bitmap } = self;
        Client { stream, told, replies, allocation, bitmap, asked: HashMap::new(), parts: HashMap::new(), count: 0 }
    }
}

/// What replies to `INFO` or `GO` tell.
pub fn told_by(replies: &[OptionReply]) -> Told {
    let mut told = Told::default();
    let (last, infos) = replies.split_last().unwrap();
    assert_eq!((last.kind, last.data.len()), (ACK, 0), "{replies:?}");
    let mut seen = Vec::new();
    for reply in infos {
        assert_eq!(reply.kind, INFO);
        let mut taken = Taken(&reply.data);
        let info = taken.u16();
        match info {
            INFO_EXPORT => (told.size_bytes, told.flags) = (taken.u64(), taken.u16()),
            INFO_BLOCK_SIZE => told.block = [taken.u32(), taken.u32(), taken.u32()],
            _ => continue,
        }
        assert!(taken.0.is_empty() && !seen.contains(&info), "{replies:?}");
        seen.push(info);
    }
    assert!(seen.contains(&INFO_EXPORT), "{replies:?}");
    told
}

/// A request without its cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    pub offset: u64,
    pub len: u32,
    pub data: Vec<u8>,
}

impl Request {
    pub fn new(command: u16, offset: u64, len: u32) -> Request {
        Request { flags: 0, command, offset, len, data: Vec::new() }
    }

    pub fn read(offset: u64, len: u32) -> Request {
        Request::new(READ, offset, len)
    }

    pub fn write(offset: u64, data: &[u8]) -> Request {
        Request { data: data.to_vec(), ..Request::new(WRITE, offset, data.len() as u32) }
    }

    pub fn flush() -> Request {
        Request::new(FLUSH, 0, 0)
    }

    pub fn with(self, flags: u16) -> Request {
        Request { flags, ..self }
    }

    pub fn bytes(&self, cookie: u64) -> Vec<u8> {
        let head = fields().u32(REQUEST_MAGIC).u16(self.flags).u16(self.command).u64(cookie).u64(self.offset);
        head.u32(self.len).bytes(&self.data).0
    }
}

/// The whole reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub errno: u32,
    /// Of a read that succeeded.
    pub data: Vec<u8>,
    /// Of a block status that succeeded: lengths and flags of `base:allocation`.
    pub extents: Vec<(u32, u32)>,
    /// The same of a dirty bitmap.
    pub dirty: Vec<(u32, u32)>,
}

/// What has come of a reply in chunks.
#[derive(Default)]
struct Parts {
    errno: u32,
    data: Vec<u8>,
    extents: Vec<(u32, u32)>,
    dirty: Vec<(u32, u32)>,
    /// Bytes that have come.
    there: usize,
}

/// A connection that has an export.
pub struct Client {
    pub stream: UnixStream,
    pub told: Told,
    replies: Replies,
    allocation: Option<u32>,
    bitmap: Option<u32>,
    /// Command, offset and length of what has not been answered, by its cookie.
    asked: HashMap<u64, (u16, u64, u32)>,
    parts: HashMap<u64, Parts>,
    count: u64,
}

impl Client {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// A request as it is to be sent, which has a reply; its cookie.
    pub fn encode(&mut self, request: &Request) -> (u64, Vec<u8>) {
        // Odd, so that no two are the same, and of all bits.
        self.count += 1;
        let cookie = self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.asked.insert(cookie, (request.command, request.offset, request.len));
        (cookie, request.bytes(cookie))
    }

    /// Sends a request without waiting; its cookie.
    pub fn post(&mut self, request: &Request) -> u64 {
        let (cookie, bytes) = self.encode(request);
        self.send(&bytes);
        cookie
    }

    /// Sends requests at once without waiting; their cookies.
    pub fn post_all(&mut self, requests: &[Request]) -> Vec<u64> {
        let (cookies, bytes): (Vec<u64>, Vec<Vec<u8>>) = requests.iter().map(|request| self.encode(request)).unzip();
        self.send(&bytes.concat());
        cookies
    }

    /// Says that it goes, behind everything that was sent.
    pub fn disconnect(&mut self) {
        self.send(&Request::new(DISC, 0, 0).bytes(0));
    }

    /// The next reply that is whole; `None` when the server has ended the connection.
    pub fn next(&mut self) -> Option<Reply> {
        loop {
            let magic = receive(&self.stream, 4)?;
            match u32::from_be_bytes(magic.try_into().unwrap()) {
                SIMPLE_MAGIC => return Some(self.simple()),
                CHUNK_MAGIC => {
                    if let Some(reply) = self.chunk() {
                        return Some(reply);
                    }
                }
                other => panic!("{other:#x} begins no reply"),
            }
        }
    }

    fn more(&self, bytes: usize) -> Vec<u8> {
        if bytes == 0 { Vec::new() } else { receive(&self.stream, bytes).expect("half a reply") }
    }

    fn simple(&mut self) -> Reply {
        let head = self.more(12);
        let mut taken = Taken(&head);
        let (errno, cookie) = (taken.u32(), taken.u64());
        let (command, _, len) = self.asked.remove(&cookie).expect("nobody has asked");
        assert!(!self.parts.contains_key(&cookie), "a reply of both kinds");
        assert!(command != READ || self.replies == Replies::Simple, "a read has a simple reply");
        let data = if command == READ && errno == 0 { self.more(len as usize) } else { Vec::new() };
        assert_ne!((command, errno), (BLOCK_STATUS, 0), "a block status has a simple reply");
        Reply { cookie, errno, data, extents: Vec::new(), dirty: Vec::new() }
    }

    fn chunk(&mut self) -> Option<Reply> {
        assert_eq!(self.replies, Replies::Structured, "nobody has asked for chunks");
        let head = self.more(16);
        let mut taken = Taken(&head);
        let (flags, kind, cookie, bytes) = (taken.u16(), taken.u16(), taken.u64(), taken.u32());
        assert_eq!(flags & !1, 0, "unknown flags");
        let payload = self.more(bytes as usize);
        let (_, offset, len) = *self.asked.get(&cookie).expect("nobody has asked");
        let parts = self.parts.entry(cookie).or_default();
        let mut taken = Taken(&payload);
        match kind {
            // Nothing.
            0 => assert!(flags == 1 && payload.is_empty()),
            // Data.
            1 => {
                let at = usize::try_from(taken.u64().checked_sub(offset).unwrap()).unwrap();
                assert!(!taken.0.is_empty(), "a chunk without data");
                parts.data.resize(len as usize, 0);
                parts.data[at..at + taken.0.len()].copy_from_slice(taken.0);
                parts.there += taken.0.len();
            }
            // A hole.
            2 => {
                taken.u64();
                parts.data.resize(len as usize, 0);
                parts.there += taken.u32() as usize;
            }
            // Extents.
            5 => {
                let context = Some(taken.u32());
                assert!([self.allocation, self.bitmap].contains(&context), "of a context that was not chosen");
                let list = if context == self.bitmap { &mut parts.dirty } else { &mut parts.extents };
                assert!(list.is_empty() && !taken.0.is_empty(), "a chunk for each context");
                while !taken.0.is_empty() {
                    list.push((taken.u32(), taken.u32()));
                }
            }
            // An error.
            0x8001 => {
                parts.errno = taken.u32();
                let said = usize::from(taken.u16());
                assert_ne!(parts.errno, 0);
                assert_eq!(said, taken.0.len());
                assert!(std::str::from_utf8(taken.0).is_ok());
            }
            other => panic!("a chunk of type {other}"),
        }
        if flags & 1 == 0 {
            return None;
        }
        let (command, _, len) = self.asked.remove(&cookie).unwrap();
        let Parts { errno, data, extents, dirty, there } = self.parts.remove(&cookie).unwrap();
        if errno != 0 {
            return Some(Reply { cookie, errno, data: Vec::new(), extents: Vec::new(), dirty: Vec::new() });
        }
        assert_eq!(there, if command == READ { len as usize } else { 0 }, "data is missing");
        for (list, context) in [(&extents, self.allocation), (&dirty, self.bitmap)] {
            let wanted = command == BLOCK_STATUS && context.is_some();
            assert_eq!(wanted, !list.is_empty(), "extents are missing, or nobody has asked for them");
        }
        Some(Reply { cookie, errno, data, extents, dirty })
    }

    pub fn answer(&mut self) -> Reply {
        self.next().expect("the server hung up")
    }

    /// Asks for one thing; the reply.
    pub fn call(&mut self, request: &Request) -> Reply {
        let cookie = self.post(request);
        let reply = self.answer();
        assert_eq!(reply.cookie, cookie);
        reply
    }

    /// The error of one request.
    pub fn errno(&mut self, request: &Request) -> u32 {
        self.call(request).errno
    }

    /// As [`call`](Self::call), of what must succeed; the data.
    pub fn ask(&mut self, request: &Request) -> Vec<u8> {
        let reply = self.call(request);
        assert_eq!(reply.errno, 0, "{:?}", (request.command, request.flags, request.offset, request.len));
        reply.data
    }

    pub fn read(&mut self, offset: u64, bytes: usize) -> Vec<u8> {
        self.ask(&Request::read(offset, bytes as u32))
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.ask(&Request::write(offset, data));
    }

    /// Asks for everything at once, and reads replies while it does; they are in the order of the requests.
    pub fn exchange(&mut self, requests: &[Request]) -> Vec<Reply> {
        let (cookies, bytes): (Vec<u64>, Vec<Vec<u8>>) = requests.iter().map(|request| self.encode(request)).unzip();
        let mut sender = self.stream.try_clone().unwrap();
        let mut replies = HashMap::new();
        std::thread::scope(|scope| {
            scope.spawn(move || sender.write_all(&bytes.concat()).unwrap());
            for _ in requests {
                let reply = self.answer();
                replies.insert(reply.cookie, reply);
            }
        });
        cookies.iter().map(|cookie| replies.remove(cookie).unwrap()).collect()
    }
}
