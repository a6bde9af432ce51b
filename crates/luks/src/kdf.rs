//! Hashes, and how a key is derived from a passphrase.

use crate::FormatError;
use crate::budget::Budget;
use argon2::{Algorithm, Argon2, Block, Params, Version};
use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroize;

/// Most memory of a derivation, in KiB. Source: MAX_PBKDF_MEMORY in cryptsetup's `lib/utils_pbkdf.c`.
pub const MEMORY_KIB_MAX: u32 = 4 << 20;

/// Most lanes of a derivation. Source: cryptsetup's limit of parallel threads is 4; others may go further, and each lane has 8 KiB.
pub const LANES_MAX: u32 = 64;

/// A hash of headers and stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-1, as old LUKS1 containers have it.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    const ALL: [(&str, Hash); 4] =
        [("sha1", Hash::Sha1), ("sha256", Hash::Sha256), ("sha384", Hash::Sha384), ("sha512", Hash::Sha512)];

    /// The hash of this name.
    ///
    /// # Errors
    /// Another one.
    pub fn named(what: &'static str, name: &str) -> Result<Hash, FormatError> {
        let found = Self::ALL.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        let refused = || FormatError::unsupported(what, name, "sha1, sha256, sha384 and sha512 are");
        found.map(|(_, hash)| *hash).ok_or_else(refused)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, hash)| *hash == self).map_or("", |(name, _)| name)
    }

    /// Length of its result, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Hash::Sha1 => 20,
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Writes as much of the hash of `parts`, one behind the other, as there is room for.
    pub fn of(self, parts: &[&[u8]], out: &mut [u8]) {
        fn run<D: Digest>(parts: &[&[u8]], out: &mut [u8]) {
            let mut hash = D::new();
            parts.iter().for_each(|part| hash.update(part));
            let mut result = hash.finalize();
            let len = out.len().min(result.len());
            out[..len].copy_from_slice(&result[..len]);
            result.as_mut_slice().zeroize();
        }
        match self {
            Hash::Sha1 => run::<Sha1>(parts, out),
            Hash::Sha256 => run::<Sha256>(parts, out),
            Hash::Sha384 => run::<Sha384>(parts, out),
            Hash::Sha512 => run::<Sha512>(parts, out),
        }
    }

    /// PBKDF2 with HMAC of this hash.
    pub fn pbkdf2(self, secret: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
        match self {
            Hash::Sha1 => pbkdf2_hmac::<Sha1>(secret, salt, iterations, out),
            Hash::Sha256 => pbkdf2_hmac::<Sha256>(secret, salt, iterations, out),
            Hash::Sha384 => pbkdf2_hmac::<Sha384>(secret, salt, iterations, out),
            Hash::Sha512 => pbkdf2_hmac::<Sha512>(secret, salt, iterations, out),
        }
    }

    /// The work of that: runs of the hash, for so many bytes.
    pub fn pbkdf2_work(self, iterations: u32, bytes: usize) -> u64 {
        u64::from(iterations) * bytes.div_ceil(self.bytes()) as u64
    }
}

/// How the key of a slot comes from a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kdf {
    /// PBKDF2.
    Pbkdf2 {
        /// Its hash.
        hash: Hash,
        /// How often it is applied.
        iterations: u32,
        /// Its salt.
        salt: Vec<u8>,
    },
    /// Argon2.
    Argon2 {
        /// Argon2i instead of Argon2id.
        independent: bool,
        /// Passes over the memory.
        passes: u32,
        /// Memory, in KiB.
        memory_kib: u32,
        /// Lanes, which run one after the other here.
        lanes: u32,
        /// Its salt.
        salt: Vec<u8>,
    },
}

/// Why there is no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeriveError {
    /// More work than the budget has.
    Work(String),
    /// More memory than there is, in KiB.
    Memory(u32),
}

