//! Copies between segments and bytes, against the same work on one flat buffer.

use std::ptr::NonNull;

use crate::common::memory;
use proptest::collection::vec;
use proptest::prelude::*;
use vring::copy::{read_at, trim_front, truncate, write_at};
use vring::{Memory, Segment};

const LEN: u64 = 4096;

/// Segments of these lengths, one gap of 3 bytes between each two, filled with counting bytes.
fn segments(table: &Memory, lengths: &[usize]) -> Vec<Segment> {
    let mut at = 0;
    let mut count = 0_u8;
    let mut list = Vec::new();
    for &len in lengths {
        let (ptr, found) = table.translate(at, len as u64, &mut 0).unwrap();
        assert_eq!(found, len as u64);
        for i in 0..len {
            // SAFETY: `translate` found `len` bytes.
            unsafe { ptr.as_ptr().add(i).write(count) };
            count = count.wrapping_add(1);
        }
        // SAFETY: the bytes live as long as the table, which outlives the list in every test.
        list.push(unsafe { Segment::from_raw_parts(ptr, len) });
        at += len as u64 + 3;
    }
    list
}

/// What the segments hold, byte by byte.
fn flat(list: &[Segment]) -> Vec<u8> {
    let bytes = |segment: &Segment| {
        let ptr = segment.ptr();
        // SAFETY: the segment's own bytes.
        (0..segment.len()).map(move |i| unsafe { ptr.add(i).read() }).collect::<Vec<u8>>()
    };
    list.iter().flat_map(bytes).collect()
}

proptest! {
    #[test]
    fn copies_match_a_flat_buffer(
        lengths in vec(1_usize..60, 0..12),
        offset in prop_oneof![4 => 0_u64..500, 1 => any::<u64>()],
        data in vec(any::<u8>(), 0..500),
    ) {
        let table = memory(&[(0, LEN)]);
        let list = segments(&table, &lengths);
        let mut model = flat(&list);
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(model.len());
        let expected = data.len().min(model.len() - start);

        let mut out = vec![0xaa; data.len()];
        prop_assert_eq!(read_at(&list, offset, &mut out), expected);
        prop_assert_eq!(&out[..expected], &model[start..start + expected]);
        prop_assert!(out[expected..].iter().all(|&byte| byte == 0xaa));

        prop_assert_eq!(write_at(&list, offset, &data), expected);
        model[start..start + expected].copy_from_slice(&data[..expected]);
        prop_assert_eq!(flat(&list), model);
    }

    #[test]
    fn cuts_match_a_flat_buffer(
        lengths in vec(1_usize..60, 0..12),
        bytes in prop_oneof![4 => 0_u64..500, 1 => any::<u64>()],
    ) {
        let table = memory(&[(0, LEN)]);
        let list = segments(&table, &lengths);
        let model = flat(&list);
        let at = usize::try_from(bytes).unwrap_or(usize::MAX).min(model.len());

        let mut back = list.clone();
        trim_front(&mut back, bytes);
        prop_assert_eq!(flat(&back), &model[at..]);
        let mut front = list.clone();
        truncate(&mut front, bytes);
        prop_assert_eq!(flat(&front), &model[..at]);
        prop_assert!(back.iter().chain(&front).all(|segment| segment.len() > 0));
    }
}

#[test]
fn nothing_beside_the_segments_is_written() {
    let table = memory(&[(0, LEN)]);
    let list = segments(&table, &[5, 5, 5]);
    assert_eq!(write_at(&list, 0, &[0xee; 100]), 15);
    for gap in [5, 13, 21] {
        assert_eq!(crate::common::get(&table, gap, 3), [0, 0, 0]);
    }
}

#[test]
fn iovecs_are_the_segments() {
    let table = memory(&[(0, LEN)]);
    let list = segments(&table, &[5, 7]);
    let iovecs = Segment::as_iovecs(&list);
    assert_eq!(iovecs.len(), 2);
    for (iovec, segment) in iovecs.iter().zip(&list) {
        assert_eq!((iovec.iov_base.cast::<u8>(), iovec.iov_len), (segment.ptr(), segment.len()));
    }
    assert!(Segment::as_iovecs(&[]).is_empty());
}

#[test]
fn empty_segments_of_a_caller_do_no_harm() {
    let table = memory(&[(0, LEN)]);
    let mut list = segments(&table, &[4, 4]);
    // SAFETY: no byte is ever touched.
    list.insert(1, unsafe { Segment::from_raw_parts(NonNull::dangling(), 0) });
    let mut out = [0; 8];
    assert_eq!(read_at(&list, 0, &mut out), 8);
    assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(read_at(&list, 4, &mut out), 4);
    trim_front(&mut list, 4);
    assert_eq!(flat(&list), [4, 5, 6, 7]);
}
