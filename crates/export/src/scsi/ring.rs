//! A request queue, and the units behind it: the attachment. Kick to notification passes through this file.

use super::kind::Kind;
use super::logical::{Logical, View};
use super::lost::Lost;
use super::port::Port;
use super::request::ScsiRequest;
use super::tasks::{Question, Which, Word};
use super::units::{List, Unit, has_target};
use super::work::Work;
use crate::attachment::Attachment;
use crate::label::Label;
use crate::limit::TURN_BYTES_MAX;
use crate::queue::{Broken, Queue};
use crate::turns::{BATCH_MAX, Turns};
use crate::virtqueue::Virtqueue;
use device::scsi::reservations::Gate;
use device::scsi::{
    Address, HEAD_BYTES_MAX, Response, ResponseBytes, ResponseCode, Sense, Sizes, Status, Unit as Facts, decode_request,
};
use engine::{Completion, Io, Token};
use std::sync::Arc;
use storage::kit::Jobs;
use storage::{Step, Storage, Task};
use values::Lun;
use vhost_user::RingStart;

/// Requests that complete while they are started are shown to the driver in groups of this size: it works on the first while
/// we work on the next.
const PUBLISH_EVERY: usize = 16;
/// Bytes of ours that the requests of one ring keep, at most: one more than that is answered TASK SET FULL.
pub(super) const KEPT_BYTES_MAX: usize = 4 << 20;

/// What all request queues of a device are told, each with its own copy, so that a request looks at no shared state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) sizes: Sizes,
    /// `VIRTIO_SCSI_F_INOUT` was negotiated.
    pub(crate) inout: bool,
}

/// A unit as a ring knows it.
pub(super) struct Entry {
    pub(super) unit: Arc<Unit>,
    /// The unit's, nearer.
    logical: Arc<Logical>,
    /// What requests drive.
    pub(super) storage: Arc<dyn Storage>,
    /// That performs commands itself.
    pub(super) passes: bool,
    /// The version of what follows.
    version: u64,
    pub(super) facts: Facts,
    /// Something is to be told first.
    pub(super) attention: bool,
    pub(super) gate: Gate,
    /// Requests of the ring that are under way there.
    in_flight: u32,
    /// It is not in the device any more.
    gone: bool,
    /// The ring has fallen with some.
    lost: Option<Lost>,
}

impl Entry {
    fn new(unit: Arc<Unit>) -> Result<Entry, Broken> {
        let storage = unit.driven()?;
        let (version, View { facts, attention, gate }) = unit.view();
        let logical = unit.logical.clone();
        let passes = storage.passes().is_some();
        Ok(Entry {
            unit,
            logical,
            storage,
            passes,
            version,
            facts,
            attention,
            gate,
            in_flight: 0,
            gone: false,
            lost: None,
        })
    }

    /// Knows of all that has changed.
    #[inline]
    fn refresh(&mut self) {
        if self.logical.version() != self.version {
            self.refresh_now();
        }
    }

    #[cold]
    fn refresh_now(&mut self) {
        let (version, View { facts, attention, gate }) = self.unit.view();
        (self.version, self.attention, self.gate, self.facts) = (version, attention, gate, facts);
    }
}

/// Tasks whose end somebody waits for.
struct Fence {
    which: Which,
    /// The number of the first task that is not waited for.
    until: u64,
    /// Those that have been taken, and have not ended.
    left: usize,
    /// Numbers of tasks that are none of them.
    except: Vec<u64>,
    /// Dropped when they have ended.
    word: Arc<Word>,
}

impl Fence {
    /// Whether a task with this number is one of them.
    fn is_for(&self, lun: Lun, tag: u64, number: u64) -> bool {
        number < self.until && self.which.is(lun, tag) && !self.except.contains(&number)
    }

    /// Whether they have ended on a queue that has taken so many, and takes no more if it is broken.
    fn has_ended(&self, taken: u64, is_broken: bool) -> bool {
        self.left == 0 && (taken >= self.until || is_broken)
    }
}

