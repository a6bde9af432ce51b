//! The walk over a disk's clusters that are to be copied: what all jobs have in common.

use crate::JobError;
use crate::before::Guards;
use crate::control::Control;
use crate::lanes::{Ended, Lanes, Piece};
use crate::limit::Bucket;
use crate::marks::{CLUSTER_BYTES, Marks};
use engine::{Token, monotonic_ns};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use storage::Storage;
use storage::copy::{CHUNK_BYTES, Copied};
use storage::extent::DataRanges;

/// Clusters that are taken, and asked about, at once: few questions, and none that keeps a guest waiting for long.
const CLAIM_CLUSTERS: u64 = (16 << 20) / CLUSTER_BYTES;
/// Clusters that are taken at once for one of several guests that wait.
const TURN_CLUSTERS: u64 = CHUNK_BYTES / CLUSTER_BYTES;
const BELL: Token = Token::other(0);
const TIMER: Token = Token::other(1);

/// What each kind of job does differently.
pub(crate) trait Course {
    /// Clusters that are to be copied. Their marks are taken away before anything is asked or read of them.
    fn todo(&self) -> &Marks;

    /// # Errors
    /// Why the job does not go on.
    fn check(&self) -> Result<(), JobError>;

    /// What guests wait for, where they do.
    fn guards(&self) -> Option<&Guards> {
        None
    }

    /// When [`check`](Self::check) will have something to say.
    fn deadline_ns(&self) -> Option<u64> {
        self.guards()?.deadline_ns()
    }

    /// What other threads tell.
    fn control(&self) -> &Control;

    /// The limit does not hold any more.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Whether clusters are copied for which no guest waits.
    fn walks(&self) -> bool {
        true
    }

    /// Clusters that guests wait for, since the last call.
    fn wanted(&self) -> Vec<Range<u64>> {
        self.guards().map(Guards::arrived).unwrap_or_default()
    }

    /// What was in these bytes is known, and they may change.
    fn has_read(&self, _bytes: &Range<u64>) {}

    /// They are in the copy.
    fn has_copied(&self, _bytes: &Range<u64>) {}

    /// The copy has failed.
    fn give_up(&self) {
        self.guards().into_iter().for_each(Guards::lift_all);
    }
}

/// What there is to do now.
enum Next {
    Piece(Piece),
    /// Something, at this time; `u64::MAX`: not before the limit changes.
    Later(u64),
    Nothing,
}

/// See the module.
pub(crate) struct Copying<'a> {
    from: &'a dyn Storage,
    course: &'a dyn Course,
    lanes: Lanes<'a>,
    /// Clusters of which guests wait for some.
    wanted: VecDeque<Range<u64>>,
    /// What guests wait for, out of those.
    urgent: VecDeque<Piece>,
    /// What the walk has claimed.
    pieces: VecDeque<Piece>,
    /// The cluster up to which the walk has claimed all.
    walked: u64,
    bucket: Bucket,
    /// The earliest timer that has not passed.
    timer_ns: u64,
    trouble: Option<JobError>,
}

