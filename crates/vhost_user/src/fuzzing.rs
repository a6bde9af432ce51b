//! The fuzz target's body: a frontend that says anything, in any order, with any descriptors, and guest memory that it
//! writes and shortens meanwhile.
//!
//! The target in `fuzz/` calls it, and so do the crate's own tests. Beside panics it looks for a session that breaks its
//! promises to the target: rings started twice or stopped without running, indices that are not there, rings that outlive
//! their session.

mod device;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use vhost::vhost_user::message::BackendReq;

use device::Device;

use crate::session::Session;
use crate::wire::{VERSION, Wire};
use crate::{BackendChannel, SessionEnd, StopFd};

/// Queues of the device.
const QUEUES: usize = 3;
/// Bytes of its configuration space.
const CONFIG_BYTES: usize = 60;
/// Steps of one input.
const STEPS_MAX: usize = 64;
/// NEED_REPLY of a message's flags (vhost-user, "Header").
const NEED_REPLY: u32 = 8;
/// Lengths of the files that memory can be made of.
const FILES: [u64; 3] = [0x1_0000, 0x3000, 100];
/// Addresses in the frontend differ from the guest's by this.
const USER_BASE: u64 = 0x7000_0000_0000;
/// Requests up to the last of the specification, and one that is none.
const REQUESTS: u8 = 45;

thread_local! {
    /// Made once for all inputs.
    static THINGS: Option<Rc<Things>> = Things::new().map(Rc::new);
}

/// Plays one input and returns how many rings were started.
///
/// # Panics
/// When the session breaks one of its promises; that is what the fuzzer looks for.
pub fn session(data: &[u8]) -> usize {
    let Some(things) = THINGS.with(|things| things.as_ref().map(Rc::clone)) else {
        return 0; // Without descriptors from the system there is nothing to test.
    };
    things.renew();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((ours, theirs)) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return 0;
    };
    let mut device = Device::default();
    let channel = BackendChannel::default();
    let session = Session::new(Wire::new(ours), &mut device, &things.stop, channel.clone());
    let back = Back { channel, far: None, asked: 0, told: Arc::default() };
    let mut player = Player { input: Input(data), things: &things, theirs, back };
    let (session, reason) = player.play(session);
    session.end(&reason);
    let Back { asked, told, .. } = player.back;
    assert_eq!(told.load(Ordering::Relaxed), asked, "a request of ours is answered more or less than once");
    assert!(device.rings.iter().all(Option::is_none), "a ring outlives its session");
    assert!(device.ended, "the target is not told of the end");
    device.started
}

/// What messages carry.
struct Things {
    files: Vec<OwnedFd>,
    others: Vec<OwnedFd>,
    stop: StopFd,
}

impl Things {
    fn new() -> Option<Things> {
        let file = || memfd_create("guest", MemfdFlags::CLOEXEC).ok();
        let others = vec![
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?,
            open("/", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?,
            open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?,
        ];
        let files = FILES.iter().map(|_| file()).collect::<Option<_>>()?;
        Some(Things { files, others, stop: StopFd::new().ok()? })
    }

    /// What an earlier input wrote must not reach a later one.
    fn renew(&self) {
        for (file, len) in self.files.iter().zip(FILES) {
            let renewed = ftruncate(file, 0).and_then(|()| ftruncate(file, len));
            renewed.expect("a memfd takes any length");
        }
    }

    fn choose(&self, choice: u8) -> BorrowedFd<'_> {
        let all = self.files.len() + self.others.len();
        let at = usize::from(choice) % all;
        self.files.get(at).unwrap_or_else(|| &self.others[at - self.files.len()]).as_fd()
    }
}

