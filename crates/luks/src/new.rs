//! New containers.

use crate::budget::Budget;
use crate::header::{Data, Digest, Header};
use crate::kdf::{DeriveError, Hash, Kdf};
use crate::slot::{Area, STRIPES, Slot, VolumeKey};
use crate::{v1, v2};
use zeroize::Zeroizing;

/// Where the data of a new LUKS2 container begin, as cryptsetup has it.
const DATA_AT_V2: u64 = 16 << 20;
/// The data of LUKS1 begin at a multiple of this.
const ALIGN_V1: u64 = 1 << 20;

/// What a new container is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// 1 or 2.
    pub version: u16,
    /// 32 for AES-128, 64 for AES-256.
    pub key_bytes: usize,
    /// 512; in version 2 up to 4096.
    pub sector_bytes: u32,
    /// How the key of its slot is derived; of version 1, PBKDF2. Its salt is made.
    pub kdf: Kdf,
    /// Iterations of the digest of its key.
    pub digest_iterations: u32,
    /// Its label; of version 2.
    pub label: String,
}

impl New {
    /// What cryptsetup makes of this version, but for the derivation of the slot's key.
    pub fn version(version: u16, kdf: Kdf) -> New {
        New {
            version,
            key_bytes: 64,
            sector_bytes: if version == 1 { 512 } else { 4096 },
            kdf,
            digest_iterations: 100_000,
            label: String::new(),
        }
    }
}

impl New {
    /// Where its data begin.
    pub fn data_offset(&self) -> u64 {
        match self.version {
            1 => v1::place(v1::SLOTS, self.key_bytes).next_multiple_of(ALIGN_V1),
            _ => DATA_AT_V2,
        }
    }
}

/// What is to be written: bytes, each with where they go.
pub type Pieces = Vec<(u64, Zeroizing<Vec<u8>>)>;

/// Makes a container with one slot, which `passphrase` opens. `random` fills a buffer with what nobody can guess.
///
/// # Errors
/// The derivation costs more than there is.
pub fn make(
    new: &New,
    uuid: &str,
    passphrase: &[u8],
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<(Header, Pieces), DeriveError> {
    let mut salt = || {
        let mut salt = vec![0; 32];
        random(&mut salt);
        salt
    };
    let (kdf_salt, digest_salt) = (salt(), salt());
    let mut key = Zeroizing::new(vec![0; new.key_bytes]);
    random(&mut key);
    let key = VolumeKey::new(&key);
    let kdf = match new.kdf.clone() {
        Kdf::Pbkdf2 { hash, iterations, .. } => Kdf::Pbkdf2 { hash, iterations, salt: kdf_salt },
        Kdf::Argon2 { independent, passes, memory_kib, lanes, .. } => {
            Kdf::Argon2 { independent, passes, memory_kib, lanes, salt: kdf_salt }
        }
    };
    let hash = match &kdf {
        Kdf::Pbkdf2 { hash, .. } => *hash,
        Kdf::Argon2 { .. } => Hash::Sha256,
    };
    let offset = if new.version == 1 { v1::place(0, new.key_bytes) } else { v2::AREAS_AT };
    let area = Area { kdf, offset, key_bytes: new.key_bytes, stripes: STRIPES, hash };
    let (sector_bytes, key_bytes) = (new.sector_bytes, new.key_bytes);
    let data = Data { offset: new.data_offset(), bytes: None, sector_bytes, first_tweak: 0, key_bytes };
    let digest_bytes = if new.version == 1 { v1::DIGEST_BYTES } else { hash.bytes() };
    let digest = Digest::of(hash, new.digest_iterations, digest_salt, digest_bytes, &key);
    let stripes = area.close(passphrase, &key, random, &mut Budget::new())?;
    let header = Header {
        version: new.version,
        uuid: uuid.to_owned(),
        label: new.label.clone(),
        data,
        digest,
        slots: vec![Slot { number: 0, area: Ok(area) }],
    };
    let mut pieces = vec![(offset, stripes)];
    if new.version == 1 {
        pieces.extend(v1::encode(&header).map(|bytes| (0, Zeroizing::new(bytes.to_vec()))));
    } else {
        for (at, bytes) in v2::encode(&header, &mut || salt_of(random)) {
            pieces.push((at, Zeroizing::new(bytes)));
        }
    }
    Ok((header, pieces))
}

fn salt_of(random: &mut dyn FnMut(&mut [u8])) -> [u8; 64] {
    let mut salt = [0; 64];
    random(&mut salt);
    salt
}
