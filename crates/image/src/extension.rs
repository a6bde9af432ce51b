//! Header extensions (specification: "Header extensions").

use crate::FormatError;
use crate::features::{Name, Word};
use crate::field::{u32_at, u64_at};
use storage::LogMark;
use uuid::Uuid;

/// End of the header extension area.
const END: u32 = 0;
/// Backing file format name.
pub const BACKING_FORMAT: u32 = 0xe279_2aca;
/// Feature name table.
pub const FEATURE_NAMES: u32 = 0x6803_f857;
/// Bitmaps.
pub const BITMAPS: u32 = 0x2385_2875;
/// Full disk encryption header pointer.
pub const ENCRYPTION: u32 = 0x0537_be77;
/// External data file name.
pub const DATA_FILE: u32 = 0x4441_5441;

/// The intent log in front of the image (`VRLG`): of no specification.
pub const LOG: u32 = 0x5652_4c47;

/// Bytes of an entry of the feature name table: word, bit, 46 of name.
const NAME_BYTES: usize = 48;
/// Most bytes of a file name, as of the backing file's.
const FILE_NAME_BYTES_MAX: u64 = 1023;

/// Where persistent bitmaps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bitmaps {
    /// How many.
    pub count: u32,
    /// 0 today.
    pub reserved: u32,
    /// Bytes of their directory.
    pub directory_bytes: u64,
    /// Where that is.
    pub directory_offset: u64,
}

impl Bitmaps {
    /// Bytes of its data.
    pub(crate) const BYTES: usize = 24;

    /// The data of the extension.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let words =
            [u64::from(self.count) << 32 | u64::from(self.reserved), self.directory_bytes, self.directory_offset];
        words.map(u64::to_be_bytes).concat()
    }
}

/// Where the header of the encryption is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// An extension that is not known; kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its type.
    pub kind: u32,
    /// Its data.
    pub data: Vec<u8>,
}

/// All extensions of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The intent log in front of the image. It comes first, so that it is in the first sector with the feature's bit.
    pub log: Option<LogMark>,
    /// Format of the backing file.
    pub backing_format: Option<String>,
    /// Names of features.
    pub feature_names: Vec<Name>,
    /// Persistent bitmaps.
    pub bitmaps: Option<Bitmaps>,
    /// Encryption.
    pub encryption: Option<Encryption>,
    /// Name of the external data file.
    pub data_file: Option<Vec<u8>>,
    /// Others.
    pub unknown: Vec<Unknown>,
}

impl Extensions {
    /// Reads the extensions in `area`, which begins at `offset` of the image and ends where the backing file's name begins or
    /// the first cluster ends.
    ///
    /// # Errors
    /// An extension that leads out of the area, comes twice or has another length than its type has.
    pub fn parse(area: &[u8], offset: u64) -> Result<Extensions, FormatError> {
        let mut found = Extensions::default();
        let mut seen = Vec::new();
        let mut at = 0usize;
        // An area that is full has no end mark.
        while let (Some(kind), Some(len)) = (u32_at(area, at), u32_at(area, at + 4)) {
            if kind == END {
                break;
            }
            let begin = at + 8;
            let wrong = |rule| FormatError::Extension { offset: offset + begin as u64, kind, len: len.into(), rule };
            let len = len as usize;
            let end = begin.checked_add(len).filter(|end| *end <= area.len());
            let end = end.ok_or_else(|| wrong("it leads out of the first cluster or into the backing file's name"))?;
            if seen.contains(&kind) && found.unknown.iter().all(|other| other.kind != kind) {
                return Err(wrong("there may be one of this type"));
            }
            seen.push(kind);
            found.take(kind, &area[begin..end], wrong)?;
            at = begin + len.next_multiple_of(8);
        }
        Ok(found)
    }

