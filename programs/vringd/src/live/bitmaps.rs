//! Dirty bitmaps of disks that are served, and what a backup takes of them.

use super::job::Copier;
use super::jobs::{check_stays, unsupported};
use crate::daemon::Daemon;
use control::ApiError;
use control::model::{Bitmap, CopyDisk, CopyFormat, NewBitmap};
use export::DirtyBitmap;
use image::dirty::Dirty;
use image::tools::Destination;
use image::{BitmapInfo, Qcow2Storage};
use job::Backup;
use std::sync::Arc;
use storage::Storage;

/// What a backup is to copy of a disk, by its bitmap.
pub(super) enum Since {
    /// Everything: no bitmap is asked for.
    Ever,
    /// Everything, and a bitmap begins with it.
    Begun(String),
    /// What a bitmap says; once it is taken, to be given back if the backup fails.
    Bitmap(String, Option<Arc<Dirty>>),
}

impl Since {
    /// Looks at the disk's bitmap, and changes nothing. The error's first part is a field of the copy.
    pub(super) fn of(storage: &Arc<dyn Storage>, copy: &CopyDisk) -> Result<Since, (&'static str, String)> {
        let Some(name) = copy.bitmap.clone() else { return Ok(Since::Ever) };
        let no = |message: &str| Err(("bitmap", message.to_owned()));
        let Some(image) = Qcow2Storage::of(storage).filter(|_| !storage.describe().read_only) else {
            return no(
                "only a qcow2 image that is written, without an intent log in front of it, has dirty bitmaps: leave it out for a full backup",
            );
        };
        match image.bitmaps().into_iter().find(|bitmap| bitmap.name == name) {
            None if copy.backing.is_some() => {
                let message =
                    format!("bitmap `{name}` begins with this backup, which is a full one: leave `backing` out");
                Err(("backing", message))
            }
            None => Ok(Since::Begun(name)),
            Some(BitmapInfo { consistent: false, .. }) => no(
                "it is inconsistent, as a daemon leaves it that was killed or could not write it back, or too large to be \
                 followed: remove it, and begin with a full backup",
            ),
            Some(BitmapInfo { enabled: false, .. }) => no("it is disabled, and does not know what was written"),
            Some(_) if copy.format == CopyFormat::Raw => {
                let message = "a raw copy cannot say what it does not have: use qcow2 for what has changed".to_owned();
                Err(("format", message))
            }
            Some(_) => Ok(Since::Bitmap(name, None)),
        }
    }

    /// Makes the bitmap that is to begin, and any ready to be taken: so that no guest waits for that.
    fn prepare(&self, storage: &Arc<dyn Storage>) -> Result<(), String> {
        let image = || Qcow2Storage::of(storage).ok_or_else(|| "is no qcow2 image any more".to_owned());
        match self {
            Since::Ever => Ok(()),
            Since::Begun(name) => {
                image()?.add_bitmap(name, Qcow2Storage::GRANULARITY_BYTES).map_err(|error| error.to_string())
            }
            Since::Bitmap(name, _) => image()?.make_bitmap_ready(name).map_err(|error| error.to_string()),
        }
    }

    /// What copies it, and what guests use meanwhile. No request is in flight: the bitmap begins anew at this moment.
    pub(super) fn backup(
        &mut self,
        from: &Arc<dyn Storage>,
        to: &Destination,
    ) -> Result<(Arc<dyn Storage>, Copier), String> {
        let (storage, is_blank) = (to.storage().clone(), to.is_blank());
        let backup = match self {
            Since::Ever => Backup::new(from.clone(), storage, is_blank),
            Since::Begun(name) => {
                take(from, name)?;
                Backup::new(from.clone(), storage, is_blank)
            }
            Since::Bitmap(name, dirty) => {
                let dirty = dirty.insert(Arc::new(take(from, name)?));
                Backup::of_changes(from.clone(), storage, dirty.ranges())
            }
        };
        let backup = backup.map_err(|error| error.to_string())?;
        Ok((backup.filter(), Copier::Backup(backup)))
    }

    /// What NBD clients find of the bitmap. As above: it begins anew at this moment.
    pub(super) fn frozen(&mut self, from: &Arc<dyn Storage>) -> Result<Option<DirtyBitmap>, String> {
        match self {
            Since::Ever => Ok(None),
            Since::Begun(name) => {
                take(from, name)?;
                Ok(Some(DirtyBitmap::new(name, |all| Some(all.clone()))))
            }
            Since::Bitmap(name, dirty) => {
                let dirty = dirty.insert(Arc::new(take(from, name)?)).clone();
                Ok(Some(DirtyBitmap::new(name, move |range| dirty.first(range))))
            }
        }
    }

    /// The name of the bitmap, and whether it says what is copied.
    pub(super) fn shown(&self) -> (Option<String>, bool) {
        match self {
            Since::Ever => (None, false),
            Since::Begun(name) => (Some(name.clone()), false),
            Since::Bitmap(name, _) => (Some(name.clone()), true),
        }
    }

