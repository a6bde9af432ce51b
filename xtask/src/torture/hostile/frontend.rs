//! What a frontend can do that has gone wild: messages in any order, of any size, with any descriptors.

use std::fs::File;
use std::io::pipe;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_setfl, ftruncate, memfd_create, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tests::driver::{NEXT, WRITE};
use tests::guest_memory::USER_BASE;

use super::attack::{Attack, Expect, On, Scene, Victim};
use super::raw::{NEED_REPLY, VERSION, message, request};
use super::session::{
    BLOCK, BUFFER, HEADER, INFLIGHT_SHMFD, NOWHERE, RING_SIZE, STATUS, Session, areas, borrow, bytes, file, ring_areas,
    ring_state, settle,
};
use crate::torture::rng::Rng;

const fn attack(name: &'static str, what: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Attack {
    Attack { name, what, on: On::Any, expect: Expect::Anything, run }
}

/// Ring indices that no device here has, and one that each has.
const INDICES: [u32; 5] = [0, 200, 255, 65536, u32::MAX];
/// How long a frontend that says half a sentence keeps silent.
const SILENCE: Duration = Duration::from_millis(200);
/// How long a frontend without manners waits for anything.
const IMPATIENCE: Duration = Duration::from_millis(200);
/// Connections of a frontend that does nothing but connect.
const CONNECTS: usize = 1000;

