//! One ring's notes of its requests, while somebody traces its export.

use super::recorder::{NOBODY, Recorder};
use super::slow::{Wait, What};
use super::stages::{Answered, Stages};
use engine::Io;
use std::sync::Arc;

/// What a ring notes of its requests. It belongs to the ring, and moves with it.
pub(crate) struct Tracer {
    recorder: Arc<Recorder>,
    ring: u16,
    kinds: &'static [&'static str],
    notes: Option<Box<Notes>>,
}

/// The notes. Requests are known by their slots; one that is being started needs none.
struct Notes {
    slower_than_ns: u64,
    /// The request that is being started, until it is answered, put aside, or goes on elsewhere.
    current: Option<Stages>,
    /// Its slot, once it has one.
    slot: Option<u16>,
    /// By slot.
    under_way: Vec<Option<Stages>>,
    answered: Vec<Answered>,
    /// When the first of those can have come.
    oldest_ns: u64,
    /// The last reading of the clock: requests of a turn follow each other.
    now_ns: u64,
    /// Since when what is taken now can have been there, and why it was not taken before.
    since: (u64, Wait),
}

impl Tracer {
    pub(crate) fn new(recorder: Arc<Recorder>, ring: u16, kinds: &'static [&'static str]) -> Tracer {
        Tracer { recorder, ring, kinds, notes: None }
    }

    /// Looks whether anybody traces. What is taken next can have been there since the worker looked before.
    #[inline]
    pub(crate) fn look(&mut self, io: &Io<'_>) {
        let slower_than_ns = self.recorder.slower_than_ns(io.now_ns());
        if slower_than_ns != NOBODY || self.notes.is_some() {
            self.follow(slower_than_ns, io);
        }
    }

    fn follow(&mut self, slower_than_ns: u64, io: &Io<'_>) {
        if slower_than_ns == NOBODY {
            self.notes = None;
            return;
        }
        let notes = self.notes.get_or_insert_with(|| Box::new(Notes::new()));
        notes.slower_than_ns = slower_than_ns;
        notes.since = (io.looked_before_ns(), Wait::Worker);
    }

    /// What is taken next has been there since then, as far as is known.
    #[inline]
    pub(crate) fn waited(&mut self, since_ns: u64, wait: Wait) {
        if let Some(notes) = &mut self.notes {
            notes.since = (since_ns, wait);
        }
    }

    /// A request is taken. One that has a slot has it from the start, or is [placed](Self::placed) later.
    #[inline]
    pub(crate) fn taken(&mut self, slot: Option<u16>, io: &mut Io<'_>) {
        if let Some(notes) = &mut self.notes {
            notes.taken(slot, io);
        }
    }

    /// It is in this slot.
    #[inline]
    pub(crate) fn placed(&mut self, slot: u16) {
        if let Some(notes) = &mut self.notes {
            notes.slot = Some(slot);
        }
    }

    /// What it asks for.
    #[inline]
    pub(crate) fn asks(&mut self, what: What) {
        if let Some(current) = self.notes.as_mut().and_then(|notes| notes.current.as_mut()) {
            current.what = what;
        }
    }

    /// It is left to another request, which answers it.
    pub(crate) fn leave(&mut self) {
        if let Some(notes) = &mut self.notes {
            notes.current = None;
        }
    }

    /// It is put aside for a later turn.
    pub(crate) fn put_aside(&mut self, slot: u16) {
        if let Some(notes) = &mut self.notes
            && let Some(current) = notes.current.take()
        {
            notes.keep(slot, Stages { is_aside: true, ..current });
        }
    }

    /// It goes on that was put aside.
    pub(crate) fn taken_up(&mut self, slot: u16, io: &mut Io<'_>) {
        if let Some(notes) = &mut self.notes {
            notes.taken_up(slot, io);
        }
    }

    /// Its work goes on elsewhere: it was begun just now, or another part of it was.
    #[inline]
    pub(crate) fn pending(&mut self, slot: u16, io: &mut Io<'_>) {
        if let Some(notes) = &mut self.notes {
            notes.pending(slot, io);
        }
    }

    /// Its work has ended, or part of it.
    #[inline]
    pub(crate) fn ended(&mut self, slot: u16, io: &mut Io<'_>) {
        if let Some(notes) = &mut self.notes {
            // Nobody else's.
            io.take_ways();
            if let Some(Some(stages)) = notes.under_way.get_mut(usize::from(slot)) {
                stages.ended(io.now_ns(), io.looked_before_ns());
            }
        }
    }

    /// It is answered, and will be shown: in this slot, or with none the one that is being started. It was taken at `taken_ns` for all
    /// that figures know.
    #[inline]
    pub(crate) fn answered(&mut self, slot: Option<u16>, kind: usize, taken_ns: u64, failed: bool, io: &Io<'_>) {
        if let Some(notes) = &mut self.notes {
            notes.answered(slot, self.kinds.get(kind).copied().unwrap_or_default(), taken_ns, failed, io);
        }
    }

    /// It is given up, without an answer.
    pub(crate) fn put_off(&mut self, slot: u16) {
        if let Some(place) = self.notes.as_mut().and_then(|notes| notes.under_way.get_mut(usize::from(slot))) {
            *place = None;
        }
    }

    /// What was answered can be seen by the client now.
    #[inline]
    pub(crate) fn shown(&mut self, io: &Io<'_>) {
        if let Some(notes) = &mut self.notes
            && !notes.answered.is_empty()
        {
            notes.shown(&self.recorder, self.ring, io);
        }
    }

    /// Whether anything is noted.
    #[cfg(test)]
    pub(super) fn is_on(&self) -> bool {
        self.notes.is_some()
    }
}

