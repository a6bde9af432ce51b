//! The dirty log's oracle: a frontend that moves its guest while a daemon serves it. It copies the pages that are marked and what
//! its own driver writes, and at each stop of the rings the copy is the guest's memory, byte for byte.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use frontkit::blk::{NO_STATUS, header};
use frontkit::{DirtyLog, LOG_PAGE_BYTES as PAGE, Memory};
use testkit::Rng;
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::driver::{Buffer, Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind};
use tests::long;
use vhost::vhost_user::VhostUserFrontend as _;

const RING_SIZE: u16 = 256;
/// Requests under way at a time, and what each has room for: a request, and an answer in several buffers.
const PLACES: u64 = 24;
const PLACE_BYTES: u64 = 256 << 10;
const ANSWER_AT: u64 = PLACE_BYTES / 2;
const MEMORY_BYTES: u64 = DATA + PLACES * PLACE_BYTES;
const DISK_BYTES: u64 = 8 << 20;

/// What a device is asked: the bytes of a request, and how many its answer has room for.
type Asked = (Vec<u8>, u64);

/// A guest that is moved.
struct Move {
    frontend: Frontend,
    memory: Arc<Memory>,
    /// The guest's memory where it is moved to.
    copy: Vec<u8>,
    log: Option<DirtyLog>,
    /// Pages that the device may write.
    allowed: BTreeSet<u64>,
    ring: Ring,
    numbers: Rng,
    next: u64,
    in_flight: u64,
}

impl Move {
    /// A guest with one queue, `index`, that runs.
    fn new(socket: &Path, index: usize) -> Result<Self> {
        let memory = Arc::new(Memory::new(0, MEMORY_BYTES)?);
        let frontend = Frontend::connect_with(socket, frontkit::feature::LOG_ALL, Arc::clone(&memory))?;
        Self::on(frontend, memory, index)
    }

    fn on(mut frontend: Frontend, memory: Arc<Memory>, index: usize) -> Result<Self> {
        let ring = frontend.ring(index, RING_SIZE)?;
        let copy = vec![0; MEMORY_BYTES as usize];
        let numbers = Rng(0x9e37_79b9_7f4a_7c15);
        Ok(Self { frontend, memory, copy, log: None, allowed: BTreeSet::new(), ring, numbers, next: 0, in_flight: 0 })
    }

