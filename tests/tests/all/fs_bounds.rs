//! What one request of a directory may cost the other guests of its worker: no gigabytes, no endless listing, no disk's time.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tempfile::TempDir;
use tests::daemon::{self, DIRECTORY, Daemon};
use tests::directory_server::{Directory, DirectoryServer};
use tests::fuse::{Client, ROOT, init_body, name_body, op, open_body, read_body, write_body};
use tests::lab::Lab;
use tests::vringd;

const RDWR: i32 = OFlags::RDWR.bits() as i32;

/// Most bytes of a listing in one answer.
const LISTING_MAX: usize = 128 << 10;

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The names of an answer to READDIR, or READDIRPLUS where `plus` bytes come before each, and the offset to go on from.
fn names(body: &[u8], plus: usize) -> Result<(Vec<String>, u64)> {
    let (mut at, mut names, mut offset) = (0, Vec::new(), 0);
    while at < body.len() {
        let entry = body.get(at + plus..).context("an entry that is cut off")?;
        let number = |from: usize| entry.get(from..from + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        offset = number(8).context("an entry that is cut off")?;
        let len = (number(16).context("an entry that is cut off")? & 0xffff_ffff) as usize;
        names.push(String::from_utf8(entry.get(24..24 + len).context("a name that is cut off")?.to_vec())?);
        at += plus + (24 + len).next_multiple_of(8);
    }
    Ok((names, offset))
}

#[test]
fn listings_come_in_parts() -> Result<()> {
    const FILES: usize = 3000;
    let shared = TempDir::new()?;
    let expected: BTreeSet<String> = (0..FILES).map(|file| format!("{file:040}")).collect();
    expected.iter().try_for_each(|name| fs::write(shared.path().join(name), ""))?;
    let server = DirectoryServer::start(&Lab::take_turn(), &Directory::new(shared.path()))?;
    let mut client = Client::begin(&server.socket())?;
    for (opcode, plus) in [(op::READDIR, 0), (op::READDIRPLUS, 128)] {
        let listing = client.open(op::OPENDIR, ROOT, 0)?;
        let (mut found, mut offset, mut answers) = (BTreeSet::new(), 0, 0);
        loop {
            let reply = client.call(opcode, ROOT, &read_body(listing, offset, (1 << 20) - 64))?.ok()?;
            ensure!(reply.body.len() <= LISTING_MAX, "an answer of {} bytes", reply.body.len());
            if reply.body.is_empty() {
                break;
            }
            let (names, next) = names(&reply.body, plus)?;
            names.into_iter().try_for_each(|name| {
                ensure!(found.insert(name.clone()), "{name} is told twice");
                Ok(())
            })?;
            (offset, answers) = (next, answers + 1);
        }
        ensure!(found.remove(".") && found.remove(".."));
        ensure!(found == expected, "{} names instead of {FILES}", found.len());
        ensure!(answers > 1, "operation {opcode}: in one answer");
    }
    client.check()
}

#[test]
fn no_request_moves_more_than_any_client_asks_for() -> Result<()> {
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), "content")?;
    let server = DirectoryServer::start(&Lab::take_turn(), &Directory::new(shared.path()))?;
    let mut client = Client::begin(&server.socket())?;
    let file = client.walk("file")?;
    let handle = client.open(op::OPEN, file, RDWR)?;
    // 256 pages of 64 KiB, and a byte more.
    for (size, error) in
        [(16 << 20, 0), ((16 << 20) + 1, Errno::INVAL.raw_os_error()), (u32::MAX, Errno::INVAL.raw_os_error())]
    {
        let reply = client.call(op::READ, file, &read_body(handle, 0, size))?;
        ensure!(reply.error == -error, "a read of {size} bytes: {}", reply.error);
        ensure!(error != 0 || reply.body == b"content", "a read of {size} bytes: {:?}", reply.body);
    }
    ensure!(client.call(op::WRITE, file, &write_body(handle, 0, (16 << 20) + 1, b"x"))?.error < 0);
    client.check()
}

/// With every operation slow, the requests behind a long one are answered before it.
#[test]
fn long_calls_keep_nobody_waiting() -> Result<()> {
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), "content")?;
    fs::write(shared.path().join("copy"), "")?;
    for execution in ["auto", "uring"] {
        let mut directory = Directory::new(shared.path());
        (directory.workers, directory.execution) = (Some("one"), Some(execution));
        directory.options = vec!["--delay=300ms".to_owned()];
        let server = DirectoryServer::start(&Lab::take_turn(), &directory)?;
        let mut client = Client::begin(&server.socket())?;
        let file = client.walk("file")?;
        let handle = client.open(op::OPEN, file, RDWR)?;
        let copy = client.walk("copy")?;
        let target = client.open(op::OPEN, copy, RDWR)?;
        let listing = client.open(op::OPENDIR, ROOT, 0)?;
        let calls = [
            (op::FALLOCATE, file, words(&[handle, 0, 8192, 0])),
            (op::FSYNCDIR, ROOT, words(&[listing, 0])),
            (op::SYNCFS, ROOT, words(&[0])),
        ];
        for (opcode, node, body) in calls {
            let call = client.begin_call(opcode, node, &body);
            // It waits for nothing: no operation has this number.
            ensure!(client.call(4095, ROOT, &[])?.error == -Errno::NOSYS.raw_os_error());
            ensure!(!client.came_first(call), "operation {opcode} was waited for with execution {execution}");
            client.end_call(call)?.ok()?;
        }
        ensure!(fs::metadata(shared.path().join("file"))?.len() == 8192, "nothing was allocated");
        let copied = client.call(op::COPY_FILE_RANGE, file, &words(&[handle, 0, copy, target, 0, 7, 0]))?.ok()?;
        ensure!(copied.u32_at(0) == 7 && fs::read(shared.path().join("copy"))? == b"content");
        client.check()?;
    }
    Ok(())
}