pub(crate) const ATTACKS: &[Attack] = &[
    attack("kick-before-memory", "SET_VRING_KICK as the first message", |scene| {
        let mut raw = scene.fresh()?;
        let kick = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for index in INDICES {
            let _silent = raw.send(request::SET_VRING_KICK, VERSION, &u64::from(index).to_ne_bytes(), &[kick.as_fd()]);
        }
        let _answer = raw.ask(request::GET_FEATURES, &[]);
        scene.keep((raw, kick));
        Ok(())
    }),
    attack("ring-outside-memory", "ring areas at addresses that nobody shared", |scene| {
        placed(scene, |_| [USER_BASE + NOWHERE, USER_BASE + NOWHERE + 4096, USER_BASE + NOWHERE + 8192])
    }),
    attack("ring-at-zero", "ring areas at address zero", |scene| placed(scene, |_| [0; 3])),
    attack("ring-over-the-end", "ring areas that begin in memory and end behind it", |scene| {
        placed(scene, |end| [end - 16, end - 4, end - 2])
    }),
    attack("ring-misaligned", "ring areas at odd addresses", |scene| {
        placed(scene, |_| [USER_BASE + 1, USER_BASE + 0x10003, USER_BASE + 0x20001])
    }),
    attack("ring-areas-overlap", "all areas of a ring at one address", |scene| placed(scene, |_| [USER_BASE; 3])),
    attack("ring-sizes", "sizes that no ring has", |scene| {
        let mut victim = scene.victim()?;
        let index = scene.device.request_ring() as u32;
        let _stopped = victim.session.raw.ask(request::GET_VRING_BASE, &ring_state(index, 0));
        for size in [0, 1, 3, 1000, 32769, 65535, 65536, 1 << 31, u32::MAX] {
            let _refused = victim.session.raw.order(request::SET_VRING_NUM, &ring_state(index, size), &[]);
            let kick = u64::from(index).to_ne_bytes();
            let _refused = victim.session.raw.order(request::SET_VRING_KICK, &kick, &[borrow(victim.ring.kick_fd())]);
            let _stopped = victim.session.raw.ask(request::GET_VRING_BASE, &ring_state(index, 0));
        }
        scene.keep(victim);
        Ok(())
    }),
    attack("ring-bases", "first entries that no ring has", |scene| {
        let mut victim = scene.victim()?;
        let index = scene.device.request_ring() as u32;
        for base in [1, 63, 64, 65535, 65536, u32::MAX] {
            let _stopped = victim.session.raw.ask(request::GET_VRING_BASE, &ring_state(index, 0));
            let _refused = victim.session.raw.order(request::SET_VRING_BASE, &ring_state(index, base), &[]);
            let kick = u64::from(index).to_ne_bytes();
            let _started = victim.session.raw.order(request::SET_VRING_KICK, &kick, &[borrow(victim.ring.kick_fd())]);
            victim.ring.kick();
        }
        settle();
        scene.keep(victim);
        Ok(())
    }),
    attack("ring-index-beyond", "messages about rings that are not there", |scene| {
        for order in [
            request::SET_VRING_NUM,
            request::SET_VRING_ADDR,
            request::SET_VRING_BASE,
            request::GET_VRING_BASE,
            request::SET_VRING_KICK,
            request::SET_VRING_CALL,
            request::SET_VRING_ERR,
            request::SET_VRING_ENABLE,
        ] {
            let session = scene.session()?;
            let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            for index in INDICES {
                let (body, fds) = match order {
                    request::SET_VRING_ADDR => (ring_areas(index, 0, [USER_BASE; 3]), vec![]),
                    request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                        (u64::from(index).to_ne_bytes().to_vec(), vec![kick.as_fd()])
                    }
                    _ => (ring_state(index, 1), vec![]),
                };
                if session.raw.send(order, NEED_REPLY, &body, &fds).is_err() {
                    break;
                }
            }
            settle();
        }
        Ok(())
    }),
    attack("base-of-idle-rings", "GET_VRING_BASE of rings that never ran", |scene| {
        let mut session = scene.session()?;
        for index in [0, 1, 0, 3, 7, 255] {
            let _answer = session.raw.ask(request::GET_VRING_BASE, &ring_state(index, 0));
        }
        scene.keep(session);
        Ok(())
    }),
    attack("rings-start-and-stop", "starts and stops a ring with requests, five hundred times", |scene| {
        let mut victim = scene.victim()?;
        let index = scene.device.request_ring() as u32;
        for round in 0..500 {
            if round % 16 == 0 {
                request_in(&victim, 0);
                victim.ring.publish(0);
            }
            victim.ring.kick();
            let kick = u64::from(index).to_ne_bytes();
            let Ok(base) = victim.session.raw.ask(request::GET_VRING_BASE, &ring_state(index, 0)) else { break };
            let base = base.get(4..8).and_then(|base| base.try_into().ok()).map_or(0, u32::from_ne_bytes);
            let based = victim.session.raw.order(request::SET_VRING_BASE, &ring_state(index, base), &[]);
            let kicked = victim.session.raw.order(request::SET_VRING_KICK, &kick, &[borrow(victim.ring.kick_fd())]);
            if based.is_err() || kicked.is_err() {
                break;
            }
        }
        scene.keep(victim);
        Ok(())
    }),
    attack("descriptors-replaced", "replaces kick and call of a running ring, five hundred times", |scene| {
        let mut victim = scene.victim()?;
        let which = (scene.device.request_ring() as u64).to_ne_bytes();
        for round in 0..500 {
            let order = [request::SET_VRING_CALL, request::SET_VRING_KICK, request::SET_VRING_ERR][round % 3];
            let fresh = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            if round % 16 == 0 {
                request_in(&victim, 0);
                victim.ring.publish(0);
            }
            victim.ring.kick();
            if victim.session.raw.order(order, &which, &[fresh.as_fd()]).is_err() {
                break;
            }
        }
        scene.keep(victim);
        Ok(())
    }),
    attack("kick-of-any-type", "files, pipes, directories and sockets for the kick descriptor", |scene| {
        let index = scene.device.request_ring();
        for fd in strange_descriptors()? {
            scene.let_go();
            let mut session = scene.session()?;
            let ring = tests::driver::Ring::new(session.memory.clone(), index, RING_SIZE);
            let _refused = session.start(&ring, fd.as_fd(), borrow(ring.call_fd()));
            let mut victim = Victim { session, ring };
            request_in(&victim, 0);
            victim.ring.publish(0);
            settle();
            scene.keep((victim, fd));
        }
        Ok(())
    }),
    attack("call-of-any-type", "files, pipes, directories and sockets for the call descriptor", |scene| {
        for fd in strange_descriptors()? {
            called(scene, fd)?;
        }
        Ok(())
    }),
    attack("err-of-any-type", "files, pipes, directories and sockets for the error descriptor", |scene| {
        let which = (scene.device.request_ring() as u64).to_ne_bytes();
        for fd in strange_descriptors()? {
            scene.let_go();
            let mut victim = scene.victim()?;
            let _refused = victim.session.raw.order(request::SET_VRING_ERR, &which, &[fd.as_fd()]);
            // So that it is used, where it counts from the next start on as well.
            let state = ring_state(scene.device.request_ring() as u32, 0);
            let _stopped = victim.session.raw.ask(request::GET_VRING_BASE, &state);
            let _started = victim.session.raw.order(request::SET_VRING_KICK, &which, &[borrow(victim.ring.kick_fd())]);
            victim.ring.set_available_index(RING_SIZE + 1);
            victim.kick();
            scene.keep((victim, fd));
        }
        Ok(())
    }),
    attack("call-that-is-full", "a blocking call eventfd whose counter is full", |scene| {
        called(scene, full_eventfd(EventfdFlags::CLOEXEC)?)
    }),
    attack("err-that-is-full", "a blocking error eventfd whose counter is full", |scene| {
        let full = full_eventfd(EventfdFlags::CLOEXEC)?;
        let which = (scene.device.request_ring() as u64).to_ne_bytes();
        let mut session = scene.session()?;
        let _refused = session.raw.order(request::SET_VRING_ERR, &which, &[full.as_fd()]);
        let ring = session.ring(scene.device.request_ring())?;
        ring.set_available_index(RING_SIZE + 1);
        let victim = Victim { session, ring };
        victim.kick();
        scene.keep((victim, full));
        Ok(())
    }),
    // A notification that travels alone is a plain write, which waits if the descriptor was made blocking since; no call
    // of the kernel writes to an eventfd without ever waiting. Only a frontend can do that, not its guest.
    Attack {
        name: "call-that-becomes-blocking",
        what: "a call eventfd that is made blocking and full after it was given",
        on: On::Any,
        expect: Expect::Loss,
        run: call_becomes_blocking,
    },
    attack("answers-not-read", "twenty thousand messages that want an answer, and reads none", |scene| {
        let raw = scene.raw()?;
        raw.set_patience(IMPATIENCE)?;
        for _ in 0..20_000 {
            if raw.send(request::GET_FEATURES, NEED_REPLY, &[], &[]).is_err() {
                break;
            }
        }
        settle();
        scene.keep(raw);
        Ok(())
    }),
    attack("half-a-header", "half a header, then silence", |scene| half(scene, 5, false)),
    attack("half-a-body", "half a body, then silence", |scene| half(scene, 16, false)),
    attack("half-a-header-and-gone", "half a header, then the end", |scene| half(scene, 5, true)),
    attack("half-a-body-and-gone", "half a body, then the end", |scene| half(scene, 16, true)),
    attack("one-byte-at-a-time", "messages in pieces of one byte", |scene| {
        let mut raw = scene.raw()?;
        let whole = message(request::GET_FEATURES, VERSION, &[]);
        for _ in 0..20 {
            for at in 0..whole.len() {
                if raw.send_bytes(&whole[at..=at], &[]).is_err() {
                    return Ok(());
                }
            }
            let _answer = raw.answer();
        }
        scene.keep(raw);
        Ok(())
    }),
    attack("headers-that-lie", "versions, flags and sizes that no header has", |scene| {
        let size = |size: u32| [&message(1, VERSION, &[])[..8], &size.to_ne_bytes()].concat();
        for header in [
            message(1, 0, &[]),
            message(1, 2, &[]),
            message(1, 5, &[]),
            message(1, u32::MAX, &[]),
            message(u32::MAX, NEED_REPLY, &[]),
            size(4097),
            size(1 << 31),
            size(u32::MAX),
            vec![0; 4096],
            vec![0xff; 4096],
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        ] {
            let raw = scene.raw()?;
            let _hung_up = raw.send_bytes(&header, &[]);
            let _hung_up = raw.finish();
            settle();
        }
        Ok(())
    }),
    attack("noise-on-the-socket", "random bytes instead of messages", |scene| {
        for _ in 0..20 {
            let raw = scene.raw()?;
            let count = scene.random.within(1..=1000) as usize;
            let _hung_up = raw.send_bytes(&bytes(&mut scene.random, count), &[]);
            let _hung_up = raw.finish();
        }
        Ok(())
    }),
    attack(
        "every-request-with-any-body",
        "every request there is and some that are not, with bodies that do not fit",
        |scene| {
            for number in 0..request::END {
                let mut bodies =
                    vec![vec![], ring_state(0, 1), ring_state(u32::MAX, u32::MAX), vec![0; 40], vec![0xff; 4096]];
                bodies.push(bytes(&mut scene.random, 24));
                let session = scene.session()?;
                session.raw.set_patience(IMPATIENCE)?;
                for body in bodies {
                    if session.raw.send(number, NEED_REPLY, &body, &[]).is_err() {
                        break;
                    }
                }
            }
            Ok(())
        },
    ),
    attack("messages-in-any-order", "three hundred random messages with random descriptors", |scene| {
        for _ in 0..6 {
            let session = scene.session()?;
            session.raw.set_patience(IMPATIENCE)?;
            for _ in 0..50 {
                if any_message(&session, &mut scene.random)?.is_err() {
                    break;
                }
            }
        }
        Ok(())
    }),
    attack("descriptors-nobody-asked-for", "two hundred descriptors with messages that take none", |scene| {
        let session = scene.session()?;
        let fds = vec![file(&session.memory); 200];
        for order in [request::SET_OWNER, request::GET_FEATURES, request::SET_VRING_NUM, request::RESET_DEVICE] {
            for _ in 0..20 {
                if session.raw.send(order, NEED_REPLY, &[], &fds).is_err() {
                    break;
                }
            }
        }
        settle();
        scene.keep(session);
        Ok(())
    }),
    attack("features-all", "every feature and every protocol feature, offered or not", |scene| {
        let mut session = scene.session()?;
        for features in [u64::MAX, 0, 1 << 63, 1 << 34] {
            let _answer = session.raw.order(request::SET_FEATURES, &features.to_ne_bytes(), &[]);
            let _answer = session.raw.order(request::SET_PROTOCOL_FEATURES, &features.to_ne_bytes(), &[]);
        }
        let _answer = session.ring(scene.device.request_ring());
        scene.keep(session);
        Ok(())
    }),
    attack("configuration-beyond", "reads and writes the configuration space where there is none", |scene| {
        for order in [request::GET_CONFIG, request::SET_CONFIG] {
            for offset in [0_u32, 59, 60, 255, 256, 1 << 20, u32::MAX - 3] {
                for size in [0_u32, 1, 60, 256, 257, 4000, u32::MAX] {
                    let session = scene.session()?;
                    session.raw.set_patience(IMPATIENCE)?;
                    let mut body: Vec<u8> = [offset, size, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
                    body.resize(12 + size.min(256) as usize, 0xff);
                    let _hung_up = session.raw.send(order, NEED_REPLY, &body, &[]);
                }
            }
        }
        Ok(())
    }),
    attack("log-of-nothing", "a dirty log that was not negotiated, and addresses in it", |scene| {
        let mut victim = scene.victim()?;
        let log = memfd_create("log", MemfdFlags::CLOEXEC)?;
        victim.session.raw.set_patience(IMPATIENCE)?;
        let size = [4096_u64, u64::MAX - 4095].map(u64::to_ne_bytes).concat();
        let areas = areas(&victim.ring).map(|area| area + USER_BASE);
        let ring = scene.device.request_ring() as u32;
        let _refused = victim.session.raw.order(request::SET_VRING_ADDR, &ring_areas(ring, 1, areas), &[]);
        let _refused = victim.session.raw.order(request::SET_LOG_FD, &[], &[log.as_fd()]);
        let _refused = victim.session.raw.order(request::SET_LOG_BASE, &size, &[log.as_fd()]);
        request_in(&victim, 0);
        victim.ring.publish(0);
        victim.kick();
        scene.keep(victim);
        Ok(())
    }),
    attack("backend-channel-of-any-type", "files, pipes, directories and sockets for the backend channel", |scene| {
        for fd in strange_descriptors()? {
            let mut session = scene.session()?;
            session.raw.set_patience(IMPATIENCE)?;
            let _refused = session.raw.order(request::SET_BACKEND_REQ_FD, &[], &[fd.as_fd()]);
        }
        Ok(())
    }),
    attack("inflight-region-of-noise", "an inflight region full of noise, of any size, that shrinks later", inflight),
    attack("thousand-connects", "connects a thousand times and leaves at once", |scene| {
        for _ in 0..CONNECTS {
            let _left = quick_connect(scene);
        }
        Ok(())
    }),
    attack("connects-beside-a-session", "connects a hundred times while another session is served", |scene| {
        let mut victim = scene.victim()?;
        let others: Vec<_> = (0..100).filter_map(|_| quick_connect(scene).ok()).collect();
        request_in(&victim, 0);
        victim.ring.publish(0);
        victim.kick();
        drop(others);
        scene.keep(victim);
        Ok(())
    }),
    attack("sessions-cut-short", "leaves a hundred times in the middle of requests", |scene| {
        for _ in 0..100 {
            let mut victim = scene.victim()?;
            for at in 0..8 {
                request_in(&victim, 3 * at);
                victim.ring.publish(3 * at);
            }
            victim.ring.kick();
        }
        Ok(())
    }),
];

