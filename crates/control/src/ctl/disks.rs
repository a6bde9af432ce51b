//! `vringd ctl disk`: its arguments and its tables.

use super::add::{BackingFlags, DescriptionError, absolute, make_storage_absolute};
use super::bitmaps::BitmapCommand;
use super::cells::{NOTHING, facts, or_nothing, size, table};
use super::disk::StorageFlags;
use super::jobs::{BackupArgs, ChainArgs, MirrorArgs, SnapshotArgs};
use super::pull::PullArgs;
use super::table::{flag, storage_facts};
use super::volume;
use crate::model::{ByteSize, Disk, LinkState, NewDisk, StorageInfo};
use clap::Subcommand;
use disk::User;
use std::path::PathBuf;

/// Disks.
#[derive(Debug, Clone, Subcommand)]
pub enum DiskCommand {
    /// List the disks, also those that belong to exports.
    List,

    /// Show one disk.
    Show {
        /// Name of the disk.
        name: String,
    },

    /// Open a disk; exports use it by its name (`vringd ctl export add --disk`).
    Add(Box<AddDiskArgs>),

    /// Resize a disk and announce it to the guests that use it.
    Resize {
        /// Name of the disk.
        name: String,

        /// New capacity, as in 20G.
        size: ByteSize,
    },

    /// Snapshot disks of qcow2 images, all at the same moment, while guests use them.
    ///
    /// The file of each image gets another name, and a new, empty overlay takes its path, with that file behind it:
    /// configuration and restarts stay true, and guests go on writing into the overlay.
    Snapshot(SnapshotArgs),

    /// Back up disks, all as they are at the same moment, while guests use them.
    ///
    /// It is a job of the daemon (`vringd ctl job`), and goes on when the wait for it is interrupted. The status is 1 if it
    /// fails or is cancelled. With --bitmap, the first backup is a full one, and those after it copy what was written
    /// since; --backing names the backup before.
    Backup(BackupArgs),

    /// Copy a disk and then every change to it, until the copy takes its place.
    ///
    /// It is a job of the daemon (`vringd ctl job`), and follows the disk until it is completed or cancelled. Without
    /// --complete this waits until the copy is ready.
    Mirror(MirrorArgs),

    /// Copy what is behind a qcow2 image into it, until it needs no backing file any more, while guests use it.
    ///
    /// It is a job of the daemon (`vringd ctl job`), and goes on when the wait for it is interrupted. One that is cancelled
    /// has lost nothing, and the next one goes on where it was.
    Stream(ChainArgs),

    /// Write what a qcow2 image has into its backing file, which takes the image's name, while guests use it.
    ///
    /// The opposite of `snapshot`: configuration and restarts stay true, and the image's file is gone then. Other images
    /// over the same backing file change with it, and are worth nothing afterwards. Once it has begun there is no way back
    /// to what the snapshot had set aside. It is a job of the daemon (`vringd ctl
    /// job`), and goes on when the wait for it is interrupted.
    Commit(ChainArgs),
    /// Let backup programs read disks over NBD, all as they are at the same moment, while guests use them.
    ///
    /// It is a job of the daemon (`vringd ctl job`): `vringd ctl job complete` ends it when the backup is made, and `vringd ctl job
    /// cancel` when there is none. The export has the name of the disk. What guests write over meanwhile is kept in a file
    /// without a name; a directory without room for it ends the job. With --bitmap, clients find what was written since the last
    /// backup as qemu:dirty-bitmap:NAME.
    Pull(PullArgs),

    /// List, begin and remove dirty bitmaps of disks of qcow2 images.
    #[command(subcommand)]
    Bitmap(BitmapCommand),

    /// End what guests have reserved of a disk, for one whose guest will not come back.
    ///
    /// Reservations and registrations (SCSI) of all guests end, also those that are kept over a loss of power. Whoever was kept out can
    /// write again: see to it first that a guest that was fenced is off. `vringd ctl lun list` shows who has reserved what.
    BreakReservations {
        /// Name of the disk.
        name: String,
    },

    /// Open a disk again that is lost, as it is now: an image of a Ceph cluster whose lock somebody else has taken.
    ///
    /// Its guest goes on with what it knows of the disk. Where somebody else has written meanwhile its file systems break: have it
    /// started anew then, and see to it that nobody else writes.
    Reopen {
        /// Name of the disk.
        name: String,
    },