/// One request queue of a device.
pub(crate) struct ScsiRing {
    pub(super) turns: Turns,
    pub(super) ring: Virtqueue<ScsiRequest>,
    pub(super) terms: Terms,
    pub(super) list: List,
    /// The device's.
    pub(super) port: Arc<Port>,
    /// By the places that requests remember; those of units that have gone are empty.
    entries: Vec<Option<Entry>>,
    /// Their places, by LUN.
    places: Vec<(Lun, u16)>,
    /// Requests taken so far.
    taken: u64,
    pub(super) kept_bytes: usize,
    /// Questions of where there is data.
    pub(super) looks: Jobs,
    /// What is waited for, and by whom.
    fences: Vec<Fence>,
    /// It is among the rings that are asked after tasks, and takes some.
    is_known: bool,
    /// It is ending: what it has not taken is its next life's.
    ends: bool,
    /// Reused: the head of a request.
    head: Box<[u8; HEAD_BYTES_MAX]>,
    /// Reused: its response.
    pub(super) response: Box<ResponseBytes>,
}

impl ScsiRing {
    pub(crate) fn new(
        start: RingStart,
        terms: Terms,
        (port, list): (Arc<Port>, List),
        looks: Jobs,
        label: Label,
    ) -> Result<ScsiRing, Broken> {
        let queue = Queue::new(start, label.clone())?;
        let turns = Turns::new(&Kind::NAMES, queue.size().into(), label);
        let ring = Virtqueue::new(queue, &turns.figures, || ScsiRequest::new(terms.sizes));
        if ring.queue.owed() > 0 {
            let Label { export, ring: index, .. } = &turns.label;
            tracing::info!(%export, ring = index, requests = ring.queue.owed(), "requests of an earlier life are done again");
        }
        let head = Box::new([0; HEAD_BYTES_MAX]);
        let (entries, places) = (Vec::new(), Vec::new());
        let mut new = ScsiRing {
            turns,
            ring,
            terms,
            list: List::default(),
            port,
            entries,
            places,
            taken: 0,
            kept_bytes: 0,
            looks,
            fences: Vec::new(),
            is_known: false,
            ends: false,
            head,
            response: Box::default(),
        };
        new.set_units(list)?;
        Ok(new)
    }

