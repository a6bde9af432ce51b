//! What a frontend can do that has gone wild: messages in any order, of any size, too many or not whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use frontkit::{USER_BASE, borrow};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::attack::{Attack, Expect, On, Scene};
use super::raw::{NEED_REPLY, VERSION, message, request};
use super::session::{NOWHERE, RING_SIZE, Session, areas, bytes, file, ring_areas, ring_state, settle};
use crate::rng::Rng;

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
            let _refused =
                victim.session.raw.order(request::SET_VRING_KICK, &kick, &[borrow(&victim.ring.eventfds.kick)]);
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
            let _started =
                victim.session.raw.order(request::SET_VRING_KICK, &kick, &[borrow(&victim.ring.eventfds.kick)]);
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
                victim.lay_out(0);
                victim.ring.publish(0);
            }
            victim.ring.kick();
            let kick = u64::from(index).to_ne_bytes();
            let Ok(base) = victim.session.raw.ask(request::GET_VRING_BASE, &ring_state(index, 0)) else { break };
            let base = base.get(4..8).and_then(|base| base.try_into().ok()).map_or(0, u32::from_ne_bytes);
            let based = victim.session.raw.order(request::SET_VRING_BASE, &ring_state(index, base), &[]);
            let kicked =
                victim.session.raw.order(request::SET_VRING_KICK, &kick, &[borrow(&victim.ring.eventfds.kick)]);
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
                victim.lay_out(0);
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
        victim.lay_out(0);
        victim.ring.publish(0);
        victim.kick();
        scene.keep(victim);
        Ok(())
    }),
    attack("thousand-connects", "connects a thousand times and leaves at once", |scene| {
        for _ in 0..CONNECTS {
            let _left = quick_connect(scene);
        }
        Ok(())
    }),
    attack("connects-beside-a-session", "connects a hundred times while another session is served", |scene| {
        let mut victim = scene.victim()?;
        let others: Vec<_> = (0..100).filter_map(|_| quick_connect(scene).ok()).collect();
        victim.lay_out(0);
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
                victim.lay_out(3 * at);
                victim.ring.publish(3 * at);
            }
            victim.ring.kick();
        }
        Ok(())
    }),
];

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
    let _refused = raw.order(request::SET_VRING_CALL, &which, &[borrow(&ring.eventfds.call)]);
    let _refused = raw.order(request::SET_VRING_KICK, &which, &[borrow(&ring.eventfds.kick)]);
    let _refused = raw.order(request::SET_VRING_ENABLE, &ring_state(index, 1), &[]);
    ring.kick();
    settle();
    scene.keep((session, ring));
    Ok(())
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
