//! Dirty bitmaps of an image that nobody serves: added, removed, emptied, enabled and disabled.

use super::file::{ToolError, refuse_damage};
use super::info::{BitmapEntry, bitmaps};
use crate::served::BitmapError;
use crate::{Qcow2Options, Qcow2Storage};
use std::path::Path;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapChange<'a> {
    /// Adds one that is enabled and empty.
    Add {
        /// Its name, 1 to 1023 bytes.
        name: &'a str,
        /// Bytes for which a bit stands: a power of two, 512 to 2 GiB.
        granularity_bytes: u64,
    },
    /// Removes one, also one that is inconsistent.
    Remove(&'a str),
    /// Lets one say that nothing was written.
    Clear(&'a str),
    /// Lets one follow what is written.
    Enable(&'a str),
    /// Lets one stay as it is, whatever is written.
    Disable(&'a str),
}

/// Changes the dirty bitmaps of an image that nobody uses; returns those that it has then.
///
/// # Errors
/// It is in use, damaged, or what is asked for cannot be: none of them says anything else. It cannot be read or written: what has changed is
/// what a power cut leaves, bitmaps as they were, as they are to be, or inconsistent.
pub fn change_bitmaps(
    path: &Path,
    change: BitmapChange<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<BitmapEntry>, ToolError> {
    // What is behind it has no part in this.
    let storage = Qcow2Storage::open_in_front(&Qcow2Options::new(path))?;
    refuse_damage(path, progress)?;
    let done = match change {
        BitmapChange::Add { name, granularity_bytes } => storage.add_bitmap(name, granularity_bytes),
        BitmapChange::Remove(name) => storage.remove_bitmap(name),
        BitmapChange::Clear(name) => storage.take_bitmap(name).map(|_| ()),
        BitmapChange::Enable(name) => storage.set_bitmap_enabled(name, true),
        BitmapChange::Disable(name) => storage.set_bitmap_enabled(name, false),
    };
    done.map_err(|error| match error {
        BitmapError::Refused(reason) => ToolError::refused(path, reason),
        BitmapError::Failed(source) => ToolError::storage(path)(source),
    })?;
    storage.settle().and_then(|()| storage.write_bitmaps_back()).map_err(ToolError::storage(path))?;
    drop(storage);
    bitmaps(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Findings, New, examine};
    use engine::Solo;
    use testkit::storage as kit;

    #[test]
    fn bitmaps_are_changed_while_nobody_serves_the_image() {
        let directory = tempfile::TempDir::new_in(kit::shm()).unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, New::default().image().unwrap()).unwrap();
        let change = |change| {
            let now = change_bitmaps(&path, change, &mut |_, _| {})?;
            assert_eq!(examine(&std::fs::read(&path).unwrap()), Findings::default(), "{change:?}");
            assert!(now.iter().all(|one| !one.in_use), "{now:?}");
            let now = now.into_iter().map(|one| (one.name, one.enabled, one.granularity_bytes));
            Ok::<_, ToolError>(now.collect::<Vec<_>>())
        };
        let add = |name| BitmapChange::Add { name, granularity_bytes: 4096 };
        let dirty = || Qcow2Storage::open_alone(&Qcow2Options::new(&path)).unwrap().bitmaps()[0].dirty_bytes;
        assert_eq!(change(add("a")).unwrap(), [("a".to_owned(), true, 4096)]);
        let storage = Qcow2Storage::open_alone(&Qcow2Options::new(&path)).unwrap();
        kit::write(&mut Solo::new().unwrap(), &storage, 512, &[1; 512]).unwrap();
        drop(storage);
        change(add("b")).unwrap();
        assert_eq!(change(BitmapChange::Disable("a")).unwrap()[0], ("a".to_owned(), false, 4096));
        assert_eq!(dirty(), 4096);
        assert!(change(BitmapChange::Enable("a")).unwrap()[0].1);
        change(BitmapChange::Clear("a")).unwrap();
        assert_eq!(dirty(), 0);
        assert!(change(add("a")).unwrap_err().to_string().contains("already"));
        assert_eq!(change(BitmapChange::Remove("a")).unwrap(), [("b".to_owned(), true, 4096)]);
        assert!(change(BitmapChange::Clear("a")).unwrap_err().to_string().contains("`a`"));
        assert_eq!(change(BitmapChange::Remove("b")).unwrap(), []);
    }
}
