//! Notifying whoever handed a descriptor over, without ever waiting for them.
//!
//! Whoever shares an eventfd with us can fill its counter and take O_NONBLOCK away, before a write(2) and in the middle of
//! one, and that write waits for as long as they like. The kernel itself signals eventfds without waiting. It does so for an
//! io_uring that has one registered, at each completion that is posted there: to ring a bell is to post a completion that
//! nobody reads. Those io_urings belong to the workers ([`crate::bells`]); a bell is only the descriptor, checked.

use crate::uring;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{AddressFamily, SendFlags, sockopt};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a signal is: the number that an eventfd adds to its counter. Pipes and sockets carry the same eight bytes.
const SIGNAL: [u8; 8] = 1u64.to_ne_bytes();
/// The position that stands for none, for descriptors that have no positions (pwritev2(2)).
const NO_POSITION: u64 = u64::MAX;
/// linux/io_uring.h: IORING_REGISTER_SEND_MSG_RING, and the descriptor that stands for no io_uring.
const SEND_MSG_RING: libc::c_uint = 31;
const NO_RING: libc::c_int = -1;

/// Why nobody can be notified by a descriptor, or notify by it.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum BellError {
    /// neither an eventfd, nor a pipe, nor a Unix socket
    Kind,
    /// out of reach: {0} (io_uring must be allowed, and RLIMIT_MEMLOCK must leave it some KiB: it counts all io_urings of this user)
    System(io::Error),
}

/// A descriptor that came from somewhere else and may be signalled. Ringing it never waits for who holds it too.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Eventfd(Seat),
    Pipe,
    Socket,
}

/// Where a worker finds the io_uring that has a bell's eventfd registered.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Never 0, and never used twice.
    pub(crate) key: u64,
    /// Of use on the worker that wrote it, for as long as it holds the key there.
    pub(crate) index: usize,
    /// Lets a worker see that the bell is gone, wherever it went.
    alive: Arc<()>,
}

impl Seat {
    fn new() -> Seat {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Seat { key: NEXT.fetch_add(1, Ordering::Relaxed), index: 0, alive: Arc::new(()) }
    }

    pub(crate) fn watch(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }
}

impl Bell {
    /// Rings `fd` from now on: an eventfd, a pipe (UML's, by default) or a Unix socket.
    ///
    /// # Errors
    /// Any other descriptor: a write to it could wait for its owner.
    pub fn new(fd: OwnedFd) -> Result<Bell, BellError> {
        let way = match kind(fd.as_fd())? {
            Kind::Pipe => {
                // Of use only where the kernel knows no better way; see `write_now`.
                let _ = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
                Way::Pipe
            }
            Kind::Socket => Way::Socket,
            Kind::Eventfd => Way::Eventfd(Seat::new()),
        };
        Ok(Bell { fd, way })
    }

