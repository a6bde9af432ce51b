//! What every request needs: answers, wherever and on whichever ring it is executed.

use crate::p9::client::{Client, MSIZE, ROOT, Server, data_of, outcome, read, write};
use device::p9::Kind;
use engine::{Execution, Poll, WorkerSpec};
use passthrough::Options;

const EXECUTIONS: [Execution; 4] = [Execution::Inline, Execution::Uring, Execution::Pool(2), Execution::Auto];

/// Bytes that tell where they belong.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(131) + at.wrapping_mul(7)) as u8).collect()
}

#[test]
fn a_guest_finds_the_tag() {
    let server = Server::new(1, Execution::Inline, Options::default());
    let mut client = Client::new(&server, 1);
    let tag = [&6_u16.to_le_bytes()[..], b"shared"].concat();
    assert_eq!(client.guest.session.config(0, 8).unwrap(), tag);
    // VIRTIO_9P_MOUNT_TAG
    assert_eq!(server.export.status().features_negotiated & 1, 1);
}

#[test]
fn data_comes_back_by_every_execution() {
    for execution in EXECUTIONS {
        let server = Server::new(1, execution, Options::default());
        let mut client = Client::new(&server, 1);
        let fid = client.create("file");
        // As much as fits into a message, and the rest.
        let (whole, most) = (pattern(1, 10_000), MSIZE as usize - 24);
        assert_eq!(client.write(0, fid, 0, &whole[..most]), most as u32, "{execution:?}");
        assert_eq!(client.write(0, fid, most as u64, &whole[most..]), (whole.len() - most) as u32);
        client.call(0, Kind::Fsync, &[&fid.to_le_bytes(), &[0; 4]]).unwrap();
        assert_eq!(std::fs::read(server.shared.path().join("file")).unwrap(), whole);
        let mut found = client.read(0, fid, 0, MSIZE - 24);
        found.extend(client.read(0, fid, found.len() as u64, MSIZE - 24));
        assert_eq!(found, whole, "{execution:?}");
        assert!(client.read(0, fid, whole.len() as u64, 100).is_empty(), "behind the end");
        assert_eq!(client.walk("missing"), Err(libc::ENOENT));
        client.call(0, Kind::Clunk, &[&fid.to_le_bytes()]).unwrap();
        assert_eq!(client.call(0, Kind::Clunk, &[&fid.to_le_bytes()]), Err(libc::EBADF));
        let status = server.status();
        assert_eq!((status.dialect, status.msize, status.connections), (Some("9P2000.L"), MSIZE, 1));
        assert_eq!(status.fids, 1, "the root");
        assert_eq!((server.answered("Twrite"), server.answered("Tfsync"), server.answered("Tversion")), (2, 1, 1));
        let figures = server.export.ring(0).unwrap().figures;
        assert_eq!((figures.bytes_written, figures.bytes_read), (10_000, 10_000), "{execution:?}");
        assert_eq!(figures.errors, 2);
    }
}

#[test]
fn several_queues_are_one_session() {
    let server = Server::new(4, Execution::Pool(3), Options::default());
    let mut client = Client::new(&server, 4);
    let fid = client.create("file");
    // On all rings at once; fids of one are known to the others.
    for round in 0..20_u64 {
        let sent: Vec<_> = (0..4_u64)
            .map(|queue| {
                let data = pattern(4 * round + queue, 1000);
                let tag = client.tag();
                client.send(queue as usize, &write(tag, fid, (4 * round + queue) * 1000, &data))
            })
            .collect();
        for sent in sent {
            outcome(client.guest.wait(sent), Kind::Write).unwrap();
        }
    }
    for piece in 0..80_u64 {
        let queue = (piece + 1) as usize % 4;
        assert_eq!(client.read(queue, fid, piece * 1000, 1000), pattern(piece, 1000));
    }
    assert_eq!(server.status().fids, 2);
}

/// Keeps reads and writes under way while something changes, and checks every byte.
fn load(server: &Server, mut change: impl FnMut(usize)) {
    let mut client = Client::new(server, 2);
    let fid = client.create("load");
    for round in 0..120_usize {
        change(round);
        let writes: Vec<_> = (0..8_u64)
            .map(|place| {
                let tag = client.tag();
                let data = pattern(place + round as u64, 4000);
                client.send(place as usize % 2, &write(tag, fid, place * 4000, &data))
            })
            .collect();
        for sent in writes {
            assert_eq!(outcome(client.guest.wait(sent), Kind::Write).unwrap(), 4000_u32.to_le_bytes());
        }
        let reads: Vec<_> = (0..8_u64)
            .map(|place| {
                let tag = client.tag();
                client.send((place as usize + 1) % 2, &read(tag, fid, place * 4000, 4000))
            })
            .collect();
        for (place, sent) in reads.into_iter().enumerate() {
            let data = data_of(&outcome(client.guest.wait(sent), Kind::Read).unwrap());
            assert_eq!(data, pattern((place + round) as u64, 4000), "round {round}");
        }
    }
}

#[test]
fn execution_changes_while_requests_run() {
    let server = Server::new(2, Execution::Auto, Options::default());
    load(&server, |round| server.export.set_execution(EXECUTIONS[round % 4]).unwrap());
}

#[test]
fn rings_move_while_requests_run() {
    let server = Server::new(2, Execution::Uring, Options::default());
    let other = server.engine.worker_new(export::DAEMON, WorkerSpec::default(), Poll::Off).unwrap();
    let home = server.engine.workers().iter().find(|worker| worker.owner == "shared").unwrap().number;
    let mut moves = 0;
    load(&server, |round| {
        if round == 60 {
            server.export.set_execution(Execution::Pool(2)).unwrap();
        }
        let running = server.export.running();
        for (index, worker) in &running {
            let to = if *worker == other { home } else { other };
            server.export.attach(*index, to).unwrap();
            moves += 1;
        }
    });
    let counted: u64 = server.export.rings().iter().map(|ring| ring.stay.moves).sum();
    assert!(moves >= 200 && counted >= 100, "{moves} moves asked for, {counted} made");
}

#[test]
fn a_root_is_a_directory() {
    let server = Server::new(1, Execution::Inline, Options::default());
    let mut client = Client::new(&server, 1);
    let attributes = client.call(0, Kind::GetAttr, &[&ROOT.to_le_bytes(), &0x7ff_u64.to_le_bytes()]).unwrap();
    // valid[8] qid[13] mode[4]
    let mode = u32::from_le_bytes(attributes[21..25].try_into().unwrap());
    assert_eq!(mode & libc::S_IFMT, libc::S_IFDIR);
}
