//! Jobs that shorten the chain of an image: what they need before they begin.

use super::course::sync;
use super::job::{Copier, Part};
use super::jobs::{Begun, DISK_BYTES_MAX, Reserved, unsupported};
use super::swap::Next;
use crate::daemon::{Daemon, PATIENCE};
use control::ApiError;
use control::model::{self as api, CopyFormat, JobKind, NewJob};
use disk::{Qcow2Options, StorageSpec};
use image::tools::{Committing, FromTo, Streaming, ToolError};
use job::{Fill, Mirror};
use std::path::Path;
use std::sync::Arc;
use storage::Storage;

/// The image of a job that makes no copy.
pub(super) enum Chain {
    Stream(Arc<Streaming>),
    Commit(Arc<Committing>),
}

/// The same, before anything has changed.
enum Prepared {
    Stream(Streaming),
    Commit(Committing),
}

impl Prepared {
    fn of(kind: JobKind, options: &Qcow2Options, storage: Arc<dyn Storage>) -> Result<Prepared, ToolError> {
        Ok(match kind {
            JobKind::Commit => Prepared::Commit(Committing::prepare(options, storage)?),
            _ => Prepared::Stream(Streaming::prepare(options, storage)?),
        })
    }

    fn is_of(&self, storage: &Arc<dyn Storage>) -> bool {
        match self {
            Prepared::Stream(streaming) => streaming.is_of(storage),
            Prepared::Commit(committing) => committing.is_of(storage),
        }
    }

    /// Whether the files that are to have other names can have them.
    fn try_names(&self) -> Result<(), ToolError> {
        match self {
            Prepared::Stream(_) => Ok(()),
            Prepared::Commit(committing) => committing.try_names(),
        }
    }

    /// The file that is written beside what the daemon has opened for that.
    fn also_written(&self) -> Option<&Path> {
        match self {
            Prepared::Stream(_) => None,
            Prepared::Commit(committing) => Some(committing.behind()),
        }
    }
}

impl Daemon {
    /// Begins a job over the images of a disk.
    pub(super) fn begin_chain(&self, new: &NewJob, name: &str, reserved: Reserved<'_>) -> Result<api::Job, ApiError> {
        // A file system that hangs holds up nobody else: whether the disk is still the same is looked at again.
        let (disk, _) = self.disks.get(name)?;
        self.settled(name)?;
        let storage = disk.storage();
        let StorageSpec::Qcow2(options) = disk.spec() else {
            return Err(unsupported(&disk, "is no qcow2 image, and has nothing behind it"));
        };
        if storage.capacity_bytes() > DISK_BYTES_MAX {
            let message = format!("has {} bytes, and a job copies {DISK_BYTES_MAX} at most", storage.capacity_bytes());
            return Err(unsupported(&disk, &message));
        }
        let refused = |error: ToolError| unsupported(&disk, &error.to_string());
        let prepared = Prepared::of(new.kind(), &options, storage).map_err(refused)?;
        if let Some(written) = prepared.also_written() {
            if let Some(owner) = self.owner_of(written, Some(name)) {
                let message = format!(
                    "would be committed into {}, which belongs to {owner} as well: stream it instead",
                    written.display()
                );
                return Err(unsupported(&disk, &message));
            }
            self.held.admit_new("disk", written)?;
            // It gets the image's name.
            self.held.admit_new("disk", &options.path)?;
        }
        prepared.try_names().map_err(refused)?;
        // What there is to flush while all others wait is little, and a file system that hangs does so here.
        sync(&options.path).map_err(|why| unsupported(&disk, &why))?;
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        let _size = disk.capacity_lock_within(PATIENCE)?;
        if !prepared.is_of(&disk.storage()) {
            return Err(unsupported(&disk, "was changed meanwhile: try again"));
        }
        self.launch(new, reserved, || {
            let part =
                |path: &Path, copier| Part::new(&disk, (path.to_owned(), CopyFormat::Qcow2), (None, false), copier);
            match prepared {
                Prepared::Stream(streaming) => {
                    let FromTo { from, to } = streaming.route().map_err(refused)?;
                    let fill = Fill::new(from, to).map_err(|error| unsupported(&disk, &error.to_string()))?;
                    let filter = fill.filter();
                    let put = || Ok(vec![Next { storage: filter, spec: None }]);
                    let before = self.replace(std::slice::from_ref(&disk), put)?;
                    let streaming = Arc::new(streaming);
                    let parts = vec![part(&options.path, Copier::Stream(fill, streaming.clone()))];
                    Ok(Begun { parts, before, chain: Some(Chain::Stream(streaming)), ..Begun::default() })
                }
                Prepared::Commit(mut committing) => {
                    let mut mirror = None;
                    let before = self.replace(std::slice::from_ref(&disk), || {
                        let FromTo { from, to } = committing.begin().map_err(refused)?;
                        let made = Mirror::of_parts(from, to).inspect_err(|_| committing.abandon());
                        let mirror = mirror.insert(made.map_err(|error| unsupported(&disk, &error.to_string()))?);
                        Ok(vec![Next { storage: mirror.filter(), spec: None }])
                    })?;
                    let committing = Arc::new(committing);
                    let copier = mirror.map(|mirror| Copier::Commit(mirror, committing.clone()));
                    let parts = copier.map(|copier| part(committing.behind(), copier)).into_iter().collect();
                    Ok(Begun { parts, before, chain: Some(Chain::Commit(committing)), ..Begun::default() })
                }
            }
        })
    }
}
