//! A slow request as it is told.

use engine::Ways;
use std::ops::AddAssign;
use values::Lun;

/// It waits for a lock that a client has.
pub const LOCK: Ways = Ways::noted(Ways::NOTES - 1);
/// It waits for another request's answer.
pub const OTHER: Ways = Ways::noted(Ways::NOTES - 2);

/// What a request is about, by the number its client has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A node of FUSE.
    Node(u64),
    /// A fid of 9P.
    Fid(u32),
    /// A logical unit of SCSI.
    Unit(Lun),
}

/// What a request asks for, beside its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What {
    /// The file, directory or unit; `None` for a disk, and for what is about none.
    pub object: Option<Object>,
    /// First byte and number of bytes.
    pub range: Option<(u64, u64)>,
}

impl What {
    /// A range of a disk.
    pub(crate) fn range(offset: u64, bytes: u64) -> What {
        What { object: None, range: Some((offset, bytes)) }
    }
}

/// Why a request can have been in its ring for a while before it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The worker did something else: other rings, completions, messages.
    Worker,
    /// Requests before it on its ring had their turn.
    Turn,
    /// A limit of its export or group was used up.
    Limit,
    /// The ring was held: another storage came behind its disk.
    Hold,
}

/// A request that took as long as some reader wants to know of. Times are nanoseconds; those without a date count from when it was taken,
/// and come one after the other as they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// The ring's index.
    pub ring: u16,
    /// What figures count it as.
    pub kind: &'static str,
    /// What it asked for.
    pub what: What,
    /// It was answered with an error.
    pub failed: bool,
    /// The worker that took it from its ring; of one that began before the trace, the one that answered it.
    pub taken_by: u32,
    /// The worker that answered it.
    pub answered_by: u32,
    /// When it was taken, by CLOCK_MONOTONIC.
    pub taken_ns: u64,
    /// How long it can have been there before: when it came, the ring does not say.
    pub waited_max_ns: u64,
    /// Why.
    pub waited_for: Wait,
    /// Until when it was put aside: a limit, or something that has to end before.
    pub held_ns: u64,
    /// When its work was begun elsewhere; `None` when it was done at once, on the worker.
    pub started_ns: Option<u64>,
    /// When the worker heard that its work had ended, the last part of it.
    pub ended_ns: Option<u64>,
    /// By how much that can have been later than it was.
    pub late_max_ns: u64,
    /// Which way its work went.
    pub ways: Ways,
    /// Completions of its parts.
    pub parts: u32,
    /// It began before the trace: of what was before its end, only when it was taken is known.
    pub is_partly_known: bool,
    /// When its answer was ready.
    pub answered_ns: u64,
    /// When the client could see it.
    pub shown_ns: u64,
}

/// Where the time of one request went, or of several, in nanoseconds. All but `waited_max` are its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Before it was taken, at most.
    pub waited_max_ns: u64,
    /// Put aside after that.
    pub held_ns: u64,
    /// Decoded, and its work begun elsewhere.
    pub start_ns: u64,
    /// Done by the worker.
    pub inline_ns: u64,
    /// With what stands behind the export: the kernel, threads, other requests in line.
    pub behind_ns: u64,
    /// Waiting for a lock of another client.
    pub lock_ns: u64,
    /// From the end of its work to its answer.
    pub answer_ns: u64,
    /// From its answer to when the client could see it.
    pub show_ns: u64,
    /// Before the trace began.
    pub unknown_ns: u64,
}

impl Times {
    /// From when it was taken to when the client could see its answer.
    pub fn total_ns(&self) -> u64 {
        let before_show = self.held_ns + self.start_ns + self.inline_ns + self.behind_ns + self.lock_ns;
        before_show + self.answer_ns + self.show_ns + self.unknown_ns
    }
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Times) {
        self.waited_max_ns += other.waited_max_ns;
        self.held_ns += other.held_ns;
        self.start_ns += other.start_ns;
        self.inline_ns += other.inline_ns;
        self.behind_ns += other.behind_ns;
        self.lock_ns += other.lock_ns;
        self.answer_ns += other.answer_ns;
        self.show_ns += other.show_ns;
        self.unknown_ns += other.unknown_ns;
    }
}

impl SlowRequest {
    /// How long it took, with the time that it can have waited before: what is compared with a reader's bound.
    pub fn length_ns(&self) -> u64 {
        self.waited_max_ns.saturating_add(self.shown_ns)
    }

    /// Where its time went.
    pub fn times(&self) -> Times {
        let mut times = Times {
            waited_max_ns: self.waited_max_ns,
            held_ns: self.held_ns,
            show_ns: self.shown_ns - self.answered_ns,
            ..Times::default()
        };
        let ended_ns = self.ended_ns.unwrap_or(self.answered_ns);
        match self.started_ns {
            _ if self.is_partly_known => {
                times.unknown_ns = ended_ns - self.held_ns;
                times.answer_ns = self.answered_ns - ended_ns;
            }
            None => times.inline_ns = self.answered_ns - self.held_ns,
            Some(started_ns) => {
                times.start_ns = started_ns - self.held_ns;
                let behind_ns = ended_ns - started_ns;
                *if self.ways.contains(LOCK) { &mut times.lock_ns } else { &mut times.behind_ns } = behind_ns;
                times.answer_ns = self.answered_ns - ended_ns;
            }
        }
        times
    }
}
