//! What a worker executes with: one io_uring, deadlines, registered files and a clock.

use crate::abilities::Abilities;
use crate::bell::{Bell, Message, takes_messages};
use crate::bells::Bells;
use crate::clock::monotonic_ns;
use crate::figures::WorkerPage;
use crate::file::{File, FileTable};
use crate::timer::Timers;
use crate::token::Token;
use crate::ways::Ways;
use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Submission entries. A turn queues at most a batch a ring; a full queue is submitted early, never an error.
const SQ_ENTRIES: u32 = 512;
/// Completion entries. The kernel keeps what does not fit (IORING_FEAT_NODROP).
const CQ_ENTRIES: u32 = 4096;
/// Bytes of a page, as the kernel counts what a user locks.
const PAGE_BYTES: u64 = 4096;
/// Bytes that a worker's io_urings take of RLIMIT_MEMLOCK, on kernels that count them: its submission entries of 64 bytes, its completion
/// entries of 16 and the indices beside them (`linux/io_uring.h`), and two pages for the first of those by which it signals eventfds.
pub const WORKER_LOCKED_BYTES: u64 = (SQ_ENTRIES as u64 * 64).next_multiple_of(PAGE_BYTES)
    + (CQ_ENTRIES as u64 * 16 + SQ_ENTRIES as u64 * 4 + 512).next_multiple_of(PAGE_BYTES)
    + 2 * PAGE_BYTES;
/// Entries of either kind where one thing is under way: two pages of what a user may lock, instead of some thirty.
const FEW_ENTRIES: u32 = 8;
/// linux/io_uring.h: IORING_ENTER_GETEVENTS.
const ENTER_GETEVENTS: u32 = 1;
/// linux/io_uring.h: IORING_ENTER_EXT_ARG.
const ENTER_EXT_ARG: u32 = 8;

/// Bytes that one call moves at most: the kernel's MAX_RW_COUNT, rounded down.
const TRANSFER_MAX: u32 = 1 << 30;

/// A transfer of more bytes is left to a thread of the kernel (IOSQE_ASYNC): of what is cached, all would be copied within the
/// submission, and the worker's other rings would wait meanwhile. Drivers make requests of up to some 1 MiB.
const TRANSFER_ON_THE_SPOT_MAX: usize = 2 << 20;

/// A shortest wait without a timeout beside it would end the sleep when its time is up, completions or not
/// (io_cqring_min_timer_wakeup in the kernel's io_uring), and the worker would turn for nothing while storage is slow. In
/// nanoseconds.
const FAR_NS: u64 = 60_000_000_000;

/// What a completion belongs to, packed into a submission's user_data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// A request of the ring in this slot.
    Request { slot: u32, token: Token },
    /// What the ring in this slot waits to hear from its client.
    Receive { slot: u32, token: Token },
    /// The kick eventfd of the ring in this slot.
    Kick { slot: u32 },
    /// The worker's own mailbox.
    Mail,
    /// A cancellation or notification, whose own result nobody waits for.
    Silent,
}

/// Slots fit in 24 bits beside the kind.
pub(crate) const SLOTS_MAX: u32 = 1 << 24;

impl Tag {
    fn pack(self) -> u64 {
        match self {
            Tag::Request { slot, token } => u64::from(slot) << 32 | u64::from(token.bits()),
            Tag::Kick { slot } => 1 << 56 | u64::from(slot) << 32,
            Tag::Mail => 2 << 56,
            Tag::Silent => 3 << 56,
            Tag::Receive { slot, token } => 4 << 56 | u64::from(slot) << 32 | u64::from(token.bits()),
        }
    }

    pub(crate) fn unpack(data: u64) -> Tag {
        let slot = (data >> 32) as u32 & (SLOTS_MAX - 1);
        match data >> 56 {
            0 => Tag::Request { slot, token: Token::from_bits(data as u32) },
            1 => Tag::Kick { slot },
            2 => Tag::Mail,
            4 => Tag::Receive { slot, token: Token::from_bits(data as u32) },
            _ => Tag::Silent,
        }
    }
}

/// An entry of the completion queue, copied out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaped {
    pub(crate) tag: Tag,
    pub(crate) result: i32,
    pub(crate) more: bool,
}

