//! What a guest can say in 9P that no client says.

use anyhow::{Result, ensure};
use tests::driver::{NEXT, WRITE, readable, writable};
use tests::frontend::DATA;

use super::attack::{Attack, Expect, On, Scene, Victim};
use super::session::{BLOCK, BUFFER, HEADER, PATIENCE, Session, bytes, is_used};
use crate::rng::Rng;

/// Types of messages (include/net/9p/9p.h).
mod kind {
    pub(super) const GETATTR: u8 = 24;
    pub(super) const LOCK: u8 = 52;
    pub(super) const VERSION: u8 = 100;
    pub(super) const ATTACH: u8 = 104;
    pub(super) const FLUSH: u8 = 108;
    pub(super) const WALK: u8 = 110;
    pub(super) const READ: u8 = 116;
}

/// Requests of noise.
const NOISE: usize = 400;
/// Noise in flight at once.
const AT_ONCE: u16 = 16;

pub(crate) const ATTACKS: &[Attack] = &[
    only("9p-noise", "9P messages with random types, lengths and bodies", noise),
    only("9p-flushes", "flushes of everything, of themselves and of each other, under the same few tags", flushes),
    only("9p-fids", "fids without end", fids),
];

const fn only(name: &'static str, what: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Attack {
    Attack { name, what, on: On::P9, expect: Expect::Anything, run }
}

/// A message: its header, and the fields one behind the other.
pub(super) fn message(kind: u8, tag: u16, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    [&(7 + body.len() as u32).to_le_bytes()[..], &[kind], &tag.to_le_bytes(), &body].concat()
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes()[..], text].concat()
}

/// What a mount begins with: the version, and fid 1 for the root.
pub(super) fn begin() -> [Vec<u8>; 2] {
    let version = message(kind::VERSION, u16::MAX, &[&8192_u32.to_le_bytes(), &string(b"9P2000.L")]);
    let names = [string(b"nobody"), string(b"")].concat();
    let attach = message(kind::ATTACH, 0, &[&1_u32.to_le_bytes(), &[0xff; 4], &names, &[0; 4]]);
    [version, attach]
}

/// Whether a client that behaves is served.
pub(super) fn check(session: &mut Session) -> Result<()> {
    let memory = session.memory.clone();
    let mut ring = session.ring(0)?;
    let [version, attach] = begin();
    let getattr = message(kind::GETATTR, 5, &[&1_u32.to_le_bytes(), &[0xff, 7, 0, 0, 0, 0, 0, 0]]);
    for (number, message) in [version, attach, getattr].iter().enumerate() {
        memory.write(HEADER, message);
        ring.add(&[readable(HEADER, message.len() as u32), writable(BUFFER, BLOCK)]);
        ring.kick();
        ensure!(is_used(&ring, number as u16 + 1, PATIENCE), "message {number} is not answered");
        let answer = memory.read(BUFFER, 7);
        ensure!(answer[4..] == [&[message[4] + 1], &message[5..7]].concat(), "message {number} fails");
    }
    Ok(())
}

/// Sends messages with `AT_ONCE` under way, until the server takes no more.
fn send(victim: &mut Victim, random: &mut Rng, messages: impl Iterator<Item = Vec<u8>>) {
    let Victim { session, ring } = victim;
    for (number, message) in messages.enumerate() {
        // Each request in flight has a place of its own.
        let slot = (number % usize::from(AT_ONCE)) as u16;
        let place = DATA + u64::from(slot) * (1 << 16);
        session.memory.write(place, &message);
        let head = 2 * slot;
        let room = if number < 2 { 8192 } else { random.pick(&[0, 6, 7, 11, 100, 8192]) };
        ring.queue.set_descriptor(head, place, message.len() as u32, NEXT, head + 1);
        ring.queue.set_descriptor(head + 1, place + (1 << 15), room, WRITE, 0);
        ring.publish(head);
        ring.kick();
        let behind = ring.queue.next_available().saturating_sub(AT_ONCE / 2);
        if ring.queue.used_index() < behind && !is_used(ring, behind, PATIENCE) {
            break;
        }
    }
    victim.kick();
}

fn noise(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let random = &mut scene.random;
    let made: Vec<_> = (0..NOISE).map(|_| any(random)).collect();
    send(&mut victim, random, begin().into_iter().chain(made));
    scene.keep(victim);
    Ok(())
}

/// A message of any type but those that may rightly wait for ever.
fn any(random: &mut Rng) -> Vec<u8> {
    let kind = match random.within(0..=130) as u8 {
        kind::LOCK => kind::GETATTR,
        kind => kind,
    };
    let names: [&[u8]; 6] = [b"\x01\x00a", b"\x02\x00..", b"\x01\x00/", b"\x00\x00", b"\xff\xffa", b"\x02\x00a\x00"];
    let mut body = Vec::<u8>::new();
    for _ in 0..random.within(0..=5) {
        match random.within(0..=4) {
            0 => body.extend(random.pick(&names)),
            1 => body.extend(random.pick(&[0_u64, 1, 4096, 1 << 31, 1 << 63, u64::MAX]).to_le_bytes()),
            2 | 3 => body.extend(random.pick(&[0_u32, 1, 1, 2, 3, 4096, u32::MAX]).to_le_bytes()),
            _ => {
                let count = random.within(0..=99) as usize;
                body.extend(bytes(random, count));
            }
        }
    }
    let mut message = message(kind, random.within(0..=20) as u16, &[&body]);
    if random.once_in(4) {
        // A length that lies.
        let claimed = random.pick(&[0, 6, 7, 8, 4096, u32::MAX]);
        for (byte, new) in message.iter_mut().zip(claimed.to_le_bytes()) {
            *byte = new;
        }
    }
    message
}

fn flushes(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let random = &mut scene.random;
    let made: Vec<_> = (0..NOISE)
        .map(|number| {
            let [tag, old] = [random.within(0..=3) as u16, random.within(0..=3) as u16];
            match number % 3 {
                0 => message(kind::READ, tag, &[&1_u32.to_le_bytes(), &[0; 8], &4096_u32.to_le_bytes()]),
                _ => message(kind::FLUSH, tag, &[&old.to_le_bytes()]),
            }
        })
        .collect();
    send(&mut victim, random, begin().into_iter().chain(made));
    scene.keep(victim);
    Ok(())
}

fn fids(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let clone = |fid: u32| message(kind::WALK, 1, &[&1_u32.to_le_bytes(), &fid.to_le_bytes(), &[0, 0]]);
    send(&mut victim, &mut scene.random, begin().into_iter().chain((2..20_000).map(clone)));
    scene.keep(victim);
    Ok(())
}
