//! Requests that are refused, each for its own reason.

use crate::fs::{FULL, PLAIN, decode, dialect_of, request, vectors as v};
use device::fs::{Dialect, Malformed, Opcode, REQUEST_BYTES_MAX, Reason, Request, bytes_wanted, flags};

fn reason(bytes: &[u8], dialect: Dialect) -> Option<Reason> {
    decode(bytes, dialect).err().map(|malformed| malformed.reason)
}

/// The request with these bytes at `at`.
fn with(vector: &[u8], at: usize, field: &[u8]) -> Vec<u8> {
    let mut bytes = vector.to_vec();
    bytes[at..at + field.len()].copy_from_slice(field);
    bytes
}

/// The request, cut off or made longer, whose header says so.
fn resized(vector: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = vector.to_vec();
    bytes.resize(len, 0);
    with(&bytes, 0, &u32::try_from(len).unwrap().to_le_bytes())
}

#[test]
fn a_request_needs_a_header() {
    for len in 0..40 {
        let short = Malformed { header: None, reason: Reason::TooShort };
        assert_eq!(bytes_wanted(&v::READ[..len]), Err(short));
        assert_eq!(device::fs::decode(&v::READ[..len], 40, FULL), Err(short));
        assert_eq!((short.unique(), short.wants_reply(), short.errno()), (None, false, 22));
        let lying = with(v::READ, 0, &[u8::try_from(len).unwrap(), 0, 0, 0]);
        assert_eq!(reason(&lying, FULL), Some(Reason::TooShort));
        let malformed = device::fs::decode(&lying, 80, FULL).unwrap_err();
        assert_eq!((malformed.reason, malformed.unique()), (Reason::TooShort, Some(0xa1a2_a3a4_a5a6_a7a8)));
    }
}

/// What is cut off never reads as a whole request, however little is missing: neither when the header says so nor when it lies.
#[test]
fn every_operation_cut_off_at_every_length() {
    for vector in v::REQUESTS {
        let dialect = dialect_of(vector);
        let whole = decode(vector, dialect).unwrap().0;
        for len in 40..vector.len() {
            let still_valid = match Opcode::from_raw(whole.opcode).unwrap() {
                // Nothing of them is looked at.
                Opcode::Bmap | Opcode::NotifyReply | Opcode::SyncFs => true,
                // Only versions, or everything but what is reserved; between them, flags2 would be missing.
                Opcode::Init => (48..56).contains(&len) || len >= 60,
                // The name ends there, and no header says that something has to follow.
                Opcode::Create => len == 61 && whole.total_extlen == 0,
                _ => false,
            };
            let cut = resized(vector, len);
            let outcome = decode(&cut, dialect);
            assert_eq!(outcome.is_ok(), still_valid, "{} cut off at {len}: {outcome:?}", whole.opcode);
            let lying = device::fs::decode(&vector[..len], len as u64, dialect).unwrap_err();
            assert_eq!(lying.reason, Reason::BeyondChain);
        }
    }
}

#[test]
fn what_lies_behind_a_request_is_ignored() {
    for vector in v::REQUESTS {
        let longer = [vector, &[0xff; 100][..]].concat();
        let dialect = dialect_of(vector);
        assert_eq!(decode(&longer, dialect), decode(vector, dialect));
    }
}

#[test]
fn long_requests() {
    let forgets = |count: u32| {
        let mut body = vec![0; 8 + count as usize * 16];
        body[..4].copy_from_slice(&count.to_le_bytes());
        request(Opcode::BatchForget, &body)
    };
    let most = u32::try_from((REQUEST_BYTES_MAX - 48) / 16).unwrap();
    assert_eq!(most, 8189);
    assert!(matches!(decode(&forgets(most), PLAIN).unwrap().1, Request::BatchForget(f) if f.len() == most as usize));
    let long = forgets(most + 1);
    assert_eq!(bytes_wanted(&long).map_err(|m| m.reason), Err(Reason::TooLong));
    let copied = device::fs::decode(&long[..REQUEST_BYTES_MAX], long.len() as u64, PLAIN);
    assert_eq!(copied.map_err(|m| (m.reason, m.errno())), Err((Reason::TooLong, 7)));
    // The data of a write is not copied, so it does not count.
    let write = resized(v::WRITE, REQUEST_BYTES_MAX * 4);
    assert_eq!(bytes_wanted(&write), Ok(80));
}

#[test]
fn unknown_operations() {
    for opcode in [0, 7, 19, 54, 4096, u32::MAX] {
        let malformed = decode(&with(v::READ, 4, &opcode.to_le_bytes()), FULL).unwrap_err();
        assert_eq!((malformed.reason, malformed.errno()), (Reason::UnknownOpcode, 38));
        assert!(malformed.wants_reply());
    }
}

