//! One frontend's session: what each message does and how it is answered.

pub(crate) mod handover;

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::PollFd;
use vhost::vhost_user::message::{
    FrontendReq, VHOST_USER_CONFIG_OFFSET, VhostTransferStateDirection, VhostUserLog, VhostUserMsgValidator,
    VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSingleMemoryRegion, VhostUserTransferDeviceState,
    VhostUserU64, VhostUserVringAddr, VhostUserVringState,
};
use vring::Memory;

use crate::channel::ChannelEnd;
use crate::device_state::{Conduit, FAILED, THROUGH_YOURS, Transfer};
use crate::features::{Acked, LOG_ALL, PROTOCOL, PROTOCOL_FEATURES, SHMEM, TRANSPORT};
use crate::inflight::{self, Inflight};
use crate::log::Log;
use crate::memory::{MEMORY_SLOTS, Table};
use crate::message::{has_own_answer, name};
use crate::refusal::Refusal;
use crate::rings::Ring;
use crate::wire::{Message, Wire};
use crate::{BackendChannel, Misspoken, QUEUES_MAX, SessionEnd, StopFd, Target};

/// What a message that succeeded is answered with.
#[derive(Debug)]
enum Answer {
    /// Nothing, unless the frontend asked for an acknowledgement.
    Done,
    /// The message's own answer.
    Body(Vec<u8>),
    /// The message's own answer, and the descriptor that comes with it.
    BodyAndFile(Vec<u8>, OwnedFd),
}

