//! Body of the fuzz target `luks_header`: the input owns all that a container begins with.

use crate::header::Header;
use crate::kdf::Kdf;
use std::io;

/// Reads a header of either version, and says whether there was one. Nothing is derived: that costs what a header asks for, up to the
/// budget, by design.
///
/// Layout of `data`: one byte, whose lowest bit has the checksums of LUKS2 made right; then the container.
///
/// # Panics
/// When what was accepted contradicts itself.
pub fn header(data: &[u8]) -> bool {
    let Some((flags, rest)) = data.split_first() else { return false };
    let mut bytes = rest.to_vec();
    if flags & 1 == 1 {
        crate::v2::seal(&mut bytes);
    }
    let mut read = |at: u64, buf: &mut [u8]| {
        let start = usize::try_from(at).ok().filter(|start| *start <= bytes.len());
        let there = start.and_then(|start| bytes[start..].get(..buf.len()));
        buf.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok::<(), io::Error>(())
    };
    let header = match Header::read(&mut read) {
        Ok(Ok(header)) => header,
        Ok(Err(error)) => {
            assert!(error.to_string().len() < 2000);
            return false;
        }
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            return false;
        }
    };
    let data = header.data;
    assert!(data.offset >= 512 && data.offset.is_multiple_of(512));
    for lower_bytes in [0, data.offset, data.offset.saturating_add(4097), u64::MAX / 512 * 512] {
        let bytes = data.within(lower_bytes);
        assert!(bytes.is_multiple_of(u64::from(data.sector_bytes)) && data.offset.checked_add(bytes).is_some());
        assert!(bytes == 0 || data.offset + bytes <= lower_bytes);
    }
    for area in header.slots.iter().filter_map(|slot| slot.area.as_ref().ok()) {
        assert!(area.bytes(data.key_bytes) <= 4000 * 64 && area.offset >= 512);
        if let Kdf::Argon2 { memory_kib, .. } = area.kdf {
            assert!(memory_kib <= crate::kdf::MEMORY_KIB_MAX);
        }
    }
    if header.version == 1 && header.uuid.is_ascii() && header.slots.iter().all(|slot| slot.area.is_ok()) {
        // What was read is written as it was read.
        if let Some(again) = crate::v1::encode(&header) {
            assert_eq!(crate::v1::parse(&again), Ok(header));
        }
    }
    true
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::{header, seeds};
    use crate::kdf::Kdf;
    use crate::new::New;
    use crate::testing::{bytes, cheap};

    /// Without key material, which nothing here reads.
    fn made() -> Vec<(&'static str, Vec<u8>)> {
        let argon2 = Kdf::Argon2 { independent: false, passes: 1, memory_kib: 64, lanes: 1, salt: Vec::new() };
        let cut = |new: &New, flags: u8, len: usize| [&[flags][..], &bytes(new, 7)[..len]].concat();
        vec![
            ("version_1", cut(&cheap(1, 64, 512), 0, 592)),
            ("version_2", cut(&cheap(2, 64, 4096), 1, 32768)),
            ("argon2id", cut(&New { kdf: argon2, ..cheap(2, 32, 512) }, 1, 16384)),
        ]
    }

    #[test]
    fn the_seeds_are_these() {
        let mut read = 0;
        seeds::hold("luks_header", &made(), |seed| read += u32::from(header(seed)));
        assert_eq!(read, 3);
    }

    #[test]
    fn noise_holds() {
        let made = made();
        let mut numbers = seeds::Numbers::new();
        let mut read = 0;
        for round in 0..3000 {
            let mut seed = made[round % made.len()].1.clone();
            // Where something is: behind the text of LUKS2 there is nothing.
            let most = if round % made.len() == 0 { seed.len() } else { 6000 };
            for _ in 0..numbers.below(4) {
                let at = 1 + numbers.below(most - 1);
                seed[at] = (numbers.next() >> 24) as u8;
            }
            read += u32::from(header(&seed));
        }
        assert!(read > 500, "{read} headers were read");
        seeds::noise(300, 700, |input| {
            header(&input);
        });
    }
}
