//! Hyper-V's images.

use super::{Disk, ForeignFormat, Part};
use crate::tools::file::ToolError;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use storage::Extent;
use vhdx::header::{REGION_TABLE1_OFFSET, REGION_TABLE2_OFFSET, parse_active_header};
use vhdx::metadata::parse_metadata;
use vhdx::region::{REGION_TABLE_CRC_COVERAGE, parse_region_table};
use vhdx::{Backing, FILE_MAGIC, VhdxError, VhdxReader};

/// Headers and region tables lie in here.
const HEAD_BYTES: usize = REGION_TABLE2_OFFSET as usize + REGION_TABLE_CRC_COVERAGE;
/// A block allocation table may be longer than its disk needs, but not beyond that: it is in memory.
const TABLE_BYTES_SPARE: u64 = 64 << 20;
/// The region of a few numbers, which has 1 MiB in practice.
const METADATA_BYTES_MAX: u32 = 16 << 20;

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
        let table = |offset: u64| parse_region_table(&head, offset as usize, part.len_bytes);
        let regions = table(REGION_TABLE1_OFFSET).or_else(|_| table(REGION_TABLE2_OFFSET)).map_err(failed)?;
        if regions.metadata.length > METADATA_BYTES_MAX {
            return Err(part.refused(format!("its metadata has {} bytes: it is damaged", regions.metadata.length)));
        }
        let mut bytes = vec![0; regions.metadata.length as usize];
        part.fill(regions.metadata.file_offset, &mut bytes)?;
        let metadata = parse_metadata(&bytes, 0, regions.metadata.length).map_err(failed)?;
        metadata.validate().map_err(failed)?;
        let (block_bytes, chunk_ratio) = (u64::from(metadata.block_size), metadata.chunk_ratio());
        let last = metadata.virtual_disk_size.div_ceil(block_bytes) - 1;
        let (needed, there) = ((last + last / chunk_ratio + 1) * 8, u64::from(regions.bat.length));
        if there < needed || there > needed + TABLE_BYTES_SPARE {
            let reason = format!(
                "its block allocation table has {there} bytes, and its disk of {} bytes needs {needed}: it is damaged",
                metadata.virtual_disk_size
            );
            return Err(part.refused(reason));
        }
        let file = part.file.try_clone().map_err(ToolError::io(&part.path, "open"))?;
        let reader = VhdxReader::from_backing(Backing::File(file), None).map_err(failed)?;
        Ok(Vhdx { reader, block_bytes, chunk_ratio, table_offset: regions.bat.file_offset, part })
    }
}

impl Disk for Vhdx {
    fn size_bytes(&self) -> u64 {
        self.reader.virtual_disk_size()
    }

    fn read(&mut self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reader.seek(SeekFrom::Start(at))?;
        self.reader.read_exact(buf)
    }

    /// The crate does not tell; of the states only those from 4 on have data, or are errors that a read tells of.
    fn extent(&mut self, at: u64) -> io::Result<Extent> {
        let block = at / self.block_bytes;
        let mut entry = [0; 8];
        self.part.file.read_exact_at(&mut entry, self.table_offset + (block + block / self.chunk_ratio) * 8)?;
        Ok(Extent { bytes: self.block_bytes - at % self.block_bytes, data: entry[0] & 7 > 3 })
    }
}
