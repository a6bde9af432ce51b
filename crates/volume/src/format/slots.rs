//! The two slots that superblocks are written into, in turn.

use super::error::FormatError;
use super::field::{self, MAGIC};
use super::superblock::{self, Superblock};
use crate::blocks::Blocks;
use crate::units::BLOCK_BYTES;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Slot {
    /// No superblock.
    Empty,
    /// A superblock whose checksum is wrong, as a write that power cut off leaves it, or one that belongs in the other slot.
    Damaged,
    /// A whole one.
    Whole {
        /// Its generation.
        generation: u64,
    },
}

/// Reads both slots: what they hold, and the bytes of the newest whole one.
///
/// # Errors
/// When the storage does not answer.
fn look(data: &mut dyn Blocks) -> Result<([Slot; 2], Option<Vec<u8>>), FormatError> {
    let mut slots = [Slot::Empty; 2];
    if data.len() < 2 * BLOCK_BYTES as u64 {
        return Ok((slots, None));
    }
    let mut newest: Option<(u64, Vec<u8>)> = None;
    for (number, slot) in (0u64..).zip(&mut slots) {
        let mut bytes = vec![0; BLOCK_BYTES];
        let offset = number * BLOCK_BYTES as u64;
        data.read_at(offset, &mut bytes).map_err(FormatError::io("read the superblock", offset))?;
        if MAGIC.get(&bytes) != superblock::VOLUME_MAGIC {
            continue;
        }
        let generation = superblock::at::GENERATION.u64(&bytes);
        if !field::is_sealed(0, &bytes) || generation % 2 != number {
            *slot = Slot::Damaged;
            continue;
        }
        *slot = Slot::Whole { generation };
        if newest.as_ref().is_none_or(|(highest, _)| generation > *highest) {
            newest = Some((generation, bytes));
        }
    }
    Ok((slots, newest.map(|(_, bytes)| bytes)))
}

/// What the two slots hold, the one at byte 0 first.
///
/// # Errors
/// [`FormatError::Io`].
pub fn read_slots(data: &mut dyn Blocks) -> Result<[Slot; 2], FormatError> {
    Ok(look(data)?.0)
}

/// Reads the superblock that counts: of the whole ones that of the higher generation.
///
/// One damaged slot is what a cut leaves that came while a superblock was being written; the other one counts then. The storage's length
/// is not looked at: [`Superblock::check_length`] does.
///
/// # Errors
/// [`FormatError::NotAVolume`], [`FormatError::Damaged`], [`FormatError::Newer`], [`FormatError::Impossible`], [`FormatError::Io`].
pub fn read_superblock(data: &mut dyn Blocks) -> Result<Superblock, FormatError> {
    match look(data)? {
        // The newest decides alone: the one before may lack what a newer program has added since.
        (_, Some(bytes)) => Superblock::decode(&bytes),
        (slots, None) if slots.contains(&Slot::Damaged) => Err(FormatError::Damaged),
        _ => Err(FormatError::NotAVolume),
    }
}

/// Writes the superblock as the next generation, into the slot that does not hold the present one, and flushes.
///
/// When this has returned, the storage counts from it. What it says must be true of what is durable already: flush first.
///
/// # Errors
/// [`FormatError::Io`]: the present superblock counts then or the new one does, and a repetition goes to the same slot.
/// [`FormatError::Impossible`]: nothing was written.
pub fn write_superblock(data: &mut dyn Blocks, superblock: &mut Superblock) -> Result<(), FormatError> {
    let mut next = superblock.clone();
    next.generation = superblock.generation.saturating_add(1);
    // What could not be read again must not be written.
    next.validate()?;
    let offset = next.slot_offset();
    data.write_at(offset, &next.encode()[..]).map_err(FormatError::io("write the superblock", offset))?;
    data.flush().map_err(FormatError::io("flush the superblock", offset))?;
    // What is not known is not kept up, and was not written.
    (superblock.generation, superblock.compatible) = (next.generation, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::superblock::tests::sample;
    use super::*;
    use crate::ram::Ram;
    use proptest::prelude::*;

    fn volume() -> (Ram, Superblock) {
        let mut data = Ram::new(2 * BLOCK_BYTES);
        let mut superblock = sample(true);
        for _ in 0..2 {
            write_superblock(&mut data, &mut superblock).expect("written");
        }
        (data, superblock)
    }

    #[test]
    fn the_higher_generation_counts() {
        let (mut data, mut superblock) = volume();
        for epoch in 100..105 {
            superblock.epoch = epoch;
            write_superblock(&mut data, &mut superblock).expect("written");
            assert_eq!(read_superblock(&mut data).expect("read"), superblock);
        }
        let [Slot::Whole { generation: even }, Slot::Whole { generation: odd }] = read_slots(&mut data).expect("read")
        else {
            panic!("not both whole");
        };
        assert_eq!(even.max(odd), superblock.generation);
        assert_eq!(even.abs_diff(odd), 1);
    }

    #[test]
    fn verdicts_are_clear() {
        let verdict = |data: &mut Ram| read_superblock(data).expect_err("no superblock");
        assert!(matches!(verdict(&mut Ram::new(0)), FormatError::NotAVolume));
        assert!(matches!(verdict(&mut Ram::new(1 << 20)), FormatError::NotAVolume));
        let (mut data, _) = volume();
        data.0[100] ^= 1;
        read_superblock(&mut data).expect("one slot is enough");
        data.0[4096 + 100] ^= 1;
        assert!(matches!(verdict(&mut data), FormatError::Damaged));
        // A copy of a slot in the other's place is not what was written there.
        let (mut data, superblock) = volume();
        data.0.copy_within(4096..8192, 0);
        assert_eq!(read_slots(&mut data).expect("read")[0], Slot::Damaged);
        assert!(read_superblock(&mut data).expect("read").generation <= superblock.generation);
    }

    proptest! {
        /// However a write of the superblock is torn, the old one or the new one counts.
        #[test]
        fn torn_writes_leave_one(arrived: u8) {
            let (mut data, old) = volume();
            let mut torn = data.clone();
            let mut new = old.clone();
            new.tail.position += 4096;
            // Differs in more than the first sector.
            new.log.external = Some("/x".repeat(500));
            write_superblock(&mut data, &mut new).expect("written");
            let slot = new.slot_offset() as usize;
            for sector in (0..8).filter(|sector| arrived >> sector & 1 != 0) {
                let range = slot + sector * 512..slot + (sector + 1) * 512;
                torn.0[range.clone()].copy_from_slice(&data.0[range]);
            }
            let found = read_superblock(&mut torn).expect("one is whole");
            prop_assert!(found == old || found == new);
            prop_assert!(arrived != 0xff || found == new);
        }
    }
}
