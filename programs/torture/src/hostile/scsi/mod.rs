//! What a guest of a SCSI device can ask for that no driver asks for: on its request queues, its control queue and its event queue.

mod commands;
mod events;
mod management;
mod noise;
mod units;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use frontkit::scsi::config::SENSE_SIZE_AT;
use frontkit::scsi::response::{RESPONSE_AT, SENSE_AT, STATUS_AT};
use frontkit::scsi::{self, CDB_AT};
use tests::driver::{NEXT, Ring, WRITE};
use tests::frontend::DATA;

use super::attack::{Attack, Expect, On, Scene};
use super::raw::request;
use super::session::{BLOCK, PATIENCE, Session, is_used};

/// Queues (virtio 1.3, 5.6.2).
const CONTROL: usize = 0;
const EVENT: usize = 1;
pub(crate) const REQUEST: usize = 2;
/// The unit that comes and goes; the other one is number 0.
const SPARE: u16 = 1;
/// cdb_size and sense_size after a reset (5.6.4).
const CDB_BYTES: usize = 32;
const SENSE_BYTES: usize = 96;
/// Requests of one attack that are under way at once, each with a place in memory of its own.
const AT_ONCE: u16 = 16;
const PLACE_BYTES: u64 = 1 << 17;
/// Within a place: where the response goes, and data.
const RESPONSE: u64 = 1024;
const OUT: u64 = 4096;
const IN: u64 = 1 << 16;
/// How often a unit may have something to tell before a command is done.
const TELLS_MAX: usize = 8;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// All of them.
pub(super) fn attacks() -> impl Iterator<Item = &'static Attack> {
    noise::ATTACKS
        .iter()
        .chain(commands::ATTACKS)
        .chain(management::ATTACKS)
        .chain(events::ATTACKS)
        .chain(units::ATTACKS)
}

const fn only(name: &'static str, what: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Attack {
    Attack { name, what, on: On::Scsi, expect: Expect::Anything, run }
}

/// Where the request with this number has its place.
fn place(number: u16) -> u64 {
    DATA + u64::from(number % AT_ONCE) * PLACE_BYTES
}

/// A request: its head, and how much room there is for what.
#[derive(Clone, Debug)]
struct Ask {
    head: Vec<u8>,
    out_bytes: u32,
    response_bytes: u32,
    in_bytes: u32,
}

impl Ask {
    /// A command to unit `lun` of the only target, with data in one direction.
    fn command(lun: u16, tag: u64, cdb: &[u8], out_bytes: u32, in_bytes: u32) -> Self {
        let mut head = vec![0; CDB_AT + CDB_BYTES];
        scsi::write_head(&mut head, scsi::address(0, lun), tag, cdb);
        Self { head, out_bytes, response_bytes: (SENSE_AT + SENSE_BYTES) as u32, in_bytes }
    }

    /// Puts it into the place of `number` and offers it, without a kick. Its descriptors are those of the place, too.
    fn offer(&self, ring: &mut Ring, number: u16) {
        let at = place(number);
        ring.queue.memory().write(at, &self.head);
        ring.queue.memory().write(at + RESPONSE, &[0xee; SENSE_AT]);
        let buffers = [
            (at, self.head.len() as u32, 0),
            (at + OUT, self.out_bytes, 0),
            (at + RESPONSE, self.response_bytes, WRITE),
            (at + IN, self.in_bytes, WRITE),
        ];
        let buffers: Vec<_> = buffers.into_iter().filter(|(_, len, _)| *len > 0).collect();
        let first = 4 * (number % AT_ONCE);
        for (step, (address, len, flags)) in buffers.iter().enumerate() {
            let (descriptor, is_last) = (first + step as u16, step + 1 == buffers.len());
            let flags = flags | if is_last { 0 } else { NEXT };
            ring.queue.set_descriptor(descriptor, *address, *len, flags, descriptor + 1);
        }
        ring.publish(first);
    }
}

/// Sends all of these with up to [`AT_ONCE`] under way, and waits for all answers.
///
/// # Errors
/// One of them is not answered in time.
fn send(ring: &mut Ring, asks: impl Iterator<Item = Ask>) -> Result<()> {
    let mut sent = 0_u16;
    for ask in asks {
        // Places come around: what is under way keeps its own.
        if sent.is_multiple_of(AT_ONCE) {
            wait_until_used(ring, sent)?;
        }
        ask.offer(ring, sent);
        ring.kick();
        sent += 1;
    }
    wait_until_used(ring, sent)
}