pub(crate) struct Lane {
    uring: IoUring,
    files: FileTable,
    min_wait: bool,
    bells: Bells,
    /// The kernel lets its entries ring them.
    messages: bool,
    /// A bell that is to be rung by the end of the turn, with nothing else to submit when that was asked for.
    held: Option<Message>,
    pub(crate) timers: Timers,
    pub(crate) now_ns: u64,
    pub(crate) figures: Arc<WorkerPage>,
    /// Requests that the kernel has or will have with the next submission.
    pub(crate) in_kernel: u32,
    /// Completions taken out of the queue and not yet given to their rings.
    pub(crate) completions: Vec<Reaped>,
    /// Its thread may wait for a call.
    pub(crate) may_block: bool,
    /// Whose it is.
    pub(crate) worker: u32,
    /// Since when what this turn finds can have waited to be found.
    pub(crate) looked_before_ns: u64,
    /// Which way work went that was begun.
    pub(crate) ways: Ways,
}

/// Has a large transfer made by a thread of the kernel.
#[inline]
fn aside(entry: squeue::Entry, buffers: &[libc::iovec]) -> squeue::Entry {
    let bytes: usize = buffers.iter().map(|buffer| buffer.iov_len).sum();
    if bytes > TRANSFER_ON_THE_SPOT_MAX { entry.flags(squeue::Flags::ASYNC) } else { entry }
}

impl Lane {
    /// Must be called on the thread that will use the lane: the ring has a single issuer.
    pub(crate) fn new() -> io::Result<Lane> {
        let uring = crate::uring::patiently(|| build(SQ_ENTRIES, CQ_ENTRIES))?;
        let files = FileTable::new(&uring.submitter());
        Lane::on(uring, files)
    }

    /// As above, for a thread that has little under way, and may wait for a call: there is nobody else on it who would have to. Nobody
    /// asks such threads to let go of files, so that they register none.
    pub(crate) fn small() -> io::Result<Lane> {
        let lane = Lane::on(crate::uring::patiently(|| build(FEW_ENTRIES, FEW_ENTRIES))?, FileTable::empty())?;
        Ok(Lane { may_block: true, ..lane })
    }

    fn on(uring: IoUring, files: FileTable) -> io::Result<Lane> {
        let completions = uring.params().cq_entries() as usize;
        let now_ns = monotonic_ns();
        Ok(Lane {
            min_wait: uring.params().is_feature_min_timeout(),
            messages: takes_messages(&uring),
            bells: Bells::default(),
            held: None,
            files,
            uring,
            timers: Timers::default(),
            now_ns,
            figures: Arc::default(),
            in_kernel: 0,
            completions: Vec::with_capacity(completions),
            may_block: false,
            worker: 0,
            looked_before_ns: now_ns,
            ways: Ways::default(),
        })
    }

    /// What it can do, as far as that is known without trying.
    pub(crate) fn abilities(&self) -> Abilities {
        Abilities {
            watches: false,
            // What takes one flag of the best set takes them all.
            deferred: self.uring.params().is_setup_single_issuer(),
            registers_files: self.files.is_usable(),
            messages: self.messages,
            gathers: self.min_wait,
        }
    }

    pub(crate) fn sweep_files(&mut self) {
        self.files.sweep(&self.uring.submitter());
    }

    /// Lets go of all registered files now. Closing the io_uring alone would do it too, but some time later.
    pub(crate) fn forget_files(&mut self) {
        self.files.forget(&self.uring.submitter());
    }

    pub(crate) fn tick(&mut self) {
        self.now_ns = monotonic_ns();
    }

    /// Queues one entry; a full queue is handed to the kernel first.
    fn push(&mut self, entry: squeue::Entry, tag: Tag) {
        let entry = entry.user_data(tag.pack());
        self.figures.sqes.add(1);
        self.in_kernel += u32::from(matches!(tag, Tag::Request { .. }));
        loop {
            // SAFETY: callers of this private function pass entries whose buffers live until their completion, or
            // entries without buffers.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.submit();
        }
    }

    /// # Safety
    /// The buffers behind `buffers` stay mapped until the completion of `tag`, and `buffers` itself until the next submission.
    pub(crate) unsafe fn read(&mut self, tag: Tag, file: File<'_>, buffers: &[libc::iovec], offset: u64) {
        let entry = match (self.files.target(file, &self.uring.submitter()), buffers) {
            (crate::file::Target::Fixed(fd), [one]) => {
                opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(offset).build()
            }
            (crate::file::Target::Plain(fd), [one]) => {
                opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(offset).build()
            }
            (crate::file::Target::Fixed(fd), many) => {
                opcode::Readv::new(fd, many.as_ptr(), many.len() as u32).offset(offset).build()
            }
            (crate::file::Target::Plain(fd), many) => {
                opcode::Readv::new(fd, many.as_ptr(), many.len() as u32).offset(offset).build()
            }
        };
        self.push(aside(entry, buffers), tag);
    }

