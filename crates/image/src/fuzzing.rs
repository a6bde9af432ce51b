//! Body of the fuzz target `qcow2_metadata`: the input owns an image's first cluster and its entries.

use crate::entry::{self, Cluster};
use crate::geometry::Geometry;
use crate::header::{Compression, Header};
use crate::{bitmap, compressed, dirty, refcount, reference, uses};
use std::path::Path;

/// Reads a header, and with the arithmetic of that header entries and a compressed cluster. Says whether there was a header.
///
/// Layout of `data`: two bytes with the length of the header, the header, then words.
///
/// # Panics
/// When what was accepted contradicts itself.
pub fn metadata(data: &[u8]) -> bool {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return false };
    let (first, words) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    let Ok(header) = Header::parse(first) else { return false };
    let again = Header::parse(&header.encode());
    if header.backing_file.as_ref().is_none_or(|name| name.len() < 400)
        && header.header_bytes <= 112
        && first.len() < 400
    {
        // Where there is room for it, what was read is written as it was. A longer header has fields that are not known.
        assert_eq!(again.map_err(|error| error.to_string()).as_ref(), Ok(&header));
    }
    if let Some(name) = &header.backing_file {
        let _ = reference::read(name, Path::new("/directory/image"));
    }
    // The input as an image of its own: its tables lead anywhere.
    let examined = uses::examine(&mut &rest[..], &header, &mut |_, _| {}).expect("memory is read");
    assert!(examined.findings.problems.len() as u64 <= examined.findings.problem_count);
    let geometry = Geometry::new(&header);
    bitmaps(rest, &header, &geometry);
    for carried in dirty::decode(words, header.size_bytes).unwrap_or_default() {
        assert!(carried.bits.count() <= carried.bits.len());
    }
    let cluster = geometry.cluster_bytes();
    for (number, pair) in words.chunks_exact(16).enumerate() {
        let [word, second] = [0, 8].map(|at| u64::from_be_bytes(pair[at..at + 8].try_into().expect("eight bytes")));
        let guest = (number as u64) << geometry.cluster_bits;
        if let Ok(Some(place)) = entry::l1(&geometry, number as u64, word) {
            assert!(place.offset >= cluster && place.offset.is_multiple_of(cluster));
        }
        if let Ok(Some(block)) = refcount::table_entry(&geometry, number as u64, word) {
            assert!(block >= cluster && block.is_multiple_of(cluster));
        }
        match entry::l2(&geometry, guest, word, second) {
            Ok(Cluster::Compressed(at)) => assert!(at.len > 0 && at.len <= 2 * cluster + 512),
            Ok(found) => {
                let mut inside = 0;
                while inside < cluster {
                    let (_, len) = found.state(&geometry, inside).expect("a plain cluster");
                    assert!(len > 0 && inside + len <= cluster);
                    inside += len;
                }
                let encoded = found.encode(&geometry).expect("a plain cluster");
                assert_eq!(entry::l2(&geometry, guest, encoded.0, encoded.1), Ok(found));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let mut out = [0; 4096];
    for kind in [Compression::Zlib, Compression::Zstd] {
        let _ = compressed::decompress(kind, words, &mut out);
    }
    true
}

/// The bitmaps of the input as an image of its own, whatever its autoclear bit says.
fn bitmaps(mut image: &[u8], header: &Header, geometry: &Geometry) {
    let Some(extension) = header.extensions.bitmaps else { return };
    if bitmap::check_directory(extension, geometry).is_err() {
        return;
    }
    let mut end = 0;
    for (at, entry) in bitmap::Entries::of(&mut image, extension).map_while(Result::ok) {
        assert_eq!(at, end);
        end += entry.encode().len() as u64;
        assert!(end <= extension.directory_bytes.next_multiple_of(8));
    }
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::{metadata, seeds};
    use crate::bitmap::Entry;
    use crate::header::{Compression, Header, tests_header};
    use crate::{extension, features};

    fn input(header: &Header, words: &[u64]) -> Vec<u8> {
        let bytes = header.encode();
        let words = words.iter().flat_map(|word| word.to_be_bytes());
        [&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat().into_iter().chain(words).collect()
    }

    /// The second cluster has the directory, the third one a table.
    fn bitmaps() -> Vec<u8> {
        let entry = |name: &str| Entry::new(name, 16, 1024, 4).encode();
        let directory = [entry("a"), entry("another one")].concat();
        let mut header =
            Header { cluster_bits: 9, autoclear: features::BITMAPS, size_bytes: 1 << 20, ..tests_header() };
        header.l1_entries = 32;
        let directory_bytes = directory.len() as u64;
        header.extensions.bitmaps =
            Some(extension::Bitmaps { count: 2, reserved: 0, directory_bytes, directory_offset: 512 });
        let mut image = header.encode();
        image.resize(512, 0);
        image.extend(directory);
        image.resize(1024, 0);
        image.extend([0u64, 1, 1536, 512].iter().flat_map(|word| word.to_be_bytes()));
        image.resize(2048, 0xff);
        [&512u16.to_le_bytes()[..], &image].concat()
    }

    fn made() -> Vec<(&'static str, Vec<u8>)> {
        let words = [1 << 63 | 0x5_0000, 0, 1, 0, 1 << 62 | 3 << 54 | 0x5_0123, 0, 0x5_0000, 0xff_0000_00ff];
        let with = |change: fn(&mut Header)| {
            let mut header = tests_header();
            change(&mut header);
            input(&header, &words)
        };
        vec![
            ("version_3", with(|_| {})),
            ("version_2", with(|h| (h.version, h.header_bytes) = (2, 72))),
            ("extended", with(|h| (h.incompatible, h.l1_entries) = (features::EXTENDED_L2, 4))),
            ("data_file", with(|h| h.incompatible = features::DATA_FILE)),
            ("zstd", with(|h| (h.incompatible, h.compression) = (features::COMPRESSION, Compression::Zstd))),
            ("backing", with(|h| h.backing_file = Some(b"json:{\"driver\":\"file\",\"filename\":\"x\"}".to_vec()))),
            ("unknown", with(|h| h.incompatible = 1 << 40)),
            ("narrow", with(|h| h.refcount_order = 0)),
            ("bitmaps", bitmaps()),
        ]
    }

    #[test]
    fn the_seeds_are_these() {
        let mut read = 0;
        seeds::hold("qcow2_metadata", &made(), |seed| read += u32::from(metadata(seed)));
        assert!(read >= 7, "{read} headers were read");
    }

    #[test]
    fn noise_holds() {
        let made = made();
        let mut numbers = seeds::Numbers::new();
        let mut read = 0;
        for round in 0..20_000 {
            let mut seed = made[round % made.len()].1.clone();
            for _ in 0..numbers.below(6) {
                let at = numbers.below(seed.len());
                seed[at] = (numbers.next() >> 24) as u8;
            }
            read += u32::from(metadata(&seed));
        }
        assert!(read > 1000, "{read} headers were read");
        seeds::noise(500, 300, |input| {
            metadata(&input);
        });
    }
}
