//! Any bytes, in any lengths.

use anyhow::Result;
use frontkit::scsi::CDB_AT;

use super::super::attack::{Attack, Scene, Victim};
use super::super::session::{BLOCK, bytes};
use super::{Ask, CDB_BYTES, CONTROL, SENSE_BYTES, only, place, send};
use crate::rng::Rng;

const NOISE: usize = 400;
/// Lengths around those that mean something.
const LENGTHS: [u32; 12] = [0, 1, 11, 12, 13, 50, 51, 52, 108, 511, BLOCK, 32 << 10];

pub(super) const ATTACKS: &[Attack] = &[
    only("scsi-noise", "requests of random bytes, with heads, responses and data of random lengths", heads),
    only("scsi-cdb-noise", "commands of random operation codes and bytes, with data in any direction", cdbs),
    only("scsi-control-noise", "random bytes and lengths on the control queue", control),
];

/// Every operation code, with service actions as they come.
fn cdb(random: &mut Rng) -> Vec<u8> {
    let mut cdb = bytes(random, CDB_BYTES);
    cdb[0] = random.next() as u8;
    // Most commands get further with fewer bits.
    for byte in &mut cdb[1..] {
        if random.within(0..=3) > 0 {
            *byte = random.pick(&[0, 0, 0, 1, 8, 0x10, 0xff]);
        }
    }
    cdb
}

fn heads(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let random = &mut scene.random;
    let asks: Vec<Ask> = (0..NOISE)
        .map(|_| {
            let len = random.pick(&[1_usize, 8, 18, 19, 20, 50, 51, 52, 600]);
            let mut head = bytes(random, len);
            // Some of it gets as far as a unit.
            if random.once_in(2) {
                head.iter_mut().zip([1, 0, 0x40, 0, 0, 0, 0, 0]).for_each(|(byte, wanted)| *byte = wanted);
            }
            let [out_bytes, response_bytes, in_bytes] = [(); 3].map(|()| random.pick(&LENGTHS));
            Ask { head, out_bytes, response_bytes, in_bytes }
        })
        .collect();
    send(&mut victim.ring, asks.into_iter())?;
    scene.keep(victim);
    Ok(())
}

fn cdbs(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let random = &mut scene.random;
    let asks: Vec<Ask> = (0..4 * NOISE)
        .map(|number| {
            let [out_bytes, in_bytes] = [(); 2].map(|()| random.pick(&LENGTHS));
            let (lun, cdb) = (random.pick(&[0, 0, 0, 1, 5, 0x3fff]), cdb(random));
            Ask::command(lun, number as u64, &cdb, out_bytes, in_bytes)
        })
        .collect();
    fill(&victim, random);
    send(&mut victim.ring, asks.into_iter())?;
    // Some of these may have registered or reserved: to the next guest at this socket, which is the same initiator, that is no harm.
    scene.keep(victim);
    Ok(())
}

/// Data-out of all places.
fn fill(victim: &Victim, random: &mut Rng) {
    for number in 0..super::AT_ONCE {
        let noise = bytes(random, 256);
        victim.session.memory.write(place(number) + super::OUT, &noise);
    }
}

fn control(scene: &mut Scene<'_>) -> Result<()> {
    let mut session = scene.session()?;
    let _requests = session.ring(super::REQUEST)?;
    let mut control = session.ring(CONTROL)?;
    let random = &mut scene.random;
    let asks: Vec<Ask> = (0..NOISE)
        .map(|_| {
            let len = random.pick(&[1_usize, 3, 4, 15, 16, 17, 23, 24, 25, CDB_AT + SENSE_BYTES]);
            let mut head = bytes(random, len);
            for (byte, wanted) in head.iter_mut().zip([random.within(0..=3) as u8, 0, 0, 0, random.within(0..=8) as u8])
            {
                *byte = wanted;
            }
            let [out_bytes, response_bytes, in_bytes] = [0, random.pick(&[0, 1, 4, 5, 6, 64]), random.pick(&[0, 0, 9])];
            Ask { head, out_bytes, response_bytes, in_bytes }
        })
        .collect();
    send(&mut control, asks.into_iter())?;
    scene.keep((session, control));
    Ok(())
}