    pub(crate) fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    /// These are the units from now on. Requests under way go on with what they were begun on.
    ///
    /// # Errors
    /// One of them is not this process's: there is none then.
    pub(crate) fn set_units(&mut self, list: List) -> Result<(), Broken> {
        for place in 0..self.entries.len() {
            let gone = self.entries[place].as_mut().is_some_and(|entry| {
                entry.gone = list.get(&entry.unit.lun).is_none_or(|unit| !Arc::ptr_eq(unit, &entry.unit));
                entry.gone && entry.in_flight == 0
            });
            if gone {
                // It is closed elsewhere: whoever has taken it out holds it.
                self.entries[place] = None;
            }
        }
        self.places.clear();
        for unit in list.values() {
            let known = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.unit, unit));
            let place = match self.entries.iter().position(known) {
                Some(place) => place,
                None => {
                    let entry = Some(Entry::new(unit.clone())?);
                    match self.entries.iter().position(Option::is_none) {
                        Some(free) => {
                            self.entries[free] = entry;
                            free
                        }
                        None => {
                            self.entries.push(entry);
                            self.entries.len() - 1
                        }
                    }
                }
            };
            // There are fewer units than that.
            self.places.push((unit.lun, place as u16));
        }
        self.list = list;
        Ok(())
    }

    /// Whoever asks the rings of the device asks this one, too. Before that it takes nothing: a task that nobody finds is waited for by nobody,
    /// and whoever fences its driver would be told that there is none.
    pub(crate) fn is_found(&mut self) {
        self.is_known = true;
    }

    /// Drives what stands behind the units now, while nothing is in flight.
    pub(crate) fn set_storages(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            if let Ok(storage) = entry.unit.driven() {
                entry.passes = storage.passes().is_some();
                entry.storage = storage;
            }
        }
    }

    /// Somebody asks after tasks: says its word by letting go of it.
    pub(super) fn asked(&mut self, which: Which, question: Question, word: Arc<Word>) {
        match question {
            Question::Exist if self.tasks(which).next().is_some() => word.found(),
            Question::Exist => {}
            Question::End => {
                // What a queue that is disabled has not taken is answered once it is enabled, and nobody takes it back.
                let until = self.taken + if self.ring.queue.is_broken() { 0 } else { self.ring.queue.pending() as u64 };
                let left = self.tasks(which).count();
                self.wait_for(Fence { which, until, left, except: Vec::new(), word });
            }
            Question::EndOfTaken => {
                let waits = |request: &ScsiRequest| matches!(&request.work, Work::Reserve(reserve) if reserve.fences());
                let except: Vec<_> = self.tasks(which).filter(|it| waits(it)).map(|request| request.number).collect();
                let left = self.tasks(which).count() - except.len();
                self.wait_for(Fence { which, until: self.taken, left, except, word });
            }
        }
    }

    fn wait_for(&mut self, fence: Fence) {
        // A queue that completes nothing looks at none of them: those whose asker has gone end here.
        self.fences.retain(|fence| fence.word.is_wanted());
        self.fences.push(fence);
        self.give_up_untaken();
        self.look_at_fences();
    }

    /// Those of these tasks that are under way.
    fn tasks(&self, which: Which) -> impl Iterator<Item = &ScsiRequest> {
        let is_one = move |request: &ScsiRequest| {
            let unit = request.unit.and_then(|place| self.entries.get(usize::from(place))?.as_ref());
            unit.is_some_and(|entry| which.is(entry.unit.lun, request.tag))
        };
        self.ring.busy().map(|(_, slot)| &slot.request).filter(move |request| is_one(request))
    }

    /// Says its word to those whose tasks have ended.
    #[cold]
    fn look_at_fences(&mut self) {
        let (taken, is_broken) = (self.taken, self.ring.queue.is_broken());
        self.fences.retain(|fence| !fence.has_ended(taken, is_broken));
    }

    /// What a ring that ends has not taken is its next life's: who waits for that is told that nobody can say when it has ended.
    fn give_up_untaken(&mut self) {
        let (taken, ends) = (self.taken, self.ends);
        self.fences.retain(|fence| {
            let comes_to_it = !ends || fence.until <= taken;
            if !comes_to_it {
                fence.word.give_up();
            }
            comes_to_it
        });
    }

    /// A request has found its unit, and is a task from now on.
    #[cold]
    fn task_begins(&mut self, lun: Lun, head: u16) {
        let (tag, number) = self.named(head);
        let fences = self.fences.iter_mut().filter(|fence| fence.is_for(lun, tag, number));
        fences.for_each(|fence| fence.left += 1);
    }

    /// It is none any more.
    #[cold]
    fn task_ends(&mut self, lun: Lun, head: u16) {
        let (tag, number) = self.named(head);
        let fences = self.fences.iter_mut().filter(|fence| fence.is_for(lun, tag, number));
        fences.for_each(|fence| fence.left -= 1);
    }

    fn named(&mut self, head: u16) -> (u64, u64) {
        let request = &self.ring.slot(head).request;
        (request.tag, request.number)
    }

    #[inline]
    pub(super) fn entry(&mut self, place: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(place))?.as_mut()
    }

    /// The unit of a request.
    #[inline]
    pub(super) fn entry_of(&mut self, head: u16) -> Option<&mut Entry> {
        let place = self.ring.slot(head).request.unit?;
        self.entry(place)
    }

    fn place_of(&self, lun: Lun) -> Option<u16> {
        match self.places.as_slice() {
            [(only, place)] => (*only == lun).then_some(*place),
            places => places.binary_search_by_key(&lun, |(lun, _)| *lun).ok().map(|at| places[at].1),
        }
    }

    /// Takes the popped chain apart and starts it. `again`: an earlier life of the ring may have done it.
    fn start(&mut self, head: u16, again: bool, io: &mut Io<'_>) {
        self.turns.trace.taken(Some(head), io);
        let sizes = self.terms.sizes;
        let chain = &self.ring.queue.chain;
        let filled = vring::copy::read_at(chain.readable_segments(), 0, &mut self.head[..sizes.head_bytes()]);
        let (readable_bytes, writable_bytes) = (chain.readable_bytes(), chain.writable_bytes());
        let number = self.taken;
        self.taken += 1;
        let slot = &mut self.ring.slots[usize::from(head)];
        slot.kind = Kind::Refused as usize;
        slot.request.begin(chain.writable_segments(), sizes, number);
        let request = match decode_request(&self.head[..filled], readable_bytes, writable_bytes, sizes) {
            Ok(request) => request,
            Err(malformed) => {
                self.turns.report_refusal(&malformed);
                return self.end(head, 0, true, io);
            }
        };
        let (address, id, buffers) = (request.address, request.id, request.buffers);
        (slot.request.tag, slot.request.buffers) = (id, buffers);
        // Copied: a command changes what the ring is.
        let (mut cdb, len) = ([0; CDB_BYTES], request.cdb.len().min(CDB_BYTES));
        match request.cdb.first_chunk() {
            Some(bytes) => cdb = *bytes,
            None => cdb[..len].copy_from_slice(&request.cdb[..len]),
        }
        let Ok(Address::Unit { target, lun }) = address else {
            return self.transport(head, ResponseCode::BadTarget, io);
        };
        let lun = Lun { target, number: lun.number() };
        match self.place_of(lun) {
            Some(place) => {
                if let Some(entry) = self.entry(place) {
                    entry.refresh();
                    entry.in_flight += 1;
                }
                self.ring.slot(head).request.unit = Some(place);
                if !self.fences.is_empty() {
                    self.task_begins(lun, head);
                }
                self.command(head, &cdb[..len], again, io);
            }
            None if has_target(&self.list, target) => self.command_to_nobody(head, lun, &cdb[..len], io),
            None => self.transport(head, ResponseCode::BadTarget, io),
        }
    }

    /// Hands the request's task to its storage.
    #[inline]
    pub(super) fn submit(&mut self, head: u16, io: &mut Io<'_>) -> Step {
        match self.submitted(head) {
            Some((task, storage)) => storage.start(task, Token::request(head), io),
            None => Step::Done(Ok(())),
        }
    }

    /// The request's task, and the storage that has it.
    #[inline]
    pub(super) fn submitted(&mut self, head: u16) -> Option<(&mut Task, &dyn Storage)> {
        let request = &mut self.ring.slots[usize::from(head)].request;
        let entry = self.entries.get(usize::from(request.unit?))?.as_ref()?;
        Some((&mut request.task, &*entry.storage))
    }

    /// No command was processed.
    pub(super) fn transport(&mut self, head: u16, code: ResponseCode, io: &Io<'_>) {
        let buffers = self.ring.slot(head).request.buffers;
        self.respond(head, &Response::transport(&buffers, code), 0, io);
    }

    /// CHECK CONDITION.
    pub(super) fn check(&mut self, head: u16, sense: Sense, io: &Io<'_>) {
        let buffers = self.ring.slot(head).request.buffers;
        self.respond(head, &Response::check(&buffers, sense, 0), 0, io);
    }

    /// GOOD, `moved` bytes of data were moved, of which `sent` went to the driver.
    #[inline]
    pub(super) fn good(&mut self, head: u16, moved: u64, sent: u64, io: &Io<'_>) {
        let buffers = self.ring.slot(head).request.buffers;
        self.respond(head, &Response::good(&buffers, moved), sent, io);
    }

    /// Writes the response, behind which `sent` bytes are for the driver.
    pub(super) fn respond(&mut self, head: u16, response: &Response, sent: u64, io: &Io<'_>) {
        let descriptor = self.entry_of(head).is_some_and(|entry| entry.facts.mode().descriptor_sense);
        let request = &mut self.ring.slots[usize::from(head)].request;
        let bytes = response.encode(request.sizes, descriptor, &mut self.response);
        self.kept_bytes -= request.work.kept_bytes();
        let written = request.answer(bytes) + sent;
        let failed = (response.code, response.status) != (ResponseCode::Ok, Status::Good);
        self.end(head, written, failed, io);
    }

    pub(super) fn end(&mut self, head: u16, written: u64, failed: bool, io: &Io<'_>) {
        let place = self.ring.slot(head).request.unit.take();
        if let Some(place) = place
            && let Some(entry) = self.entry(place)
        {
            entry.in_flight -= 1;
            let lun = entry.unit.lun;
            if entry.gone && entry.in_flight == 0 {
                // Whoever has taken it out of the device holds its storage: nothing is closed here.
                self.entries[usize::from(place)] = None;
            }
            if !self.fences.is_empty() {
                self.task_ends(lun, head);
            }
        }
        let slot = self.ring.slot(head);
        self.turns.answered(slot, failed, io);
        self.ring.finish(head, u32::try_from(written).unwrap_or(u32::MAX));
    }
}

