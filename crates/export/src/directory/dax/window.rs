//! The window of one session: the frontend is told in order what to map and take out, and requests wait for its answers.
//!
//! Nobody here waits. A ring hands a request in and goes on; the session's thread, which must go on with the frontend's messages (QEMU
//! sends ADD_MEM_REG while it maps), calls back with each answer.

use super::table::{Answer, Order, Part, SLOT_BYTES, Slot, Table};
use crate::calls::Cancel;
use passthrough::FileToMap;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vhost_user::{BackendChannel, NoAnswer, SharedMap};

/// How long the frontend is waited for. QEMU answers in less than a millisecond, unless its machine is stopped.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most orders that the frontend has at a time: half of what it is asked on the channel at all.
const ASKED_MAX: usize = 32;
/// Most orders that wait for that, each with a descriptor perhaps. More than a guest with as many processors as slots has.
const WAITING_MAX: usize = 512;

/// Told once how a request went; must not block.
type Done = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A request that waits for the frontend's answers.
pub(crate) struct Waiting(Mutex<Ends>);

struct Ends {
    /// Answers that are still to come.
    left: usize,
    outcome: Result<(), Errno>,
    done: Option<Done>,
}

impl Waiting {
    /// For so many answers. Without any, it is over.
    fn new(left: usize, done: Done) -> Arc<Waiting> {
        let waiting = Waiting(Mutex::new(Ends { left, outcome: Ok(()), done: Some(done) }));
        if left == 0 {
            waiting.finish(Ok(()));
        }
        Arc::new(waiting)
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self, outcome: Result<(), Errno>) {
        let outcome = {
            let mut ends = self.ends();
            ends.left = ends.left.saturating_sub(1);
            ends.outcome = ends.outcome.and(outcome);
            if ends.left > 0 {
                return;
            }
            ends.outcome
        };
        self.finish(outcome);
    }

    fn finish(&self, outcome: Result<(), Errno>) {
        let done = self.ends().done.take();
        if let Some(done) = done {
            done(outcome);
        }
    }
}

impl Cancel for Waiting {
    /// A ring that stops is waited for by the session's thread, which would have to receive the answer.
    fn cancel(&self) {
        self.finish(Err(Errno::INTR));
    }
}

/// An order, and what it needs.
struct Told {
    order: Order,
    file: Option<FileToMap>,
    waiting: Option<Arc<Waiting>>,
}

struct State {
    table: Table,
    channel: BackendChannel,
    /// The frontend has asked for the window: it knows what to do with orders.
    is_shown: bool,
    queue: VecDeque<Told>,
    /// Counts how often everything was taken out.
    emptied: u64,
    /// Orders that the frontend has.
    asked: usize,
    /// Somebody passes orders on.
    is_passing: bool,
    /// Who waits until the frontend has done all.
    until_idle: Vec<Arc<Waiting>>,
}

/// The DAX window of a directory.
pub(crate) struct Window {
    bytes: u64,
    state: Mutex<State>,
}