    /// The driver writes, which its machine sees.
    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes);
        self.copy[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn copy_range(&mut self, at: u64, bytes: u64) {
        self.memory.read_into(at, &mut self.copy[at as usize..][..bytes as usize]);
    }

    /// Pages of a range.
    fn allow(&mut self, at: u64, bytes: u64) {
        self.allowed.extend(at / PAGE..=(at + bytes - 1) / PAGE);
    }

    /// Begins to move it: everything is copied once.
    fn begin(&mut self) -> Result<()> {
        let log = DirtyLog::new(MEMORY_BYTES)?;
        self.frontend.session().log(&log, &[(self.ring.index(), &self.ring.queue)])?;
        self.log = Some(log);
        self.copy_range(0, MEMORY_BYTES);
        Ok(())
    }

    fn give_up(&mut self) -> Result<()> {
        self.frontend.session().log_no_more(&[(self.ring.index(), &self.ring.queue)])?;
        self.log = None;
        Ok(())
    }

    /// Another log, as when memory is added.
    fn change_log(&mut self) -> Result<()> {
        let log = DirtyLog::new(MEMORY_BYTES + 64 * PAGE)?;
        self.frontend.session().log(&log, &[(self.ring.index(), &self.ring.queue)])?;
        self.sync()?;
        self.log = Some(log);
        Ok(())
    }

    /// Copies what is marked.
    fn sync(&mut self) -> Result<usize> {
        let Some(log) = &self.log else { return Ok(0) };
        let marked = log.take();
        for page in &marked {
            ensure!(self.allowed.contains(page), "page {page:#x} is marked, and the device cannot have written it");
            self.copy_range(page * PAGE, PAGE);
        }
        Ok(marked.len())
    }

    /// Makes a request available, with its answer anywhere in its place, in pieces.
    fn submit(&mut self, (request, room): &Asked) {
        let place = DATA + self.next % PLACES * PLACE_BYTES;
        self.next += 1;
        self.in_flight += 1;
        self.put(place, request);
        let mut buffers = vec![readable(place, request.len() as u32)];
        let mut at = place + ANSWER_AT + self.numbers.below(2 * PAGE);
        let mut left = *room;
        while left > 0 {
            let longest = if buffers.len() == 4 { left } else { left.min(3 * PAGE) };
            let len = if longest < 2 { left } else { 1 + self.numbers.below(longest) }.min(left);
            let len = if buffers.len() == 4 { left } else { len };
            self.answer_buffer(&mut buffers, at, len);
            at += len + self.numbers.below(2 * PAGE);
            left -= len;
        }
        self.ring.add(&buffers);
        let areas = self.ring.queue.areas();
        self.copy_range(areas.desc, 16 * u64::from(RING_SIZE));
        self.copy_range(areas.avail, 4 + 2 * u64::from(RING_SIZE));
    }

    fn answer_buffer(&mut self, buffers: &mut Vec<Buffer>, at: u64, len: u64) {
        // What was there cannot be what will be.
        let fill = self.numbers.below(255) as u8;
        self.put(at, &vec![fill; len as usize]);
        self.put(at + len - 1, &[NO_STATUS]);
        self.allow(at, len);
        buffers.push(writable(at, len as u32));
    }

    /// Asks many times, with marks taken meanwhile.
    fn load(&mut self, requests: usize, mut next: impl FnMut(&mut Rng) -> Asked) -> Result<()> {
        for number in 0..requests {
            while self.in_flight >= PLACES {
                self.end_one();
            }
            let asked = next(&mut self.numbers);
            self.submit(&asked);
            self.ring.kick_if_wanted();
            if number % 7 == 0 {
                self.sync()?;
            }
        }
        Ok(())
    }

    fn end_one(&mut self) {
        self.ring.wait_used();
        self.in_flight -= 1;
    }

    fn end_all(&mut self) {
        while self.in_flight > 0 {
            self.end_one();
        }
    }

    /// Stops the queue, takes the last marks, and looks at every byte. Then the queue goes on.
    fn stop_and_look(&mut self) -> Result<()> {
        let areas = self.ring.queue.areas();
        let base = self.frontend.stop(&self.ring)?;
        while self.ring.take_used().is_some() {
            self.in_flight -= 1;
        }
        // The driver's wishes for notifications.
        self.copy_range(areas.avail, 4);
        self.sync()?;
        let is = self.memory.read(0, MEMORY_BYTES as usize);
        if let Some(at) = is.iter().zip(&self.copy).position(|(is, copy)| is != copy) {
            anyhow::bail!("byte {at:#x} was written and its page never marked; the used ring is at {:#x}", areas.used);
        }
        // As QEMU from 7.2 on: one that takes requests before the log is shown has all of the memory marked.
        self.frontend.link().set_vring_enable(self.ring.index(), false)?;
        self.frontend.start(&self.ring, base)?;
        if self.log.is_some() {
            self.frontend.session().log_used(&[(self.ring.index(), &self.ring.queue)])?;
        }
        // What it had not taken is still there.
        self.ring.kick();
        Ok(())
    }

    /// A whole move, given up once and begun again, of a guest that goes on all the time.
    fn run(&mut self, mut next: impl FnMut(&mut Rng) -> Asked) -> Result<()> {
        let areas = self.ring.queue.areas();
        self.allow(areas.used, 6 + 8 * u64::from(RING_SIZE));
        for _ in 0..2 {
            // What is under way when it begins counts.
            self.load(2 * PLACES as usize, &mut next)?;
            self.begin()?;
            for _ in 0..3 * long::more() {
                self.load(60, &mut next)?;
                self.change_log()?;
                self.load(20, &mut next)?;
                self.stop_and_look()?;
            }
            self.load(PLACES as usize, &mut next)?;
            self.give_up()?;
        }
        self.end_all();
        Ok(())
    }
}

