//! Workers choose by themselves how they wait, and nobody's requests suffer.

use crate::common::{Back, Front, HANG, MIX, engine, eventually, ring};
use engine::{Poll, WorkerSpec};
use policy::{Favour, Tactic};
use std::time::{Duration, Instant};

/// Requests one by one, as a guest makes them that waits for each.
fn load(front: &Front, until: impl Fn() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < HANG, "it does not happen under load");
        for work in MIX {
            front.submit(work);
            front.wait_all();
        }
    }
    front.check();
}

#[test]
fn a_busy_worker_tries_how_to_wait_and_an_idle_one_does_not() {
    let engine = engine(1, Poll::default());
    let (fake, front) = ring(&Back::new());
    engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
    let trials = || engine.worker_figures(0).unwrap().trials;
    load(&front, || trials() >= 1);
    let journal = engine.worker_journal(0).unwrap();
    assert!(engine.worker_figures(0).unwrap().tactic.is_some());
    assert_eq!(journal.verdicts()[0].before, Tactic::Learned);
    let replayed = policy::replay(&journal.stretches(), None);
    assert_eq!(replayed.len() as u64, journal.trials());
    assert!(replayed.iter().all(policy::Replayed::is_same), "{replayed:?}");
    // Nothing to do, nothing to try: not one turn.
    let turns = || engine.worker_figures(0).unwrap().turns;
    eventually("rest", || {
        let before = turns();
        std::thread::sleep(Duration::from_millis(300));
        turns() == before
    });
}

#[test]
fn a_window_that_somebody_has_set_is_left_alone() {
    for mode in [Poll::Off, Poll::Fixed(20)] {
        let engine = engine(1, mode);
        let (fake, front) = ring(&Back::new());
        engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
        let start = Instant::now();
        load(&front, || start.elapsed() > Duration::from_millis(400));
        let figures = engine.worker_figures(0).unwrap();
        assert_eq!((figures.tactic, figures.trials), (None, 0));
        assert_eq!(engine.worker_journal(0).unwrap().stretches(), []);
        // Set free, it is tried like any other; set again, it is left alone again.
        engine.worker_poll(0, Poll::default()).unwrap();
        load(&front, || engine.worker_figures(0).unwrap().trials >= 1);
        engine.worker_poll(0, mode).unwrap();
        load(&front, || engine.worker_figures(0).unwrap().tactic.is_none());
    }
}

#[test]
fn what_is_favoured_is_heard_by_workers_that_are_there_and_by_those_that_come() {
    let engine = engine(2, Poll::default());
    engine.worker_free(1).unwrap();
    let (fake, front) = ring(&Back::new());
    let id = engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
    let trials = |worker| engine.worker_figures(worker).unwrap().trials;
    for favour in [Favour::Latency, Favour::Efficiency] {
        engine.set_favour(favour);
        let worker = match favour {
            Favour::Latency => 0,
            _ => engine.worker_new("test", WorkerSpec::default(), Poll::default()).unwrap(),
        };
        engine.attach_to(id, worker).unwrap();
        let before = trials(worker);
        load(&front, || trials(worker) > before);
        let journal = engine.worker_journal(worker).unwrap();
        assert_eq!(journal.stretches().last().unwrap().favour(), favour);
        assert_eq!(engine.favour(), favour);
    }
}
