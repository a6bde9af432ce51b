//! Slow requests of NBD clients, as those are told who trace them.

use super::client::{REPLIES, Request};
use super::server::{Server, eventually};
use export::{SlowRequest, What};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use storage::{SimOptions, SimStorage};
use values::{ByteSize, Span};

const READER: u64 = 7;
const SLOW: Duration = Duration::from_millis(100);

/// Waits for as many, which are told when they have been sent.
fn told(server: &Server, wanted: usize) -> Vec<SlowRequest> {
    let told = RefCell::new(Vec::new());
    eventually("slow requests", || {
        told.borrow_mut().extend(server.export.recorder().take(READER).requests);
        told.borrow().len() >= wanted
    });
    told.into_inner()
}

#[test]
fn slow_requests_of_a_client_are_told_by_stages() {
    let latency = SimOptions { read_latency: Span(SLOW), ..SimOptions::new(ByteSize(1 << 20)) };
    for replies in REPLIES {
        let server = Server::new(Arc::new(SimStorage::open(&latency).unwrap()));
        let mut client = server.client(replies);
        server.export.recorder().arm(READER, SLOW.as_nanos() as u64, u64::MAX, 0);
        let answered = client.exchange(&[Request::read(4096, 512), Request::flush()]);
        assert!(answered.iter().all(|reply| reply.errno == 0));
        let told = told(&server, 1);
        let read = told.iter().find(|slow| slow.kind == "read").expect("it took long");
        assert_eq!((read.what, read.failed, read.parts), (What { object: None, range: Some((4096, 512)) }, false, 1));
        let times = read.times();
        assert!(times.start_ns + times.behind_ns >= SLOW.as_nanos() as u64, "{read:?}");
        assert_eq!((times.total_ns(), read.ways), (read.shown_ns, engine::Ways::TIMER));
        // What is answered in the turn that takes it is told as well, to whom it matters.
        server.export.recorder().arm(READER, 0, u64::MAX, 0);
        assert_ne!(client.exchange(&[Request::read(1 << 20, 512)])[0].errno, 0);
        eventually("a refusal", || {
            let taken = server.export.recorder().take(READER);
            taken.requests.iter().any(|slow| slow.kind == "unsupported" && slow.failed && slow.started_ns.is_none())
        });
    }
}