    /// # Safety
    /// As for [`read`](Self::read).
    pub(crate) unsafe fn write(
        &mut self,
        tag: Tag,
        file: File<'_>,
        buffers: &[libc::iovec],
        offset: u64,
        durable: bool,
    ) {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let entry = match (self.files.target(file, &self.uring.submitter()), buffers) {
            (crate::file::Target::Fixed(fd), [one]) => {
                opcode::Write::new(fd, one.iov_base.cast_const().cast(), one.iov_len as u32)
                    .offset(offset)
                    .rw_flags(flags)
                    .build()
            }
            (crate::file::Target::Plain(fd), [one]) => {
                opcode::Write::new(fd, one.iov_base.cast_const().cast(), one.iov_len as u32)
                    .offset(offset)
                    .rw_flags(flags)
                    .build()
            }
            (crate::file::Target::Fixed(fd), many) => {
                opcode::Writev::new(fd, many.as_ptr(), many.len() as u32).offset(offset).rw_flags(flags).build()
            }
            (crate::file::Target::Plain(fd), many) => {
                opcode::Writev::new(fd, many.as_ptr(), many.len() as u32).offset(offset).rw_flags(flags).build()
            }
        };
        self.push(aside(entry, buffers), tag);
    }

    pub(crate) fn sync(&mut self, tag: Tag, file: File<'_>, data_only: bool) {
        let flags = if data_only { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
        let entry = match self.files.target(file, &self.uring.submitter()) {
            crate::file::Target::Fixed(fd) => opcode::Fsync::new(fd).flags(flags).build(),
            crate::file::Target::Plain(fd) => opcode::Fsync::new(fd).flags(flags).build(),
        };
        self.push(entry, tag);
    }

    /// Receives up to `bytes` bytes from a connected socket, or with `whole` that many unless the connection ends before.
    ///
    /// # Safety
    /// The `bytes` bytes at `buffer` stay allocated, and nobody else looks at them, until the completion of `tag`.
    pub(crate) unsafe fn receive(
        &mut self,
        tag: Tag,
        socket: BorrowedFd<'_>,
        buffer: *mut u8,
        bytes: usize,
        whole: bool,
    ) {
        let bytes = u32::try_from(bytes).unwrap_or(TRANSFER_MAX).min(TRANSFER_MAX);
        let flags = if whole { libc::MSG_WAITALL } else { 0 };
        self.push(opcode::Recv::new(types::Fd(socket.as_raw_fd()), buffer, bytes).flags(flags).build(), tag);
    }

    /// Sends `bytes` bytes over a connected socket: all of them where the kernel can (5.19), unless the connection ends before.
    ///
    /// # Safety
    /// The `bytes` bytes at `buffer` stay allocated, and nobody changes them, until the completion of `tag`.
    pub(crate) unsafe fn transmit(&mut self, tag: Tag, socket: BorrowedFd<'_>, buffer: *const u8, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(TRANSFER_MAX).min(TRANSFER_MAX);
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        self.push(opcode::Send::new(types::Fd(socket.as_raw_fd()), buffer, bytes).flags(flags).build(), tag);
    }

    /// Watches an eventfd: one completion a signal, without ever reading the counter (edge triggered).
    pub(crate) fn watch(&mut self, tag: Tag, fd: BorrowedFd<'_>) {
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).multi(true).build();
        self.push(entry, tag);
    }

    /// Ends a watch; its last completion comes without `more`. Not by IORING_OP_POLL_REMOVE, which gives up (EALREADY) while
    /// the kernel is busy with a signal, and leaves the watch in place.
    pub(crate) fn unwatch(&mut self, tag: Tag) {
        self.push(opcode::AsyncCancel::new(tag.pack()).build(), Tag::Silent);
    }

    /// Has what bells need from the start, so that no ring is refused for it.
    ///
    /// # Errors
    /// The kernel's refusal of an io_uring.
    pub(crate) fn prepare_bells(&mut self) -> io::Result<()> {
        crate::bell::prepare()?;
        self.bells.begin()
    }

    /// Rings a bell with the next submission. One alone is held back: the turn may end in a sleep, which takes it along, and
    /// costs less on its own than as a submission.
    pub(crate) fn signal(&mut self, bell: &mut Bell) {
        match self.message(bell) {
            None => self.bells.ring(bell),
            Some(message) if self.held.is_none() && self.uring.submission().is_empty() => self.held = Some(message),
            Some(message) => self.push(message.entry(), Tag::Silent),
        }
    }

