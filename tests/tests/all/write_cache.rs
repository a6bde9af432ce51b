//! Whether a guest flushes is between it and its frontend. A daemon that comes back is not told, and must not take for stable
//! what nobody will flush.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use frontkit::Memory;
use tempfile::TempDir;
use tests::daemon::Daemon;
use tests::driver::{Ring, readable};
use tests::frontend::{DATA, Frontend, Tracker, kind, status};
use tests::vringd;

const BLOCK: u32 = 4096;
const SECTORS_A_BLOCK: u64 = 8;
const RING_SIZE: u16 = 64;
/// Of the field `writeback` in the configuration space (linux/virtio_blk.h).
const WRITEBACK: u32 = 32;
/// Of the features (linux/virtio_blk.h).
const FLUSH: u64 = 1 << 9;
const CONFIG_WCE: u64 = 1 << 11;
/// Which guests of qemu-storage-daemon have.
const SIZE_MAX: u64 = 1 << 1;
/// Which a guest cannot turn off.
const FIXED: &str = "on";
const ON: &str = "guest";
const OFF: &str = "off";

/// A place that outlives its daemons: the socket and a volume, which tells how many writes it has made stable.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Self> {
        let place = Self(tests::daemon::directory()?);
        let mut create = Command::new(vringd::program()?);
        create.args(["volume", "create", "--size", "64M", "--log-size", "4M"]).arg(place.path("disk.vol"));
        ensure!(create.output().context("vringd runs")?.status.success(), "a volume is created");
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn serve(&self, write_cache: &str) -> Result<Daemon> {
        let (socket, volume) = (self.path("disk.sock"), self.path("disk.vol"));
        Daemon::serve(&format!(
            "[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 1\nwrite_cache = '{write_cache}'\n\
             storage = {{ kind = 'volume', path = '{}' }}\n",
            socket.display(),
            volume.display()
        ))
    }
}

/// A virtual machine: what stays with it while daemons come and go.
struct Machine {
    memory: Arc<Memory>,
    tracker: Option<Tracker>,
    ring: Ring,
    frontend: Frontend,
}

impl Machine {
    /// Finds the device for the first time, and reads about it.
    fn start(place: &Place, tracked: bool) -> Result<Self> {
        let mut frontend = Frontend::connect(&place.path("disk.sock"), 0)?;
        let tracker = tracked.then(|| frontend.new_tracker(1, RING_SIZE)).transpose()?;
        if let Some(tracker) = &tracker {
            frontend.track(tracker)?;
        }
        let ring = frontend.ring(0, RING_SIZE)?;
        Ok(Self { memory: Arc::clone(frontend.memory()), tracker, ring, frontend })
    }

    /// Of a frontend that nobody tracks.
    fn of(mut frontend: Frontend) -> Result<Self> {
        let ring = frontend.ring(0, RING_SIZE)?;
        Ok(Self { memory: Arc::clone(frontend.memory()), tracker: None, ring, frontend })
    }

    /// Its backend has come back. As QEMU, it says the features, the region and the ring, and nothing of the configuration.
    fn come_back(&mut self, place: &Place) -> Result<()> {
        self.frontend = Frontend::connect_with(&place.path("disk.sock"), 0, Arc::clone(&self.memory))?;
        self.go_on()
    }

    /// As [`come_back`](Self::come_back), for a frontend that looks at the configuration first and tells its guest nothing of it.
    fn come_back_reading(&mut self, place: &Place) -> Result<()> {
        self.frontend = Frontend::connect_with(&place.path("disk.sock"), 0, Arc::clone(&self.memory))?;
        self.frontend.config(0, 40)?;
        self.go_on()
    }

    fn go_on(&mut self) -> Result<()> {
        if let Some(tracker) = &self.tracker {
            self.frontend.track(tracker)?;
        }
        self.frontend.start(&self.ring, self.ring.queue.used_index())
    }

    /// Whether writes are stable when they are answered.
    fn writes_through(&mut self, daemon: &Daemon) -> Result<bool> {
        let commits = || {
            let storage = daemon.export("disk")?.storage.context("a disk has a storage")?;
            Ok::<_, anyhow::Error>(storage.volume.context("the storage is a volume")?.commits)
        };
        let before = commits()?;
        for block in 0..4 {
            let request = [readable(DATA, BLOCK)];
            assert_eq!(self.ring.run(kind::OUT, block * SECTORS_A_BLOCK, &request).0, status::OK);
        }
        let made = commits()? - before;
        ensure!(made == 0 || made == 4, "{made} commits for 4 writes");
        Ok(made == 4)
    }

    fn write_cache(&mut self) -> Result<bool> {
        Ok(self.frontend.config(WRITEBACK, 1)? == [1])
    }
}

