//! What verified writes carry: each sector says which one it is and in which generation it was written, and the rest of
//! it follows from that. So what was lost, torn, old or written elsewhere shows. Generation 0 is all zeroes.

use crate::rng::mix;

/// The unit of a disk, in bytes (virtio 1.3, 5.2.4).
pub(crate) const SECTOR_BYTES: usize = 512;
/// Step of the sequence that fills a sector.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Writes the sectors from `first` on into `data`.
pub(super) fn fill(data: &mut [u8], run: u64, first: u64, generation: u64) {
    for (number, sector) in data.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        fill_sector(sector, run, first + number as u64, generation);
    }
}

fn fill_sector(sector: &mut [u8], run: u64, number: u64, generation: u64) {
    if generation == 0 {
        sector.fill(0);
        return;
    }
    let mut value = seed(run, number, generation);
    let (words, _) = sector.as_chunks_mut::<8>();
    for word in words.iter_mut() {
        value = value.wrapping_add(STEP);
        *word = value.to_le_bytes();
    }
    for (word, known) in words.iter_mut().zip([number, generation]) {
        *word = known.to_le_bytes();
    }
}

/// Whether a sector holds exactly this generation.
pub(super) fn holds(sector: &[u8], run: u64, number: u64, generation: u64) -> bool {
    let (words, _) = sector.as_chunks::<8>();
    if generation == 0 {
        return words.iter().all(|word| *word == [0; 8]);
    }
    let mut value = seed(run, number, generation);
    let mut difference = 0;
    for (at, word) in words.iter().enumerate() {
        value = value.wrapping_add(STEP);
        let expected = match at {
            0 => number,
            1 => generation,
            _ => value,
        };
        difference |= expected ^ u64::from_le_bytes(*word);
    }
    difference == 0
}

/// The generation that a sector says it has.
pub(super) fn generation(sector: &[u8]) -> u64 {
    let (words, _) = sector.as_chunks::<8>();
    words.get(1).map_or(0, |word| u64::from_le_bytes(*word))
}

/// What a sector that should hold something else holds, in words.
pub(super) fn describe(sector: &[u8], run: u64, number: u64) -> String {
    let (words, _) = sector.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    let (says, generation) = (word(0), word(1));
    if holds(sector, run, number, 0) {
        "zeroes".into()
    } else if holds(sector, run, number, generation) {
        format!("generation {generation}")
    } else if holds(sector, run, says, generation) {
        format!("generation {generation} of sector {says}")
    } else if sector.iter().all(|byte| Some(byte) == sector.first()) {
        format!("the byte {:#04x} all over: nothing was delivered", sector.first().copied().unwrap_or(0))
    } else {
        format!("no whole pattern; it begins with {:02x?}", sector.get(..16).unwrap_or(sector))
    }
}

fn seed(run: u64, number: u64, generation: u64) -> u64 {
    mix(run ^ mix(number ^ mix(generation)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_sector_holds() {
        let mut data = vec![0; 2 * SECTOR_BYTES];
        fill(&mut data, 1, 10, 3);
        let (first, second) = data.split_at(SECTOR_BYTES);
        assert!(holds(first, 1, 10, 3) && holds(second, 1, 11, 3));
        assert!(
            !holds(first, 2, 10, 3) && !holds(first, 1, 11, 3) && !holds(first, 1, 10, 4) && !holds(first, 1, 10, 0)
        );
        assert_eq!(describe(first, 1, 11), "generation 3 of sector 10");
        assert_eq!(describe(first, 1, 10), "generation 3");
    }

    #[test]
    fn any_flipped_bit_shows() {
        for bit in (0..SECTOR_BYTES * 8).step_by(37) {
            let mut data = vec![0; SECTOR_BYTES];
            fill(&mut data, 5, 7, 9);
            data[bit / 8] ^= 1 << (bit % 8);
            assert!(!holds(&data, 5, 7, 9), "bit {bit}");
        }
    }

    #[test]
    fn zeroes_are_a_generation() {
        let mut data = vec![7; SECTOR_BYTES];
        fill(&mut data, 5, 7, 0);
        assert!(holds(&data, 5, 7, 0) && !holds(&data, 5, 7, 1));
        data[500] = 1;
        assert!(!holds(&data, 5, 7, 0));
        assert!(describe(&[0xdd; SECTOR_BYTES], 5, 7).contains("nothing was delivered"));
    }
}
