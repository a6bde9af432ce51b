//! Any bytes, any fields.

use crate::p9::decode;
use crate::p9::examples::{self, TAG};
use crate::p9::message::Message;
use device::p9::{Dialect, LockKind, LockRequest, Request, Stat, WRITE_HEAD_BYTES, stat_out};
use proptest::collection::vec;
use proptest::prelude::*;

fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::L), Just(Dialect::U), Just(Dialect::Unknown)]
}

/// A string without NUL.
fn string(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(1..=u8::MAX, 0..=max)
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_refused(bytes in vec(any::<u8>(), 0..400), dialect in dialect()) {
        let _ = decode(&bytes, dialect);
    }

    /// A known request with some of its bytes changed: decoders are reached that random bytes seldom find.
    #[test]
    fn damaged_requests_are_requests_or_refused(
        which: prop::sample::Index,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        other in proptest::option::of(dialect()),
    ) {
        let examples = examples::all();
        let example = which.get(&examples);
        let mut bytes = example.bytes.clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok((header, Request::Write { count, .. })) = decode(&bytes, other.unwrap_or(example.dialect)) {
            prop_assert!(WRITE_HEAD_BYTES + count as usize <= bytes.len());
            prop_assert!(header.size as usize <= bytes.len());
        }
    }

    #[test]
    fn walks_read_as_they_were_written(fid: u32, newfid: u32, names in vec(string(255), 0..=16)) {
        let message = Message::new(110, TAG).d(fid).d(newfid).w(u16::try_from(names.len()).unwrap());
        let bytes = names.iter().fold(message, Message::s).finish();
        let (_, request) = decode(&bytes, Dialect::L).unwrap();
        let Request::Walk { fid: from, newfid: to, names: read } = request else {
            return Err(TestCaseError::fail(format!("{request:?}")));
        };
        prop_assert_eq!((from, to, read.len()), (fid, newfid, names.len()));
        prop_assert!(read.iter().eq(names.iter().map(Vec::as_slice)));
    }

    #[test]
    fn locks_read_as_they_were_written(
        fid: u32,
        kind in 0..3_u8,
        flags: u32,
        start in 0..1_u64 << 62,
        length in 0..1_u64 << 62,
        proc_id: u32,
        client in string(255),
    ) {
        let message = Message::new(52, TAG).d(fid).b(kind).d(flags).q(start).q(length).d(proc_id);
        let bytes = message.s(&client).finish();
        let kind = [LockKind::Read, LockKind::Write, LockKind::Unlock][usize::from(kind)];
        let lock = LockRequest { fid, kind, flags, start, length, proc_id, client_id: &client };
        prop_assert_eq!(decode(&bytes, Dialect::L).unwrap().1, Request::Lock(lock));
        prop_assert!(lock.end() >= start && lock.end() <= i64::MAX as u64);
    }

    /// What an `Rstat` says can be sent back as a `Twstat`.
    #[test]
    fn attributes_read_as_they_were_written(
        (kind, dev, mode) in any::<(u16, u32, u32)>(),
        (atime, mtime, length) in any::<(u32, u32, u64)>(),
        names in prop::array::uniform4(string(255)),
        extension in string(4095),
        (n_uid, n_gid, n_muid) in any::<(u32, u32, u32)>(),
    ) {
        let [name, uid, gid, muid] = &names;
        let stat = Stat {
            kind, dev, mode, atime, mtime, length, name, uid, gid, muid, extension: &extension, n_uid, n_gid, n_muid,
            ..Stat::UNTOUCHED
        };
        let mut sized = Vec::new();
        stat_out(&mut sized, &stat);
        let bytes = Message::new(126, TAG).d(7).raw(&sized).finish();
        prop_assert_eq!(decode(&bytes, Dialect::U).unwrap().1, Request::WriteStat { fid: 7, stat });
    }

    #[test]
    #[cfg(feature = "fuzzing")]
    fn the_fuzz_body_takes_anything(bytes in vec(any::<u8>(), 0..300)) {
        device::fuzzing::p9_request(&bytes);
    }
}

/// The fuzzer starts from one request of each kind.
#[test]
#[cfg(feature = "fuzzing")]
fn the_seeds_are_the_examples() {
    let seeds: Vec<(&str, Vec<u8>)> = examples::all()
        .into_iter()
        .map(|example| {
            let dialect = match example.dialect {
                Dialect::Unknown => 0,
                Dialect::L => 1,
                Dialect::U => 2,
            };
            (example.name, [&[0x80 | dialect], &example.bytes[..]].concat())
        })
        .collect();
    crate::seeds::hold("p9_request", &seeds, device::fuzzing::p9_request);
}

#[test]
#[cfg(feature = "fuzzing")]
fn noise_holds() {
    crate::seeds::noise(5000, 300, |input| device::fuzzing::p9_request(&input));
}
