//! Discard and write zeroes: fallocate, device ioctls, and plain writes where neither helps. All of it blocks.

use super::issue::{Direction, transfer_now};
use super::measure::Measures;
use crate::aligned::AlignedBuffer;
use engine::SharedFile;
use libc::iovec;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `_IO(0x12, 119)` of Linux' `include/uapi/linux/fs.h`; its argument is two u64: first byte, number of bytes.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Zeroes written at once, in bytes; a multiple of every alignment.
const CHUNK: u64 = 256 << 10;

/// What the file is known to take. A call that turns out not to be supported is not tried again.
#[derive(Debug)]
pub(super) struct Abilities {
    device: bool,
    device_discards: bool,
    punch: AtomicBool,
    zero_range: AtomicBool,
}

impl Abilities {
    /// Finds out whether holes can be punched, without touching contents: by a hole behind the end of the file, where there is
    /// nothing to lose. Whether ranges can be zeroed cannot be asked without allocating space, so it shows at the first one.
    pub(super) fn probe(fd: impl AsFd, measures: &Measures, read_only: bool, size_bytes: u64) -> Abilities {
        let punch = !read_only && (measures.device || punch_behind_end(fd, size_bytes));
        Abilities {
            device: measures.device,
            device_discards: measures.device_discards,
            punch: AtomicBool::new(punch),
            zero_range: AtomicBool::new(!read_only),
        }
    }

    /// Whether a discard gives space back.
    pub(super) fn discard(&self) -> bool {
        if self.device { self.device_discards } else { self.punch.load(Ordering::Relaxed) }
    }
}

fn punch_behind_end(fd: impl AsFd, size_bytes: u64) -> bool {
    const BLOCK: u64 = 1 << 20;
    let Some(start) = size_bytes.checked_next_multiple_of(BLOCK).filter(|start| *start < 1 << 62) else { return false };
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, BLOCK).is_ok()
}

/// What is to be done to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Discard,
    Zero { unmap: bool },
}

/// One range, ready to run on any thread.
pub(super) struct Job {
    pub(super) file: Arc<SharedFile>,
    /// The descriptor that claims the device, if one does.
    pub(super) claim: Option<Arc<OwnedFd>>,
    pub(super) abilities: Arc<Abilities>,
    pub(super) kind: Kind,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) memory_align: usize,
    pub(super) offset_align: u64,
}

impl Job {
    /// 0 or a negated errno.
    pub(super) fn run(&self) -> i32 {
        let result = match self.kind {
            Kind::Discard => self.discard(),
            Kind::Zero { unmap } => self.zero(unmap),
        };
        result.map_or_else(|errno| -errno.raw_os_error(), |()| 0)
    }

    fn owner(&self) -> BorrowedFd<'_> {
        self.claim.as_ref().map_or(self.file.as_fd(), |claim| claim.as_fd())
    }

    /// A discard is advice: what cannot be done is left undone.
    fn discard(&self) -> Result<(), Errno> {
        let result = match self.abilities.device {
            true => self.device_discard(),
            false => self.punch(),
        };
        match result {
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => Ok(()),
            other => other,
        }
    }

    fn zero(&self, unmap: bool) -> Result<(), Errno> {
        if unmap {
            match self.punch() {
                Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
                other => return other,
            }
        }
        let zero_range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match self.allocate(&self.abilities.zero_range, zero_range) {
            // INVAL: a device whose blocks are larger than the range's sectors.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => self.write_zeroes(),
            other => other,
        }
    }

    /// Gives the range's space back; it reads as zeroes.
    fn punch(&self) -> Result<(), Errno> {
        self.allocate(&self.abilities.punch, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
    }

    fn allocate(&self, able: &AtomicBool, flags: FallocateFlags) -> Result<(), Errno> {
        if !able.load(Ordering::Relaxed) {
            return Err(Errno::OPNOTSUPP);
        }
        let result = retry(|| fallocate(self.owner(), flags, self.offset, self.len));
        match result {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                able.store(false, Ordering::Relaxed);
                Err(Errno::OPNOTSUPP)
            }
            other => other,
        }
    }

    fn device_discard(&self) -> Result<(), Errno> {
        let range = [self.offset, self.len];
        // SAFETY: BLKDISCARD reads two u64 from its argument. rustix has no call for it.
        let result = unsafe { libc::ioctl(self.owner().as_raw_fd(), BLKDISCARD, &range) };
        if result == 0 {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Err(Errno::from_raw_os_error(errno))
    }

    /// Writes zeroes. The caller has the range's blocks to itself, so partial ones can be rewritten.
    fn write_zeroes(&self) -> Result<(), Errno> {
        let align = self.offset_align;
        let end = self.offset + self.len;
        let longest = CHUNK.min(self.len.next_multiple_of(align) + align);
        let buffer = AlignedBuffer::new(longest as usize, self.memory_align.max(512)).ok_or(Errno::NOMEM)?;
        let mut at = self.offset;
        while at < end {
            let first = at / align * align;
            let stop = end.min(first + longest);
            let whole = stop.next_multiple_of(align) - first;
            if (first, first + whole) != (at, stop) {
                let got = self.all(Direction::Read, &buffer, first, whole)?;
                // SAFETY: `got` is at most `whole`, which fits into the buffer.
                unsafe { std::ptr::write_bytes(buffer.as_ptr().add(got as usize), 0, (whole - got) as usize) };
            }
            // SAFETY: `at..stop` lies inside the chunk that starts at `first` and fits into the buffer.
            unsafe { std::ptr::write_bytes(buffer.as_ptr().add((at - first) as usize), 0, (stop - at) as usize) };
            self.all(Direction::Write { durable: false }, &buffer, first, whole)?;
            at = stop;
        }
        Ok(())
    }

    /// Moves the first `len` bytes of the buffer; fewer only at the end of the file when reading.
    fn all(&self, direction: Direction, buffer: &AlignedBuffer, offset: u64, len: u64) -> Result<u64, Errno> {
        let mut done = 0;
        while done < len {
            let iov_base = buffer.as_ptr().wrapping_add(done as usize).cast();
            let rest = [iovec { iov_base, iov_len: (len - done) as usize }];
            // SAFETY: the rest lies inside the buffer.
            let moved = unsafe { transfer_now(direction, self.file.as_fd(), &rest, offset + done) };
            match moved {
                0 if direction == Direction::Read => break,
                0 => return Err(Errno::IO),
                moved if moved == -libc::EINTR => {}
                moved if moved < 0 => return Err(Errno::from_raw_os_error(-moved)),
                moved => done += moved as u64,
            }
            if direction == Direction::Read && !(offset + done).is_multiple_of(self.offset_align) {
                // O_DIRECT reads end inside a block only at the end of the file.
                break;
            }
        }
        Ok(done)
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<()>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