impl<'a> Copying<'a> {
    /// # Errors
    /// No io_uring, or no memory.
    pub(crate) fn new(
        from: &'a dyn Storage,
        to: &'a dyn Storage,
        to_is_blank: bool,
        course: &'a dyn Course,
    ) -> Result<Copying<'a>, JobError> {
        let blank_bytes = to_is_blank.then(|| course.todo().size_bytes());
        let lanes = Lanes::new(from, to, blank_bytes).map_err(JobError::storage("start the job"))?;
        Ok(Copying {
            from,
            course,
            lanes,
            wanted: VecDeque::new(),
            urgent: VecDeque::new(),
            pieces: VecDeque::new(),
            walked: 0,
            bucket: Bucket::new(),
            timer_ns: u64::MAX,
            trouble: None,
        })
    }

    pub(crate) fn copied(&self) -> Copied {
        self.lanes.copied()
    }

    /// Copies what is to be copied, once, from the beginning of the disk to its end. Nothing is under way when it returns: so no cluster
    /// is on two lanes, also where marks come back meanwhile.
    pub(crate) fn pass(&mut self) -> Result<(), JobError> {
        self.walked = 0;
        loop {
            self.arm();
            if self.trouble.is_none()
                && let Err(error) = self.course.check()
            {
                self.fail(error);
            }
            let until_ns = self.fill();
            if until_ns.is_none() && self.lanes.are_idle() {
                break;
            }
            let deadline_ns = self.course.deadline_ns();
            self.wait(deadline_ns.map_or(until_ns, |deadline_ns| Some(until_ns.unwrap_or(u64::MAX).min(deadline_ns))));
        }
        self.trouble.take().map_or(Ok(()), Err)
    }

    /// Makes the copy stable.
    pub(crate) fn flush(&mut self) -> Result<(), JobError> {
        let ended = self.lanes.flush(self.course);
        self.end(ended);
        while !self.lanes.are_idle() {
            self.wait(None);
        }
        self.trouble.take().map_or(Ok(()), Err)
    }

    /// A bell that wakes [`Self::wait`]. What was told before it is looked at after it.
    pub(crate) fn arm(&mut self) {
        let solo = self.lanes.solo();
        self.course.control().arm(|| solo.io().reply(BELL));
    }

    /// Waits until something ends, the bell rings, or the time has come.
    pub(crate) fn wait(&mut self, until_ns: Option<u64>) {
        if let Some(until_ns) = until_ns
            && until_ns < self.timer_ns
        {
            self.timer_ns = until_ns;
            self.lanes.solo().io().timer(TIMER, until_ns);
        }
        let completion = self.lanes.solo().wait().expect("a bell, a timer or a lane is waited for");
        match completion.token {
            TIMER => self.timer_ns = u64::MAX,
            BELL => {}
            _ => {
                let ended = self.lanes.complete(completion, self.course);
                self.end(ended);
            }
        }
    }

    fn end(&mut self, ended: Option<Ended>) {
        match ended {
            None => {}
            Some((bytes, Ok(()))) => {
                self.course.control().has_done(bytes.end - bytes.start);
                self.course.has_copied(&bytes);
            }
            Some((_, Err(error))) => self.fail(error),
        }
    }

    /// Nothing more is started, and no guest waits for what is under way.
    fn fail(&mut self, error: JobError) {
        self.course.give_up();
        self.trouble.get_or_insert(error);
        self.urgent.clear();
        self.pieces.clear();
        self.wanted.clear();
    }

    /// Starts as much as there are lanes for. `Some`: there is more to start, at this time or when a lane is idle.
    fn fill(&mut self) -> Option<u64> {
        while self.trouble.is_none() {
            if !self.lanes.has_room() {
                return Some(u64::MAX);
            }
            match self.course.check().and_then(|()| self.next()) {
                Ok(Next::Piece(piece)) => {
                    let ended = self.lanes.start(piece, self.course);
                    self.end(ended);
                }
                Ok(Next::Later(until_ns)) => return Some(until_ns),
                Ok(Next::Nothing) => return None,
                Err(error) => self.fail(error),
            }
        }
        None
    }

    /// What guests wait for comes first, and is not limited.
    fn next(&mut self) -> Result<Next, JobError> {
        for wanted in self.course.wanted() {
            self.prefer(&wanted);
        }
        loop {
            if let Some(piece) = self.urgent.pop_front() {
                return Ok(Next::Piece(piece));
            }
            // In turns: a guest that has zeroes written to all of a disk keeps no other waiting for the rest of that.
            let Some(mut wanted) = self.wanted.pop_front() else { break };
            if let Some(clusters) = claim(self.course.todo(), &mut wanted, TURN_CLUSTERS) {
                self.wanted.push_back(wanted);
                self.urgent = self.pieces_of(&clusters)?;
            }
        }
        while self.pieces.is_empty() {
            if !self.course.walks() {
                return Ok(Next::Nothing);
            }
            let todo = self.course.todo();
            let mut rest = self.walked..todo.all().end;
            let Some(clusters) = claim(todo, &mut rest, CLAIM_CLUSTERS) else { return Ok(Next::Nothing) };
            self.walked = rest.start;
            self.pieces = self.pieces_of(&clusters)?;
        }
        Ok(self.walk())
    }

    /// The next piece of the walk, when the limit allows it.
    fn walk(&mut self) -> Next {
        if let Some(Piece::Data(bytes)) = self.pieces.front()
            && !self.course.is_urgent()
        {
            let now_ns = monotonic_ns();
            let next_ns = self.bucket.next_ns(&self.course.control().limit, now_ns);
            if next_ns > now_ns {
                return Next::Later(next_ns);
            }
            self.bucket.take(bytes.end - bytes.start, now_ns);
        }
        self.pieces.pop_front().map_or(Next::Nothing, Next::Piece)
    }

    /// A guest waits for some clusters: what the walk has claimed of them overtakes the rest of it.
    fn prefer(&mut self, clusters: &Range<u64>) {
        let bytes = self.course.todo().bytes(clusters);
        let is_wanted = |piece: &Piece| piece.bytes().start < bytes.end && bytes.start < piece.bytes().end;
        let (wanted, others): (VecDeque<_>, VecDeque<_>) = self.pieces.drain(..).partition(is_wanted);
        self.pieces = others;
        self.urgent.extend(wanted);
        self.wanted.push_back(clusters.clone());
    }

    /// Some clusters as pieces of whole clusters. A few are read without a question, which costs as much; of many it is asked where they
    /// have data.
    fn pieces_of(&self, clusters: &Range<u64>) -> Result<VecDeque<Piece>, JobError> {
        let bytes = self.course.todo().bytes(clusters);
        let mut pieces = VecDeque::new();
        if bytes.end - bytes.start <= CHUNK_BYTES {
            chunks(bytes, &mut pieces);
            return Ok(pieces);
        }
        let mut at = bytes.start;
        for data in DataRanges::of(self.from, bytes.clone()) {
            let data = data.map_err(JobError::storage("look where the disk has data"))?;
            let start = (data.start / CLUSTER_BYTES * CLUSTER_BYTES).max(at);
            let end = data.end.next_multiple_of(CLUSTER_BYTES).min(bytes.end);
            hole(at..start, &mut pieces);
            chunks(start..end, &mut pieces);
            at = end.max(at);
        }
        hole(at..bytes.end, &mut pieces);
        Ok(pieces)
    }
}

