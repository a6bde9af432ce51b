//! Images of other programs: of VMware, Hyper-V and Virtual PC. They are read, and never written or served.
//!
//! The formats are read by crates. What these trust is checked first: how much memory a header asks for, which files a descriptor names,
//! and what they would read wrong.
//!
//! | file | concern |
//! |---|---|
//! | `vmdk` | VMware's: one file, or a descriptor that names others |
//! | `descriptor` | the text that lists the extents of a VMDK image |
//! | `vhdx` | Hyper-V's |
//! | `vpc` | Virtual PC's (VHD), which Azure takes as well |

mod descriptor;
#[cfg(test)]
mod tests;
mod vhdx;
mod vmdk;
mod vpc;

use super::file::{Image, ToolError};
use crate::uses::Source;
use engine::{Completion, Io, Token};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::extent::Extents;
use storage::kit::{ImageLock, copy_in, settled};
use storage::{Action, Description, Execution, Extent, Handed, Links, Operation, Step, Storage, StorageError, Task};

/// Larger disks than any of the formats has (64 TiB) are lies.
const SIZE_MAX: u64 = 64 << 40;
/// Extents that are looked for before an answer is given.
const LOOKS: usize = 1 << 16;

/// A format of another program, by QEMU's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display)]
pub enum ForeignFormat {
    /// vmdk
    Vmdk,
    /// vhdx
    Vhdx,
    /// vpc
    Vpc,
}

/// An image of another program.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub format: ForeignFormat,
    /// Directories in which files that it leads to may lie besides its own, and such devices.
    pub allow: Vec<PathBuf>,
}

impl Foreign {
    pub(super) fn open(&self) -> Result<ForeignStorage, ToolError> {
        let part = Part::open(&self.path, Links::Follow)?;
        let disk: Box<dyn Disk> = match self.format {
            ForeignFormat::Vmdk => Box::new(vmdk::Vmdk::open(self, part)?),
            ForeignFormat::Vhdx => Box::new(vhdx::Vhdx::open(part)?),
            ForeignFormat::Vpc => Box::new(vpc::Vpc::open(part)?),
        };
        let size_bytes = disk.size_bytes();
        if size_bytes == 0 || size_bytes > SIZE_MAX {
            let reason = format!("its disk has {size_bytes} bytes, and one has 64 TiB at most: it is damaged");
            return Err(ToolError::refused(&self.path, reason));
        }
        Ok(ForeignStorage {
            path: self.path.clone(),
            size_bytes,
            reader: Mutex::new(Reader { disk, bytes: Vec::new() }),
        })
    }

    /// Why nothing is written to it.
    pub(super) fn refuse_writing(&self) -> ToolError {
        let reason =
            format!("is a {} image, which is read only: `vringd image convert` makes another one", self.format);
        ToolError::refused(&self.path, reason)
    }
}

/// A disk of another program, read in one place after the other.
trait Disk: Send {
    /// Size, in bytes, which may end inside a sector.
    fn size_bytes(&self) -> u64;

    /// Fills `buf`, all of which lies inside the disk.
    fn read(&mut self, at: u64, buf: &mut [u8]) -> io::Result<()>;

    /// What there is from a byte of the disk on: at least one, and maybe more than the disk has.
    fn extent(&mut self, at: u64) -> io::Result<Extent>;
}

/// Fills `buf` by a crate.
fn read_from(reader: &mut (impl Read + Seek), at: u64, buf: &mut [u8]) -> io::Result<()> {
    reader.seek(SeekFrom::Start(at))?;
    reader.read_exact(buf)
}

/// See [`Foreign`].
pub(super) struct ForeignStorage {
    path: PathBuf,
    size_bytes: u64,
    reader: Mutex<Reader>,
}

struct Reader {
    disk: Box<dyn Disk>,
    /// What was read last.
    bytes: Vec<u8>,
}

