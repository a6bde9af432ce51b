//! A filter under which a write waits until the old contents of its clusters are read, or saved.

use crate::JobError;
use crate::control::Control;
use crate::marks::Marks;
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard};
use engine::{Completion, Io, Reply, Token, monotonic_ns};
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use storage::kit::Through;
use storage::ways::COPY;
use storage::{Operation, Step, Storage, Task};

/// A guest's task.
struct Waiter {
    /// All that is guarded of its clusters lies in there.
    clusters: Range<u64>,
    /// Since when it waits, or was last got on with, in nanoseconds.
    since_ns: u64,
    reply: Reply,
}

/// A third of what Linux gives a disk.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Queue {
    /// Nobody waits any more, whatever is marked.
    is_over: bool,
    waiting: Vec<Waiter>,
    /// When the job read something last, in nanoseconds.
    read_ns: u64,
    /// Clusters of those that the job has not heard of.
    arrived: Vec<Range<u64>>,
}

/// Guards on clusters whose old contents are not read yet, and the tasks that wait for them.
///
/// A task that finds no guard goes on without a lock. One that finds a guard looks again under the queue's lock, and is in the queue
/// when it lets go of it. Guards are lifted first, and then the queue is searched under its lock: so whoever saw a guard is found.
pub(crate) struct Guards {
    marks: Marks,
    queue: Mutex<Queue>,
    /// Guards are about to be lifted though nothing was read, and guests go on whatever is marked.
    is_over: AtomicBool,
    /// How long a guest waits for a job that reads nothing, before it is the job that fails.
    patience_ns: AtomicU64,
    pub(crate) control: Control,
}

impl Guards {
    /// On these clusters.
    pub(crate) fn new(marks: Marks) -> Guards {
        let control = Control::new(marks.marked_bytes());
        let patience_ns = AtomicU64::new(PATIENCE.as_nanos() as u64);
        Guards { marks, queue: Mutex::default(), is_over: AtomicBool::new(false), patience_ns, control }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clusters that were asked for since the last call.
    pub(crate) fn arrived(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.queue().arrived)
    }

    /// The old contents of these bytes are read.
    pub(crate) fn lift(&self, bytes: &Range<u64>) {
        self.marks.clear(self.marks.clusters(bytes.start, bytes.end - bytes.start));
        let mut queue = self.queue();
        let now_ns = monotonic_ns();
        queue.read_ns = now_ns;
        let is_free = |waiter: &mut Waiter| match self.marks.first(&waiter.clusters) {
            // What is free in front of it is not looked at again, and it gets on: who writes a lot at once waits for longer.
            Some(first) => {
                if first > waiter.clusters.start {
                    (waiter.clusters.start, waiter.since_ns) = (first, now_ns);
                }
                false
            }
            None => true,
        };
        let free: Vec<Waiter> = queue.waiting.extract_if(.., is_free).collect();
        // A worker is told without the lock.
        drop(queue);
        free.into_iter().for_each(|waiter| waiter.reply.complete(0));
    }

    /// There will be no copy: guests go on, those that wait and those that come.
    pub(crate) fn lift_all(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let mut queue = self.queue();
        queue.is_over = true;
        let waiting = std::mem::take(&mut queue.waiting);
        queue.arrived.clear();
        drop(queue);
        self.marks.clear(self.marks.all());
        waiting.into_iter().for_each(|waiter| waiter.reply.complete(0));
    }

    /// When a guest will have waited for too long.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let queue = self.queue();
        let patience_ns = self.patience_ns.load(Ordering::Relaxed);
        // A job that gets on is given twice the time: what it reads may all be something else.
        let since_ns = |waiter: &Waiter| {
            let read_ns = queue.read_ns.min(waiter.since_ns.saturating_add(patience_ns));
            waiter.since_ns.max(read_ns)
        };
        queue.waiting.iter().map(since_ns).min().map(|since_ns| since_ns.saturating_add(patience_ns))
    }

    pub(crate) fn set_patience(&self, patience: Duration) {
        self.patience_ns.store(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// # Errors
    /// That is so.
    pub(crate) fn check_patience(&self) -> Result<(), JobError> {
        let now_ns = monotonic_ns();
        if self.deadline_ns().is_none_or(|deadline_ns| now_ns < deadline_ns) {
            return Ok(());
        }
        let longest_ns = self.queue().waiting.iter().map(|waiter| now_ns.saturating_sub(waiter.since_ns)).max();
        Err(JobError::Slow { ms: longest_ns.unwrap_or(0) / 1_000_000 })
    }

    /// Bytes of the disk.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.marks.size_bytes()
    }

    /// Whether some of these bytes are guarded.
    pub(crate) fn has_some(&self, offset: u64, len: u64) -> bool {
        self.marks.first(&self.marks.clusters(offset, len)).is_some()
    }

    /// The first of these bytes that are not guarded.
    pub(crate) fn unguarded(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let mut clusters = self.marks.clusters(bytes.start, bytes.end.saturating_sub(bytes.start));
        while let Some(guarded) = self.marks.run(&clusters).filter(|guarded| guarded.start == clusters.start) {
            clusters.start = guarded.end;
        }
        clusters.end = self.marks.first(&clusters).unwrap_or(clusters.end);
        let found = self.marks.bytes(&clusters);
        (!clusters.is_empty()).then(|| found.start.max(bytes.start)..found.end.min(bytes.end))
    }

    /// Whether guards were lifted, or are about to be, though nothing was read. A guest that goes on by that does so after it is said.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    #[cfg(test)]
    pub(crate) fn count_waiting(&self) -> usize {
        self.queue().waiting.len()
    }

    /// Clusters that the task is about to change, if some are guarded.
    fn guarded(&self, task: &Task) -> Option<Range<u64>> {
        match task.operation {
            Operation::Read { .. } | Operation::Flush => None,
            Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                let (offset, len) = task.extent();
                let clusters = self.marks.clusters(offset, len);
                self.marks.first(&clusters).map(|first| first..clusters.end)
            }
        }
    }

    /// Has the task wait for the clusters. False where there is nothing to wait for any more.
    pub(crate) fn wait(&self, clusters: Range<u64>, token: Token, io: &mut Io<'_>) -> bool {
        let mut queue = self.queue();
        if queue.is_over || self.marks.first(&clusters).is_none() {
            return false;
        }
        queue.arrived.push(clusters.clone());
        queue.waiting.push(Waiter { clusters, since_ns: monotonic_ns(), reply: io.reply_by(COPY, token) });
        drop(queue);
        self.control.ring();
        true
    }
}