#[test]
fn a_guests_write_cache_stays_off_over_kills() -> Result<()> {
    let place = Place::new()?;
    let mut daemon = place.serve(ON)?;
    let mut machine = Machine::start(&place, true)?;
    assert!(!machine.writes_through(&daemon)?);
    machine.frontend.set_config(WRITEBACK, &[0])?;
    assert!(machine.writes_through(&daemon)?);
    for _ in 0..3 {
        drop(daemon);
        daemon = place.serve(ON)?;
        machine.come_back(&place)?;
        assert!(machine.writes_through(&daemon)?, "the guest still believes that there is no cache");
        assert!(!machine.write_cache()?, "what is told is what is done");
    }
    machine.frontend.set_config(WRITEBACK, &[1])?;
    // What is asked next is answered behind the note: a daemon that is killed before it has made one leaves that open.
    assert!(machine.write_cache()?);
    assert!(!machine.writes_through(&daemon)?);
    drop(daemon);
    daemon = place.serve(ON)?;
    machine.come_back(&place)?;
    assert!(!machine.writes_through(&daemon)?, "the guest has said that it flushes");
    daemon.stop()
}

#[test]
fn a_guest_that_flushes_is_remembered_too() -> Result<()> {
    let place = Place::new()?;
    let mut daemon = place.serve(ON)?;
    let mut machine = Machine::start(&place, true)?;
    for _ in 0..2 {
        drop(daemon);
        daemon = place.serve(ON)?;
        machine.come_back(&place)?;
        assert!(!machine.writes_through(&daemon)?);
    }
    // Its driver reads the size again, and takes over nothing else.
    machine.frontend.config(0, 40)?;
    drop(daemon);
    daemon = place.serve(OFF)?;
    machine.come_back(&place)?;
    assert!(machine.writes_through(&daemon)?, "the operator wants none");
    daemon.stop()
}

#[test]
fn a_cache_that_the_operator_turns_on_is_for_the_next_guest() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(OFF)?;
    let mut machine = Machine::start(&place, true)?;
    assert!(machine.writes_through(&daemon)?);
    drop(daemon);
    let daemon = place.serve(ON)?;
    machine.come_back(&place)?;
    machine.frontend.config(0, 40)?;
    assert!(machine.writes_through(&daemon)?, "this guest has found no cache and does not flush");
    drop(machine);
    let mut next = Machine::start(&place, true)?;
    assert!(next.write_cache()?);
    assert!(!next.writes_through(&daemon)?);
    daemon.stop()
}

#[test]
fn without_a_region_nothing_is_assumed() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(ON)?;
    let mut machine = Machine::start(&place, false)?;
    machine.frontend.set_config(WRITEBACK, &[0])?;
    drop(daemon);
    let daemon = place.serve(ON)?;
    machine.come_back(&place)?;
    assert!(machine.writes_through(&daemon)?);
    // Only the driver itself can say otherwise.
    machine.frontend.set_config(WRITEBACK, &[1])?;
    assert!(!machine.writes_through(&daemon)?);
    drop(machine);
    assert!(!Machine::start(&place, false)?.writes_through(&daemon)?);
    daemon.stop()
}

#[test]
fn a_life_that_left_no_word_is_not_known_better_by_a_frontend_that_reads() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(ON)?;
    let mut machine = Machine::start(&place, true)?;
    machine.frontend.set_config(WRITEBACK, &[0])?;
    drop(daemon);
    machine.tracker.as_ref().context("it is tracked")?.forget_note()?;
    let daemon = place.serve(ON)?;
    machine.come_back_reading(&place)?;
    assert!(machine.writes_through(&daemon)?, "the guest still believes that there is no cache");
    machine.frontend.set_config(WRITEBACK, &[1])?;
    assert!(!machine.writes_through(&daemon)?, "only the driver can say otherwise");
    daemon.stop()
}

#[test]
fn a_ring_that_goes_on_without_a_region_is_not_known_better_by_a_frontend_that_reads() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(ON)?;
    let mut machine = Machine::start(&place, false)?;
    machine.frontend.set_config(WRITEBACK, &[0])?;
    assert!(machine.writes_through(&daemon)?);
    drop(daemon);
    let daemon = place.serve(ON)?;
    machine.come_back_reading(&place)?;
    assert!(machine.writes_through(&daemon)?, "the guest still believes that there is no cache");
    drop(machine);
    // A guest that is stopped and goes on has told all that it has to tell.
    let mut machine = Machine::start(&place, false)?;
    assert!(!machine.writes_through(&daemon)?);
    let base = machine.frontend.stop(&machine.ring)?;
    assert!(base > 0);
    machine.frontend.start(&machine.ring, base)?;
    assert!(!machine.writes_through(&daemon)?);
    daemon.stop()
}

