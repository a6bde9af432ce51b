//! Commands that are almost right.

use anyhow::{Result, ensure};
use frontkit::scsi::config::{CDB_SIZE_AT, SENSE_SIZE_AT};
use frontkit::scsi::response::SENSE_AT;

use super::super::attack::{Attack, Scene, Victim};
use super::super::session::{BLOCK, PATIENCE, bytes, is_used};
use super::{
    AT_ONCE, Ask, OUT, REQUEST, RESPONSE, answered, only, place, read_10, send, set_config, ten, wait_until_used,
    with_sense, write_10,
};

/// COMPARE AND WRITEs of one block.
const SWAPS: u16 = 400;
const RESERVES: usize = 400;
/// How often the sizes are changed.
const CHANGES: u32 = 100;
/// What stands where nothing may be written.
const CANARY: [u8; 256] = [0x5a; 256];

pub(super) const ATTACKS: &[Attack] = &[
    only(
        "scsi-beyond-the-end",
        "every command of blocks, at and beyond the last one and of as many as there are",
        beyond,
    ),
    only("scsi-directions", "reads with data to send, writes with room to receive, and both at once", directions),
    only("scsi-sense-of-no-bytes", "commands that fail, with room for none of their sense data", no_sense),
    only(
        "scsi-sizes-change",
        "changes sense_size and cdb_size under requests, to all that they may be and more",
        sizes,
    ),
    only("scsi-swaps-pile-up", "comparisons and writes of one block on two queues, and leaves", swaps),
    only("scsi-parameter-lists", "parameter lists that lie about their lengths, of every command that has one", lists),
];

fn beyond(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let long = |opcode: u8, action: u8, block: u64, count: u32| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        cdb[2..10].copy_from_slice(&block.to_be_bytes());
        cdb[10..14].copy_from_slice(&count.to_be_bytes());
        cdb
    };
    let mut asks = Vec::new();
    // The disk has 32768 blocks.
    for block in [0, 32767, 32768, u64::from(u32::MAX), u64::MAX / 512, u64::MAX] {
        for count in [0, 1, 2, 8, 32768, 65535, u32::MAX] {
            for (opcode, action) in [
                (0x88, 0),
                (0x89, 0),
                (0x8a, 0),
                (0x8e, 2),
                (0x8f, 2),
                (0x91, 0),
                (0x93, 0),
                (0x93, 8),
                (0x93, 9),
                (0x9e, 0x12),
            ] {
                asks.push(Ask::command(0, 1, &long(opcode, action, block, count), BLOCK, 0));
                asks.push(Ask::command(0, 1, &long(opcode, action, block, count), 0, BLOCK));
            }
            for opcode in [0x28, 0x2a, 0x2e, 0x2f, 0x35, 0x41, 0x42] {
                asks.push(Ask::command(0, 1, &ten(opcode, block as u32, count as u16), BLOCK, 0));
            }
        }
    }
    send(&mut victim.ring, asks.into_iter())?;
    scene.keep(victim);
    Ok(())
}

fn directions(scene: &mut Scene<'_>) -> Result<()> {
    for without in [0, 1] {
        // With and without INOUT: the first one ends, whatever becomes of it.
        scene.let_go();
        let mut victim = scene.victim_without(without)?;
        let mut asks = Vec::new();
        for (out_bytes, in_bytes) in [(BLOCK, 0), (0, BLOCK), (BLOCK, BLOCK), (0, 0), (1, 0), (0, 1), (32 << 10, 511)] {
            for ask in [write_10(0, 1, 0), read_10(0, 1, 0)] {
                asks.push(Ask { out_bytes, in_bytes, ..ask });
            }
            // INQUIRY, MODE SENSE, MODE SELECT, READ CAPACITY, PERSISTENT RESERVE IN and OUT, REPORT LUNS.
            for cdb in [
                &[0x12, 0, 0, 0, 255, 0][..],
                &[0x1a, 0, 0x3f, 0, 255, 0],
                &[0x15, 0x10, 0, 0, 12, 0],
                &ten(0x25, 0, 0),
                &ten(0x5e, 0, 255),
                &ten(0x5f, 0, 24),
                &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
            ] {
                asks.push(Ask::command(0, 1, cdb, out_bytes, in_bytes));
            }
        }
        send(&mut victim.ring, asks.into_iter())?;
        scene.keep(victim);
    }
    Ok(())
}

/// The response has twelve bytes then, and nothing behind it is the device's.
fn no_sense(scene: &mut Scene<'_>) -> Result<()> {
    let (session, mut ring) = with_sense(scene, 0)?;
    let memory = session.memory.clone();
    // A unit attention, a code that there is not, a block that there is not, and a unit that there is not.
    let fails =
        [Ask::command(0, 1, &[0], 0, 0), Ask::command(0, 2, &[0xff], 0, 0), read_10(0, 3, u32::MAX), read_10(7, 4, 0)];
    for number in 0..4 * fails.len() as u16 {
        let ask = Ask { response_bytes: SENSE_AT as u32, ..fails[usize::from(number) % fails.len()].clone() };
        memory.write(place(number) + RESPONSE + SENSE_AT as u64, &CANARY);
        ask.offer(&mut ring, number);
        ring.kick();
        ensure!(is_used(&ring, number + 1, PATIENCE), "a command is not answered");
        let behind = memory.read(place(number) + RESPONSE + SENSE_AT as u64, CANARY.len());
        ensure!(behind == CANARY, "the response is longer than there is room for");
        // TEST UNIT READY has nothing to say when it has said that.
        let wanted = if number % 4 == 0 && number > 0 { 0 } else { 2 };
        let found = answered(&ring, number);
        ensure!(found == (0, wanted), "command {number} is answered {found:?}");
    }
    scene.keep((session, ring));
    Ok(())
}