    /// Rings now, from any thread. What is full already has a signal waiting. On the path of a request workers ring by
    /// io_urings of their own, which costs less and shares no lock.
    pub fn ring(&self) {
        match self.way {
            Way::Eventfd(_) => {
                let rung = with_shared(|uring| {
                    register(uring, self.fd.as_fd())?;
                    post(uring);
                    uring.submitter().unregister_eventfd().map_err(BellError::System)
                });
                if let Err(error) = rung {
                    tracing::error!(%error, "a notification is lost");
                }
            }
            Way::Pipe => write_now(self.fd.as_fd()),
            Way::Socket => {
                let _ = rustix::net::send(&self.fd, &SIGNAL, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
    }

    /// The eventfd and its seat; `None` where [`ring`](Self::ring) has to do.
    #[inline]
    pub(crate) fn seat(&mut self) -> Option<(BorrowedFd<'_>, &mut Seat)> {
        match &mut self.way {
            Way::Eventfd(seat) => Some((self.fd.as_fd(), seat)),
            Way::Pipe | Way::Socket => None,
        }
    }
}

/// A ring of a bell that is under way. It must be sent before another eventfd is registered with the io_uring that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message(pub(crate) RawFd);

impl Message {
    /// Sends it with what else an io_uring submits.
    pub(crate) fn entry(self) -> squeue::Entry {
        opcode::MsgRingData::new(types::Fd(self.0), 0, 0, None).build().flags(squeue::Flags::SKIP_SUCCESS)
    }

    /// Sends it alone, by a system call that costs less than entering an io_uring. False before Linux 6.13.
    pub(crate) fn send(self) -> bool {
        /// Cleared when the kernel does not know the call.
        static KNOWN: AtomicBool = AtomicBool::new(true);
        if !KNOWN.load(Ordering::Relaxed) {
            return false;
        }
        // struct io_uring_sqe (linux/io_uring.h): the operation, the descriptor; IORING_MSG_DATA is 0 like all the rest.
        let mut entry = [0_u32; 16];
        (entry[0], entry[1]) = (u32::from(opcode::MsgRingData::CODE).to_le(), self.0.cast_unsigned());
        // SAFETY: the kernel reads one entry, of 64 bytes.
        let sent = unsafe { libc::syscall(libc::SYS_io_uring_register, NO_RING, SEND_MSG_RING, entry.as_ptr(), 1_u32) };
        if sent >= 0 {
            return true;
        }
        // An operation that a kernel does not know, and one that looks for the descriptor first.
        if matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL | libc::EBADF)) {
            KNOWN.store(false, Ordering::Relaxed);
        }
        false
    }
}

/// Whether bells can be rung by entries of `uring` (Linux 5.18).
pub(crate) fn takes_messages(uring: &IoUring) -> bool {
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(opcode::MsgRingData::CODE)
}

/// Whether a worker may watch `fd` for signals: to look whether some descriptors are readable, the kernel asks a process
/// behind them (FUSE), which need not answer.
///
/// # Errors
/// It is neither an eventfd, nor a pipe, nor a Unix socket.
pub fn may_be_watched(fd: BorrowedFd<'_>) -> Result<(), BellError> {
    kind(fd).map(drop)
}

/// Sets up what descriptors are checked with, before there is any: a ring's start then needs no memory that a limit counts.
///
/// # Errors
/// The kernel's refusal of an io_uring.
pub(crate) fn prepare() -> io::Result<()> {
    match with_shared(|_| Ok(())) {
        Err(BellError::System(error)) => Err(error),
        Err(BellError::Kind) | Ok(()) => Ok(()),
    }
}

/// The io_uring of the process that tells eventfds from the rest, and signals those that no worker is about to.
fn with_shared<T>(run: impl FnOnce(&mut IoUring) -> Result<T, BellError>) -> Result<T, BellError> {
    static SHARED: Mutex<Option<IoUring>> = Mutex::new(None);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let uring = match &mut *shared {
        Some(uring) => uring,
        none => none.insert(uring::patiently(|| IoUring::new(1)).map_err(BellError::System)?),
    };
    run(uring)
}

enum Kind {
    Eventfd,
    Pipe,
    Socket,
}

fn kind(fd: BorrowedFd<'_>) -> Result<Kind, BellError> {
    let stat = fstat(fd).map_err(|error| BellError::System(error.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo => Ok(Kind::Pipe),
        // Other sockets are locked for as long as somebody who holds them is about to send.
        FileType::Socket if sockopt::socket_domain(fd) != Ok(AddressFamily::UNIX) => Err(BellError::Kind),
        FileType::Socket => Ok(Kind::Socket),
        // Only a registration can tell.
        _ => with_shared(|uring| {
            register(uring, fd)?;
            uring.submitter().unregister_eventfd().map_err(BellError::System)?;
            Ok(Kind::Eventfd)
        }),
    }
}

pub(crate) fn register(uring: &IoUring, fd: BorrowedFd<'_>) -> Result<(), BellError> {
    uring.submitter().register_eventfd(fd.as_raw_fd()).map_err(|error| match error.raw_os_error() {
        // Not an eventfd, or a mere path.
        Some(libc::EINVAL | libc::EBADF) => BellError::Kind,
        _ => BellError::System(error),
    })
}

/// Makes room for completions.
pub(crate) fn let_go(uring: &mut IoUring) {
    uring.completion().for_each(drop);
}

/// Posts a completion to `uring` by a system call of its own.
pub(crate) fn post(uring: &mut IoUring) {
    let_go(uring);
    // SAFETY: the entry has no buffer. The queue is empty: nothing stays there.
    let _ = unsafe { uring.submission().push(&opcode::Nop::new().build()) };
    // One that stayed would signal whoever is registered next.
    while !uring.submission().is_empty() {
        if uring.submit().is_err() {
            // Memory is not found any sooner by asking more often.
            std::thread::sleep(std::time::Duration::from_millis(1));
            let_go(uring);
        }
    }
}

/// Writes to a pipe that somebody else may have filled and made blocking.
fn write_now(pipe: BorrowedFd<'_>) {
    let told = rustix::io::pwritev2(pipe, &[IoSlice::new(&SIGNAL)], NO_POSITION, ReadWriteFlags::NOWAIT);
    if told != Err(Errno::OPNOTSUPP) {
        return;
    }
    // Before Linux 6.4, and for named pipes, there is nothing better than a look.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::from_borrowed_fd(pipe, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(pipe, &SIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Lane, Tag};
    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::fs::{MemfdFlags, Mode, memfd_create, open};
    use rustix::net::{SocketFlags, SocketType, socket, socketpair};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Longer than anything here takes on a loaded machine: a wait that reaches it is a hang.
    const HANG: Duration = Duration::from_secs(60);
    /// The largest value that an eventfd holds (eventfd(2)): one more write waits.
    const FULL: u64 = u64::MAX - 1;

    /// An eventfd of a frontend's, and the bell that it gets.
    fn eventfd_and_bell() -> (OwnedFd, Bell) {
        let theirs = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let bell = Bell::new(theirs.try_clone().unwrap()).unwrap();
        (theirs, bell)
    }

    /// What an eventfd was signalled since it was read last.
    fn count(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(fd, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            Err(Errno::AGAIN) => 0,
            other => panic!("{other:?}"),
        }
    }

    /// Calls `f` on a thread of its own. False when it hangs or fails.
    fn ends(f: impl FnOnce() + Send + 'static) -> bool {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            f();
            sender.send(())
        });
        receiver.recv_timeout(HANG).is_ok()
    }