/// Takes the first marked clusters of `range`, `most` of them, which begins behind them then.
pub(crate) fn claim(todo: &Marks, range: &mut Range<u64>, most: u64) -> Option<Range<u64>> {
    let run = todo.run(range)?;
    let run = run.start..run.end.min(run.start + most);
    todo.clear(run.clone());
    // A mirror's mark goes before the disk is read; its filter looks for the mark after the write. In between each has a fence, so
    // that one of them sees what the other has done: either the write is read here, or its cluster is marked again.
    fence(Ordering::SeqCst);
    range.start = run.end;
    Some(run)
}

fn hole(bytes: Range<u64>, pieces: &mut VecDeque<Piece>) {
    if !bytes.is_empty() {
        pieces.push_back(Piece::Hole(bytes));
    }
}

/// Chunks end at multiples of their size, so that only the first one is odd.
fn chunks(bytes: Range<u64>, pieces: &mut VecDeque<Piece>) {
    let mut at = bytes.start;
    while at < bytes.end {
        let end = bytes.end.min((at / CHUNK_BYTES + 1) * CHUNK_BYTES);
        pieces.push_back(Piece::Data(at..end));
        at = end;
    }
}

impl Drop for Copying<'_> {
    /// Nobody waits for the bell any more.
    fn drop(&mut self) {
        self.course.control().ring();
    }
}
