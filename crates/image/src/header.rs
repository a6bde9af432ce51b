//! The header (specification: "Header", "Additional fields").

use crate::FormatError;
use crate::extension::Extensions;
use crate::features::{self, named};
use crate::field::{put_u32, put_u64, u32_at, u64_at};
use crate::snapshot;
use storage::LogMark;
use uuid::Uuid;

/// The first four bytes of an image.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";

/// Bytes of the header of version 2.
const V2_BYTES: usize = 72;
/// Fewest bytes of the header of version 3.
const V3_BYTES: usize = 104;
/// Most bytes of an L1 table: QEMU's bound.
pub const L1_BYTES_MAX: u64 = 32 << 20;
/// Most bytes of a refcount table: QEMU's bound.
pub const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of the backing file's name.
const BACKING_NAME_BYTES_MAX: u32 = 1023;
/// Most snapshots: QEMU's bound.
pub const SNAPSHOTS_MAX: u32 = 65_536;
/// Offsets and sizes are below this: what files can have.
const OFFSET_END: u64 = 1 << 63;

/// Where fields lie that are written by themselves.
pub mod at {
    /// `backing_file_offset`.
    pub const BACKING_FILE: usize = 8;
    /// Virtual size.
    pub const SIZE: u64 = 24;
    /// `l1_size`, and `l1_table_offset` behind it.
    pub const L1: u64 = 36;
    /// `refcount_table_offset`, and `refcount_table_clusters` behind it.
    pub const REFCOUNT_TABLE: u64 = 48;
    /// `nb_snapshots`, and `snapshots_offset` behind it.
    pub const SNAPSHOTS: u64 = 60;
    /// `incompatible_features`.
    pub const INCOMPATIBLE: u64 = 72;
    /// `autoclear_features`.
    pub const AUTOCLEAR: u64 = 88;
}

/// How compressed clusters are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1951, without a header.
    Zlib,
    /// Zstandard.
    Zstd,
}

/// A header, of which every field is what it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Name of the backing file, as it is written.
    pub backing_file: Option<Vec<u8>>,
    /// A cluster has two to the power of this many bytes.
    pub cluster_bits: u32,
    /// Virtual size, in bytes.
    pub size_bytes: u64,
    /// Entries of the active L1 table.
    pub l1_entries: u32,
    /// Where that is.
    pub l1_offset: u64,
    /// Where the refcount table is.
    pub refcount_table_offset: u64,
    /// Its clusters.
    pub refcount_table_clusters: u32,
    /// Internal snapshots.
    pub snapshots: u32,
    /// Where their table is.
    pub snapshots_offset: u64,
    /// Incompatible features.
    pub incompatible: u64,
    /// Compatible features, those that are not known included.
    pub compatible: u64,
    /// Autoclear features, those that are not known included.
    pub autoclear: u64,
    /// A refcount has two to the power of this many bits.
    pub refcount_order: u32,
    /// Bytes of the header without its extensions.
    pub header_bytes: u32,
    /// Of compressed clusters.
    pub compression: Compression,
    /// What follows.
    pub extensions: Extensions,
}

fn field(offset: u64, field: &'static str, value: u64, rule: &'static str) -> FormatError {
    FormatError::Field { offset, field, value, rule }
}

impl Header {
    /// Bytes that have to be read for [`parse`](Self::parse), as the first 512 say: the first cluster.
    ///
    /// # Errors
    /// No image, or clusters of a size that there is not.
    pub fn bytes_needed(first: &[u8]) -> Result<u64, FormatError> {
        let (_, cluster_bits) = begin(first)?;
        Ok(1 << cluster_bits)
    }