    /// Rings a bell in the middle of a turn: along with other submissions where some are queued, at once where there are none.
    pub(crate) fn signal_now(&mut self, bell: &mut Bell) {
        match self.message(bell) {
            None => self.bells.ring(bell),
            Some(message) if self.uring.submission().is_empty() => self.send(message),
            Some(message) => self.push(message.entry(), Tag::Silent),
        }
    }

    /// What rings a bell; `None` where only a system call of the bell's own does.
    #[inline]
    fn message(&mut self, bell: &mut Bell) -> Option<Message> {
        let (_, seat) = bell.seat()?;
        if !self.bells.holds(seat) && !self.take_in(bell) {
            return None;
        }
        let (_, seat) = bell.seat()?;
        self.bells.message(seat).filter(|_| self.messages)
    }

    #[cold]
    fn take_in(&mut self, bell: &mut Bell) -> bool {
        // A message names an io_uring, and means the eventfd that this one has now.
        self.submit();
        let now_ns = self.now_ns;
        bell.seat().is_some_and(|(eventfd, seat)| self.bells.take_in(eventfd, seat, now_ns))
    }

    /// Rings a bell by a system call of its own.
    fn send(&mut self, message: Message) {
        if !message.send() {
            self.push(message.entry(), Tag::Silent);
            self.enter(0, 0, None);
        }
    }

    /// What was held back goes with other submissions.
    fn take_along(&mut self) {
        if let Some(message) = self.held.take() {
            self.push(message.entry(), Tag::Silent);
        }
    }

    /// Entries that wait for the next submission.
    pub(crate) fn queued(&mut self) -> usize {
        self.uring.submission().len() + usize::from(self.held.is_some())
    }