/// Reads above all, and one of everything else, wrong ones included.
fn block_request(numbers: &mut Rng) -> Asked {
    let sectors = DISK_BYTES / 512;
    let len = (1 + numbers.below(40)) * 512;
    let sector = numbers.below(sectors - 80);
    let request = |kind, sector, data: &[u8]| [&header(kind, sector)[..], data].concat();
    match numbers.below(12) {
        0 => (request(kind::OUT, sector, &vec![numbers.below(256) as u8; len as usize]), 1),
        1 => (request(kind::FLUSH, 0, &[]), 1),
        2 => (request(kind::GET_ID, 0, &[]), 21),
        // Behind the end, in part too; a type that is none.
        3 => (request(kind::IN, sectors - 1, &[]), len + 1),
        4 => (request(99, sector, &[]), len + 1),
        _ => (request(kind::IN, sector, &[]), len + 1),
    }
}

fn disk(storage: &str) -> Result<Daemon> {
    let directory = directory()?;
    let content: Vec<u8> =
        (0..DISK_BYTES / 8).flat_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    fs::write(directory.path().join("disk.img"), content)?;
    serve_disk(directory, storage)
}

fn serve_disk(directory: tempfile::TempDir, storage: &str) -> Result<Daemon> {
    let export = format!("[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nstorage = {storage}\n");
    Daemon::serve_in(directory, &format!("workers = 2\n{export}"))
}

#[test]
fn what_disks_write_is_marked_whoever_writes_it() -> Result<()> {
    let image = format!("kind = 'file', path = '{DIRECTORY}/disk.img'");
    for storage in [
        format!("{{ {image}, execution = 'inline' }}"),
        format!("{{ {image}, execution = 'uring' }}"),
        format!("{{ {image}, execution = 'pool=2' }}"),
        format!("{{ {image}, execution = 'auto' }}"),
        "{ kind = 'memory', size = '8M' }".to_owned(),
        "{ kind = 'null', size = '8M' }".to_owned(),
        // Slow enough for requests to be under way at every moment.
        "{ kind = 'sim', size = '8M', read_latency = '2ms', write_latency = '1ms', channels = 8 }".to_owned(),
    ] {
        let daemon = disk(&storage)?;
        let run = Move::new(&daemon.socket("disk"), 0).and_then(|mut guest| guest.run(block_request));
        ensure!(run.is_ok(), "{storage}: {:?}", run.err());
        daemon.stop()?;
    }
    Ok(())
}

/// Requests that move a name and could write megabytes, at some kilobytes a second.
#[test]
fn no_limit_counts_what_is_only_marked() -> Result<()> {
    let export = format!(
        "[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nlimits = {{ bytes_per_second = '4K' }}\n\
         storage = {{ kind = 'memory', size = '8M' }}\n"
    );
    let daemon = Daemon::serve(&format!("workers = 1\n{export}"))?;
    let mut guest = Move::new(&daemon.socket("disk"), 0)?;
    guest.begin()?;
    guest.put(DATA, &header(kind::GET_ID, 0));
    let room = [writable(DATA + ANSWER_AT, ANSWER_AT as u32); 100];
    for _ in 0..4 {
        guest.ring.add(&[&[readable(DATA, 16)][..], &room].concat());
        guest.ring.kick();
        guest.ring.wait_used();
    }
    daemon.stop()
}