/// A read in three descriptors from `at` on.
fn request_in(victim: &Victim, at: u16) {
    victim.session.memory.write(HEADER, &[0; 16]);
    victim.ring.set_descriptor(at, HEADER, 16, NEXT, at + 1);
    victim.ring.set_descriptor(at + 1, BUFFER, BLOCK, NEXT | WRITE, at + 2);
    victim.ring.set_descriptor(at + 2, STATUS, 1, WRITE, 0);
}

/// Starts a ring with its areas anywhere; `place` is told where memory ends, in the frontend's addresses.
fn placed(scene: &mut Scene<'_>, place: fn(u64) -> [u64; 3]) -> Result<()> {
    let mut session = scene.session()?;
    let index = scene.device.request_ring() as u32;
    let ring = tests::driver::Ring::new(session.memory.clone(), scene.device.request_ring(), RING_SIZE);
    let which = u64::from(index).to_ne_bytes();
    let places = place(USER_BASE + super::session::MEMORY_BYTES);
    let raw = &mut session.raw;
    let _refused = raw.order(request::SET_VRING_NUM, &ring_state(index, u32::from(RING_SIZE)), &[]);
    let _refused = raw.order(request::SET_VRING_ADDR, &ring_areas(index, 0, places), &[]);
    let _refused = raw.order(request::SET_VRING_CALL, &which, &[borrow(ring.call_fd())]);
    let _refused = raw.order(request::SET_VRING_KICK, &which, &[borrow(ring.kick_fd())]);
    let _refused = raw.order(request::SET_VRING_ENABLE, &ring_state(index, 1), &[]);
    ring.kick();
    settle();
    scene.keep((session, ring));
    Ok(())
}