    /// Reads the header and its extensions from the first cluster, or from all there is of an image that has less.
    ///
    /// # Errors
    /// The first field that is not what it may be.
    pub fn parse(bytes: &[u8]) -> Result<Header, FormatError> {
        let (version, cluster_bits) = begin(bytes)?;
        let bytes = &bytes[..bytes.len().min(1 << cluster_bits)];
        let short = || FormatError::Short { offset: 0, what: "the header" };
        let word = |at| u64_at(bytes, at).ok_or_else(short);
        let half = |at| u32_at(bytes, at).ok_or_else(short);
        let mut header = Header {
            version,
            backing_file: None,
            cluster_bits,
            size_bytes: word(24)?,
            l1_entries: half(36)?,
            l1_offset: word(40)?,
            refcount_table_offset: word(48)?,
            refcount_table_clusters: half(56)?,
            snapshots: half(60)?,
            snapshots_offset: word(64)?,
            incompatible: 0,
            compatible: 0,
            autoclear: 0,
            refcount_order: 4,
            header_bytes: V2_BYTES as u32,
            compression: Compression::Zlib,
            extensions: Extensions::default(),
        };
        if version >= 3 {
            (header.incompatible, header.compatible, header.autoclear) = (word(72)?, word(80)?, word(88)?);
            (header.refcount_order, header.header_bytes) = (half(96)?, half(100)?);
        }
        let header_bytes = header.header_bytes as usize;
        if version >= 3 && (header_bytes < V3_BYTES || !header_bytes.is_multiple_of(8) || header_bytes > bytes.len()) {
            let rule = "a multiple of 8, at least 104, within the first cluster";
            return Err(field(100, "header_length", header.header_bytes.into(), rule));
        }
        let (name_offset, name_bytes) = (word(8)?, half(16)?);
        let extensions_end = match name_offset {
            0 => bytes.len(),
            // The area goes on behind a name that lies in front of it, as no known program writes it.
            _ if name_offset >= header_bytes as u64 => bytes.len().min(name_offset as usize),
            _ => return Err(field(8, "backing_file_offset", name_offset, "it lies behind the header")),
        };
        header.extensions = Extensions::parse(&bytes[header_bytes..extensions_end], header_bytes as u64)?;
        let unknown = header.incompatible & !features::INCOMPATIBLE;
        if unknown != 0 {
            return Err(FormatError::Incompatible(named(unknown, &header.extensions.feature_names)));
        }
        match half(32)? {
            0 => {}
            1 => return Err(FormatError::Encrypted("AES-CBC (crypt_method 1)")),
            2 => return Err(FormatError::Encrypted("LUKS (crypt_method 2)")),
            other => return Err(field(32, "crypt_method", other.into(), "0, 1 or 2")),
        }
        if name_offset != 0 {
            let rule = "the name has 1 to 1023 bytes and lies in the first cluster";
            let end = name_offset.checked_add(name_bytes.into()).filter(|end| *end <= bytes.len() as u64);
            let name = end.and_then(|end| bytes.get(name_offset as usize..end as usize));
            let name = name.filter(|name| !name.is_empty() && name_bytes <= BACKING_NAME_BYTES_MAX);
            let name = name.ok_or_else(|| field(16, "backing_file_size", name_bytes.into(), rule))?;
            header.backing_file = Some(name.to_vec());
        }
        header.compression = header.read_compression(bytes)?;
        header.check()?;
        Ok(header)
    }

    fn read_compression(&self, bytes: &[u8]) -> Result<Compression, FormatError> {
        let kind = if self.header_bytes as usize > V3_BYTES { bytes.get(V3_BYTES).copied().unwrap_or(0) } else { 0 };
        match (self.incompatible & features::COMPRESSION != 0, kind) {
            (false, 0) => Ok(Compression::Zlib),
            (true, 1) => Ok(Compression::Zstd),
            (flag, kind) => {
                let rule =
                    if flag { "1 (zstd), where its feature bit is set" } else { "0, where no feature bit is set" };
                Err(field(104, "compression_type", kind.into(), rule))
            }
        }
    }

    /// Bytes of a cluster.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Whether an incompatible feature is set.
    pub fn has(&self, feature: u64) -> bool {
        self.incompatible & feature != 0
    }

    /// The intent log in front of it, if that may hold what the image has not.
    pub fn log_mark(&self) -> Option<LogMark> {
        // Somebody has taken the extension for one that does not matter: no log has this name.
        let nobodys = LogMark { log: Uuid::nil(), from: 0, epoch: 0 };
        self.has(features::LOGGED).then(|| self.extensions.log.unwrap_or(nobodys))
    }

    /// Whether the data file is a raw image of its own, and has to stay one.
    pub fn data_file_is_raw(&self) -> bool {
        self.has(features::DATA_FILE) && self.autoclear & features::DATA_FILE_RAW != 0
    }

    /// The autoclear features that stay when this program writes: it knows what raw data files need. Bitmaps stay where
    /// somebody maintains them, which a header does not know.
    pub fn autoclear_kept(&self) -> u64 {
        if self.data_file_is_raw() { self.autoclear & features::DATA_FILE_RAW } else { 0 }
    }

    /// Bytes of guest data that an L2 table describes.
    pub fn l2_covers_bytes(&self) -> u64 {
        let entry_bits = if self.has(features::EXTENDED_L2) { 4 } else { 3 };
        1 << (2 * self.cluster_bits - entry_bits)
    }

