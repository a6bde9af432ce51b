//! A ring's figures can be read while its worker is blocked in a call.

use super::{Guest, PATIENCE, SECTOR, Server, sectors};
use engine::{Io, Token};
use export::{RingState, RingStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use storage::kit::Through;
use storage::{MemoryStorage, Step, Storage, Task};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

/// Sectors in memory. With `hold` set, the next request blocks its worker until the sender is dropped.
struct Holding {
    inner: MemoryStorage,
    hold: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Through for Holding {
    fn below(&self) -> &dyn Storage {
        &self.inner
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((entered, leave)) = hold {
            entered.send(()).unwrap();
            let _ = leave.recv();
        }
        self.inner.start(task, token, io)
    }
}

fn count(ring: &RingStatus, kind: &str) -> u64 {
    ring.figures.requests.iter().filter(|(name, _)| *name == kind).map(|(_, count)| count).sum()
}

#[test]
fn a_worker_in_a_call_keeps_nobody_from_the_figures() {
    let storage = Arc::new(Holding { inner: sectors(), hold: Mutex::default() });
    let server = Server::of("disk", storage.clone());
    let mut guest = Guest::new(&server);
    let mut frontend = server.connect();
    guest.set_up(&mut frontend);
    frontend.set_vring_enable(0, true).unwrap();
    for number in 1..=3 {
        guest.offer(u64::from(number), Some(number as u8));
        guest.kick.write(1).unwrap();
        guest.wait_for_used_idx(number);
    }

    let ((enter, entered), (leave, left)) = (channel(), channel());
    *storage.hold.lock().unwrap() = Some((enter, left));
    guest.offer(1, None);
    guest.kick.write(1).unwrap();
    entered.recv_timeout(PATIENCE).unwrap();
    let began = Instant::now();
    let ring = server.export.ring(0).unwrap();
    let [(0, taken_ns, true)] = server.export.oldest_requests()[..] else { panic!("the request is not known") };
    // A question to the worker would have timed out after a second.
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((ring.state, ring.worker, ring.in_flight), (RingState::Running, Some(0), 1));
    assert!(ring.oldest_in_flight_ns.is_some() && taken_ns > 0);
    assert_eq!((count(&ring, "write"), count(&ring, "read")), (3, 0));
    assert_eq!((ring.figures.bytes_written, ring.figures.bytes_read), (3 * SECTOR, SECTOR));
    assert_eq!((ring.figures.served.histogram().len(), ring.figures.queued.histogram().len()), (3, 3));
    assert!(ring.stay.kicks + ring.stay.polls_hit > 0);

    // After a second the ring is unresponsive; its figures stay.
    let end = Instant::now() + PATIENCE;
    let hangs = || server.export.ring(0).filter(|ring| ring.state == RingState::Unresponsive);
    let ring = loop {
        assert!(Instant::now() < end, "it does not hang");
        match hangs() {
            Some(ring) => break ring,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!((ring.in_flight, count(&ring, "write")), (1, 3));
    assert!(ring.oldest_in_flight_ns.unwrap() >= 1_000_000_000);
    assert!(matches!(server.export.oldest_requests()[..], [(0, _, false)]));

    drop(leave);
    guest.wait_for_used_idx(4);
    while server.export.ring(0).is_none_or(|ring| ring.state != RingState::Running || count(&ring, "read") != 1) {
        assert!(Instant::now() < end, "it does not go on");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(frontend.get_vring_base(0).unwrap(), 4);
    let ring = server.export.ring(0).unwrap();
    assert_eq!((ring.state, ring.in_flight, ring.oldest_in_flight_ns), (RingState::Stopped, 0, None));
    assert_eq!((count(&ring, "write"), count(&ring, "read")), (3, 1));
    assert_eq!((ring.figures.served.histogram().len(), ring.figures.in_flight_max), (4, 1));
}