/// What is left of the input; reads zeros at its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let (first, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        first.to_vec()
    }

    /// A number that is mostly small, sometimes near a border.
    fn number(&mut self) -> u64 {
        let (choice, value) = (self.u8(), u64::from(self.u16()));
        match choice % 6 {
            0 => value,
            1 => value & 0xff,
            2 => value << 4,
            3 => 1 << (value % 64),
            4 => u64::MAX - value,
            _ => 0x8000_0000 | value,
        }
    }

    /// An address of the frontend's: mostly in the first pages of memory, where areas can be aligned as they must.
    fn user_addr(&mut self) -> u64 {
        let (choice, value) = (self.u8(), u64::from(self.u16()));
        match choice % 8 {
            0 => self.number(),
            1 => USER_BASE + value,
            _ => USER_BASE + (value & 0xfff) * 16,
        }
    }

    /// A region as messages name it: guest address, length, frontend's address, offset.
    fn region(&mut self) -> [u64; 4] {
        let (choice, page) = (self.u8(), u64::from(self.u8() & 0x1f));
        let guest_addr = page << 12;
        let bytes = match choice & 3 {
            0 => self.number(),
            at => FILES[usize::from(at) - 1],
        };
        let user_addr = if choice & 4 == 0 { USER_BASE + guest_addr } else { self.number() };
        let offset = if choice & 0x38 == 0x38 { self.number() } else { 0 };
        [guest_addr, bytes, user_addr, offset]
    }
}

/// Bytes of fields in a row.
fn words<const N: usize>(fields: [u64; N]) -> Vec<u8> {
    fields.into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// A ring's index and a number.
fn state(index: u32, number: u32) -> Vec<u8> {
    [index, number].into_iter().flat_map(u32::to_ne_bytes).collect()
}

struct Player<'a> {
    input: Input<'a>,
    things: &'a Things,
    theirs: OwnedFd,
    back: Back,
}

/// The channel back, and who asks on it.
struct Back {
    channel: BackendChannel,
    /// The frontend's end.
    far: Option<OwnedFd>,
    asked: usize,
    told: Arc<AtomicUsize>,
}

