//! External snapshots of disks that are served, all as of the same moment.

use super::jobs::{check_stays, unsupported};
use super::swap::{Next, close};
use crate::daemon::{Daemon, PATIENCE};
use control::ApiError;
use control::model::{self as api, NewSnapshot, SnapshotDisk};
use disk::{Disk, StorageSpec};
use image::tools::ExternalSnapshot;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{GoBeforeError, InFront, Storage};

/// How long the logs of all disks may take to be written back while guests go on: half of what a client waits for its answer.
const WRITE_BACK_PATIENCE: Duration = Duration::from_secs(30);

impl Daemon {
    /// Gives the image of each disk another name, and lets a new one in front of it take its place.
    pub(crate) fn take_snapshot(&self, new: &NewSnapshot) -> Result<Vec<api::Disk>, ApiError> {
        new.check()?;
        // A file system that hangs holds up nobody else: whether the disks are still the same is looked at again.
        let mut disks: Vec<Arc<Disk>> = Vec::new();
        let mut snapshots = Vec::new();
        for of in &new.disks {
            let (disk, _) = self.disks.get(&of.disk)?;
            check_stays(&disk)?;
            self.jobs.check_free(disk.name())?;
            self.settled(disk.name())?;
            // What gets no snapshot is refused before anything is written back for it.
            snapshots.push(self.prepared(&disk, of)?);
            disks.push(disk);
        }
        let by = Instant::now() + WRITE_BACK_PATIENCE;
        // The first ones are written to while the last ones are written back: little is left to write back while guests wait.
        for _ in 0..2 {
            disks.iter().try_for_each(|disk| write_back(disk, by))?;
        }
        let open = self.upgrade.gate();
        let changing = self.change_lock();
        let mut sizes = Vec::new();
        for (disk, snapshot) in disks.iter().zip(&snapshots) {
            self.jobs.check_free(disk.name())?;
            sizes.push(disk.capacity_lock_within(PATIENCE)?);
            let now = disk.storage();
            let (disk_bytes, image_bytes) = (now.capacity_bytes(), image_of(&now).capacity_bytes());
            if disk_bytes != image_bytes {
                let message = format!(
                    "has {disk_bytes} bytes and its image {image_bytes}, as a resize that fails halfway leaves them: resize it to that first"
                );
                return Err(unsupported(disk, &message));
            }
            if !snapshot.is_of(&image_of(&now)) || image_bytes != snapshot.size_bytes() {
                return Err(unsupported(disk, "was changed meanwhile: try again"));
            }
        }
        let (mut taken, mut failed) = (Vec::new(), None);
        let mut before = self.replace(&disks, || {
            let images = put(&disks, snapshots, &mut taken)?;
            Ok(with_logs(&disks, images, &mut taken).unwrap_or_else(|(error, back)| {
                failed = Some(error);
                back
            }))
        })?;
        if let Some(error) = failed {
            // Some of it stands there again.
            before.retain(|before| !disks.iter().any(|disk| Arc::ptr_eq(before, &disk.storage())));
            drop(sizes);
            drop((changing, open));
            before.into_iter().for_each(close);
            return Err(error);
        }
        for (snapshot, disk) in taken.into_iter().zip(&disks) {
            tracing::info!(disk = disk.name(), path = %snapshot.to().display(), "what the disk held is there from now on");
            snapshot.keep();
        }
        // Somebody may remove a disk as soon as he can: its snapshot was taken.
        let shown = new.disks.iter().map(|of| self.disk_shown(&of.disk)).collect();
        // Closing may take a while, and holds up nobody else.
        drop(sizes);
        drop((changing, open));
        before.into_iter().for_each(close);
        shown
    }

    fn prepared(&self, disk: &Disk, of: &SnapshotDisk) -> Result<ExternalSnapshot, ApiError> {
        let StorageSpec::Qcow2(options) = disk.spec() else {
            let message = "an external snapshot is made of a qcow2 image: convert it, or `mirror` it into one";
            return Err(unsupported(disk, message));
        };
        self.held.admit_new("to", &of.to)?;
        // The new image is made beside the old one.
        self.held.admit_new("storage.path", &options.path)?;
        let prepared = ExternalSnapshot::prepare(&options, image_of(&disk.storage()), &of.to);
        prepared.map_err(|error| unsupported(disk, &error.to_string()))
    }
}

/// What the disk is without the intent log in front of it.
fn image_of(storage: &Arc<dyn Storage>) -> Arc<dyn Storage> {
    storage.in_front().map_or_else(|| storage.clone(), InFront::disk)
}

/// Brings what a log in front of the disk has into the image, while guests go on.
fn write_back(disk: &Disk, by: Instant) -> Result<(), ApiError> {
    let storage = disk.storage();
    let Some(log) = storage.in_front() else { return Ok(()) };
    log.sync_within(by.saturating_duration_since(Instant::now())).map_err(|error| match error.is_timeout() {
        true => {
            let seconds = WRITE_BACK_PATIENCE.as_secs();
            unsupported(
                disk,
                &format!("its log is not written back after {seconds} s, and write-back goes on: try again"),
            )
        }
        false => unsupported(disk, &format!("its log cannot be written back: {error}")),
    })
}

