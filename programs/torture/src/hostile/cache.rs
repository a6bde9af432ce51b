//! A guest that turns its disk's write cache off and on, and reads what it says.

use anyhow::{Result, ensure};
use tests::driver::NEXT;
use tests::frontend::kind;

use super::attack::{Attack, Expect, On, Scene, Victim};
use super::raw::request;
use super::session::{BLOCK, BUFFER, HEADER, PATIENCE, is_used, settle};

/// Where the byte is (virtio 1.3, 5.2.4).
const WRITEBACK_AT: u32 = 32;
/// How often it is changed.
const CHANGES: u8 = 100;

pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "write-cache-off-and-on",
        what: "turns the write cache off and on under writes, and reads it back each time",
        on: On::Disk,
        expect: Expect::Anything,
        run: off_and_on,
    },
    Attack {
        name: "write-cache-nonsense",
        what: "gives the write cache values that mean nothing, then turns it off and leaves with writes in flight",
        on: On::Disk,
        expect: Expect::Anything,
        run: nonsense,
    },
];

/// The body of GET_CONFIG and SET_CONFIG for the one byte.
fn body(value: u8) -> Vec<u8> {
    let mut body: Vec<u8> = [WRITEBACK_AT, 1, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
    body.push(value);
    body
}

/// Sets the byte. Whether the server obeyed.
fn set(victim: &mut Victim, value: u8) -> Result<bool> {
    Ok(victim.session.raw.order(request::SET_CONFIG, &body(value), &[])?)
}

fn get(victim: &mut Victim) -> Result<u8> {
    let answer = victim.session.raw.ask(request::GET_CONFIG, &body(0))?;
    answer.get(12).copied().ok_or_else(|| anyhow::anyhow!("GET_CONFIG says {answer:?}"))
}

/// A write in three descriptors from `at` on.
fn write(victim: &mut Victim, at: u16) {
    victim.lay_out(at);
    victim.session.memory.write(HEADER, &kind::OUT.to_le_bytes());
    victim.ring.queue.set_descriptor(at + 1, BUFFER, BLOCK, NEXT, at + 2);
    victim.ring.publish(at);
    victim.ring.kick();
}

fn off_and_on(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    for change in 0..CHANGES {
        write(&mut victim, 3 * u16::from(change % 8));
        let value = change % 2;
        ensure!(set(&mut victim, value)?, "the write cache cannot be set to {value}");
        let found = get(&mut victim)?;
        ensure!(found == value, "the write cache was set to {value} and reads as {found}");
        ensure!(is_used(&victim.ring, u16::from(change) + 1, PATIENCE), "a write is not answered");
    }
    ensure!(set(&mut victim, 1)?, "the write cache cannot be turned on");
    scene.keep(victim);
    Ok(())
}

fn nonsense(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let before = get(&mut victim)?;
    for value in [2, 3, 0x80, 0xff] {
        ensure!(!set(&mut victim, value)?, "the write cache takes the value {value}");
        ensure!(get(&mut victim)? == before, "a value that was refused has changed something");
    }
    ensure!(set(&mut victim, 0)?, "the write cache cannot be turned off");
    for at in 0..8 {
        write(&mut victim, 3 * at);
    }
    settle();
    scene.keep(victim);
    Ok(())
}
