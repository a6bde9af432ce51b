//! Requests that are refused, storage that fails, and what is no request.

use super::client::{
    BLOCK_STATUS, CACHE, DF, EINVAL, EIO, ENOSPC, EOVERFLOW, EPERM, FAST_ZERO, FUA, NO_HOLE, READ, REPLIES, REQ_ONE,
    Request, TRIM, WRITE, WRITE_ZEROES,
};
use super::server::{Like, Random, Scripted, Server, eventually, pattern};
use std::sync::Arc;
use storage::{FileOptions, FileStorage, SimOptions, SimStorage};
use values::{ByteSize, Span};

/// More than the longest payload.
const SIZE: u64 = 64 << 20;
const LONGEST: u32 = 32 << 20;

#[test]
fn requests_that_cannot_be_done_have_their_errors_and_touch_nothing() {
    for block in [512_u32, 4096] {
        let storage = Scripted::new(SIZE);
        let server = Server::like(&Like { block_size_bytes: block, ..Like::default() }, storage.clone());
        let data = vec![0xee; 4 * block as usize];
        let (one, half) = (u64::from(block), u64::from(block / 2));
        let refused = [
            // Beyond the end.
            (Request::read(SIZE, block), EINVAL),
            (Request::read(SIZE - one, 2 * block), EINVAL),
            (Request::read(u64::MAX - one + 1, block), EINVAL),
            (Request::read(u64::MAX - one + 1, 2 * block), EINVAL),
            (Request::write(SIZE, &data), ENOSPC),
            (Request::write(SIZE - one, &data), ENOSPC),
            (Request::write(u64::MAX - one + 1, &data), ENOSPC),
            (Request::new(WRITE_ZEROES, SIZE - one, 2 * block), ENOSPC),
            (Request::new(TRIM, SIZE - one, 2 * block), EINVAL),
            // Not whole blocks.
            (Request::read(half, block), EINVAL),
            (Request::read(0, block + 1), EINVAL),
            (Request::read(1, 0), EINVAL),
            (Request::write(half, &data), EINVAL),
            (Request::write(0, &data[1..]), EINVAL),
            (Request::write(0, &[0xee]), EINVAL),
            (Request::new(WRITE_ZEROES, half, block), EINVAL),
            (Request::new(TRIM, 0, block / 2), EINVAL),
            // Not offered, or not known.
            (Request::new(CACHE, 0, block), EINVAL),
            (Request::new(BLOCK_STATUS, 0, block), EINVAL),
            (Request::new(BLOCK_STATUS, 0, block).with(REQ_ONE), EINVAL),
            (Request::new(8, 0, block), EINVAL),
            (Request::new(u16::MAX, 0, block), EINVAL),
            // Flags that the command does not have.
            (Request::read(0, block).with(NO_HOLE), EINVAL),
            (Request::read(0, block).with(1 << 15), EINVAL),
            (Request::write(0, &data).with(NO_HOLE), EINVAL),
            (Request::write(0, &data).with(FUA | 1 << 7), EINVAL),
            (Request::write(0, &data).with(DF), EINVAL),
            (Request::new(WRITE_ZEROES, 0, block).with(FAST_ZERO), EINVAL),
            (Request::new(TRIM, 0, block).with(NO_HOLE), EINVAL),
            (Request::flush().with(REQ_ONE), EINVAL),
            (Request::new(super::client::FLUSH, 0, block), EINVAL),
            (Request::new(super::client::FLUSH, one, 0), EINVAL),
            // More than is answered at once.
            (Request::read(0, LONGEST + block), EOVERFLOW),
            (Request::read(0, SIZE as u32), EOVERFLOW),
        ];
        for replies in REPLIES {
            let mut client = server.client(replies);
            for (request, errno) in &refused {
                let told = client.errno(request);
                assert_eq!(told, *errno, "{replies:?} {:?}", Request { data: Vec::new(), ..request.clone() });
            }
            // All at once, with some between them that are not refused.
            let good = Request::read(0, block);
            let all: Vec<_> = refused.iter().flat_map(|(request, _)| [request.clone(), good.clone()]).collect();
            let mut answered = client.exchange(&all).into_iter();
            assert_eq!(storage.asked().len(), refused.len(), "only the reads of between");
            for (_, errno) in &refused {
                assert_eq!(answered.next().unwrap().errno, *errno);
                assert_eq!(answered.next().unwrap().data, vec![0; block as usize]);
            }
        }
        eventually("both are gone", || server.export.status().sessions.disconnects == 2);
        let counted: u64 = server.export.rings().iter().map(|ring| ring.figures.errors).sum();
        assert_eq!(counted, 4 * refused.len() as u64);
        assert!(server.contents(1 << 20).iter().all(|byte| *byte == 0));
        assert_eq!(server.export.status().sessions.errors, 0);
    }
}

