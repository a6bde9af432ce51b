//! One system call: on the spot, by io_uring or on a pool.

use crate::buffers::{self, Lent};
use crate::jobs::{Jobs, WORK};
use crate::{Execution, StorageError};
use engine::{File, Io, Pool, SharedFile, Token};
use libc::iovec;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

const INLINE: u8 = 0;
const URING: u8 = 1;
const POOL: u8 = 2;

/// Chooses where calls run; changeable while they do.
pub(super) struct Executor {
    /// Read by every request.
    mode: AtomicU8,
    /// What `auto` means for this file.
    best: Execution,
    setting: RwLock<Setting>,
    /// What no worker waits for, whatever the mode.
    pub(super) jobs: Jobs,
}

struct Setting {
    asked: Execution,
    pool: Option<Pool>,
}

/// A transfer between buffers and a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write { durable: bool },
}

impl Executor {
    /// `memory`: calls do not wait, so nothing is gained by handing them elsewhere.
    pub(super) fn new(asked: Execution, memory: bool) -> Result<Executor, StorageError> {
        let executor = Executor {
            mode: AtomicU8::new(URING),
            best: if memory { Execution::Inline } else { Execution::Uring },
            setting: RwLock::new(Setting { asked: Execution::Auto, pool: None }),
            jobs: Jobs::on(&WORK),
        };
        executor.set(asked)?;
        Ok(executor)
    }

    /// What was asked for, and what it means.
    pub(super) fn get(&self) -> (Execution, Execution) {
        let asked = self.setting.read().unwrap_or_else(PoisonError::into_inner).asked;
        (asked, if asked == Execution::Auto { self.best } else { asked })
    }

    pub(super) fn set(&self, asked: Execution) -> Result<(), StorageError> {
        let chosen = if asked == Execution::Auto { self.best } else { asked };
        let (mode, pool) = match chosen {
            Execution::Inline => (INLINE, None),
            Execution::Uring | Execution::Auto => (URING, None),
            Execution::Pool(threads) => {
                let failed = |source| StorageError::Pool { execution: asked, source };
                (POOL, Some(Pool::new("file", threads).map_err(failed)?))
            }
        };
        let mut setting = self.setting.write().unwrap_or_else(PoisonError::into_inner);
        setting.asked = asked;
        let old = std::mem::replace(&mut setting.pool, pool);
        self.mode.store(mode, Ordering::Relaxed);
        drop(setting);
        // Joins the old threads once their work is done: here, where waiting delays no ring.
        drop(old);
        Ok(())
    }

    /// Whether calls run on the spot at this moment.
    pub(super) fn inline(&self) -> bool {
        self.mode.load(Ordering::Relaxed) == INLINE
    }

    /// Transfers; the result at once, or `None` when `token` will complete with it. `request_bytes` are those of the whole request,
    /// of which this may be a part: one that is large is not done on the spot part by part either.
    ///
    /// # Safety
    /// `buffers` and what they point to stay valid until the result is there.
    pub(super) unsafe fn transfer(
        &self,
        direction: Direction,
        file: &Arc<SharedFile>,
        buffers: &[iovec],
        (offset, request_bytes): (u64, u64),
        token: Token,
        io: &mut Io<'_>,
    ) -> Option<i32> {
        match self.mode.load(Ordering::Relaxed) {
            INLINE if request_bytes <= buffers::ON_THE_SPOT_MAX => {
                // SAFETY: promised by our caller.
                return Some(unsafe { transfer_now(direction, file.as_fd(), buffers, offset) });
            }
            INLINE => {
                // SAFETY: promised by our caller: the completion comes after the job.
                let job = unsafe { transfer_later(direction, file, buffers, offset) };
                self.jobs.run(io, token, job);
                return None;
            }
            POOL => {
                // SAFETY: as above.
                let job = unsafe { transfer_later(direction, file, buffers, offset) };
                if self.hand_over(job, token, io) {
                    return None;
                }
            }
            _ => {}
        }
        match direction {
            // SAFETY: promised by our caller.
            Direction::Read => unsafe { io.read(token, File::Shared(file), buffers, offset) },
            // SAFETY: promised by our caller.
            Direction::Write { durable } => unsafe { io.write(token, File::Shared(file), buffers, offset, durable) },
        }
        None
    }

    /// Brings completed writes to stable storage.
    pub(super) fn sync(&self, file: &Arc<SharedFile>, token: Token, io: &mut Io<'_>) -> Option<i32> {
        match self.mode.load(Ordering::Relaxed) {
            INLINE => return Some(sync_now(file)),
            POOL => {
                let file_there = file.clone();
                if self.hand_over(move || sync_now(&file_there), token, io) {
                    return None;
                }
            }
            _ => {}
        }
        io.sync(token, File::Shared(file), true);
        None
    }

    /// Gives a job to the pool, if there is one: it may have gone since the mode was read.
    fn hand_over(&self, job: impl FnOnce() -> i32 + Send + 'static, token: Token, io: &mut Io<'_>) -> bool {
        let setting = self.setting.read().unwrap_or_else(PoisonError::into_inner);
        let Some(pool) = &setting.pool else { return false };
        pool.run(io.reply(token), job);
        true
    }
}

fn last_errno() -> i32 {
    -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn sync_now(file: &SharedFile) -> i32 {
    rustix::fs::fdatasync(file).map_or_else(|errno| -errno.raw_os_error(), |()| 0)
}

/// [`transfer_now`] for another thread.
///
/// # Safety
/// `buffers` and what they point to stay in place until the job has run.
unsafe fn transfer_later(
    direction: Direction,
    file: &Arc<SharedFile>,
    buffers: &[iovec],
    offset: u64,
) -> impl FnOnce() -> i32 + Send + 'static {
    let (file, buffers) = (file.clone(), Lent::new(buffers));
    move || {
        // SAFETY: promised by our caller.
        unsafe { transfer_now(direction, file.as_fd(), buffers.list(), offset) }
    }
}

/// One call, like a completion's result: bytes, or a negated errno.
///
/// # Safety
/// What `buffers` point to is valid for the transfer.
pub(super) unsafe fn transfer_now(direction: Direction, fd: BorrowedFd<'_>, buffers: &[iovec], offset: u64) -> i32 {
    let (fd, list, count) = (fd.as_raw_fd(), buffers.as_ptr(), buffers.len() as i32);
    let offset = offset as libc::off_t;
    // libc and not rustix: rustix wants slices of buffers, and nobody may hold a reference to memory that a guest changes.
    // SAFETY: promised by our caller; lists are bounded to what one call takes.
    let moved = unsafe {
        match (direction, buffers) {
            (Direction::Read, [one]) => libc::pread(fd, one.iov_base, one.iov_len, offset),
            (Direction::Read, _) => libc::preadv(fd, list, count, offset),
            (Direction::Write { durable: false }, [one]) => libc::pwrite(fd, one.iov_base, one.iov_len, offset),
            (Direction::Write { durable: false }, _) => libc::pwritev(fd, list, count, offset),
            (Direction::Write { durable: true }, _) => libc::pwritev2(fd, list, count, offset, libc::RWF_DSYNC),
        }
    };
    // Linux moves at most 0x7ffff000 bytes a call.
    if moved < 0 { last_errno() } else { i32::try_from(moved).unwrap_or(i32::MAX) }
}
