//! A process as its record's file sees it: it writes down what it does there, dies when it is told to, and its file system fails.
//! All processes of a file write on one tape, in their order.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::ValueEnum;
use serde::Serialize;
use storage::{RecordStep, RecordWitness};

use super::state::May;
use crate::rng::Rng;

/// Bytes of what a file is made with: both slots at once.
const MADE_BYTES: usize = 16 << 10;

/// A step of the record's that can be left out, to see that it is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(in crate::powercut) enum Missing {
    /// A record is synced before anybody is told.
    StoreSync,
    /// The record before goes over one that could not be stored.
    Undo,
    /// What is found when the file is opened is written again: a sync of it may have failed.
    OpenWrite,
    /// It is written into the other slot, too: parts of a record may be there.
    OpenCopy,
    /// It is synced: nobody may have come to that.
    OpenSync,
    /// A new file is synced.
    MakeSync,
    /// Its name is.
    NameSync,
    /// The name of a file without a record is synced by whoever opens it: nobody may have come to that.
    OpenNameSync,
}

impl Missing {
    /// Whether a kernel's file system can show that it is missing: there nothing fails, and ext4 stores the name of a file with it.
    pub(in crate::powercut) fn shows_on_device(self) -> bool {
        matches!(self, Missing::StoreSync | Missing::OpenCopy | Missing::OpenSync)
    }
}

/// What was done to the file or its name.
#[derive(Clone, Debug)]
pub(super) enum Done {
    Made,
    Removed,
    Wrote { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
    Synced,
    SyncFailed,
    NameSynced,
}

/// One event.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Of the file.
    Done(Done),
    /// From then on this may be there after a cut.
    May(May),
}

/// Tells somebody else the number of an event, at the moment at which it happens.
type Mark = Box<dyn Fn(u32) -> io::Result<()> + Send + Sync>;

/// All events.
#[derive(Default)]
pub(super) struct Tape {
    events: Mutex<Vec<Event>>,
    /// If it is real what becomes of the file: who is told when something else may be there.
    mark: Option<Mark>,
    /// Why that failed.
    unmarked: Mutex<Option<io::Error>>,
}

impl Tape {
    /// Of a file of which a kernel writes down what becomes of it.
    pub(super) fn marking(mark: impl Fn(u32) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self { mark: Some(Box::new(mark)), ..Self::default() }
    }

    /// Writes an event down: its number.
    pub(super) fn push(&self, event: Event) -> usize {
        let mut events = lock(&self.events);
        let number = events.len();
        if let (Some(mark), Event::May(_)) = (&self.mark, &event)
            && let Err(error) = mark(number as u32)
        {
            lock(&self.unmarked).get_or_insert(error);
        }
        events.push(event);
        number
    }

    /// It is known by now what may be there since then.
    pub(super) fn since(&self, number: usize, may: May) {
        lock(&self.events)[number] = Event::May(may);
    }

    /// All of it.
    ///
    /// # Errors
    /// Somebody was not told of all.
    pub(super) fn finish(&self) -> io::Result<Vec<Event>> {
        match lock(&self.unmarked).take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut *lock(&self.events))),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a process is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It opens the file...
    Opening,
    /// ...which it has made.
    Making,
    /// It stores records...
    Serving,
    /// ...and has failed to.
    Undoing,
}

/// How a process fares.
#[derive(Clone, Debug)]
pub(super) struct Luck {
    /// Steps until it is killed.
    pub(super) steps: Option<u64>,
    /// One step in so many fails.
    pub(super) fails: Option<u64>,
    pub(super) without: Option<Missing>,
    pub(super) rng: Rng,
}

struct Inner {
    luck: Luck,
    phase: Phase,
    is_dead: bool,
    /// Steps that failed.
    failures: u64,
    /// What was to be written since somebody asked.
    written: Vec<Vec<u8>>,
    tape: Arc<Tape>,
}

/// A process.
pub(super) struct Process(Mutex<Inner>);

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Process")
    }
}

