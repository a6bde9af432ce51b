//! VMware's images: one file with tables, or a descriptor that names such files and flat ones.
//!
//! The crate opens whatever a descriptor names, and leaves out lines that it does not understand. So it is given one open file at a time, and
//! what a descriptor says is done here.

use super::descriptor::{self, Kind};
use super::{Disk, Foreign, ForeignFormat, Part, read_from};
use crate::served::{Confines, ImageError};
use crate::tools::file::ToolError;
use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use storage::{Extent, Links, OpenError};
use vmdk::{VmdkError, VmdkReader};

/// Of a file with tables.
const MAGIC: [u8; 4] = *b"KDMV";
/// Of extents that snapshots are made of, before and since vSphere 6.5. The crate reads them, but QEMU makes none to compare with.
const MAGICS_OF_SNAPSHOTS: [[u8; 4]; 2] = [*b"COWD", 0xcafe_babe_u32.to_le_bytes()];
/// What is said of these.
pub(super) const OF_SNAPSHOTS: &str = "is an extent of a snapshot (COWD, seSparse), or has one: consolidate it with VMware's tools first, or use `qemu-img convert`";
/// Most bytes of a descriptor: QEMU's bound.
const DESCRIPTOR_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of all grain directories, which are in memory: those of 64 TiB in grains of 64 KiB have 8 MiB.
const DIRECTORIES_BYTES_MAX: u64 = 64 << 20;
/// Most grain tables that the crate remembers, of 2 KiB: of each file it forgets none by itself.
const TABLES_MAX: usize = 32 << 10;
/// Where a header says where its grain directory is; and that this is said by the footer.
const DIRECTORY_AT: usize = 56;
const AT_THE_END: u64 = u64::MAX;
/// The type of the marker before a footer.
const FOOTER_MARKER: [u8; 4] = [3, 0, 0, 0];
/// What is read beside a grain.
const BUFFER_BYTES: usize = 4096;

/// See the top.
pub(super) struct Vmdk {
    /// The file that lists the others, which nobody is to write meanwhile either.
    _list: Option<Part>,
    /// In their order, without gaps.
    pieces: Vec<Piece>,
    /// Most grain tables of one piece.
    tables_max: usize,
}

struct Piece {
    /// Bytes of the disk.
    range: Range<u64>,
    what: What,
}

enum What {
    Zeroes,
    Flat(Part, u64),
    Sparse(Box<Sparse>),
}

impl Vmdk {
    pub(super) fn open(image: &Foreign, part: Part) -> Result<Vmdk, ToolError> {
        let magic = part.bytes(0)?;
        if magic == MAGIC || MAGICS_OF_SNAPSHOTS.contains(&magic) {
            return Vmdk::alone(Sparse::open(part)?);
        }
        if part.len_bytes > DESCRIPTOR_BYTES_MAX {
            let reason = "begins with no header of a VMDK image, and is too long for a descriptor: \
                 of several files name the small one that lists the others";
            return Err(part.refused(reason));
        }
        let mut text = vec![0; part.len_bytes as usize];
        part.fill(0, &mut text)?;
        let text = descriptor::text(text).map_err(|reason| part.refused(format!("is no VMDK image, or {reason}")))?;
        let lines = descriptor::extents(&text).map_err(|reason| part.refused(reason))?;
        let confines = Confines::new(&image.path, &image.allow);
        let directory = image.path.parent().unwrap_or(Path::new(""));
        let (mut pieces, mut end, mut directory_bytes) = (Vec::with_capacity(lines.len()), 0, 0);
        for line in lines {
            let range = end..end + line.sectors * 512;
            end = range.end;
            let open = || {
                let real = confines.admit(&directory.join(&line.name)).map_err(in_words)?;
                Part::open(&real, Links::Refuse)
            };
            let what = match line.kind {
                Kind::Zeroes => What::Zeroes,
                Kind::Flat(offset) => What::Flat(flat(open()?, offset, line.sectors)?, offset),
                Kind::Sparse => {
                    let sparse = Sparse::open(open()?)?;
                    directory_bytes += sparse.directory_bytes;
                    What::Sparse(Box::new(sparse.at_least(line.sectors)?))
                }
            };
            if directory_bytes > DIRECTORIES_BYTES_MAX {
                return Err(part.refused("its extents' grain directories have more than 64 MiB: it is damaged"));
            }
            pieces.push(Piece { range, what });
        }
        let tables_max = (TABLES_MAX / pieces.len().max(1)).max(1);
        Ok(Vmdk { _list: Some(part), pieces, tables_max })
    }

