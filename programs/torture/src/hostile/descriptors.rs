//! Descriptors that are not what they are said to be: for kicks, notifications and errors, for the backend channel, for
//! requests in flight.

use std::fs::File;
use std::io::pipe;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use frontkit::borrow;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_setfl, ftruncate, memfd_create, open};

use super::attack::{Attack, Expect, On, Scene, Victim};
use super::raw::request;
use super::session::{INFLIGHT_SHMFD, RING_SIZE, Session, bytes, ring_state, settle};

const fn attack(name: &'static str, what: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Attack {
    Attack { name, what, on: On::Any, expect: Expect::Anything, run }
}

/// How long a frontend without manners waits for anything.
const IMPATIENCE: Duration = Duration::from_millis(200);
/// Requests that are answered while their notification changes, and the time between two of them.
const FLIPPED: u32 = 1000;
const BETWEEN_FLIPPED: Duration = Duration::from_micros(200);

pub(crate) const ATTACKS: &[Attack] = &[
    attack("kick-of-any-type", "files, pipes, directories and sockets for the kick descriptor", |scene| {
        let index = scene.device.request_ring();
        for fd in strange_descriptors()? {
            scene.let_go();
            let mut session = scene.session()?;
            let ring = tests::driver::Ring::new(session.memory.clone(), index, RING_SIZE);
            let _refused = session.start(&ring, fd.as_fd(), borrow(&ring.eventfds.call));
            let mut victim = Victim { session, ring };
            victim.lay_out(0);
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
            let _started =
                victim.session.raw.order(request::SET_VRING_KICK, &which, &[borrow(&victim.ring.eventfds.kick)]);
            victim.ring.queue.set_available_index(RING_SIZE + 1);
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
        ring.queue.set_available_index(RING_SIZE + 1);
        let victim = Victim { session, ring };
        victim.kick();
        scene.keep((victim, full));
        Ok(())
    }),
    // Only a frontend can do that, not its guest.
    attack(
        "call-that-becomes-blocking",
        "a call eventfd that is made blocking and full after it was given",
        call_becomes_blocking,
    ),
    attack("call-that-flips", "a full call eventfd that is made blocking and back while it is signalled", call_flips),
    attack("backend-channel-of-any-type", "files, pipes, directories and sockets for the backend channel", |scene| {
        for fd in strange_descriptors()? {
            let mut session = scene.session()?;
            session.raw.set_patience(IMPATIENCE)?;
            let _refused = session.raw.order(request::SET_BACKEND_REQ_FD, &[], &[fd.as_fd()]);
        }
        Ok(())
    }),
    attack("inflight-region-of-noise", "an inflight region full of noise, of any size, that shrinks later", inflight),
];

/// Makes requests of a ring whose notifications go to `call`.
fn called(scene: &mut Scene<'_>, call: OwnedFd) -> Result<()> {
    scene.let_go();
    let mut session = scene.session()?;
    let ring = tests::driver::Ring::new(session.memory.clone(), scene.device.request_ring(), RING_SIZE);
    let _refused = session.start(&ring, borrow(&ring.eventfds.kick), call.as_fd());
    let mut victim = Victim { session, ring };
    for _ in 0..4 {
        victim.lay_out(0);
        victim.ring.publish(0);
        victim.kick();
    }
    scene.keep((victim, call));
    Ok(())
}

/// A session whose ring notifies by an eventfd that is full, and that eventfd.
fn called_in_vain(scene: &Scene<'_>) -> Result<(Victim, OwnedFd)> {
    let call = full_eventfd(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let index = scene.device.request_ring();
    let mut session = scene.session()?;
    let ring = tests::driver::Ring::new(session.memory.clone(), index, RING_SIZE);
    session.start(&ring, borrow(&ring.eventfds.kick), call.as_fd())?;
    Ok((Victim { session, ring }, call))
}

fn call_flips(scene: &mut Scene<'_>) -> Result<()> {
    let (mut victim, call) = called_in_vain(scene)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let flipping = scope.spawn(|| -> rustix::io::Result<()> {
            while !over.load(Ordering::Relaxed) {
                fcntl_setfl(&call, OFlags::empty())?;
                fcntl_setfl(&call, OFlags::NONBLOCK)?;
            }
            Ok(())
        });
        for _ in 0..FLIPPED {
            victim.lay_out(0);
            victim.ring.publish(0);
            victim.ring.kick();
            thread::sleep(BETWEEN_FLIPPED);
        }
        over.store(true, Ordering::Relaxed);
        flipping.join().map_or(Ok(()), |flipped| flipped)
    })?;
    scene.keep((victim, call));
    Ok(())
}

fn call_becomes_blocking(scene: &mut Scene<'_>) -> Result<()> {
    let (mut victim, call) = called_in_vain(scene)?;
    fcntl_setfl(&call, OFlags::empty())?;
    for _ in 0..4 {
        victim.lay_out(0);
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
                victim.lay_out(3 * at);
                victim.ring.publish(3 * at);
            }
            victim.kick();
            scene.keep((victim, region));
        }
    }
    Ok(())
}
