//! Requests that are refused, each for its own reason.

use crate::p9::decode;
use crate::p9::examples::{self, TAG, named};
use crate::p9::message::{Message, resized, with};
use device::p9::Dialect::{L, U, Unknown};
use device::p9::{Dialect, Malformed, REQUEST_BYTES_MAX, Reason, bytes_wanted};

fn reason(bytes: &[u8], dialect: Dialect) -> Option<Reason> {
    decode(bytes, dialect).err().map(|malformed| malformed.reason)
}

#[test]
fn a_request_needs_a_header() {
    let read = named("Tread").bytes;
    for len in 0..7 {
        let short = Malformed { header: None, reason: Reason::TooShort };
        assert_eq!(bytes_wanted(&read[..len]), Err(short));
        assert_eq!(device::p9::decode(&read[..len], 23, L), Err(short));
        assert_eq!((short.tag(), short.errno()), (None, 22));
        let lying = with(&read, 0, &[u8::try_from(len).unwrap(), 0, 0, 0]);
        assert_eq!(reason(&lying, L), Some(Reason::TooShort));
        let malformed = device::p9::decode(&lying, 23, L).unwrap_err();
        assert_eq!((malformed.reason, malformed.tag()), (Reason::TooShort, Some(TAG)));
    }
}

/// What is cut off never reads as a whole request, however little is missing: neither when the header says so nor when it lies.
#[test]
fn every_message_cut_off_at_every_length() {
    for example in examples::all() {
        for len in 7..example.bytes.len() {
            // Fields that older clients do not send.
            let still_valid = match example.name {
                "Tfsync" => len == 11,
                "Tauth" | "Tattach" => len == example.bytes.len() - 4,
                _ => false,
            };
            let cut = resized(&example.bytes, len);
            let outcome = decode(&cut, example.dialect);
            assert_eq!(outcome.is_ok(), still_valid, "{} cut off at {len}: {outcome:?}", example.name);
            let lying = device::p9::decode(&example.bytes[..len], len as u64, example.dialect).unwrap_err();
            assert_eq!(lying.reason, Reason::BeyondChain, "{} cut off at {len}", example.name);
            // The caller brought less than was wanted.
            if example.name != "Twrite" || len < 23 {
                let whole = example.bytes.len() as u64;
                assert!(device::p9::decode(&example.bytes[..len], whole, example.dialect).is_err());
            }
        }
    }
}

#[test]
fn nothing_may_follow_the_last_field() {
    for example in examples::all() {
        let longer = resized(&example.bytes, example.bytes.len() + 4);
        let expected = match example.name {
            // There was room for one more.
            "Tattach_short" | "Tfsync_short" => None,
            "Twrite" => Some(Reason::BadCount),
            "Twstat" => Some(Reason::BadStat),
            _ => Some(Reason::TrailingBytes),
        };
        assert_eq!(reason(&longer, example.dialect), expected, "{}", example.name);
    }
}

#[test]
fn a_version_comes_first() {
    for example in examples::all() {
        let expected = (example.name != "Tversion").then_some(Reason::NoVersion);
        assert_eq!(reason(&example.bytes, Unknown), expected, "{}", example.name);
    }
    assert_eq!(reason(&Message::new(200, TAG).finish(), Unknown), Some(Reason::NoVersion));
    assert_eq!(Reason::NoVersion.errno(), 71);
}

#[test]
fn messages_have_a_longest_length() {
    let long = |size: usize| resized(&named("Tclunk").bytes, size);
    assert_eq!(bytes_wanted(&long(REQUEST_BYTES_MAX)), Ok(REQUEST_BYTES_MAX));
    assert_eq!(reason(&long(REQUEST_BYTES_MAX), L), Some(Reason::TrailingBytes));
    assert_eq!(reason(&long(REQUEST_BYTES_MAX + 1), L), Some(Reason::TooLong));
    let front = device::p9::decode(&long(REQUEST_BYTES_MAX + 1)[..100], 1 << 20, L).unwrap_err();
    assert_eq!((front.reason, front.errno()), (Reason::TooLong, 7));
}

#[test]
fn strings_are_short_enough_and_have_no_nul() {
    let symlink =
        |name: usize, target: usize| Message::new(16, TAG).d(1).s("n".repeat(name)).s("t".repeat(target)).d(0).finish();
    assert_eq!(reason(&symlink(255, 4095), L), None);
    assert_eq!(reason(&symlink(256, 4095), L), Some(Reason::NameTooLong));
    assert_eq!(reason(&symlink(255, 4096), L), Some(Reason::NameTooLong));
    assert_eq!(Reason::NameTooLong.errno(), 36);
    let attach = |aname: &str| Message::new(104, TAG).d(1).d(2).s("").s(aname).finish();
    assert_eq!(reason(&attach(&"/a".repeat(2047)), L), None);
    assert_eq!(reason(&attach(&"/a".repeat(2048)), L), Some(Reason::NameTooLong));
    for nul in ["\0", "a\0", "\0a"] {
        assert_eq!(reason(&attach(nul), L), Some(Reason::NulInString));
    }

    let xattr = |name: usize| Message::new(30, TAG).d(1).d(2).s("n".repeat(name)).finish();
    assert_eq!(reason(&xattr(255), L), None);
    assert_eq!(reason(&xattr(256), L), Some(Reason::XattrNameTooLong));
    assert_eq!(Reason::XattrNameTooLong.errno(), 34);
    let value = |size: u64| Message::new(32, TAG).d(1).s("user.a").q(size).d(0).finish();
    assert_eq!(reason(&value(65536), L), None);
    for size in [65537, 1 << 32, u64::MAX] {
        assert_eq!(reason(&value(size), L), Some(Reason::XattrValueTooLong));
    }
    assert_eq!(Reason::XattrValueTooLong.errno(), 7);
}

