//! A hostile guest on one export, and a verified load on the export beside it that must not notice: both are served by
//! the same worker.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use control::model::{RingState, SessionState};
use tests::daemon::{DIRECTORY, Daemon};
use tests::driver::{INDIRECT, NEXT, PATIENCE, Ring, WRITE, readable, tear_descriptor, writable, write_descriptor};
use tests::frontend::{DATA, Frontend, INDIRECT_DESC, kind, status};

const BLOCK: u32 = 4096;
const RING_SIZE: u16 = 64;
/// Header of a request of the hostile guest, and its status.
const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 64;
const BUFFER: u64 = DATA + 4096;
/// Where indirect tables are.
const TABLE: u64 = DATA + (1 << 20);
/// An address that no memory region has.
const NOWHERE: u64 = 1 << 40;

/// One worker, a quiet export and a hostile one.
fn daemon(hostile_storage: &str) -> Result<Daemon> {
    Daemon::serve(&format!(
        "workers = 1\n\
         [[export]]\nname = 'quiet'\nsocket = '{DIRECTORY}/quiet.sock'\nqueues = 1\n\
         storage = {{ kind = 'memory', size = '16M' }}\n\
         [[export]]\nname = 'hostile'\nsocket = '{DIRECTORY}/hostile.sock'\nqueues = 4\n\
         storage = {hostile_storage}\n"
    ))
}

const MEMORY: &str = "{ kind = 'memory', size = '16M' }";
const SLOW: &str = "{ kind = 'sim', size = '16M', read_latency = '50ms', write_latency = '50ms', channels = 64 }";

/// Runs `attack` while the quiet export is under verified load, and looks at what is left afterwards.
fn beside_a_quiet_disk(storage: &str, attack: impl FnOnce(&Daemon, &mut Quiet) -> Result<()>) -> Result<()> {
    let mut daemon = daemon(storage)?;
    let spec = Spec { rw: Rw::RandRw, mix: 50, depth: 8, verify: true, ..Spec::default() };
    let mut quiet = Quiet(Load::start(&daemon.socket("quiet"), &spec)?);
    attack(&daemon, &mut quiet)?;
    quiet.works_on()?;
    daemon.check_alive()?;
    let report = quiet.0.finish()?;
    assert!(report.is_clean(), "{} errors, {} mismatches: {:?}", report.errors, report.mismatches, report.faults);
    assert_eq!(daemon.export("quiet")?.broken_rings, 0);
    works(&daemon)?;
    daemon.stop()
}

struct Quiet(Load);

impl Quiet {
    /// Waits until the quiet disk has served some more.
    fn works_on(&mut self) -> Result<()> {
        let target = self.0.snapshot().ops + 200;
        let start = std::time::Instant::now();
        while self.0.snapshot().ops < target {
            ensure!(!self.0.is_finished() && start.elapsed() < PATIENCE, "the quiet disk is served no more");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The hostile export serves whoever comes next.
fn works(daemon: &Daemon) -> Result<()> {
    daemon.wait_disconnected("hostile")?;
    let mut frontend = Frontend::connect(&daemon.socket("hostile"), 0)?;
    let mut ring = frontend.ring(0, RING_SIZE)?;
    frontend.memory().write(BUFFER, &[7; BLOCK as usize]);
    assert_eq!(ring.run(kind::OUT, 0, &[readable(BUFFER, BLOCK)]), (status::OK, 1));
    assert_eq!(ring.run(kind::IN, 0, &[writable(BUFFER + 8192, BLOCK)]), (status::OK, BLOCK + 1));
    assert_eq!(frontend.memory().read(BUFFER + 8192, BLOCK as usize), [7; BLOCK as usize]);
    assert_eq!(daemon.ring("hostile", 0)?.state, RingState::Running);
    drop(frontend);
    daemon.wait_disconnected("hostile")
}

/// Each attack on a session of its own: the ring breaks and says why, and the quiet disk works on.
fn breaks(
    daemon: &Daemon,
    quiet: &mut Quiet,
    without: u64,
    reason: &str,
    attack: impl FnOnce(&mut Ring),
) -> Result<()> {
    let mut frontend = Frontend::connect(&daemon.socket("hostile"), without)?;
    let mut ring = frontend.ring(0, RING_SIZE)?;
    let mut honest = frontend.ring(1, RING_SIZE)?;
    // A header that would do: the lie is elsewhere.
    frontend.memory().write(HEADER, &[0; 16]);
    attack(&mut ring);
    ring.kick();
    let shown = daemon.wait_ring("hostile", 0, |ring| ring.state == RingState::Broken)?;
    let why = shown.broken.unwrap_or_default();
    assert!(why.contains(reason), "`{why}` does not say `{reason}`");
    assert_eq!(daemon.export("hostile")?.broken_rings, 1);
    // Kicks change nothing, and the other ring of the same guest is served.
    ring.kick();
    quiet.works_on()?;
    assert_eq!(honest.run(kind::IN, 0, &[writable(BUFFER, BLOCK)]), (status::OK, BLOCK + 1));
    drop((frontend, ring, honest));
    works(daemon)
}

fn request_in(ring: &mut Ring, at: u16) {
    ring.queue.set_descriptor(at, HEADER, 16, NEXT, at + 1);
    ring.queue.set_descriptor(at + 1, BUFFER, BLOCK, NEXT | WRITE, at + 2);
    ring.queue.set_descriptor(at + 2, STATUS, 1, WRITE, 0);
}

#[test]
fn an_available_ring_that_lies() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        breaks(daemon, quiet, 0, "ahead", |ring| ring.queue.set_available_index(RING_SIZE + 1))?;
        breaks(daemon, quiet, 0, "ahead", |ring| ring.queue.set_available_index(0xffff))?;
        breaks(daemon, quiet, 0, "outside the descriptor table", |ring| ring.publish(RING_SIZE))?;
        breaks(daemon, quiet, 0, "outside the descriptor table", |ring| ring.publish(0xffff))
    })
}