impl<'a> Player<'a> {
    /// Plays all steps; the session as it is then, and why it ends.
    fn play<'s>(&mut self, mut session: Session<'s>) -> (Session<'s>, SessionEnd) {
        for _ in 0..STEPS_MAX {
            if self.input.0.is_empty() {
                break;
            }
            if let Err(reason) = self.step(&mut session) {
                return (session, reason);
            }
        }
        (session, SessionEnd::Disconnected)
    }

    fn step(&mut self, session: &mut Session<'_>) -> Result<(), SessionEnd> {
        match self.input.u8() % 13 {
            0 => self.poke(),
            1 => self.shorten(),
            2 => return self.whole_ring(session),
            3 => return self.negotiate(session),
            4 => {
                // Not a message, or part of one, or more than one.
                let count = usize::from(self.input.u8());
                let bytes = self.input.bytes(count);
                return self.send(session, &bytes, &[]);
            }
            11 => return self.back(session),
            12 => return self.state(session),
            _ => {
                let request = u32::from(self.input.u8() % REQUESTS);
                let flags = if self.input.u8() & 1 == 0 { VERSION } else { VERSION | NEED_REPLY };
                let body = self.body();
                let fds = self.fds();
                return self.message(session, request, flags, &body, &fds);
            }
        }
        Ok(())
    }

    /// Writes into a file that may be memory.
    fn poke(&mut self) {
        let (choice, at, count) = (self.input.u8(), self.input.u16(), self.input.u8() & 31);
        let bytes = self.input.bytes(usize::from(count));
        let file = &self.things.files[usize::from(choice) % FILES.len()];
        // Beyond the end it would become longer, which is another thing that frontends do.
        let _full = rustix::io::pwrite(file, &bytes, u64::from(at));
    }

    /// Shortens a file that may be memory, or makes it as long as it was.
    fn shorten(&mut self) {
        let (choice, pages) = (self.input.u8(), u64::from(self.input.u8()));
        let at = usize::from(choice) % FILES.len();
        let bytes = if choice & 0x80 == 0 { pages << 12 } else { FILES[at] };
        ftruncate(&self.things.files[at], bytes).expect("a memfd takes any length");
    }

    /// What frontends do first.
    fn negotiate(&mut self, session: &mut Session<'_>) -> Result<(), SessionEnd> {
        // All that is offered of the device's and the transport's features, and of the protocol's.
        let wishes = self.input.u8();
        let (log, moves) = (u64::from(wishes >> 3 & 1), u64::from(wishes >> 4 & 1));
        let features =
            1 << 9 | 1 << 28 | 1 << 32 | u64::from(wishes & 1) << 29 | u64::from(wishes >> 1 & 1) << 30 | log << 26;
        self.message(session, 2, VERSION, &words([features]), &[])?;
        let protocol = 1
            | log << 1
            | 1 << 3
            | 1 << 5
            | 1 << 9
            | u64::from(wishes >> 2 & 1) << 12
            | 1 << 13
            | 1 << 15
            | moves << 19;
        self.message(session, 16, VERSION, &words([protocol]), &[])
    }

    /// Everything that starts a ring, so that an input need not find it by luck.
    fn whole_ring(&mut self, session: &mut Session<'_>) -> Result<(), SessionEnd> {
        let (index, shift, base) = (u32::from(self.input.u8()) % QUEUES as u32, self.input.u8() % 9, self.input.u16());
        let with_memory = self.input.u8() & 3 != 0;
        let things = self.things;
        if with_memory {
            let mut table = words([1]);
            table.extend(words([0, FILES[0], USER_BASE, 0]));
            self.message(session, 5, VERSION, &table, &[things.files[0].as_fd()])?;
        }
        let start = USER_BASE + u64::from(index) * 0x4000;
        let mut areas = state(index, 0);
        areas.extend(words([start, start + 0x2000, start + 0x1000, 0]));
        let which = words([u64::from(index)]);
        let kick = things.others[0].as_fd();
        self.message(session, 8, VERSION, &state(index, 1 << shift), &[])?;
        self.message(session, 10, VERSION, &state(index, u32::from(base)), &[])?;
        self.message(session, 9, VERSION, &areas, &[])?;
        self.message(session, 13, VERSION, &which, &[kick])?;
        self.message(session, 12, VERSION, &which, &[kick])?;
        self.message(session, 18, VERSION, &state(index, 1), &[])
    }

    /// Moves the device's state, or a part of it, and asks what came of that.
    fn state(&mut self, session: &mut Session<'_>) -> Result<(), SessionEnd> {
        let choice = self.input.u8();
        let Ok((reader, writer)) = std::io::pipe() else { return Ok(()) };
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        let loads = choice & 1;
        let (theirs, ours) = if loads == 1 { (reader, writer) } else { (writer, reader) };
        rustix::io::ioctl_fionbio(&ours, true).expect("a pipe need not block");
        self.message(session, 42, VERSION, &state(loads.into(), 0), &[theirs.as_fd()])?;
        drop(theirs);
        let count = usize::from(self.input.u8());
        if loads == 1 {
            // The session may have closed its end.
            let _written = rustix::io::write(&ours, &self.input.bytes(count));
        } else {
            let _read = rustix::io::read(&ours, &mut vec![0; count][..]);
        }
        session.turn();
        if choice & 2 == 0 {
            drop(ours);
        }
        if choice & 4 == 0 {
            self.message(session, 43, VERSION, &[], &[])?;
        }
        Ok(())
    }

    /// Something on the channel back.
    fn back(&mut self, session: &mut Session<'_>) -> Result<(), SessionEnd> {
        const CODES: [BackendReq; 3] = [BackendReq::CONFIG_CHANGE_MSG, BackendReq::SHMEM_MAP, BackendReq::IOTLB_MSG];
        let choice = self.input.u8();
        let code = CODES[usize::from(choice >> 4) % CODES.len()];
        match choice % 8 {
            0 => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                if let Ok((near, far)) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) {
                    self.back.far = Some(far);
                    self.message(session, 21, VERSION, &[], &[near.as_fd()])?;
                }
            }
            1 => {
                let _is_on_its_way = self.back.channel.config_changed();
            }
            2..=4 => {
                let told = self.back.told.clone();
                let file = (choice & 8 != 0).then(|| self.things.choose(choice).try_clone_to_owned().ok()).flatten();
                let patience = Duration::from_secs(u64::from(choice & 1) * 60);
                self.back.asked += 1;
                self.back.channel.ask(code, &[choice; 5], file, patience, move |_outcome| {
                    told.fetch_add(1, Ordering::Relaxed);
                });
            }
            5 => self.back.far = None,
            6 => {
                let mut answer = crate::wire::header(code.into(), VERSION | 4, 8).to_vec();
                answer.extend(self.input.number().to_ne_bytes());
                self.answer(&answer);
            }
            _ => {
                let count = usize::from(self.input.u8() & 63);
                let bytes = self.input.bytes(count);
                self.answer(&bytes);
            }
        }
        session.turn();
        if let (Some(far), true) = (&self.back.far, choice & 64 != 0) {
            while recv(far, &mut [0; 4096][..], RecvFlags::DONTWAIT).is_ok_and(|(read, _)| read > 0) {}
        }
        Ok(())
    }

    fn answer(&self, bytes: &[u8]) {
        if let Some(far) = &self.back.far {
            // The channel may have been closed at the other end.
            let _sent = rustix::net::send(far, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    fn body(&mut self) -> Vec<u8> {
        match self.input.u8() % 10 {
            0 => Vec::new(),
            1 => {
                let count = usize::from(self.input.u8());
                self.input.bytes(count)
            }
            2 => {
                let index = u32::from(self.input.u8() % 5);
                state(index, self.input.number() as u32)
            }
            3 => words([self.input.number()]),
            4 => {
                let mut body = state(u32::from(self.input.u8() % 4), u32::from(self.input.u8() & 1));
                let areas = [self.input.user_addr(), self.input.user_addr(), self.input.user_addr()];
                body.extend(words(areas));
                body.extend(words([self.input.number()]));
                body
            }
            5 => {
                let count = self.input.u8() % 10;
                let mut body = words([u64::from(count)]);
                for _ in 0..count {
                    body.extend(words(self.input.region()));
                }
                body
            }
            6 => {
                let mut body = words([0]);
                body.extend(words(self.input.region()));
                body
            }
            7 => {
                let (offset, size) = (self.input.number() as u32, self.input.number() as u32);
                let mut body: Vec<u8> = [offset, size, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
                body.resize(12 + (size as usize).min(300), self.input.u8());
                body
            }
            // Log description: size, offset.
            9 => words([self.input.number(), self.input.number()]),
            _ => {
                // Inflight description: size, offset, queues, their size, and padding.
                let mut body = words([self.input.number(), self.input.number()]);
                body.extend(self.input.u16().to_ne_bytes());
                body.extend(self.input.u16().to_ne_bytes());
                body.resize(if self.input.u8() & 1 == 0 { 24 } else { 20 }, 0);
                body
            }
        }
    }

    fn fds(&mut self) -> Vec<BorrowedFd<'a>> {
        let count = match self.input.u8() {
            count @ 0..=239 => count % 3,
            count => count - 230,
        };
        let things = self.things;
        (0..count).map(|_| things.choose(self.input.u8())).collect()
    }

    fn message(
        &self,
        session: &mut Session<'_>,
        request: u32,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SessionEnd> {
        let mut bytes = crate::wire::header(request, flags, body.len() as u32).to_vec();
        bytes.extend(body);
        self.send(session, &bytes, fds)
    }

    /// Sends bytes, has the session take in all of it, and reads what it answers.
    fn send(&self, session: &mut Session<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SessionEnd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        if !bytes.is_empty() {
            let sent = sendmsg(&self.theirs, &[std::io::IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
            assert_eq!(sent, Ok(bytes.len()), "the session does not take in what it is sent");
        }
        while rustix::io::ioctl_fionread(session.wire().as_fd()).is_ok_and(|unread| unread > 0) {
            let advanced = session.advance();
            let mut answers = [0; 4096];
            while recv(&self.theirs, &mut answers[..], RecvFlags::DONTWAIT).is_ok_and(|(read, _)| read > 0) {}
            advanced?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::{seeds, session};

    /// The steps of [`super::Player::step`] that seeds are made of.
    fn steps() -> Vec<(&'static str, Vec<u8>)> {
        let negotiate = [3, 7];
        let ring = |index: u8, shift: u8| [2, index, shift, 0, 0, 1];
        // Request, flags, kind of body and its fields, descriptors.
        let message = |rest: &[u8]| [&[5][..], rest].concat();
        // An available index of 1 in the first ring's area, then a descriptor of 64 bytes in the first pages.
        let offer = [
            &[0, 0, 0x02, 0x10, 2, 1, 0][..],
            &[0, 0, 0, 0, 16],
            &[0, 0x80, 0, 0, 0, 0, 0, 0],
            &[64, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        let stop = message(&[11, 0, 2, 0, 1, 0, 0, 0]);
        vec![
            ("negotiate", negotiate.to_vec()),
            ("ring", [&negotiate[..], &ring(0, 4)].concat()),
            ("rings", [&negotiate[..], &ring(0, 4), &ring(1, 8), &ring(2, 0), &stop, &ring(0, 3)].concat()),
            ("request", [&negotiate[..], &offer, &ring(0, 4), &stop].concat()),
            ("shrink", [&negotiate[..], &offer, &ring(0, 4), &[1, 0, 0], &stop, &ring(0, 4)].concat()),
            ("add_region", [&negotiate[..], &ring(0, 4), &message(&[37, 1, 6, 2, 0x11, 1, 1])].concat()),
            ("remove_region", [&negotiate[..], &ring(0, 4), &message(&[38, 1, 6, 1, 0, 0])].concat()),
            ("table", [&negotiate[..], &message(&[5, 1, 5, 2, 1, 0, 2, 0x10, 2, 0, 1])].concat()),
            ("config", [&negotiate[..], &message(&[24, 0, 7, 0, 0, 0, 0, 60, 0, 0, 0])].concat()),
            ("inflight_get", [&negotiate[..], &message(&[31, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0, 16, 0, 0, 0])].concat()),
            (
                "inflight",
                [&negotiate[..], &message(&[32, 1, 8, 2, 0, 4, 0, 0, 0, 2, 0, 16, 0, 0, 1, 0]), &ring(0, 4)].concat(),
            ),
            ("backend_channel", [&negotiate[..], &message(&[21, 1, 0, 1, 3])].concat()),
            // Opened; a config change; two requests; an answer to the first; a wrong one.
            (
                "backend_answers",
                [&negotiate[..], &[11, 0, 11, 1, 11, 3, 11, 19, 11, 6, 1, 5, 0, 11, 6, 1, 5, 0]].concat(),
            ),
            ("backend_closed", [&negotiate[..], &[11, 0, 11, 3, 11, 5, 11, 3]].concat()),
            ("reset", [&negotiate[..], &ring(0, 4), &message(&[34, 1, 0, 0]), &ring(1, 4)].concat()),
            // All that is offered, a log of two bytes, and its flag for the ring that runs; then the log becomes shorter.
            (
                "log",
                [
                    &[3, 15][..],
                    &offer,
                    &ring(0, 4),
                    &message(&[6, 0, 9, 0, 2, 0, 0, 0, 0, 1, 1]),
                    &message(&[9, 0, 4, 0, 1, 2, 0, 0, 2, 0, 2, 2, 0, 1, 0, 0, 0x20, 0]),
                    &[1, 1, 0],
                    &message(&[18, 0, 2, 0, 1, 1, 0, 0]),
                    &stop,
                ]
                .concat(),
            ),
            // Out, in, and not to its end; then a ring that stands in the way.
            (
                "state",
                [&[3, 31][..], &[12, 0, 200], &[12, 1, 4, 1, 2, 3, 4], &[12, 3, 1, 1], &ring(0, 4), &[12, 0, 9]]
                    .concat(),
            ),
            ("garbage", [&[4, 16][..], &[0xff; 16]].concat()),
            ("split_header", [&[4, 5][..], &[1, 0, 0, 0, 1], &[4, 7], &[0, 0, 0, 0, 0, 0, 0]].concat()),
        ]
    }

    #[test]
    fn the_seeds_are_these() {
        let mut started = 0;
        seeds::hold("session", &steps(), |seed| started += session(seed));
        assert!(started >= 10, "the seeds started only {started} rings");
    }

    #[test]
    fn noise_holds() {
        let mut started = 0;
        seeds::noise(3000, 400, |input| started += session(&input));
        assert!(started >= 300, "the inputs started only {started} rings");
    }
}
