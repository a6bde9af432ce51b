//! Rings of every size, notifications, every request, and the configuration space, with a driver of our own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::driver::{NO_STATUS, Ring, readable, writable};
use tests::frontend::{DATA, Frontend, INDIRECT_DESC, RO, kind, status};
use tests::image;

const CAPACITY_BYTES: u64 = 16 << 20;
const SECTOR: usize = 512;

/// A daemon with one export named `disk` on a file, with `more` in its table.
fn daemon(storage: &str, more: &str) -> Result<Daemon> {
    let directory = directory()?;
    image::sparse(directory.path(), "disk.img", CAPACITY_BYTES)?;
    Daemon::serve_in(
        directory,
        &format!(
            "workers = 1\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 2\n\
             storage = {{ kind = 'file', path = '{DIRECTORY}/disk.img'{storage} }}\n{more}\n"
        ),
    )
}

fn connect(daemon: &Daemon, without: u64) -> Result<Frontend> {
    Frontend::connect(&daemon.socket("disk"), without)
}

fn write(frontend: &Frontend, ring: &mut Ring, sector: u64, data: &[u8]) -> u8 {
    frontend.memory().write(DATA, data);
    ring.run(kind::OUT, sector, &[readable(DATA, data.len() as u32)]).0
}

fn read(frontend: &Frontend, ring: &mut Ring, sector: u64, bytes: usize) -> Vec<u8> {
    let answer = ring.run(kind::IN, sector, &[writable(DATA, bytes as u32)]);
    assert_eq!(answer, (status::OK, bytes as u32 + 1));
    frontend.memory().read(DATA, bytes)
}

#[test]
fn a_ring_of_one_descriptor() -> Result<()> {
    let daemon = daemon("", "")?;
    let mut frontend = connect(&daemon, 0)?;
    let mut ring = frontend.ring(0, 1)?;
    for round in 0..200u64 {
        let place = DATA + 8192;
        frontend.memory().write(place, &[round as u8; SECTOR]);
        let out = ring.request_indirect(kind::OUT, round, &[readable(place, SECTOR as u32)]);
        ring.kick_if_wanted();
        assert_eq!(ring.wait_used(), (0, 1));
        assert_eq!(ring.status(out), status::OK);
        let back = ring.request_indirect(kind::IN, round, &[writable(DATA, 256), writable(DATA + 4096, 256)]);
        ring.kick_if_wanted();
        assert_eq!(ring.wait_used(), (0, SECTOR as u32 + 1));
        assert_eq!(ring.status(back), status::OK);
        assert_eq!(frontend.memory().read(DATA, 256), [round as u8; 256]);
        assert_eq!(frontend.memory().read(DATA + 4096, 256), [round as u8; 256]);
    }
    daemon.stop()
}

/// With two descriptors, data and status share one: any layout is legal (virtio 1.3, 2.7.4).
#[test]
fn a_ring_of_two_descriptors_without_indirect_ones() -> Result<()> {
    let daemon = daemon("", "")?;
    let mut frontend = connect(&daemon, INDIRECT_DESC)?;
    assert_eq!(frontend.features() & INDIRECT_DESC, 0);
    let mut ring = frontend.ring(0, 2)?;
    let memory = Arc::clone(frontend.memory());
    for round in 0..200u64 {
        let mut out = vec![0; 16];
        out[0] = kind::OUT as u8;
        out[8] = round as u8;
        out.extend([round as u8 + 1; SECTOR]);
        memory.write(DATA, &out);
        memory.write(DATA + 8192, &[NO_STATUS]);
        ring.add(&[readable(DATA, out.len() as u32), writable(DATA + 8192, 1)]);
        ring.kick_if_wanted();
        assert_eq!(ring.wait_used().1, 1);
        assert_eq!(memory.read_byte(DATA + 8192), status::OK);

        memory.write(DATA, &[kind::IN as u8]);
        ring.add(&[readable(DATA, 16), writable(DATA + 8192, SECTOR as u32 + 1)]);
        ring.kick_if_wanted();
        assert_eq!(ring.wait_used().1, SECTOR as u32 + 1);
        let answer = memory.read(DATA + 8192, SECTOR + 1);
        assert!(answer[..SECTOR].iter().all(|byte| *byte == round as u8 + 1));
        assert_eq!(answer[SECTOR], status::OK);
    }
    daemon.stop()
}