    fn take(&mut self, kind: u32, data: &[u8], wrong: impl Fn(&'static str) -> FormatError) -> Result<(), FormatError> {
        let word = |at| u64_at(data, at).ok_or_else(|| wrong("it is too short"));
        match kind {
            BACKING_FORMAT => {
                let text = std::str::from_utf8(data).map_err(|_| wrong("the format's name is no UTF-8"))?;
                self.backing_format = Some(text.to_owned());
            }
            FEATURE_NAMES => self.feature_names = data.chunks_exact(NAME_BYTES).filter_map(feature_name).collect(),
            BITMAPS => {
                let count = u32_at(data, 0).ok_or_else(|| wrong("it is too short"))?;
                let reserved = u32_at(data, 4).ok_or_else(|| wrong("it is too short"))?;
                let (directory_bytes, directory_offset) = (word(8)?, word(16)?);
                self.bitmaps = Some(Bitmaps { count, reserved, directory_bytes, directory_offset });
            }
            LOG => {
                let log = data.first_chunk().ok_or_else(|| wrong("it is too short"))?;
                self.log = Some(LogMark { log: Uuid::from_bytes(*log), from: word(16)?, epoch: word(24)? });
            }
            ENCRYPTION => self.encryption = Some(Encryption { offset: word(0)?, len: word(8)? }),
            DATA_FILE if data.len() as u64 > FILE_NAME_BYTES_MAX => {
                return Err(wrong("a file name has at most 1023 bytes"));
            }
            DATA_FILE => self.data_file = Some(data.to_vec()),
            _ => self.unknown.push(Unknown { kind, data: data.to_vec() }),
        }
        Ok(())
    }

    /// As bytes, with an end mark.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |kind: u32, data: &[u8]| {
            out.extend(kind.to_be_bytes());
            out.extend((data.len() as u32).to_be_bytes());
            out.extend(data);
            out.resize(out.len().next_multiple_of(8), 0);
        };
        if let Some(LogMark { log, from, epoch }) = self.log {
            put(LOG, &[&log.as_bytes()[..], &from.to_be_bytes(), &epoch.to_be_bytes()].concat());
        }
        if let Some(format) = &self.backing_format {
            put(BACKING_FORMAT, format.as_bytes());
        }
        if let Some(name) = &self.data_file {
            put(DATA_FILE, name);
        }
        if let Some(Encryption { offset, len }) = self.encryption {
            put(ENCRYPTION, &[offset.to_be_bytes(), len.to_be_bytes()].concat());
        }
        if !self.feature_names.is_empty() {
            put(FEATURE_NAMES, &self.feature_names.iter().flat_map(encode_name).collect::<Vec<u8>>());
        }
        if let Some(bitmaps) = self.bitmaps {
            put(BITMAPS, &bitmaps.encode());
        }
        for Unknown { kind, data } in &self.unknown {
            put(*kind, data);
        }
        put(END, &[]);
        out
    }
}

fn feature_name(entry: &[u8]) -> Option<Name> {
    let (&[word, bit], name) = entry.split_first_chunk::<2>()?;
    let word = match word {
        0 => Word::Incompatible,
        1 => Word::Compatible,
        2 => Word::Autoclear,
        // Of a word that is yet to come.
        _ => return None,
    };
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    (bit < 64).then(|| Name { word, bit, name: String::from_utf8_lossy(&name[..len]).into_owned() })
}

fn encode_name(name: &Name) -> Vec<u8> {
    let word = match name.word {
        Word::Incompatible => 0,
        Word::Compatible => 1,
        Word::Autoclear => 2,
    };
    let mut out = vec![word, name.bit];
    out.extend(name.name.bytes().take(NAME_BYTES - 2));
    out.resize(NAME_BYTES, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_read_as_they_are_written() {
        let name = |word, bit, name: &str| Name { word, bit, name: name.to_owned() };
        let all = Extensions {
            log: Some(LogMark { log: Uuid::from_bytes([7; 16]), from: 3, epoch: u64::MAX }),
            backing_format: Some("raw".to_owned()),
            feature_names: vec![name(Word::Incompatible, 63, "time travel"), name(Word::Autoclear, 0, "bitmaps")],
            bitmaps: Some(Bitmaps { count: 3, reserved: 0, directory_bytes: 96, directory_offset: 0x30000 }),
            encryption: Some(Encryption { offset: 0x40000, len: 592 }),
            data_file: Some(b"data.raw".to_vec()),
            unknown: vec![Unknown { kind: 0x1234, data: vec![1, 2, 3] }, Unknown { kind: 0x1234, data: vec![4] }],
        };
        assert_eq!(Extensions::parse(&all.encode(), 104).unwrap(), all);
        // Whatever comes behind the mark is no extension.
        assert_eq!(Extensions::parse(&[all.encode(), vec![0xff; 100]].concat(), 104).unwrap(), all);
    }

    #[test]
    fn lies_are_refused_with_their_place() {
        let kind = BACKING_FORMAT.to_be_bytes();
        let long = [kind, u32::MAX.to_be_bytes()].concat();
        let error = Extensions::parse(&long, 104).unwrap_err().to_string();
        assert!(error.starts_with("offset 112: header extension 0xe2792aca has 4294967295 bytes"), "{error}");
        let once = [&kind[..], &3u32.to_be_bytes(), b"raw\0\0\0\0\0"].concat();
        assert!(Extensions::parse(&[once.clone(), once].concat(), 104).is_err());
        let short = [BITMAPS.to_be_bytes(), 4u32.to_be_bytes(), [0; 4], [0; 4]].concat();
        assert!(Extensions::parse(&short, 104).unwrap_err().to_string().contains("too short"));
        assert_eq!(Extensions::parse(&[], 72).unwrap(), Extensions::default());
    }
}