#[test]
fn operations_without_a_reply_get_none_when_they_are_malformed() {
    for opcode in Opcode::ALL {
        let silent = matches!(opcode, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply);
        let malformed = decode(&with(&request(*opcode, &[]), 0, &[39]), FULL).unwrap_err();
        assert_eq!(malformed.wants_reply(), !silent, "{opcode:?}");
    }
}

#[test]
fn names_have_an_end_and_a_limit() {
    let lookup = |name: &[u8]| reason(&request(Opcode::Lookup, name), FULL);
    let named = |len: usize| [&vec![b'x'; len][..], b"\0"].concat();
    assert_eq!(lookup(b""), Some(Reason::Unterminated));
    assert_eq!(lookup(b"name"), Some(Reason::Unterminated));
    assert_eq!(lookup(&named(255)), None);
    assert_eq!(lookup(&named(256)), Some(Reason::NameTooLong));
    assert_eq!(lookup(&[b'x'; 256]), Some(Reason::NameTooLong));
    assert_eq!(Reason::NameTooLong.errno(), 36);
    let link =
        |name: usize, target: usize| reason(&request(Opcode::Symlink, &[named(name), named(target)].concat()), FULL);
    assert_eq!(
        [link(255, 4095), link(256, 1), link(1, 4096)],
        [None, Some(Reason::NameTooLong), Some(Reason::NameTooLong)]
    );
    let xattr = |len| reason(&request(Opcode::GetXattr, &[vec![0; 8], named(len)].concat()), FULL);
    assert_eq!([xattr(255), xattr(256)], [None, Some(Reason::XattrNameTooLong)]);
    assert_eq!(Reason::XattrNameTooLong.errno(), 34);
}

#[test]
fn values_have_a_limit() {
    let set = |size: u32, value: usize| {
        let body = [&size.to_le_bytes()[..], &[0; 4], b"user.a\0", &vec![1; value]].concat();
        reason(&request(Opcode::SetXattr, &body), PLAIN)
    };
    assert_eq!(set(65536, 65536), None);
    assert_eq!(set(65537, 65537), Some(Reason::XattrValueTooLong));
    assert_eq!(Reason::XattrValueTooLong.errno(), 7);
    assert_eq!(set(65536, 65535), Some(Reason::BadSize));
}

#[test]
fn sizes_and_counts_lie_inside_the_request() {
    for size in [7u32, u32::MAX] {
        assert_eq!(reason(&with(v::WRITE, 56, &size.to_le_bytes()), FULL), Some(Reason::BadSize));
    }
    for size in [5u32, u32::MAX] {
        assert_eq!(reason(&with(v::IOCTL, 64, &size.to_le_bytes()), FULL), Some(Reason::BadSize));
    }
    for count in [3u32, 1 << 28, u32::MAX] {
        assert_eq!(reason(&with(v::BATCH_FORGET, 40, &count.to_le_bytes()), FULL), Some(Reason::BadSize));
    }
    assert_eq!(reason(&resized(v::WRITE, 79), FULL), Some(Reason::TooShort));
}

/// An offset of -1 would be the file's own position to io_uring.
#[test]
fn offsets_lie_inside_what_files_have() {
    let places = [
        (v::READ, 48),
        (v::WRITE, 48),
        (v::FALLOCATE, 48),
        (v::FALLOCATE, 56),
        (v::COPY_FILE_RANGE, 48),
        (v::COPY_FILE_RANGE_64, 72),
        (v::SETATTR, 56),
    ];
    for (vector, at) in places {
        assert_eq!(reason(&with(vector, at, &i64::MAX.to_le_bytes()), FULL), None);
        for offset in [1 << 63, u64::MAX] {
            assert_eq!(reason(&with(vector, at, &offset.to_le_bytes()), FULL), Some(Reason::BadOffset));
        }
    }
}

/// UTIME_NOW and UTIME_OMIT are nanoseconds to utimensat(2).
#[test]
fn times_have_less_than_a_second_of_nanoseconds() {
    for at in [96, 100, 104] {
        assert_eq!(reason(&with(v::SETATTR, at, &999_999_999u32.to_le_bytes()), FULL), None);
        for nanoseconds in [1_000_000_000u32, 0x3fff_ffff, 0x3fff_fffe, u32::MAX] {
            assert_eq!(reason(&with(v::SETATTR, at, &nanoseconds.to_le_bytes()), FULL), Some(Reason::BadTime));
        }
    }
}

