//! What INIT settles.

use crate::fs::vectors as v;
use device::fs::{Agreement, Dialect, Init, NotSpoken, Offer, TooOld, flags, may_speak, negotiate};

const GUEST: Init = Init { major: 7, minor: 45, max_readahead: 1 << 20, flags: flags::ALL };

fn settle(guest: Init, offer: Offer) -> (Dialect, Vec<u8>) {
    let mut out = Vec::new();
    match negotiate(&guest, &offer, &mut out).unwrap() {
        Agreement::Speak(dialect) => (dialect, out),
        Agreement::AskAgain => panic!("the major version is ours"),
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn the_answer_has_the_kernel_s_layout() {
    let guest = Init { minor: 43, max_readahead: 0x1112_1314, ..GUEST };
    let offer = Offer {
        wants: flags::MAX_PAGES | flags::ASYNC_READ | flags::REQUEST_TIMEOUT,
        max_write: 0x0100_0000,
        max_readahead: u32::MAX,
        max_background: 0x2122,
        congestion_threshold: 0x2324,
        time_granularity_ns: 0x31,
        request_timeout_s: 0x4142,
        map_alignment: 0x5152,
    };
    let (dialect, out) = settle(guest, offer);
    assert_eq!(out, v::INIT_OUT);
    let agreed = flags::INIT_EXT | flags::MAX_PAGES | flags::ASYNC_READ | flags::REQUEST_TIMEOUT;
    assert_eq!(dialect, Dialect { minor: 43, flags: agreed });
    assert!(dialect.has(flags::MAX_PAGES | flags::INIT_EXT) && !dialect.has(flags::MAX_PAGES | flags::POSIX_LOCKS));
}

#[test]
fn the_older_minor_version_is_spoken() {
    for (theirs, spoken) in [(31, 31), (38, 38), (45, 45), (46, 45), (u32::MAX, 45)] {
        let (dialect, out) = settle(Init { minor: theirs, ..GUEST }, Offer::default());
        assert_eq!((dialect.minor, le32(&out, 0), le32(&out, 4)), (spoken, 7, spoken));
    }
}

#[test]
fn old_guests_are_refused_and_newer_ones_asked_again() {
    for (major, minor) in [(7, 30), (6, 45), (0, 0)] {
        let mut out = Vec::new();
        let refused = negotiate(&Init { major, minor, ..GUEST }, &Offer::default(), &mut out);
        assert_eq!(refused, Err(TooOld { major, minor }));
        assert_eq!((refused.unwrap_err().errno(), out.len()), (71, 0));
    }
    for major in [8, u32::MAX] {
        let mut out = Vec::new();
        let newer = negotiate(&Init { major, minor: 0, ..GUEST }, &Offer::default(), &mut out);
        assert_eq!(newer, Ok(Agreement::AskAgain));
        assert_eq!((out.len(), le32(&out, 0), le32(&out, 4)), (64, 7, 45));
    }
}

#[test]
fn only_what_both_sides_know_is_granted() {
    let wants = flags::ALL & !flags::EXPLICIT_INVAL_DATA;
    let granted = settle(GUEST, Offer { wants: wants | 1 << 63 | flags::INIT_RESERVED, ..Offer::default() }).0.flags;
    assert_eq!(granted, wants & !flags::NEVER);
    for bit in 0..43 {
        let known = Init { flags: 1 << bit | flags::INIT_EXT, ..GUEST };
        let granted = settle(known, Offer { wants, ..Offer::default() }).0.flags;
        let alone = 1 << bit & !flags::NEVER & !flags::EXPLICIT_INVAL_DATA & !flags::READDIRPLUS_AUTO;
        assert_eq!(granted, alone | flags::INIT_EXT, "bit {bit}");
        let wanted = settle(GUEST, Offer { wants: 1 << bit, ..Offer::default() }).0.flags;
        assert_eq!(wanted & !flags::INIT_EXT & !flags::EXPLICIT_INVAL_DATA, alone & !flags::INIT_EXT, "bit {bit}");
    }
}

#[test]
fn the_upper_flags_need_the_long_form() {
    let upper = flags::SECURITY_CTX | flags::ALLOW_IDMAP;
    let offer = Offer { wants: upper | flags::POSIX_LOCKS, ..Offer::default() };
    assert_eq!(settle(GUEST, offer).0.flags, upper | flags::POSIX_LOCKS | flags::INIT_EXT);
    let short = settle(Init { flags: GUEST.flags & !flags::INIT_EXT, ..GUEST }, offer);
    assert_eq!((short.0.flags, le32(&short.1, 32)), (flags::POSIX_LOCKS, 0));
}

#[test]
fn flags_that_need_or_exclude_each_other() {
    let only_auto = Init { flags: flags::READDIRPLUS_AUTO, ..GUEST };
    let all = Offer { wants: flags::ALL, ..Offer::default() };
    assert_eq!(settle(only_auto, all).0.flags, 0);
    let granted = settle(GUEST, all).0;
    assert!(granted.has(flags::EXPLICIT_INVAL_DATA) && !granted.has(flags::AUTO_INVAL_DATA));
}

#[test]
fn sizes_are_bounded_by_both_sides() {
    let readahead = |guest, ours| {
        let guest = Init { max_readahead: guest, ..GUEST };
        le32(&settle(guest, Offer { max_readahead: ours, ..Offer::default() }).1, 8)
    };
    assert_eq!([readahead(5, 6), readahead(6, 5)], [5, 5]);
    let pages = |max_write, wants| {
        let out = settle(GUEST, Offer { max_write, wants, ..Offer::default() }).1;
        (le32(&out, 20), u16::from_le_bytes([out[28], out[29]]))
    };
    assert_eq!(pages(1 << 20, flags::MAX_PAGES), (1 << 20, 256));
    assert_eq!(pages(0, flags::MAX_PAGES), (4096, 1));
    assert_eq!(pages(u32::MAX, flags::MAX_PAGES), (u32::MAX, u16::MAX));
    assert_eq!(pages(1 << 20, 0), (1 << 20, 0), "the field means nothing without its flag");
    let timeout = settle(GUEST, Offer { request_timeout_s: 9, ..Offer::default() }).1;
    assert_eq!(timeout[40..42], [0, 0], "the field means nothing without its flag");
}

#[test]
fn before_init_the_oldest_dialect_holds() {
    assert_eq!(Dialect::default(), Dialect { minor: 31, flags: 0 });
}

/// Whatever an INIT settles is spoken by a server of the same offer, and what it does not offer is not.
#[test]
fn what_was_agreed_on_elsewhere_is_compared_with_the_offer() {
    for wants in [0, flags::ALL, flags::POSIX_LOCKS | flags::SECURITY_CTX, flags::EXPLICIT_INVAL_DATA] {
        let offer = Offer { wants, ..Offer::default() };
        assert_eq!(may_speak(settle(GUEST, offer).0, &offer), Ok(()));
    }
    let offer = Offer { wants: flags::POSIX_LOCKS, ..Offer::default() };
    let agreed = |minor, flags| may_speak(Dialect { minor, flags }, &offer);
    assert_eq!(agreed(31, flags::POSIX_LOCKS | flags::FLOCK_LOCKS), Err(NotSpoken::Flags(flags::FLOCK_LOCKS)));
    assert_eq!(agreed(45, u64::MAX), Err(NotSpoken::Flags(!(flags::POSIX_LOCKS | flags::INIT_EXT))));
    assert_eq!([agreed(30, 0), agreed(46, 0)], [Err(NotSpoken::Minor(30)), Err(NotSpoken::Minor(46))]);
}

/// The last two bytes of the word with the most pages (fuse.h, `fuse_init_out`).
#[test]
fn a_guest_that_maps_files_is_told_how() {
    let offer = |wants| Offer { wants, map_alignment: 21, ..Offer::default() };
    let alignment = |wants| settle(GUEST, offer(wants)).1[30..32].to_vec();
    assert_eq!(alignment(flags::MAP_ALIGNMENT), [21, 0]);
    assert_eq!(alignment(flags::MAX_PAGES), [0, 0]);
}