/// Makes requests of a ring whose notifications go to `call`.
fn called(scene: &mut Scene<'_>, call: OwnedFd) -> Result<()> {
    scene.let_go();
    let mut session = scene.session()?;
    let ring = tests::driver::Ring::new(session.memory.clone(), scene.device.request_ring(), RING_SIZE);
    let _refused = session.start(&ring, borrow(ring.kick_fd()), call.as_fd());
    let mut victim = Victim { session, ring };
    for _ in 0..4 {
        request_in(&victim, 0);
        victim.ring.publish(0);
        victim.kick();
    }
    scene.keep((victim, call));
    Ok(())
}

fn call_becomes_blocking(scene: &mut Scene<'_>) -> Result<()> {
    let call = full_eventfd(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let index = scene.device.request_ring();
    let mut session = scene.session()?;
    let ring = tests::driver::Ring::new(session.memory.clone(), index, RING_SIZE);
    session.start(&ring, borrow(ring.kick_fd()), call.as_fd())?;
    fcntl_setfl(&call, OFlags::empty())?;
    let mut victim = Victim { session, ring };
    for _ in 0..4 {
        request_in(&victim, 0);
        victim.ring.publish(0);
        victim.kick();
    }
    scene.keep((victim, call));
    Ok(())
}

/// An eventfd to which nobody can write without waiting.
fn full_eventfd(flags: EventfdFlags) -> Result<OwnedFd> {
    let fd = eventfd(0, flags)?;
    // The largest value that it holds (eventfd(2)).
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes())?;
    Ok(fd)
}

