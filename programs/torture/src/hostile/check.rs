//! A frontend that behaves.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use tests::driver::{RING_BYTES, readable, writable};
use tests::frontend::{kind, status};
use tests::fuse::{self, OUT_HEADER_BYTES, ROOT, init_body, op};

use super::session::{BLOCK, BUFFER, Device, HEADER, PATIENCE, Session, is_used};
use super::{p9, scsi};

/// Whether an export serves a frontend that behaves: this is what every attack must leave behind. When it does not, `look` tells
/// what it sees of the server while the session is there.
pub(crate) fn serves(socket: &Path, device: Device, look: impl Fn() -> String) -> Result<()> {
    let tell = |error| anyhow!("{error:#}{}", look());
    let mut session = Session::open_patiently(socket, 0, 0).map_err(tell)?;
    let served = match device {
        Device::Disk => check_disk(&mut session),
        Device::Directory => check_directory(&mut session),
        Device::P9 => p9::check(&mut session),
        Device::Scsi => scsi::check(&mut session),
    };
    served.map_err(tell)
}

fn check_disk(session: &mut Session) -> Result<()> {
    let memory = session.memory.clone();
    let mut ring = session.ring(0)?;
    let data = [0xd5; BLOCK as usize];
    memory.write(BUFFER, &data);
    let written = ring.request(kind::OUT, 0, &[readable(BUFFER, BLOCK)]);
    ring.kick();
    ensure!(is_used(&ring, 1, PATIENCE), "a write is not answered");
    let read = ring.request(kind::IN, 0, &[writable(BUFFER + RING_BYTES, BLOCK)]);
    ring.kick();
    ensure!(is_used(&ring, 2, PATIENCE), "a read is not answered");
    ensure!((ring.status(written), ring.status(read)) == (status::OK, status::OK), "a request fails");
    ensure!(memory.read(BUFFER + RING_BYTES, BLOCK as usize) == data, "other data is read than was written");
    Ok(())
}

fn check_directory(session: &mut Session) -> Result<()> {
    let memory = session.memory.clone();
    let _high = session.ring(0)?;
    let mut ring = session.ring(1)?;
    for (number, (opcode, node, body)) in
        [(op::INIT, 0, init_body(7, 38)), (op::GETATTR, ROOT, vec![0; 16])].into_iter().enumerate()
    {
        let unique = number as u64 + 1;
        let bytes = fuse::request(opcode, unique, node, &body);
        memory.write(HEADER, &bytes);
        ring.add(&[readable(HEADER, bytes.len() as u32), writable(BUFFER, BLOCK)]);
        ring.kick();
        ensure!(is_used(&ring, number as u16 + 1, PATIENCE), "operation {opcode} is not answered");
        let answer = memory.read(BUFFER, OUT_HEADER_BYTES);
        ensure!(answer[4..] == [&[0; 4][..], &unique.to_le_bytes()].concat(), "operation {opcode} fails");
    }
    Ok(())
}