impl Kdf {
    /// Its name, as in headers.
    pub fn name(&self) -> &'static str {
        match self {
            Kdf::Pbkdf2 { .. } => "pbkdf2",
            Kdf::Argon2 { independent: true, .. } => "argon2i",
            Kdf::Argon2 { .. } => "argon2id",
        }
    }

    /// Checks what a header says of it.
    ///
    /// # Errors
    /// A cost that cannot be.
    pub fn check(&self) -> Result<(), FormatError> {
        match *self {
            Kdf::Pbkdf2 { iterations: 0, .. } => Err(FormatError::value("the number of iterations", 0u32)),
            Kdf::Pbkdf2 { .. } => Ok(()),
            Kdf::Argon2 { passes: 0, .. } => Err(FormatError::value("the time cost of argon2", 0u32)),
            Kdf::Argon2 { lanes, .. } if !(1..=LANES_MAX).contains(&lanes) => {
                Err(FormatError::value("the number of lanes of argon2", lanes))
            }
            Kdf::Argon2 { memory_kib, lanes, .. } if memory_kib < 8 * lanes || memory_kib > MEMORY_KIB_MAX => {
                Err(FormatError::value("the memory of argon2, in KiB,", memory_kib))
            }
            Kdf::Argon2 { ref salt, .. } if salt.len() < argon2::MIN_SALT_LEN => {
                Err(FormatError::value("the length of the salt of argon2", salt.len() as u64))
            }
            Kdf::Argon2 { .. } => Ok(()),
        }
    }

    /// Fills `out` with the key of a passphrase.
    ///
    /// # Errors
    /// It costs more than there is.
    pub fn derive(&self, passphrase: &[u8], out: &mut [u8], budget: &mut Budget) -> Result<(), DeriveError> {
        match self {
            Kdf::Pbkdf2 { hash, iterations, salt } => {
                let spent = budget.spend(hash.pbkdf2_work(*iterations, out.len()));
                spent.map_err(|()| DeriveError::Work(format!("{iterations} iterations")))?;
                hash.pbkdf2(passphrase, salt, *iterations, out);
                Ok(())
            }
            Kdf::Argon2 { independent, passes, memory_kib, lanes, salt } => {
                let work = || DeriveError::Work(format!("{passes} passes over {memory_kib} KiB"));
                budget.spend(u64::from(*memory_kib) * u64::from(*passes)).map_err(|()| work())?;
                let params = Params::new(*memory_kib, *passes, *lanes, Some(out.len())).map_err(|_| work())?;
                let memory = || DeriveError::Memory(*memory_kib);
                if !budget.has_memory(u64::from(*memory_kib) << 10) {
                    return Err(memory());
                }
                let mut blocks: Vec<Block> = Vec::new();
                blocks.try_reserve_exact(params.block_count()).map_err(|_| memory())?;
                blocks.resize(params.block_count(), Block::default());
                let algorithm = if *independent { Algorithm::Argon2i } else { Algorithm::Argon2id };
                let argon2 = Argon2::new(algorithm, Version::V0x13, params);
                let derived = argon2.hash_password_into_with_memory(passphrase, salt, out, &mut blocks);
                blocks.iter_mut().for_each(Zeroize::zeroize);
                derived.map_err(|_| work())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 6070 for SHA-1; RFC 7914, section 11, for SHA-256.
    #[test]
    fn pbkdf2_gives_what_the_rfcs_say() {
        let mut out = [0; 20];
        Hash::Sha1.pbkdf2(b"password", b"salt", 4096, &mut out);
        assert_eq!(hex(&out), "4b007901b765489abead49d926f721d065a429c1");
        let mut out = [0; 64];
        Hash::Sha256.pbkdf2(b"passwd", b"salt", 1, &mut out);
        assert!(hex(&out).starts_with("55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc"));
    }

    /// The reference implementation's `test.c`, version 0x13: 256 KiB, two passes, one lane.
    #[test]
    fn argon2id_gives_what_its_authors_say() {
        let (passes, memory_kib, lanes) = (2, 256, 1);
        let kdf = Kdf::Argon2 { independent: false, passes, memory_kib, lanes, salt: b"somesalt".to_vec() };
        let mut out = [0; 32];
        kdf.derive(b"password", &mut out, &mut Budget::new()).unwrap();
        assert_eq!(hex(&out), "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe");
    }

    #[test]
    fn costs_have_bounds() {
        let argon2 = |passes, memory_kib, lanes, salt: usize| Kdf::Argon2 {
            independent: false,
            passes,
            memory_kib,
            lanes,
            salt: vec![1; salt],
        };
        argon2(4, 1 << 20, 4, 32).check().unwrap();
        for bad in [
            argon2(0, 1024, 1, 32),
            argon2(4, 7, 1, 32),
            argon2(4, 1024, 0, 32),
            argon2(4, 1024, LANES_MAX + 1, 32),
            argon2(4, MEMORY_KIB_MAX + 1, 1, 32),
            argon2(4, 1024, 1, 7),
            Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 0, salt: vec![0; 32] },
        ] {
            bad.check().unwrap_err();
        }
        let endless = Kdf::Pbkdf2 { hash: Hash::Sha1, iterations: u32::MAX, salt: vec![0; 32] };
        endless.check().unwrap();
        let error = endless.derive(b"", &mut [0; 64], &mut Budget::new()).unwrap_err();
        assert_eq!(error, DeriveError::Work("4294967295 iterations".to_owned()));
        let error = argon2(u32::MAX, 1 << 20, 1, 32).derive(b"", &mut [0; 64], &mut Budget::new()).unwrap_err();
        assert!(matches!(error, DeriveError::Work(_)));
        let small = &mut Budget::new();
        small.memory_bytes = 1 << 20;
        let error = argon2(1, 2048, 1, 32).derive(b"", &mut [0; 64], small).unwrap_err();
        assert_eq!(error, DeriveError::Memory(2048));
    }
}