#[test]
fn a_ring_of_32768_descriptors_filled_twice() -> Result<()> {
    let daemon = daemon("", "queue_size = 32768")?;
    let mut frontend = connect(&daemon, INDIRECT_DESC)?;
    let mut ring = frontend.ring(0, 32768)?;
    const REQUESTS: u64 = 32768 / 3;
    let sectors = CAPACITY_BYTES / SECTOR as u64;
    for round in 0..2u8 {
        let requests: Vec<_> = (0..REQUESTS)
            .map(|at| {
                let addr = DATA + at * SECTOR as u64;
                frontend.memory().write(addr, &(at * 2 + u64::from(round)).to_le_bytes());
                ring.request(kind::OUT, at % sectors, &[readable(addr, SECTOR as u32)])
            })
            .collect();
        ring.kick_if_wanted();
        for _ in &requests {
            ring.wait_used();
        }
        assert!(requests.iter().all(|request| ring.status(*request) == status::OK));
        for at in (0..REQUESTS).step_by(997) {
            let found = read(&frontend, &mut ring, at, 8 * 64);
            assert_eq!(found[..8], (at * 2 + u64::from(round)).to_le_bytes());
        }
    }
    daemon.stop()
}

#[test]
fn a_ring_larger_than_the_export_allows_is_refused() -> Result<()> {
    let daemon = daemon("", "queue_size = 256")?;
    let mut frontend = connect(&daemon, 0)?;
    assert!(frontend.ring(0, 512).is_err());
    let mut ring = frontend.ring(1, 256)?;
    assert_eq!(read(&frontend, &mut ring, 0, SECTOR), [0; SECTOR]);
    daemon.stop()
}

