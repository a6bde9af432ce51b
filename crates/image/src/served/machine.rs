//! The stages of a task: what comes after which completion.
//!
//! A task has one thing under way at a time: something in a file, which a task of its own follows (`sub`), a job on another thread,
//! or its place in a line. Where metadata is memory, jobs run on the spot and the task goes on at once.

use super::Qcow2Storage;
use super::disk;
use super::error::Trouble;
use super::progress::{Brought, Gift, Job, Parts, Qcow2Progress, Stage, Sub, Writes};
use super::shared::Shared;
use engine::{Completion, Io, Token};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use storage::kit::range;
use storage::{Action, Operation, Step, Storage, StorageError, Task};

/// Runs in limbo from which on a flush frees them: each is counted down and punched, and the flush waits for that. Tests, whose
/// images are small, want to see it happen.
const LIMBO_RUNS: usize = if cfg!(test) { 1 } else { 32 };

/// Most steps that a task takes without letting others have the worker: with small clusters and no tables a discard has millions.
const STEPS_MAX: u32 = 4096;

/// What a step leads to.
pub(super) enum Flow {
    /// The stage says what comes next.
    Again,
    /// A completion will come.
    Pending,
    /// The task has ended.
    Done(Result<(), i32>),
}

impl Qcow2Storage {
    pub(super) fn begin(&self, task: &mut Task, token: Token, io: &mut Io<'_>, writes: Writes) -> Step {
        let action = task.operation.action();
        if let Err(error) = task.check(self.capacity_bytes(), self.shared.read_only()) {
            return Step::Done(Err(error));
        }
        if action != Action::Read
            && (action != Action::Flush || self.shared.chain.is_unflushed())
            && let Some(reason) = self.shared.broken()
        {
            return Step::Done(Err(StorageError::Failed { action, reason: reason.to_owned() }));
        }
        let operation = task.operation;
        let progress = task.state.of::<Qcow2Progress>();
        progress.reset();
        progress.writes = writes;
        if !self.shared.read_only() && action != Action::Flush {
            progress.inside = Some(self.shared.epochs.enter());
        }
        let mut parts = Parts { operation, buffers: &mut task.buffers, progress, token, io, shared: &self.shared };
        // What fills a gap changes nothing that is read.
        let changes = !matches!(action, Action::Read | Action::Flush) && writes == Writes::All;
        if changes && self.shared.bitmaps.are_marked() {
            let (start, len) = parts.extent();
            self.shared.bitmaps.mark(start..start + len);
        }
        if action == Action::Flush {
            parts.progress.stage = Stage::Cover;
        } else if action != Action::Read && self.shared.must_clear() {
            let flow = parts.job(Job::Ready, |shared| shared.make_ready().map(|()| Gift::Nothing));
            return self.follow(parts, flow);
        }
        self.follow(parts, Flow::Again)
    }

    pub(super) fn proceed(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let operation = task.operation;
        let progress = task.state.of::<Qcow2Progress>();
        let token = completion.token;
        let mut parts = Parts { operation, buffers: &mut task.buffers, progress, token, io, shared: &self.shared };
        let flow = match parts.progress.stage {
            Stage::Sub(sub, file) => {
                let files = &self.shared.chain.files;
                let step = files[file].resume(&mut parts.progress.sub, completion, parts.io);
                parts.sub_went(sub, step)
            }
            Stage::Job(job) => {
                let brought = parts.progress.brought.take();
                let brought = brought.and_then(|cell| cell.lock().unwrap_or_else(PoisonError::into_inner).take());
                // Nothing: the job's thread is gone.
                parts.job_ended(job, brought.unwrap_or(Err(Trouble::Errno(libc::EIO))))
            }
            Stage::Line if completion.result >= 0 => {
                parts.progress.stage = Stage::Look;
                Flow::Again
            }
            Stage::Line => Flow::Done(Err(-completion.result)),
            stage => {
                debug_assert!(false, "{completion:?} for a task that is at {stage:?}");
                Flow::Done(Err(libc::EIO))
            }
        };
        self.follow(parts, flow)
    }

    fn follow(&self, mut parts: Parts<'_, '_>, mut flow: Flow) -> Step {
        parts.progress.steps = 0;
        loop {
            parts.progress.steps += 1;
            flow = match flow {
                Flow::Pending => return Step::Pending,
                Flow::Again if parts.progress.steps >= STEPS_MAX => {
                    // Others wait for this worker.
                    let stage = parts.progress.stage;
                    parts.elsewhere(Job::Yield, move |_| Ok(Gift::Stage(stage)))
                }
                Flow::Done(outcome) => return parts.finish(outcome),
                Flow::Again => match parts.progress.stage {
                    Stage::Look => parts.look(),
                    Stage::Link => parts.link(),
                    Stage::Cover => parts.cover(),
                    Stage::End => Flow::Done(Ok(())),
                    stage => {
                        debug_assert!(false, "a task goes on that is at {stage:?}");
                        Flow::Done(Err(libc::EIO))
                    }
                },
            };
        }
    }
}