    /// Whether completions wait, or the kernel has work that will make some. No system call.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty() || self.uring.submission().taskrun()
    }

    /// Submits what is queued, all of it, and lets the kernel finish what it deferred, without waiting for that.
    pub(crate) fn submit(&mut self) {
        if self.uring.submission().is_empty()
            && let Some(message) = self.held.take()
        {
            self.send(message);
            if !self.has_completions() {
                return;
            }
        }
        self.take_along();
        self.enter(0, 0, None);
        self.reap();
        self.submit_rest();
    }

    /// Submits what is queued and waits for `want` completions, the next deadline or a signal. Where the kernel can
    /// (6.12), it settles for one completion once `min_wait_us` have passed.
    pub(crate) fn submit_and_wait(&mut self, want: usize, min_wait_us: u32) {
        self.take_along();
        let timeout_ns = self.timers.next_ns().map(|at| at.saturating_sub(monotonic_ns()));
        if self.min_wait && want > 1 {
            self.enter(want, min_wait_us, timeout_ns.or(Some(FAR_NS)));
        } else {
            self.enter(1, 0, timeout_ns);
        }
        self.reap();
        self.submit_rest();
    }

    /// Submits what the kernel left in the queue, for lack of memory or of room for completions. Entries name descriptors by
    /// number, and whoever submits may close those next: an entry that stayed behind would find another's.
    #[inline]
    fn submit_rest(&mut self) {
        while !self.uring.submission().is_empty() {
            self.submit_again();
        }
    }

    #[cold]
    fn submit_again(&mut self) {
        let before = self.uring.submission().len();
        self.enter(0, 0, None);
        self.reap();
        if self.uring.submission().len() == before {
            // Memory is not found any sooner by asking more often.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn enter(&mut self, want: usize, min_wait_us: u32, timeout_ns: Option<u64>) {
        let queued = self.uring.submission().len() as u32;
        self.figures.enters.add(1);
        let timeout = timeout_ns.map(std::time::Duration::from_nanos).map(types::Timespec::from);
        let mut args = types::SubmitArgs::new().min_wait_usec(min_wait_us);
        if let Some(timeout) = &timeout {
            args = args.timespec(timeout);
        }
        // SAFETY: entries were queued under `push`'s contract, and the argument outlives the call.
        let result = unsafe {
            if want > 0 && (timeout.is_some() || min_wait_us > 0) {
                let flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
                self.uring.submitter().enter(queued, want as u32, flags, Some(&args))
            } else {
                self.uring.submitter().enter::<libc::sigset_t>(queued, want as u32, ENTER_GETEVENTS, None)
            }
        };
        match result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
            // ETIME: the deadline passed. EINTR: a signal. EBUSY: completions must be reaped first, which the caller
            // does next. EAGAIN: the kernel lacks memory for a request. What was not taken is submitted again.
            Ok(_) | Err(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
            Err(errno) => {
                tracing::error!(errno, "io_uring_enter failed");
                // Nothing in the turn can mend this; not spinning on it keeps the log and the CPU usable.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    /// Copies waiting completions out, so that rings can queue new work while they take them.
    pub(crate) fn reap(&mut self) {
        let mut queue = self.uring.completion();
        for entry in &mut queue {
            let tag = Tag::unpack(entry.user_data());
            self.in_kernel -= u32::from(matches!(tag, Tag::Request { .. }));
            self.completions.push(Reaped { tag, result: entry.result(), more: io_uring::cqueue::more(entry.flags()) });
        }
    }
}

/// The best set of flags that this kernel takes.
fn build(submissions: u32, completions: u32) -> io::Result<IoUring> {
    let mut best = IoUring::builder();
    best.setup_cqsize(completions).setup_submit_all().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut good = IoUring::builder();
    good.setup_cqsize(completions).setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    let mut plain = IoUring::builder();
    plain.setup_cqsize(completions);
    best.build(submissions).or_else(|_| good.build(submissions)).or_else(|_| plain.build(submissions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::{AsFd, OwnedFd};

    /// A queue of the kind that older kernels get: the kernel stops at an entry that it refuses, as it stops in any queue when it lacks
    /// memory for one.
    fn lane_that_stops() -> Lane {
        let uring = IoUring::builder().setup_cqsize(CQ_ENTRIES).build(SQ_ENTRIES).unwrap();
        Lane::on(uring, FileTable::empty()).unwrap()
    }

    fn refused() -> squeue::Entry {
        opcode::Read::new(types::Fd(-1), std::ptr::null_mut(), 0).ioprio(0xffff).build()
    }

    #[test]
    fn nothing_stays_behind_that_names_a_descriptor() {
        let mut lane = lane_that_stops();
        let watched = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        lane.push(refused(), Tag::Silent);
        lane.push(refused(), Tag::Silent);
        lane.watch(Tag::Mail, watched.as_fd());
        lane.submit();
        assert_eq!(lane.queued(), 0, "an entry would find another descriptor under the same number");
        rustix::io::write(&watched, &1u64.to_ne_bytes()).unwrap();
        lane.push(refused(), Tag::Silent);
        lane.submit_and_wait(1, 0);
        assert_eq!(lane.queued(), 0);
        assert!(lane.completions.iter().any(|completion| completion.tag == Tag::Mail && completion.result > 0));
    }

    #[test]
    fn more_bells_than_a_worker_has_places_for_all_ring() {
        let mut lane = Lane::new().unwrap();
        lane.prepare_bells().unwrap();
        let (theirs, mut bells): (Vec<OwnedFd>, Vec<Bell>) = (0..300)
            .map(|_| {
                let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
                (fd.try_clone().unwrap(), Bell::new(fd).unwrap())
            })
            .unzip();
        let rung = |fd: &OwnedFd| {
            let mut count = [0; 8];
            rustix::io::read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        for round in 0..4 {
            for bell in &mut bells {
                if round % 2 == 0 {
                    lane.signal(bell);
                } else {
                    lane.signal_now(bell);
                }
            }
            lane.submit();
            assert!(theirs.iter().all(|fd| rung(fd) == 1), "in round {round}");
        }
    }

    #[test]
    fn bells_that_are_gone_leave_their_places_to_others() {
        let mut lane = Lane::new().unwrap();
        lane.prepare_bells().unwrap();
        let open = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        for _ in 0..50 {
            let (theirs, mut bells): (Vec<OwnedFd>, Vec<Bell>) = (0..3)
                .map(|_| {
                    let fd = open();
                    (fd.try_clone().unwrap(), Bell::new(fd).unwrap())
                })
                .unzip();
            for bell in &mut bells {
                lane.signal(bell);
            }
            lane.submit();
            assert!(theirs.iter().all(|fd| rustix::io::read(fd, &mut [0; 8]) == Ok(8)));
        }
        assert_eq!(lane.bells.len(), 3, "a worker keeps what it needs at once, however often rings come and go");
    }

    #[test]
    fn tags_survive_the_kernel() {
        for tag in [
            Tag::Request { slot: 0, token: Token::from_bits(0) },
            Tag::Request { slot: SLOTS_MAX - 1, token: Token::from_bits(u32::MAX) },
            Tag::Kick { slot: 77 },
            Tag::Receive { slot: 77, token: Token::from_bits(u32::MAX) },
            Tag::Receive { slot: SLOTS_MAX - 1, token: Token::from_bits(0) },
            Tag::Mail,
            Tag::Silent,
        ] {
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}