pub(crate) struct Session<'a> {
    wire: Wire,
    target: &'a mut dyn Target,
    stop: &'a StopFd,
    channel: ChannelEnd,
    acked: Acked,
    memory: Table,
    /// Where requests in flight are written down, once the frontend has shown it.
    inflight: Option<Inflight>,
    /// The frontend's dirty log, once it has shown one. It is used while VHOST_F_LOG_ALL is acknowledged.
    log: Option<Log>,
    /// A ring was started that takes requests and is to log, since the last log was shown.
    unlogged: bool,
    /// It was said that the guest's memory is missing.
    said_unshared: bool,
    /// The device's state, while it is moved.
    transfer: Option<Transfer>,
    rings: Vec<Ring>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        wire: Wire,
        target: &'a mut dyn Target,
        stop: &'a StopFd,
        channel: BackendChannel,
    ) -> Session<'a> {
        let count = target.queues_max().clamp(1, QUEUES_MAX);
        Session {
            wire,
            target,
            stop,
            channel: ChannelEnd::new(channel),
            acked: Acked::default(),
            memory: Table::default(),
            inflight: None,
            log: None,
            unlogged: false,
            said_unshared: false,
            transfer: None,
            rings: (0..count).map(Ring::new).collect(),
        }
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// The channel back, on which the session's thread looks for answers between messages.
    pub(crate) fn channel(&mut self) -> &mut ChannelEnd {
        &mut self.channel
    }

    /// What to poll for besides messages.
    pub(crate) fn other_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.channel.fds().chain(self.transfer.as_ref().and_then(Transfer::fd))
    }

    /// Does what there is to do between messages.
    pub(crate) fn turn(&mut self) {
        self.channel.turn();
        if let Some(transfer) = &mut self.transfer {
            transfer.turn();
        }
    }

    /// Takes in what has arrived; handles the message if it is complete now.
    pub(crate) fn advance(&mut self) -> Result<(), SessionEnd> {
        let Some(mut message) = self.wire.receive()? else {
            return Ok(());
        };
        let request = message.request;
        tracing::debug!("message {}", name(request));
        let ran = self.rings.iter().any(Ring::runs);
        let outcome = FrontendReq::try_from(request)
            .map_err(|_| Refusal::Unsupported)
            .and_then(|code| self.handle(code, &mut message));
        if ran || outcome.is_err() {
            self.give_up_if_idle(ran);
        }
        let answered = match outcome {
            Ok(Answer::Body(body)) => self.wire.reply(request, &body, None, self.stop),
            Ok(Answer::BodyAndFile(body, file)) => self.wire.reply(request, &body, Some(file.as_fd()), self.stop),
            Ok(Answer::Done) => self.acknowledge(&message, true),
            Err(refusal) => self.refuse(&message, &refusal),
        };
        if request == u32::from(FrontendReq::SET_CONFIG) {
            self.note_for_the_next();
        }
        answered
    }

    /// What rings need is given up while none runs. `is_awaited`: the frontend has its answer behind that.
    pub(crate) fn give_up_if_idle(&mut self, is_awaited: bool) {
        if !self.rings.iter().any(Ring::runs) {
            self.target.give_up(is_awaited);
        }
    }

    /// Whether something is kept that no ring needs.
    pub(crate) fn keeps(&self) -> bool {
        self.target.is_held() && !self.rings.iter().any(Ring::runs)
    }

    /// What the device is now is certain for a later backend, too: the frontend has been told.
    fn note_for_the_next(&self) {
        if let Some(region) = &self.inflight {
            region.set_notes(self.target.note());
        }
    }

    /// REPLY_ACK: zero for success (vhost-user, "VHOST_USER_PROTOCOL_F_REPLY_ACK").
    fn acknowledge(&self, message: &Message, success: bool) -> Result<(), SessionEnd> {
        if !self.acknowledges(message) {
            return Ok(());
        }
        self.answer(message, u64::from(!success))
    }

    fn answer(&self, message: &Message, value: u64) -> Result<(), SessionEnd> {
        self.wire.reply(message.request, &value.to_ne_bytes(), None, self.stop)
    }

    fn acknowledges(&self, message: &Message) -> bool {
        message.need_reply && self.acked.reply_ack()
    }

    /// The stream is in step, so a message that is wrong costs the frontend that message and nothing else, unless it
    /// waits for an answer that cannot say "no".
    fn refuse(&self, message: &Message, refusal: &Refusal) -> Result<(), SessionEnd> {
        let request = name(message.request);
        if let Refusal::Unavailable(why) = refusal {
            return Err(SessionEnd::Unavailable(why.clone()));
        }
        tracing::warn!("refused {request} from the frontend: {refusal}");
        match FrontendReq::try_from(message.request) {
            // "uses zero length of payload to indicate an error" (vhost-user, VHOST_USER_GET_CONFIG).
            Ok(FrontendReq::GET_CONFIG) => self.wire.reply(message.request, &[], None, self.stop),
            Ok(FrontendReq::SET_DEVICE_STATE_FD) => self.answer(message, THROUGH_YOURS | FAILED),
            Ok(FrontendReq::CHECK_DEVICE_STATE) => self.answer(message, FAILED),
            // A frontend that is not told would start its rings without what was in flight before, or speak of rings and
            // requests as nobody here understands them: those of a backend that has come back with other options.
            Ok(FrontendReq::SET_INFLIGHT_FD | FrontendReq::SET_FEATURES | FrontendReq::SET_PROTOCOL_FEATURES)
                if !self.acknowledges(message) =>
            {
                Err(SessionEnd::Misspoke(Misspoken::Unanswerable { request, reason: refusal.to_string() }))
            }
            Ok(code) if has_own_answer(code) => {
                Err(SessionEnd::Misspoke(Misspoken::Unanswerable { request, reason: refusal.to_string() }))
            }
            _ => self.acknowledge(message, false),
        }
    }

    fn handle(&mut self, code: FrontendReq, message: &mut Message) -> Result<Answer, Refusal> {
        use FrontendReq as R;
        match code {
            // Sessions have one frontend anyway. RESET_OWNER is no longer used, and the specification recommends to
            // ignore it.
            R::SET_OWNER | R::RESET_OWNER => message.no_body().map(|()| Answer::Done),
            R::GET_FEATURES => get(message, self.features_offered()),
            R::SET_FEATURES => self.set_features(message),
            R::GET_PROTOCOL_FEATURES => get(message, self.protocol_features_offered()),
            R::SET_PROTOCOL_FEATURES => self.set_protocol_features(message),
            R::GET_QUEUE_NUM => get(message, self.rings.len() as u64),
            R::GET_MAX_MEM_SLOTS => get(message, MEMORY_SLOTS as u64),
            R::SET_MEM_TABLE | R::ADD_MEM_REG | R::REM_MEM_REG => self.change_memory(code, message),
            R::SET_VRING_NUM | R::SET_VRING_BASE | R::SET_VRING_ENABLE => self.set_ring_state(code, message),
            R::SET_VRING_ADDR => self.set_ring_areas(message),
            R::SET_VRING_KICK | R::SET_VRING_CALL | R::SET_VRING_ERR => self.set_ring_fd(code, message),
            R::GET_VRING_BASE => self.get_ring_base(message),
            R::GET_CONFIG => self.get_config(message),
            R::SET_CONFIG => self.set_config(message),
            R::SET_BACKEND_REQ_FD => self.set_backend_channel(message),
            R::RESET_DEVICE => self.reset_device(message),
            R::GET_INFLIGHT_FD if self.acked.inflight() => self.get_inflight(message),
            R::SET_INFLIGHT_FD if self.acked.inflight() => self.set_inflight(message),
            R::SET_LOG_BASE if self.acked.log() => self.set_log(message),
            R::SET_DEVICE_STATE_FD if self.acked.device_state() => self.set_device_state_fd(message),
            R::GET_SHMEM_CONFIG if self.acked.shmem() => self.get_shmem_config(message),
            R::CHECK_DEVICE_STATE if self.acked.device_state() => self.check_device_state(message),
            _ => Err(Refusal::Unsupported),
        }
    }

    fn features_offered(&self) -> u64 {
        self.with_transport(self.target.features())
    }

    fn features_known(&self) -> u64 {
        self.with_transport(self.target.features_known())
    }

    fn with_transport(&self, features: u64) -> u64 {
        let log = if self.target.has_log() { LOG_ALL } else { 0 };
        features | TRANSPORT | log
    }

    fn protocol_features_offered(&self) -> u64 {
        let mut offered = PROTOCOL;
        offered.set(VhostUserProtocolFeatures::CONFIG, self.target.has_config());
        offered.set(VhostUserProtocolFeatures::INFLIGHT_SHMFD, self.target.has_inflight());
        offered.set(VhostUserProtocolFeatures::LOG_SHMFD, self.target.has_log());
        offered.set(VhostUserProtocolFeatures::DEVICE_STATE, self.target.has_device_state());
        offered.set(SHMEM, self.target.shared_memory_bytes().is_some());
        offered.bits()
    }

    fn set_features(&mut self, message: &Message) -> Result<Answer, Refusal> {
        let acked = message.decode::<VhostUserU64>()?.value;
        let unknown = acked & !self.features_known();
        if unknown != 0 {
            return Err(Refusal::Features(unknown));
        }
        let next = Acked { virtio: acked, ..self.acked };
        if let Some(memory) = self.memory.memory() {
            self.check_log(memory, next)?;
        }
        let before = std::mem::replace(&mut self.acked, next);
        self.target.set_features(acked & !(PROTOCOL_FEATURES | LOG_ALL));
        if before.log_all() != next.log_all() {
            self.tell_log();
        }
        // Rings that serve already and have no log write what nobody hears of.
        let begins = next.log_all() && !before.log_all();
        self.unlogged |= begins && self.log.is_none() && self.rings.iter().any(|ring| ring.is_serving(next));
        // Who begins again shows another log first, and this one says nothing about memory that comes until then.
        if before.log_all() && !next.log_all() {
            (self.log, self.unlogged) = (None, false);
        }
        Ok(Answer::Done)
    }

    fn set_protocol_features(&mut self, message: &Message) -> Result<Answer, Refusal> {
        let acked = message.decode::<VhostUserU64>()?.value;
        let unknown = acked & !self.protocol_features_offered();
        if unknown != 0 {
            return Err(Refusal::Features(unknown));
        }
        self.acked.protocol = acked;
        self.channel.set_acked(self.acked);
        Ok(Answer::Done)
    }

    fn change_memory(&mut self, code: FrontendReq, message: &mut Message) -> Result<Answer, Refusal> {
        let proposal = self.proposed_memory(code, message);
        let adopted = proposal.and_then(|memory| self.adopt_memory(memory));
        self.memory.forget_unused();
        adopted.map(|()| Answer::Done)
    }

    fn proposed_memory(&mut self, code: FrontendReq, message: &mut Message) -> Result<Arc<Memory>, Refusal> {
        match code {
            FrontendReq::SET_MEM_TABLE => self.memory.replaced(message.regions()?),
            FrontendReq::ADD_MEM_REG => {
                let region = message.decode::<VhostUserSingleMemoryRegion>()?;
                if !(*region).is_valid() {
                    return Err(Refusal::Body);
                }
                let file = message.fd()?;
                self.memory.added(&region, file)
            }
            // A descriptor may come along from old frontends; it is closed without a look (vhost-user,
            // VHOST_USER_REM_MEM_REG).
            _ => self.memory.removed(&*message.decode::<VhostUserSingleMemoryRegion>()?),
        }
    }

    /// Puts a memory table in force. Rings that run must find their areas in it, where they were.
    fn adopt_memory(&mut self, memory: Arc<Memory>) -> Result<(), Refusal> {
        let refusing = self.rings.iter().position(|ring| !ring.allows(&memory, self.acked));
        if let Some(at) = refusing {
            return Err(Refusal::RingMemory(at as u16));
        }
        self.check_log(&memory, self.acked)?;
        for ring in &mut self.rings {
            ring.prepare_memory(&memory, self.target);
        }
        self.target.set_memory(&memory);
        self.memory.adopt(memory);
        for index in 0..self.rings.len() {
            self.start_if_ready(index, false)?;
        }
        Ok(())
    }

    fn ring_index(&self, index: u32) -> Result<usize, Refusal> {
        let count = self.rings.len();
        match usize::try_from(index) {
            Ok(at) if at < count => Ok(at),
            _ => Err(Refusal::RingIndex { index, count: count as u16 }),
        }
    }

    fn start_if_ready(&mut self, at: usize, kicked: bool) -> Result<(), Refusal> {
        let found = (self.memory.memory(), self.inflight.as_ref(), self.log.as_ref());
        let ring = &mut self.rings[at];
        if found.0.is_none() && !self.said_unshared && ring.lacks_memory(self.acked) {
            tracing::warn!(
                "the guest's memory is not shared, and nothing it asks for is answered: share it (QEMU: share=on of its memory \
                 backend; libvirt: <access mode='shared'/>)"
            );
            self.said_unshared = true;
        }
        let was_serving = ring.is_serving(self.acked);
        ring.start_if_ready(kicked, found, self.acked, self.target)?;
        if ring.runs() {
            // Whoever moved the device's state has given that up.
            self.transfer = None;
        }
        self.unlogged |= self.acked.log_all() && !was_serving && ring.is_serving(self.acked);
        Ok(())
    }

    fn set_ring_state(&mut self, code: FrontendReq, message: &Message) -> Result<Answer, Refusal> {
        let VhostUserVringState { index, num } = message.decode()?;
        let at = self.ring_index(index)?;
        let ring = &mut self.rings[at];
        match code {
            FrontendReq::SET_VRING_NUM => ring.set_size(num, self.acked, self.target)?,
            FrontendReq::SET_VRING_BASE => ring.set_base(num, self.acked, self.target)?,
            _ if num <= 1 => {
                let memory = self.memory.memory();
                if let Some(((memory, log), 1)) = memory.zip(self.log.as_ref()).zip(Some(num)) {
                    ring.check_start(memory, log, self.acked)?;
                }
                ring.set_enabled(num == 1, self.target);
                self.unlogged |= num == 1 && self.acked.log_all() && self.log.is_none();
            }
            _ => return Err(Refusal::Body),
        }
        self.start_if_ready(at, false).map(|()| Answer::Done)
    }

    fn set_ring_areas(&mut self, message: &Message) -> Result<Answer, Refusal> {
        let areas = message.decode::<VhostUserVringAddr>()?;
        let at = self.ring_index(areas.index)?;
        self.rings[at].set_areas(&areas, self.log.as_ref(), self.acked, self.target)?;
        self.start_if_ready(at, false).map(|()| Answer::Done)
    }

    fn set_ring_fd(&mut self, code: FrontendReq, message: &mut Message) -> Result<Answer, Refusal> {
        let (index, fd) = message.ring_fd()?;
        let at = self.ring_index(index)?;
        let ring = &mut self.rings[at];
        match code {
            FrontendReq::SET_VRING_CALL => ring.set_call(fd, self.target)?,
            FrontendReq::SET_VRING_ERR => ring.set_err(fd),
            _ => {
                ring.set_kick(fd, self.target);
                self.start_if_ready(at, true)?;
            }
        }
        Ok(Answer::Done)
    }

    fn get_ring_base(&mut self, message: &Message) -> Result<Answer, Refusal> {
        let index = message.decode::<VhostUserVringState>()?.index;
        let at = self.ring_index(index)?;
        let position = self.rings[at].stop(self.target);
        let state = VhostUserVringState::new(index, position.payload());
        Ok(Answer::Body(bytes_of(&state)))
    }

    fn get_config(&mut self, message: &Message) -> Result<Answer, Refusal> {
        let (head, _) = message.config()?;
        let mut data = vec![0; head.size as usize];
        let offset = config_offset(head.offset);
        if !self.target.config(offset, &mut data) {
            return Err(Refusal::Config { offset, bytes: data.len() });
        }
        let mut body = bytes_of(&head);
        body.extend_from_slice(&data);
        Ok(Answer::Body(body))
    }

    /// GET_SHMEM_CONFIG. A frontend that never asks has acknowledged what it does not know: QEMU acknowledges SHMEM for any device.
    fn get_shmem_config(&mut self, message: &Message) -> Result<Answer, Refusal> {
        message.no_body()?;
        let sizes = self.target.shared_memory_bytes().map(NonZeroU64::get);
        self.target.shared_memory_told();
        Ok(Answer::Body(bytes_of(&VhostUserShMemConfig::new(sizes.iter().count() as u32, sizes.as_slice()))))
    }

    fn set_config(&mut self, message: &Message) -> Result<Answer, Refusal> {
        let (head, data) = message.config()?;
        let offset = config_offset(head.offset);
        // Killed between the change and its answer, this backend would leave a note of which nobody knows whether the
        // frontend believes it.
        if let Some(region) = &self.inflight {
            region.set_notes(None);
        }
        if !self.target.set_config(offset, data) {
            return Err(Refusal::Config { offset, bytes: data.len() });
        }
        Ok(Answer::Done)
    }

    fn set_backend_channel(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        message.no_body()?;
        self.channel.open(message.fd()?, self.acked)?;
        Ok(Answer::Done)
    }

    fn reset_device(&mut self, message: &Message) -> Result<Answer, Refusal> {
        message.no_body()?;
        for ring in &mut self.rings {
            ring.reset(self.target);
        }
        if let Some(region) = &self.inflight {
            region.reset();
        }
        self.transfer = None;
        self.target.reset();
        Ok(Answer::Done)
    }

    fn get_inflight(&self, message: &Message) -> Result<Answer, Refusal> {
        let (region, file) = inflight::create(&message.inflight()?, self.rings.len())?;
        Ok(Answer::BodyAndFile(inflight::body(&region, message.body.len()), file))
    }

    /// It is used from the next start of each ring on, as what those that serve have written down is in the old one.
    fn set_inflight(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        let shown = message.inflight()?;
        let region = Inflight::map(&shown, message.fd()?, self.rings.len())?;
        if let Some(at) = self.rings.iter().position(|ring| ring.is_serving(self.acked)) {
            return Err(Refusal::RingRuns(at as u16));
        }
        for ring in &mut self.rings {
            ring.prepare_inflight(self.target);
        }
        self.inflight = Some(region);
        Ok(Answer::Done)
    }

    /// SET_LOG_BASE, at any time. No ring uses the log before when this is answered, and its last marks are in it.
    ///
    /// QEMU waits for an answer and does not look at it; the `vhost` crate's frontend wants the description back, and would wait
    /// for the rest of anything shorter. So a log that is refused ends the session: a frontend that believed in marks would move
    /// a guest with old pages.
    fn set_log(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        let shown = message.decode::<VhostUserLog>()?;
        if self.target.has_device_state() && !self.acked.device_state() {
            return Err(Refusal::LogWithoutState);
        }
        let log = Log::map(&shown, message.fd()?)?;
        if let Some(memory) = self.memory.memory() {
            log.check_memory(memory)?;
        }
        self.rings.iter().try_for_each(|ring| ring.check_log(&log, self.acked))?;
        let before = self.log.replace(log);
        if self.acked.log_all() {
            self.tell_log();
            self.mark_unlogged();
        }
        // Not while a ring has it still: what goes with the last user, and takes its time, is no worker's to do.
        drop(before);
        Ok(Answer::Body(bytes_of(&shown)))
    }

    /// SET_DEVICE_STATE_FD: from now on the state goes through this pipe or socket, in the direction that the frontend wants.
    fn set_device_state_fd(&mut self, message: &mut Message) -> Result<Answer, Refusal> {
        self.transfer = None;
        let direction = message.decode::<VhostUserTransferDeviceState>()?.direction;
        let conduit = Conduit::new(message.fd()?)?;
        self.no_ring_runs()?;
        self.transfer = Some(if direction == VhostTransferStateDirection::SAVE as u32 {
            Transfer::save(conduit, self.target.save().map_err(Refusal::State)?)?
        } else {
            Transfer::load(conduit)
        });
        Ok(Answer::Body(THROUGH_YOURS.to_ne_bytes().to_vec()))
    }

    /// CHECK_DEVICE_STATE: all was moved. The device is what came, if something came.
    fn check_device_state(&mut self, message: &Message) -> Result<Answer, Refusal> {
        message.no_body()?;
        let state = self.transfer.take().ok_or(Refusal::StateMissing)?.end()?;
        if let Some(state) = state {
            self.target.load(state).map_err(Refusal::State)?;
        }
        Ok(Answer::Body(0_u64.to_ne_bytes().to_vec()))
    }

    fn no_ring_runs(&self) -> Result<(), Refusal> {
        match self.rings.iter().position(Ring::runs) {
            Some(at) => Err(Refusal::RingRuns(at as u16)),
            None => Ok(()),
        }
    }

    /// Whether the log has bits for this memory, and for the used rings, if there are rings that take requests and log. To
    /// others the log may come last: QEMU starts rings while an old one is here, shows another one, and enables them.
    fn check_log(&self, memory: &Memory, acked: Acked) -> Result<(), Refusal> {
        match &self.log {
            Some(log) if acked.log_all() => self.rings.iter().try_for_each(|ring| {
                if ring.is_serving(acked) {
                    log.check_memory(memory)?;
                }
                ring.check_log(log, acked)
            }),
            _ => Ok(()),
        }
    }

    /// QEMU up to 7.1 lets rings take requests before it shows the log: nobody knows what they wrote until then.
    fn mark_unlogged(&mut self) {
        if let (Some(log), Some(memory)) = (&self.log, self.memory.memory())
            && std::mem::take(&mut self.unlogged)
        {
            log.log().mark_all(memory);
        }
    }

    /// Tells the rings that run where they are to mark what they write.
    fn tell_log(&mut self) {
        for ring in &self.rings {
            ring.tell_log(self.log.as_ref(), self.acked, self.target);
        }
    }

    /// Ends the session: rings are drained first, then the guest's memory is let go, then the target is told.
    pub(crate) fn end(mut self, reason: &SessionEnd) {
        self.channel.close();
        for ring in &mut self.rings {
            ring.stop(self.target);
        }
        drop(self.memory);
        drop(self.wire);
        self.target.session_ended(reason);
    }
}

/// QEMU counts config offsets from the device's own config space, Cloud Hypervisor from the start of a virtio-mmio
/// style register space in which it begins at 0x100. No device here has a config space as long as that, so the offset
/// itself says which one is meant.
fn config_offset(offset: u32) -> u32 {
    offset.checked_sub(VHOST_USER_CONFIG_OFFSET).unwrap_or(offset)
}

/// Answer to the messages that ask for one number.
fn get(message: &Message, value: u64) -> Result<Answer, Refusal> {
    message.no_body()?;
    Ok(Answer::Body(value.to_ne_bytes().to_vec()))
}

fn bytes_of<T: VhostUserMsgValidator>(value: &T) -> Vec<u8> {
    value.as_slice().to_vec()
}
