//! Workers come, go and die; rings are drained; files are let go.

use crate::common::{Back, FakeRing, Front, Work, engine, eventually, ring, within};
use engine::{Engine, EngineError, Poll, Ring, RingId, WorkerSpec};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

fn attach(engine: &Engine<FakeRing>, back: &Arc<Back>, worker: u32) -> (RingId, Arc<Front>) {
    let (fake, front) = ring(back);
    (engine.attach(fake, worker).map_err(|(error, _)| error).unwrap(), front)
}

#[test]
fn a_worker_with_rings_cannot_be_freed() {
    let engine = engine(2, Poll::Off);
    let (id, _front) = attach(&engine, &Back::new(), 0);
    assert!(matches!(engine.worker_free(0), Err(EngineError::Busy { worker: 0, rings: 1 })));
    engine.worker_free(1).unwrap();
    engine.detach(id).unwrap();
    engine.worker_free(0).unwrap();
    assert!(engine.workers().is_empty());
    assert!(matches!(engine.worker_free(0), Err(EngineError::NoSuchWorker(0))));
}

#[test]
fn a_worker_that_a_ring_is_on_its_way_to_cannot_be_freed() {
    let engine: Engine<FakeRing> = Engine::new(2);
    let worker_new = || engine.worker_new("x", WorkerSpec::default(), Poll::Off).unwrap();
    let home = worker_new();
    let (id, _front) = attach(&engine, &Back::new(), home);
    // The owner is held, so that the ring cannot leave yet.
    let (hold, held) = channel::<()>();
    let (entered, inside) = channel();
    let asker = engine.clone();
    let holder = std::thread::spawn(move || {
        asker.with_ring(id, move |_, _| {
            entered.send(()).unwrap();
            let _ = held.recv();
        })
    });
    inside.recv().unwrap();
    let start = Instant::now();
    let (target, mover) = loop {
        let target = worker_new();
        let other = engine.clone();
        let mover = std::thread::spawn(move || other.attach_to(id, target));
        std::thread::sleep(Duration::from_millis(20));
        match engine.worker_free(target) {
            Err(EngineError::Busy { worker, rings: 1 }) if worker == target => break (target, mover),
            // Freed before the move began: then the move must fail.
            Ok(()) => assert!(mover.join().unwrap().is_err()),
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < crate::common::HANG);
    };
    drop(hold);
    holder.join().unwrap().unwrap();
    mover.join().unwrap().unwrap();
    assert_eq!(engine.worker_of(id), Some(target));
    assert!(matches!(engine.worker_free(target), Err(EngineError::Busy { rings: 1, .. })));
    engine.worker_free(home).unwrap();
}

#[test]
fn the_bound_on_workers_holds_for_concurrent_callers() {
    let engine = engine::<crate::common::FakeRing>(0, Poll::Off);
    assert!(matches!(engine.worker_new("x", WorkerSpec::default(), Poll::Off), Err(EngineError::TooManyWorkers(0))));
    let engine: Engine<FakeRing> = Engine::new(3);
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let engine = engine.clone();
            std::thread::spawn(move || engine.worker_new("x", WorkerSpec::default(), Poll::Off).is_ok())
        })
        .collect();
    let started = callers.into_iter().filter_map(|caller| caller.join().unwrap().then_some(())).count();
    assert_eq!(started, 3);
    assert_eq!(engine.workers().len(), 3);
    let first = engine.workers()[0].number;
    engine.worker_free(first).unwrap();
    let again = engine.worker_new("x", WorkerSpec::default(), Poll::Off).unwrap();
    assert!(again > first, "numbers are never used twice");
}

#[test]
fn a_worker_that_cannot_start_leaves_no_trace() {
    let engine: Engine<FakeRing> = Engine::new(1);
    let nowhere = WorkerSpec { cgroup: Some("/nonexistent/cgroup".into()), ..WorkerSpec::default() };
    for _ in 0..50 {
        let error = engine.worker_new("x", nowhere.clone(), Poll::Off).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/cgroup"), "{error}");
        assert!(engine.workers().is_empty());
    }
    engine.worker_new("x", WorkerSpec::default(), Poll::Off).unwrap();
}