    /// Close a disk that no export uses.
    Remove {
        /// Name of the disk.
        name: String,
    },
}

/// How to describe the new disk.
#[derive(Debug, Clone, clap::Args)]
pub struct AddDiskArgs {
    /// Name of the disk
    pub name: String,

    /// Which storage.
    #[command(flatten)]
    pub backing: BackingFlags,

    /// How it is opened.
    #[command(flatten)]
    pub storage: StorageFlags,

    /// Let several SCSI devices have it at once, whose reservations exclude each other, and nothing else
    ///
    /// For guests that know of each other: cluster file systems, failover. Its serial number, block size and write cache are the same
    /// in all of them.
    #[arg(long)]
    pub shared: bool,

    /// File that keeps persistent reservations which guests want to survive a loss of power (APTPL); made where there is none
    #[arg(long, value_name = "PATH")]
    pub reservations: Option<PathBuf>,

    /// Say when less space than this is left for a thin disk, as in 20G: in the log, and to guests that have it by SCSI
    #[arg(long, value_name = "SIZE")]
    pub space_threshold: Option<ByteSize>,
}

impl AddDiskArgs {
    /// The disk that is described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the option or the field.
    pub fn disk(&self) -> Result<NewDisk, DescriptionError> {
        let describe = || {
            let storage = self.storage.describe(&self.backing.served()?)?;
            let (name, reservations) = (self.name.clone(), self.reservations.clone());
            let (shared, space_threshold) = (self.shared, self.space_threshold);
            let mut new = NewDisk { name, storage, shared, reservations, space_threshold };
            new.check()?;
            make_storage_absolute(&mut new.storage)?;
            if let Some(path) = &mut new.reservations {
                absolute(NewDisk::RESERVATIONS, path)?;
            }
            Ok(new)
        };
        describe().map_err(DescriptionError::Options)
    }
}

fn user(User::Export(name): &User) -> String {
    format!("export {name}")
}

fn used_by(disk: &Disk) -> String {
    let users: Vec<String> = disk.users.iter().map(user).collect();
    if users.is_empty() { NOTHING.to_owned() } else { users.join(", ") }
}

pub(super) fn access(storage: &StorageInfo) -> &'static str {
    match (storage.held, storage.link.as_ref().map(|link| link.state)) {
        (Some(false), _) => "not held",
        (_, Some(LinkState::Opening)) => "opening",
        (_, Some(LinkState::Lost | LinkState::LostWaiting)) => "lost",
        _ if storage.read_only => "read-only",
        _ => "writable",
    }
}

/// `vringd ctl disk list`.
pub(super) fn disks(disks: &[Disk]) -> String {
    if disks.is_empty() {
        return "no disks\n".to_owned();
    }
    let headers = ["DISK", "KIND", ">SIZE", "ACCESS", "OWNER", "USED BY", "TARGET"];
    let row = |disk: &Disk| {
        vec![
            disk.name.clone(),
            disk.storage.kind.clone(),
            size(disk.storage.capacity_bytes),
            format!("{}{}", access(&disk.storage), flag(disk.shared, "shared")),
            or_nothing(disk.owner.as_ref().map(user)),
            used_by(disk),
            disk.storage.target.clone(),
        ]
    };
    table(&headers, disks.iter().map(row))
}

/// `vringd ctl disk show`.
pub(super) fn disk(disk: &Disk) -> String {
    let mut lines = vec![
        ("disk", disk.name.clone()),
        ("owner", or_nothing(disk.owner.as_ref().map(user))),
        ("used by", used_by(disk)),
    ];
    lines.extend(disk.shared.then(|| ("shared", "among SCSI devices, and with nothing else".to_owned())));
    lines.extend(storage_facts(&disk.storage));
    lines.extend(disk.reservations.as_ref().map(|path| ("reservations", path.clone())));
    lines.extend(disk.space_threshold_bytes.map(|bytes| ("space threshold", size(bytes))));
    lines.extend(disk.storage.volume.iter().flat_map(volume::facts));
    facts(&lines)
}
