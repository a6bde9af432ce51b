//! Hyper-V's images.

use super::{Disk, ForeignFormat, Part, read_from};
use crate::tools::file::ToolError;
use std::io;
use std::os::unix::fs::FileExt;
use storage::Extent;
use uuid::{Uuid, uuid};
use vhdx::header::{REGION_TABLE1_OFFSET, REGION_TABLE2_OFFSET, parse_active_header};
use vhdx::metadata::parse_metadata;
use vhdx::region::{REGION_TABLE_CRC_COVERAGE, parse_region_table};
use vhdx::{Backing, FILE_MAGIC, VhdxError, VhdxReader};

/// Headers and region tables lie in here.
const HEAD_BYTES: usize = REGION_TABLE2_OFFSET as usize + REGION_TABLE_CRC_COVERAGE;
/// The region of a few numbers, which has 1 MiB in practice.
const METADATA_BYTES_MAX: u32 = 16 << 20;

/// A block allocation table of 16 TiB in blocks of 1 MiB, or of 64 TiB in larger ones. The crate has it twice in memory.
const TABLE_BYTES_MAX: u64 = 129 << 20;
/// Metadata items (MS-VHDX, 2.2.3.5.3), of which a parent is refused by the crate.
const ITEMS: [Uuid; 6] = [
    uuid!("CAA16737-FA36-4D43-B3B6-33F0AA44E76B"),
    uuid!("2FA54224-CD1B-4876-B211-5DBED83BF4B8"),
    uuid!("BECA12AB-B2E6-4523-93EF-C309E000C746"),
    uuid!("8141BF1D-A96F-4709-BA47-F233A8FAAB5F"),
    uuid!("CDA348C7-445D-4471-9CC9-E9885251C556"),
    uuid!("A8D35F2D-B30B-454D-ABF7-D3D84834AB0C"),
];
/// Bytes of an entry of either table, which begins with its identifier.
const ENTRY_BYTES: usize = 32;

/// Whether one of `count` entries from a byte on is none of `known`, and a flag (where, and which) says that it has to be.
fn has_unknown(table: &[u8], at: usize, count: u32, flag: (usize, u32), known: &[[u8; 16]]) -> bool {
    let mut entries = table.get(at..).unwrap_or_default().chunks_exact(ENTRY_BYTES).take(count as usize);
    let is_required = |entry: &[u8]| int(entry, flag.0) & flag.1 != 0;
    entries.any(|entry| is_required(entry) && !known.iter().any(|known| entry.starts_with(known)))
}

/// Numbers are little endian; what is behind the end is zero.
fn int(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

/// An image.
pub(super) struct Vhdx {
    reader: VhdxReader,
    part: Part,
    block_bytes: u64,
    /// Blocks before each entry of the table that is none.
    chunk_ratio: u64,
    /// Where the block allocation table lies.
    table_offset: u64,
}

impl Vhdx {
    pub(super) fn open(part: Part) -> Result<Vhdx, ToolError> {
        let failed = |error: VhdxError| match error {
            VhdxError::DifferencingNotSupported => part
                .refused("is a differencing disk, whose parent is another file: merge them with Hyper-V's tools first"),
            error => part.unreadable(ForeignFormat::Vhdx)(&error),
        };
        let mut head = vec![0; HEAD_BYTES];
        part.fill(0, &mut head)?;
        if !head.starts_with(FILE_MAGIC) {
            return Err(failed(VhdxError::BadMagic));
        }
        let header = parse_active_header(&head).map_err(failed)?;
        // The crate replays a log by a layout that is not the format's, and trusts its lengths.
        if header.log_guid != [0; 16] {
            let reason = "was not closed: its log has to be replayed by `qemu-img check -r all` or Hyper-V first";
            return Err(part.refused(reason));
        }
        let table = |offset: u64| {
            parse_region_table(&head, offset as usize, part.len_bytes).map(|regions| (offset as usize, regions))
        };
        let found = table(REGION_TABLE1_OFFSET).or_else(|_| table(REGION_TABLE2_OFFSET));
        let (table_at, regions) = found.map_err(failed)?;
        let unknown = |what| {
            let reason = format!("has {what} that has to be understood and is unknown: `qemu-img convert` may read it");
            part.refused(reason)
        };
        // struct VHDX_REGION_TABLE_ENTRY (MS-VHDX, 2.2.3.2).
        let known = [regions.bat.guid, regions.metadata.guid];
        if has_unknown(&head, table_at + 16, int(&head, table_at + 8), (28, 1), &known) {
            return Err(unknown("a region"));
        }
        if regions.metadata.length > METADATA_BYTES_MAX {
            return Err(part.refused(format!("its metadata has {} bytes: it is damaged", regions.metadata.length)));
        }
        let mut bytes = vec![0; regions.metadata.length as usize];
        part.fill(regions.metadata.file_offset, &mut bytes)?;
        // struct VHDX_METADATA_TABLE_ENTRY (MS-VHDX, 2.2.3.5.2): the count is half a word.
        if has_unknown(&bytes, 32, int(&bytes, 8) >> 16, (24, 4), &ITEMS.map(|item| item.to_bytes_le())) {
            return Err(unknown("metadata"));
        }
        let metadata = parse_metadata(&bytes, 0, regions.metadata.length).map_err(failed)?;
        metadata.validate().map_err(failed)?;
        let (block_bytes, chunk_ratio) = (u64::from(metadata.block_size), metadata.chunk_ratio());
        let last = metadata.virtual_disk_size.div_ceil(block_bytes) - 1;
        let (needed, there) = ((last + last / chunk_ratio + 1) * 8, u64::from(regions.bat.length));
        if there < needed {
            let reason = format!(
                "its block allocation table has {there} bytes, and its disk of {} bytes needs {needed}: it is damaged",
                metadata.virtual_disk_size
            );
            return Err(part.refused(reason));
        }
        if there > TABLE_BYTES_MAX {
            let reason = format!(
                "its block allocation table has {there} bytes, and 129 MiB are read at most: `qemu-img convert` may read it"
            );
            return Err(part.refused(reason));
        }
        // A device has no length of its own.
        let backing = Backing::sub(part.file.clone(), 0, part.len_bytes);
        let reader = VhdxReader::from_backing(backing, None).map_err(failed)?;
        Ok(Vhdx { reader, block_bytes, chunk_ratio, table_offset: regions.bat.file_offset, part })
    }
}

impl Disk for Vhdx {
    fn size_bytes(&self) -> u64 {
        self.reader.virtual_disk_size()
    }

    fn read(&mut self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        read_from(&mut self.reader, at, buf)
    }

    /// The crate does not tell; of the states only those from 4 on have data, or are errors that a read tells of.
    fn extent(&mut self, at: u64) -> io::Result<Extent> {
        let block = at / self.block_bytes;
        let mut entry = [0; 8];
        self.part.file.read_exact_at(&mut entry, self.table_offset + (block + block / self.chunk_ratio) * 8)?;
        Ok(Extent { bytes: self.block_bytes - at % self.block_bytes, data: entry[0] & 7 > 3 })
    }
}
