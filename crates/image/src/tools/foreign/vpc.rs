//! Virtual PC's images, which Hyper-V and Azure call VHD.

use super::{Disk, ForeignFormat, Part, read_from};
use crate::tools::file::ToolError;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use storage::Extent;
use vhd::{VhdError, VhdReader};

const FOOTER_BYTES: u64 = 512;
const COOKIE: &[u8] = b"conectix";
const FIXED: u32 = 2;
const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;
const HEADER_BYTES: u64 = 1024;
/// The header and the block allocation table lie in here: that of the largest disk in blocks of 512 KiB has 16 MiB.
const HEAD_BYTES_MAX: u64 = 64 << 20;
/// Largest disk of the format: 2040 GiB.
const SIZE_MAX: u64 = 2040 << 30;

/// An image.
pub(super) struct Vpc {
    reader: VhdReader,
    part: Part,
    /// None where every block is there.
    blocks: Option<Blocks>,
}

/// The block allocation table.
#[derive(Clone, Copy)]
struct Blocks {
    offset: u64,
    block_bytes: u64,
    /// Behind its last byte.
    end: u64,
}

impl Vpc {
    pub(super) fn open(part: Part) -> Result<Vpc, ToolError> {
        let data_bytes = part.len_bytes.saturating_sub(FOOTER_BYTES);
        let footer: [u8; FOOTER_BYTES as usize] = part.bytes(data_bytes)?;
        if part.len_bytes < FOOTER_BYTES || !footer.starts_with(COOKIE) {
            return Err(part.refused("does not end with the footer of a VHD image: it was cut off, or is none"));
        }
        let size_bytes = long(&footer, 48);
        let kind = int(&footer, 60);
        if kind == DIFFERENCING {
            let reason = "is a differencing disk, whose parent is another file: merge them with Hyper-V's tools first";
            return Err(part.refused(reason));
        }
        if size_bytes > SIZE_MAX {
            return Err(
                part.refused(format!("its disk has {size_bytes} bytes, and one has 2040 GiB at most: it is damaged"))
            );
        }
        // Others go by the one at the beginning: from where the header is to the type.
        let first: [u8; FOOTER_BYTES as usize] = part.bytes(0)?;
        if kind == DYNAMIC && first[16..64] != footer[16..64] {
            return Err(part.refused("begins with another footer than it ends with: it is damaged"));
        }
        let blocks = if kind == DYNAMIC { Some(Blocks::of(&part, long(&footer, 16), size_bytes)?) } else { None };
        if kind == FIXED && size_bytes > data_bytes {
            let reason = format!("has {data_bytes} bytes of data, and its disk {size_bytes}: it was cut off");
            return Err(part.refused(reason));
        }
        let head_bytes = blocks.map_or(0, |blocks| blocks.end);
        let spared = Spared { file: part.file.clone(), at: 0, head: Some((head_bytes, footer)) };
        let opened = VhdReader::open_reader(Box::new(spared));
        let reader = opened.map_err(|error: VhdError| part.unreadable(ForeignFormat::Vpc)(&error))?;
        Ok(Vpc { reader, part, blocks })
    }
}

impl Blocks {
    /// Of the header at a byte of the file.
    fn of(part: &Part, header_offset: u64, size_bytes: u64) -> Result<Blocks, ToolError> {
        let header: [u8; HEADER_BYTES as usize] = part.bytes(header_offset)?;
        let (offset, entries, block_bytes) = (long(&header, 16), u64::from(int(&header, 28)), int(&header, 32));
        let end = offset.saturating_add(entries * 4).max(header_offset.saturating_add(HEADER_BYTES));
        if end > HEAD_BYTES_MAX.min(part.len_bytes - FOOTER_BYTES) {
            let reason = format!(
                "its header at {header_offset} and its block allocation table ({entries} entries at {offset}) do not lie in the \
                 file's first 64 MiB: it is damaged"
            );
            return Err(part.refused(reason));
        }
        if !block_bytes.is_power_of_two() || block_bytes < 512 {
            return Err(
                part.refused(format!("has blocks of {block_bytes} bytes, which is no power of two: it is damaged"))
            );
        }
        let block_bytes = u64::from(block_bytes);
        if size_bytes > entries * block_bytes {
            return Err(part.refused("its block allocation table is too short for its disk: it is damaged"));
        }
        Ok(Blocks { offset, block_bytes, end })
    }
}

/// Numbers are big endian.
fn int(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Disk for Vpc {
    fn size_bytes(&self) -> u64 {
        self.reader.virtual_disk_size()
    }

    fn read(&mut self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        read_from(&mut self.reader, at, buf)
    }

    /// The crate does not tell.
    fn extent(&mut self, at: u64) -> io::Result<Extent> {
        let Some(Blocks { offset, block_bytes, .. }) = self.blocks else {
            return Ok(Extent { bytes: self.size_bytes() - at, data: true });
        };
        let mut entry = [0; 4];
        self.part.file.read_exact_at(&mut entry, offset + at / block_bytes * 4)?;
        Ok(Extent { bytes: block_bytes - at % block_bytes, data: entry != [0xff; 4] })
    }
}

/// A file of which the crate sees no more than it needs. It reads all of a file into memory to look at the beginning and the footer: so
/// until it seeks for the first time, these are all that there is.
struct Spared {
    file: Arc<File>,
    at: u64,
    /// Bytes of the beginning, and the footer, until then.
    head: Option<(u64, [u8; FOOTER_BYTES as usize])>,
}

impl Read for Spared {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = match &self.head {
            Some((end, footer)) if self.at >= *end => {
                let rest = footer.get((self.at - end) as usize..).unwrap_or_default();
                let len = rest.len().min(buf.len());
                buf[..len].copy_from_slice(&rest[..len]);
                len
            }
            Some((end, _)) => {
                let len = buf.len().min((end - self.at) as usize);
                self.file.read_at(&mut buf[..len], self.at)?
            }
            None => self.file.read_at(buf, self.at)?,
        };
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Spared {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.head = None;
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