/// Without EVENT_IDX the driver's wish is a flag (virtio 1.3, 2.7.7.1).
#[test]
fn a_driver_that_wants_no_notification_gets_none() -> Result<()> {
    let daemon = daemon("", "")?;
    let mut frontend = connect(&daemon, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    // Some servers signal a fresh ring; that is not what is tested here.
    ring.wait_call(Duration::from_millis(50));
    ring.queue.disarm();
    for at in 0..50 {
        let request = ring.request(kind::IN, at, &[writable(DATA, SECTOR as u32)]);
        ring.kick_if_wanted();
        ring.watch_used();
        assert_eq!(ring.status(request), status::OK);
    }
    // Counted behind the used index that shows the request.
    let shown = daemon.wait_ring("disk", 0, |ring| ring.figures.notifications_suppressed == 50)?;
    assert_eq!(shown.figures.notifications_sent, 0);
    assert!(!ring.wait_call(Duration::ZERO));

    ring.queue.arm();
    assert_eq!(read(&frontend, &mut ring, 0, SECTOR), [0; SECTOR]);
    daemon.wait_ring("disk", 0, |ring| ring.figures.notifications_sent == 1)?;
    daemon.stop()
}

/// While the worker looks by itself it wants no kicks (virtio 1.3, 2.7.10), and misses nothing for it.
#[test]
fn a_device_that_looks_by_itself_says_so() -> Result<()> {
    let daemon = daemon("", "workers = 'one'\npoll = 'fixed=1000000'")?;
    let mut frontend = connect(&daemon, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for at in 0..500 {
        assert_eq!(ring.run(kind::IN, at, &[writable(DATA, SECTOR as u32)]), (status::OK, SECTOR as u32 + 1));
    }
    let (kicks, spared) = ring.kicks();
    assert!(spared > 0, "{kicks} kicks, none spared");
    daemon.stop()
}

#[test]
fn the_serial_number_is_told() -> Result<()> {
    let daemon = daemon("", "serial = 'OAK-7'")?;
    let mut frontend = connect(&daemon, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::GET_ID, 0, &[writable(DATA, 20)]), (status::OK, 21));
    let serial = *b"OAK-7\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(frontend.memory().read(DATA, 20), serial);
    assert_eq!(ring.run(kind::GET_ID, 0, &[writable(DATA, 19)]).0, status::IOERR);
    daemon.stop()
}

#[test]
fn a_read_only_disk_refuses_what_would_change_it() -> Result<()> {
    let daemon = daemon(", read_only = true", "")?;
    let mut frontend = connect(&daemon, 0)?;
    assert_ne!(frontend.features() & RO, 0);
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(write(&frontend, &mut ring, 0, &[1; SECTOR]), status::IOERR);
    assert_ne!(ring.run(kind::DISCARD, 0, &[readable(DATA, 16)]).0, status::OK);
    assert_ne!(ring.run(kind::WRITE_ZEROES, 0, &[readable(DATA, 16)]).0, status::OK);
    assert_eq!(read(&frontend, &mut ring, 0, SECTOR), [0; SECTOR]);
    assert_eq!(ring.run(kind::FLUSH, 0, &[]).0, status::OK);
    daemon.stop()
}

/// Segments of a discard or write-zeroes request (virtio 1.3, 5.2.6).
fn segments(list: &[(u64, u32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (sector, sectors, flags) in list {
        bytes.extend(sector.to_le_bytes());
        bytes.extend(sectors.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
    }
    bytes
}

fn ranges(frontend: &Frontend, ring: &mut Ring, kind: u32, list: &[(u64, u32, u32)]) -> u8 {
    let bytes = segments(list);
    frontend.memory().write(DATA, &bytes);
    // The payload arrives in two pieces, torn inside a segment.
    let rest = bytes.len() as u32 - 8;
    ring.run(kind, 0, &[readable(DATA, 8), readable(DATA + 8, rest)]).0
}

#[test]
fn ranges_are_zeroed_and_discarded_and_nothing_beside_them() -> Result<()> {
    let daemon = daemon("", "")?;
    let mut frontend = connect(&daemon, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for (kind, flags) in [(kind::WRITE_ZEROES, 0), (kind::WRITE_ZEROES, 1), (kind::DISCARD, 0)] {
        assert_eq!(write(&frontend, &mut ring, 0, &[0xaa; 128 * SECTOR]), status::OK);
        let list = [(8, 8, flags), (24, 40, flags), (96, 8, flags)];
        assert_eq!(ranges(&frontend, &mut ring, kind, &list), status::OK);
        let found = read(&frontend, &mut ring, 0, 128 * SECTOR);
        for (sector, data) in found.chunks(SECTOR).enumerate() {
            let inside =
                list.iter().any(|(first, count, _)| (*first..*first + u64::from(*count)).contains(&(sector as u64)));
            // A file's holes read as zeroes, so a discard shows as well.
            let expected = if inside { 0 } else { 0xaa };
            assert!(data.iter().all(|byte| *byte == expected), "sector {sector} after request type {kind}");
        }
    }
    let last = CAPACITY_BYTES / SECTOR as u64;
    for kind in [kind::WRITE_ZEROES, kind::DISCARD] {
        assert_eq!(ranges(&frontend, &mut ring, kind, &[(0, 8, 2)]), status::UNSUPP, "an unknown flag");
        assert_eq!(ranges(&frontend, &mut ring, kind, &[(0, 0, 0)]), status::IOERR, "an empty segment");
        assert_eq!(ranges(&frontend, &mut ring, kind, &[(0, 8, 0), (last - 1, 2, 0)]), status::IOERR, "beyond the end");
        assert_eq!(ranges(&frontend, &mut ring, kind, &[(0, 8, 0); 17]), status::IOERR, "more segments than announced");
    }
    assert_eq!(ranges(&frontend, &mut ring, kind::DISCARD, &[(0, 8, 1)]), status::UNSUPP, "unmap is no discard flag");
    assert_eq!(read(&frontend, &mut ring, 0, SECTOR), [0xaa; SECTOR], "a refused request changes nothing");
    daemon.stop()
}

#[test]
fn requests_that_cannot_be_are_answered_and_the_ring_goes_on() -> Result<()> {
    let daemon = daemon("", "")?;
    let mut frontend = connect(&daemon, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let last = CAPACITY_BYTES / SECTOR as u64;
    let data = [writable(DATA, SECTOR as u32)];
    assert_eq!(ring.run(99, 0, &data).0, status::UNSUPP);
    assert_eq!(ring.run(u32::MAX, 0, &[]).0, status::UNSUPP);
    assert_eq!(ring.run(kind::IN, last, &data).0, status::IOERR);
    assert_eq!(ring.run(kind::IN, u64::MAX, &data).0, status::IOERR);
    assert_eq!(ring.run(kind::IN, 0, &[writable(DATA, 100)]).0, status::IOERR);
    assert_eq!(ring.run(kind::OUT, last - 1, &[readable(DATA, 1024)]).0, status::IOERR);
    assert_eq!(ring.run(kind::IN, 0, &[readable(DATA, 512), writable(DATA, 512)]).0, status::IOERR);
    assert_eq!(ring.run(kind::FLUSH, 7, &[]).0, status::OK, "a flush has no sector");
    assert_eq!(ring.run(kind::IN, 0, &[]), (status::OK, 1), "nothing to read is read");

    // No room for a status byte; a header that ends too early; a header with nothing else.
    let (_, used) = chain(&mut ring, &[readable(DATA, 16)]);
    assert_eq!(used, 0);
    frontend.memory().write(DATA + 64, &[NO_STATUS]);
    chain(&mut ring, &[readable(DATA, 8), writable(DATA + 64, 1)]);
    assert_eq!(frontend.memory().read_byte(DATA + 64), status::IOERR);
    chain(&mut ring, &[writable(DATA + 64, 1)]);

    assert_eq!(read(&frontend, &mut ring, last - 1, SECTOR), [0; SECTOR]);
    let shown = daemon.ring("disk", 0)?;
    assert_eq!(shown.state, control::model::RingState::Running);
    assert!(shown.figures.unsupported >= 5 && shown.figures.errors >= 8, "{:?}", shown.figures);
    daemon.stop()
}

fn chain(ring: &mut Ring, buffers: &[tests::driver::Buffer]) -> (u16, u32) {
    ring.add(buffers);
    ring.kick_if_wanted();
    ring.wait_used()
}

#[test]
fn the_configuration_space_is_read_whole_and_in_parts() -> Result<()> {
    let daemon = daemon("", "block_size = 4096")?;
    let mut frontend = connect(&daemon, 0)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    // Offsets: virtio 1.3, 5.2.4. Cloud Hypervisor asks for its whole structure, QEMU for a part.
    for bytes in [60, 72, 256] {
        let config = frontend.config(0, bytes)?;
        assert_eq!(config.len(), bytes as usize);
        assert_eq!(number(&config[0..8]), CAPACITY_BYTES / SECTOR as u64);
        assert_eq!(number(&config[20..24]), 4096);
        assert_eq!(config[32], 1, "write-back");
        assert_eq!(number(&config[34..36]), 2, "queues");
        assert!(number(&config[36..40]) > 0 && number(&config[48..52]) > 0);
    }
    assert_eq!(number(&frontend.config(0, 8)?), CAPACITY_BYTES / SECTOR as u64);
    assert_eq!(number(&frontend.config(34, 2)?), 2);
    daemon.stop()
}

#[test]
fn the_driver_chooses_write_through() -> Result<()> {
    const WRITEBACK: u32 = 32;
    let daemon = daemon("", "write_cache = 'guest'")?;
    let mut frontend = connect(&daemon, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for value in [0, 1, 0] {
        frontend.set_config(WRITEBACK, &[value])?;
        assert_eq!(frontend.config(WRITEBACK, 1)?, [value]);
        for sector in 0..50 {
            assert_eq!(write(&frontend, &mut ring, sector, &[value + 7; SECTOR]), status::OK);
        }
        assert_eq!(read(&frontend, &mut ring, 49, SECTOR), [value + 7; SECTOR]);
    }
    assert!(frontend.set_config(WRITEBACK, &[2]).is_err());
    assert!(frontend.set_config(0, &[0; 8]).is_err(), "the capacity is not the driver's to write");
    assert_eq!(frontend.config(WRITEBACK, 1)?, [0]);
    daemon.stop()
}