impl Parts<'_, '_> {
    fn finish(&mut self, outcome: Result<(), i32>) -> Step {
        let progress = &mut *self.progress;
        progress.plan = None;
        progress.claim = None;
        progress.inside = None;
        progress.stage = Stage::Idle;
        let action = self.operation.action();
        // Somebody else was told that the kernel could not write something, and nobody is told twice.
        let outcome = if self.operation.is_durable() && self.shared.chain.is_unflushed() {
            outcome.and(Err(libc::EIO))
        } else {
            outcome
        };
        Step::Done(outcome.map_err(|errno| StorageError::errno(action, errno)))
    }

    /// Starts `sub.operation` of the file; its buffers are filled.
    pub(super) fn start(&mut self, sub: Sub, file: usize, operation: Operation) -> Flow {
        self.progress.sub.begin(operation);
        self.progress.stage = Stage::Sub(sub, file);
        let step = self.shared.chain.files[file].start(&mut self.progress.sub, self.token, self.io);
        self.sub_went(sub, step)
    }

    fn sub_went(&mut self, sub: Sub, step: Step) -> Flow {
        let Step::Done(result) = step else { return Flow::Pending };
        if let Err(error) = result {
            let errno = error.raw_errno();
            let flushes = match sub {
                Sub::Move(bytes) if matches!(errno, libc::ENOSPC | libc::EDQUOT) => {
                    return self.move_again(bytes, errno);
                }
                Sub::Move(_) => self.progress.sub.operation.is_durable() && errno != libc::EFBIG,
                Sub::Barrier | Sub::Cover | Sub::CoverData => true,
                // For another reason than the first time: what that was about nobody knows.
                Sub::Again => !matches!(errno, libc::ENOSPC | libc::EDQUOT),
                Sub::Data => false,
            };
            if flushes {
                self.shared.chain.flush_has_failed(errno);
            }
            return Flow::Done(Err(errno));
        }
        let progress = &mut *self.progress;
        progress.stage = match sub {
            Sub::Move(bytes) => {
                progress.done += bytes;
                Stage::Look
            }
            Sub::Data if progress.plan.as_ref().is_some_and(|plan| plan.barrier) => {
                progress.sub.buffers.clear();
                let file = self.shared.chain.top().data;
                return self.start(Sub::Barrier, file, Operation::Flush);
            }
            Sub::Again => {
                // There is room: what found none was written before, and answered. Or room has come meanwhile, which nobody can tell.
                self.shared.chain.flush_has_failed(libc::ENOSPC);
                return Flow::Done(Err(libc::EIO));
            }
            Sub::Data | Sub::Barrier => Stage::Link,
            Sub::CoverData => {
                let file = self.shared.chain.top().file;
                return self.start(Sub::Cover, file, Operation::Flush);
            }
            Sub::Cover => {
                self.shared.has_flushed(progress.covers);
                return self.covered();
            }
        };
        Flow::Again
    }

    /// There was no room for a write, or for what others had written before and a durable write had to bring to stable storage: whether
    /// the write itself finds room tells.
    fn move_again(&mut self, bytes: u64, errno: i32) -> Flow {
        let again = match self.progress.sub.operation {
            Operation::Write { offset, durable: true } => Operation::Write { offset, durable: false },
            Operation::WriteZeroes { offset, len, unmap, durable: true } => {
                Operation::WriteZeroes { offset, len, unmap, durable: false }
            }
            _ => return Flow::Done(Err(errno)),
        };
        self.progress.sub.buffers.clear();
        if matches!(again, Operation::Write { .. }) {
            range(self.buffers, self.progress.done, bytes, &mut self.progress.sub.buffers);
        }
        self.start(Sub::Again, self.shared.chain.top().data, again)
    }

    /// Has another thread do what blocks; or does it here, where nothing blocks.
    pub(super) fn job(&mut self, job: Job, work: impl FnOnce(&Shared) -> Brought + Send + 'static) -> Flow {
        if self.shared.on_the_spot.load(Ordering::Relaxed) {
            let brought = run(self.shared, work);
            return self.job_ended(job, brought);
        }
        self.elsewhere(job, work)
    }