/// The image has all that a log in front of it had, and stands alone.
fn leave(disk: &Disk) -> Result<(), ApiError> {
    let storage = disk.storage();
    let Some(log) = storage.in_front() else { return Ok(()) };
    log.leave().map_err(|error| {
        let message = match log.status().failure {
            Some(failure) => format!("its log did not leave it: {error}; it serves nothing any more: {failure}"),
            None => format!("its log did not leave it while its guest waited: {error}; try again"),
        };
        unsupported(disk, &message)
    })
}

/// Puts the new images into the place of the old ones, which have all by then that logs in front of them had.
fn put(
    disks: &[Arc<Disk>],
    snapshots: Vec<ExternalSnapshot>,
    taken: &mut Vec<ExternalSnapshot>,
) -> Result<Vec<Arc<dyn Storage>>, ApiError> {
    let (mut images, mut left) = (Vec::new(), 0);
    for (mut snapshot, disk) in snapshots.into_iter().zip(disks) {
        let put = leave(disk).and_then(|()| {
            left += 1;
            snapshot.put().map_err(|error| unsupported(disk, &error.to_string()))
        });
        taken.push(snapshot);
        match put {
            Ok(image) => images.push(image),
            Err(error) => {
                // What was done is undone before the rings go on. Names come first: an image that is marked is found by its own.
                taken.clear();
                disks.iter().take(left).for_each(|disk| come_back(disk));
                return Err(error);
            }
        }
    }
    Ok(images)
}

/// The image is as it was, with its log in front of it.
fn come_back(disk: &Disk) {
    if let Some(log) = disk.storage().in_front()
        && let Err(error) = log.come_back()
    {
        tracing::error!(disk = disk.name(), %error, "a snapshot that failed leaves a disk that serves nothing any more");
    }
}

/// The new images with the logs of the old ones in front of them.
///
/// # Errors
/// One of them fails: why, and what stands behind the disks then, without any snapshot.
fn with_logs(
    disks: &[Arc<Disk>],
    images: Vec<Arc<dyn Storage>>,
    taken: &mut Vec<ExternalSnapshot>,
) -> Result<Vec<Next>, (ApiError, Vec<Next>)> {
    let mut went = Vec::new();
    for (disk, image) in disks.iter().zip(images) {
        match with_log(disk, image) {
            Ok(next) => went.push(next),
            Err(error) => {
                // Names come first, as above.
                taken.clear();
                return Err((error, without_snapshot(disks, went)));
            }
        }
    }
    Ok(went)
}

/// The new image with the log of the old one in front of it. Should the log fail now, the image has all, and goes on without.
///
/// # Errors
/// It is the new image that fails. The log may go on before the old one.
fn with_log(disk: &Disk, image: Arc<dyn Storage>) -> Result<Next, ApiError> {
    let before = disk.storage();
    let Some(log) = before.in_front() else { return Ok(Next { storage: image, spec: None }) };
    match log.go_before(image.clone()) {
        Ok(storage) => Ok(Next { storage, spec: None }),
        Err(error @ GoBeforeError::Log(_)) => Ok(without_log(disk, image, &error)),
        Err(GoBeforeError::Disk(error)) => {
            Err(unsupported(disk, &format!("its new image cannot be written: {error}; see to its file system")))
        }
    }
}

/// What stands behind disks whose snapshots were undone after `went` had been made of the first of them: the old images. A log that has left
/// its image goes before it again, by a new opening where it had begun one.
fn without_snapshot(disks: &[Arc<Disk>], went: Vec<Next>) -> Vec<Next> {
    let has_begun = went.len();
    let mut went = went.into_iter();
    let back = |(number, disk): (usize, &Arc<Disk>)| {
        let (before, went) = (disk.storage(), went.next());
        let Some(log) = before.in_front() else { return Next { storage: before, spec: None } };
        if number > has_begun {
            come_back(disk);
            return Next { storage: before.clone(), spec: None };
        }
        let image = image_of(&before);
        let log = match &went {
            // It goes on without already.
            Some(Next { spec: Some(_), .. }) => return Next { storage: image, spec: Some(disk.spec().without_log()) },
            Some(went) => went.storage.in_front().unwrap_or(log),
            None => log,
        };
        match log.go_before(image.clone()) {
            Ok(storage) => Next { storage, spec: None },
            Err(error @ GoBeforeError::Log(_)) => without_log(disk, image, &error),
            Err(GoBeforeError::Disk(error)) => {
                let disk = disk.name();
                tracing::error!(disk, %error, "its old image cannot be written, and may need its log: see to its file system, and add it again with both");
                Next { storage: image, spec: None }
            }
        }
    };
    disks.iter().enumerate().map(back).collect()
}

/// An image that goes on without the log that was in front of it: so its description says, or another program that goes on with it would look
/// for the log.
fn without_log(disk: &Disk, image: Arc<dyn Storage>, error: &GoBeforeError) -> Next {
    tracing::error!(
        disk = disk.name(),
        %error,
        "goes on without its intent log, as a plain qcow2 image, until it is added again with a log"
    );
    Next { storage: image, spec: Some(disk.spec().without_log()) }
}
