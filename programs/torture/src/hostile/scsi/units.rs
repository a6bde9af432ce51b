//! Units that go while they are used.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, anyhow};

use super::super::attack::{Attack, Scene, Victim};
use super::events::out_and_in;
use super::{AT_ONCE, SPARE, only, read_10, wait_until_used, write_10};

/// How often the unit goes.
const GOES: u32 = 20;

pub(super) const ATTACKS: &[Attack] = &[only(
    "scsi-unit-goes-under-load",
    "reads and writes a unit that is taken out and put back, again and again",
    goes,
)];

fn goes(scene: &mut Scene<'_>) -> Result<()> {
    let Victim { session, mut ring } = scene.victim()?;
    let (place, over) = (scene.place().to_owned(), AtomicBool::new(false));
    let (removed, sent) = thread::scope(|scope| {
        let operator = scope.spawn(|| {
            let removed = (0..GOES).try_for_each(|_| out_and_in(&place));
            over.store(true, Ordering::Release);
            removed
        });
        let sent = (|| {
            let mut number = 0_u16;
            while !over.load(Ordering::Acquire) && number < u16::MAX {
                if number.is_multiple_of(AT_ONCE) {
                    wait_until_used(&ring, number)?;
                }
                let (lun, block) = (if number.is_multiple_of(4) { 0 } else { SPARE }, u32::from(number % 1024) * 8);
                let ask = if number.is_multiple_of(2) { write_10(lun, 1, block) } else { read_10(lun, 1, block) };
                ask.offer(&mut ring, number);
                ring.kick();
                number += 1;
            }
            wait_until_used(&ring, number)
        })();
        (operator.join(), sent)
    });
    removed.map_err(|_| anyhow!("the operator panicked"))??;
    sent?;
    scene.keep((session, ring));
    Ok(())
}
