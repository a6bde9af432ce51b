//! A filter that remembers which clusters were written.

use crate::control::Control;
use crate::marks::Marks;
use crate::sync::AtomicBool;
use engine::{Completion, Io, Token};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use storage::kit::Through;
use storage::{Operation, Step, Storage, StorageError, Task};

/// Clusters in which the copy may differ from the disk, and the job that copies them.
pub(crate) struct Dirt {
    pub(crate) marks: Marks,
    /// The job sleeps for want of dirt. Whoever makes some takes this, and wakes it.
    is_asleep: AtomicBool,
    pub(crate) control: Control,
}

impl Dirt {
    /// Everywhere or nowhere.
    pub(crate) fn new(size_bytes: u64, everywhere: bool) -> Dirt {
        let control = Control::new(size_bytes);
        Dirt { marks: Marks::new(size_bytes, everywhere), is_asleep: AtomicBool::new(false), control }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.marks.first(&self.marks.all()).is_none()
    }

    /// Something was written there.
    pub(crate) fn add(&self, offset: u64, len: u64) {
        // Before the marks are looked at, for the reason given where they are claimed: one that is seen here is claimed later, and the
        // job reads what was written.
        fence(Ordering::SeqCst);
        if !self.marks.set(self.marks.clusters(offset, len)) {
            // Who has set them wakes the job.
            return;
        }
        // Against the job's fence: either it is seen to sleep here, or it sees the marks and does not.
        fence(Ordering::SeqCst);
        // Only the first of many guests rings: the bell has a lock and a system call behind it.
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            self.control.ring();
        }
    }

    /// Runs `sleep`, from which dirt wakes. The bell is armed. False, without sleep, if there is dirt now.
    pub(crate) fn while_clean(&self, sleep: impl FnOnce()) -> bool {
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_clean = self.is_clean();
        if is_clean {
            sleep();
        }
        self.is_asleep.store(false, Ordering::Relaxed);
        is_clean
    }
}

/// See the module.
pub(crate) struct After {
    below: Arc<dyn Storage>,
    dirt: Arc<Dirt>,
}

impl After {
    pub(crate) fn new(below: Arc<dyn Storage>, dirt: Arc<Dirt>) -> After {
        After { below, dirt }
    }

    /// A write that has failed may have changed something, too.
    fn ended(&self, task: &Task, step: Step) -> Step {
        let is_change = !matches!(task.operation, Operation::Read { .. } | Operation::Flush);
        if is_change && matches!(step, Step::Done(_)) {
            let (offset, len) = task.extent();
            self.dirt.add(offset, len);
        }
        step
    }
}

impl Through for After {
    fn below(&self) -> &dyn Storage {
        &*self.below
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let step = self.below.start(task, token, io);
        self.ended(task, step)
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let step = self.below.resume(task, completion, io);
        self.ended(task, step)
    }

    /// The job does not sleep through it.
    fn resize_through(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let result = self.below.resize(capacity_bytes);
        self.dirt.control.ring();
        result
    }
}