#[test]
fn an_upgrade_knows_no_more_than_there_was_to_know() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(ON)?;
    let Machine { memory, ring, mut frontend, .. } = Machine::start(&place, false)?;
    frontend.set_config(WRITEBACK, &[0])?;
    drop(frontend);
    daemon.wait_disconnected("disk")?;
    daemon.upgrade()?;
    let frontend = Frontend::connect_with(&place.path("disk.sock"), 0, Arc::clone(&memory))?;
    let mut machine = Machine { memory, tracker: None, ring, frontend };
    machine.frontend.start(&machine.ring, machine.ring.queue.used_index())?;
    assert!(machine.writes_through(&daemon)?, "nobody has told this session of a cache");
    daemon.stop()
}

#[test]
fn features_that_come_behind_a_ring_bring_no_cache_that_nobody_knows_of() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(ON)?;
    let memory = Arc::new(Memory::new(0, DATA + 64 * u64::from(BLOCK))?);
    let mut frontend = Frontend::connect_with(&place.path("disk.sock"), FLUSH | CONFIG_WCE, Arc::clone(&memory))?;
    let ring = frontend.ring(0, RING_SIZE)?;
    let mut machine = Machine { memory, tracker: None, ring, frontend };
    assert!(machine.writes_through(&daemon)?, "it cannot flush");
    machine.frontend.acknowledge_all()?;
    assert!(machine.writes_through(&daemon)?, "nobody has read of a cache");
    daemon.stop()
}

#[test]
fn a_cache_that_no_guest_can_turn_off_is_still_there_behind_a_migration() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(FIXED)?;
    let mut machine = Machine::start(&place, false)?;
    assert!(!machine.writes_through(&daemon)?);
    machine.frontend.set_config(WRITEBACK, &[0]).expect_err("it is not offered");
    drop(daemon);
    let daemon = place.serve(FIXED)?;
    machine.come_back_reading(&place)?;
    assert!(!machine.writes_through(&daemon)?, "this guest has never been offered not to flush");
    daemon.stop()
}

#[test]
fn a_guest_that_could_turn_it_off_may_have_done_so() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(ON)?;
    let mut machine = Machine::start(&place, false)?;
    machine.frontend.set_config(WRITEBACK, &[0])?;
    drop(daemon);
    let daemon = place.serve(FIXED)?;
    // Its frontend asks for what its driver has, whatever is offered now.
    machine.frontend = Frontend::connect_with(&place.path("disk.sock"), 0, Arc::clone(&machine.memory))?;
    machine.frontend.acknowledge_too(FLUSH | CONFIG_WCE | SIZE_MAX)?;
    machine.go_on()?;
    assert!(machine.writes_through(&daemon)?, "it does not flush");
    drop(machine);
    assert!(!Machine::start(&place, false)?.writes_through(&daemon)?, "the next one does");
    daemon.stop()
}

#[test]
fn what_was_read_before_an_upgrade_is_no_word_of_a_driver_that_comes_behind_it() -> Result<()> {
    let place = Place::new()?;
    for write_cache in [FIXED, ON] {
        let daemon = place.serve(ON)?;
        let mut machine = Machine::start(&place, false)?;
        assert!(!machine.writes_through(&daemon)?);
        machine.frontend.set_config(WRITEBACK, &[0])?;
        drop(daemon);
        // A daemon to which the guest is moved, and whose frontend has looked at the disk before the guest comes.
        let daemon = place.serve(write_cache)?;
        machine.frontend = Frontend::connect_with(&place.path("disk.sock"), 0, Arc::clone(&machine.memory))?;
        machine.frontend.config(0, 40)?;
        daemon.upgrade()?;
        machine.frontend.acknowledge_too(FLUSH | CONFIG_WCE)?;
        machine.go_on()?;
        assert!(machine.writes_through(&daemon)?, "it does not flush ({write_cache})");
        daemon.stop()?;
    }
    Ok(())
}

#[test]
fn a_byte_that_was_not_offered_is_known_from_elsewhere() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(FIXED)?;
    let mut frontend = Frontend::connect(&place.path("disk.sock"), 0)?;
    frontend.acknowledge_too(FLUSH | CONFIG_WCE)?;
    let mut machine = Machine::of(frontend)?;
    assert!(machine.writes_through(&daemon)?);
    daemon.stop()
}

#[test]
fn who_wants_no_cache_has_none_whatever_the_driver_believes() -> Result<()> {
    let place = Place::new()?;
    let daemon = place.serve(OFF)?;
    let frontend = Frontend::connect(&place.path("disk.sock"), CONFIG_WCE)?;
    let mut machine = Machine::of(frontend)?;
    assert!(machine.writes_through(&daemon)?, "it cannot know that there is none");
    daemon.stop()?;
    let daemon = place.serve(FIXED)?;
    let mut machine = Machine::start(&place, true)?;
    assert!(!machine.writes_through(&daemon)?);
    drop(daemon);
    let daemon = place.serve(OFF)?;
    machine.come_back(&place)?;
    assert!(machine.writes_through(&daemon)?, "the operator wants none");
    daemon.stop()
}
