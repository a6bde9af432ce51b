//! Panics stay where they are, and whoever asks a worker that hangs is not made to wait.

use crate::common::{Back, FakeRing, Front, Work, engine, eventually, ring, within};
use engine::{Engine, EngineError, Io, Poll, Pulse, Ring, RingId, Told, WorkerSpec};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

fn attach(engine: &Engine<FakeRing>, back: &Arc<Back>, worker: u32) -> (RingId, Arc<Front>) {
    let (fake, front) = ring(back);
    (engine.attach(fake, worker).map_err(|(error, _)| error).unwrap(), front)
}

/// Keeps the worker of a ring in one turn until what is returned is dropped.
fn hold(engine: &Engine<FakeRing>, id: RingId) -> Sender<()> {
    let (hold, held) = channel::<()>();
    let (entered, inside) = channel();
    let asker = engine.clone();
    std::thread::spawn(move || {
        asker.with_ring(id, move |_, _| {
            entered.send(()).unwrap();
            let _ = held.recv();
        })
    });
    inside.recv().unwrap();
    hold
}

#[test]
fn a_ring_that_panics_falls_alone() {
    for poll in [Poll::Off, Poll::default()] {
        let engine = engine(1, poll);
        let back = Back::new();
        let (bad, bad_front) = attach(&engine, &back, 0);
        let (good, good_front) = attach(&engine, &back, 0);
        // Both have work under way that ends only after the panic.
        bad_front.submit(Work::Timer(50_000));
        good_front.submit(Work::Timer(50_000));
        for id in [bad, good] {
            eventually("taken", || engine.with_ring(id, |ring, _| ring.in_flight() == 1).unwrap());
        }
        bad_front.submit(Work::Panic);
        eventually("told", || bad_front.lost().is_some());
        let why = bad_front.lost().unwrap();
        assert_eq!(why.message, "as the test wished");
        assert!(why.place.contains("common/mod.rs:"), "{why}");

        assert!(engine.workers()[0].alive);
        assert_eq!(engine.workers()[0].rings, [good]);
        assert!(matches!(engine.with_ring(bad, |_, _| ()), Err(EngineError::NoSuchRing)));
        assert!(matches!(engine.detach(bad), Err(EngineError::NoSuchRing)));
        good_front.submit(Work::Write);
        good_front.submit(Work::Pool);
        good_front.wait_all();
        good_front.check();
        assert!(good_front.lost().is_none());
        eventually("its memory is let go when nothing is under way", || Arc::strong_count(&bad_front) == 1);
        engine.detach(good).unwrap();
        engine.worker_free(0).unwrap();
    }
}

/// It may be the last that has a disk, which then writes back what is dirty: no worker waits for that, but the end of the engine does.
#[test]
fn the_end_of_a_ring_that_panicked_keeps_no_other_waiting() {
    let engine = engine(1, Poll::Off);
    let back = Back::new();
    let (_bad, bad_front) = attach(&engine, &back, 0);
    let (good, good_front) = attach(&engine, &back, 0);
    let end = bad_front.ends_slowly();
    bad_front.submit(Work::Panic);
    eventually("told", || bad_front.lost().is_some());
    good_front.submit(Work::Write);
    good_front.wait_all();
    engine.detach(good).unwrap();
    assert_eq!((Arc::strong_count(&bad_front), engine.ending()), (2, 1), "its end has not come to its own");
    let ended = std::thread::spawn(move || drop(engine));
    drop(end);
    ended.join().unwrap();
    assert_eq!(Arc::strong_count(&bad_front), 1);
}

#[test]
fn whoever_waits_for_a_ring_that_panics_learns_of_it() {
    let engine = engine(2, Poll::Off);
    let back = Back::new();
    let (id, front) = attach(&engine, &back, 0);
    front.submit(Work::Timer(3_600_000_000));
    eventually("taken", || engine.with_ring(id, |ring, _| ring.in_flight() == 1).unwrap());
    let asked = engine.with_ring(id, |_, _| panic!("in a question"));
    assert!(matches!(asked, Err::<(), _>(EngineError::NoSuchRing)));
    eventually("told", || front.lost().is_some());
    assert_eq!(front.lost().unwrap().message, "in a question");
    assert!(matches!(engine.attach_to(id, 1), Err(EngineError::NoSuchRing)));
    // What it had started is under way for an hour: its memory stays for as long.
    assert_eq!(Arc::strong_count(&front), 2);
    assert!(engine.workers().iter().all(|worker| worker.alive));
    // Its end would wait for the hour, as long as it does.
    std::mem::forget(engine);
}

