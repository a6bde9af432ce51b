//! Requests of virtio-blk: each rule alone, every boundary, and any bytes.

use device::blk::spec::{request_type, status};
use device::blk::{
    DiscardLimits, Header, Limits, Range, Reason, Request, Status, WriteZeroesLimits, decode_request, serial,
    used_bytes,
};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    capacity_bytes: 100 * 512,
    read_only: false,
    discard: Some(DiscardLimits { max_sectors: 40, max_segments: 3, alignment_bytes: 512 }),
    write_zeroes: Some(WriteZeroesLimits { max_sectors: 50, max_segments: 2, may_unmap: true }),
};

fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0xa5; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

fn payload(segments: &[(u64, u32, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (sector, sectors, flags) in segments {
        out.extend(sector.to_le_bytes());
        out.extend(sectors.to_le_bytes());
        out.extend(flags.to_le_bytes());
    }
    out
}

/// Decodes and reduces a refusal to its reason.
fn data(kind: u32, sector: u64, readable: u64, writable: u64) -> Result<Request<'static>, Reason> {
    decode_request(&header(kind, sector), readable, writable, &[], &LIMITS).map_err(|r| r.reason)
}

fn ranges(kind: u32, segments: &[(u64, u32, u32)]) -> Result<Vec<Range>, (Reason, Status)> {
    let bytes = payload(segments);
    let decoded = decode_request(&header(kind, 0), bytes.len() as u64, 0, &bytes, &LIMITS);
    match decoded {
        Ok(Request::Discard(r)) if kind == request_type::DISCARD => Ok(r.iter().collect()),
        Ok(Request::WriteZeroes(r)) if kind == request_type::WRITE_ZEROES => Ok(r.iter().collect()),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err((refusal.reason, refusal.status)),
    }
}

#[test]
fn reads_and_writes_inside_the_disk() {
    let read = Request::Read { offset: 99 * 512, len: 512 };
    assert_eq!(data(request_type::IN, 99, 0, 512), Ok(read));
    let write = Request::Write { offset: 0, len: 100 * 512 };
    assert_eq!(data(request_type::OUT, 0, 100 * 512, 0), Ok(write));
    let nothing = Request::Read { offset: 100 * 512, len: 0 };
    assert_eq!(data(request_type::IN, 100, 0, 0), Ok(nothing));
}

#[test]
fn reads_and_writes_beyond_the_disk() {
    let cases = [
        (100, 512),
        (99, 1024),
        (0, 101 * 512),
        (101, 0),
        (u64::MAX, 512),
        (u64::MAX / 512, 512),
        (u64::MAX / 512 + 1, 512),
        (1, u64::MAX - 511),
    ];
    for (sector, len) in cases {
        let beyond = Err(Reason::BeyondCapacity);
        assert_eq!(data(request_type::IN, sector, 0, len), beyond);
        assert_eq!(data(request_type::OUT, sector, len, 0), beyond);
    }
}

#[test]
fn partial_sectors_and_wrong_directions() {
    for len in [1, 511, 513, 4095, u64::MAX] {
        assert_eq!(data(request_type::IN, 0, 0, len), Err(Reason::PartialSector));
        assert_eq!(data(request_type::OUT, 0, len, 0), Err(Reason::PartialSector));
    }
    let wrong = Err(Reason::WrongDirection);
    assert_eq!(data(request_type::IN, 0, 512, 512), wrong);
    assert_eq!(data(request_type::IN, 0, 512, 0), wrong);
    assert_eq!(data(request_type::OUT, 0, 512, 512), wrong);
    assert_eq!(data(request_type::FLUSH, 0, 1, 0), wrong);
    assert_eq!(data(request_type::FLUSH, 0, 0, 1), wrong);
    assert_eq!(data(request_type::GET_ID, 0, 1, 20), wrong);
    assert_eq!(data(request_type::DISCARD, 0, 16, 1), wrong);
    assert_eq!(data(request_type::WRITE_ZEROES, 0, 16, 1), wrong);
}

#[test]
fn flush_and_get_id() {
    assert_eq!(data(request_type::FLUSH, 77, 0, 0), Ok(Request::Flush));
    assert_eq!(data(request_type::GET_ID, 0, 0, 20), Ok(Request::GetId));
    assert_eq!(data(request_type::GET_ID, 0, 0, 64), Ok(Request::GetId));
    for short in [0, 19] {
        assert_eq!(data(request_type::GET_ID, 0, 0, short), Err(Reason::ShortIdBuffer));
    }
    assert_eq!(serial("disk-7"), *b"disk-7\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(serial("0123456789abcdefghijKLM"), *b"0123456789abcdefghij");
    assert_eq!(serial(""), [0; 20]);
}

#[test]
fn every_other_type_is_unsupported() {
    let known = [0, 1, 4, 8, 11, 13];
    let odd = [u32::MAX, 1 << 31, 1 << 31 | 1, 0x100];
    for kind in (0..=64).chain(odd).filter(|k| !known.contains(k)) {
        let refusal = decode_request(&header(kind, 0), 512, 0, &[], &LIMITS).unwrap_err();
        assert_eq!(refusal.status, Status::Unsupported);
        assert_eq!(refusal.reason, Reason::UnknownType);
    }
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let limits = Limits { read_only: true, ..LIMITS };
    let bytes = payload(&[(0, 1, 0)]);
    for (kind, len, payload) in [
        (request_type::OUT, 512, &[][..]),
        (request_type::DISCARD, 16, &bytes),
        (request_type::WRITE_ZEROES, 16, &bytes),
    ] {
        let refusal = decode_request(&header(kind, 0), len, 0, payload, &limits).unwrap_err();
        assert_eq!((refusal.status, refusal.reason), (Status::IoError, Reason::ReadOnly));
    }
    let read = decode_request(&header(request_type::IN, 0), 0, 512, &[], &limits);
    assert!(read.is_ok());
    let flush = decode_request(&header(request_type::FLUSH, 0), 0, 0, &[], &limits);
    assert_eq!(flush, Ok(Request::Flush));
}

#[test]
fn ranges_that_are_accepted() {
    let range = |offset, len, unmap| Range { offset, len, unmap };
    assert_eq!(
        ranges(request_type::DISCARD, &[(60, 40, 0), (0, 1, 0), (5, 2, 0)]),
        Ok(vec![range(60 * 512, 40 * 512, false), range(0, 512, false), range(5 * 512, 1024, false)])
    );
    assert_eq!(
        ranges(request_type::WRITE_ZEROES, &[(50, 50, 1), (1, 1, 0)]),
        Ok(vec![range(50 * 512, 50 * 512, true), range(512, 512, false)])
    );
}

#[test]
fn ranges_that_are_refused() {
    use Reason::{BeyondCapacity, EmptySegment, LongSegment, TooManySegments, UnknownFlags};
    let (io, unsupported) = (Status::IoError, Status::Unsupported);
    let discard = |s: &[_]| ranges(request_type::DISCARD, s).unwrap_err();
    let zeroes = |s: &[_]| ranges(request_type::WRITE_ZEROES, s).unwrap_err();
    assert_eq!(discard(&[(0, 0, 0)]), (EmptySegment, io));
    assert_eq!(discard(&[(0, 41, 0)]), (LongSegment, io));
    assert_eq!(zeroes(&[(0, 51, 0)]), (LongSegment, io));
    assert_eq!(zeroes(&[(0, u32::MAX, 0)]), (LongSegment, io));
    assert_eq!(discard(&[(61, 40, 0)]), (BeyondCapacity, io));
    assert_eq!(discard(&[(u64::MAX, 1, 0)]), (BeyondCapacity, io));
    assert_eq!(discard(&[(1, 1, 0), (100, 1, 0)]), (BeyondCapacity, io));
    assert_eq!(discard(&[(0, 1, 1)]), (UnknownFlags, unsupported));
    assert_eq!(zeroes(&[(0, 1, 2)]), (UnknownFlags, unsupported));
    assert_eq!(zeroes(&[(0, 1, 1), (0, 1, 1 << 31)]), (UnknownFlags, unsupported));
    assert_eq!(discard(&[(0, 1, 0); 4]), (TooManySegments, io));
    assert_eq!(zeroes(&[(0, 1, 0); 3]), (TooManySegments, io));
}

#[test]
fn payloads_that_are_not_whole() {
    let bytes = payload(&[(0, 1, 0), (0, 1, 0)]);
    let head = header(request_type::DISCARD, 0);
    let decode = |len: u64, payload: &[u8]| decode_request(&head, len, 0, payload, &LIMITS).map_err(|r| r.reason).err();
    for len in (0..32).filter(|l| *l != 16) {
        assert_eq!(decode(len as u64, &bytes[..len]), Some(Reason::BadPayload));
    }
    // The caller's copy is shorter than the chain: nothing is guessed.
    assert_eq!(decode(32, &bytes[..16]), Some(Reason::BadPayload));
    assert_eq!(decode(32, &bytes), None);
    assert_eq!(decode(u64::MAX, &bytes), Some(Reason::TooManySegments));
}

#[test]
fn requests_that_were_not_offered() {
    let limits = Limits { discard: None, write_zeroes: None, ..LIMITS };
    let bytes = payload(&[(0, 1, 0)]);
    for kind in [request_type::DISCARD, request_type::WRITE_ZEROES] {
        let refusal = decode_request(&header(kind, 0), 16, 0, &bytes, &limits).unwrap_err();
        assert_eq!(refusal.reason, Reason::UnknownType);
        assert_eq!(refusal.status.byte(), status::UNSUPP);
    }
}

#[test]
fn payload_copies_are_bounded() {
    let bytes = |kind, len| Header::decode(&header(kind, 0)).payload_bytes(len);
    assert_eq!(bytes(request_type::DISCARD, 48), 48);
    assert_eq!(bytes(request_type::WRITE_ZEROES, u64::MAX), 4096);
    assert_eq!(bytes(request_type::OUT, 48), 0);
    assert_eq!(bytes(99, 48), 0);
}

#[test]
fn the_used_length_has_no_gap() {
    assert_eq!(used_bytes(4096, 4096), 4097, "a read and its status");
    assert_eq!(used_bytes(4096, 0), 0, "a failed read");
    assert_eq!(used_bytes(0, 0), 1, "a write, whatever its status");
    assert_eq!(used_bytes(64, 20), 20, "a serial number in a long buffer");
    assert_eq!(used_bytes(u64::MAX, u64::MAX), u32::MAX);
}

#[test]
fn reasons_index_their_counters() {
    for (index, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
    }
}

fn inside(offset: u64, len: u64, limits: &Limits) -> bool {
    offset.is_multiple_of(512)
        && len.is_multiple_of(512)
        && offset.checked_add(len).is_some_and(|end| end <= limits.capacity_bytes)
}

/// Whether a request that was accepted may be carried out on this disk.
fn legal(request: &Request<'_>, limits: &Limits) -> bool {
    match request {
        Request::Read { offset, len } => inside(*offset, *len, limits),
        Request::Write { offset, len } => !limits.read_only && inside(*offset, *len, limits),
        Request::Flush | Request::GetId => true,
        Request::Discard(ranges) => {
            let max = limits.discard.unwrap();
            !limits.read_only
                && ranges.len() <= max.max_segments as usize
                && ranges.iter().all(|r| {
                    !r.unmap
                        && r.len > 0
                        && r.len <= u64::from(max.max_sectors) * 512
                        && inside(r.offset, r.len, limits)
                })
        }
        Request::WriteZeroes(ranges) => {
            let max = limits.write_zeroes.unwrap();
            !limits.read_only
                && ranges.len() <= max.max_segments as usize
                && (0..ranges.len()).all(|i| {
                    let r = ranges.get(i).unwrap();
                    r.len > 0 && r.len <= u64::from(max.max_sectors) * 512 && inside(r.offset, r.len, limits)
                })
        }
    }
}

/// Mostly the known types and small numbers, so that half of the requests pass; sometimes anything.
fn kinds() -> impl Strategy<Value = u32> {
    prop_oneof![8 => proptest::sample::select(vec![0u32, 1, 4, 8, 11, 13]), 1 => any::<u32>()]
}

fn sectors() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..110, 1 => any::<u64>(), 1 => Just(u64::MAX / 512)]
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0u64), 8 => (0u64..110).prop_map(|s| s * 512), 1 => any::<u64>()]
}

