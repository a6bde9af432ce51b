//! A small NBD server: a disk in memory, and manners that are asked for.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::frontend::nbd::spec::{
    REQUEST_BYTES, command, info, magic, option, option_reply, transmission_flag::SEND_FLUSH,
};

/// Nobody who writes nothing for so long is about to.
const PAUSE: Duration = Duration::from_millis(2);

/// How a server behaves.
#[derive(Debug, Clone)]
pub(super) struct Manners {
    pub(super) names: Vec<&'static str>,
    pub(super) flags: u16,
    /// The least and the most, if it says so.
    pub(super) sizes: Option<(u32, u32)>,
    /// How many requests it lets gather, to answer the last one first.
    pub(super) gathered: usize,
    /// How long the pieces are that it writes, in turn.
    pub(super) pieces: &'static [usize],
    /// The error of a request to this offset.
    pub(super) fails: fn(u64) -> u32,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            names: vec![""],
            flags: 1 | SEND_FLUSH,
            sizes: Some((1, 1 << 25)),
            gathered: 1,
            pieces: &[usize::MAX],
            fails: |_| 0,
        }
    }
}

/// A server that listens until the test is over.
pub(super) struct Server {
    directory: TempDir,
}

impl Server {
    /// Serves a disk of `bytes`.
    pub(super) fn start(bytes: usize, manners: &Manners) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        let disk = Arc::new(Mutex::new(vec![0; bytes]));
        let manners = manners.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (disk, manners) = (Arc::clone(&disk), manners.clone());
                thread::spawn(move || serve(stream.unwrap(), &disk, &manners));
            }
        });
        Self { directory }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }
}

/// Serves `say` to whoever connects to `socket` first, and no more.
pub(super) fn say(socket: &Path, say: Vec<u8>) {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        // Whoever has heard enough goes. A reply is lost with the connection if there is something left to read.
        let _gone = stream.write_all(&say).and_then(|()| stream.shutdown(Shutdown::Write));
        let _rest = stream.read_to_end(&mut Vec::new());
    });
}

/// `None` when the client has gone.
fn read<const N: usize>(stream: &mut UnixStream) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).ok().map(|()| bytes)
}

pub(super) fn greeting() -> Vec<u8> {
    [&magic::INIT.to_be_bytes()[..], &magic::OPTION.to_be_bytes(), &[0, 3]].concat()
}

pub(super) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let numbers = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
    [&magic::OPTION_REPLY.to_be_bytes()[..], &numbers, data].concat()
}

fn serve(mut stream: UnixStream, disk: &Mutex<Vec<u8>>, manners: &Manners) -> Option<()> {
    stream.write_all(&greeting()).ok()?;
    assert_eq!(read(&mut stream)?, [0, 0, 0, 3]);
    let bytes = disk.lock().unwrap().len() as u64;
    while !negotiate(&mut stream, bytes, manners)? {}
    transmit(stream, disk, manners)
}

/// Answers an option; whether requests come next.
fn negotiate(stream: &mut UnixStream, bytes: u64, manners: &Manners) -> Option<bool> {
    assert_eq!(u64::from_be_bytes(read(stream)?), magic::OPTION);
    let [option, len] = [u32::from_be_bytes(read(stream)?), u32::from_be_bytes(read(stream)?)];
    let mut data = vec![0; len as usize];
    stream.read_exact(&mut data).ok()?;
    let mut replies = Vec::new();
    let mut is_chosen = false;
    if option == option::LIST {
        for name in &manners.names {
            let entry = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), b"a disk"].concat();
            replies.extend(option_reply(option, option_reply::SERVER, &entry));
        }
        replies.extend(option_reply(option, option_reply::ACK, &[]));
    } else {
        assert_eq!(option, option::GO);
        // One thing is asked for: the block sizes.
        let (name, asked) = data[4..].split_at(u32::from_be_bytes(data[..4].try_into().unwrap()) as usize);
        assert_eq!(asked, [0, 1, 0, 3]);
        is_chosen = manners.names.iter().any(|known| known.as_bytes() == name);
        if is_chosen {
            let about = [&info::EXPORT.to_be_bytes()[..], &bytes.to_be_bytes(), &manners.flags.to_be_bytes()].concat();
            replies.extend(option_reply(option, option_reply::INFO, &about));
            if let Some((least, most)) = manners.sizes {
                let numbers = [least, 4096, most].map(u32::to_be_bytes).concat();
                let about = [&info::BLOCK_SIZE.to_be_bytes()[..], &numbers].concat();
                replies.extend(option_reply(option, option_reply::INFO, &about));
            }
            replies.extend(option_reply(option, option_reply::ACK, &[]));
        } else {
            replies.extend(option_reply(option, option_reply::ERR_UNKNOWN, b"which one?"));
        }
    }
    stream.write_all(&replies).ok()?;
    Some(is_chosen)
}

fn transmit(mut stream: UnixStream, disk: &Mutex<Vec<u8>>, manners: &Manners) -> Option<()> {
    let mut pieces = manners.pieces.iter().cycle();
    let mut replies = Vec::new();
    loop {
        while replies.len() < manners.gathered && (replies.is_empty() || has_more(&stream)) {
            replies.push(answer(&mut stream, disk, manners)?);
        }
        let all: Vec<u8> = replies.drain(..).rev().flatten().collect();
        let mut rest = &all[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(*pieces.next()?));
            stream.write_all(piece).ok()?;
            rest = behind;
        }
    }
}

/// Whether there is a request, after the time in which one would come.
fn has_more(stream: &UnixStream) -> bool {
    stream.set_read_timeout(Some(PAUSE)).unwrap();
    let looked = rustix::net::recv(stream, &mut [0; 1], rustix::net::RecvFlags::PEEK).map_err(std::io::Error::from);
    stream.set_read_timeout(None).unwrap();
    !looked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Serves a request and gives the reply; `None` when the client has gone.
pub(super) fn answer(stream: &mut UnixStream, disk: &Mutex<Vec<u8>>, manners: &Manners) -> Option<Vec<u8>> {
    let head = read::<REQUEST_BYTES>(stream)?;
    assert_eq!(head[..6], *b"\x25\x60\x95\x13\0\0", "magic and flags");
    let command = u16::from_be_bytes([head[6], head[7]]);
    let offset = u64::from_be_bytes(head[16..24].try_into().unwrap());
    let len = u32::from_be_bytes(head[24..].try_into().unwrap()) as usize;
    if command == command::DISC {
        return None;
    }
    let error = (manners.fails)(offset);
    let mut reply = [&magic::SIMPLE_REPLY.to_be_bytes()[..], &error.to_be_bytes(), &head[8..16]].concat();
    let place = offset as usize..offset as usize + len;
    match command {
        command::READ if error == 0 => reply.extend_from_slice(&disk.lock().unwrap()[place]),
        command::WRITE => {
            let mut data = vec![0; len];
            stream.read_exact(&mut data).ok()?;
            if error == 0 {
                disk.lock().unwrap()[place].copy_from_slice(&data);
            }
        }
        _ => {}
    }
    Some(reply)
}
