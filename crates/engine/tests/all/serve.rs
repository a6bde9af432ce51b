//! Requests are served and completed once, and an idle worker does nothing.

use crate::common::{Back, MIX, Work, engine, eventually, ring, within};
use engine::{Poll, Pulse, Token};
use std::os::fd::OwnedFd;
use std::time::Duration;

fn modes() -> [Poll; 4] {
    [Poll::Off, Poll::Fixed(100), Poll::Adaptive(50), Poll::Adaptive(2000)]
}

#[test]
fn every_request_completes_once_in_every_poll_mode() {
    for mode in modes() {
        let engine = engine(1, mode);
        let (fake, front) = ring(&Back::new());
        let id = engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
        for round in 0..200 {
            for index in 0..=round % 40 {
                front.submit(MIX[(round + index) % MIX.len()]);
            }
            front.wait_all();
        }
        front.check();
        engine.detach(id).unwrap();
        front.check();
    }
}

#[test]
fn many_rings_share_a_worker() {
    let engine = engine(1, Poll::default());
    let back = Back::new();
    let rings: Vec<_> = (0..32)
        .map(|_| {
            let (fake, front) = ring(&back);
            (engine.attach(fake, 0).map_err(|(error, _)| error).unwrap(), front)
        })
        .collect();
    for request in 0..4000 {
        rings[request % 32].1.submit(MIX[request % MIX.len()]);
    }
    for (id, front) in rings {
        front.wait_all();
        engine.detach(id).unwrap();
        front.check();
    }
}

#[test]
fn a_deep_queue_overfills_the_submission_queue() {
    for mode in [Poll::Off, Poll::default()] {
        let engine = engine(1, mode);
        let back = Back::new();
        let rings: Vec<_> = (0..40).map(|_| ring(&back)).collect();
        // Queued before they are attached: one turn takes 40 batches of 32 into 512 entries.
        for (_, front) in &rings {
            for _ in 0..300 {
                front.queue(Work::Read);
            }
        }
        let attached: Vec<_> = rings
            .into_iter()
            .map(|(fake, front)| (engine.attach(fake, 0).map_err(|(error, _)| error).unwrap(), front))
            .collect();
        for (id, front) in attached {
            front.wait_all();
            engine.detach(id).unwrap();
            front.check();
        }
    }
}

#[test]
fn a_ring_without_kicks_is_served_by_looking() {
    for mode in [Poll::Off, Poll::Fixed(10), Poll::default()] {
        let engine = engine(1, mode);
        let (fake, front) = ring(&Back::new());
        let id = engine.attach(fake.without_kick(), 0).map_err(|(error, _)| error).unwrap();
        for work in MIX.iter().cycle().take(600) {
            front.queue(*work);
        }
        front.wait_all();
        let ring = engine.detach(id).unwrap();
        assert_eq!(engine::Ring::in_flight(&ring), 0);
        front.check();
    }
}

#[test]
fn kicks_that_somebody_consumed_or_made_up_do_no_harm() {
    let engine = engine(1, Poll::Off);
    let back = Back::new();
    for stale in [0, 1, 2] {
        let (fake, front) = ring(&back);
        // Requests whose kick came, or came and was taken, before anybody watched.
        front.queue(Work::Inline);
        for _ in 0..stale {
            front.kick();
        }
        if stale == 2 {
            front.consume_kick();
        }
        let id = engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
        front.wait_all();
        for round in 0..200 {
            front.kick();
            front.kick();
            front.submit(Work::Inline);
            front.wait_all();
            if round % 3 == 0 {
                front.consume_kick();
            }
        }
        engine.detach(id).unwrap();
        front.check();
    }
}

