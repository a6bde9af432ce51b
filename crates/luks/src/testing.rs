//! Containers for tests, which cost next to nothing to open.

use crate::kdf::{Hash, Kdf};
use crate::new::{self, New};

/// The passphrase of all of them.
pub(crate) const PASSPHRASE: &[u8] = b"correct horse";

/// The cheapest container of this version.
pub(crate) fn cheap(version: u16, key_bytes: usize, sector_bytes: u32) -> New {
    let kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 10, salt: Vec::new() };
    New { key_bytes, sector_bytes, digest_iterations: 10, ..New::version(version, kdf) }
}

/// Its bytes up to where the data begin; the same for the same seed.
pub(crate) fn bytes(new: &New, seed: u64) -> Vec<u8> {
    let mut random = testkit::Rng(seed);
    let mut fill = |buf: &mut [u8]| buf.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    let (header, pieces) = new::make(new, "00000000-0000-4000-8000-000000000000", PASSPHRASE, &mut fill).unwrap();
    let mut bytes = vec![0; header.data.offset as usize];
    for (at, piece) in pieces {
        bytes[at as usize..at as usize + piece.len()].copy_from_slice(&piece);
    }
    bytes
}

/// As [`crate::header::Read`], of memory.
pub(crate) fn reader(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) -> std::io::Result<()> {
    |at, buf: &mut [u8]| {
        let start = usize::try_from(at).ok().filter(|start| *start <= bytes.len());
        let there = start.and_then(|start| bytes[start..].get(..buf.len()));
        buf.copy_from_slice(there.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