    #[test]
    fn each_ring_is_a_signal() {
        let (theirs, bell) = eventfd_and_bell();
        let (others, other) = eventfd_and_bell();
        for _ in 0..1000 {
            bell.ring();
        }
        assert_eq!((count(&theirs), count(&others)), (1000, 0));
        other.ring();
        assert_eq!((count(&theirs), count(&others)), (0, 1));
    }

    #[test]
    fn a_bell_rings_along_with_other_submissions_and_alone() {
        let (theirs, mut bell) = eventfd_and_bell();
        let (silent, _) = eventfd_and_bell();
        let mut lane = Lane::new().unwrap();
        for alone in (0..300).map(|round| round % 2 == 0) {
            if !alone {
                lane.watch(Tag::Silent, silent.as_fd());
            }
            lane.signal(&mut bell);
            assert_eq!((count(&theirs), lane.queued()), (0, if alone { 1 } else { 2 }));
            if !alone {
                lane.unwatch(Tag::Silent);
            }
            lane.submit();
            assert_eq!((count(&theirs), lane.queued()), (1, 0));
        }
        let (others, mut other) = eventfd_and_bell();
        // The first one of a bell submits what is queued.
        lane.signal(&mut other);
        lane.submit();
        assert_eq!(count(&others), 1);
        lane.signal(&mut bell);
        lane.signal(&mut other);
        assert_eq!(lane.queued(), 2);
        lane.submit();
        assert_eq!((count(&theirs), count(&others)), (1, 1));
        // One that is held travels with the wait for a deadline.
        lane.signal(&mut bell);
        lane.timers.set(lane.now_ns, 0, crate::Token::request(0));
        lane.submit_and_wait(1, 0);
        assert_eq!((count(&theirs), lane.queued()), (1, 0));
        lane.signal_now(&mut bell);
        assert_eq!((count(&theirs), lane.queued()), (1, 0));
    }