/// Turns and enters of worker 0 in 300 ms without work: reading them is none.
fn idle_turns(engine: &engine::Engine<crate::common::FakeRing>) -> (u64, u64) {
    // Wake-ups far apart: windows shrink, timers end.
    for _ in 0..20 {
        engine.worker_answers(0).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    eventually("the worker sleeps", || !matches!(engine.workers()[0].pulse, Pulse::Busy { .. }));
    // It shows its pulse before the system call that it sleeps in.
    std::thread::sleep(Duration::from_millis(20));
    let before = engine.worker_figures(0).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let after = engine.worker_figures(0).unwrap();
    (after.turns - before.turns, after.enters - before.enters)
}

#[test]
fn an_idle_worker_neither_turns_nor_enters_the_kernel() {
    for mode in modes() {
        let engine = engine(1, mode);
        let (fake, front) = ring(&Back::new());
        engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
        front.submit(Work::Write);
        front.wait_all();
        assert_eq!(idle_turns(&engine), (0, 0), "{mode:?}");
        // And it still listens.
        front.submit(Work::Read);
        front.wait_all();
        front.check();
    }
}

#[test]
fn waiting_for_slow_work_is_idle_too() {
    let engine = engine(1, Poll::default());
    let (fake, front) = ring(&Back::new());
    let id = engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
    for _ in 0..200 {
        front.submit(Work::Timer(1_500_000));
    }
    eventually("all taken", || engine.with_ring(id, |ring, _| engine::Ring::in_flight(ring)).unwrap() == 200);
    assert_eq!(idle_turns(&engine), (0, 0));
    front.wait_all();
    front.check();
}

#[test]
fn waiting_for_many_slow_reads_is_idle_too() {
    let engine = engine(1, Poll::default());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (fake, front) = ring(&Back::with_file(OwnedFd::from(reader).into()));
    let id = engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
    for _ in 0..64 {
        front.submit(Work::Read);
    }
    eventually("all taken", || engine.with_ring(id, |ring, _| engine::Ring::in_flight(ring)).unwrap() == 64);
    assert_eq!(idle_turns(&engine), (0, 0));
    // Fewer completions than a worker would like to gather are still taken.
    for _ in 0..3 {
        std::io::Write::write_all(&mut writer, &[0; 512]).unwrap();
    }
    eventually("three of them", || front.published() == 3);
    std::io::Write::write_all(&mut writer, &[0; 512 * 61]).unwrap();
    front.wait_all();
    front.check();
}

#[test]
fn a_kick_that_cannot_be_watched_does_not_keep_the_worker_busy() {
    // A regular file polls as ready at once, and the kernel refuses to go on watching it.
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(writer);
    for kick in [file, reader.into()] {
        let engine = engine(1, Poll::Off);
        let (fake, front) = ring(&Back::new());
        drop(front);
        let fake = fake.with_kick(kick);
        let front = fake.front();
        let id = engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
        assert_eq!(idle_turns(&engine), (0, 0));
        // Only kicks are lost to it: messages and work still reach the ring.
        front.queue(Work::Read);
        engine.with_ring(id, |_, _| ()).unwrap();
        front.wait_all();
        front.check();
        engine.detach(id).unwrap();
    }
}

#[test]
fn the_poll_mode_changes_while_serving() {
    let engine = engine(1, Poll::Off);
    let (fake, front) = ring(&Back::new());
    engine.attach(fake, 0).map_err(|(error, _)| error).unwrap();
    for mode in modes().into_iter().cycle().take(40) {
        engine.worker_poll(0, mode).unwrap();
        assert_eq!(engine.workers()[0].poll, mode);
        for work in MIX {
            front.submit(work);
        }
        front.wait_all();
    }
    front.check();
}

/// The requests that end next, and how.
fn ends(solo: &mut engine::Solo, count: usize) -> Vec<(u16, i32)> {
    let mut next = || solo.wait().unwrap();
    (0..count).map(|_| next()).map(|end| (end.token.index().unwrap(), end.result)).collect()
}

#[test]
fn a_pool_survives_jobs_that_panic() {
    let mut solo = engine::Solo::new().unwrap();
    let pool = engine::Pool::new("panicky", 1).unwrap();
    for token in 0..4 {
        pool.run(
            solo.io().reply(Token::request(token)),
            move || if token < 3 { panic!("as the test wished") } else { 5 },
        );
    }
    let results = within("the pool", move || pool);
    let mut done = ends(&mut solo, 4);
    done.sort_unstable();
    assert_eq!(done, [(0, -libc::EIO), (1, -libc::EIO), (2, -libc::EIO), (3, 5)]);
    drop(results);
    assert!(solo.wait().is_err());
}

#[test]
fn solo_waits_for_all_kinds_of_work() {
    let mut solo = engine::Solo::new().unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let shared = engine::SharedFile::new(OwnedFd::from(file));
    let mut buffer = [0u8; 512];
    let vector = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 512 }];
    let deadline = solo.io().now_ns() + 3_000_000;
    solo.io().timer(Token::request(0), deadline);
    // SAFETY: buffer and vector outlive the waits below.
    unsafe { solo.io().read(Token::request(1), (&shared).into(), &vector, 0) };
    solo.io().sync(Token::request(2), (&shared).into(), true);
    let reply = solo.io().reply(Token::request(3));
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1));
        reply.complete(9);
    });
    let mut done = ends(&mut solo, 4);
    assert!(solo.io().now_ns() >= deadline);
    done.sort_unstable();
    assert_eq!(done, [(0, 0), (1, 512), (2, 0), (3, 9)]);
}
