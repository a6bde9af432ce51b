//! Images for tests, made and examined by the pure parts. An image is the bytes of its file.

use crate::header::Header;
pub(crate) use crate::new::New;
use crate::{Qcow2Options, uses};
use engine::Solo;
use std::path::Path;
use testkit::storage as kit;

/// What an examination found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// What would lose data.
    pub(crate) corruptions: Vec<String>,
    /// Uses that are counted and are none.
    pub(crate) leaks: u64,
}

/// All that a disk reads as.
pub(crate) fn read(path: &Path) -> Vec<u8> {
    let storage = storage::open(&Qcow2Options { read_only: true, ..Qcow2Options::new(path) }).unwrap();
    kit::read(&mut Solo::new().unwrap(), &*storage, 0, storage.capacity_bytes() as usize)
}

/// Compares what is used with what is counted.
pub(crate) fn examine(mut image: &[u8]) -> Findings {
    let header = Header::parse(image).unwrap();
    let found = uses::examine(&mut image, &header, &mut |_, _| {}).unwrap().findings;
    Findings { corruptions: found.problems, leaks: found.leaks }
}

#[test]
fn what_is_made_is_sound() {
    for cluster_bits in [9, 12, 16, 21] {
        for refcount_order in 0..7 {
            let new = New { cluster_bits, refcount_order, ..New::default() };
            assert_eq!(examine(&new.image().unwrap()), Findings::default(), "{new:?}");
        }
    }
}
