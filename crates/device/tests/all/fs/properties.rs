//! Any bytes.

use crate::fs::{FULL, PLAIN, decode, vectors as v};
use device::fs::{Request, WRITE_HEAD_BYTES};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400), full: bool) {
        let _ = decode(&bytes, if full { FULL } else { PLAIN });
    }

    /// A known request with some of its bytes changed: decoders are reached that random bytes seldom find.
    #[test]
    fn damaged_requests_are_requests_or_refused(
        which in 0..v::REQUESTS.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        full: bool,
    ) {
        let mut bytes = v::REQUESTS[which].to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok((header, Request::Write(write))) = decode(&bytes, if full { FULL } else { PLAIN }) {
            prop_assert!(WRITE_HEAD_BYTES + write.size as usize <= header.len as usize);
            prop_assert!(header.len as usize <= bytes.len());
        }
    }

    #[test]
    #[cfg(feature = "fuzzing")]
    fn the_fuzz_body_takes_anything(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        device::fuzzing::fs_request(&bytes);
    }
}

/// The fuzzer starts from one request of each kind.
#[test]
#[cfg(feature = "fuzzing")]
fn the_seeds_are_the_vectors() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/fs_request");
    let mut seeds: Vec<Vec<u8>> =
        std::fs::read_dir(directory).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    let mut expected: Vec<Vec<u8>> = v::REQUESTS
        .iter()
        .map(|vector| {
            let flags = if crate::fs::dialect_of(vector) == FULL { 0x87 } else { 0x80 };
            [&[flags], *vector].concat()
        })
        .collect();
    seeds.sort();
    expected.sort();
    assert_eq!(seeds, expected);
    seeds.iter().for_each(|seed| device::fuzzing::fs_request(seed));
}