/// Of every string of every message, whose length is changed to any that does not fit.
#[test]
fn a_string_that_claims_more_than_there_is() {
    for (name, at) in [("Tversion", 11), ("Twalk", 17), ("Tlcreate", 11), ("Tlock", 36), ("Tmkdir", 11), ("Twstat", 54)]
    {
        let example = named(name);
        for len in [u16::MAX, 32768, u16::try_from(example.bytes.len()).unwrap()] {
            let lying = with(&example.bytes, at, &len.to_le_bytes());
            assert_eq!(reason(&lying, example.dialect), Some(Reason::TooShort), "{name}, {len}");
        }
    }
}

#[test]
fn a_walk_has_at_most_16_names() {
    let walk = |count: u16, names: u16| {
        let message = Message::new(110, TAG).d(1).d(2).w(count);
        (0..names).fold(message, |message, _| message.s("a")).finish()
    };
    assert_eq!(reason(&walk(16, 16), L), None);
    assert_eq!(reason(&walk(17, 17), L), Some(Reason::TooManyNames));
    assert_eq!(reason(&walk(u16::MAX, 0), L), Some(Reason::TooManyNames));
    assert_eq!(reason(&walk(16, 15), L), Some(Reason::TooShort));
    assert_eq!(reason(&walk(15, 16), L), Some(Reason::TrailingBytes));
}

#[test]
fn a_write_s_count_is_that_of_its_data() {
    let write = |count: u32, data: usize| Message::new(118, TAG).d(1).q(0).d(count).raw(&vec![7; data]).finish();
    assert_eq!(reason(&write(0, 0), L), None);
    assert_eq!(reason(&write(512, 512), L), None);
    for (count, data) in [(512, 511), (512, 513), (0, 1), (1, 0), (u32::MAX, 0), (u32::MAX, 22)] {
        assert_eq!(reason(&write(count, data), L), Some(Reason::BadCount), "{count} of {data}");
    }
}

#[test]
fn offsets_are_those_of_files() {
    let past = (1_u64 << 63).to_le_bytes();
    for (name, at) in [("Tread", 11), ("Twrite", 11), ("Tsetattr", 27)] {
        assert_eq!(reason(&with(&named(name).bytes, at, &past), L), Some(Reason::BadOffset), "{name}");
    }
}

#[test]
fn times_have_less_than_a_second_of_nanoseconds() {
    for nanoseconds in [1_000_000_000, (1 << 30) - 1, u64::MAX, 1 << 32] {
        for at in [43, 59] {
            let changed = with(&named("Tsetattr").bytes, at, &nanoseconds.to_le_bytes());
            assert_eq!(reason(&changed, L), Some(Reason::BadTime), "{nanoseconds} at {at}");
        }
    }
}

#[test]
fn locks_are_of_a_known_type_and_of_a_file_s_bytes() {
    let lock = |kind: u8, start: u64, length: u64| {
        let asked = Message::new(54, TAG).d(1).b(kind).q(start).q(length).d(1).s("c").finish();
        let set = Message::new(52, TAG).d(1).b(kind).d(0).q(start).q(length).d(1).s("c").finish();
        assert_eq!(reason(&asked, L), reason(&set, L));
        reason(&set, L)
    };
    let last = i64::MAX as u64;
    for kind in 0..3 {
        for (start, length) in [(0, 0), (last, 0), (last, 1), (0, last + 1), (1, last)] {
            assert_eq!(lock(kind, start, length), None, "{start}, {length}");
        }
        for (start, length) in [(last + 1, 0), (last, 2), (1, last + 1), (u64::MAX, u64::MAX), (0, u64::MAX)] {
            assert_eq!(lock(kind, start, length), Some(Reason::BadLock), "{start}, {length}");
        }
    }
    assert_eq!(lock(3, 0, 0), Some(Reason::BadLock));
    assert_eq!(lock(u8::MAX, 0, 0), Some(Reason::BadLock));
}

#[test]
fn the_two_sizes_of_attributes_agree() {
    let whole = named("Twstat").bytes;
    let size = u16::try_from(whole.len() - 15).unwrap();
    assert_eq!(whole[11..15], [(size + 2).to_le_bytes(), size.to_le_bytes()].concat());
    for wrong in [0, 1, size - 1, size + 1, u16::MAX - 1, u16::MAX] {
        assert_eq!(reason(&with(&whole, 13, &wrong.to_le_bytes()), U), Some(Reason::BadStat));
        let outer = wrong.wrapping_add(2).to_le_bytes();
        assert_eq!(reason(&with(&whole, 11, &outer), U), Some(Reason::BadStat));
        let both = [outer, wrong.to_le_bytes()].concat();
        assert_eq!(reason(&with(&whole, 11, &both), U), Some(Reason::BadStat));
    }
}

#[test]
fn reasons_are_counted_by_their_place_and_say_what_is_wrong() {
    for (place, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, place);
        let text = Malformed { header: None, reason }.to_string();
        assert!(!text.is_empty() && !text.ends_with('.') && text.lines().count() == 1, "{text:?}");
        assert!((1..134).contains(&reason.errno()));
    }
}