impl Process {
    /// One that begins by opening the file, unless it was handed over. Its events go where those of the one before are.
    pub(super) fn new(tape: &Arc<Tape>, luck: Luck, opens: bool) -> Arc<Self> {
        let phase = if opens { Phase::Opening } else { Phase::Serving };
        let tape = tape.clone();
        Arc::new(Self(Mutex::new(Inner { luck, phase, is_dead: false, failures: 0, written: Vec::new(), tape })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// It has opened the file.
    pub(super) fn serves(&self) {
        self.lock().phase = Phase::Serving;
    }

    /// From now on it does nothing to the file, whatever it believes.
    pub(super) fn kill(&self) {
        self.lock().is_dead = true;
    }

    pub(super) fn is_dead(&self) -> bool {
        self.lock().is_dead
    }

    /// Steps of it that have failed.
    pub(super) fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// What it wrote, or failed to write, since this was asked.
    pub(super) fn take_written(&self) -> Vec<Vec<u8>> {
        let mut inner = self.lock();
        if inner.phase == Phase::Undoing {
            inner.phase = Phase::Serving;
        }
        std::mem::take(&mut inner.written)
    }
}

impl Inner {
    /// Whether this is what is to be missed.
    fn is_missing(&self, step: RecordStep<'_>) -> bool {
        let Some(missing) = self.luck.without else { return false };
        missing
            == match (step, self.phase) {
                (RecordStep::Sync, Phase::Serving | Phase::Undoing) => Missing::StoreSync,
                (RecordStep::Sync, Phase::Opening) => Missing::OpenSync,
                (RecordStep::Sync, Phase::Making) => Missing::MakeSync,
                (RecordStep::SyncName, Phase::Making) => Missing::NameSync,
                (RecordStep::SyncName, _) => Missing::OpenNameSync,
                (RecordStep::Write { .. }, Phase::Undoing) => Missing::Undo,
                (RecordStep::Write { .. }, Phase::Opening) if self.written.len() == 1 => Missing::OpenWrite,
                (RecordStep::Write { .. }, Phase::Opening) => Missing::OpenCopy,
                _ => return false,
            }
    }

    fn note(&self, done: Done) {
        self.tape.push(Event::Done(done));
    }

    fn fail(&mut self, step: RecordStep<'_>) -> io::Error {
        self.failures += 1;
        if self.phase == Phase::Serving {
            self.phase = Phase::Undoing;
        }
        if step == RecordStep::Sync {
            self.note(Done::SyncFailed);
        }
        io::Error::from_raw_os_error(libc::EIO)
    }
}

impl RecordWitness for Process {
    fn sees(&self, step: RecordStep<'_>) -> io::Result<bool> {
        let mut inner = self.lock();
        inner.is_dead |= inner.luck.steps == Some(0);
        if inner.is_dead {
            return if step == RecordStep::Make { Err(io::ErrorKind::Interrupted.into()) } else { Ok(false) };
        }
        inner.luck.steps = inner.luck.steps.map(|steps| steps - 1);
        if let RecordStep::Write { bytes, .. } = step {
            inner.written.push(bytes.to_vec());
            if inner.phase == Phase::Opening && bytes.len() >= MADE_BYTES {
                inner.phase = Phase::Making;
            }
        }
        if inner.is_missing(step) {
            return Ok(false);
        }
        if let Some(fails) = inner.luck.fails
            && inner.luck.rng.once_in(fails)
        {
            return Err(inner.fail(step));
        }
        inner.note(match step {
            RecordStep::Make => Done::Made,
            RecordStep::Remove => Done::Removed,
            RecordStep::Write { offset, bytes } => Done::Wrote { offset: offset as usize, bytes: bytes.to_vec() },
            RecordStep::SetLen(len) => Done::SetLen(len as usize),
            RecordStep::Sync => Done::Synced,
            RecordStep::SyncName => Done::NameSynced,
        });
        // Where what is lost with the power is made up, the file itself need not outlive anything.
        Ok(inner.tape.mark.is_some() || !matches!(step, RecordStep::Sync | RecordStep::SyncName))
    }
}

/// Whoever looks at what a cut has left: of all that is written nothing need be synced.
#[derive(Debug)]
pub(super) struct Careless;

impl RecordWitness for Careless {
    fn sees(&self, step: RecordStep<'_>) -> io::Result<bool> {
        Ok(!matches!(step, RecordStep::Sync | RecordStep::SyncName))
    }
}
