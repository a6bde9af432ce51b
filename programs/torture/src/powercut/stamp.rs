//! What a sector says about itself.
//!
//! Every sector that the load writes names the operation that wrote it and its own place, and all of its bytes follow from
//! these two. So a sector that is found again is exactly what one write put there, or zeroes, or nothing that the load wrote.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rng::mix;

/// Bytes of a sector: the grain at which writes tear.
pub(super) const SECTOR_BYTES: usize = 512;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Content {
    /// Nothing but zeroes.
    Zeroes,
    /// What the write of this number put there.
    Of(u32),
    /// Anything else.
    Foreign,
}

/// Fills `sectors`, the first of which is sector `first` of the disk, for operation `number`, which is not 0.
pub(super) fn write(number: u32, first: u32, sectors: &mut [u8]) {
    for (sector, bytes) in (first..).zip(sectors.chunks_mut(SECTOR_BYTES)) {
        for (word, value) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words(number, sector)) {
            *word = value.to_le_bytes();
        }
    }
}

/// Reads what `bytes`, sector `sector` of the disk, hold.
pub(super) fn read(sector: u32, bytes: &[u8]) -> Content {
    let found = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let first = found.clone().next().unwrap_or_default();
    if first == 0 {
        return if found.clone().all(|word| word == 0) { Content::Zeroes } else { Content::Foreign };
    }
    let number = (first >> 32) as u32;
    if number != 0 && found.eq(words(number, sector)) { Content::Of(number) } else { Content::Foreign }
}

/// The words of one sector; the first one names the operation and the place.
fn words(number: u32, sector: u32) -> impl Iterator<Item = u64> {
    let name = u64::from(number) << 32 | u64::from(sector);
    let key = mix(name);
    let rest = (1..SECTOR_BYTES as u64 / 8).map(move |index| key.wrapping_add(index.wrapping_mul(STEP)));
    std::iter::once(name).chain(rest)
}

/// Says what a foreign sector looks like, to somebody who hunts for where it came from.
pub(super) fn describe(sector: u32, bytes: &[u8]) -> String {
    match read(sector, bytes) {
        Content::Foreign => {
            let start: String = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            let word = bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
            let (number, place) = ((word >> 32) as u32, word as u32);
            if number != 0 && read(place, bytes) == Content::Of(number) {
                format!("what operation {number} wrote to sector {place}")
            } else {
                format!("bytes of no write, {start}…")
            }
        }
        known => known.to_string(),
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeroes => f.write_str("zeroes"),
            Self::Of(number) => write!(f, "operation {number}"),
            Self::Foreign => f.write_str("bytes of no write"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_known_only_whole_and_in_its_place() {
        let mut bytes = [0; 3 * SECTOR_BYTES];
        assert_eq!(read(0, &bytes[..SECTOR_BYTES]), Content::Zeroes);
        write(7, 10, &mut bytes);
        for (sector, part) in (10..).zip(bytes.chunks(SECTOR_BYTES)) {
            assert_eq!(read(sector, part), Content::Of(7));
            assert_eq!(read(sector + 1, part), Content::Foreign);
        }
        assert_eq!(describe(5, &bytes[..SECTOR_BYTES]), "what operation 7 wrote to sector 10");
        for at in [0, 4, 8, 200, SECTOR_BYTES - 1] {
            let mut torn = bytes[..SECTOR_BYTES].to_vec();
            torn[at] ^= 1;
            assert_eq!(read(10, &torn), Content::Foreign, "byte {at}");
        }
        let mut late = [0; SECTOR_BYTES];
        late[300] = 1;
        assert_eq!(read(0, &late), Content::Foreign);
    }
}
