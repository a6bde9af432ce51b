//! Memory that comes and goes, and rings that stop and start, while requests are in flight.

use std::sync::Arc;

use anyhow::Result;
use frontkit::Memory;
use tests::daemon::{DIRECTORY, Daemon};
use tests::driver::{RING_BYTES, Ring, writable};
use tests::frontend::{DATA, Frontend, kind, status};

const BLOCK: u32 = 4096;
/// Where additional regions begin, and their length.
const MORE: u64 = 1 << 32;
const MORE_BYTES: u64 = 1 << 20;

fn daemon(storage: &str) -> Result<Daemon> {
    Daemon::serve(&format!(
        "workers = 2\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 2\nstorage = {storage}\n"
    ))
}

const MEMORY: &str = "{ kind = 'memory', size = '16M' }";
const SLOW: &str = "{ kind = 'sim', size = '16M', read_latency = '50ms', write_latency = '50ms', channels = 64 }";

/// Fills the first blocks of the disk: block `n` with byte `n + 1`.
fn fill(frontend: &Frontend, ring: &mut Ring, blocks: u8) {
    let requests: Vec<_> = (0..blocks)
        .map(|block| {
            let addr = DATA + u64::from(block) * u64::from(BLOCK);
            frontend.memory().write(addr, &[block + 1; BLOCK as usize]);
            ring.request(kind::OUT, u64::from(block) * 8, &[tests::driver::readable(addr, BLOCK)])
        })
        .collect();
    ring.kick_if_wanted();
    for _ in &requests {
        ring.wait_used();
    }
    assert!(requests.iter().all(|request| ring.status(*request) == status::OK));
}

fn holds(memory: &Memory, addr: u64, block: u8) -> bool {
    memory.read(addr, BLOCK as usize).iter().all(|byte| *byte == block + 1)
}

#[test]
fn regions_come_and_go_while_another_is_used() -> Result<()> {
    let daemon = daemon(MEMORY)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut busy = frontend.ring(0, 64)?;
    fill(&frontend, &mut busy, 16);
    let memory = Arc::clone(frontend.memory());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| -> Result<u64> {
        let user = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || rounds < 100 {
                let block = (rounds % 16) as u8;
                let addr = DATA + (1 << 20) + u64::from(block) * u64::from(BLOCK);
                memory.write(addr, &[0; BLOCK as usize]);
                let answer = busy.run(kind::IN, u64::from(block) * 8, &[writable(addr, BLOCK)]);
                assert_eq!(answer, (status::OK, BLOCK + 1));
                assert!(holds(&memory, addr, block), "block {block} in round {rounds}");
                rounds += 1;
            }
            rounds
        });
        for round in 0..50u64 {
            let one = Memory::new(MORE + (round % 3) * MORE_BYTES, MORE_BYTES)?;
            let two = Memory::new(MORE + 8 * MORE_BYTES, MORE_BYTES)?;
            frontend.add_region(&one)?;
            frontend.set_regions(&[&one, &two])?;
            frontend.remove_region(&one)?;
            frontend.set_regions(&[])?;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(user.join().expect("the other ring is served"))
    })?;
    assert!(rounds >= 100);
    daemon.stop()
}

#[test]
fn a_new_region_is_used_at_once_and_a_removed_one_breaks_only_the_ring_that_names_it() -> Result<()> {
    let daemon = daemon(MEMORY)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut careless = frontend.ring(0, 64)?;
    let mut careful = frontend.ring(1, 64)?;
    fill(&frontend, &mut careful, 4);
    let more = Memory::new(MORE, MORE_BYTES)?;
    frontend.add_region(&more)?;
    let buffer = [writable(MORE + 512, BLOCK)];
    assert_eq!(careless.run(kind::IN, 8, &buffer), (status::OK, BLOCK + 1));
    assert!(holds(&more, MORE + 512, 1));

    frontend.remove_region(&more)?;
    careless.request(kind::IN, 16, &buffer);
    careless.kick();
    let broken = daemon.wait_ring("disk", 0, |ring| ring.state == control::model::RingState::Broken)?;
    let why = broken.broken.expect("a broken ring says why");
    assert!(why.contains("outside memory"), "{why}");
    assert_eq!(careful.run(kind::IN, 16, &[writable(DATA, BLOCK)]), (status::OK, BLOCK + 1));
    assert!(holds(frontend.memory(), DATA, 2));
    assert!(holds(&more, MORE + 512, 1), "nothing was written to a region that is gone");

    // The ring can be set up anew in the same session.
    let base = frontend.stop(&careless)?;
    assert_eq!(base, 1, "one request was taken");
    let mut careless = frontend.ring(0, 64)?;
    assert_eq!(careless.run(kind::IN, 24, &[writable(DATA, BLOCK)]), (status::OK, BLOCK + 1));
    daemon.stop()
}

#[test]
fn memory_that_a_ring_lies_in_is_not_taken_away() -> Result<()> {
    let daemon = daemon(MEMORY)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let memory = Arc::clone(frontend.memory());
    assert!(frontend.remove_region(&memory).is_err());
    fill(&frontend, &mut ring, 4);
    daemon.stop()
}

