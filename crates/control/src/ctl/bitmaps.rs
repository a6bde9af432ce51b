//! `vringd ctl disk bitmap`: its arguments and its table.

use super::add::DescriptionError;
use super::cells::{NOTHING, size, table};
use crate::model::{Bitmap, ByteSize, NewBitmap};
use clap::Subcommand;

/// Dirty bitmaps.
#[derive(Debug, Clone, Subcommand)]
pub enum BitmapCommand {
    /// List the dirty bitmaps of a disk.
    List {
        /// Name of the disk.
        disk: String,
    },

    /// Begin a bitmap, which records what is written from now on; a backup with --bitmap does that by itself.
    Add(AddBitmapArgs),

    /// Remove a bitmap: the next backup with it is a full one.
    Remove {
        /// Name of the disk.
        disk: String,

        /// Name of the bitmap.
        #[arg(value_name = "NAME")]
        bitmap: String,
    },
}

/// Which bitmap.
#[derive(Debug, Clone, clap::Args)]
pub struct AddBitmapArgs {
    /// Name of the disk, whose storage is a qcow2 image.
    pub disk: String,

    /// Name of the bitmap.
    pub name: String,

    /// Bytes of the disk for which one bit stands: a power of two, 512 to 2G [default: 64K].
    #[arg(long, value_name = "SIZE")]
    pub granularity: Option<ByteSize>,
}

impl AddBitmapArgs {
    /// The bitmap that is described, checked.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the field.
    pub fn bitmap(&self) -> Result<NewBitmap, DescriptionError> {
        let new = NewBitmap { name: self.name.clone(), granularity: self.granularity };
        new.check().map_err(DescriptionError::Options)?;
        Ok(new)
    }
}

/// The name of a bitmap, which any program may have written into the image, as it can stand in a line.
pub(super) fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}

fn state(bitmap: &Bitmap) -> &'static str {
    match (bitmap.consistent, bitmap.enabled) {
        (false, _) => "inconsistent: remove it",
        (true, true) => "enabled",
        (true, false) => "disabled",
    }
}

/// `vringd ctl disk bitmap list`.
pub(super) fn bitmaps(bitmaps: &[Bitmap]) -> String {
    if bitmaps.is_empty() {
        return "no bitmaps\n".to_owned();
    }
    let row = |bitmap: &Bitmap| {
        vec![
            shown(&bitmap.name),
            size(bitmap.granularity_bytes),
            if bitmap.consistent { size(bitmap.dirty_bytes) } else { NOTHING.to_owned() },
            state(bitmap).to_owned(),
        ]
    };
    table(&["BITMAP", ">GRANULARITY", ">DIRTY", "STATE"], bitmaps.iter().map(row))
}

pub(super) fn one(bitmap: &Bitmap) -> String {
    bitmaps(std::slice::from_ref(bitmap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_said() {
        let bitmap = |name: &str, enabled, consistent| Bitmap {
            name: name.into(),
            granularity_bytes: 64 << 10,
            enabled,
            consistent,
            dirty_bytes: 1 << 20,
        };
        assert_eq!(bitmaps(&[]), "no bitmaps\n");
        let all = [bitmap("a", true, true), bitmap("b", false, true), bitmap("c\n\x1b[2J", true, false)];
        assert_eq!(
            bitmaps(&all),
            "BITMAP        GRANULARITY  DIRTY  STATE\n\
             a                     64K     1M  enabled\n\
             b                     64K     1M  disabled\n\
             c\\n\\u{1b}[2J          64K      -  inconsistent: remove it\n"
        );
    }
}