#[test]
fn chains_that_loop_or_lead_astray() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        breaks(daemon, quiet, 0, "it loops", |ring| {
            ring.queue.set_descriptor(0, HEADER, 16, NEXT, 1);
            ring.queue.set_descriptor(1, BUFFER, BLOCK, NEXT, 0);
            ring.publish(0);
        })?;
        breaks(daemon, quiet, 0, "it loops", |ring| {
            ring.queue.set_descriptor(5, BUFFER, BLOCK, NEXT | WRITE, 5);
            ring.publish(5);
        })?;
        breaks(daemon, quiet, 0, "continues at", |ring| {
            ring.queue.set_descriptor(0, HEADER, 16, NEXT, RING_SIZE);
            ring.publish(0);
        })?;
        breaks(daemon, quiet, 0, "readable descriptor behind", |ring| {
            ring.queue.set_descriptor(0, STATUS, 1, NEXT | WRITE, 1);
            ring.queue.set_descriptor(1, HEADER, 16, 0, 0);
            ring.publish(0);
        })
    })
}

#[test]
fn buffers_outside_memory() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        let addresses = [(NOWHERE, BLOCK), (u64::MAX - 100, BLOCK), (DATA + (64 << 20) - 100, BLOCK), (DATA, u32::MAX)];
        for (address, len) in addresses {
            breaks(daemon, quiet, 0, "outside memory", |ring| {
                ring.queue.set_descriptor(0, HEADER, 16, NEXT, 1);
                ring.queue.set_descriptor(1, address, len, NEXT | WRITE, 2);
                ring.queue.set_descriptor(2, STATUS, 1, WRITE, 0);
                ring.publish(0);
            })?;
        }
        Ok(())
    })
}

#[test]
fn indirect_tables_that_must_not_be() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        let table = |ring: &mut Ring, len: u32, flags: u16| {
            ring.queue.set_descriptor(0, TABLE, len, flags, 1);
            ring.publish(0);
        };
        breaks(daemon, quiet, 0, "indirect table of 15 bytes", |ring| table(ring, 15, INDIRECT))?;
        breaks(daemon, quiet, 0, "indirect table of 0 bytes", |ring| table(ring, 0, INDIRECT))?;
        breaks(daemon, quiet, 0, "indirect table of", |ring| table(ring, 16 << 16, INDIRECT))?;
        breaks(daemon, quiet, 0, "both the indirect and the next", |ring| table(ring, 32, INDIRECT | NEXT))?;
        breaks(daemon, quiet, INDIRECT_DESC, "not negotiated", |ring| table(ring, 32, INDIRECT))?;
        breaks(daemon, quiet, 0, "outside memory", |ring| {
            ring.queue.set_descriptor(0, NOWHERE, 32, INDIRECT, 0);
            ring.publish(0);
        })?;
        breaks(daemon, quiet, 0, "inside an indirect table", |ring| {
            write_descriptor(ring.queue.memory(), TABLE, TABLE + 4096, 32, INDIRECT, 0);
            table(ring, 16, INDIRECT);
        })?;
        breaks(daemon, quiet, 0, "it loops", |ring| {
            write_descriptor(ring.queue.memory(), TABLE, HEADER, 16, NEXT, 1);
            write_descriptor(ring.queue.memory(), TABLE + 16, BUFFER, 16, NEXT, 0);
            table(ring, 32, INDIRECT);
        })
    })
}

