//! The dirty log that the frontend of one session shows (SET_LOG_BASE): checked and mapped. What is marked in it is `vring`'s.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, fstat};
use vhost::vhost_user::message::VhostUserLog;
use vring::{DirtyLog, Mapping, Memory};

use crate::memory::{page_bytes, span};
use crate::refusal::Refusal;

/// A log that a session uses, as another program needs it to go on with the session.
#[derive(Debug)]
pub struct LogState {
    /// Its length, in bytes: one bit for each page of 4 KiB from guest address 0 on.
    pub bytes: u64,
    /// Where in the file it begins, in bytes.
    pub file_offset: u64,
    /// The file, shared as that of a [region](crate::RegionState).
    pub file: Arc<OwnedFd>,
}

/// The log of one session.
#[derive(Debug)]
pub(crate) struct Log {
    state: LogState,
    log: Arc<DirtyLog>,
}

impl Log {
    /// SET_LOG_BASE: the log that `shown` describes.
    pub(crate) fn map(shown: &VhostUserLog, file: OwnedFd) -> Result<Log, Refusal> {
        Log::restored(LogState { bytes: shown.mmap_size, file_offset: shown.mmap_offset, file: file.into() })
    }

    /// The log that [`Log::state`] described.
    ///
    /// A frontend that shortens the file later breaks the rings that meet the hole, and nothing else.
    pub(crate) fn restored(state: LogState) -> Result<Log, Refusal> {
        let LogState { bytes, file_offset, .. } = state;
        let failed = |error: rustix::io::Errno| Refusal::LogMap(error.into());
        let stat = fstat(&state.file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Refusal::LogFile);
        }
        let room = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(file_offset);
        let short = || Refusal::LogFileSize { bytes, file_offset, room };
        if bytes > room {
            return Err(short());
        }
        let (map_start, map_len, start) = page_bytes(&state.file)
            .map(|page| span(file_offset, file_offset.saturating_add(bytes), page))
            .map_err(Refusal::LogMap)?
            .ok_or_else(short)?;
        let mapping = Mapping::shared(&state.file, map_start, map_len).map_err(Refusal::LogMap)?;
        let bytes = usize::try_from(bytes).map_err(|_| short())?;
        let log = DirtyLog::new(mapping, start, bytes).map_err(|_| short())?;
        Ok(Log { state, log: Arc::new(log) })
    }

    /// What another program needs to map the same log.
    pub(crate) fn state(&self) -> LogState {
        let LogState { bytes, file_offset, file } = &self.state;
        LogState { bytes: *bytes, file_offset: *file_offset, file: file.clone() }
    }

    /// Where rings mark.
    pub(crate) fn log(&self) -> &Arc<DirtyLog> {
        &self.log
    }

    /// Whether it has a bit for every page of the memory.
    pub(crate) fn check_memory(&self, memory: &Memory) -> Result<(), Refusal> {
        let beyond = memory.regions().iter().find(|region| !self.log.covers(region.guest_addr, region.len));
        match beyond {
            None => Ok(()),
            Some(region) => {
                let last = region.guest_addr + (region.len - 1);
                Err(Refusal::LogSize { bytes: self.state.bytes, last })
            }
        }
    }

    /// Whether it has a bit for every page of a used ring of `bytes` bytes that is logged at `guest_addr`.
    pub(crate) fn check_used_ring(&self, guest_addr: u64, bytes: u64) -> Result<(), Refusal> {
        if self.log.covers(guest_addr, bytes) {
            return Ok(());
        }
        Err(Refusal::LogSize { bytes: self.state.bytes, last: guest_addr.saturating_add(bytes - 1) })
    }
}
