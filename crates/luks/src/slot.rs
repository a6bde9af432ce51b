//! A key slot: how a passphrase opens it, and what it gives.

use crate::budget::Budget;
use crate::header::{Digest, Header, Read, check_key_bytes};
use crate::kdf::{DeriveError, Hash, Kdf};
use crate::xts::{Direction, Xts};
use crate::{FormatError, UnlockError, af};
use std::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Stripes of every slot that there is. Source: LUKS_STRIPES in cryptsetup's `lib/luks1/luks.h`.
pub(crate) const STRIPES: u32 = 4000;

/// Sectors of key material have this many bytes, whatever those of the data have.
const SECTOR_BYTES: usize = 512;

/// A slot that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its number.
    pub number: u32,
    /// How it is opened, or why that is not supported.
    pub area: Result<Area, FormatError>,
}

/// How a slot is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// How its key comes from a passphrase.
    pub kdf: Kdf,
    /// First byte of its stripes, a multiple of 512.
    pub offset: u64,
    /// Bytes of the key that its stripes are encrypted with.
    pub key_bytes: usize,
    /// How many stripes.
    pub stripes: u32,
    /// The hash between them.
    pub hash: Hash,
}

/// The key of the data. It is wiped when it is dropped, and never shown.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct VolumeKey(Vec<u8>);

impl VolumeKey {
    /// These bytes, of which nobody keeps another copy.
    pub fn new(bytes: &[u8]) -> VolumeKey {
        VolumeKey(bytes.to_vec())
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeKey({} bytes)", self.0.len())
    }
}

impl Area {
    /// Checks what memory and arithmetic depend on; `volume_key_bytes` is the length of what it gives.
    pub(crate) fn check(self, volume_key_bytes: usize) -> Result<Area, FormatError> {
        self.kdf.check()?;
        check_key_bytes(self.key_bytes)?;
        if !(1..=STRIPES).contains(&self.stripes) {
            return Err(FormatError::value("the number of stripes of a key slot", self.stripes));
        }
        let end = self.offset.checked_add(self.bytes(volume_key_bytes) as u64);
        if self.offset == 0 || !self.offset.is_multiple_of(512) || end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(FormatError::value("the offset of a key slot", self.offset));
        }
        Ok(self)
    }

    /// Bytes of its stripes, in whole sectors.
    pub fn bytes(&self, volume_key_bytes: usize) -> usize {
        (self.stripes as usize * volume_key_bytes).next_multiple_of(SECTOR_BYTES)
    }

    fn cipher(&self, passphrase: &[u8], budget: &mut Budget) -> Result<Xts, DeriveError> {
        let mut key = Zeroizing::new(vec![0; self.key_bytes]);
        self.kdf.derive(passphrase, &mut key, budget)?;
        Xts::new(&key).ok_or_else(|| DeriveError::Work(format!("a key of {} bytes", self.key_bytes)))
    }

    /// The key that this passphrase gives, right or wrong.
    fn open(
        &self,
        passphrase: &[u8],
        bytes: usize,
        read: &mut Read<'_>,
        budget: &mut Budget,
    ) -> Result<VolumeKey, Opening> {
        let mut stripes = Zeroizing::new(vec![0; self.bytes(bytes)]);
        read(self.offset, &mut stripes).map_err(Opening::Io)?;
        self.cipher(passphrase, budget).map_err(Opening::Derive)?.run(
            Direction::Decrypt,
            &mut stripes,
            0,
            SECTOR_BYTES,
        );
        let key = af::merge(self.hash, &stripes[..self.stripes as usize * bytes], bytes);
        Ok(VolumeKey::new(&key))
    }

    /// The stripes of a key, encrypted, for a new slot. `random` fills a buffer.
    pub(crate) fn close(
        &self,
        passphrase: &[u8],
        key: &VolumeKey,
        random: &mut dyn FnMut(&mut [u8]),
        budget: &mut Budget,
    ) -> Result<Zeroizing<Vec<u8>>, DeriveError> {
        let cipher = self.cipher(passphrase, budget)?;
        let mut stripes = Zeroizing::new(vec![0; self.bytes(key.bytes().len())]);
        random(&mut stripes);
        af::split(self.hash, key.bytes(), &mut stripes[..self.stripes as usize * key.bytes().len()]);
        cipher.run(Direction::Encrypt, &mut stripes, 0, SECTOR_BYTES);
        Ok(stripes)
    }
}

enum Opening {
    Io(std::io::Error),
    Derive(DeriveError),
}

impl Digest {
    fn is_of(&self, key: &VolumeKey, budget: &mut Budget) -> Result<bool, DeriveError> {
        let spent = budget.spend(self.hash.pbkdf2_work(self.iterations, self.value.len()));
        spent.map_err(|()| DeriveError::Work(format!("{} iterations of its digest", self.iterations)))?;
        let mut value = vec![0; self.value.len()];
        self.hash.pbkdf2(key.bytes(), &self.salt, self.iterations, &mut value);
        Ok(value == self.value)
    }
}

impl Header {
    /// The volume key, from the first slot that this passphrase opens.
    ///
    /// # Errors
    /// There is none, or what a slot asks for is more than a container may.
    pub fn unlock(&self, passphrase: &[u8], read: &mut Read<'_>) -> Result<VolumeKey, UnlockError> {
        let budget = &mut Budget::new();
        // Of a slot that cannot be tried: another one may open.
        let mut trouble = None;
        if self.slots.is_empty() {
            return Err(UnlockError::NoSlot);
        }
        for Slot { number, area } in &self.slots {
            let number = *number;
            let failed = |error| match error {
                DeriveError::Work(what) => UnlockError::Work { number, what },
                DeriveError::Memory(kib) => UnlockError::Memory { number, kib },
            };
            let area = match area {
                Ok(area) => area,
                Err(source) => {
                    trouble.get_or_insert(UnlockError::Slot { number, source: source.clone() });
                    continue;
                }
            };
            let opened = area.open(passphrase, self.data.key_bytes, read, budget).map_err(|error| match error {
                Opening::Io(error) => UnlockError::Io(error),
                Opening::Derive(error) => failed(error),
            });
            match opened.and_then(|key| Ok((self.digest.is_of(&key, budget).map_err(failed)?, key))) {
                Ok((true, key)) => return Ok(key),
                Ok((false, _)) => {}
                Err(error) => drop(trouble.get_or_insert(error)),
            }
        }
        Err(trouble.unwrap_or(UnlockError::Wrong))
    }
}