#[test]
fn unknown_workers_and_rings_are_named() {
    let engine = engine(1, Poll::Off);
    let (fake, _front) = ring(&Back::new());
    let (error, fake) = engine.attach(fake, 9).unwrap_err();
    assert_eq!(error.to_string(), "there is no worker 9");
    // The ring came back whole.
    engine.attach(*fake, 0).map_err(|(error, _)| error).unwrap();
    assert!(matches!(engine.worker_figures(9), Err(EngineError::NoSuchWorker(9))));
    assert!(matches!(engine.worker_poll(9, Poll::Off), Err(EngineError::NoSuchWorker(9))));
    assert!(matches!(engine.detach(RingId(99)), Err(EngineError::NoSuchRing)));
    assert!(matches!(engine.with_ring(RingId(99), |_, _| ()), Err(EngineError::NoSuchRing)));
    assert_eq!(engine.worker_of(RingId(99)), None);
}

#[test]
fn a_dead_worker_takes_only_its_own_rings_along() {
    let engine = engine(2, Poll::default());
    let back = Back::new();
    let (bad, bad_front) = attach(&engine, &back, 0);
    let (neighbour, neighbour_front) = attach(&engine, &back, 0);
    let (drained, drained_front) = attach(&engine, &back, 0);
    let (good, good_front) = attach(&engine, &back, 1);
    // Somebody already waits for a ring of the worker that is going to die.
    drained_front.submit(Work::Timer(3_600_000_000));
    eventually("taken", || engine.with_ring(drained, |ring, _| ring.in_flight() == 1).unwrap());
    let waiter = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.detach(drained).is_err())
    };
    bad_front.kill_worker();
    eventually("dead", || !engine.workers()[0].alive);
    assert!(within("a detach that was waiting", move || waiter.join().unwrap()));
    for id in [bad, neighbour] {
        let other = engine.clone();
        assert!(within("detach", move || matches!(other.detach(id), Err(EngineError::NoSuchRing))));
        let other = engine.clone();
        assert!(within("with_ring", move || other.with_ring(id, |_, _| ()).is_err()));
        assert!(matches!(engine.attach_to(id, 1), Err(EngineError::NoSuchRing)));
    }
    assert!(matches!(engine.worker_figures(0), Err(EngineError::WorkerDead(0))));
    let (fake, _front) = ring(&back);
    assert!(matches!(engine.attach(fake, 0), Err((EngineError::WorkerDead(0), _))));
    assert!(matches!(engine.attach_to(good, 0), Err(EngineError::WorkerDead(0))));
    for front in [&bad_front, &neighbour_front, &drained_front] {
        eventually("told", || front.lost().is_some());
        assert_eq!(front.lost().unwrap().message, "the worker is to die");
    }
    assert!(good_front.lost().is_none());
    assert_eq!(engine.worker_of(good), Some(1));
    good_front.submit(Work::Write);
    good_front.wait_all();
    good_front.check();
    engine.sweep_files();
    assert!(engine.workers()[0].rings.is_empty());
    engine.worker_free(0).unwrap();
    assert_eq!(engine.worker_new("next", WorkerSpec::default(), Poll::Off).unwrap(), 2);
    within("the end of the engine", move || drop(engine));
}