    /// There is no backup: the bitmap is as if it had never been. Says what went wrong: then it is inconsistent.
    fn undo(&self, storage: &Arc<dyn Storage>) -> Option<String> {
        let image = Qcow2Storage::of(storage)?;
        let (name, undone) = match self {
            Since::Ever | Since::Bitmap(_, None) => return None,
            Since::Begun(name) => (name, image.remove_bitmap(name)),
            Since::Bitmap(name, Some(dirty)) => (name, image.give_back(name, dirty)),
        };
        let error = undone.err()?;
        // What the next backup would copy by it is not enough.
        image.forget_bitmap(name);
        tracing::error!(%error, bitmap = name, "what a backup that failed has changed of a dirty bitmap cannot be undone: it is inconsistent");
        let name = name.escape_debug();
        Some(format!("bitmap `{name}` is inconsistent ({error}): remove it, and begin with a full backup"))
    }
}

fn take(from: &Arc<dyn Storage>, name: &str) -> Result<Dirty, String> {
    let image = Qcow2Storage::of(from).ok_or_else(|| "is no qcow2 image any more".to_owned())?;
    image.take_bitmap(name).map_err(|error| error.to_string())
}

/// What a job takes of bitmaps, disk by disk. Dropped before it is [kept](Self::keep), it gives all of it back.
#[derive(Default)]
pub(super) struct Taken(Vec<(Arc<dyn Storage>, Since)>);

impl Taken {
    /// Another disk, by what its bitmap says now. The error's first part is a field of the copy.
    pub(super) fn add(&mut self, storage: Arc<dyn Storage>, copy: &CopyDisk) -> Result<(), (&'static str, String)> {
        let since = Since::of(&storage, copy)?;
        since.prepare(&storage).map_err(|message| ("bitmap", message))?;
        self.0.push((storage, since));
        Ok(())
    }

    /// The disks' storages, each with what is to be copied of it.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Arc<dyn Storage>, &mut Since)> {
        self.0.iter_mut().map(|(storage, since)| (&*storage, since))
    }

    /// There is a backup of it.
    pub(super) fn keep(&mut self) {
        self.0.clear();
    }

    /// There is none. Says what of that went wrong.
    pub(super) fn undo(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        while let Some((storage, since)) = self.0.pop() {
            wrong.extend(since.undo(&storage));
        }
        wrong
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.undo();
    }
}

fn shown(bitmap: BitmapInfo) -> Bitmap {
    let BitmapInfo { name, granularity_bytes, enabled, consistent, dirty_bytes } = bitmap;
    Bitmap { name, granularity_bytes, enabled, consistent, dirty_bytes }
}

impl Daemon {
    pub(crate) fn bitmaps(&self, disk: &str) -> Result<Vec<Bitmap>, ApiError> {
        let (disk, _) = self.disks.get(disk)?;
        self.jobs.check_free(disk.name())?;
        let storage = disk.storage();
        if storage.describe().read_only && Qcow2Storage::of(&storage).is_some() {
            let message = "is read-only, and its dirty bitmaps are not looked at: `vringd image info` lists them";
            return Err(unsupported(&disk, message));
        }
        Ok(Qcow2Storage::of(&storage).map(|image| image.bitmaps().into_iter().map(shown).collect()).unwrap_or_default())
    }

    pub(crate) fn add_bitmap(&self, disk: &str, new: &NewBitmap) -> Result<Bitmap, ApiError> {
        new.check()?;
        self.change_bitmaps(disk, |image| image.add_bitmap(&new.name, new.granularity_bytes()))?;
        self.bitmap(disk, &new.name)
    }

    pub(crate) fn remove_bitmap(&self, disk: &str, bitmap: &str) -> Result<(), ApiError> {
        self.bitmap(disk, bitmap)?;
        self.change_bitmaps(disk, |image| image.remove_bitmap(bitmap))
    }

    fn bitmap(&self, disk: &str, bitmap: &str) -> Result<Bitmap, ApiError> {
        let missing = || ApiError::NoSuchBitmap { disk: disk.to_owned(), bitmap: bitmap.to_owned() };
        self.bitmaps(disk)?.into_iter().find(|one| one.name == bitmap).ok_or_else(missing)
    }

    fn change_bitmaps(
        &self,
        disk: &str,
        change: impl FnOnce(&Qcow2Storage) -> Result<(), image::BitmapError>,
    ) -> Result<(), ApiError> {
        let _open = self.upgrade.gate();
        let (disk, _) = self.disks.get(disk)?;
        check_stays(&disk)?;
        // Neither a job nor a snapshot comes in between.
        let _in_order = disk.capacity_lock_within(crate::daemon::PATIENCE)?;
        self.jobs.check_free(disk.name())?;
        let storage = disk.storage();
        let image = Qcow2Storage::of(&storage);
        let message = "only qcow2 images with neither an intent log in front of them nor `luks` have dirty bitmaps";
        let image = image.ok_or_else(|| unsupported(&disk, message))?;
        change(image).map_err(|error| unsupported(&disk, &error.to_string()))
    }
}