impl Window {
    pub(crate) fn new(bytes: u64) -> Arc<Window> {
        let state = State {
            table: Table::new(bytes),
            channel: BackendChannel::default(),
            is_shown: false,
            queue: VecDeque::new(),
            emptied: 0,
            asked: 0,
            is_passing: false,
            until_idle: Vec::new(),
        };
        Arc::new(Window { bytes, state: Mutex::new(state) })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frontend is there, and nothing is mapped.
    pub(crate) fn session_started(&self, channel: BackendChannel) {
        let mut state = self.lock();
        state.table.forget();
        (state.channel, state.is_shown) = (channel, false);
    }

    /// The frontend has asked for the window.
    pub(crate) fn shown(&self) {
        self.lock().is_shown = true;
    }

    /// Whether it has.
    pub(crate) fn is_shown(&self) -> bool {
        self.lock().is_shown
    }

    /// Whether it has agreed to all that mapping takes.
    pub(crate) fn can_map(&self) -> bool {
        self.lock().channel.takes_files()
    }

    /// How many slots of the window are in use.
    pub(crate) fn mapped(&self) -> usize {
        self.lock().table.mapped()
    }

    /// The frontend has nothing mapped any more, or is gone.
    pub(crate) fn forget(&self) {
        let (queue, idle) = {
            let mut state = self.lock();
            state.table.forget();
            state.emptied += 1;
            (std::mem::take(&mut state.queue), std::mem::take(&mut state.until_idle))
        };
        // What is under way is answered, or the channel ends.
        queue.into_iter().filter_map(|told| told.waiting).for_each(|waiting| waiting.answered(Err(Errno::IO)));
        idle.into_iter().for_each(|waiting| waiting.answered(Ok(())));
    }

    /// Takes everything out, and what the frontend may have left. A device that was reset has nothing any more (vhost-user,
    /// "VHOST_USER_BACKEND_SHMEM_MAP"), and one whose rings were only stopped has: the frontend says of a slot where there is
    /// nothing that it cannot take that out, which is just as well.
    pub(crate) fn clear(self: &Arc<Self>) {
        self.lock().emptied += 1;
        self.unmap_slots(|table| table.all().collect());
    }

    /// Takes out what is of nodes that this says of, without anybody who waits for that.
    pub(crate) fn unmap_where(self: &Arc<Self>, is_unwanted: impl Fn(u64) -> bool) {
        self.unmap_slots(|table| table.of(|part| is_unwanted(part.node)));
    }

    fn unmap_slots(self: &Arc<Self>, which: impl FnOnce(&Table) -> Vec<Slot>) {
        let mut state = self.lock();
        for slot in which(&state.table) {
            if let Some(order) = state.table.unmap(slot) {
                state.queue.push_back(Told { order, file: None, waiting: None });
            }
        }
        drop(state);
        self.pass_on();
    }

    /// Waits until the frontend has ended all that it was told. `done` may be called before this returns.
    pub(crate) fn when_idle(&self, done: Done) -> Arc<Waiting> {
        let waiting = Waiting::new(1, done);
        self.lock().until_idle.push(Arc::clone(&waiting));
        self.tell_idle();
        waiting
    }

    /// Tells those who wait for that when the frontend has nothing to do, and has ended what it has answered.
    fn tell_idle(&self) {
        let mut state = self.lock();
        if !state.queue.is_empty() || state.asked > 0 || state.until_idle.is_empty() {
            return;
        }
        let (channel, waiting) = (state.channel.clone(), std::mem::take(&mut state.until_idle));
        drop(state);
        channel.settle(PATIENCE, move |_| waiting.into_iter().for_each(|waiting| waiting.answered(Ok(()))));
    }

    /// Maps a part of a file: `len` bytes at `window_offset`. `open` opens it, if that is necessary. `done` may be called before this
    /// returns.
    pub(crate) fn map(
        self: &Arc<Self>,
        (window_offset, part, len): (u64, Part, u64),
        open: impl FnOnce() -> Result<FileToMap, Errno>,
        done: Done,
    ) -> Arc<Waiting> {
        let file = self.may_map(window_offset, part, len).and_then(|may| match may {
            Some((slot, emptied)) => open().map(|file| Some((slot, emptied, file))),
            None => Ok(None),
        });
        let (slot, emptied, file) = match file {
            Ok(Some(found)) => found,
            Ok(None) => return Waiting::new(0, done),
            Err(error) => return over(done, error),
        };
        let mut state = self.lock();
        if state.emptied != emptied {
            // The guest has unmounted meanwhile, by another queue: it was told that nothing comes any more.
            drop(state);
            return over(done, Errno::IO);
        }
        let orders: Vec<_> = state.table.map(slot, part).collect();
        let waiting = Waiting::new(orders.len(), done);
        let mut file = Some(file);
        for order in orders {
            let file = if matches!(order, Order::Map { .. }) { file.take() } else { None };
            state.queue.push_back(Told { order, file, waiting: Some(Arc::clone(&waiting)) });
        }
        drop(state);
        self.pass_on();
        waiting
    }

    /// The slot that something has to be put into, and how often the window was emptied before; `None` where it is already.
    fn may_map(&self, window_offset: u64, part: Part, len: u64) -> Result<Option<(Slot, u64)>, Errno> {
        let state = self.lock();
        let slot = state.table.slot(window_offset, part.offset, len)?;
        if state.queue.len() >= WAITING_MAX {
            return Err(Errno::AGAIN);
        }
        Ok((!state.table.has(slot, part)).then_some((slot, state.emptied)))
    }

    /// Takes parts of the window out: each is an offset and a length. `done` may be called before this returns.
    pub(crate) fn unmap(self: &Arc<Self>, parts: impl Iterator<Item = (u64, u64)>, done: Done) -> Arc<Waiting> {
        let mut state = self.lock();
        let ranges: Result<Vec<_>, _> = parts.map(|(offset, len)| state.table.slots(offset, len)).collect();
        // All of it or nothing.
        let ranges = match ranges {
            Ok(ranges) => ranges,
            Err(error) => {
                drop(state);
                return over(done, error);
            }
        };
        let orders: Vec<_> = ranges.into_iter().flatten().filter_map(|slot| state.table.unmap(slot)).collect();
        let waiting = Waiting::new(orders.len(), done);
        let told = orders.into_iter().map(|order| Told { order, file: None, waiting: Some(Arc::clone(&waiting)) });
        state.queue.extend(told);
        drop(state);
        self.pass_on();
        waiting
    }

    /// Passes on what waits, one thread at a time, so that the frontend hears it in order.
    fn pass_on(self: &Arc<Self>) {
        loop {
            let mut state = self.lock();
            if state.is_passing || state.asked >= ASKED_MAX {
                return;
            }
            let Some(Told { order, file, waiting }) = state.queue.pop_front() else { return };
            state.is_passing = true;
            state.asked += 1;
            let channel = state.channel.clone();
            drop(state);
            let window = Arc::clone(self);
            match (order, file) {
                (Order::Map { slot, part, .. }, Some(file)) => {
                    let settling = channel.clone();
                    let (file, share) = file.into_parts();
                    channel.map(place(slot, part.offset), file, PATIENCE, move |answer| {
                        // The descriptor is closed by now.
                        drop(share);
                        match answer {
                            // A guest that were told now would look too early.
                            Ok(0) => settling.settle(PATIENCE, move |settled| {
                                window.answered(order, waiting, settled.map(|_| 0));
                            }),
                            answer => window.answered(order, waiting, answer),
                        }
                    });
                }
                (Order::Map { .. }, None) => window.answered(order, waiting, Err(NoAnswer::Closed)),
                (Order::Unmap { slot, .. }, _) => {
                    channel.unmap(place(slot, 0), PATIENCE, move |answer| window.answered(order, waiting, answer));
                }
            }
            self.lock().is_passing = false;
        }
    }

    fn answered(self: &Arc<Self>, order: Order, waiting: Option<Arc<Waiting>>, answer: Result<u64, NoAnswer>) {
        let came = match answer {
            Ok(0) => Answer::Done,
            Ok(_) => Answer::Refused,
            Err(_) => Answer::Unknown,
        };
        tracing::debug!(?order, ?came, ?answer, "the DAX window");
        let mut state = self.lock();
        state.asked -= 1;
        if let Some(order) = state.table.answered(order, came) {
            state.queue.push_front(Told { order, file: None, waiting: None });
        }
        drop(state);
        if let Some(waiting) = waiting {
            // To take out what is not there has come to nothing, and to an end.
            let is_out = matches!(order, Order::Unmap { .. }) && came == Answer::Refused;
            waiting.answered(if came == Answer::Done || is_out { Ok(()) } else { Err(Errno::IO) });
        }
        self.tell_idle();
        self.pass_on();
    }
}

fn place(slot: Slot, file_offset: u64) -> SharedMap {
    let writable = true;
    SharedMap { offset: u64::from(slot) * SLOT_BYTES, len: SLOT_BYTES, file_offset, writable }
}

fn over(done: Done, error: Errno) -> Arc<Waiting> {
    let waiting = Waiting::new(1, done);
    waiting.finish(Err(error));
    waiting
}
