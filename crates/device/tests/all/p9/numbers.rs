//! The protocol's numbers, typed once more from the specifications' tables.

use device::p9::{Dialect, Kind, error_kind, reply_kind};

/// Requests with their numbers; a reply has the next one.
const KINDS: [(&str, u8); 32] = [
    ("Tstatfs", 8),
    ("Tlopen", 12),
    ("Tlcreate", 14),
    ("Tsymlink", 16),
    ("Tmknod", 18),
    ("Trename", 20),
    ("Treadlink", 22),
    ("Tgetattr", 24),
    ("Tsetattr", 26),
    ("Txattrwalk", 30),
    ("Txattrcreate", 32),
    ("Treaddir", 40),
    ("Tfsync", 50),
    ("Tlock", 52),
    ("Tgetlock", 54),
    ("Tlink", 70),
    ("Tmkdir", 72),
    ("Trenameat", 74),
    ("Tunlinkat", 76),
    ("Tversion", 100),
    ("Tauth", 102),
    ("Tattach", 104),
    ("Tflush", 108),
    ("Twalk", 110),
    ("Topen", 112),
    ("Tcreate", 114),
    ("Tread", 116),
    ("Twrite", 118),
    ("Tclunk", 120),
    ("Tremove", 122),
    ("Tstat", 124),
    ("Twstat", 126),
];

#[test]
fn messages_have_the_specification_s_numbers_and_names() {
    let ours: Vec<(&str, u8)> = Kind::ALL.iter().map(|kind| (kind.name(), *kind as u8)).collect();
    assert_eq!(ours, KINDS);
    for number in 0..=u8::MAX {
        let known = KINDS.iter().any(|(_, theirs)| *theirs == number);
        assert_eq!(Kind::from_raw(number).map(Kind::number), known.then_some(usize::from(number)));
    }
    assert!(Kind::ALL.iter().all(|kind| kind.number() < Kind::NUMBERS));
}

#[test]
fn every_dialect_has_its_messages() {
    let count = |dialect| Kind::ALL.iter().filter(|kind| kind.is_spoken_in(dialect)).count();
    assert_eq!((count(Dialect::Unknown), count(Dialect::L), count(Dialect::U)), (1, 28, 13));
    // What 9P2000.u has beside the messages of both.
    let of_u: Vec<_> = Kind::ALL.iter().filter(|kind| !kind.is_spoken_in(Dialect::L)).map(|kind| kind.name()).collect();
    assert_eq!(of_u, ["Topen", "Tcreate", "Tstat", "Twstat"]);
}

#[test]
fn a_reply_s_type_is_the_next_one_and_an_error_s_is_the_dialect_s() {
    assert_eq!([100, 8, 126, 255].map(reply_kind), [101, 9, 127, 0]);
    assert_eq!([Dialect::L, Dialect::U, Dialect::Unknown].map(error_kind), [7, 107, 107]);
}
