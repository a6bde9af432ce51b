//! The options that describe a SCSI device: the same for `vringd scsi` and `vringd ctl export add-scsi`.

use super::add::{DescriptionError, make_absolute};
use super::disk::{Served, StorageFlags};
use super::limit::LimitFlags;
use crate::model::config::{ExportKind, NewExport};
use crate::model::{CpuList, FieldError, FileMode, Lun, NewDisk, NewUnit, Placement, Poll, WriteCache};
use disk::StorageSpec;
use std::path::PathBuf;
use std::str::FromStr;

/// A SCSI device and who serves it.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct ScsiFlags {
    /// Permission bits of the socket, in octal [default: 0600]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<FileMode>,
    /// Owner of the socket, a user name or number
    #[arg(long, value_name = "USER")]
    pub socket_owner: Option<String>,
    /// Group of the socket, a group name or number
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,

    /// Request queues the guest may use, 1 to 254 [default: 254]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub queues: Option<u16>,
    /// Largest ring, in descriptors: a power of two up to 32768 [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub queue_size: Option<u16>,
    /// Logical block size of all its disks in bytes, 512 or 4096 [default: 512, or what their storage needs]
    #[arg(long, value_name = "BYTES", help_heading = "Device")]
    pub block_size: Option<u32>,
    /// Whether the guest finds disks with a write cache, or may turn it on and off itself [default: on]
    #[arg(long, value_name = "WHETHER", help_heading = "Device")]
    pub write_cache: Option<WriteCache>,

    /// Who serves the queues: shared, one (worker), per-queue, or a number of workers
    #[arg(long, value_name = "PLACEMENT", default_value = "shared", help_heading = "Execution")]
    pub workers: Placement,
    /// How long a worker looks for work before it sleeps: off, fixed=US, adaptive, adaptive=US [default: adaptive]
    #[arg(long, value_name = "WINDOW", help_heading = "Execution")]
    pub poll: Option<Poll>,
    /// CPUs of the export's own workers, as in 0-3,8
    #[arg(long, value_name = "LIST", help_heading = "Execution")]
    pub cpus: Option<CpuList>,

    /// Its limits.
    #[command(flatten)]
    pub limits: LimitFlags,
}

impl ScsiFlags {
    /// The device as one value, not yet checked, with its limits shared with those of `group`.
    pub fn describe(
        self,
        name: String,
        socket: Option<PathBuf>,
        luns: Vec<NewUnit>,
        group: Option<String>,
    ) -> NewExport {
        NewExport {
            name,
            kind: ExportKind::Scsi,
            socket,
            socket_mode: self.socket_mode,
            socket_owner: self.socket_owner,
            socket_group: self.socket_group,
            socket_fd: None,
            listen: None,
            tls: None,
            storage: None,
            disk: None,
            luns,
            directory: None,
            queues: self.queues,
            queue_size: self.queue_size,
            serial: None,
            block_size: self.block_size,
            write_cache: self.write_cache,
            workers: self.workers,
            poll: self.poll,
            cpus: self.cpus,
            limits: self.limits.limits(group),
        }
    }
}

/// `LUN=WHAT`, as in `0=root` and `1:0=/srv/data.img`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunIs {
    /// Where the guest finds it.
    pub lun: Lun,
    /// What it is.
    pub what: String,
}

impl FromStr for LunIs {
    type Err = String;

    fn from_str(text: &str) -> Result<LunIs, String> {
        let (lun, what) =
            text.split_once('=').filter(|(_, what)| !what.is_empty()).ok_or("use LUN=DISK, as in 0=root")?;
        Ok(LunIs {
            lun: lun.parse().map_err(|error: crate::model::ParseError| error.to_string())?,
            what: what.to_owned(),
        })
    }
}

/// Adds a SCSI device.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct AddScsiArgs {
    /// Name of the export.
    pub name: String,

    /// Path of the vhost-user socket to make.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// A disk of the device, which is open by itself (`vringd ctl disk add`): LUN=DISK, as in 0=root or 1:0=data. There may be several, or none at first
    #[arg(long, value_name = "LUN=DISK")]
    pub lun: Vec<LunIs>,

    /// The device and who serves it.
    #[command(flatten)]
    pub device: ScsiFlags,

    /// Share the limits of this group with its other exports
    #[arg(long, value_name = "NAME", help_heading = "Limits")]
    pub limit_group: Option<String>,
}

impl AddScsiArgs {
    /// The export that is described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError::Options`] for the first field that cannot be used.
    pub fn export(&self) -> Result<NewExport, DescriptionError> {
        let unit = |is: &LunIs| NewUnit { lun: is.lun, disk: is.what.clone(), serial: None };
        let luns = self.lun.iter().map(unit).collect();
        let (name, socket) = (self.name.clone(), Some(self.socket.clone()));
        let mut new = self.device.clone().describe(name, socket, luns, self.limit_group.clone());
        new.check().map_err(DescriptionError::Options)?;
        make_absolute(&mut new).map_err(DescriptionError::Options)?;
        Ok(new)
    }
}

/// Kinds that have a size, and no image.
const MADE_UP: [&str; 2] = ["null", "sim"];

/// The disk behind `[KIND:]IMAGE`, which may begin with the word for a kind, or `KIND:SIZE` of a kind that has no image.
///
/// # Errors
/// A kind that there is not, an option that means nothing to its storage, or one that is missing.
pub fn disk(name: String, image: &str, storage: &StorageFlags) -> Result<NewDisk, FieldError> {
    // A path with a colon in its first name is written with a directory before it.
    let (kind, path) = image.split_once(':').filter(|(kind, _)| !kind.contains('/')).unwrap_or(("file", image));
    if StorageSpec::KINDS.iter().all(|(known, _)| *known != kind) {
        let known: Vec<_> = StorageSpec::KINDS.iter().map(|(known, _)| *known).collect();
        let what = format_args!(
            "`{kind}` is no kind of storage, as {} are; a file of that name is ./{image}",
            known.join(", ")
        );
        return Err(FieldError::new("--lun", what));
    }
    let (path, size) = if MADE_UP.contains(&kind) {
        let size = path.parse().map_err(|_| {
            FieldError::new("--lun", format_args!("{kind} has no image: give it a size, as in {kind}:1G, not `{path}`"))
        })?;
        (None, Some(size))
    } else {
        (Some(PathBuf::from(path)), None)
    };
    let served = Served { kind: kind.to_owned(), kind_option: "the kind", path, path_option: "--lun", size };
    Ok(NewDisk { name, storage: storage.describe(&served)?, shared: false, reservations: None, space_threshold: None })
}