/// Descriptors that are no eventfds.
fn strange_descriptors() -> Result<Vec<OwnedFd>> {
    let (reader, writer) = pipe()?;
    let (full_reader, full) = pipe()?;
    // As much as a pipe holds (pipe(7)).
    rustix::io::write(&full, &[0; 65536])?;
    let (hung_up, _) = UnixStream::pair()?;
    let memory = memfd_create("file", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, 4096)?;
    let directory = tempfile::tempdir()?;
    let listener = UnixListener::bind(directory.path().join("socket"))?;
    let device = |path: &str| open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Ok(vec![
        reader.into(),
        writer.into(),
        full_reader.into(),
        full.into(),
        hung_up.into(),
        memory,
        listener.into(),
        epoll::create(epoll::CreateFlags::CLOEXEC)?,
        File::open("/")?.into(),
        open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?,
        device("/dev/null")?,
        device("/dev/zero")?,
        device("/dev/full")?,
    ])
}

/// Sends the beginning of a message.
fn half(scene: &mut Scene<'_>, count: usize, leave: bool) -> Result<()> {
    let raw = scene.raw()?;
    let whole = message(request::SET_VRING_NUM, VERSION, &ring_state(0, 64));
    let _hung_up = raw.send_bytes(&whole[..count.min(whole.len() - 1)], &[]);
    if leave {
        let _hung_up = raw.finish();
    } else {
        thread::sleep(SILENCE);
    }
    scene.keep(raw);
    Ok(())
}

