//! Seeds of the fuzz targets, for the tests of the crates that have the targets' bodies: made by the tests, checked in, and
//! played by them with the findings that lie beside them.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::path::Path;

/// A variable: when it is set, the tests write their seeds instead of comparing them.
const WRITE: &str = "WRITE_SEEDS";

/// Compares the seeds of a target with the checked-in ones, and plays all that lie there.
///
/// # Panics
/// When a seed is not what it should be.
pub(crate) fn hold(target: &str, seeds: &[(&str, Vec<u8>)], mut play: impl FnMut(&[u8])) {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds")).join(target);
    let write = std::env::var_os(WRITE).is_some();
    if write {
        fs::create_dir_all(&directory).unwrap();
    }
    for (name, bytes) in seeds {
        let path = directory.join(name);
        if write {
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(&fs::read(path).unwrap_or_default(), bytes, "{target}/{name} is another: set {WRITE}=1 to write it");
    }
    for entry in fs::read_dir(directory).unwrap() {
        play(&fs::read(entry.unwrap().path()).unwrap());
    }
}

/// Numbers that are the same on every machine (xorshift64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new() -> Numbers {
        Numbers(0x9e37_79b9_7f4a_7c15)
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next one below `bound`; 0 below nothing.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Plays `count` inputs of up to `bytes_max` bytes without a pattern.
pub(crate) fn noise(count: usize, bytes_max: u64, mut play: impl FnMut(Vec<u8>)) {
    let mut numbers = Numbers::new();
    for _ in 0..count {
        let len = numbers.next() % bytes_max;
        play((0..len).map(|_| (numbers.next() >> 24) as u8).collect());
    }
}
