//! How many syncs of an export go by io_uring at one time.
//!
//! Each occupies a thread of the kernel's until the disk has answered, and a worker's io_uring has four for each processor
//! (io_uring_register(2), IORING_REGISTER_IOWQ_MAX_WORKERS), for all that it serves. An export has half of them, and what is
//! beyond is left to its own threads. With a quarter, 16 files that were synced at once on a quick disk and two processors had a
//! third fewer syncs a second than without a bound, with half a sixth; one file at a time has as many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Syncs of one export that go by io_uring.
#[derive(Clone)]
pub(crate) struct Syncs {
    count: Arc<AtomicUsize>,
    most: usize,
}

/// Half of what there is for each processor.
const FOR_EACH_PROCESSOR: usize = 2;

impl Default for Syncs {
    fn default() -> Syncs {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Syncs { count: Arc::default(), most: processors * FOR_EACH_PROCESSOR }
    }
}

impl Syncs {
    /// One more, unless there are as many as may be.
    pub(crate) fn begin(&self) -> Option<Syncing> {
        let room = |count| (count < self.most).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(Syncing(Arc::clone(&self.count)))
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Syncing(Arc<AtomicUsize>);

impl Drop for Syncing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_its_part_of_them_and_no_more() {
        let syncs = Syncs { most: 3, ..Syncs::default() };
        let rings = [syncs.clone(), syncs.clone()];
        let begun: Vec<_> = rings.iter().cycle().map_while(Syncs::begin).collect();
        assert_eq!(begun.len(), 3);
        drop(begun);
        assert!(syncs.begin().is_some() && Syncs::default().most > 0);
    }
}
