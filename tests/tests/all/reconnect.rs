//! Daemons that are killed and frontends that hang up: what was in flight is completed, each request once.

use std::process::{Command, ExitStatus};
use std::sync::Arc;

use anyhow::{Result, ensure};
use frontkit::Memory;
use tempfile::TempDir;
use tests::daemon::Daemon;
use tests::driver::{Request, Ring, readable, writable};
use tests::frontend::{DATA, Frontend, Tracker, kind, status};
use tests::image;
use tests::vringd;

const CAPACITY_BYTES: u64 = 16 << 20;
const BLOCK: u32 = 4096;
const SECTORS_A_BLOCK: u64 = 8;
const RING_SIZE: u16 = 64;
const REQUESTS: u64 = 16;
/// Kills in a program that every change has to pass; `cargo xtask torture kill` does more.
const KILLS: &str = "20";
/// Storage that completes nothing while a test lasts, and storage that takes its time.
const MUTE: &str = "{ kind = 'sim', size = '16M', read_latency = '1000s', write_latency = '1000s', channels = 64 }";
const SLOW: &str = "{ kind = 'sim', size = '16M', read_latency = '100ms', write_latency = '100ms', channels = 64 }";

/// A place that outlives its daemons: the socket and an image.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-test-")?;
        image::sparse(directory.path(), "disk.img", CAPACITY_BYTES)?;
        Ok(Self(directory))
    }

    fn daemon(&self, storage: &str) -> Result<Daemon> {
        let socket = self.0.path().join("disk.sock");
        let socket = socket.display();
        Daemon::serve(&format!(
            "workers = 2\n[[export]]\nname = 'disk'\nsocket = '{socket}'\nqueues = 2\nstorage = {storage}\n"
        ))
    }

    fn on_image(&self) -> Result<Daemon> {
        self.daemon(&format!("{{ kind = 'file', path = '{}' }}", self.0.path().join("disk.img").display()))
    }

    fn connect(&self) -> Result<Frontend> {
        Frontend::connect(&self.0.path().join("disk.sock"), 0)
    }

    /// The same frontend once more: its memory, its tracker and its rings, which go on where they were.
    fn connect_again(&self, memory: &Arc<Memory>, tracker: &Tracker, rings: &[Ring]) -> Result<Frontend> {
        let mut frontend = Frontend::connect_with(&self.0.path().join("disk.sock"), 0, Arc::clone(memory))?;
        frontend.track(tracker)?;
        for ring in rings {
            frontend.start(ring, ring.queue.used_index())?;
            ring.kick();
        }
        Ok(frontend)
    }
}

/// A frontend with two rings, and writes of its own on each of them in flight.
struct Busy {
    memory: Arc<Memory>,
    tracker: Tracker,
    rings: Vec<Ring>,
    requests: Vec<Vec<Request>>,
    frontend: Frontend,
}

/// Where block `at` of ring `ring` is on the disk, in sectors, and what is in it.
fn block(ring: usize, at: u64) -> (u64, [u8; BLOCK as usize]) {
    ((ring as u64 * REQUESTS + at) * SECTORS_A_BLOCK, [(ring as u64 * REQUESTS + at + 1) as u8; BLOCK as usize])
}

fn buffer(ring: usize, at: u64) -> u64 {
    DATA + (ring as u64 * REQUESTS + at) * u64::from(BLOCK)
}

impl Busy {
    fn start(daemon: &Daemon, mut frontend: Frontend) -> Result<Self> {
        let tracker = frontend.new_tracker(2, RING_SIZE)?;
        frontend.track(&tracker)?;
        let memory = Arc::clone(frontend.memory());
        let mut rings = vec![frontend.ring(0, RING_SIZE)?, frontend.ring(1, RING_SIZE)?];
        let mut requests = Vec::new();
        for (number, ring) in rings.iter_mut().enumerate() {
            let made = (0..REQUESTS).map(|at| {
                let (sector, data) = block(number, at);
                memory.write(buffer(number, at), &data);
                ring.request(kind::OUT, sector, &[readable(buffer(number, at), BLOCK)])
            });
            requests.push(made.collect());
            ring.kick_if_wanted();
            daemon.wait_ring("disk", number as u16, |ring| ring.figures.in_flight == REQUESTS)?;
        }
        Ok(Self { memory, tracker, rings, requests, frontend })
    }

    /// All requests come back, each once and with success, and the rings go on.
    fn come_back(&mut self) {
        for (ring, requests) in self.rings.iter_mut().zip(&self.requests) {
            for _ in requests {
                // Fails for a head that is not in flight, or not any more.
                assert_eq!(ring.wait_used().1, 1);
            }
            assert!(requests.iter().all(|request| ring.status(*request) == status::OK));
            assert_eq!(ring.run(kind::FLUSH, 0, &[]), (status::OK, 1));
            assert!(ring.take_used().is_none());
        }
    }

