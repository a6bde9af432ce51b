//! A dirty bitmap as it was at one moment, for clients that back up what was written since another one.

use device::nbd::spec::context;
use std::fmt;
use std::ops::Range;
use storage::{Extent, extent::Extents};

/// The first part of a range of bytes that is dirty, if there is one.
type First = dyn Fn(&Range<u64>) -> Option<Range<u64>> + Send + Sync;

/// What NBD clients find as `qemu:dirty-bitmap:NAME`. It does not change.
pub struct DirtyBitmap {
    /// Its name, with that of the namespace.
    context: Vec<u8>,
    first: Box<First>,
}

impl DirtyBitmap {
    /// Of this name. `first` answers with the first part of a range that is dirty; on a thread for questions that may take a while.
    pub fn new(name: &str, first: impl Fn(&Range<u64>) -> Option<Range<u64>> + Send + Sync + 'static) -> DirtyBitmap {
        DirtyBitmap { context: [context::QEMU_DIRTY_BITMAP, name.as_bytes()].concat(), first: Box::new(first) }
    }

    /// The name of the metadata context.
    pub(super) fn context(&self) -> &[u8] {
        &self.context
    }

    /// Where `range` is dirty, in at most `most` extents, which are *data* where it is.
    pub(super) fn extents(&self, range: Range<u64>, most: usize) -> Vec<Extent> {
        let mut extents = Extents::of(range, most);
        while let Some(rest) = extents.rest() {
            let dirty = (self.first)(&rest).unwrap_or(rest.end..rest.end);
            let is_room = extents.add(dirty.start.saturating_sub(rest.start), false);
            if !is_room || !extents.add(dirty.end.saturating_sub(dirty.start), true) {
                break;
            }
            if extents.rest().is_some_and(|left| left.start == rest.start) {
                debug_assert!(false, "{dirty:?} is no part of {rest:?}");
                break;
            }
        }
        extents.into_list()
    }
}

impl fmt::Debug for DirtyBitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.escape_ascii().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECTORS: usize = 200;

    proptest! {
        #[test]
        fn extents_say_what_is_dirty(
            dirty in proptest::collection::vec(any::<bool>(), SECTORS),
            (from, len) in (0..SECTORS, 1..SECTORS),
            most in 1usize..50,
        ) {
            let model = dirty.clone();
            let bitmap = DirtyBitmap::new("a", move |range: &Range<u64>| {
                let sectors = (range.start / 512) as usize..(range.end / 512) as usize;
                let start = sectors.clone().find(|sector| dirty[*sector])?;
                let end = (start..sectors.end).find(|sector| !dirty[*sector]).unwrap_or(sectors.end);
                Some(start as u64 * 512..end as u64 * 512)
            });
            let end = SECTORS.min(from + len);
            let list = bitmap.extents(from as u64 * 512..end as u64 * 512, most);
            prop_assert!(!list.is_empty() && list.len() <= most);
            prop_assert!(list.windows(2).all(|pair| pair[0].data != pair[1].data));
            let told: Vec<bool> =
                list.iter().flat_map(|extent| std::iter::repeat_n(extent.data, (extent.bytes / 512) as usize)).collect();
            prop_assert_eq!(&told[..], &model[from..from + told.len()]);
            prop_assert!(told.len() == end - from || list.len() == most);
        }
    }
}