#[test]
fn a_ring_that_had_moved_is_let_go_when_all_its_workers_have_ended_what_it_began() {
    let engine = engine(2, Poll::Off);
    let back = Back::new();
    for far in [true, false] {
        let (id, front) = attach(&engine, &back, 0);
        let begin = |work, at| {
            front.submit(work);
            eventually("taken", || engine.with_ring(id, |ring, _| ring.in_flight()).unwrap() == at);
        };
        begin(Work::Timer(if far { 3_600_000_000 } else { 50_000 }), 1);
        engine.attach_to(id, 1).unwrap();
        begin(Work::Timer(100_000), 2);
        engine.attach_to(id, 0).unwrap();
        front.submit(Work::Panic);
        eventually("told", || front.lost().is_some());
        if far {
            // That on the other worker ends meanwhile.
            let (_, other) = attach(&engine, &back, 1);
            other.submit(Work::Timer(200_000));
            other.wait_all();
            assert_eq!(Arc::strong_count(&front), 2, "something is under way for it");
        } else {
            eventually("nothing is under way for it", || Arc::strong_count(&front) == 1);
        }
    }
    std::mem::forget(engine);
}

#[test]
fn a_ring_that_waits_for_a_dead_worker_is_lost_where_it_is() {
    let engine = engine(2, Poll::Off);
    let back = Back::new();
    let (_bad, bad_front) = attach(&engine, &back, 0);
    let (owed, owed_front) = attach(&engine, &back, 0);
    let (moved, moved_front) = attach(&engine, &back, 0);
    owed_front.submit(Work::Timer(3_600_000_000));
    eventually("taken", || engine.with_ring(owed, |ring, _| ring.in_flight() == 1).unwrap());
    engine.attach_to(owed, 1).unwrap();
    engine.attach_to(moved, 1).unwrap();
    bad_front.kill_worker();
    eventually("told", || owed_front.lost().is_some());
    assert_eq!(owed_front.lost().unwrap().message, "the worker is to die");
    // The one that was owed nothing goes on beside it.
    assert!(matches!(engine.with_ring(owed, |_, _| ()), Err(EngineError::NoSuchRing)));
    moved_front.submit(Work::Read);
    moved_front.wait_all();
    moved_front.check();
    assert!(moved_front.lost().is_none());
    std::mem::forget(engine);
}

#[test]
fn the_death_of_a_worker_is_reported_once_and_can_be_made_good() {
    let engine = engine(2, Poll::Fixed(3));
    let deaths = Arc::new(Mutex::new(Vec::new()));
    let seen = deaths.clone();
    engine.on_death(move |engine, death| {
        let next = engine.worker_free(death.worker).and_then(|()| {
            // In its place, where it was.
            engine.worker_new(&death.owner, death.spec.clone(), death.poll)
        });
        seen.lock().unwrap().push((death.clone(), next.unwrap()));
    });
    let back = Back::new();
    let (_bad, bad_front) = attach(&engine, &back, 0);
    bad_front.kill_worker();
    eventually("reported", || !deaths.lock().unwrap().is_empty());
    let (death, next) = deaths.lock().unwrap()[0].clone();
    assert_eq!((death.worker, death.owner.as_str(), death.poll), (0, "test", Poll::Fixed(3)));
    assert_eq!(death.why.message, "the worker is to die");
    assert_eq!(engine.workers().iter().map(|worker| worker.number).collect::<Vec<_>>(), [1, next]);
    let (_id, front) = attach(&engine, &back, next);
    front.submit(Work::Write);
    front.wait_all();
    front.check();
    assert_eq!(deaths.lock().unwrap().len(), 1);
    within("the end of the engine", move || drop(engine));
}

#[test]
fn a_worker_that_hangs_is_not_waited_for() {
    let engine = engine(2, Poll::Off);
    let back = Back::new();
    let (stuck, _stuck_front) = attach(&engine, &back, 0);
    let (other, _other_front) = attach(&engine, &back, 1);
    let held = hold(&engine, stuck);
    let refused = |result: Result<(), EngineError>| match result {
        Err(EngineError::Unresponsive { worker: 0, busy_ms, .. }) => busy_ms,
        other => panic!("{other:?}"),
    };
    let asked = engine.clone();
    refused(within("a question", move || asked.ask_ring(stuck, |_, _| ())));
    let asked = engine.clone();
    let busy_ms = refused(within("a ping", move || asked.worker_answers(0)));
    assert!(busy_ms >= 1000, "{busy_ms} ms");
    assert!(matches!(engine.workers()[0].pulse, Pulse::Busy { .. }));
    let swept = engine.clone();
    within("a sweep", move || swept.sweep_files());
    // Many questions do not fill its mailbox, and the other worker answers all the while.
    for _ in 0..10_000 {
        refused(engine.ask_ring(stuck, |_, _| ()));
        engine.ask_ring(other, |_, _| ()).unwrap();
    }
    drop(held);
    eventually("it answers again", || engine.ask_ring(stuck, |_, _| ()).is_ok());
    engine.worker_answers(0).unwrap();
}

