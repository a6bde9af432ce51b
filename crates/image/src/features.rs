//! Feature bits (specification: "Header", bytes 72 to 95).

/// Incompatible feature 0: refcounts may be wrong.
pub const DIRTY: u64 = 1 << 0;
/// Incompatible feature 1: anything may be wrong, and nothing must be written.
pub const CORRUPT: u64 = 1 << 1;
/// Incompatible feature 2: guest clusters lie in another file.
pub const DATA_FILE: u64 = 1 << 2;
/// Incompatible feature 3: the field `compression_type` counts.
pub const COMPRESSION: u64 = 1 << 3;
/// Incompatible feature 4: L2 entries of 16 bytes, with subclusters.
pub const EXTENDED_L2: u64 = 1 << 4;
/// Incompatible feature 63, of no specification: an intent log in front of the image may hold what the image has not. The extension
/// [`LOG`](crate::extension::LOG) says which.
pub const LOGGED: u64 = 1 << 63;
/// What an image calls that feature, for programs that do not know it. At most 46 bytes.
pub const LOGGED_NAME: &str = "intent log of vringd, which has to be replayed";
/// All incompatible features that are known.
pub const INCOMPATIBLE: u64 = DIRTY | CORRUPT | DATA_FILE | COMPRESSION | EXTENDED_L2 | LOGGED;

/// Compatible feature 0: refcounts may be written late, under the dirty bit.
pub const LAZY_REFCOUNTS: u64 = 1 << 0;

/// Autoclear feature 0: the bitmaps are consistent.
pub const BITMAPS: u64 = 1 << 0;
/// Autoclear feature 1: the data file is a raw image of its own.
pub const DATA_FILE_RAW: u64 = 1 << 1;

/// Which of the three words a feature is in (specification: "Feature name table").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Who does not know it must not open the image.
    Incompatible,
    /// Who does not know it may ignore it.
    Compatible,
    /// Who does not know it must clear it before the first write.
    Autoclear,
}

/// What an image calls one of its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The word.
    pub word: Word,
    /// The bit in it.
    pub bit: u8,
    /// Its name.
    pub name: String,
}

/// The features of `unknown` in words: as the image's own table has them, or by their numbers.
pub fn named(unknown: u64, names: &[Name]) -> String {
    let mut out = Vec::new();
    for bit in (0..64u8).filter(|bit| unknown & (1 << bit) != 0) {
        let known = names.iter().find(|name| name.word == Word::Incompatible && name.bit == bit);
        out.push(match known {
            Some(name) => format!("the feature \"{}\" (incompatible feature bit {bit})", name.name),
            None => format!("incompatible feature bit {bit}"),
        });
    }
    out.join(", ")
}