    /// An image in one file, whose descriptor is in it.
    fn alone(sparse: Sparse) -> Result<Vmdk, ToolError> {
        let text = sparse.descriptor()?;
        if text.trim().is_empty() {
            return Err(sparse
                .part
                .refused("is one extent of several: name the file that lists them (the descriptor)"));
        }
        let lines = descriptor::extents(&text).map_err(|reason| sparse.part.refused(reason))?;
        if lines.len() > 1 {
            return Err(sparse
                .part
                .refused("names other files in its own descriptor: `qemu-img convert` may read them"));
        }
        let piece = Piece { range: 0..sparse.size_bytes, what: What::Sparse(Box::new(sparse)) };
        Ok(Vmdk { _list: None, pieces: vec![piece], tables_max: TABLES_MAX })
    }

    /// Has no piece remember more grain tables than this.
    #[cfg(test)]
    pub(super) fn remember(&mut self, tables_max: usize) {
        self.tables_max = tables_max;
    }

    /// The piece that has a byte of the disk.
    fn piece(&mut self, at: u64) -> io::Result<&mut Piece> {
        let number = self.pieces.partition_point(|piece| piece.range.end <= at);
        self.pieces.get_mut(number).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

fn in_words(error: ImageError) -> ToolError {
    OpenError::from(error).into()
}

/// A flat file that has so many sectors behind a byte.
fn flat(part: Part, offset: u64, sectors: u64) -> Result<Part, ToolError> {
    let end = offset + sectors * 512;
    if end > part.len_bytes {
        let reason = format!("has {} bytes, and its descriptor needs {end}: it was cut off", part.len_bytes);
        return Err(part.refused(reason));
    }
    Ok(part)
}

impl Disk for Vmdk {
    fn size_bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.range.end)
    }

    fn read(&mut self, mut at: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            let tables_max = self.tables_max;
            let Piece { range, what } = self.piece(at)?;
            let (now, rest) = buf.split_at_mut(buf.len().min((range.end - at) as usize));
            let inside = at - range.start;
            match what {
                What::Zeroes => now.fill(0),
                What::Flat(part, offset) => part.file.read_exact_at(now, *offset + inside)?,
                What::Sparse(sparse) => sparse.read(inside, now, tables_max)?,
            }
            at += now.len() as u64;
            buf = rest;
        }
        Ok(())
    }

    fn extent(&mut self, at: u64) -> io::Result<Extent> {
        let Piece { range, what } = self.piece(at)?;
        let (inside, left) = (at - range.start, range.end - at);
        match what {
            What::Zeroes => Ok(Extent { bytes: left, data: false }),
            What::Flat(..) => Ok(Extent { bytes: left, data: true }),
            What::Sparse(sparse) => {
                let bytes = left.min(sparse.grain_bytes - inside % sparse.grain_bytes);
                Ok(Extent { bytes, data: sparse.reader.is_allocated(inside / 512)? })
            }
        }
    }
}

type Tables = VmdkReader<BufReader<Arc<File>>>;

/// A file with tables.
struct Sparse {
    part: Part,
    reader: Tables,
    size_bytes: u64,
    grain_bytes: u64,
    /// Bytes of its grain directory.
    directory_bytes: u64,
}