impl ForeignStorage {
    /// A panic in a crate ends the copy, whoever comes after it.
    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, task: &Task) -> Result<(), StorageError> {
        let (offset, len) = task.check(self.capacity_bytes(), true)?;
        if !matches!(task.operation, Operation::Read { .. }) {
            return Ok(());
        }
        let mut reader = self.reader();
        let Reader { disk, bytes } = &mut *reader;
        bytes.resize(len as usize, 0);
        let there = self.size_bytes.saturating_sub(offset).min(len) as usize;
        bytes[there..].fill(0);
        disk.read(offset, &mut bytes[..there]).map_err(failed(Action::Read))?;
        // SAFETY: the buffers of a started task are mapped and writable, and no part of `bytes`, which has `len`.
        unsafe { copy_in(&task.buffers, 0, bytes.as_ptr(), len) };
        Ok(())
    }
}

/// The crates' word for what an image lacks is that of a buffer.
fn failed(action: Action) -> impl Fn(io::Error) -> StorageError {
    move |source| {
        let source = match source.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(
                source.kind(),
                "its file ends before what its tables lead to: it was cut off, or is damaged",
            ),
            _ => source,
        };
        StorageError::Io { action, source }
    }
}

impl Storage for ForeignStorage {
    fn describe(&self) -> Description {
        Description {
            kind: "file",
            target: self.path.display().to_string(),
            read_only: true,
            direct: false,
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            optimal_io_bytes: 0,
            discard: false,
            discard_granularity_bytes: 512,
            write_zeroes: false,
            execution: Execution::Auto,
            execution_chosen: Execution::Inline,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.size_bytes.next_multiple_of(512)
    }

    fn start(&self, task: &mut Task, _token: Token, _io: &mut Io<'_>) -> Step {
        Step::Done(self.fill(task))
    }

    fn resume(&self, task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        debug_assert!(false, "nothing is ever pending");
        Step::Done(Err(StorageError::Unsupported(task.operation.action())))
    }

    fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        let mut reader = self.reader();
        let mut found = Extents::of(range, most);
        for _ in 0..LOOKS {
            let Some(rest) = found.rest() else { break };
            // What the last sector has behind the end.
            let extent = if rest.start < self.size_bytes {
                reader.disk.extent(rest.start).map_err(failed(Action::Look))?
            } else {
                Extent { bytes: 512, data: false }
            };
            if !found.add(extent.bytes.next_multiple_of(512), extent.data) {
                break;
            }
        }
        Ok(found.into_list())
    }

    fn resize(&self, _capacity_bytes: u64) -> Result<(), StorageError> {
        Err(StorageError::ReadOnly(Action::Write))
    }

    fn hand_over(&self) -> io::Result<Handed> {
        Err(ErrorKind::Unsupported.into())
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        match execution {
            Execution::Auto | Execution::Inline => Ok(()),
            Execution::Uring | Execution::Pool(_) => Err(StorageError::Execution { execution, kind: "file" }),
        }
    }
}

/// A file of an image, which nobody writes meanwhile.
struct Part {
    path: PathBuf,
    file: Arc<File>,
    len_bytes: u64,
    _lock: ImageLock,
}

impl Part {
    fn open(path: &Path, links: Links) -> Result<Part, ToolError> {
        let image = Image::open_by(path, false, links)?;
        let lock = ImageLock::take(path, &image.file, false)?;
        settled(path, &image.file, false)?;
        let len_bytes = image.len_bytes();
        Ok(Part { path: image.path, file: Arc::new(image.file), len_bytes, _lock: lock })
    }

    /// Bytes of it; what is behind its end reads as zeroes.
    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N], ToolError> {
        let mut bytes = [0; N];
        self.fill(at, &mut bytes)?;
        Ok(bytes)
    }

    fn fill(&self, at: u64, buf: &mut [u8]) -> Result<(), ToolError> {
        let there = self.len_bytes.saturating_sub(at).min(buf.len() as u64) as usize;
        let read = std::os::unix::fs::FileExt::read_exact_at(&*self.file, &mut buf[..there], at);
        read.map_err(ToolError::io(&self.path, "read"))
    }

    fn refused(&self, reason: impl Into<String>) -> ToolError {
        ToolError::refused(&self.path, reason)
    }

    /// What a crate says of it.
    fn unreadable(&self, format: ForeignFormat) -> impl Fn(&dyn std::error::Error) -> ToolError {
        move |error| self.refused(format!("is not read as {format}: {error}; `qemu-img info` may say what it is"))
    }
}