#[test]
fn moves_towards_a_dying_worker_end() {
    for _ in 0..60 {
        let engine = engine(2, Poll::Off);
        let back = Back::new();
        let (bad, bad_front) = attach(&engine, &back, 0);
        let (good, good_front) = attach(&engine, &back, 1);
        let mover = engine.clone();
        let moving =
            std::thread::spawn(move || while mover.attach_to(good, 0).is_ok() && mover.attach_to(good, 1).is_ok() {});
        bad_front.kill_worker();
        within("moving", move || moving.join().unwrap());
        eventually("dead", || !engine.workers()[0].alive);
        assert!(engine.worker_of(bad).is_none());
        // It died with the worker or lives on the other one; it never stays listed with the dead.
        if engine.worker_of(good).is_some() {
            good_front.submit(Work::Inline);
            good_front.wait_all();
            engine.detach(good).unwrap();
        }
        engine.worker_free(0).unwrap();
        engine.worker_free(1).unwrap();
    }
}

#[test]
fn detach_drains_while_others_still_ask() {
    let engine = engine(1, Poll::default());
    let (id, front) = attach(&engine, &Back::new(), 0);
    for _ in 0..8 {
        front.submit(Work::Timer(50_000));
    }
    eventually("taken", || engine.with_ring(id, |ring, _| ring.in_flight() == 8).unwrap());
    let detacher = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.detach(id).unwrap())
    };
    let mut asked = 0;
    while engine.with_ring(id, |ring, _| ring.in_flight()).is_ok() {
        asked += 1;
    }
    assert!(asked > 0);
    let fake = detacher.join().unwrap();
    assert_eq!(fake.in_flight(), 0);
    front.check();
    // What comes after is not taken.
    front.queue(Work::Inline);
    front.kick();
    assert!(fake.ready());
    // And the ring serves again where it is attached next.
    engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
    front.wait_all();
    front.check();
}

#[test]
fn the_last_call_goes_out_before_the_ring_does() {
    let engine = engine(1, Poll::Off);
    let back = Back::new();
    for round in 0..300 {
        let (fake, front) = ring(&back);
        front.queue(if round % 2 == 0 { Work::Read } else { Work::Inline });
        let id = engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
        eventually("taken", || front.published() == 1 || round % 3 == 0);
        let fake = engine.detach(id).unwrap();
        if front.published() == 1 {
            assert!(front.take_call(), "round {round}: published, but the call was still queued");
        }
        drop(fake);
    }
}

#[test]
fn the_end_of_the_engine_drains_its_rings() {
    let engine = engine(2, Poll::default());
    let back = Back::new();
    let (first, first_front) = attach(&engine, &back, 0);
    let (second, second_front) = attach(&engine, &back, 1);
    for front in [&first_front, &second_front] {
        front.submit(Work::Timer(30_000));
        front.submit(Work::Pool);
        front.submit(Work::Read);
    }
    for id in [first, second] {
        eventually("taken", || engine.with_ring(id, |ring, _| !ring.ready()).unwrap());
    }
    // One ring's work is owed by a worker that is freed already.
    engine.attach_to(first, 1).unwrap();
    engine.worker_free(0).unwrap();
    within("the end of the engine", move || drop(engine));
    first_front.check();
    second_front.check();
    assert_eq!(Arc::strong_count(&first_front), 1, "the ring was dropped");
}

fn lock(file: &File) -> std::io::Result<()> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file.as_fd());
    // SAFETY: the kernel reads the lock that lives on our stack.
    match unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw mut lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn sweeping_lets_go_of_a_file_and_its_lock() {
    // With the worker that used the file still there, and with one that was freed meanwhile.
    for freed in [false, true] {
        let named = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(named.path()).unwrap();
        let file = open();
        file.set_len(1 << 20).unwrap();
        lock(&file).unwrap();
        let engine = engine(2, Poll::Off);
        let back = Back::with_file(file);
        let (id, front) = attach(&engine, &back, 0);
        front.submit(Work::Write);
        front.wait_all();
        engine.attach_to(id, 1).unwrap();
        front.submit(Work::Write);
        front.wait_all();
        assert!(lock(&open()).is_err(), "the lock is held while the file is in use");
        drop(engine.detach(id).unwrap());
        if freed {
            engine.worker_free(0).unwrap();
        }
        drop(back);
        engine.sweep_files();
        lock(&open()).expect("the lock is free after the sweep");
    }
}