/// A ring that moves from worker to worker takes what it has to mark along.
#[test]
fn a_ring_that_moves_between_workers_goes_on_marking() -> Result<()> {
    let daemon = disk("{ kind = 'sim', size = '8M', read_latency = '1ms', channels = 8 }")?;
    let workers = daemon.workers()?;
    let mut guest = Move::new(&daemon.socket("disk"), 0)?;
    guest.allow(guest.ring.queue.areas().used, 6 + 8 * u64::from(RING_SIZE));
    guest.begin()?;
    for round in 0..20 {
        guest.load(30, block_request)?;
        daemon.attach("disk", 0, workers[round % workers.len()].id)?;
    }
    guest.stop_and_look()
}

/// The new program has the log, and so has the one after it.
#[test]
fn an_upgrade_in_the_middle_of_a_move_loses_no_mark() -> Result<()> {
    let daemon = disk(&format!("{{ kind = 'file', path = '{DIRECTORY}/disk.img' }}"))?;
    let mut guest = Move::new(&daemon.socket("disk"), 0)?;
    guest.allow(guest.ring.queue.areas().used, 6 + 8 * u64::from(RING_SIZE));
    guest.begin()?;
    for _ in 0..2 {
        guest.load(60, block_request)?;
        daemon.upgrade()?;
        guest.load(60, block_request)?;
        guest.stop_and_look()?;
    }
    guest.give_up()?;
    guest.load(10, block_request)?;
    guest.end_all();
    daemon.stop()
}

/// Killed in the middle, with requests that are taken and not answered: the frontend comes back, says everything again, and what
/// is done a second time is marked.
#[test]
fn a_daemon_that_is_killed_in_the_middle_of_a_move_loses_no_mark() -> Result<()> {
    let image = format!("{{ kind = 'file', path = '{DIRECTORY}/disk.img' }}");
    for first in ["{ kind = 'sim', size = '8M', read_latency = '1000s', channels = 64 }", image.as_str()] {
        let place = directory()?;
        let socket = place.path().join("disk.sock");
        let export = |storage: &str| {
            let here = place.path().display();
            let text =
                format!("workers = 2\n[[export]]\nname = 'disk'\nsocket = '{here}/disk.sock'\nstorage = {storage}\n");
            text.replace(DIRECTORY, &here.to_string())
        };
        fs::write(place.path().join("disk.img"), vec![0x5a; DISK_BYTES as usize])?;
        let daemon = Daemon::serve(&export(first))?;
        let memory = Arc::new(Memory::new(0, MEMORY_BYTES)?);
        let mut frontend = Frontend::connect_with(&socket, frontkit::feature::LOG_ALL, Arc::clone(&memory))?;
        let tracker = frontend.new_tracker(1, RING_SIZE)?;
        frontend.track(&tracker)?;
        let mut guest = Move::on(frontend, memory, 0)?;
        guest.allow(guest.ring.queue.areas().used, 6 + 8 * u64::from(RING_SIZE));
        guest.begin()?;
        let read = |numbers: &mut Rng| {
            let sector = numbers.below(1000);
            (header(kind::IN, sector).to_vec(), (1 + numbers.below(30)) * 512 + 1)
        };
        guest.load(PLACES as usize, read)?;
        // Killed as it is dropped.
        drop(daemon);
        let daemon = Daemon::serve(&export(&image))?;
        let mut frontend = Frontend::connect_with(&socket, frontkit::feature::LOG_ALL, Arc::clone(&guest.memory))?;
        frontend.track(&tracker)?;
        // As QEMU does it: the log is there before the queue is enabled, and the marks of the old one are taken.
        let (ring, base) = (&guest.ring, guest.ring.queue.used_index());
        let log = DirtyLog::new(MEMORY_BYTES)?;
        let session = frontend.session();
        session.set_up(0, &ring.queue, &ring.eventfds, base)?;
        session.log(&log, &[(0, &ring.queue)])?;
        session.enable(0)?;
        guest.frontend = frontend;
        guest.sync()?;
        guest.log = Some(log);
        guest.ring.kick();
        guest.load(60, read)?;
        guest.stop_and_look()?;
        daemon.stop()?;
    }
    Ok(())
}