fn sizes(scene: &mut Scene<'_>) -> Result<()> {
    let Victim { mut session, mut ring } = scene.victim()?;
    for (at, value) in
        [(SENSE_SIZE_AT, 253), (SENSE_SIZE_AT, u32::MAX), (CDB_SIZE_AT, 5), (CDB_SIZE_AT, 261), (CDB_SIZE_AT, u32::MAX)]
    {
        ensure!(!set_config(&mut session, at, value)?, "the field at {at} takes the value {value}");
    }
    let random = &mut scene.random;
    for change in 0..CHANGES {
        let number = change as u16;
        if number.is_multiple_of(AT_ONCE) {
            wait_until_used(&ring, number)?;
        }
        let room = random.pick(&[12, 108, 264]);
        Ask { response_bytes: room, ..read_10(0, u64::from(change), 0) }.offer(&mut ring, number);
        ring.kick();
        let (at, value) = random.pick(&[
            (SENSE_SIZE_AT, 0),
            (SENSE_SIZE_AT, 252),
            (SENSE_SIZE_AT, 96),
            (CDB_SIZE_AT, 6),
            (CDB_SIZE_AT, 260),
            (CDB_SIZE_AT, 32),
        ]);
        ensure!(set_config(&mut session, at, value)?, "the field at {at} does not take the value {value}");
    }
    wait_until_used(&ring, CHANGES as u16)?;
    scene.keep((session, ring));
    Ok(())
}

fn swaps(scene: &mut Scene<'_>) -> Result<()> {
    let mut session = scene.session()?;
    let mut rings = [session.ring(REQUEST)?, session.ring(REQUEST + 1)?];
    // Of as many blocks as one may have, which is also the most that a request keeps in memory.
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, 64);
    for number in 0..SWAPS {
        for ring in &mut rings {
            if number.is_multiple_of(AT_ONCE) {
                wait_until_used(ring, number)?;
            }
            // Both rings have the same places, which is a lie of its own.
            Ask::command(0, number.into(), &cdb, 64 << 10, 0).offer(ring, number);
            ring.kick();
        }
    }
    scene.keep((session, rings));
    Ok(())
}

fn lists(scene: &mut Scene<'_>) -> Result<()> {
    let mut victim = scene.victim()?;
    let random = &mut scene.random;
    let mut asks = Vec::new();
    for number in 0..RESERVES {
        let claimed = random.pick(&[0, 1, 4, 8, 23, 24, 25, 28, 52, 255, u16::MAX]);
        let given = random.pick(&[0, 8, 24, 28, 52, 4096, u32::from(claimed)]);
        let mut cdb = match random.within(0..=3) {
            // PERSISTENT RESERVE OUT: any action, scope and type.
            0 | 1 => {
                let mut cdb = ten(0x5f, 0, claimed);
                (cdb[1], cdb[2]) = (random.within(0..=8) as u8, random.within(0..=9) as u8);
                cdb
            }
            2 => ten(0x42, 0, claimed),
            _ => ten(0x55, 0, claimed),
        };
        cdb[1] |= random.pick(&[0, 0, 0, 0x10, 0xe0]);
        asks.push(Ask::command(0, number as u64, &cdb, given, 0));
    }
    for number in 0..AT_ONCE {
        let mut list = bytes(random, 4096);
        // Few keys, few flags, lengths that may be meant.
        for (at, byte) in list[..52].iter_mut().enumerate() {
            *byte = if at == 20 { random.pick(&[0, 1, 4, 8, 9]) } else { random.pick(&[0, 0, 0, 1, 24]) };
        }
        victim.session.memory.write(place(number) + OUT, &list);
    }
    send(&mut victim.ring, asks.into_iter())?;
    // What is left of it is read in every way, and in every length.
    let ins = (0..4_u8).flat_map(|action| [0, 7, 8, 9, 300, u16::MAX].map(|room| (action, room)));
    let ins = ins.map(|(action, room)| {
        let mut cdb = ten(0x5e, 0, room);
        cdb[1] = action;
        Ask::command(0, 1, &cdb, 0, room.min(16 << 10).into())
    });
    let begun = victim.ring.queue.next_available();
    for (number, ask) in (begun..).zip(ins) {
        ask.offer(&mut victim.ring, number);
        victim.ring.kick();
        wait_until_used(&victim.ring, number + 1)?;
    }
    scene.keep(victim);
    Ok(())
}