#[test]
fn a_head_that_is_in_flight_already() -> Result<()> {
    beside_a_quiet_disk(SLOW, |daemon, quiet| {
        breaks(daemon, quiet, 0, "in flight", |ring| {
            request_in(ring, 0);
            ring.publish(0);
            ring.publish(0);
        })
    })
}

/// Requests that were in flight when their ring broke end, and the session can end at once.
#[test]
fn a_ring_that_breaks_with_requests_in_flight() -> Result<()> {
    beside_a_quiet_disk(SLOW, |daemon, quiet| {
        for leave_early in [true, false] {
            let mut frontend = Frontend::connect(&daemon.socket("hostile"), 0)?;
            let mut ring = frontend.ring(0, RING_SIZE)?;
            for at in (0..30).step_by(3) {
                request_in(&mut ring, at);
                ring.publish(at);
            }
            ring.publish(RING_SIZE);
            ring.kick();
            daemon.wait_ring("hostile", 0, |ring| ring.state == RingState::Broken)?;
            if !leave_early {
                let base = frontend.stop(&ring)?;
                assert_eq!(base, 10, "the lie was not taken");
                assert_eq!(ring.queue.used_index(), 10);
            }
            drop(frontend);
            quiet.works_on()?;
            works(daemon)?;
        }
        Ok(())
    })
}

/// What was read once is not read again: a guest that writes while it is served fools itself alone.
#[test]
fn descriptors_rewritten_while_they_are_served() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        for round in 0..10 {
            let mut frontend = Frontend::connect(&daemon.socket("hostile"), 0)?;
            let mut ring = frontend.ring(0, RING_SIZE)?;
            let memory = Arc::clone(frontend.memory());
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| -> Result<()> {
                let victim = ring.queue.memory().clone();
                let stop = &stop;
                scope.spawn(move || rewrite(&victim, stop));
                for at in 0..2_000u16 {
                    let head = (at % 16) * 3;
                    memory.write(HEADER, &u64::from(at % 16).to_le_bytes());
                    request_in(&mut ring, head);
                    ring.publish(head);
                    if at % 8 == 0 {
                        ring.kick();
                    }
                }
                quiet.works_on()?;
                stop.store(true, Ordering::Relaxed);
                Ok(())
            })?;
            // The ring may have broken or not; either way it stops when told to.
            if round % 2 == 0 {
                frontend.stop(&ring)?;
            }
            drop(frontend);
            daemon.wait_disconnected("hostile")?;
        }
        Ok(())
    })
}

/// Changes lengths, addresses, flags and links of the first descriptors without end.
fn rewrite(memory: &frontkit::Memory, stop: &AtomicBool) {
    let mut seed = 0x9e37_79b9_u64;
    while !stop.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 40) % 48;
        let (addr, len) = match (seed >> 33) % 4 {
            0 => (HEADER, 16),
            1 => (NOWHERE, BLOCK),
            2 => (BUFFER, u32::MAX),
            _ => (BUFFER, BLOCK),
        };
        let flags = (seed >> 50) as u16 & (NEXT | WRITE | INDIRECT);
        tear_descriptor(memory, 16 * at, addr, len, flags, (seed >> 55) as u16);
    }
}

#[test]
fn a_flood_of_kicks() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        let mut frontend = Frontend::connect(&daemon.socket("hostile"), 0)?;
        let mut ring = frontend.ring(0, RING_SIZE)?;
        let kick = ring.eventfds.kick.try_clone()?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // The counter of an eventfd that nobody reads fills up one day; the largest step makes it today.
                    let _full = kick.write(1 << 62);
                    let _full = kick.write(1);
                }
            });
            for at in 0..200 {
                assert_eq!(ring.run(kind::IN, at, &[writable(BUFFER, BLOCK)]), (status::OK, BLOCK + 1));
            }
            quiet.works_on()?;
            stop.store(true, Ordering::Relaxed);
            Ok(())
        })?;
        assert_eq!(daemon.ring("hostile", 0)?.state, RingState::Running);
        Ok(())
    })
}

