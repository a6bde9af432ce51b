//! Fields of structures on disk: where each lies is written down once, and the document is compared with it.

use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

/// One field of a structure on disk. Numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// What `docs/formats/volume.md` calls it.
    pub(crate) name: &'static str,
    /// Offset in the structure, in bytes.
    pub(crate) at: usize,
    /// Length in bytes.
    pub(crate) bytes: usize,
}

impl Field {
    pub(crate) const fn new(name: &'static str, at: usize, bytes: usize) -> Field {
        Field { name, at, bytes }
    }

    /// The field's bytes; none when the structure is shorter.
    pub(crate) fn get<'a>(&self, structure: &'a [u8]) -> &'a [u8] {
        structure.get(self.at..self.at + self.bytes).unwrap_or_default()
    }

    pub(crate) fn u8(&self, structure: &[u8]) -> u8 {
        self.get(structure).first().copied().unwrap_or_default()
    }

    pub(crate) fn u32(&self, structure: &[u8]) -> u32 {
        self.get(structure).first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    pub(crate) fn u64(&self, structure: &[u8]) -> u64 {
        self.get(structure).first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    pub(crate) fn uuid(&self, structure: &[u8]) -> Uuid {
        self.get(structure).first_chunk().map_or(Uuid::nil(), |bytes| Uuid::from_bytes(*bytes))
    }

    /// Text that ends at its first zero byte or with the field; what is not UTF-8 is shown as such. So is what would be more than
    /// text on somebody's terminal: a volume may come from anywhere.
    pub(crate) fn text(&self, structure: &[u8]) -> String {
        let bytes = self.get(structure);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
        text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }).collect()
    }

    /// Writes `value` from the field's start on, as far as the field goes.
    pub(crate) fn put(&self, structure: &mut [u8], value: &[u8]) {
        if let Some(place) = structure.get_mut(self.at..self.at + self.bytes) {
            place.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        }
    }

    pub(crate) fn put_u32(&self, structure: &mut [u8], value: u32) {
        self.put(structure, &value.to_le_bytes());
    }

    pub(crate) fn put_u64(&self, structure: &mut [u8], value: u64) {
        self.put(structure, &value.to_le_bytes());
    }
}

/// Every structure begins with eight bytes that say what it is.
pub(crate) const MAGIC: Field = Field::new("magic", 0, 8);
/// And with the checksum of all its bytes, which is taken with this field as zeroes.
pub(crate) const CHECKSUM: Field = Field::new("checksum", 8, 8);

/// The checksum of a structure: XXH3-64 with `seed` over its bytes, the checksum's own as zeroes.
pub(crate) fn checksum(seed: u64, structure: &[u8]) -> u64 {
    let mut hash = Xxh3::with_seed(seed);
    hash.update(MAGIC.get(structure));
    hash.update(&[0; 8]);
    hash.update(structure.get(CHECKSUM.at + CHECKSUM.bytes..).unwrap_or_default());
    hash.digest()
}

/// Writes the checksum into the structure and returns it.
pub(crate) fn seal(seed: u64, structure: &mut [u8]) -> u64 {
    let sum = checksum(seed, structure);
    CHECKSUM.put_u64(structure, sum);
    sum
}

/// Whether the structure's checksum is right.
pub(crate) fn is_sealed(seed: u64, structure: &[u8]) -> bool {
    CHECKSUM.u64(structure) == checksum(seed, structure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_hold_what_was_put() {
        let mut structure = [0xff; 64];
        let field = Field::new("number", 3, 8);
        field.put_u64(&mut structure, 0x0102_0304_0506_0708);
        assert_eq!(field.u64(&structure), 0x0102_0304_0506_0708);
        assert_eq!(structure.get(2..5), Some(&[0xff, 8, 7][..]));
        let text = Field::new("text", 20, 8);
        text.put(&mut structure, b"abc\0");
        assert_eq!(text.text(&structure), "abc");
        text.put(&mut structure, b"a\n\x1b[2J\0\0");
        assert_eq!(text.text(&structure), "a\u{fffd}\u{fffd}[2J");
        text.put(&mut structure, b"exactly8 and more");
        assert_eq!(text.text(&structure), "exactly8");
        assert_eq!(structure.get(28), Some(&0xff), "a text leaves its field");
        // A structure that is too short has nothing, and takes nothing.
        assert_eq!(field.u64(structure.get(..5).unwrap_or_default()), 0);
        field.put_u64(&mut [0; 4], 1);
    }

    proptest! {
        /// One wrong bit anywhere is noticed.
        #[test]
        fn checksums_see_every_bit(mut bytes in prop::collection::vec(any::<u8>(), 16..200), seed: u64, bit: prop::sample::Index) {
            seal(seed, &mut bytes);
            prop_assert!(is_sealed(seed, &bytes));
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_sealed(seed, &bytes));
        }
    }
}