    /// Signals may become one, as they do for whoever reads an eventfd, but the last of them always comes.
    #[test]
    fn more_rings_than_completions_have_room_for_do_no_harm() {
        let (theirs, mut bell) = eventfd_and_bell();
        let (silent, _) = eventfd_and_bell();
        let mut lane = Lane::new().unwrap();
        for _ in 0..20 {
            lane.watch(Tag::Silent, silent.as_fd());
            // More than an io_uring of a bell's has room for.
            for _ in 0..200 {
                lane.signal(&mut bell);
            }
            lane.unwatch(Tag::Silent);
            lane.submit();
            assert!(count(&theirs) > 0);
            lane.signal_now(&mut bell);
            assert!(count(&theirs) > 0);
        }
        for _ in 0..20 {
            bell.ring();
            assert!(count(&theirs) > 0);
        }
    }

    #[test]
    fn an_eventfd_that_is_made_blocking_and_full_holds_nobody_up() {
        let (theirs, mut bell) = eventfd_and_bell();
        fcntl_setfl(&theirs, OFlags::empty()).unwrap();
        rustix::io::write(&theirs, &FULL.to_ne_bytes()).unwrap();
        let ended = ends(move || {
            let (other, _) = eventfd_and_bell();
            let mut lane = Lane::new().unwrap();
            for _ in 0..100 {
                lane.signal(&mut bell);
                lane.submit();
                lane.watch(Tag::Silent, other.as_fd());
                lane.signal(&mut bell);
                lane.unwatch(Tag::Silent);
                lane.submit();
                bell.ring();
            }
        });
        assert!(ended);
        assert!(count(&theirs) >= FULL);
    }

    #[test]
    fn an_eventfd_that_changes_while_it_is_signalled_holds_nobody_up() {
        let (theirs, bell) = eventfd_and_bell();
        rustix::io::write(&theirs, &FULL.to_ne_bytes()).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    fcntl_setfl(&theirs, OFlags::empty()).unwrap();
                    fcntl_setfl(&theirs, OFlags::NONBLOCK).unwrap();
                }
            });
            let ended = ends(move || (0..100_000).for_each(|_| bell.ring()));
            over.store(true, Ordering::Relaxed);
            assert!(ended);
        });
    }

    #[test]
    fn a_pipe_and_a_socket_that_are_full_hold_nobody_up() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let pairs: [(OwnedFd, OwnedFd); 2] = [(reader.into(), writer.into()), (theirs, ours)];
        for (theirs, ours) in pairs {
            let same = ours.try_clone().unwrap();
            let bell = Bell::new(ours).unwrap();
            bell.ring();
            let mut signal = [0; 16];
            assert_eq!(rustix::io::read(&theirs, &mut signal), Ok(8));
            assert_eq!(signal[..8], SIGNAL);
            fcntl_setfl(&same, OFlags::empty()).unwrap();
            assert!(ends(move || (0..100_000).for_each(|_| bell.ring())));
        }
    }

    #[test]
    fn what_could_wait_for_its_owner_is_refused() {
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let strange = [
            open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap(),
            open("/", path, Mode::empty()).unwrap(),
            open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap(),
            memfd_create("file", MemfdFlags::CLOEXEC).unwrap(),
            epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
            socket(AddressFamily::INET, SocketType::STREAM, None).unwrap(),
        ];
        for (at, fd) in strange.into_iter().enumerate() {
            assert!(matches!(may_be_watched(fd.as_fd()), Err(BellError::Kind)), "{at}");
            assert!(matches!(Bell::new(fd), Err(BellError::Kind)), "{at}");
        }
        let (theirs, _) = eventfd_and_bell();
        for _ in 0..3 {
            may_be_watched(theirs.as_fd()).unwrap();
        }
    }
}