#[test]
fn a_long_write_that_is_refused_is_passed_over() {
    let server = Server::of_memory(SIZE);
    for replies in REPLIES {
        let mut client = server.client(replies);
        let long = vec![0xee; LONGEST as usize];
        let requests =
            [Request::write(SIZE - 4096, &long), Request::write(0, &pattern(4096, 1)), Request::read(8192, 512)];
        let errors: Vec<_> = client.exchange(&requests).iter().map(|reply| reply.errno).collect();
        assert_eq!(errors, [ENOSPC, 0, 0]);
        assert_eq!(client.read(SIZE - 4096, 4096), [0; 4096]);
        assert_eq!(client.read(0, 4096), pattern(4096, 1));
    }
}

#[test]
fn a_disk_that_is_read_only_is_not_written() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let content = pattern(1 << 20, 8);
    std::fs::write(image.path(), &content).unwrap();
    let options = FileOptions { read_only: true, ..FileOptions::new(image.path()) };
    let server = Server::new(Arc::new(FileStorage::open(&options).unwrap()));
    for replies in REPLIES {
        let mut client = server.client(replies);
        for request in [
            Request::write(0, &[0xee; 4096]),
            Request::write(0, &[0xee; 4096]).with(FUA),
            // That it lies beyond the end is not what is wrong with it.
            Request::write(1 << 20, &[0xee; 4096]),
            Request::new(TRIM, 0, 4096),
            Request::new(WRITE_ZEROES, 0, 4096),
            Request::new(WRITE_ZEROES, 0, 4096).with(NO_HOLE),
        ] {
            assert_eq!(client.errno(&request), EPERM, "{replies:?} {}", request.command);
        }
        client.ask(&Request::flush());
        assert!(client.read(0, 1 << 20) == content);
    }
    assert!(std::fs::read(image.path()).unwrap() == content);
}

#[test]
fn what_is_no_request_ends_its_connection_alone() {
    let server = Server::of_memory(SIZE);
    let mut witness = server.client(REPLIES[0]);
    let mut wrong = Request::read(0, 512).bytes(1);
    wrong[0] ^= 1;
    let too_long = Request::new(WRITE, 0, LONGEST + 512).bytes(1);
    let longest = Request::new(WRITE, 0, u32::MAX).bytes(1);
    let mut ended = 0;
    for (bytes, why) in [(wrong, "magic"), (too_long, "more data"), (longest, "more data")] {
        for replies in REPLIES {
            let mut client = server.client(replies);
            // What came before is still answered.
            client.post(&Request::write(4096, &pattern(4096, 6)));
            client.send(&bytes);
            assert_eq!(client.answer().errno, 0);
            assert_eq!(client.next(), None);
            ended += 1;
            eventually("it is counted", || server.export.status().sessions.errors == ended);
            let error = server.export.status().last_error.unwrap();
            assert!(error.contains(why), "{error}");
            assert_eq!(witness.read(4096, 4096), pattern(4096, 6));
            witness.ask(&Request::new(WRITE_ZEROES, 4096, 4096));
        }
    }
    server.serves_others();
}

#[test]
fn what_waits_for_the_storage_is_answered_though_nonsense_came_behind_it() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    let mut client = server.client(REPLIES[1]);
    storage.hold(|_| true);
    let writes: Vec<_> = (0..20).map(|number| Request::write(number * 4096, &pattern(4096, number))).collect();
    let mut cookies = client.post_all(&writes);
    client.send(b"This is no request, and long enough to be one.");
    eventually("they are in flight", || server.in_flight() == 20);
    storage.release();
    let mut answered: Vec<_> = (0..20).map(|_| client.answer().cookie).collect();
    answered.sort_unstable();
    cookies.sort_unstable();
    assert_eq!(answered, cookies);
    assert_eq!(client.next(), None);
    let disk = server.contents(20 * 4096);
    assert!((0..20).all(|number| disk[number * 4096..][..4096] == pattern(4096, number as u64)));
}