/// Sends one message of any kind. The inner error says that the server hung up.
fn any_message(session: &Session, random: &mut Rng) -> Result<std::io::Result<()>> {
    let number = random.within(0..=u64::from(request::END)) as u32;
    let index = random.pick(&[0, 0, 1, 1, 2, 255, u32::MAX]);
    let value = random.pick(&[0, 1, 64, 256, 65536, u32::MAX]);
    let body = match random.within(0..=6) {
        0 => vec![],
        1 | 2 => ring_state(index, value),
        3 => u64::from(index).to_ne_bytes().to_vec(),
        4 => ring_areas(index, value & 1, [USER_BASE, USER_BASE + 0xa_0000, USER_BASE + 0x8_0000]),
        5 => super::session::Region::of(&session.memory).single(),
        _ => {
            let count = random.within(0..=300) as usize;
            bytes(random, count)
        }
    };
    let event = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let fds: Vec<BorrowedFd<'_>> = match random.within(0..=5) {
        0 | 1 => vec![],
        2 | 3 => vec![event.as_fd()],
        4 => vec![file(&session.memory)],
        _ => vec![event.as_fd(), file(&session.memory), event.as_fd()],
    };
    let flags = random.pick(&[VERSION, NEED_REPLY]);
    Ok(session.raw.send(number, flags, &body, &fds))
}

/// Connects without waiting for anything.
fn quick_connect(scene: &Scene<'_>) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&stream, &SocketAddrUnix::new(scene.socket)?)?;
    Ok(stream)
}

/// The body of SET_INFLIGHT_FD and GET_INFLIGHT_FD (vhost-user, "Inflight description").
fn inflight_body(bytes: u64, offset: u64, queues: u16, size: u16) -> Vec<u8> {
    let mut body = [bytes, offset].map(u64::to_ne_bytes).concat();
    body.extend([queues, size].map(u16::to_ne_bytes).concat());
    // To the size of the C structure, as frontends send it.
    body.resize(24, 0);
    body
}

/// A session with inflight regions, where the server has them.
fn impatient(scene: &Scene<'_>) -> Result<Session> {
    let session = Session::open_patiently(scene.socket, 0, INFLIGHT_SHMFD)?;
    session.raw.set_patience(IMPATIENCE)?;
    Ok(session)
}

fn inflight(scene: &mut Scene<'_>) -> Result<()> {
    const BYTES: u64 = 64 << 10;
    let index = scene.device.request_ring();
    for round in 0..6 {
        scene.let_go();
        for (queues, size) in [(0, 0), (u16::MAX, u16::MAX), (1, 3)] {
            // The refusal of a message with an answer of its own may be the end of the session.
            let mut session = impatient(scene)?;
            let _refused = session.raw.ask(request::GET_INFLIGHT_FD, &inflight_body(0, 0, queues, size));
        }
        let mut session = impatient(scene)?;
        let region = memfd_create("inflight", MemfdFlags::CLOEXEC)?;
        ftruncate(&region, BYTES)?;
        let mut noise = bytes(&mut scene.random, BYTES as usize);
        if round % 2 == 0 {
            // A head that would do: no features, version 1, as many descriptors as the ring has, a batch somewhere.
            noise[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, RING_SIZE as u8, 0]);
            for (at, byte) in noise[16..].iter_mut().enumerate() {
                *byte &= if at % 16 == 0 { 1 } else { 0xff };
            }
        }
        rustix::io::pwrite(&region, &noise, 0)?;
        for (len, offset) in [(u64::MAX, 0), (0, 0), (BYTES, u64::MAX - 4095), (BYTES * 2, 0), (BYTES, 0)] {
            let body = inflight_body(len, offset, 2, RING_SIZE);
            let _refused = session.raw.order(request::SET_INFLIGHT_FD, &body, &[region.as_fd()]);
        }
        if let Ok(ring) = session.ring(index) {
            let mut victim = Victim { session, ring };
            if round >= 4 {
                ftruncate(&region, 0)?;
            }
            for at in 0..8 {
                request_in(&victim, 3 * at);
                victim.ring.publish(3 * at);
            }
            victim.kick();
            scene.keep((victim, region));
        }
    }
    Ok(())
}