/// A vhost-user header and body (vhost-user, "Header"), whatever they say.
fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in [request, flags, body.len() as u32] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Sends bytes and says that nothing follows; the daemon has to hang up for it.
fn send(socket: &Path, bytes: &[u8]) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The daemon may hang up in the middle.
    let _hung_up = stream.write_all(bytes);
    let _hung_up = stream.shutdown(Shutdown::Write);
    match stream.read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}

#[test]
fn garbage_on_the_socket() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        let socket = daemon.socket("hostile");
        let mut seed = 1u64;
        let mut noise = |len: usize| -> Vec<u8> {
            let mut next = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            };
            (0..len).map(|_| next()).collect()
        };
        let mut garbage = vec![
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            vec![0; 4096],
            vec![0xff; 4096],
            message(1, 1, &[])[..7].to_vec(),
            message(1, 2, &[]),
            message(1, 0x1d, &[]),
            [message(5, 9, &[])[..8].to_vec(), u32::MAX.to_ne_bytes().to_vec()].concat(),
        ];
        garbage.extend((0..20).map(|round| noise(round * 37 + 1)));
        for bytes in &garbage {
            daemon.wait_disconnected("hostile")?;
            send(&socket, bytes)?;
        }
        quiet.works_on()?;
        let shown = daemon.export("hostile")?;
        assert!(shown.sessions.failures > 0 && shown.last_error.is_some(), "{shown:?}");
        Ok(())
    })
}

#[test]
fn messages_out_of_order() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        let socket = daemon.socket("hostile");
        let state = |index: u32, value: u32| [index.to_ne_bytes(), value.to_ne_bytes()].concat();
        // Numbers of requests: vhost-user, "Front-end message types".
        for request in 0..64u32 {
            for body in [vec![], state(0, 1), state(u32::MAX, u32::MAX), vec![0xff; 40]] {
                daemon.wait_disconnected("hostile")?;
                send(&socket, &message(request, 9, &body))?;
            }
        }
        let rings = [
            message(8, 9, &state(0, 3)),
            message(8, 9, &state(0, 0)),
            message(8, 9, &state(0, 65536)),
            message(10, 9, &state(0, 65536)),
            message(18, 9, &state(0, 2)),
            message(18, 9, &state(400, 1)),
            message(9, 9, &[0xff; 40]),
            message(11, 1, &state(0, 0)),
            message(12, 9, &0x100u64.to_ne_bytes()),
            message(18, 9, &state(0, 1)),
        ];
        send(&socket, &rings.concat())?;
        quiet.works_on()
    })
}

#[test]
fn a_second_frontend_is_turned_away() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, _| {
        let mut first = Frontend::connect(&daemon.socket("hostile"), 0)?;
        let mut ring = first.ring(0, RING_SIZE)?;
        for _ in 0..5 {
            assert!(Frontend::connect(&daemon.socket("hostile"), 0).is_err());
        }
        assert_eq!(daemon.export("hostile")?.state, SessionState::Connected);
        assert_eq!(ring.run(kind::IN, 0, &[writable(BUFFER, BLOCK)]), (status::OK, BLOCK + 1));
        Ok(())
    })
}

/// A frontend that shortens the file behind its guest's memory loses its rings, and nobody else loses anything.
#[test]
fn memory_that_is_taken_away() -> Result<()> {
    beside_a_quiet_disk(MEMORY, |daemon, quiet| {
        for busy in [false, true] {
            let mut frontend = Frontend::connect(&daemon.socket("hostile"), 0)?;
            let mut ring = frontend.ring(0, RING_SIZE)?;
            let idle = frontend.ring(1, RING_SIZE)?;
            if busy {
                frontend.memory().write(HEADER, &[0; 16]);
                for at in (0..30).step_by(3) {
                    request_in(&mut ring, at);
                    ring.publish(at);
                }
                ring.kick();
            }
            frontend.memory().file().set_len(0)?;
            ring.kick();
            idle.kick();
            for index in [0, 1] {
                let shown = daemon.wait_ring("hostile", index, |ring| ring.state == RingState::Broken)?;
                let why = shown.broken.unwrap_or_default();
                assert!(why.contains("is gone"), "`{why}` does not say that the memory is gone");
            }
            quiet.works_on()?;
            // It stops when it is told to, as any ring.
            frontend.stop(&ring)?;
            drop((frontend, ring, idle));
            works(daemon)?;
        }
        Ok(())
    })
}