    /// The disk holds what was written.
    fn check_contents(&mut self) {
        for (number, ring) in self.rings.iter_mut().enumerate() {
            for at in 0..REQUESTS {
                let (sector, data) = block(number, at);
                let place = buffer(2, 0);
                assert_eq!(ring.run(kind::IN, sector, &[writable(place, BLOCK)]), (status::OK, BLOCK + 1));
                assert_eq!(self.memory.read(place, BLOCK as usize), data, "block {at} of ring {number}");
            }
        }
    }
}

#[test]
fn requests_in_flight_survive_their_daemon() -> Result<()> {
    let place = Place::new()?;
    let first = place.daemon(MUTE)?;
    let mut busy = Busy::start(&first, place.connect()?)?;
    // SIGKILL.
    drop(first);
    let second = place.on_image()?;
    busy.frontend = place.connect_again(&busy.memory, &busy.tracker, &busy.rings)?;
    busy.come_back();
    busy.check_contents();
    second.stop()
}

#[test]
fn requests_in_flight_survive_several_daemons_in_a_row() -> Result<()> {
    let place = Place::new()?;
    let mut daemon = place.daemon(MUTE)?;
    let mut busy = Busy::start(&daemon, place.connect()?)?;
    for _ in 0..3 {
        drop(daemon);
        daemon = place.daemon(MUTE)?;
        busy.frontend = place.connect_again(&busy.memory, &busy.tracker, &busy.rings)?;
        for ring in 0..2 {
            daemon.wait_ring("disk", ring, |ring| ring.figures.in_flight == REQUESTS)?;
        }
    }
    drop(daemon);
    let last = place.on_image()?;
    busy.frontend = place.connect_again(&busy.memory, &busy.tracker, &busy.rings)?;
    busy.come_back();
    busy.check_contents();
    last.stop()
}

/// A daemon that lives on finishes what it took before it lets the frontend come back: nothing is done twice.
#[test]
fn requests_in_flight_are_finished_when_the_connection_is_lost() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.daemon(SLOW)?;
    let Busy { memory, tracker, rings, requests, frontend } = Busy::start(&daemon, place.connect()?)?;
    drop(frontend);
    let frontend = place.connect_again(&memory, &tracker, &rings)?;
    for (ring, requests) in rings.iter().zip(&requests) {
        assert_eq!(
            usize::from(ring.queue.used_index()),
            requests.len(),
            "the old session was drained before the new one began"
        );
    }
    let mut busy = Busy { memory, tracker, rings, requests, frontend };
    busy.come_back();
    busy.check_contents();
    daemon.stop()
}

#[test]
fn requests_in_flight_survive_connection_and_daemon_at_once() -> Result<()> {
    let place = Place::new()?;
    let first = place.daemon(MUTE)?;
    let Busy { memory, tracker, rings, requests, frontend } = Busy::start(&first, place.connect()?)?;
    drop((frontend, first));
    let second = place.on_image()?;
    let frontend = place.connect_again(&memory, &tracker, &rings)?;
    let mut busy = Busy { memory, tracker, rings, requests, frontend };
    busy.come_back();
    busy.check_contents();
    second.stop()
}

/// Runs the torture. How it ended, and what it said.
fn tortured(arguments: &[&str]) -> Result<(ExitStatus, String)> {
    let mut command = Command::new(vringd::beside_the_test("torture")?);
    command.args(["kill"]).args(arguments).arg("--vringd").arg(vringd::program()?);
    let output = command.output()?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    println!("{said}");
    Ok((output.status, said))
}

/// Runs the torture, which must end well.
fn torture(arguments: &[&str]) -> Result<()> {
    let (status, said) = tortured(arguments)?;
    ensure!(status.success() && said.contains("nothing lost"), "the torture ended with {status}");
    Ok(())
}

#[test]
fn twenty_kills_lose_nothing() -> Result<()> {
    torture(&["--frontend-rounds", KILLS, "--crash-rounds", "0", "--guest-rounds", "0"])
}

/// Reservations, unit attentions and what may have been done are looked at, too.
#[test]
fn twenty_kills_lose_nothing_of_a_scsi_disk() -> Result<()> {
    torture(&["--protocol", "scsi", "--frontend-rounds", KILLS, "--crash-rounds", "0"])
}

/// A torture that cannot fail says nothing: without the inflight region it finds that requests are lost.
#[test]
fn without_the_inflight_region_requests_of_a_scsi_disk_are_found_to_be_lost() -> Result<()> {
    let kills = ["--protocol", "scsi", "--frontend-rounds", "200", "--crash-rounds", "0", "--no-inflight"];
    let (status, said) = tortured(&kills)?;
    ensure!(
        !status.success() && said.contains("torture kill: LOST") && said.contains("under the checking frontend: kill "),
        "it has found nothing, and ended with {status}"
    );
    Ok(())
}

#[test]
fn twenty_kills_under_a_guest_lose_nothing() -> Result<()> {
    torture(&["--frontend-rounds", "0", "--crash-rounds", "0", "--guest-rounds", KILLS])
}
