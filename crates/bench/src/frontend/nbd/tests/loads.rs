//! Whole loads on servers of all manners: every block verified.

use std::time::Duration;

use super::server::{Manners, Server};
use crate::frontend::nbd::spec::transmission_flag::SEND_FLUSH;
use crate::frontend::{Load, Protocol, Report, Rw, Spec};

const ODD_PIECES: &[usize] = &[1, 15, 2, 700, 17, 4096, 3, 16, 9000];

/// Mixed, verified, of two connections.
fn spec() -> Spec {
    let common = Spec { protocol: Protocol::Nbd, rw: Rw::RandRw, mix: 50, verify: true, ..Spec::default() };
    Spec { queues: 2, depth: 8, ops: Some(600), ramp: Duration::ZERO, ..common }
}

fn run(manners: &Manners, spec: &Spec) -> Result<Report, String> {
    let server = Server::start(4 << 20, manners);
    let load = Load::start(&server.socket(), spec).map_err(|error| error.to_string())?;
    load.wait(|_| {});
    load.finish().map_err(|error| error.to_string())
}

fn assert_clean(manners: &Manners, spec: &Spec) {
    let report = run(manners, spec).unwrap();
    assert!(report.is_clean(), "{manners:?}, {spec:?}: {:?}", report.faults);
    assert_eq!(report.ops, 600, "{manners:?}, {spec:?}");
    assert!(report.reads > 0 && report.writes > 0);
}

#[test]
fn data_is_right_however_replies_come() {
    for (gathered, pieces) in [(1, &[usize::MAX][..]), (5, &[usize::MAX]), (1, ODD_PIECES), (8, ODD_PIECES)] {
        let manners = Manners { gathered, pieces, ..Manners::default() };
        for block_bytes in [512, 4096, 16 << 10, 128 << 10] {
            assert_clean(&manners, &Spec { block_bytes, ..spec() });
        }
    }
}

#[test]
fn every_way_to_wait_for_replies_works() {
    let manners = Manners { gathered: 3, pieces: ODD_PIECES, ..Manners::default() };
    for threads in [1, 2] {
        for poll in [false, true] {
            assert_clean(&manners, &Spec { threads: Some(threads), poll, ..spec() });
        }
    }
    assert_clean(&manners, &Spec { batch: 4, ..spec() });
    assert_clean(&manners, &Spec { batch: 8, block_bytes: 64 << 10, threads: Some(1), ..spec() });
}

#[test]
fn flushes_are_sent_and_counted() {
    let report = run(&Manners::default(), &Spec { flush_every: 10, ..spec() }).unwrap();
    assert!(report.is_clean() && report.flushes > 0, "{report:?}");
    let report = run(&Manners::default(), &Spec { sync: true, ..spec() }).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_eq!(report.flushes, report.writes);
}

#[test]
fn refused_requests_are_errors_of_the_load() {
    let manners = Manners {
        flags: 1 | SEND_FLUSH,
        gathered: 3,
        pieces: ODD_PIECES,
        fails: |offset| if offset % 65536 == 0 { 28 } else { 0 },
        ..Manners::default()
    };
    let report = run(&manners, &spec()).unwrap();
    assert!(report.errors > 0 && report.mismatches == 0, "{report:?}");
    assert!(report.faults.iter().all(|fault| fault.ends_with("No space left on device (os error 28)")), "{report:?}");
}

#[test]
fn a_whole_snapshot_has_the_latency_of_everything_since_the_last() {
    let server = Server::start(4 << 20, &Manners::default());
    let mut load = Load::start(&server.socket(), &Spec { ops: None, ..spec() }).unwrap();
    let mut before = load.whole_snapshot();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        let now = load.whole_snapshot();
        // Threads go on while they are looked at: some milliseconds of a hundred may stand on either side.
        let (ops, told) = ((now.ops - before.ops) as f64, now.latency.count as f64);
        assert!(ops > 0.0 && (told / ops - 1.0).abs() < 0.5, "{told} latencies of {ops} requests");
        before = now;
    }
    assert!(load.finish().unwrap().is_clean());
}