/// What a guest knew is forgotten by another thread, and the next session begins behind that.
#[test]
fn a_session_that_knew_much_ends() -> Result<()> {
    const FILES: usize = 5000;
    let shared = TempDir::new()?;
    (0..FILES).try_for_each(|file| fs::write(shared.path().join(format!("{file}")), ""))?;
    let server = DirectoryServer::start(&Lab::take_turn(), &Directory::new(shared.path()))?;
    let mut client = Client::begin(&server.socket())?;
    for ends_by in [op::DESTROY, op::INIT] {
        let nodes = (0..FILES).map(|file| client.walk(&format!("{file}"))).collect::<Result<Vec<_>>>()?;
        client.call(op::OPEN, nodes[0], &open_body(0))?.ok()?;
        let body = if ends_by == op::INIT { init_body(7, 38) } else { Vec::new() };
        client.call(ends_by, 0, &body)?.ok()?;
        if ends_by == op::DESTROY {
            ensure!(client.call(op::GETATTR, ROOT, &[0; 16])?.error != 0, "there is a session after DESTROY");
            client.call(op::INIT, 0, &init_body(7, 38))?.ok()?;
        }
        for node in [nodes[0], nodes[FILES - 1]] {
            ensure!(client.call(op::GETATTR, node, &[0; 16])?.error == -Errno::STALE.raw_os_error(), "{node} is known");
        }
        client.check()?;
    }
    Ok(())
}

/// Does it again and again until it fails, which must be with ENFILE: how often it did not.
fn until_refused(mut step: impl FnMut(usize) -> Result<i32>) -> Result<usize> {
    let mut count = 0;
    loop {
        match step(count)? {
            0 => count += 1,
            error if error == -Errno::NFILE.raw_os_error() => return Ok(count),
            error => bail!("error {} after {count}", -error),
        }
    }
}

#[test]
fn a_guest_that_holds_all_it_can_leaves_descriptors_to_others() -> Result<()> {
    const LIMIT: usize = 600;
    for handles in ["never", "prefer"] {
        let place = daemon::directory()?;
        let mut config = "workers = 2\n".to_owned();
        for name in ["greedy", "late"] {
            fs::create_dir(place.path().join(name))?;
            (0..LIMIT).try_for_each(|file| fs::write(place.path().join(name).join(file.to_string()), "content"))?;
            config += &format!(
                "[[export]]\nname = '{name}'\nkind = 'dir'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\n\
                 directory = {{ path = '{DIRECTORY}/{name}', inode_file_handles = '{handles}' }}\n"
            );
        }
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={LIMIT}")).arg(vringd::program()?);
        let daemon = Daemon::serve_by(command, place, &config)?;

        let mut greedy = Client::begin(&daemon.socket("greedy"))?;
        for file in 0..100 {
            greedy.walk(&file.to_string())?;
        }
        let node = greedy.walk("0")?;
        let opened = until_refused(|_| Ok(greedy.call(op::OPEN, node, &open_body(RDWR))?.error))?;
        ensure!(opened > LIMIT / 2, "alone it gets most: {opened} of {LIMIT}, {handles}");
        if handles == "never" {
            let known = until_refused(|file| {
                let name = name_body((100 + file).to_string().as_bytes());
                Ok(greedy.call(op::LOOKUP, ROOT, &name)?.error)
            })?;
            ensure!(known < 10, "{known} nodes were held, too");
        }
        let mut late = Client::begin(&daemon.socket("late")).context("another frontend connects")?;
        for file in 0..20 {
            let node = late.walk(&file.to_string())?;
            let handle = late.open(op::OPEN, node, RDWR).with_context(|| format!("file {file}, {handles}"))?;
            ensure!(late.call(op::READ, node, &read_body(handle, 0, 100))?.ok()?.body == b"content");
        }
        daemon.upgrade().context("the program is replaced")?;
        late.check()?;
        greedy.check()?;
        ensure!(greedy.call(op::OPEN, node, &open_body(RDWR))?.error != 0, "it begins anew, {handles}");
        // What was given back can be had again.
        drop(greedy);
        daemon.wait_disconnected("greedy")?;
        let mut greedy = Client::begin(&daemon.socket("greedy"))?;
        let node = greedy.walk("0")?;
        let again = until_refused(|_| Ok(greedy.call(op::OPEN, node, &open_body(RDWR))?.error))?;
        ensure!(again > LIMIT / 2, "{again} of {LIMIT}, {handles}");
        daemon.stop()?;
    }
    Ok(())
}