/// The server keeps what it needs until the requests that use it have ended.
#[test]
fn requests_in_flight_outlive_their_memory() -> Result<()> {
    let mut daemon = daemon(SLOW)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    fill(&frontend, &mut ring, 8);
    for round in 0..3 {
        let more = Memory::new(MORE, MORE_BYTES)?;
        frontend.add_region(&more)?;
        let place = |block: u8| MORE + u64::from(block) * u64::from(BLOCK);
        let requests: Vec<_> = (0..8)
            .map(|block| ring.request(kind::IN, u64::from(block) * 8, &[writable(place(block), BLOCK)]))
            .collect();
        ring.kick_if_wanted();
        daemon.wait_ring("disk", 0, |ring| ring.figures.in_flight == 8)?;
        if round == 1 {
            frontend.set_regions(&[])?;
        } else {
            frontend.remove_region(&more)?;
        }
        assert_eq!(ring.queue.used_index(), 8 + 8 * round, "a memory table does not wait for requests");
        for _ in &requests {
            assert_eq!(ring.wait_used().1, BLOCK + 1);
        }
        assert!(requests.iter().all(|request| ring.status(*request) == status::OK));
        assert!((0..8).all(|block| holds(&more, place(block), block)));
        daemon.check_alive()?;
    }
    daemon.stop()
}

#[test]
fn a_frontend_that_leaves_with_requests_in_flight_harms_nobody() -> Result<()> {
    let mut daemon = daemon(SLOW)?;
    for _ in 0..3 {
        let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
        let mut ring = frontend.ring(0, 64)?;
        for block in 0..16 {
            ring.request(kind::IN, block * 8, &[writable(DATA + block * u64::from(BLOCK), BLOCK)]);
        }
        ring.kick_if_wanted();
        daemon.wait_ring("disk", 0, |ring| ring.figures.in_flight == 16)?;
        drop((frontend, ring));
        daemon.wait_disconnected("disk")?;
        daemon.check_alive()?;
        assert_eq!(daemon.ring("disk", 0)?.figures.in_flight, 0);
    }
    daemon.stop()
}

/// Queue reset: GET_VRING_BASE answers when nothing is in flight, and the ring goes on where it was.
#[test]
fn a_ring_is_reset_in_the_middle_of_its_requests() -> Result<()> {
    let daemon = daemon(SLOW)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    fill(&frontend, &mut ring, 8);
    let mut total = 8u16;
    for _ in 0..4 {
        let requests: Vec<_> = (0..8u8)
            .map(|block| {
                let addr = DATA + u64::from(block) * u64::from(BLOCK);
                ring.request(kind::IN, u64::from(block) * 8, &[writable(addr, BLOCK)])
            })
            .collect();
        ring.kick_if_wanted();
        daemon.wait_ring("disk", 0, |ring| ring.figures.in_flight > 0)?;
        let base = frontend.stop(&ring)?;
        assert_eq!(ring.queue.used_index(), base, "what was taken was drained, and published before the answer");
        frontend.start(&ring, base)?;
        ring.kick();
        for _ in &requests {
            ring.wait_used();
        }
        assert!(requests.iter().all(|request| ring.status(*request) == status::OK));
        total += 8;
        assert_eq!(ring.queue.used_index(), total, "each request was answered once");
    }
    assert!((0..8).all(|block| holds(frontend.memory(), DATA + u64::from(block) * u64::from(BLOCK), block)));
    daemon.stop()
}

#[test]
fn a_disabled_ring_waits() -> Result<()> {
    use vhost::vhost_user::VhostUserFrontend;
    let daemon = daemon(MEMORY)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let mut other = frontend.ring(1, 64)?;
    fill(&frontend, &mut ring, 4);
    frontend.link().set_vring_enable(0, false)?;
    assert_eq!(daemon.ring("disk", 0)?.state, control::model::RingState::Disabled);
    let request = ring.request(kind::IN, 8, &[writable(DATA + 65536, BLOCK)]);
    ring.kick();
    // The other ring is on the same daemon, and a round of it gives the disabled one time to go wrong.
    for _ in 0..100 {
        assert_eq!(other.run(kind::IN, 0, &[writable(DATA, BLOCK)]), (status::OK, BLOCK + 1));
    }
    assert_eq!(ring.queue.used_index(), 4, "a disabled ring serves nothing");
    frontend.link().set_vring_enable(0, true)?;
    assert_eq!(ring.wait_used(), (request.head, BLOCK + 1), "no kick is lost over it");
    assert!(holds(frontend.memory(), DATA + 65536, 1));
    daemon.stop()
}

/// The areas of a ring may lie in a region of their own.
#[test]
fn a_ring_in_a_region_that_was_added_later() -> Result<()> {
    let daemon = daemon(MEMORY)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut first = frontend.ring(0, 64)?;
    fill(&frontend, &mut first, 2);
    let more = Arc::new(Memory::new(MORE, 2 * RING_BYTES)?);
    frontend.add_region(&more)?;
    let mut ring = Ring::new(Arc::clone(&more), 1, 32);
    frontend.start(&ring, 0)?;
    assert_eq!(ring.run(kind::IN, 8, &[writable(DATA, BLOCK)]), (status::OK, BLOCK + 1));
    assert!(holds(frontend.memory(), DATA, 1));
    assert!(frontend.remove_region(&more).is_err(), "a running ring lies there");
    assert_eq!(frontend.stop(&ring)?, 1);
    frontend.remove_region(&more)?;
    fill(&frontend, &mut first, 2);
    daemon.stop()
}