/// Bytes of the longest CDB that any command of ours has.
const CDB_BYTES: usize = 32;

impl Attachment for ScsiRing {
    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.ring.queue)
    }

    fn queue_mut(&mut self) -> Option<&mut Queue> {
        Some(&mut self.ring.queue)
    }

    fn note_in_flight(&mut self, from: u16) -> Option<u16> {
        self.ring.note_in_flight(from)
    }

    #[inline]
    fn next(&mut self, io: &mut Io<'_>) -> bool {
        if !self.is_known {
            return false;
        }
        let owed = self.ring.queue.owed() > 0;
        let popped = self.ring.pop(io.now_ns());
        if let Some(head) = popped {
            self.start(head, owed, io);
        }
        popped.is_some()
    }

    /// Or there is a word to say, since the queue broke between two turns.
    #[inline]
    fn is_waiting(&self) -> bool {
        let is_broken = self.ring.queue.is_broken();
        let has_word = is_broken && self.fences.iter().any(|fence| fence.has_ended(self.taken, true));
        (self.is_known && self.ring.queue.ready()) || has_word
    }

    fn arm(&mut self) -> bool {
        !self.turns.gate.closed() && self.is_known && self.ring.queue.arm()
    }

    fn ended(&mut self, completion: Completion, io: &mut Io<'_>) {
        let Some(head) = self.ring.in_flight(completion.token.index()) else {
            debug_assert!(false, "completion of {:?}, which is not in flight", completion.token);
            return;
        };
        self.turns.trace.ended(head, io);
        self.ring.slot(head).fresh = false;
        self.resume(head, completion, io);
    }

    #[inline]
    fn show_some(&mut self, io: &mut Io<'_>) {
        if self.turns.unshown >= PUBLISH_EVERY {
            self.ring.queue.publish();
            self.turns.shown_some(io);
        }
    }

    fn show(&mut self, io: &mut Io<'_>) {
        self.ring.queue.publish();
        self.ring.queue.notify(io);
        // The driver has been shown what they wait for.
        if !self.fences.is_empty() {
            self.look_at_fences();
        }
    }

    /// Requests of other rings may stand behind those of this one.
    fn lost(&mut self, is_dropped: bool) {
        // What its disks do for it goes on, and is waited for by those who ask from now on as by those who have asked.
        let counters = &self.turns.figures;
        for entry in self.entries.iter_mut().flatten().filter(|entry| entry.in_flight > 0) {
            let lost = entry.lost.get_or_insert_with(|| Lost::on(entry.unit.clone(), counters.clone()));
            if !is_dropped {
                lost.never_end();
            }
        }
        self.fences.retain(|fence| fence.left > 0);
        if !is_dropped {
            self.fences.iter().for_each(|fence| fence.word.give_up());
        }
        for slot in self.ring.slots.iter_mut().filter(|slot| slot.busy) {
            slot.request.task.lost();
            slot.request.pass_turn();
        }
        self.ring.abandon();
    }

    fn begin_owed(&mut self, io: &mut Io<'_>) -> bool {
        let (mut begun, mut begun_bytes) = (0, 0);
        while begun < BATCH_MAX && begun_bytes < TURN_BYTES_MAX {
            let Some(head) = self.ring.pop_owed(io.now_ns()) else { return false };
            begun += 1;
            let chain = &self.ring.queue.chain;
            begun_bytes += chain.writable_bytes() + chain.readable_bytes();
            self.start(head, true, io);
        }
        self.show(io);
        true
    }

    fn drain(&mut self, io: &mut Io<'_>) {
        while let Some(head) = self.ring.pop_owed(io.now_ns()) {
            self.start(head, true, io);
        }
        self.ends = true;
        self.give_up_untaken();
    }
}
