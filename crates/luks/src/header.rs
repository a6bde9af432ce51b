//! What both versions of a header say: where the data lie, how they are encrypted, and which keys open them.

use crate::kdf::Hash;
use crate::slot::{Slot, VolumeKey};
use crate::xts::{Xts, is_sector};
use crate::{FormatError, v1, v2};
use std::io;

/// The first bytes.
pub(crate) const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";

/// The one cipher.
pub(crate) const CIPHER: &str = "aes-xts-plain64";

/// Reads bytes of a container: fills the buffer from this byte on, or says that they are not there.
pub(crate) type Read<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

/// See the top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 1 or 2.
    pub version: u16,
    /// Its UUID, as it is written.
    pub uuid: String,
    /// Its label; empty in version 1.
    pub label: String,
    /// Where the data are.
    pub data: Data,
    /// What tells the right volume key.
    pub digest: Digest,
    /// Slots in use, in the order in which they are tried.
    pub slots: Vec<Slot>,
}

/// Where the data lie, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// First byte, a multiple of 512.
    pub offset: u64,
    /// How many bytes; `None`: all up to the end.
    pub bytes: Option<u64>,
    /// Bytes that are encrypted together.
    pub sector_bytes: u32,
    /// Tweak of the first sector.
    pub first_tweak: u64,
    /// Bytes of the key: both halves.
    pub key_bytes: usize,
}

impl Data {
    /// Bytes of data in a storage of so many bytes.
    pub fn within(&self, lower_bytes: u64) -> u64 {
        let there = lower_bytes.saturating_sub(self.offset);
        there.min(self.bytes.unwrap_or(u64::MAX)) & !u64::from(self.sector_bytes - 1)
    }

    /// Tweak of the sector at this byte.
    pub fn tweak(&self, at: u64) -> u64 {
        self.first_tweak.wrapping_add(at / 512)
    }

    /// Checks what arithmetic depends on.
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        let Data { offset, bytes, sector_bytes, key_bytes, .. } = *self;
        if offset == 0 {
            return Err(FormatError::unsupported("the data offset", "0", "a header in a file of its own is not"));
        }
        if !offset.is_multiple_of(512) || offset > i64::MAX as u64 {
            return Err(FormatError::value("the offset of its data", offset));
        }
        if let Some(bytes) = bytes
            && (bytes == 0 || !bytes.is_multiple_of(u64::from(sector_bytes.max(1))))
        {
            return Err(FormatError::value("the size of its data", bytes));
        }
        if !is_sector(sector_bytes as usize) {
            return Err(FormatError::value("the size of its sectors", sector_bytes));
        }
        check_key_bytes(key_bytes)
    }
}

/// Checks the length of a key of AES-XTS.
pub(crate) fn check_key_bytes(bytes: usize) -> Result<(), FormatError> {
    if Xts::KEY_BYTES.contains(&bytes) {
        return Ok(());
    }
    let bits = format!("{} bits", bytes.saturating_mul(8));
    Err(FormatError::unsupported("a key of", bits, "256 and 512 bits are, for AES-128 and AES-256"))
}

/// What tells whether a volume key is the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Its hash.
    pub hash: Hash,
    /// How often it is applied.
    pub iterations: u32,
    /// Its salt.
    pub salt: Vec<u8>,
    /// What the right key gives.
    pub value: Vec<u8>,
}

impl Digest {
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        if self.iterations == 0 {
            return Err(FormatError::value("the iterations of its volume key's digest", 0_u32));
        }
        if self.value.len() < 16 || self.value.len() > 64 {
            return Err(FormatError::value("the bytes of its volume key's digest", self.value.len() as u64));
        }
        Ok(())
    }

    /// Of a key that was just made.
    pub fn of(hash: Hash, iterations: u32, salt: Vec<u8>, bytes: usize, key: &VolumeKey) -> Digest {
        let mut value = vec![0; bytes];
        hash.pbkdf2(key.bytes(), &salt, iterations, &mut value);
        Digest { hash, iterations, salt, value }
    }
}

