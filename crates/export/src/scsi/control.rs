//! The control queue: task management (virtio 1.3, 5.6.6.2).

use super::kind::Kind;
use super::tasks::{self, Which};
use super::units::Units;
use crate::attachment::Attachment;
use crate::label::Label;
use crate::queue::{Broken, Queue};
use crate::turns::Turns;
use crate::virtqueue::Virtqueue;
use device::scsi::{
    Address, BadTarget, CONTROL_BYTES_MAX, Control, ResponseCode, Tmf, decode_control, notification_reply,
};
use engine::{Completion, Io, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use storage::kit::Jobs;
use vhost_user::RingStart;
use vring::Segment;

/// A request on the control queue.
pub(crate) struct ControlRequest {
    /// Where its reply goes.
    reply: Vec<Segment>,
    /// The reply's byte, once somebody else has it.
    code: Arc<AtomicU8>,
}

/// The control queue of a device.
pub(crate) struct ControlRing {
    turns: Turns,
    ring: Virtqueue<ControlRequest>,
    units: Arc<Units>,
    /// Threads on which it is waited for tasks.
    waits: Jobs,
}

impl ControlRing {
    pub(crate) fn new(start: RingStart, units: Arc<Units>, waits: Jobs, label: Label) -> Result<ControlRing, Broken> {
        let queue = Queue::new(start, label.clone())?;
        let turns = Turns::new(&Kind::NAMES, queue.size().into(), label);
        let request = || ControlRequest { reply: Vec::new(), code: Arc::default() };
        let ring = Virtqueue::new(queue, &turns.figures, request);
        Ok(ControlRing { turns, ring, units, waits })
    }

    fn start(&mut self, head: u16, io: &mut Io<'_>) {
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
            Tmf::AbortTask => self.wait(head, task, None, io),
            Tmf::AbortTaskSet | Tmf::ClearTaskSet => self.wait(head, unit, None, io),
            Tmf::LogicalUnitReset => self.wait(head, unit, Some(unit), io),
            Tmf::NexusReset => {
                let target = Which { lun: None, ..unit };
                self.wait(head, target, Some(target), io);
            }
            Tmf::QueryTask => self.look(head, task, io),
            Tmf::QueryTaskSet => self.look(head, unit, io),
            Tmf::ClearAca | Tmf::Unknown(_) => self.say(head, ResponseCode::FunctionRejected, io),
        }
    }

    /// Answers when these tasks have ended, and the units that are to be have been reset behind them.
    fn wait(&mut self, head: u16, which: Which, reset: Option<Which>, io: &mut Io<'_>) {
        let (label, units) = (self.turns.label.clone(), self.units.clone());
        self.elsewhere(head, io, move || {
            tasks::ended(&label, which);
            if let Some(which) = reset {
                units.reset(which);
            }
            ResponseCode::Ok
        });
    }

    /// Answers whether there are such tasks.
    fn look(&mut self, head: u16, which: Which, io: &mut Io<'_>) {
        let label = self.turns.label.clone();
        self.elsewhere(head, io, move || {
            if tasks::exist(&label, which) { ResponseCode::FunctionSucceeded } else { ResponseCode::Ok }
        });
    }

    fn elsewhere(&mut self, head: u16, io: &mut Io<'_>, job: impl FnOnce() -> ResponseCode + Send + 'static) {
        let code = self.ring.slot(head).request.code.clone();
        // A thread that panics leaves this behind.
        code.store(ResponseCode::Failure.byte(), Ordering::Relaxed);
        // Not here, even where it might wait: rings of this worker have to answer meanwhile.
        self.waits.run_elsewhere(io.reply(Token::request(head)), move || {
            code.store(job().byte(), Ordering::Relaxed);
            0
        });
    }

    fn say(&mut self, head: u16, code: ResponseCode, io: &Io<'_>) {
        self.finish(head, &[code.byte()], true, io);
    }

    fn finish(&mut self, head: u16, reply: &[u8], failed: bool, io: &Io<'_>) {
        let slot = self.ring.slot(head);
        let written = vring::copy::write_at(&slot.request.reply, 0, reply);
        slot.request.reply.clear();
        self.turns.answered(slot, failed, io.now_ns());
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
        let popped = self.ring.pop(io.now_ns());
        if let Some(head) = popped {
            self.start(head, io);
        }
        popped.is_some()
    }

    fn ended(&mut self, completion: Completion, io: &mut Io<'_>) {
        let Some(head) = self.ring.in_flight(completion.token.index()) else {
            debug_assert!(false, "completion of {:?}, which is not in flight", completion.token);
            return;
        };
        let slot = self.ring.slot(head);
        slot.fresh = false;
        let code = slot.request.code.load(Ordering::Relaxed);
        let failed = ![ResponseCode::Ok, ResponseCode::FunctionSucceeded].iter().any(|good| good.byte() == code);
        self.finish(head, &[code], failed, io);
    }

    fn show_some(&mut self, _io: &mut Io<'_>) {}

    fn show(&mut self, io: &mut Io<'_>) {
        self.ring.queue.publish();
        self.ring.queue.notify(io);
    }

    fn lost(&mut self) {
        self.ring.abandon();
    }

    fn drain(&mut self, io: &mut Io<'_>) {
        while let Some(head) = self.ring.pop_owed(io.now_ns()) {
            self.start(head, io);
        }
    }
}
