//! A disk's ring, on memory; requests end at once or later, in any order.

use super::guest::{Played, play, token_at};
use crate::attachment::Attachment;
use crate::disk::{DiskRing, Terms};
use crate::label::Label;
use device::blk::{DiscardLimits, Limits, WriteZeroesLimits};
use engine::{Completion, Io, Token};
use std::sync::{Arc, Mutex, PoisonError};
use storage::kit::Through;
use storage::{MemoryOptions, MemoryStorage, Step, Storage, Task};

/// Bytes of the disk: ranges in it are zeroed on the spot.
const CAPACITY: u64 = 32 << 10;

thread_local! {
    /// Made once for all inputs. What they write to it they alone read.
    static CONTENTS: Option<Arc<MemoryStorage>> = MemoryStorage::open(&MemoryOptions {
        size: Some(values::ByteSize(CAPACITY)),
        ..MemoryOptions::default()
    }).ok().map(Arc::new);
}

/// Plays one input and returns how many requests were answered.
///
/// Layout of `data`: options (1), steps. Bit 0 of the options lets requests wait until a step completes them, bit 1 is
/// EVENT_IDX, bit 2 makes the disk read-only, bit 3 makes every write durable.
///
/// # Panics
/// When a request is lost or answered twice; that is what the fuzzer looks for.
pub fn disk(data: &[u8]) -> usize {
    let Some(contents) = CONTENTS.with(Clone::clone) else {
        return 0;
    };
    play(data, |start, options| {
        let late = options & 1 != 0;
        let storage = Arc::new(Late { contents, late, waiting: Mutex::default() });
        let limits = Limits {
            capacity_bytes: CAPACITY,
            read_only: options & 4 != 0,
            discard: Some(DiscardLimits { max_sectors: 64, max_segments: 4, alignment_bytes: 512 }),
            write_zeroes: Some(WriteZeroesLimits { max_sectors: 64, max_segments: 4, may_unmap: true }),
        };
        let terms = Terms { limits, write_through: options & 8 != 0, serial: *b"a disk of the fuzzer" };
        let ring = DiskRing::new(start, terms, storage.clone(), Label::of_nobody()).ok()?;
        Some(Disk { ring, storage })
    })
}

struct Disk {
    ring: DiskRing,
    storage: Arc<Late>,
}

impl Played for Disk {
    fn ring(&self) -> &dyn Attachment {
        &self.ring
    }

    fn ring_mut(&mut self) -> &mut dyn Attachment {
        &mut self.ring
    }

    fn choose(&mut self, choice: u8) -> Option<Token> {
        let mut waiting = self.storage.waiting();
        token_at(&waiting, choice).map(|at| waiting.swap_remove(at))
    }

    fn waiting(&self) -> Option<usize> {
        Some(self.storage.waiting().len())
    }
}

/// Memory whose operations may end later than they could.
struct Late {
    contents: Arc<MemoryStorage>,
    late: bool,
    waiting: Mutex<Vec<Token>>,
}

impl Late {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Token>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Through for Late {
    fn below(&self) -> &dyn Storage {
        &*self.contents
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        if !self.late {
            return self.contents.start(task, token, io);
        }
        self.waiting().push(token);
        Step::Pending
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.contents.start(task, completion.token, io)
    }
}