impl Header {
    /// Reads the header that a container begins with.
    ///
    /// # Errors
    /// The inner one for what cannot be read, the outer one for what is wrong with what is there.
    pub fn read(read: &mut Read<'_>) -> Result<Result<Header, FormatError>, io::Error> {
        let mut first = [0; v1::HEADER_BYTES];
        let there = read(0, &mut first);
        if there.is_ok() && first.starts_with(&MAGIC) {
            return match crate::field::u16_at(&first, 6) {
                1 => Ok(v1::parse(&first)),
                2 => v2::read(read),
                version => Ok(Err(FormatError::Version(version))),
            };
        }
        // The first copy of a header of version 2 may be lost as a whole.
        match v2::read(read)? {
            Err(FormatError::Checksum) => Ok(Err(FormatError::Foreign)),
            found => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UnlockError;
    use crate::kdf::Kdf;
    use crate::new::New;
    use crate::slot::STRIPES;
    use crate::testing::{PASSPHRASE, bytes, cheap, reader};

    fn read(bytes: &[u8]) -> Result<Header, FormatError> {
        Header::read(&mut reader(bytes)).unwrap()
    }

    fn fault(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn what_is_made_opens_with_its_passphrase_and_no_other() {
        let argon2 = |independent| Kdf::Argon2 { independent, passes: 1, memory_kib: 64, lanes: 2, salt: Vec::new() };
        for new in [
            cheap(1, 32, 512),
            cheap(1, 64, 512),
            cheap(2, 32, 512),
            cheap(2, 64, 4096),
            New { kdf: argon2(false), ..cheap(2, 64, 1024) },
            New { kdf: argon2(true), ..cheap(2, 64, 2048) },
        ] {
            let bytes = bytes(&new, 3);
            let header = read(&bytes).unwrap();
            assert_eq!((header.version, header.data.sector_bytes), (new.version, new.sector_bytes));
            assert_eq!(header.slots[0].area.as_ref().unwrap().stripes, STRIPES);
            let key = header.unlock(PASSPHRASE, &mut reader(&bytes)).unwrap();
            assert_eq!(key.bytes().len(), new.key_bytes);
            assert_eq!(format!("{key:?}"), format!("VolumeKey({} bytes)", new.key_bytes));
            for wrong in [&b"correct horse\n"[..], b"", b"correct hors"] {
                let error = header.unlock(wrong, &mut reader(&bytes)).unwrap_err();
                assert!(matches!(error, UnlockError::Wrong), "{error}");
            }
        }
    }

    #[test]
    fn a_copy_that_is_damaged_is_not_needed() {
        let whole = bytes(&cheap(2, 64, 4096), 3);
        let expected = read(&whole).unwrap();
        let with = |at: &[usize]| {
            let mut bytes = whole.clone();
            at.iter().for_each(|at| bytes[*at] ^= 1);
            bytes
        };
        for at in [&[0][..], &[5000], &[449], &[0x4000 + 5000], &[8]] {
            let bytes = with(at);
            assert_eq!(read(&bytes).unwrap(), expected, "{at:?}");
            expected.unlock(PASSPHRASE, &mut reader(&bytes)).unwrap();
        }
        let error = read(&with(&[5000, 0x4000 + 5000])).unwrap_err();
        assert_eq!(error, FormatError::Checksum);
        // The newer one says what holds.
        let mut newer = whole.clone();
        newer[0x4000 + 23] = 9;
        newer[0x4000 + 24] = b'n';
        crate::v2::seal(&mut newer);
        assert_eq!(read(&newer).unwrap().label, "n");
        newer[23] = 10;
        crate::v2::seal(&mut newer);
        assert_eq!(read(&newer).unwrap().label, "");
    }

    #[test]
    fn what_is_not_supported_is_named() {
        assert_eq!(read(&[0; 65_536]).unwrap_err(), FormatError::Foreign);
        assert_eq!(read(b"").unwrap_err(), FormatError::Foreign);
        let one = bytes(&cheap(1, 64, 512), 3);
        let with = |at: usize, field: &[u8]| {
            let mut bytes = one.clone();
            bytes[at..at + field.len()].copy_from_slice(field);
            bytes
        };
        assert_eq!(fault(&with(6, &[0, 3])), "LUKS version 3 is not known: 1 and 2 are");
        assert_eq!(
            fault(&with(40, b"cbc-essiv:sha256\0")),
            "the cipher `aes-cbc-essiv:sha256` is not supported: aes-xts-plain64 is"
        );
        assert!(fault(&with(72, b"whirlpool\0")).starts_with("the hash `whirlpool` is not supported"));
        assert!(fault(&with(104, &[0; 4])).contains("a header in a file of its own is not"));
        assert!(fault(&with(108, &[0, 0, 0, 48])).starts_with("a key of `384 bits` is not supported"));
        assert!(fault(&with(208, &[1; 4])).starts_with("the state of a key slot is 16843009"));
        // A slot that cannot be is no obstacle to the others.
        let header = read(&with(208 + 44, &[0, 0, 0x40, 0])).unwrap();
        let error = header.unlock(PASSPHRASE, &mut reader(&one)).unwrap_err().to_string();
        assert!(error.contains("slot 0 is not supported: the number of stripes of a key slot is 16384"), "{error}");
        let header = read(&with(208, &[0, 0, 0xde, 0xad])).unwrap();
        assert!(matches!(header.unlock(PASSPHRASE, &mut reader(&one)), Err(UnlockError::NoSlot)));
        let error = header_of(&with(208 + 4, &[0xff; 4])).unlock(PASSPHRASE, &mut reader(&one)).unwrap_err();
        assert!(
            error.to_string().starts_with("key slot 0 asks for more work than a container may (4294967295 iterations)")
        );
        // Key material that is not there.
        assert!(matches!(
            read(&one[..592]).unwrap().unlock(PASSPHRASE, &mut reader(&one[..5000])),
            Err(UnlockError::Io(_))
        ));
    }

    fn header_of(bytes: &[u8]) -> Header {
        read(bytes).unwrap()
    }

    #[test]
    fn metadata_that_is_not_supported_is_named() {
        let two = bytes(&cheap(2, 64, 4096), 3);
        let json = |from: &str, to: &str| {
            let mut bytes = two.clone();
            for at in [4096, 0x4000 + 4096] {
                let text = bytes[at..at + 12_288].to_vec();
                let end = text.iter().position(|byte| *byte == 0).unwrap();
                let text = String::from_utf8(text[..end].to_vec()).unwrap();
                assert!(text.contains(from), "{text}");
                let text = text.replacen(from, to, 1);
                bytes[at..at + 12_288].fill(0);
                bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
            }
            crate::v2::seal(&mut bytes);
            bytes
        };
        for (from, to, expected) in [
            (
                "\"config\":{",
                "\"config\":{\"requirements\":{\"mandatory\":[\"online-reencrypt-v2\"]},",
                "the requirement `online-reencrypt-v2`",
            ),
            ("\"type\":\"crypt\"", "\"type\":\"linear\"", "the segment type `linear`"),
            ("\"type\":\"crypt\"", "\"integrity\":{},\"type\":\"crypt\"", "the segment field `integrity`"),
            (
                "\"type\":\"crypt\"",
                "\"flags\":[\"backup-final\"],\"type\":\"crypt\"",
                "the segment flag `backup-final`",
            ),
            (
                "\"segments\":{\"0\"",
                "\"segments\":{\"1\":{\"type\":\"crypt\",\"offset\":\"0\",\"size\":\"1\"},\"0\"",
                "the number of segments `2`",
            ),
            ("\"sector_size\":4096", "\"sector_size\":8192", "the size of its sectors is 8192"),
            ("\"iv_tweak\":\"0\"", "\"iv_tweak\":\"+1\"", "the first tweak `+1`"),
            ("\"segments\":[\"0\"]", "\"segments\":[\"1\"]", "its LUKS2 metadata cannot be understood: no digest"),
            ("\"size\":\"dynamic\"", "\"size\":\"100\"", "the size of its data is 100"),
            ("{", "[", "its LUKS2 metadata cannot be understood"),
        ] {
            let error = fault(&json(from, to));
            assert!(error.starts_with(expected), "{error}");
        }
        let slot = |from: &str, to: &str| {
            let bytes = json(from, to);
            read(&bytes).unwrap().slots[0].area.clone().unwrap_err().to_string()
        };
        assert!(slot("\"type\":\"luks2\"", "\"type\":\"reencrypt\"").starts_with("the key slot type `reencrypt`"));
        assert!(slot("\"type\":\"raw\"", "\"type\":\"none\"").starts_with("the area type `none`"));
        assert!(
            slot("\"iterations\":10,\"salt\"", "\"iterations\":0,\"salt\"")
                .starts_with("the number of iterations is 0")
        );
        // One that is only tried when somebody asks for it by number is not there.
        let ignored = read(&json("\"key_size\":64,\"type\"", "\"priority\":0,\"key_size\":64,\"type\"")).unwrap();
        assert!(ignored.slots.is_empty());
        let moved = read(&json("\"iv_tweak\":\"0\"", "\"iv_tweak\":\"8\"")).unwrap();
        assert_eq!((moved.data.tweak(0), moved.data.tweak(4096)), (8, 16));
        assert_eq!(read(&json("\"size\":\"dynamic\"", "\"size\":\"8192\"")).unwrap().data.within(1 << 40), 8192);
    }
}