#[test]
fn errors_of_the_storage_are_told_as_the_protocol_has_them() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    for replies in REPLIES {
        let mut client = server.client(replies);
        for (linux, told) in [
            (libc::EIO, EIO),
            (libc::EROFS, EPERM),
            (libc::EPERM, EPERM),
            (libc::ENOMEM, 12),
            (libc::EINVAL, EINVAL),
            (libc::EOPNOTSUPP, EINVAL),
            (libc::ENOSPC, ENOSPC),
            (libc::EDQUOT, ENOSPC),
            (libc::EFBIG, ENOSPC),
            (libc::EBADF, EIO),
            // Means something else to clients.
            (libc::ESHUTDOWN, EIO),
            (libc::EOVERFLOW, EIO),
        ] {
            storage.fail(Some(linux));
            for request in [
                Request::read(0, 4096),
                Request::write(0, &[1; 4096]).with(FUA),
                Request::flush(),
                Request::new(TRIM, 0, 4096).with(FUA),
                Request::new(WRITE_ZEROES, 0, 4096),
            ] {
                assert_eq!(client.errno(&request), told, "{replies:?} {linux} {}", request.command);
            }
            storage.fail(None);
            assert_eq!(client.read(0, 4096), [0; 4096]);
        }
    }
}

#[test]
fn some_requests_fail_and_the_others_do_not_notice() {
    const BYTES: usize = 1 << 20;
    let options = SimOptions {
        error_rate: 0.3,
        read_latency: Span::default(),
        write_latency: Span::default(),
        seed: 5,
        ..SimOptions::new(ByteSize(BYTES as u64))
    };
    let server = Server::new(Arc::new(SimStorage::open(&options).unwrap()));
    let mut random = Random(99);
    let mut disk = vec![Some(0_u8); BYTES / 4096];
    for replies in REPLIES {
        let mut client = server.client(replies);
        let mut counts = [[0; 2]; 7];
        for _ in 0..20 {
            let mut places: Vec<_> = (0..disk.len()).collect();
            (1..places.len()).rev().for_each(|last| places.swap(last, random.below(last + 1)));
            let request = |random: &mut Random, place: &usize| {
                let (offset, fill) = (*place as u64 * 4096, random.next() as u8);
                match random.below(4) {
                    0 => Request::write(offset, &[fill; 4096]),
                    1 => Request::new(WRITE_ZEROES, offset, 4096),
                    2 => Request::flush(),
                    _ => Request::read(offset, 4096),
                }
            };
            let requests: Vec<_> = places.iter().map(|place| request(&mut random, place)).collect();
            for ((request, place), reply) in requests.iter().zip(&places).zip(client.exchange(&requests)) {
                assert!([0, EIO].contains(&reply.errno), "{}", reply.errno);
                counts[usize::from(request.command)][usize::from(reply.errno != 0)] += 1;
                match (request.command, reply.errno) {
                    (READ, 0) => {
                        let fill = disk[*place].unwrap_or(reply.data[0]);
                        assert!(reply.data.iter().all(|byte| *byte == fill), "{replies:?}");
                    }
                    (WRITE, 0) => disk[*place] = Some(request.data[0]),
                    (WRITE_ZEROES, 0) => disk[*place] = Some(0),
                    // What was to be written is there or not.
                    (WRITE | WRITE_ZEROES, _) => disk[*place] = None,
                    _ => {}
                }
            }
        }
        for command in [READ, WRITE, super::client::FLUSH, WRITE_ZEROES] {
            assert!(counts[usize::from(command)].iter().all(|count| *count > 20), "{counts:?}");
        }
    }
    assert_eq!((server.export.failure(), server.export.status().sessions.errors), (None, 0));
}

#[test]
fn where_everything_fails_every_request_is_told() {
    let options = SimOptions { error_rate: 1.0, ..SimOptions::new(ByteSize(64 << 20)) };
    let server = Server::new(Arc::new(SimStorage::open(&options).unwrap()));
    for replies in REPLIES {
        let mut client = server.client(replies);
        let requests = [
            Request::read(0, 4096),
            Request::read(0, LONGEST),
            Request::write(0, &[1; 100 * 512]),
            Request::write(0, &[1; 512]).with(FUA),
            Request::flush(),
            Request::new(TRIM, 0, LONGEST),
            Request::new(WRITE_ZEROES, 0, LONGEST),
            // Refused, and nothing that failed.
            Request::read(64 << 20, 512),
        ];
        let errors: Vec<_> = client.exchange(&requests).iter().map(|reply| reply.errno).collect();
        assert_eq!(errors, [EIO, EIO, EIO, EIO, EIO, EIO, EIO, EINVAL], "{replies:?}");
    }
    assert_eq!(server.export.failure(), None);
}