/// Waits until so many of the ring's requests have come back, which is no more than it was given.
fn wait_until_used(ring: &Ring, wanted: u16) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while ring.queue.used_index() < wanted {
        let used = ring.queue.used_index();
        ensure!(Instant::now() < end, "ring {}: {used} requests are answered of {wanted}", ring.index());
        thread::sleep(LOOK_AGAIN_AFTER);
    }
    Ok(())
}

/// Response and status of what was asked in the place of `number`.
fn answered(ring: &Ring, number: u16) -> (u8, u8) {
    let response = ring.queue.memory().read(place(number) + RESPONSE, SENSE_AT);
    (response[RESPONSE_AT], response[STATUS_AT])
}

/// Has a command done that must be, whatever else the unit has to tell before. Commands of the ring so far are counted in `sent`.
fn done(ring: &mut Ring, sent: &mut u16, ask: &Ask) -> Result<()> {
    for _ in 0..TELLS_MAX {
        ask.offer(ring, *sent);
        ring.kick();
        *sent += 1;
        ensure!(is_used(ring, *sent, PATIENCE), "command {:02x}h is not answered", ask.head[CDB_AT]);
        match answered(ring, *sent - 1) {
            (0, 0) => return Ok(()),
            (0, 2) => {}
            (response, status) => {
                anyhow::bail!("command {:02x}h: response {response}, status {status:02x}h", ask.head[CDB_AT])
            }
        }
    }
    anyhow::bail!("command {:02x}h: fails each time", ask.head[CDB_AT])
}

/// WRITE (10) and READ (10) of eight blocks from `block` on.
fn write_10(lun: u16, tag: u64, block: u32) -> Ask {
    Ask::command(lun, tag, &ten(0x2a, block, 8), BLOCK, 0)
}

fn read_10(lun: u16, tag: u64, block: u32) -> Ask {
    Ask::command(lun, tag, &ten(0x28, block, 8), 0, BLOCK)
}

fn ten(opcode: u8, block: u32, count: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// Whether a driver that behaves is served: it reads what it has written, and its control queue answers.
pub(super) fn check(session: &mut Session) -> Result<()> {
    let memory = session.memory.clone();
    let mut control = session.ring(CONTROL)?;
    let _events = session.ring(EVENT)?;
    let (mut ring, mut sent) = (session.ring(REQUEST)?, 0);
    let data = [0xd5; BLOCK as usize];
    for lun in [0, SPARE] {
        // The place of each request follows from its number, which an attention moves on.
        (0..AT_ONCE).for_each(|number| memory.write(place(number) + OUT, &data));
        done(&mut ring, &mut sent, &write_10(lun, 1, 0))?;
        done(&mut ring, &mut sent, &read_10(lun, 2, 0))?;
        ensure!(memory.read(place(sent - 1) + IN, BLOCK as usize) == data, "other data is read than was written");
    }
    management::tmf(management::QUERY_TASK_SET, 0, 0).offer(&mut control, 0);
    control.kick();
    ensure!(is_used(&control, 1, PATIENCE), "task management is not answered");
    let answer = memory.read(place(0) + RESPONSE, 1);
    ensure!(answer == [0], "task management of nothing answers {answer:?}");
    Ok(())
}

/// Writes a field of the configuration space. Whether the server obeyed.
fn set_config(session: &mut Session, at: usize, value: u32) -> Result<bool> {
    let head = [at as u32, 4, 1].into_iter().flat_map(u32::to_ne_bytes);
    let body: Vec<u8> = head.chain(value.to_le_bytes()).collect();
    Ok(session.raw.order(request::SET_CONFIG, &body, &[])?)
}

/// A session with a running request queue, for whose answers there is room for so much sense data.
fn with_sense(scene: &Scene<'_>, bytes: u32) -> Result<(Session, Ring)> {
    let mut session = scene.session()?;
    ensure!(set_config(&mut session, SENSE_SIZE_AT, bytes)?, "sense_size {bytes} is refused");
    let ring = session.ring(REQUEST)?;
    Ok((session, ring))
}
