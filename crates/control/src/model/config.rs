//! An export as a person describes it: the `[[export]]` table of the configuration file and the body of
//! `POST /v1/exports` are this same type.

use super::directory::Directory;
use super::limits::Limits;
use super::name::check_name;
use super::scsi::{NewUnit, check_units};
use super::write_cache::WriteCache;
use disk::StorageSpec;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use utoipa::ToSchema;
use values::{CpuList, FieldError, FileMode, Listen, Placement, Poll, Tls};

/// What an export offers to its guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportKind {
    /// A disk (virtio-blk).
    #[default]
    Disk,
    /// A directory (virtio-fs or 9P).
    Dir,
    /// Disks behind one device (virtio-scsi).
    Scsi,
}

impl fmt::Display for ExportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Dir => "dir",
            Self::Scsi => "scsi",
        })
    }
}

/// What stands behind a disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Backing<'a> {
    /// A storage of the export's own, which is opened and closed with it.
    Storage(&'a StorageSpec),
    /// The disk of this name.
    Disk(&'a str),
}

/// Description of an export. Give one of `socket`, `socket_fd` and `listen`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewExport {
    /// Name, unique in the daemon: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// What it is.
    #[serde(default)]
    pub kind: ExportKind,
    /// Path at which the vhost-user socket is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket, in octal; 0600 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<FileMode>,
    /// Owner of the socket: a user name or number; the daemon's user when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Group of the socket: a group name or number; the daemon's group when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Number of an inherited descriptor that is a listening or connected vhost-user socket. Only in the
    /// configuration file and on the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_fd: Option<i32>,
    /// For a disk over NBD, or a directory over 9p without a device: where clients connect, each of which is served by a ring of
    /// its own.
    /// Descriptors only in the configuration file and on the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
    /// With `listen`, for a disk: NBD clients have to begin TLS, and are told nothing before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// What stands behind a disk that belongs to this export alone. A disk has this or `disk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,
    /// Name of the disk that it serves, which is open by itself, and not `shared`. Several exports may serve one that is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// The disks of a SCSI device, each at its LUN. There may be none at first: they come and go while it serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub luns: Vec<NewUnit>,
    /// What a directory serves, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Directory>,
    /// Number of queues the frontend may use: 1 to 256 for a disk, 1 to 254 request queues for a SCSI device, to which its control
    /// and event queues come, 1 to 64 request queues for a directory; with virtio-fs its queue for urgent requests comes on top. When left out, as many as can be. With `listen` the clients that may be
    /// connected, 1 to 1024; when left out 64 for a directory and 16 for a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// Largest number of descriptors in a ring: a power of two, 2 to 32768; 1024 when left out. A frontend that sets
    /// ring sizes itself is bound by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_size: Option<u16>,
    /// Serial number the guest of a disk sees, up to 20 ASCII characters; the name's first 20 characters when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Logical block size of a disk, or of all disks of a SCSI device, in bytes, 512 or 4096; 512 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// The write cache of a disk, or of all disks of a SCSI device, as a guest finds it; `on` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<WriteCache>,
    /// Placement of its rings on workers; `shared` when left out.
    #[serde(default)]
    pub workers: Placement,
    /// Poll window of its own workers; `adaptive` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
    /// CPUs its own workers are bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Requests and bytes a second, and the group whose limits it shares; unlimited when left out.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

impl NewExport {
    /// Queues of one disk, at most: what vhost-user's multiqueue frontends in use can address.
    pub const QUEUES_MAX: u16 = 256;
    /// Request queues of one SCSI device, at most: a vhost-user message names a queue by 8 bits, and two are for control and events.
    pub const SCSI_QUEUES_MAX: u16 = 254;
    /// Request queues of one directory, at most.
    pub const REQUEST_QUEUES_MAX: u16 = 64;
    /// Connections of one stream, at most.
    pub const CONNECTIONS_MAX: u16 = 1024;
    /// The connections that are meant when they are left out: of a directory.
    pub const CONNECTIONS_DEFAULT: u16 = 64;
    /// Of a disk, whose clients may have a lot of data under way.
    pub const DISK_CONNECTIONS_DEFAULT: u16 = 16;
    /// Descriptors in a split ring, at most (virtio 1.3, 2.7).
    pub const QUEUE_SIZE_MAX: u16 = 32768;
    /// Longest serial number in bytes: VIRTIO_BLK_ID_BYTES (linux/virtio_blk.h; virtio 1.3, 5.2.6).
    pub const SERIAL_BYTES_MAX: usize = 20;

    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_name("name", &self.name)?;
        self.check_socket()?;
        self.check_device()?;
        self.limits.check()?;
        match self.kind {
            ExportKind::Disk => self.check_disk(),
            ExportKind::Dir => self.check_dir(),
            ExportKind::Scsi => self.check_scsi(),
        }
    }

    /// What stands behind a disk.
    ///
    /// # Errors
    /// A [`FieldError`] for `storage` when there is nothing, for `disk` when there are two things.
    pub fn backing(&self) -> Result<Backing<'_>, FieldError> {
        match (&self.storage, &self.disk) {
            (Some(storage), None) => Ok(Backing::Storage(storage)),
            (None, Some(disk)) => Ok(Backing::Disk(disk)),
            (Some(_), Some(_)) => Err(FieldError::new("disk", "excludes `storage`: give one of the two")),
            (None, None) => Err(FieldError::new("storage", "is missing: say what stands behind the disk")),
        }
    }

    /// What a directory serves.
    ///
    /// # Errors
    /// A [`FieldError`] for `directory` when there is nothing.
    pub fn directory(&self) -> Result<&Directory, FieldError> {
        let message = "is missing: say which directory to serve, as in directory = { path = \"/srv/data\" }";
        self.directory.as_ref().ok_or_else(|| FieldError::new("directory", message))
    }

    /// The logical block size, in bytes: as given, or its default.
    pub fn block_size_bytes(&self) -> u32 {
        self.block_size.unwrap_or(512)
    }

    /// The number of queues: as given, or all that there can be. How many a guest has is up to its frontend (QEMU: one a vCPU of
    /// a disk), and one that wants more than there are does not start, or hangs; what it leaves costs nothing. Of a stream, the
    /// connections.
    pub fn queues(&self) -> u16 {
        self.queues.unwrap_or(match (self.kind, self.listen.is_some()) {
            (ExportKind::Disk, false) => Self::QUEUES_MAX,
            (ExportKind::Disk, true) => Self::DISK_CONNECTIONS_DEFAULT,
            (ExportKind::Dir, false) => Self::REQUEST_QUEUES_MAX,
            (ExportKind::Dir, true) => Self::CONNECTIONS_DEFAULT,
            (ExportKind::Scsi, _) => Self::SCSI_QUEUES_MAX,
        })
    }

    /// The largest number of descriptors in a ring: as given, or its default.
    pub fn queue_size(&self) -> u16 {
        self.queue_size.unwrap_or(1024)
    }

    /// The serial number: as given, or the first bytes of the name (which is ASCII once checked).
    pub fn serial(&self) -> String {
        self.serial.clone().unwrap_or_else(|| self.name.chars().take(Self::SERIAL_BYTES_MAX).collect())
    }

    fn check_device(&self) -> Result<(), FieldError> {
        let most = match self.kind {
            _ if self.listen.is_some() => Self::CONNECTIONS_MAX,
            ExportKind::Disk => Self::QUEUES_MAX,
            ExportKind::Dir => Self::REQUEST_QUEUES_MAX,
            ExportKind::Scsi => Self::SCSI_QUEUES_MAX,
        };
        if let Some(queues) = self.queues.filter(|queues| !(1..=most).contains(queues)) {
            return Err(FieldError::new("queues", format_args!("must be 1 to {most}, not {queues}")));
        }
        if let Some(size) =
            self.queue_size.filter(|size| !size.is_power_of_two() || !(2..=Self::QUEUE_SIZE_MAX).contains(size))
        {
            let most = Self::QUEUE_SIZE_MAX;
            return Err(FieldError::new(
                "queue_size",
                format_args!("must be a power of two from 2 to {most}, not {size}"),
            ));
        }
        if self.workers == Placement::Shared && self.cpus.is_some() {
            return Err(FieldError::new(
                "cpus",
                "binds an export's own workers: set `workers` to one, per-queue or a number",
            ));
        }
        Ok(())
    }

    fn check_disk(&self) -> Result<(), FieldError> {
        if self.directory.is_some() {
            return Err(FieldError::new("directory", "goes with `kind = \"dir\"`: a disk has `storage`"));
        }
        self.refuse_luns()?;
        self.check_block_size()?;
        let serial =
            |text: &&String| text.len() > Self::SERIAL_BYTES_MAX || !text.bytes().all(|b| (0x20..0x7f).contains(&b));
        if self.serial.as_ref().is_some_and(|text| serial(&text)) {
            let most = Self::SERIAL_BYTES_MAX;
            return Err(FieldError::new("serial", format_args!("must be at most {most} printable ASCII characters")));
        }
        match self.backing()? {
            Backing::Storage(storage) if storage.passes() => {
                let message = "`sg` passes SCSI commands through, and a disk has none: describe a disk of its own (`[[disk]]`) with it, \
                               and an export of `kind = \"scsi\"` with that among its `luns`; or use `vringd scsi`";
                Err(FieldError::new("storage.kind", message))
            }
            Backing::Storage(storage) => storage.check(self.block_size_bytes()),
            Backing::Disk(name) => check_name("disk", name),
        }
    }

    fn check_block_size(&self) -> Result<(), FieldError> {
        match self.block_size.filter(|size| ![512, 4096].contains(size)) {
            Some(size) => Err(FieldError::new("block_size", format_args!("must be 512 or 4096, not {size}"))),
            None => Ok(()),
        }
    }

    fn refuse_luns(&self) -> Result<(), FieldError> {
        if self.luns.is_empty() {
            return Ok(());
        }
        Err(FieldError::new("luns", "goes with `kind = \"scsi\"`: a disk has `storage`, a directory `directory`"))
    }

    fn check_scsi(&self) -> Result<(), FieldError> {
        let of_others = [
            ("storage", self.storage.is_some()),
            ("disk", self.disk.is_some()),
            ("directory", self.directory.is_some()),
        ];
        if let Some((field, _)) = of_others.iter().find(|(_, given)| *given) {
            let message = "is not for a SCSI device: name its disks, as in luns = [{ lun = 0, disk = \"root\" }]";
            return Err(FieldError::new(*field, message));
        }
        if self.serial.is_some() {
            return Err(FieldError::new("serial", "is for one disk: each of `luns` has its own"));
        }
        self.check_block_size()?;
        check_units(&self.luns)
    }

    fn check_dir(&self) -> Result<(), FieldError> {
        self.refuse_luns()?;
        let of_disks = [
            ("storage", self.storage.is_some()),
            ("disk", self.disk.is_some()),
            ("serial", self.serial.is_some()),
            ("block_size", self.block_size.is_some()),
            ("write_cache", self.write_cache.is_some()),
        ];
        if let Some((field, _)) = of_disks.iter().find(|(_, given)| *given) {
            return Err(FieldError::new(*field, "is for disks: a directory has `directory`"));
        }
        self.directory()?.check()
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
