//! INTERRUPT by a client without a kernel: Linux sends none to a virtio-fs device.

use std::fs::File;

use anyhow::{Context, Result, ensure};
use nix::libc;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::driver::{readable, writable};
use tests::frontend::DATA;
use tests::fuse::{Client, OUT_HEADER_BYTES, op};
use tests::lab::Lab;

/// Where an INTERRUPT lies that has room for an answer.
const INTERRUPT_AT: u64 = DATA + (3 << 20);

/// `struct fuse_lk_in` for an exclusive flock.
fn flock_body(handle: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(handle.to_le_bytes());
    body.extend(1_u64.to_le_bytes());
    body.extend(0_u64.to_le_bytes());
    body.extend(i64::MAX.to_le_bytes());
    body.extend((libc::F_WRLCK as u32).to_le_bytes());
    body.extend(0_u32.to_le_bytes());
    // FUSE_LK_FLOCK
    body.extend(1_u32.to_le_bytes());
    body.extend([0; 4]);
    body
}

/// Sends an INTERRUPT that could be answered, and returns how much of the room was used.
fn interrupt(client: &mut Client, unique: u64) -> u32 {
    let bytes = client.request(op::INTERRUPT, 0, &unique.to_le_bytes());
    client.memory().write(INTERRUPT_AT, &bytes);
    let room = writable(INTERRUPT_AT + 512, OUT_HEADER_BYTES as u32);
    let head = client.high().add(&[readable(INTERRUPT_AT, bytes.len() as u32), room]);
    client.high().kick_if_wanted();
    let (used_head, used) = client.high().wait_used();
    assert_eq!(used_head, head);
    used
}

/// The number of the next request but one.
fn number_to_come(client: &mut Client) -> Result<u64> {
    let never_sent = client.request(op::GETATTR, 0, &[]);
    // struct fuse_in_header: its number is behind its length and its operation. Numbers go by two.
    Ok(u64::from_le_bytes(never_sent[8..16].try_into()?) + 4)
}

/// An interrupt that overtakes its request on the other ring is not lost, and none is ever answered: EAGAIN would make a
/// client repeat it at once.
#[test]
fn interrupts_that_come_first_are_remembered() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let file = File::create_new(shared.path().join("file"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    let server = DirectoryServer::start(&lab, &Directory::new(shared.path()))?;
    let mut client = Client::begin(&server.socket())?;
    let node = client.walk("file")?;
    let handle = client.open(op::OPEN, node, OFlags::RDWR.bits() as i32)?;

    let unique = number_to_come(&mut client)?;
    ensure!(interrupt(&mut client, unique) == 0, "an INTERRUPT was answered");
    let waiting = client.begin_call(op::SETLKW, node, &flock_body(handle));
    ensure!(waiting.unique == unique, "the wrong request is interrupted");
    let ended = client.end_call(waiting)?;
    ensure!(ended.error == -Errno::INTR.raw_os_error(), "the wait ended with {ended:?}");
    ensure!(interrupt(&mut client, unique) == 0, "an INTERRUPT of what has ended was answered");

    // Any number of them cost nothing, and the next wait is none of theirs.
    for number in 0..1000 {
        ensure!(interrupt(&mut client, 1 << 40 | number) == 0, "an INTERRUPT of nothing was answered");
    }
    let waiting = client.begin_call(op::SETLKW, node, &flock_body(handle));
    client.check()?;
    ensure!(!client.has_ended(waiting), "a wait ended that nobody has interrupted");
    flock(&file, FlockOperation::Unlock)?;
    client.end_call(waiting)?.ok().context("the lock of the host is gone")?;
    client.check()
}
