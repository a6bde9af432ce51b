//! The control queue: task management (virtio 1.3, 5.6.6.2).

use super::kind::Kind;
use super::tasks::{self, Asked, Question, Which, Word, word};
use super::units::Units;
use crate::attachment::Attachment;
use crate::label::Label;
use crate::queue::{Broken, Queue};
use crate::trace::{OTHER, Object, What};
use crate::turns::Turns;
use crate::virtqueue::Virtqueue;
use device::scsi::{
    Address, BadTarget, CONTROL_BYTES_MAX, Control, ResponseCode, Tmf, decode_control, notification_reply,
};
use engine::{Completion, Io, Token};
use std::sync::{Arc, Weak};
use vhost_user::RingStart;
use vring::Segment;

/// Requests that wait for tasks, at most: more are taken when these have been answered. Each ring looks at all of them with each request
/// that begins or ends.
const WAITING_MAX: usize = 16;

/// A request on the control queue.
#[derive(Default)]
pub(crate) struct ControlRequest {
    /// Where its reply goes.
    reply: Vec<Segment>,
    /// What it waits for.
    word: Weak<Word>,
    /// What is done and said when that has come.
    then: Then,
}

/// What follows the word of all rings.
#[derive(Clone, Copy, Debug, Default)]
enum Then {
    /// Says whether there are such tasks.
    #[default]
    Say,
    /// Says that it is done: there are none any more.
    Done,
    /// Resets these units, and says so.
    Reset(Which),
    /// The driver has lost its way to these units, and it is said.
    LoseNexus(Which),
}

/// The control queue of a device.
pub(crate) struct ControlRing {
    turns: Turns,
    ring: Virtqueue<ControlRequest>,
    units: Arc<Units>,
    /// What waits is left to the ring's next life from now on.
    suspended: bool,
    /// Requests that were.
    owed: Vec<u16>,
}

impl ControlRing {
    pub(crate) fn new(start: RingStart, units: Arc<Units>, label: Label) -> Result<ControlRing, Broken> {
        let queue = Queue::new(start, label.clone())?;
        let turns = Turns::new(&Kind::NAMES, queue.size().into(), label);
        let ring = Virtqueue::new(queue, &turns.figures, ControlRequest::default);
        Ok(ControlRing { turns, ring, units, suspended: false, owed: Vec::new() })
    }

    fn has_room(&self) -> bool {
        self.ring.queue.in_flight() < WAITING_MAX
    }

    fn start(&mut self, head: u16, io: &mut Io<'_>) {
        self.turns.trace.taken(Some(head), io);
        let chain = &self.ring.queue.chain;
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let filled = vring::copy::read_at(chain.readable_segments(), 0, &mut bytes);
        let decoded = decode_control(&bytes[..filled], chain.writable_bytes());
        let writable = chain.writable_segments().to_vec();
        let slot = self.ring.slot(head);
        slot.kind = Kind::Task as usize;
        slot.request.reply = writable;
        match decoded {
            Err(error) => {
                slot.kind = Kind::Refused as usize;
                slot.request.reply.clear();
                self.turns.report_refusal(&error);
                self.finish(head, &[], true, io);
            }
            Ok(Control::Notifications { address, .. }) => {
                let code = match self.unit_of(address) {
                    Ok(_) => ResponseCode::Ok,
                    Err(code) => code,
                };
                self.finish(head, &notification_reply(0, code), code != ResponseCode::Ok, io);
            }
            Ok(Control::Tmf { function, address, id }) => self.manage(head, (function, address, id), io),
        }
    }

    /// The unit or the target that is meant: `None` for all units of the target.
    fn unit_of(&self, address: Result<Address, BadTarget>) -> Result<values::Lun, ResponseCode> {
        match address {
            Ok(Address::Unit { target, lun }) => {
                let lun = values::Lun { target, number: lun.number() };
                match self.units.has(lun) {
                    _ if !self.units.has_target(target) => Err(ResponseCode::BadTarget),
                    true => Ok(lun),
                    false => Err(ResponseCode::IncorrectLun),
                }
            }
            Ok(Address::ReportLuns { .. }) => Err(ResponseCode::IncorrectLun),
            Err(BadTarget) => Err(ResponseCode::BadTarget),
        }
    }

    fn manage(&mut self, head: u16, (function, address, id): (Tmf, Result<Address, BadTarget>, u64), io: &mut Io<'_>) {
        let lun = match self.unit_of(address) {
            // A nexus has all units of its target, whichever is named.
            Err(ResponseCode::IncorrectLun) if function == Tmf::NexusReset => match address {
                Ok(Address::Unit { target, lun }) => values::Lun { target, number: lun.number() },
                _ => return self.say(head, ResponseCode::IncorrectLun, io),
            },
            Err(code) => return self.say(head, code, io),
            Ok(lun) => lun,
        };
        let unit = Which::of_unit(lun);
        let task = Which { tag: Some(id), ..unit };
        match function {
            Tmf::AbortTask => self.ask(head, task, Then::Done, io),
            Tmf::AbortTaskSet | Tmf::ClearTaskSet => self.ask(head, unit, Then::Done, io),
            Tmf::LogicalUnitReset => self.ask(head, unit, Then::Reset(unit), io),
            Tmf::NexusReset => {
                let target = Which { lun: None, ..unit };
                self.ask(head, target, Then::LoseNexus(target), io);
            }
            Tmf::QueryTask => self.ask(head, task, Then::Say, io),
            Tmf::QueryTaskSet => self.ask(head, unit, Then::Say, io),
            Tmf::ClearAca | Tmf::Unknown(_) => self.say(head, ResponseCode::FunctionRejected, io),
        }
    }

