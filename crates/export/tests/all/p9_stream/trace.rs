//! Requests of clients over streams, as those are told who trace them.

use super::client::{Like, Server, TREAD, eventually, message, read_of};
use engine::{Execution, Ways};
use export::{Object, SlowRequest, What};
use std::cell::RefCell;

const READER: u64 = 7;
const BYTES: u32 = 300;

#[test]
fn each_execution_is_told_from_the_others() {
    for (execution, ways) in
        [(Execution::Inline, Ways::default()), (Execution::Pool(2), Ways::THREAD), (Execution::Uring, Ways::URING)]
    {
        let server = Server::new(&Like { execution, ..Like::default() });
        let mut client = server.client();
        client.create(1, "file");
        assert_eq!(client.write(1, 0, &[7; BYTES as usize]), BYTES as usize);
        server.export.recorder().arm(READER, 0, u64::MAX, 0);
        // Several at once, each in a place of its own where it needs one.
        let bytes: Vec<u8> = (0..5).flat_map(|tag| message(TREAD, tag, read_of(1, u64::from(tag), BYTES))).collect();
        client.send(&bytes);
        (0..5).for_each(|_| assert_eq!(client.answer().kind, TREAD + 1));
        let told = RefCell::new(Vec::<SlowRequest>::new());
        eventually("all are told", || {
            told.borrow_mut().extend(server.export.recorder().take(READER).requests);
            told.borrow().len() >= 5
        });
        let mut told = told.into_inner();
        told.sort_by_key(|slow| slow.what.range);
        for (slow, offset) in told.iter().zip(0..) {
            let what = What { object: Some(Object::Fid(1)), range: Some((offset, u64::from(BYTES))) };
            assert_eq!(
                (slow.kind, slow.what, slow.failed, slow.is_partly_known),
                ("Tread", what, false, false),
                "{execution}"
            );
            assert_eq!((slow.ways, slow.times().total_ns()), (ways, slow.shown_ns), "{execution}: {slow:?}");
            assert_eq!(
                (slow.started_ns.is_none(), slow.parts),
                (ways.is_empty(), u32::from(!ways.is_empty())),
                "{execution}"
            );
        }
        assert_eq!(told.len(), 5);
    }
}
