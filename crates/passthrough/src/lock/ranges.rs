//! Which bytes of a file one owner holds, and how. Pure: the kernel does the locking, this remembers what it granted.

use super::LockKind;

/// Bytes `start..=end`, held one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: u64,
    end: u64,
    kind: LockKind,
}

/// Pieces in order. None meets another, and neighbours of one kind are one piece, as the kernel keeps them too: so the
/// number of pieces is the number of locks in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Piece>);

impl Ranges {
    /// How many locks the kernel holds for these bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pieces in order: first byte, last byte, kind.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (u64, u64, LockKind)> {
        self.0.iter().map(|piece| (piece.start, piece.end, piece.kind))
    }

    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// True when a byte of `start..=end` is held.
    pub(super) fn meets(&self, start: u64, end: u64) -> bool {
        let at = self.0.partition_point(|piece| piece.end < start);
        self.0.get(at).is_some_and(|piece| piece.start <= end)
    }

    /// True when `start..=end` lies inside of a piece and leaves something on both sides.
    pub(super) fn is_split_by(&self, start: u64, end: u64) -> bool {
        let at = self.0.partition_point(|piece| piece.end < start);
        self.0.get(at).is_some_and(|piece| piece.start < start && piece.end > end)
    }

    /// Holds the bytes `start..=end` this way from now on, or no more. At most two pieces come up.
    pub(super) fn set(&mut self, mut start: u64, mut end: u64, kind: LockKind) {
        // The pieces that touch the range: neighbours of the same kind grow together with it.
        let first = self.0.partition_point(|piece| piece.end.saturating_add(1) < start);
        let last = self.0.partition_point(|piece| piece.start <= end.saturating_add(1));
        let mut parts: [Option<Piece>; 3] = [None; 3];
        for piece in self.0.drain(first..last.max(first)) {
            if piece.kind == kind && kind != LockKind::Unlock {
                start = start.min(piece.start);
                end = end.max(piece.end);
                continue;
            }
            if piece.start < start {
                parts[0] = Some(Piece { end: piece.end.min(start.saturating_sub(1)), ..piece });
            }
            if piece.end > end {
                parts[2] = Some(Piece { start: piece.start.max(end.saturating_add(1)), ..piece });
            }
        }
        if kind != LockKind::Unlock {
            parts[1] = Some(Piece { start, end, kind });
        }
        self.0.splice(first..first, parts.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 40;

    fn kinds() -> impl Strategy<Value = LockKind> {
        prop_oneof![Just(LockKind::Read), Just(LockKind::Write), Just(LockKind::Unlock)]
    }

    proptest! {
        #[test]
        fn ranges_agree_with_a_byte_each(steps in prop::collection::vec((0..BYTES, 0..BYTES, kinds()), 0..40)) {
            let mut ranges = Ranges::default();
            let mut bytes = [LockKind::Unlock; BYTES as usize];
            for (a, b, kind) in steps {
                let (start, end) = (a.min(b), a.max(b));
                let before = ranges.len();
                let split = ranges.is_split_by(start, end);
                ranges.set(start, end, kind);
                bytes[start as usize..=end as usize].fill(kind);
                // The fewest pieces that describe these bytes, in order.
                let mut expected: Vec<Piece> = Vec::new();
                for (at, &kind) in (0..).zip(&bytes) {
                    match expected.last_mut() {
                        _ if kind == LockKind::Unlock => {}
                        Some(last) if last.end + 1 == at && last.kind == kind => last.end = at,
                        _ => expected.push(Piece { start: at, end: at, kind }),
                    }
                }
                prop_assert_eq!(&ranges.0, &expected);
                prop_assert!(ranges.len() <= before + 2);
                if kind == LockKind::Unlock {
                    prop_assert_eq!(ranges.len() > before, split);
                }
                for at in 0..BYTES {
                    prop_assert_eq!(ranges.meets(at, at), bytes[at as usize] != LockKind::Unlock);
                }
                prop_assert_eq!(ranges.meets(0, BYTES), !ranges.is_empty());
            }
        }
    }

    #[test]
    fn the_ends_of_all_bytes_are_no_trouble() {
        let mut ranges = Ranges::default();
        ranges.set(0, u64::MAX, LockKind::Read);
        ranges.set(u64::MAX, u64::MAX, LockKind::Write);
        ranges.set(0, 0, LockKind::Unlock);
        assert_eq!(ranges.len(), 2);
        assert!(!ranges.meets(0, 0) && ranges.meets(0, 1) && ranges.meets(u64::MAX, u64::MAX));
        ranges.set(0, u64::MAX, LockKind::Unlock);
        assert!(ranges.is_empty());
    }
}