#[test]
fn locks_have_a_type_and_a_range() {
    for vector in [v::GETLK, v::SETLK, v::SETLKW] {
        assert_eq!(reason(&with(vector, 72, &[3]), FULL), Some(Reason::BadLock));
        assert_eq!(reason(&with(vector, 64, &u64::MAX.to_le_bytes()), FULL), Some(Reason::BadLock));
        let backwards = with(&with(vector, 56, &[6, 0, 0, 0, 0, 0, 0, 0]), 64, &[5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reason(&backwards, FULL), Some(Reason::BadLock));
    }
}

/// MKDIR with these extensions, whose length the header says.
fn extended(extensions: &[u8]) -> Vec<u8> {
    let bytes = request(Opcode::Mkdir, &[&[0; 8], &b"name\0"[..], extensions].concat());
    with(&bytes, 36, &u16::try_from(extensions.len() / 8).unwrap().to_le_bytes())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn extensions_are_whole_known_agreed_on_and_there_once() {
    let groups = words(&[16, 32, 1, 5]);
    let labels = words(&[8, 0]);
    let bad = Some(Reason::BadExtension);
    assert_eq!(reason(&extended(&groups), FULL), None);
    assert_eq!(reason(&extended(&labels), FULL), None);
    assert_eq!(reason(&extended(&[groups.clone(), labels.clone()].concat()), FULL), None, "in any order");
    assert_eq!(reason(&extended(&[groups.clone(), groups.clone()].concat()), FULL), bad);
    assert_eq!(reason(&extended(&[labels.clone(), labels.clone()].concat()), FULL), bad);
    for size in [0, 7, 12, 17, 24, u32::MAX] {
        assert_eq!(reason(&extended(&words(&[size, 32, 1, 5])), FULL), bad, "size {size}");
    }
    for kind in [33, u32::MAX] {
        assert_eq!(reason(&extended(&words(&[16, kind, 1, 5])), FULL), bad, "type {kind}");
    }
    let only = |flag| Dialect { minor: 45, flags: flag };
    for dialect in [PLAIN, only(flags::SECURITY_CTX)] {
        assert_eq!(reason(&extended(&groups), dialect), bad);
    }
    for dialect in [PLAIN, only(flags::CREATE_SUPP_GROUP)] {
        assert_eq!(reason(&extended(&labels), dialect), bad);
    }
    // More than there is behind the name.
    assert_eq!(reason(&with(&extended(&groups), 36, &[3, 0]), FULL), bad);
    assert_eq!(reason(&with(&extended(&groups), 36, &[0xff, 0xff]), FULL), bad);
}

#[test]
fn groups_are_counted() {
    let many = |said: u32, there: u32| {
        let size = 12 + there * 4;
        let mut body = words(&[size, 32, said]);
        body.extend(words(&vec![9; there as usize]));
        body.resize(body.len().next_multiple_of(8), 0);
        reason(&extended(&body), FULL)
    };
    for count in 0..=32 {
        assert_eq!(many(count, count), None);
        assert_eq!(many(count, 32), None);
    }
    assert_eq!([many(33, 33), many(u32::MAX, 1)], [Some(Reason::TooManyGroups); 2]);
    assert_eq!(many(2, 1), Some(Reason::BadExtension));
}

#[test]
fn labels_are_counted_and_whole() {
    let label = |size: u32| [&words(&[size, 0])[..], b"a\0", b"value\0"].concat();
    let labels = |count: u32, body: &[u8]| {
        let size = u32::try_from(body.len()).unwrap() + 8;
        let dialect = Dialect { minor: 45, flags: flags::SECURITY_CTX };
        let bytes = extended(&[&words(&[size, count])[..], body].concat());
        decode(&bytes, dialect).map_err(|m| m.reason).map(|(_, request)| match request {
            Request::Mkdir(mkdir) => mkdir.extensions.security.iter().map(|label| label.value.to_vec()).collect(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(labels(1, &label(5)), Ok(vec![b"value".to_vec()]));
    assert_eq!(labels(2, &label(5).repeat(2)), Ok(vec![b"value".to_vec(); 2]));
    assert_eq!(labels(31, &label(5).repeat(31)), Ok(vec![b"value".to_vec(); 31]));
    assert_eq!(labels(1, &label(0)), Ok(vec![vec![]]));
    assert_eq!(labels(0, &[]), Ok(vec![]));
    assert_eq!(labels(2, &label(5)), Err(Reason::BadExtension));
    assert_eq!(labels(1, &label(7)), Err(Reason::BadExtension));
    assert_eq!(labels(1, &label(65537)), Err(Reason::XattrValueTooLong));
    assert_eq!(labels(1, &[&words(&[0, 0])[..], &[b'x'; 264]].concat()), Err(Reason::XattrNameTooLong));
    assert_eq!(labels(1, &[&words(&[0, 0])[..], b"unended."].concat()), Err(Reason::Unterminated));
}

#[test]
fn every_reason_has_its_place() {
    for (place, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, place);
        assert!([7, 22, 34, 36, 38].contains(&reason.errno()));
    }
}
