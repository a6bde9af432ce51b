use super::*;
use proptest::prelude::*;

/// The pieces that a vector has.
fn ranges(set: &[bool], granularity: u32, size_bytes: u64) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for (bit, _) in set.iter().enumerate().filter(|(_, set)| **set) {
        let (start, end) = ((bit as u64) << granularity, ((bit as u64 + 1) << granularity).min(size_bytes));
        match out.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => out.push(start..end),
        }
    }
    out
}

fn mark(set: &mut [bool], granularity: u32, range: Range<u64>, size_bytes: u64) {
    for byte in (range.start..range.end.min(size_bytes)).step_by(512).chain(range.end.min(size_bytes).checked_sub(1)) {
        if range.contains(&byte) && byte < size_bytes {
            set[(byte >> granularity) as usize] = true;
        }
    }
}

proptest! {
    #[test]
    fn bits_are_those_of_a_vector(
        sectors in 1u64..2000,
        granularity in 9u32..14,
        marks in proptest::collection::vec((0u64..2100, 0u64..300), 0..20),
        grown in 0u64..700,
        looks in proptest::collection::vec((0u64..2100, 0u64..600), 0..20),
    ) {
        let size = sectors * 512;
        let bits = Bits::new(size, granularity);
        let mut set = vec![false; size.div_ceil(1 << granularity) as usize];
        prop_assert_eq!(bits.len(), set.len() as u64);
        for (start, len) in marks {
            let range = start * 512..(start + len) * 512;
            bits.mark(range.clone());
            mark(&mut set, granularity, range, size);
        }
        let expected = ranges(&set, granularity, size);
        let dirty = bits.dirty();
        prop_assert_eq!(dirty.ranges().collect::<Vec<_>>(), expected.clone());
        for (start, len) in looks {
            let look = start * 512..(start + len) * 512;
            let part = |range: &Range<u64>| range.start.max(look.start)..range.end.min(look.end);
            prop_assert_eq!(dirty.first(&look), expected.iter().map(part).find(|part| !part.is_empty()));
        }
        prop_assert_eq!(bits.count(), set.iter().filter(|set| **set).count() as u64);
        // As an image has them, with anything behind their end.
        let image = bits.bytes(0, 1024);
        for (bit, set) in set.iter().enumerate() {
            prop_assert_eq!(image[bit / 8] >> (bit % 8) & 1 == 1, *set);
        }
        let mut more = image.clone();
        if let Some(last) = more.get_mut(set.len() / 8) {
            *last |= !((1u16 << (set.len() % 8)) - 1) as u8;
        }
        more.extend([0xff; 100]);
        let again = Bits::new(size, granularity);
        again.set_bytes(0, &more[..1024.min(set.len().div_ceil(8))]);
        again.set_bytes(1024, &more[1024..]);
        prop_assert_eq!(again.dirty(), dirty.clone());
        // As another program has them.
        let handed = encode(size, [(&b"a name"[..], &bits), (&b"b"[..], &again)].into_iter());
        let carried = decode(&handed, size).unwrap();
        prop_assert_eq!(carried.iter().map(|one| one.name.clone()).collect::<Vec<_>>(), [b"a name".to_vec(), b"b".to_vec()]);
        prop_assert!(carried.iter().all(|one| one.bits.dirty() == dirty));
        prop_assert!(decode(&handed, size + 512).is_err() && decode(&handed[..handed.len() - 8], size).is_err());
        // Of a larger disk.
        let new_size = size + grown * 512;
        let large = bits.resized(new_size);
        let mut large_set = set.clone();
        large_set.resize(new_size.div_ceil(1 << granularity) as usize, false);
        mark(&mut large_set, granularity, size..new_size, new_size);
        prop_assert_eq!(large.dirty().ranges().collect::<Vec<_>>(), ranges(&large_set, granularity, new_size));
        // Taken and given back.
        let taken = bits.take();
        prop_assert_eq!(bits.count(), 0);
        bits.mark(0..1);
        bits.add(&taken);
        set[0] = true;
        prop_assert_eq!(bits.dirty().ranges().collect::<Vec<_>>(), ranges(&set, granularity, size));
    }

    #[test]
    fn what_is_handed_over_may_be_anything(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..120, with: u8) {
        let _ = decode(&bytes, 1 << 20);
        bytes = encode(1 << 20, [(&b"name"[..], &Bits::new(1 << 20, 16))].into_iter());
        if let Some(byte) = bytes.get_mut(at) {
            *byte = with;
        }
        let _ = decode(&bytes, 1 << 20);
    }
}
