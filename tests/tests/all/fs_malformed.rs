//! FUSE requests that are wrong: each gets an error and is counted, and the session goes on.

use std::fs;

use anyhow::{Result, ensure};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::driver::{readable, writable};
use tests::frontend::DATA;
use tests::fuse::{
    Client, IN_HEADER_BYTES, OUT_HEADER_BYTES, ROOM_BYTES, ROOT, init_body, name_body, op, open_body, read_body,
    write_body,
};
use tests::lab::Lab;

const REQUEST_RING: u16 = 1;

/// The error in an answer that was written in full.
fn error_of(answer: &[u8]) -> i32 {
    answer.get(4..8).map_or(0, |bytes| i32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

fn serve(shared: &TempDir) -> Result<DirectoryServer> {
    fs::write(shared.path().join("file"), "content")?;
    DirectoryServer::start(&Lab::take_turn(), &Directory::new(shared.path()))
}

/// One well-formed request of each shape, for cutting.
fn shapes(client: &mut Client) -> Result<Vec<Vec<u8>>> {
    let file = client.walk("file")?;
    let handle = client.open(op::OPEN, file, OFlags::RDWR.bits() as i32)?;
    let listing = client.open(op::OPENDIR, ROOT, 0)?;
    let number = |number: u32| number.to_le_bytes().to_vec();
    let bodies = [
        (op::LOOKUP, ROOT, name_body(b"file")),
        (op::GETATTR, file, vec![0; 16]),
        (op::SETATTR, file, vec![0; 88]),
        (op::SYMLINK, ROOT, [name_body(b"file"), name_body(b"target")].concat()),
        (op::MKNOD, ROOT, [number(0o100_644), vec![0; 12], name_body(b"file")].concat()),
        (op::MKDIR, ROOT, [number(0o755), vec![0; 4], name_body(b"file")].concat()),
        (op::RMDIR, ROOT, name_body(b"file")),
        (op::RENAME, ROOT, [&ROOT.to_le_bytes()[..], b"none\0", b"other\0"].concat()),
        (op::RENAME2, ROOT, [&ROOT.to_le_bytes()[..], &[0; 8], b"none\0", b"other\0"].concat()),
        (op::LINK, ROOT, [&file.to_le_bytes()[..], b"file\0"].concat()),
        (op::OPEN, file, open_body(0)),
        (op::READ, file, read_body(handle, 0, 16)),
        (op::WRITE, file, write_body(handle, 0, 7, b"content")),
        (op::FSYNC, file, [&handle.to_le_bytes()[..], &[0; 8]].concat()),
        (op::SETXATTR, file, [number(5), number(0), name_body(b"user.x"), b"value".to_vec()].concat()),
        (op::GETXATTR, file, [number(16), number(0), name_body(b"user.x")].concat()),
        (op::LISTXATTR, file, [number(16), number(0)].concat()),
        (op::FLUSH, file, [&handle.to_le_bytes()[..], &[0; 16]].concat()),
        (op::OPENDIR, ROOT, open_body(0)),
        (op::READDIR, ROOT, read_body(listing, 0, 4096)),
        (op::READDIRPLUS, ROOT, read_body(listing, 0, 4096)),
        (op::ACCESS, file, number(4)),
        (op::LSEEK, file, [&handle.to_le_bytes()[..], &[0; 16]].concat()),
        (op::BATCH_FORGET, 0, [number(1), number(0), vec![0xff; 16]].concat()),
        (op::STATX, file, vec![0; 32]),
    ];
    Ok(bodies.into_iter().map(|(opcode, node, body)| client.request(opcode, node, &body)).collect())
}

#[test]
fn cut_requests_are_refused_and_counted() -> Result<()> {
    let shared = TempDir::new()?;
    let server = serve(&shared)?;
    let mut client = Client::begin(&server.socket())?;
    let mut expected = server.requests(REQUEST_RING, "malformed")?;
    for whole in shapes(&mut client)? {
        for length in (0..whole.len()).rev() {
            let opcode = whole[4];
            let before = server.requests(REQUEST_RING, "malformed")?;
            let (used, answer) = client.send(&whole[..length], 4096);
            // Its header says that there is more.
            if length >= IN_HEADER_BYTES {
                ensure!(
                    used == OUT_HEADER_BYTES as u32,
                    "operation {opcode} cut at {length}: an answer of {used} bytes"
                );
                ensure!(error_of(&answer) < 0, "operation {opcode} cut at {length} succeeds");
                ensure!(answer[8..16] == whole[8..16], "operation {opcode} cut at {length}: the answer is to another");
            }
            expected = server.requests(REQUEST_RING, "malformed")?;
            ensure!(expected == before + 1, "operation {opcode} cut at {length} was not counted");
        }
        // Cut, and honest about it. Some operations have fields that may be left out, and names may be shorter.
        for length in (IN_HEADER_BYTES..whole.len()).rev() {
            let mut short = whole[..length].to_vec();
            short[..4].copy_from_slice(&(length as u32).to_le_bytes());
            let (used, answer) = client.send(&short, 4096);
            ensure!(used == 0 || used >= OUT_HEADER_BYTES as u32, "an answer of {used} bytes");
            ensure!(answer.len() < 16 || answer[8..16] == whole[8..16], "the answer is to another request");
        }
        client.check()?;
    }
    ensure!(expected > 0);
    ensure!(fs::read_to_string(shared.path().join("file"))?.len() == 7, "the file has changed");
    Ok(())
}

#[test]
fn headers_that_lie_are_refused() -> Result<()> {
    let shared = TempDir::new()?;
    let server = serve(&shared)?;
    let mut client = Client::begin(&server.socket())?;
    let whole = client.request(op::GETATTR, ROOT, &[0; 16]);
    for length in [0, 1, 39, 57, 4096, 1 << 20, 1 << 31, u32::MAX] {
        let mut lie = whole.clone();
        lie[..4].copy_from_slice(&length.to_le_bytes());
        let (used, answer) = client.send(&lie, 4096);
        ensure!(used == OUT_HEADER_BYTES as u32 && error_of(&answer) < 0, "a length of {length} is believed");
    }
    for opcode in [0, 7, 19, 99, 4095, 4096, 1 << 20, u32::MAX] {
        let reply = client.call(opcode, ROOT, &[0; 64])?;
        ensure!(reply.error == -Errno::NOSYS.raw_os_error(), "operation {opcode}: {}", reply.error);
    }
    // The length of extensions, in units of eight bytes, beyond what is there.
    let mut extended =
        client.request(op::MKDIR, ROOT, &[&0o755_u32.to_le_bytes()[..], &[0; 4], b"made\0\0\0\0"].concat());
    for units in [1_u16, 100, u16::MAX] {
        extended[36..38].copy_from_slice(&units.to_le_bytes());
        let (used, _) = client.send(&extended, 4096);
        ensure!(used >= OUT_HEADER_BYTES as u32, "an answer of {used} bytes");
    }
    client.check()
}

#[test]
fn sizes_that_lie_are_refused() -> Result<()> {
    let shared = TempDir::new()?;
    let server = serve(&shared)?;
    let mut client = Client::begin(&server.socket())?;
    let file = client.walk("file")?;
    let handle = client.open(op::OPEN, file, OFlags::RDWR.bits() as i32)?;
    let listing = client.open(op::OPENDIR, ROOT, 0)?;
    for size in [8_u32, 4096, 1 << 20, 1 << 31, u32::MAX] {
        // More than was sent.
        let reply = client.call(op::WRITE, file, &write_body(handle, 0, size, b"evil"))?;
        ensure!(reply.error != 0, "a write of {size} bytes that are not there succeeds");
        // More than there is room for: what fits is right, or an error.
        for opcode in [op::READ, op::READDIR, op::READDIRPLUS] {
            let of = if opcode == op::READ { handle } else { listing };
            let request = client.request(opcode, file, &read_body(of, 0, size));
            for room in [16, 17, 24, 100] {
                let (used, _) = client.send(&request, room);
                ensure!(used <= room, "{used} bytes were written into {room}");
            }
        }
    }
    for offset in [u64::MAX, 1 << 63, (1 << 63) - 1] {
        ensure!(client.call(op::WRITE, file, &write_body(handle, offset, 4, b"evil"))?.error != 0, "at {offset}");
        client.call(op::READ, file, &read_body(handle, offset, 4096))?;
        client.call(op::READDIR, ROOT, &read_body(listing, offset, 4096))?;
    }
    ensure!(fs::read_to_string(shared.path().join("file"))? == "content", "the file has changed");
    client.check()
}

#[test]
fn chains_without_room_or_request_are_survived() -> Result<()> {
    let shared = TempDir::new()?;
    let server = serve(&shared)?;
    let mut client = Client::begin(&server.socket())?;
    let request = client.request(op::GETATTR, ROOT, &[0; 16]);
    for room in 0..OUT_HEADER_BYTES as u32 {
        let (used, _) = client.send(&request, room);
        ensure!(used <= room, "{used} bytes were written into {room}");
    }
    // Room for the header, but not for the attributes.
    for room in OUT_HEADER_BYTES as u32..OUT_HEADER_BYTES as u32 + 104 {
        let (used, _) = client.send(&request, room);
        ensure!(used <= room, "{used} bytes were written into {room}");
    }
    // Nothing to read.
    let (used, _) = client.send(&[], 4096);
    ensure!(used <= 4096);
    // In many pieces, which is no mistake at all.
    client.memory().write(DATA, &request);
    let mut pieces: Vec<_> = (0..request.len() as u64).map(|at| readable(DATA + at, 1)).collect();
    pieces.extend((0..60).map(|at| writable(DATA + u64::from(ROOM_BYTES) + 2 * at, 2)));
    let (used, answer) = client.send_chain(&pieces);
    ensure!(used == 120 && error_of(&answer) == 0, "{used} bytes, error {}", error_of(&answer));
    client.check()
}

#[test]
fn session_begins_with_init_and_can_begin_again() -> Result<()> {
    let shared = TempDir::new()?;
    let server = serve(&shared)?;
    let mut client = Client::connect(&server.socket())?;
    for (opcode, body) in [(op::LOOKUP, name_body(b"file")), (op::GETATTR, vec![0; 16]), (op::STATFS, vec![])] {
        ensure!(client.call(opcode, ROOT, &body)?.error != 0, "operation {opcode} is done before INIT");
    }
    // Too old, and from the future: the answer to the latter is what the server speaks.
    ensure!(client.call(op::INIT, 0, &init_body(6, 0))?.error != 0);
    ensure!(client.call(op::INIT, 0, &init_body(7, 5))?.error != 0);
    let future = client.call(op::INIT, 0, &init_body(8, 0))?.ok()?;
    ensure!(future.u32_at(0) == 7, "the server speaks {}", future.u32_at(0));
    let agreed = client.call(op::INIT, 0, &init_body(7, 38))?.ok()?;
    ensure!((agreed.u32_at(0), agreed.u32_at(4)) == (7, 38), "agreed on {}.{}", agreed.u32_at(0), agreed.u32_at(4));
    let file = client.walk("file")?;
    let handle = client.open(op::OPEN, file, 0)?;
    client.check()?;

    // After DESTROY nothing of it is left.
    client.call(op::DESTROY, 0, &[])?;
    client.call(op::INIT, 0, &init_body(7, 38))?.ok()?;
    client.check()?;
    ensure!(client.call(op::GETATTR, file, &[0; 16])?.error != 0, "a node of the session before is known");
    ensure!(client.call(op::READ, file, &read_body(handle, 0, 16))?.error != 0, "so is a handle");
    client.walk("file")?;
    Ok(())
}

/// Requests that differ from good ones in a few bytes, and some that are noise altogether.
#[test]
fn noise_is_survived() -> Result<()> {
    const ROUNDS: u64 = 20_000;
    let whole = TempDir::new()?;
    let shared = TempDir::new_in(whole.path())?;
    fs::write(whole.path().join("outside"), "outside")?;
    let mut server = serve(&shared)?;
    let mut client = Client::begin(&server.socket())?;
    let mut shapes = shapes(&mut client)?;
    let mut random = Random(7);
    for _ in 0..ROUNDS {
        let choice = random.below(shapes.len() as u64 + 1) as usize;
        let mut bytes = match shapes.get_mut(choice) {
            Some(shape) => shape.clone(),
            None => (0..random.below(300)).map(|_| random.below(256) as u8).collect(),
        };
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
        }
        // A wait for a lock may rightly have no answer, and a chain needs a descriptor.
        let room = [0, 16, 100, 8192][random.below(4) as usize];
        if bytes.is_empty() && room == 0 {
            continue;
        }
        if bytes.get(4..8).is_some_and(|opcode| opcode == 33_u32.to_le_bytes()) {
            continue;
        }
        if random.below(8) == 0 && !bytes.is_empty() {
            client.send_high(&bytes);
        } else {
            client.send(&bytes, room);
        }
    }
    // It may have ended the session (DESTROY) by chance; a new one begins.
    client.call(op::INIT, 0, &init_body(7, 38))?.ok()?;
    client.check()?;
    server.check_alive()?;
    ensure!(fs::read_to_string(whole.path().join("outside"))? == "outside");
    ensure!(fs::read_dir(whole.path())?.count() == 2, "there is more beside the directory than before");
    Ok(())
}

/// Xorshift: the same noise each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}