/// Figures are read from the pages of the worker and its rings: no message, no wait.
#[test]
fn a_worker_that_hangs_has_figures() {
    let engine = engine(1, Poll::Off);
    let back = Back::new();
    let (id, front) = attach(&engine, &back, 0);
    for _ in 0..100 {
        front.submit(Work::Inline);
        front.wait_all();
    }
    let held = hold(&engine, id);
    let before = engine.worker_figures(0).unwrap();
    assert!(before.turns >= 100 && before.sleeps > 0 && before.enters > 0 && before.messages > 0, "{before:?}");
    assert!(before.cpu_ns > 0, "{before:?}");
    let stay = engine.stay_of(id).unwrap().read();
    assert!(stay.kicks > 0 && stay.polls_missed > 0 && stay.moves == 0, "{stay:?}");
    // Reading changes nothing and leaves no message behind.
    let later = engine.worker_figures(0).unwrap();
    assert_eq!(engine::WorkerFigures { cpu_ns: 0, ..later }, engine::WorkerFigures { cpu_ns: 0, ..before });
    assert_eq!(engine.stay_of(id).unwrap().read(), stay);
    drop(held);
    engine.worker_answers(0).unwrap();
    let after = engine.worker_figures(0).unwrap();
    assert_eq!(after.messages, before.messages + 1, "the ping");
}

/// A worker that hangs holds up nobody who wants to change something: the change is refused, and not made later either.
#[test]
fn a_worker_that_hangs_refuses_changes() {
    let engine = engine(2, Poll::Off);
    let back = Back::new();
    let (stuck, front) = attach(&engine, &back, 0);
    let (other, _other_front) = attach(&engine, &back, 1);
    let refused = |result: Result<(), EngineError>| {
        assert!(matches!(result, Err(EngineError::Unresponsive { worker: 0, .. })), "{result:?}");
    };
    let held = hold(&engine, stuck);
    engine.takes_turns(stuck).unwrap();
    // It hangs unseen as yet: the request is taken back when nobody has answered for long enough.
    let mover = engine.clone();
    refused(within("a move from it", move || mover.attach_to(stuck, 1)));
    assert_eq!(engine.worker_of(stuck), Some(0));
    // From now on nobody waits for it at all.
    refused(engine.takes_turns(stuck));
    refused(engine.attach_to(stuck, 1));
    refused(engine.attach_to(other, 0));
    refused(engine.worker_poll(0, Poll::Fixed(3)));
    let heard = Arc::new(AtomicU32::new(0));
    let counted = heard.clone();
    let tell = move |_: &mut FakeRing, _: &mut Io<'_>| counted.store(1, Ordering::SeqCst);
    let told = engine.tell_ring(stuck, tell).unwrap();
    assert!(!told.heard_by(Told::deadline(Instant::now())));
    assert_eq!(heard.load(Ordering::SeqCst), 0);
    drop(held);
    eventually("it takes its turns again", || engine.ask_ring(stuck, |_, _| ()).is_ok());
    assert_eq!(heard.load(Ordering::SeqCst), 1, "what a ring was told is not lost");
    // The move that was refused has not been made meanwhile.
    assert_eq!(engine.worker_of(stuck), Some(0));
    assert_eq!(engine.stay_of(stuck).unwrap().read().moves, 0);
    engine.attach_to(stuck, 1).unwrap();
    front.submit(Work::Write);
    front.wait_all();
    front.check();
}

#[test]
fn work_is_heard_of_once_and_only_by_who_asked() {
    let engine: Engine<FakeRing> = Engine::new(2);
    for _ in 0..2 {
        engine.worker_new("test", WorkerSpec::default(), Poll::Off).unwrap();
    }
    let stirs = Arc::new(AtomicU32::new(0));
    let heard = stirs.clone();
    let watcher = engine.on_work(move || {
        heard.fetch_add(1, Ordering::SeqCst);
    });
    let other = engine.on_work(|| panic!("told without having asked"));
    let back = Back::new();
    let (id, front) = attach(&engine, &back, 0);
    for _ in 0..20 {
        let held = hold(&engine, id);
        assert!(!engine.watch_for_work(watcher), "a worker is busy");
        // Whoever is told no forgets nobody else's question.
        assert!(!engine.watch_for_work(other), "a worker is busy");
        drop(held);
        let before = stirs.load(Ordering::SeqCst);
        eventually("all sleep", || engine.watch_for_work(watcher));
        front.submit(Work::Inline);
        eventually("heard", || stirs.load(Ordering::SeqCst) > before);
        front.wait_all();
        let heard = stirs.load(Ordering::SeqCst);
        assert_eq!(heard, before + 1);
        // Nobody has asked again.
        front.submit(Work::Read);
        front.wait_all();
        assert_eq!(stirs.load(Ordering::SeqCst), heard);
    }
    front.submit(Work::Timer(3_600_000_000));
    eventually("taken", || engine.with_ring(id, |ring, _| ring.in_flight() == 1).unwrap());
    eventually("asleep", || engine.workers()[0].pulse == Pulse::Waiting);
    assert!(!engine.watch_for_work(watcher), "a request is under way");
    std::mem::forget(engine);
}
