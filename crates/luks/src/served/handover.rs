//! The volume key, for the program that goes on.
//!
//! It goes along by itself, and not the passphrase: the key file may be gone by then, out of the sandbox's reach or another one, and a
//! derivation that takes seconds would keep guests waiting. It lies in memory of its own, apart from the rest of the state, for as long
//! as an upgrade lasts, and whoever takes it wipes it there. That memory is within reach of those who could read this process's as well,
//! and of nobody else.

use crate::header::Data;
use crate::slot::VolumeKey;
use crate::xts::Xts;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use storage::{Handed, OpenError};
use zeroize::Zeroizing;

const MAGIC: [u8; 8] = *b"VRLUKS01";
/// Magic; offset, size (all ones: up to the end) and first tweak, 8 bytes each; sector and length of the key, 4 bytes each; the key. All
/// are little endian.
const HEAD_BYTES: usize = 40;
const BYTES: usize = HEAD_BYTES + Xts::KEY_BYTES[1];

/// What is below, and a way to open it.
pub(super) fn give(lower: Handed, data: Data, key: &VolumeKey) -> io::Result<Handed> {
    let mut record = Zeroizing::new([0; BYTES]);
    let fields = [
        &MAGIC[..],
        &data.offset.to_le_bytes(),
        &data.bytes.unwrap_or(u64::MAX).to_le_bytes(),
        &data.first_tweak.to_le_bytes(),
        &data.sector_bytes.to_le_bytes(),
        &(key.bytes().len() as u32).to_le_bytes(),
        key.bytes(),
    ];
    let mut at = 0;
    for field in fields {
        record[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    let memory = File::from(rustix::fs::memfd_create("vringd-luks", MemfdFlags::CLOEXEC)?);
    memory.write_all_at(&*record, 0)?;
    let capacity_bytes = lower.capacity_bytes;
    Ok(Handed { log: Some(Box::new(lower)), memory: Some(memory.into()), ..Handed::empty(capacity_bytes) })
}

/// The same again.
pub(super) fn take(handed: Handed) -> Result<(Handed, Data, VolumeKey), OpenError> {
    let (Some(lower), Some(memory)) = (handed.log, handed.memory) else { return Err(OpenError::NothingHanded) };
    let memory = File::from(memory);
    let mut record = Zeroizing::new([0; BYTES]);
    memory.read_exact_at(&mut *record, 0).map_err(|_| OpenError::NothingHanded)?;
    // Its pages are another's some time.
    let _ = memory.write_all_at(&[0; BYTES], 0);
    let word = |at: usize| u64::from_le_bytes(crate::field::array(&*record, at));
    let half = |at: usize| u32::from_le_bytes(crate::field::array(&*record, at));
    let data = Data {
        offset: word(8),
        bytes: Some(word(16)).filter(|bytes| *bytes != u64::MAX),
        first_tweak: word(24),
        sector_bytes: half(32),
        key_bytes: half(36) as usize,
    };
    if record[..8] != MAGIC || data.check().is_err() {
        return Err(OpenError::NothingHanded);
    }
    let key = VolumeKey::new(&record[HEAD_BYTES..HEAD_BYTES + data.key_bytes]);
    Ok((*lower, data, key))
}