fn segments() -> impl Strategy<Value = Vec<(u64, u32, u32)>> {
    let sectors_in_segment = prop_oneof![8 => 0u32..55, 1 => any::<u32>()];
    let flags = prop_oneof![8 => 0u32..2, 1 => any::<u32>()];
    proptest::collection::vec((sectors(), sectors_in_segment, flags), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn what_is_accepted_lies_inside(
        kind in kinds(), sector in sectors(), readable in lengths(), writable in lengths(),
        segments in segments(), read_only in any::<bool>(), own_length in any::<bool>(),
    ) {
        let limits = Limits { read_only, ..LIMITS };
        let bytes = payload(&segments);
        let is_range = matches!(kind, 11 | 13);
        let (readable, writable) = match own_length && is_range {
            true => (bytes.len() as u64, 0),
            false => (readable, writable),
        };
        let result = decode_request(&header(kind, sector), readable, writable, &bytes, &limits);
        if let Ok(request) = result {
            prop_assert!(legal(&request, &limits), "{:?}", request);
        }
    }

    #[test]
    fn nothing_legal_is_refused(sector in 0u64..=100, sectors in 0u64..=100) {
        let accepted = data(request_type::IN, sector, 0, sectors * 512).is_ok();
        prop_assert_eq!(accepted, sector + sectors <= 100);
        let accepted = data(request_type::OUT, sector, sectors * 512, 0).is_ok();
        prop_assert_eq!(accepted, sector + sectors <= 100);
    }

    #[test]
    fn any_bytes_decode(head in any::<[u8; 16]>(), readable: u64, writable: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(request) = decode_request(&head, readable, writable, &bytes, &LIMITS) {
            prop_assert!(legal(&request, &LIMITS));
        }
    }
}

#[cfg(feature = "fuzzing")]
proptest! {
    #[test]
    fn the_fuzz_body_takes_anything(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        device::fuzzing::blk_request(&bytes);
    }
}