impl Notes {
    fn new() -> Notes {
        Notes {
            slower_than_ns: NOBODY,
            current: None,
            slot: None,
            under_way: Vec::new(),
            answered: Vec::new(),
            oldest_ns: u64::MAX,
            now_ns: 0,
            since: (0, Wait::Worker),
        }
    }

    fn keep(&mut self, slot: u16, stages: Stages) {
        let place = usize::from(slot);
        if self.under_way.len() <= place {
            self.under_way.resize(place + 1, None);
        }
        self.under_way[place] = Some(stages);
        self.slot = None;
    }

    /// The request before was the last that the clock was read for.
    fn catch_up(&mut self, io: &Io<'_>) -> u64 {
        self.now_ns = self.now_ns.max(io.now_ns());
        self.now_ns
    }

    fn read_clock(&mut self, io: &Io<'_>) -> u64 {
        self.now_ns = io.clock_ns();
        self.now_ns
    }

    fn taken(&mut self, slot: Option<u16>, io: &mut Io<'_>) {
        let now_ns = self.catch_up(io);
        let (since_ns, wait) = self.since;
        let waited_ns = now_ns.saturating_sub(since_ns);
        let in_turn_ns = now_ns.saturating_sub(io.now_ns());
        // What took longer is what it waited for.
        let wait =
            if wait == Wait::Worker && in_turn_ns > waited_ns - in_turn_ns.min(waited_ns) { Wait::Turn } else { wait };
        self.current = Some(Stages::new(now_ns, io.worker(), (waited_ns, wait)));
        self.slot = slot;
        io.take_ways();
    }

    fn taken_up(&mut self, slot: u16, io: &mut Io<'_>) {
        let now_ns = self.catch_up(io);
        let before = self.under_way.get_mut(usize::from(slot)).and_then(Option::take);
        let stages = before.unwrap_or_else(|| Stages::unknown(now_ns, io.worker()));
        self.current = Some(Stages { held_ns: now_ns, is_aside: false, ..stages });
        self.slot = Some(slot);
        io.take_ways();
    }

    fn pending(&mut self, slot: u16, io: &mut Io<'_>) {
        let ways = io.take_ways();
        if self.slot == Some(slot)
            && let Some(mut current) = self.current.take()
        {
            current.started_ns = Some(self.read_clock(io));
            current.ways |= ways;
            self.keep(slot, current);
        } else if let Some(Some(stages)) = self.under_way.get_mut(usize::from(slot)) {
            stages.ways |= ways;
        }
    }

    fn answered(&mut self, slot: Option<u16>, kind: &'static str, taken_ns: u64, failed: bool, io: &Io<'_>) {
        let is_current = slot.is_none() || self.slot == slot;
        let (stages, answered_ns) = match self.current.take_if(|_| is_current) {
            Some(current) => (current, self.read_clock(io)),
            None => {
                let kept = slot.and_then(|slot| self.under_way.get_mut(usize::from(slot))?.take());
                (kept.unwrap_or_else(|| Stages::unknown(taken_ns, io.worker())), self.catch_up(io))
            }
        };
        self.oldest_ns = self.oldest_ns.min(stages.came_ns());
        self.answered.push(Answered { stages, kind, failed, answered_by: io.worker(), answered_ns });
    }

    fn shown(&mut self, recorder: &Recorder, ring: u16, io: &Io<'_>) {
        let now_ns = self.read_clock(io);
        if now_ns.saturating_sub(self.oldest_ns) >= self.slower_than_ns {
            let shown = self.answered.iter().map(|answered| answered.shown(ring, now_ns));
            let mut slow = shown.filter(|request| request.length_ns() >= self.slower_than_ns).peekable();
            if slow.peek().is_some() {
                recorder.record(slow);
            }
        }
        self.answered.clear();
        self.oldest_ns = u64::MAX;
    }
}