    /// Asks the device's rings of these tasks. The request goes on when they have answered.
    fn ask(&mut self, head: u16, which: Which, then: Then, io: &mut Io<'_>) {
        let question = if matches!(then, Then::Say) { Question::Exist } else { Question::End };
        let own = Asked::own(self.turns.label.keeper(), which, question);
        let asked = match then {
            Then::Reset(which) => own.and(self.units.others_on(which)),
            Then::Say | Then::Done | Then::LoseNexus(_) => own,
        };
        let unit = which.lun.map(|number| Object::Unit(values::Lun { target: which.target, number }));
        self.turns.trace.asks(What { object: unit, range: None });
        let word = tasks::ask(asked, io.reply_by(OTHER, Token::request(head)));
        let slot = self.ring.slot(head);
        (slot.request.word, slot.request.then) = (word, then);
        // For requests that are asked after themselves.
        slot.waits();
        self.turns.trace.pending(head, io);
    }

    /// The rings have answered.
    fn conclude(&mut self, head: u16, result: i32, io: &Io<'_>) {
        let code = match (result, self.ring.slot(head).request.then) {
            // A ring that has fallen meanwhile may not have been asked.
            (word::NONE, Then::Reset(which)) if !self.units.others_on(which).lost.is_empty() => ResponseCode::Failure,
            (word::NONE, Then::Reset(which)) => {
                self.units.reset(which);
                ResponseCode::Ok
            }
            (word::NONE, Then::LoseNexus(which)) => {
                self.units.lose_nexus(which);
                ResponseCode::Ok
            }
            (word::NONE, Then::Say | Then::Done) => ResponseCode::Ok,
            (word::FOUND, Then::Say) => ResponseCode::FunctionSucceeded,
            _ => ResponseCode::Failure,
        };
        let failed = code == ResponseCode::Failure;
        self.finish(head, &[code.byte()], failed, io);
    }

    fn say(&mut self, head: u16, code: ResponseCode, io: &Io<'_>) {
        self.finish(head, &[code.byte()], true, io);
    }

    fn finish(&mut self, head: u16, reply: &[u8], failed: bool, io: &Io<'_>) {
        let slot = self.ring.slot(head);
        let written = vring::copy::write_at(&slot.request.reply, 0, reply);
        slot.request.reply.clear();
        self.turns.answered(slot, failed, io);
        // A reply has five bytes at most.
        self.ring.finish(head, written as u32);
    }
}

impl Attachment for ControlRing {
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

    fn next(&mut self, io: &mut Io<'_>) -> bool {
        if !self.has_room() {
            return false;
        }
        let popped = self.ring.pop(io.now_ns());
        if let Some(head) = popped {
            self.start(head, io);
        }
        popped.is_some()
    }

    fn is_waiting(&self) -> bool {
        self.has_room() && self.ring.queue.ready()
    }

    /// Without room, what waits is looked at when something has been answered.
    fn arm(&mut self) -> bool {
        !self.turns.gate.closed() && self.has_room() && self.ring.queue.arm()
    }

    fn ended(&mut self, completion: Completion, io: &mut Io<'_>) {
        let Some(head) = self.ring.in_flight(completion.token.index()) else {
            debug_assert!(false, "completion of {:?}, which is not in flight", completion.token);
            return;
        };
        self.turns.trace.ended(head, io);
        self.ring.slot(head).fresh = false;
        if self.suspended && completion.result == word::GIVEN_UP {
            self.ring.slot(head).request.reply.clear();
            self.ring.put_off(head);
            self.turns.trace.put_off(head);
            self.owed.push(head);
            return;
        }
        self.conclude(head, completion.result, io);
    }

    fn show_some(&mut self, _io: &mut Io<'_>) {}

    fn show(&mut self, io: &mut Io<'_>) {
        self.ring.queue.publish();
        self.ring.queue.notify(io);
    }

    fn lost(&mut self, _is_dropped: bool) {
        self.ring.abandon();
    }

    /// Tasks may take as long as their disks do, and whoever stops the ring does not wait for that: what it has taken fails, or is the
    /// next life's.
    fn drain(&mut self, io: &mut Io<'_>) {
        while !self.suspended
            && let Some(head) = self.ring.pop_owed(io.now_ns())
        {
            self.start(head, io);
        }
        let mut waiting: Vec<_> =
            self.ring.busy().map(|(_, slot)| (slot.started_ns, slot.request.word.clone())).collect();
        waiting.sort_by_key(|(started_ns, _)| *started_ns);
        waiting.iter().filter_map(|(_, word)| word.upgrade()).for_each(|word| word.give_up());
    }

    /// All of them wait for tasks of other rings.
    fn requests_to_leave(&self) -> usize {
        self.requests_in_flight()
    }

    fn suspend(&mut self) {
        self.suspended = true;
    }

    /// What was left, and what an earlier life has left to this one and this one did not get to.
    fn take_owed(&mut self) -> Vec<u16> {
        let mut owed = std::mem::take(&mut self.owed);
        owed.extend(self.ring.queue.take_owed());
        owed
    }
}