/// The job is over, by whatever way: no guest waits any more.
pub(crate) struct Lifted<'a>(pub(crate) &'a Guards);

impl Drop for Lifted<'_> {
    fn drop(&mut self) {
        self.0.lift_all();
    }
}

/// Whether a task waits, or is the disk's.
#[derive(Default)]
struct Waiting(bool);

impl storage::Progress for Waiting {}

/// See the module.
pub(crate) struct Before {
    below: Arc<dyn Storage>,
    guards: Arc<Guards>,
}

impl Before {
    pub(crate) fn new(below: Arc<dyn Storage>, guards: Arc<Guards>) -> Before {
        Before { below, guards }
    }
}

impl Through for Before {
    fn below(&self) -> &dyn Storage {
        &*self.below
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let guarded = self.guards.guarded(task);
        if guarded.is_some() && matches!(task.operation, Operation::Discard { .. }) {
            // It may be for the whole disk, and nobody needs it: what it was for stays as it is.
            return Step::Done(task.check(self.below.capacity_bytes(), false).map(|_| ()));
        }
        if let Some(clusters) = guarded
            && self.guards.wait(clusters, token, io)
        {
            task.state.of::<Waiting>().0 = true;
            return Step::Pending;
        }
        // Whoever reads what this changes, and looks for the guard then, finds it lifted (`Guards::saved`).
        fence(Ordering::Release);
        self.below.start(task, token, io)
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        // Below, nothing of the task was started. However the wait has ended, it has: the guest's operation does not fail by it.
        let has_waited = task.state.get::<Waiting>().is_some_and(|waiting| std::mem::take(&mut waiting.0));
        if has_waited {
            fence(Ordering::Release);
            return self.below.start(task, completion.token, io);
        }
        self.below.resume(task, completion, io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::CLUSTER_BYTES;
    use engine::Solo;

    #[test]
    fn a_guest_waits_for_twice_the_patience_however_well_the_job_gets_on_elsewhere() {
        let guards = Guards::new(Marks::new(1 << 20, true));
        guards.set_patience(Duration::from_secs(10));
        let mut solo = Solo::new().unwrap();
        let since_ns = monotonic_ns();
        let reply = solo.io().reply(Token::request(0));
        guards.queue().waiting.push(Waiter { clusters: 0..3, since_ns, reply });
        let deadline_s = |guards: &Guards| (guards.deadline_ns().unwrap() - since_ns) / 1_000_000_000;
        assert_eq!(deadline_s(&guards), 10);
        guards.lift(&(CLUSTER_BYTES..2 * CLUSTER_BYTES));
        assert_eq!(deadline_s(&guards), 10);
        for (read_s, waits_s) in [(4, 14), (9, 19), (10, 20), (300, 20)] {
            guards.queue().read_ns = since_ns + read_s * 1_000_000_000;
            assert_eq!(deadline_s(&guards), waits_s);
        }
        // What it waits for itself is another matter.
        guards.queue().waiting[0].since_ns = 0;
        guards.lift(&(0..CLUSTER_BYTES));
        assert_eq!(guards.queue().waiting[0].clusters, 2..3);
        assert!(guards.deadline_ns().unwrap() > since_ns + 10_000_000_000);
        guards.lift(&(2 * CLUSTER_BYTES..3 * CLUSTER_BYTES));
        assert_eq!(guards.deadline_ns(), None);
        assert_eq!(solo.wait().unwrap().result, 0);
    }
}
