//! A ring's notes, driven as its attachment does.

use super::recorder::Recorder;
use super::slow::{SlowRequest, Wait, What};
use super::tracer::Tracer;
use engine::{Io, Solo, Token, Ways, monotonic_ns};
use std::sync::Arc;
use std::time::Duration;

const KINDS: [&str; 2] = ["read", "write"];
const READER: u64 = 1;
/// What is asked to take long takes at least this.
const SLOW: Duration = Duration::from_millis(50);
/// Nothing here takes as long.
const NEVER: Duration = Duration::from_secs(3600);

fn armed(slower_than: Duration) -> (Arc<Recorder>, Tracer) {
    let recorder = Arc::<Recorder>::default();
    recorder.arm(READER, slower_than.as_nanos() as u64, u64::MAX, 0);
    (recorder.clone(), Tracer::new(recorder, 5, &KINDS))
}

/// Whole turns: each with a clock of its own.
fn turn<T>(solo: &mut Solo, tracer: &mut Tracer, run: impl FnOnce(&mut Tracer, &mut Io<'_>) -> T) -> T {
    let mut io = solo.io();
    tracer.look(&io);
    let result = run(tracer, &mut io);
    tracer.shown(&io);
    result
}

fn read_at_once(tracer: &mut Tracer, io: &mut Io<'_>, slot: u16, takes: Duration) {
    tracer.taken(Some(slot), io);
    tracer.asks(What::range(4096, 512));
    std::thread::sleep(takes);
    tracer.answered(Some(slot), 0, io.now_ns(), false, io);
}

fn told(recorder: &Recorder) -> Vec<SlowRequest> {
    recorder.take(READER).requests
}

#[test]
fn nothing_is_noted_unless_somebody_wants_to_know() {
    let recorder = Arc::<Recorder>::default();
    let mut tracer = Tracer::new(recorder.clone(), 5, &KINDS);
    let mut solo = Solo::new().unwrap();
    turn(&mut solo, &mut tracer, |tracer, io| read_at_once(tracer, io, 0, Duration::ZERO));
    assert!(!tracer.is_on());
    // From the next turn on.
    recorder.arm(READER, 0, u64::MAX, 0);
    turn(&mut solo, &mut tracer, |tracer, io| read_at_once(tracer, io, 0, Duration::ZERO));
    assert!(tracer.is_on() && told(&recorder).len() == 1);
    // The reader does not ask again: nothing is kept any more.
    recorder.arm(READER, 0, monotonic_ns() - 1, 0);
    turn(&mut solo, &mut tracer, |tracer, io| read_at_once(tracer, io, 0, Duration::ZERO));
    assert!(!tracer.is_on() && told(&recorder).is_empty());
}

#[test]
fn what_the_worker_does_itself_is_told_from_what_waits_behind_it() {
    let (recorder, mut tracer) = armed(SLOW);
    let mut solo = Solo::new().unwrap();
    turn(&mut solo, &mut tracer, |tracer, io| {
        read_at_once(tracer, io, 0, Duration::ZERO);
        read_at_once(tracer, io, 1, SLOW);
        read_at_once(tracer, io, 2, Duration::ZERO);
    });
    let [first, slow, behind] = told(&recorder)[..] else { panic!("all were shown late") };
    let slow_ns = SLOW.as_nanos() as u64;
    // The first was ready at once, and shown behind the second.
    assert!(first.times().show_ns >= slow_ns && first.answered_ns <= first.shown_ns - slow_ns);
    assert!(slow.times().inline_ns >= slow_ns && slow.started_ns.is_none() && slow.ways == Ways::default());
    assert_eq!((slow.ring, slow.kind, slow.what, slow.failed), (5, "read", What::range(4096, 512), false));
    // The third was there all the time, for all that is known.
    assert!(behind.waited_max_ns >= slow_ns && behind.waited_for == Wait::Turn);
    // What nobody finds slow is not told.
    recorder.arm(READER, NEVER.as_nanos() as u64, u64::MAX, 0);
    turn(&mut solo, &mut tracer, |tracer, io| read_at_once(tracer, io, 0, SLOW));
    assert_eq!(told(&recorder), []);
}

#[test]
fn work_that_goes_on_elsewhere_has_its_stages_and_its_way() {
    let (recorder, mut tracer) = armed(SLOW);
    let mut solo = Solo::new().unwrap();
    turn(&mut solo, &mut tracer, |tracer, io| {
        tracer.waited(io.now_ns() - 1000, Wait::Limit);
        tracer.taken(Some(7), io);
        tracer.asks(What::range(0, 512));
        io.timer(Token::request(7), io.now_ns() + SLOW.as_nanos() as u64);
        tracer.pending(7, io);
        // Another one, of which nobody need know.
        read_at_once(tracer, io, 3, Duration::ZERO);
    });
    assert_eq!(solo.wait().unwrap().token, Token::request(7));
    turn(&mut solo, &mut tracer, |tracer, io| {
        tracer.ended(7, io);
        // Its second part.
        io.reply(Token::request(7)).complete(0);
        tracer.pending(7, io);
    });
    assert_eq!(solo.wait().unwrap().token, Token::request(7));
    turn(&mut solo, &mut tracer, |tracer, io| {
        tracer.ended(7, io);
        tracer.answered(Some(7), 1, 0, true, io);
    });
    let told = told(&recorder);
    let slow = told.iter().find(|slow| slow.kind == "write").expect("it was slow");
    assert_eq!(
        (slow.what, slow.failed, slow.parts, slow.ways),
        (What::range(0, 512), true, 2, Ways::TIMER | Ways::THREAD)
    );
    let times = slow.times();
    assert!(times.behind_ns + times.start_ns >= SLOW.as_nanos() as u64 && times.inline_ns == 0);
    assert_eq!((times.total_ns(), slow.waited_for, slow.is_partly_known), (slow.shown_ns, Wait::Limit, false));
    assert!(slow.waited_max_ns >= 1000);
}

#[test]
fn one_that_is_put_aside_has_been_held_until_it_goes_on() {
    let (recorder, mut tracer) = armed(SLOW);
    let mut solo = Solo::new().unwrap();
    turn(&mut solo, &mut tracer, |tracer, io| {
        for slot in [1, 2] {
            tracer.taken(Some(slot), io);
            tracer.put_aside(slot);
        }
    });
    std::thread::sleep(SLOW);
    turn(&mut solo, &mut tracer, |tracer, io| {
        tracer.taken_up(1, io);
        tracer.answered(Some(1), 0, io.now_ns(), false, io);
        // The other is given up by a third.
        tracer.taken(Some(3), io);
        tracer.answered(Some(2), 0, io.now_ns(), false, io);
        tracer.answered(Some(3), 0, io.now_ns(), false, io);
    });
    let told = told(&recorder);
    let held = told.iter().filter(|slow| slow.times().held_ns >= SLOW.as_nanos() as u64);
    assert_eq!(held.count(), 2, "{told:?}");
    assert!(told.iter().all(|slow| slow.times().total_ns() == slow.shown_ns));
}

#[test]
fn one_that_began_before_the_trace_is_told_with_what_is_known() {
    let recorder = Arc::<Recorder>::default();
    let mut tracer = Tracer::new(recorder.clone(), 0, &KINDS);
    let mut solo = Solo::new().unwrap();
    let taken_ns = turn(&mut solo, &mut tracer, |tracer, io| {
        tracer.taken(Some(4), io);
        tracer.pending(4, io);
        io.now_ns()
    });
    std::thread::sleep(SLOW);
    recorder.arm(READER, SLOW.as_nanos() as u64, u64::MAX, 0);
    turn(&mut solo, &mut tracer, |tracer, io| {
        tracer.ended(4, io);
        tracer.answered(Some(4), 0, taken_ns, false, io);
    });
    let [slow] = told(&recorder)[..] else { panic!("it was slow") };
    assert!(slow.is_partly_known && slow.taken_ns == taken_ns && slow.times().unknown_ns >= SLOW.as_nanos() as u64);
}

#[test]
fn a_slot_without_an_answer_says_nothing_of_the_next_request_in_it() {
    let (recorder, mut tracer) = armed(Duration::ZERO);
    let mut solo = Solo::new().unwrap();
    turn(&mut solo, &mut tracer, |tracer, io| {
        tracer.taken(Some(4), io);
        tracer.asks(What::range(0, 512));
        tracer.pending(4, io);
        tracer.put_off(4);
        // As a stream answers what needs no slot, behind one that left its answer to another.
        tracer.taken(None, io);
        tracer.asks(What::range(512, 512));
        tracer.leave();
        tracer.answered(None, 0, io.now_ns(), false, io);
    });
    let [only] = told(&recorder)[..] else { panic!("one was answered") };
    assert_eq!((only.what, only.is_partly_known), (What::default(), true));
}