impl Sparse {
    fn open(part: Part) -> Result<Sparse, ToolError> {
        let header: [u8; 512] = part.bytes(0)?;
        if MAGICS_OF_SNAPSHOTS.iter().any(|magic| header.starts_with(magic)) {
            return Err(part.refused(OF_SNAPSHOTS));
        }
        let word = |at| word(&header, at);
        let (capacity, grain, entries) = (word(12), word(20), word(44) & 0xffff_ffff);
        // Where these are zero or far too large the crate says so; a directory that is larger than its file it would make room for.
        let covered = grain.saturating_mul(entries).max(1);
        let directory_bytes = capacity.div_ceil(covered).saturating_mul(4);
        if header.starts_with(&MAGIC) && directory_bytes > part.len_bytes {
            let reason = format!(
                "its header asks for a grain directory of {directory_bytes} bytes (capacity, grain size, entries of a table), \
                 more than the file has: it is damaged"
            );
            return Err(part.refused(reason));
        }
        if header.starts_with(&MAGIC) && word(DIRECTORY_AT) == AT_THE_END {
            check_footer(&part, &header)?;
        }
        let failed = part.unreadable(ForeignFormat::Vmdk);
        let reader = tables(&part.file).map_err(|error| failed(&error))?;
        let (size_bytes, grain_bytes) = (reader.virtual_disk_size(), reader.info().grain_size_bytes);
        drop(failed);
        Ok(Sparse { part, reader, size_bytes, grain_bytes: grain_bytes.max(512), directory_bytes })
    }

    /// The text in it; empty in one of several files. The crate cuts it where it likes.
    fn descriptor(&self) -> Result<String, ToolError> {
        let header: [u8; 512] = self.part.bytes(0)?;
        let (offset, bytes) = (word(&header, 28).saturating_mul(512), word(&header, 36).saturating_mul(512));
        if bytes > DESCRIPTOR_BYTES_MAX {
            return Err(self.part.refused("has a descriptor of more than 1 MiB: it is damaged"));
        }
        let mut text = vec![0; if offset == 0 { 0 } else { bytes as usize }];
        self.part.fill(offset, &mut text)?;
        descriptor::text(text).map_err(|reason| self.part.refused(reason))
    }

    /// Its descriptor says how much of it belongs to the disk.
    fn at_least(self, sectors: u64) -> Result<Sparse, ToolError> {
        if self.size_bytes < sectors * 512 {
            let reason = format!("has {} sectors, and its descriptor needs {sectors}", self.size_bytes / 512);
            return Err(self.part.refused(reason));
        }
        Ok(self)
    }

    fn read(&mut self, at: u64, buf: &mut [u8], tables_max: usize) -> io::Result<()> {
        if self.reader.gt_cache_size() > tables_max {
            self.reader = tables(&self.part.file).map_err(io::Error::other)?;
        }
        read_from(&mut self.reader, at, buf)
    }
}

/// A number of a header.
fn word(header: &[u8; 512], at: usize) -> u64 {
    u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"))
}

/// Of a file that was written from its beginning to its end the header is there as well, with what was not known before. The crate takes
/// nothing else from there, and others take all.
fn check_footer(part: &Part, header: &[u8; 512]) -> Result<(), ToolError> {
    let at = part.len_bytes.saturating_sub(3 * 512);
    let [marker, footer, end]: [[u8; 512]; 3] = [part.bytes(at)?, part.bytes(at + 512)?, part.bytes(at + 1024)?];
    let is_marked = marker[8..12] == [0; 4] && marker[12..16] == FOOTER_MARKER && end[..16] == [0; 16];
    let is_same = |range: Range<usize>| footer[range.clone()] == header[range];
    if is_marked && is_same(0..DIRECTORY_AT - 8) && is_same(77..79) {
        return Ok(());
    }
    Err(part.refused("has no footer like its header at its end: it was cut off, or `qemu-img convert` may read it"))
}

fn tables(file: &Arc<File>) -> Result<Tables, VmdkError> {
    (&**file).seek(SeekFrom::Start(0))?;
    VmdkReader::open(BufReader::with_capacity(BUFFER_BYTES, file.clone()))
}