    /// Has another thread do what takes long.
    pub(super) fn elsewhere(&mut self, job: Job, work: impl FnOnce(&Shared) -> Brought + Send + 'static) -> Flow {
        let cell = Arc::new(Mutex::new(None));
        self.progress.brought = Some(cell.clone());
        self.progress.stage = Stage::Job(job);
        let shared = self.shared.clone();
        self.shared.jobs.run_elsewhere(self.io.reply(self.token), move || {
            let mut brought = run(&shared, work);
            if let Err(trouble) = &brought
                && !matches!(trouble, Trouble::Grown)
            {
                brought = Err(Trouble::Errno(shared.settle_trouble(trouble)));
            }
            *cell.lock().unwrap_or_else(PoisonError::into_inner) = Some(brought);
            0
        });
        Flow::Pending
    }

    fn job_ended(&mut self, job: Job, brought: Brought) -> Flow {
        let gift = match brought {
            Ok(gift) => gift,
            Err(Trouble::Grown) => {
                self.progress.stage = Stage::Look;
                return Flow::Again;
            }
            Err(Trouble::Errno(libc::ENOSPC)) if job == Job::Prepare && !self.progress.made_room => {
                // What a guest has freed may rest because it has not flushed. Nor may this task keep it: it is outside meanwhile.
                self.progress.made_room = true;
                self.progress.inside = None;
                return self.job(Job::Room, |shared| shared.settle_all().map(|()| Gift::Nothing));
            }
            Err(trouble) => return Flow::Done(Err(self.shared.settle_trouble(&trouble))),
        };
        let progress = &mut *self.progress;
        progress.stage = match job {
            Job::Ready | Job::Load => Stage::Look,
            Job::Fill(bytes) => {
                progress.done += bytes;
                Stage::Look
            }
            Job::Prepare | Job::Find => match gift {
                Gift::Plan(plan) => return self.prepared(plan),
                Gift::Piece(piece, len) => return self.read_piece(piece, len),
                Gift::Nothing | Gift::Stage(_) => return Flow::Done(Err(libc::EIO)),
            },
            Job::Link(bytes) | Job::Unmap(bytes) => {
                progress.done += bytes;
                progress.claim = None;
                progress.owes_flush = true;
                // Nothing that was looked up is used any more: what is freed next need not wait for all that the task does.
                progress.inside = None;
                progress.inside = Some(self.shared.epochs.enter());
                Stage::Look
            }
            Job::Room => {
                progress.inside = Some(self.shared.epochs.enter());
                Stage::Look
            }
            Job::Settle => Stage::End,
            Job::Yield => match gift {
                Gift::Stage(stage) => stage,
                _ => return Flow::Done(Err(libc::EIO)),
            },
            Job::Mark => return Flow::Done(Err(libc::EIO)),
        };
        Flow::Again
    }

    /// Says what is wrong, and marks the image: elsewhere, because that writes.
    pub(super) fn trouble(&mut self, trouble: Trouble) -> Flow {
        match trouble {
            Trouble::Errno(errno) => Flow::Done(Err(errno)),
            format => self.job(Job::Mark, move |_| Err(format)),
        }
    }

    pub(super) fn load(&mut self, guest: u64) -> Flow {
        self.job(Job::Load, move |shared| shared.chain.load(0, guest).map(|()| Gift::Nothing))
    }

    fn link(&mut self) -> Flow {
        let Some(plan) = self.progress.plan.take() else { return Flow::Done(Err(libc::EIO)) };
        let bytes = plan.write.end - plan.write.start;
        self.job(Job::Link(bytes), move |shared| shared.link(plan).map(|()| Gift::Nothing))
    }

    /// Brings to stable storage what is done.
    fn cover(&mut self) -> Flow {
        self.progress.covers = self.shared.changes();
        self.progress.sub.buffers.clear();
        let top = self.shared.chain.top();
        if top.data == top.file {
            return self.start(Sub::Cover, top.file, Operation::Flush);
        }
        self.start(Sub::CoverData, top.data, Operation::Flush)
    }

    fn covered(&mut self) -> Flow {
        self.progress.stage = Stage::End;
        let many = self.shared.try_allocator().is_some_and(|allocator| {
            // Of writes that found no room long runs come back.
            allocator.in_limbo() >= LIMBO_RUNS || allocator.is_overfull(&self.shared.chain)
        });
        if !many || self.shared.is_broken() {
            return Flow::Again;
        }
        self.job(Job::Settle, |shared| shared.settle_unless_busy().map(|()| Gift::Nothing))
    }
}

/// Does a job, once its thread can: what could not even be tried has changed nothing.
fn run(shared: &Shared, work: impl FnOnce(&Shared) -> Brought) -> Brought {
    disk::prepare()?;
    work(shared)
}
