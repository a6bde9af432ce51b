//! What verified writes carry, and how reads of them are judged.
//!
//! Every 512-byte sector describes itself: a header says which sector of the disk it is, which run wrote it and in which
//! generation, and the rest is a sequence computed from that header. So any part of a block that was lost, torn, old or
//! written elsewhere shows, and the sequence is the header's checksum and the header the sequence's.

use super::rng::mix;

/// The unit of a pattern: the sector of virtio-blk (virtio 1.3, 5.2.4).
pub(crate) const SECTOR_BYTES: usize = 512;

/// First word of a sector that carries a pattern ("vringd\0\x01").
const MAGIC: u64 = u64::from_le_bytes(*b"vringd\0\x01");
const WORDS: usize = SECTOR_BYTES / 8;
const HEADER_WORDS: usize = 4;

/// What is wrong with a sector that was read back.
#[derive(Debug, Clone, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub(crate) enum Fault {
    /// offset {offset}: expected generation {expected} of this run, found no pattern at all
    Missing {
        /// Byte offset of the sector.
        offset: u64,
        /// The generation that was written last.
        expected: u64,
    },
    /// offset {offset}: holds the data of offset {found}
    Misplaced {
        /// Byte offset of the sector.
        offset: u64,
        /// The offset that its header names.
        found: u64,
    },
    /// offset {offset}: expected generation {expected}, found generation {found}
    Generation {
        /// Byte offset of the sector.
        offset: u64,
        /// The generation that was written last.
        expected: u64,
        /// The generation that its header names.
        found: u64,
    },
    /// offset {offset}: holds the data of another run
    OtherRun {
        /// Byte offset of the sector.
        offset: u64,
    },
    /// offset {offset}: the header of generation {found} is intact, the data after it is not
    Corrupt {
        /// Byte offset of the sector.
        offset: u64,
        /// The generation that its header names.
        found: u64,
    },
}

/// Fills `block`, which will be written at `offset`, with the pattern of `generation`.
pub(crate) fn fill(block: &mut [u8], offset: u64, run: u64, generation: u64) {
    let mut at = offset;
    for sector in block.chunks_exact_mut(SECTOR_BYTES) {
        let header = [MAGIC, at, run, generation];
        let (words, _) = sector.as_chunks_mut::<8>();
        for (word, value) in words.iter_mut().zip(header) {
            *word = value.to_le_bytes();
        }
        let mut state = payload_seed(at, run, generation);
        for word in &mut words[HEADER_WORDS..] {
            state = payload_next(state);
            *word = state.to_le_bytes();
        }
        at += SECTOR_BYTES as u64;
    }
}

/// Overwrites the headers, so that a read that delivers nothing cannot pass for one that did.
pub(crate) fn poison(block: &mut [u8]) {
    for sector in block.chunks_exact_mut(SECTOR_BYTES) {
        sector[..8].fill(0xEE);
    }
}

/// Judges a block read at `offset` of which `run` last wrote `generation`.
pub(crate) fn check(block: &[u8], offset: u64, run: u64, generation: u64) -> Result<(), Fault> {
    let mut at = offset;
    for sector in block.chunks_exact(SECTOR_BYTES) {
        let Some((found_run, found)) = judge(sector, at)? else {
            return Err(Fault::Missing { offset: at, expected: generation });
        };
        if found_run != run {
            return Err(Fault::OtherRun { offset: at });
        }
        if found != generation {
            return Err(Fault::Generation { offset: at, expected: generation, found });
        }
        at += SECTOR_BYTES as u64;
    }
    Ok(())
}

/// Judges a block of which nothing is known: sectors that carry a pattern must be whole and in their place.
pub(crate) fn check_unknown(block: &[u8], offset: u64) -> Result<(), Fault> {
    let mut at = offset;
    for sector in block.chunks_exact(SECTOR_BYTES) {
        judge(sector, at)?;
        at += SECTOR_BYTES as u64;
    }
    Ok(())
}

/// The run and generation a sector names, `None` when it carries no pattern.
fn judge(sector: &[u8], at: u64) -> Result<Option<(u64, u64)>, Fault> {
    let (words, _) = sector.as_chunks::<8>();
    debug_assert_eq!(words.len(), WORDS);
    let word = |index: usize| u64::from_le_bytes(words[index]);
    if word(0) != MAGIC {
        return Ok(None);
    }
    let (found_at, run, generation) = (word(1), word(2), word(3));
    if found_at != at {
        return Err(Fault::Misplaced { offset: at, found: found_at });
    }
    let mut state = payload_seed(at, run, generation);
    let mut difference = 0;
    for bytes in &words[HEADER_WORDS..] {
        state = payload_next(state);
        difference |= state ^ u64::from_le_bytes(*bytes);
    }
    if difference != 0 {
        return Err(Fault::Corrupt { offset: at, found: generation });
    }
    Ok(Some((run, generation)))
}

fn payload_seed(offset: u64, run: u64, generation: u64) -> u64 {
    mix(offset ^ mix(run ^ mix(generation)))
}

fn payload_next(state: u64) -> u64 {
    // A sum, because the compiler can compute it for many words at once; the seed is spread well already.
    state.wrapping_add(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RUN: u64 = 9;

    fn block(offset: u64, generation: u64) -> Vec<u8> {
        let mut block = vec![0; 4096];
        fill(&mut block, offset, RUN, generation);
        block
    }

    #[test]
    fn a_written_block_passes() {
        assert_eq!(check(&block(8192, 3), 8192, RUN, 3), Ok(()));
        assert_eq!(check_unknown(&block(8192, 3), 8192), Ok(()));
    }

    #[test]
    fn old_data_is_told_from_new() {
        let fault = check(&block(0, 3), 0, RUN, 4).unwrap_err();
        assert_eq!(fault, Fault::Generation { offset: 0, expected: 4, found: 3 });
        assert_eq!(fault.to_string(), "offset 0: expected generation 4, found generation 3");
    }

    #[test]
    fn a_torn_write_names_the_first_old_sector() {
        let mut torn = block(4096, 8);
        torn[1024..].copy_from_slice(&block(4096, 7)[1024..]);
        let fault = check(&torn, 4096, RUN, 8).unwrap_err();
        assert_eq!(fault, Fault::Generation { offset: 5120, expected: 8, found: 7 });
    }

    #[test]
    fn data_of_another_place_or_run_is_found() {
        let fault = check(&block(4096, 1), 8192, RUN, 1).unwrap_err();
        assert_eq!(fault, Fault::Misplaced { offset: 8192, found: 4096 });
        assert_eq!(check_unknown(&block(4096, 1), 8192), Err(fault));
        assert_eq!(check(&block(0, 1), 0, RUN + 1, 1), Err(Fault::OtherRun { offset: 0 }));
    }

    #[test]
    fn a_read_that_delivers_nothing_is_found() {
        let mut stale = block(0, 1);
        poison(&mut stale);
        assert_eq!(check(&stale, 0, RUN, 1), Err(Fault::Missing { offset: 0, expected: 1 }));
        assert_eq!(check_unknown(&stale, 0), Ok(()));
        assert!(check(&[0; 512], 0, RUN, 1).is_err());
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_found(offset in 0u64..1 << 40, generation in 1u64..1000, bit in 0usize..4096 * 8) {
            let offset = offset & !511;
            let mut block = block(offset, generation);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(check(&block, offset, RUN, generation).is_err());
        }
    }
}