    /// Whether its fields go together.
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        let cluster = self.cluster_bytes();
        let aligned = |at, name, value: u64| {
            let ok = value.is_multiple_of(cluster) && value < OFFSET_END;
            if ok { Ok(()) } else { Err(field(at, name, value, "a multiple of the cluster size, below 2^63")) }
        };
        if self.has(features::EXTENDED_L2) && self.cluster_bits < 14 {
            return Err(field(20, "cluster_bits", self.cluster_bits.into(), "at least 14 with extended L2 entries"));
        }
        if self.refcount_order > 6 {
            return Err(field(96, "refcount_order", self.refcount_order.into(), "at most 6"));
        }
        if self.size_bytes >= OFFSET_END {
            return Err(field(at::SIZE, "size", self.size_bytes, "below 2^63"));
        }
        let l1_bytes = u64::from(self.l1_entries) * 8;
        let needed = self.size_bytes.div_ceil(self.l2_covers_bytes());
        if l1_bytes > L1_BYTES_MAX || u64::from(self.l1_entries) < needed {
            let rule = "as many entries as the virtual size needs, and at most 32 MiB of them";
            return Err(field(36, "l1_size", self.l1_entries.into(), rule));
        }
        aligned(40, "l1_table_offset", self.l1_offset)?;
        if self.l1_entries > 0 && self.l1_offset == 0 {
            return Err(field(40, "l1_table_offset", 0, "the table does not lie over the header"));
        }
        aligned(at::REFCOUNT_TABLE, "refcount_table_offset", self.refcount_table_offset)?;
        let table_clusters = u64::from(self.refcount_table_clusters);
        if self.refcount_table_offset == 0 || table_clusters == 0 {
            let rule = "an image has a refcount table";
            return Err(field(at::REFCOUNT_TABLE, "refcount_table_offset", self.refcount_table_offset, rule));
        }
        if table_clusters > REFCOUNT_TABLE_BYTES_MAX >> self.cluster_bits {
            return Err(field(56, "refcount_table_clusters", table_clusters, "at most 8 MiB of them"));
        }
        if self.snapshots > SNAPSHOTS_MAX {
            return Err(field(60, "nb_snapshots", self.snapshots.into(), "at most 65536"));
        }
        if self.snapshots > 0 {
            aligned(64, "snapshots_offset", self.snapshots_offset)?;
            // As short as entries can be.
            let bytes = u64::from(self.snapshots) * snapshot::FIXED_BYTES as u64;
            if self.snapshots_offset + bytes >= 1 << 63 {
                return Err(field(64, "snapshots_offset", self.snapshots_offset, "the table ends below 2^63"));
            }
        }
        if self.data_file_is_raw() && self.backing_file.is_some() {
            return Err(field(
                8,
                "backing_file_offset",
                1,
                "an image with a raw external data file has no backing file",
            ));
        }
        Ok(())
    }

    /// As bytes: header, extensions and backing file name, for the beginning of the first cluster.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_named_at(0);
        if let Some(name) = &self.backing_file {
            out = self.encode_named_at(out.len() as u64);
            out.extend(name);
        }
        out
    }

    /// As above, without the backing file's name, which lies at this offset.
    pub fn encode_named_at(&self, name_offset: u64) -> Vec<u8> {
        let mut out = vec![0; self.header_bytes as usize];
        out[..4].copy_from_slice(&MAGIC);
        put_u32(&mut out, 4, self.version);
        put_u32(&mut out, 20, self.cluster_bits);
        put_u64(&mut out, 24, self.size_bytes);
        put_u32(&mut out, 36, self.l1_entries);
        put_u64(&mut out, 40, self.l1_offset);
        put_u64(&mut out, 48, self.refcount_table_offset);
        put_u32(&mut out, 56, self.refcount_table_clusters);
        put_u32(&mut out, 60, self.snapshots);
        put_u64(&mut out, 64, self.snapshots_offset);
        if self.version >= 3 {
            put_u64(&mut out, 72, self.incompatible);
            put_u64(&mut out, 80, self.compatible);
            put_u64(&mut out, 88, self.autoclear);
            put_u32(&mut out, 96, self.refcount_order);
            put_u32(&mut out, 100, self.header_bytes);
        }
        if self.compression == Compression::Zstd && out.len() > V3_BYTES {
            out[V3_BYTES] = 1;
        }
        if let Some(name) = &self.backing_file {
            put_u64(&mut out, 8, name_offset);
            put_u32(&mut out, 16, name.len() as u32);
        }
        out.extend(self.extensions.encode());
        out
    }
}

/// Version and cluster bits.
fn begin(bytes: &[u8]) -> Result<(u32, u32), FormatError> {
    if bytes.get(..4) != Some(&MAGIC[..]) {
        return Err(FormatError::Magic);
    }
    let short = || FormatError::Short { offset: 0, what: "the header" };
    let version = u32_at(bytes, 4).ok_or_else(short)?;
    if !(2..=3).contains(&version) {
        return Err(FormatError::Version(version));
    }
    let cluster_bits = u32_at(bytes, 20).ok_or_else(short)?;
    if !(9..=21).contains(&cluster_bits) {
        return Err(field(20, "cluster_bits", cluster_bits.into(), "9 to 21 (clusters of 512 bytes to 2 MiB)"));
    }
    Ok((version, cluster_bits))
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
#[cfg(test)]
pub(crate) use tests::header as tests_header;
