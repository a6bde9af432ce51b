//! A guest that is moved while its ring is played: each page that the ring changes has to be marked when the ring rests.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vring::{DirtyLog, LOG_PAGE_BYTES, Mapping, Memory, RingLog};

/// Enough for the guest's memory.
const LOG_BYTES: usize = 64;

pub(super) struct Moved {
    file: OwnedFd,
    log: RingLog,
    /// Pages that the ring has changed.
    changed: BTreeSet<u64>,
}

impl Moved {
    /// `None` where the system has no memory for the log.
    pub(super) fn new(memory: &Memory, used: u64) -> Option<Moved> {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, LOG_BYTES as u64).ok()?;
        let mapping = Mapping::shared(&file, 0, LOG_BYTES).ok()?;
        let log = Arc::new(DirtyLog::new(mapping, 0, LOG_BYTES).ok()?);
        assert!(memory.regions().iter().all(|region| log.covers(region.guest_addr, region.len)));
        Some(Moved { file, log: RingLog { log, used: Some(used) }, changed: BTreeSet::new() })
    }

    pub(super) fn log(&self) -> RingLog {
        self.log.clone()
    }

    /// Notes the pages that `act` changes, on this thread or another that it waits for.
    pub(super) fn watch(&mut self, memory: &Memory, act: impl FnOnce()) {
        let before = pages(memory);
        act();
        let after = pages(memory);
        let changed = before.into_iter().zip(after).filter(|(before, after)| before != after);
        self.changed.extend(changed.map(|((page, _), _)| page));
    }

    /// The ring rests.
    pub(super) fn check(&self) {
        let mut bits = [0; LOG_BYTES];
        let read = rustix::io::pread(&self.file, &mut bits, 0);
        assert_eq!(read, Ok(LOG_BYTES));
        let is_marked = |page: &u64| bits[(page / 8) as usize] >> (page % 8) & 1 != 0;
        let missing: Vec<_> = self.changed.iter().filter(|page| !is_marked(page)).collect();
        assert!(missing.is_empty(), "pages {missing:x?} were written and are not marked");
    }
}

/// Each page's number and content.
fn pages(memory: &Memory) -> Vec<(u64, Vec<u8>)> {
    let page = |at: u64| {
        let (start, bytes) = memory.translate(at, LOG_PAGE_BYTES, &mut 0).expect("a page of a region");
        let mut copy = vec![0; bytes as usize];
        // SAFETY: `translate` found so many bytes, and the copy is ours.
        unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), copy.as_mut_ptr(), copy.len()) };
        (at / LOG_PAGE_BYTES, copy)
    };
    let starts = memory
        .regions()
        .iter()
        .flat_map(|region| (region.guest_addr..region.guest_addr + region.len).step_by(LOG_PAGE_BYTES as usize));
    starts.map(page).collect()
}
