//! `vringd ctl export add`: exports described by a file, or a disk described by options.

use crate::model::config::{
    ExportKind, FieldError, FileStorage, MemoryStorage, NewExport, NullStorage, SimStorage, Storage,
};
use crate::model::{
    ByteSize, CpuList, Execution, FileMode, IntentLog, Limits, Listen, MemoryFile, Placement, Poll, SyncMode,
    VolumeStorage, WriteCache,
};
use serde::Deserialize;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How to describe the new export.
#[derive(Debug, Clone, clap::Args)]
pub struct AddArgs {
    /// Read the description from a TOML or JSON file: the fields of one export, or `[[export]]` tables as in the
    /// daemon's configuration file. `-` reads TOML from standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "ExportFlags"], required_unless_present = "name")]
    pub file: Option<PathBuf>,

    /// Name of the export.
    #[arg(requires = "socket")]
    pub name: Option<String>,

    /// Options that describe it.
    #[command(flatten)]
    pub flags: Option<ExportFlags>,
}

/// Options that describe an export; the same words as in the configuration file.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("backing").args(["image", "volume", "memory", "null", "sim"]))]
pub struct ExportFlags {
    /// Path at which the vhost-user socket is made.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// Permission bits of the socket, in octal.
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<FileMode>,

    /// Owner of the socket: a user name or number.
    #[arg(long, value_name = "USER")]
    pub socket_owner: Option<String>,

    /// Group of the socket: a group name or number.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,

    /// Serve this image or block device.
    #[arg(long, value_name = "PATH")]
    pub image: Option<PathBuf>,

    /// Serve this volume, which `vringd volume create` has made.
    #[arg(long, value_name = "PATH")]
    pub volume: Option<PathBuf>,

    /// Log of the volume, where that is in a file or on a device of its own.
    #[arg(long, value_name = "PATH", requires = "volume", conflicts_with_all = ["image", "memory", "null", "sim"])]
    pub log: Option<PathBuf>,

    /// Serve this much anonymous memory.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,

    /// Serve a disk of this size that drops writes and reads as zeroes.
    #[arg(long, value_name = "SIZE")]
    pub null: Option<ByteSize>,

    /// Serve a modelled device of this size, with 100us latency; a file can say more.
    #[arg(long, value_name = "SIZE")]
    pub sim: Option<ByteSize>,

    /// Put an intent log of this size over memory, null or sim, which lives as long as they do.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["image", "volume"])]
    pub intent_log: Option<ByteSize>,

    /// When writes to a volume are on stable storage [default: standard].
    #[arg(long, value_name = "MODE", conflicts_with = "image")]
    pub sync: Option<SyncMode>,

    /// Memory for data that is not written back yet, as in 128M [default: a 64th of the host's memory, 64M to 256M].
    #[arg(long, value_name = "SIZE", conflicts_with = "image")]
    pub dirty_memory: Option<ByteSize>,

    /// Where a volume has that memory: auto, none, or a path on tmpfs [default: auto].
    #[arg(long, value_name = "WHERE", requires = "volume", conflicts_with_all = ["image", "memory", "null", "sim"])]
    pub memory_file: Option<MemoryFile>,

    /// Bypass the page cache (O_DIRECT); volumes do so anyway.
    #[arg(long, conflicts_with_all = ["memory", "null", "sim"])]
    pub direct: bool,

    /// Let a volume go through the page cache.
    #[arg(long, requires = "volume", conflicts_with_all = ["direct", "image", "memory", "null", "sim"])]
    pub no_direct: bool,

    /// Refuse writes.
    #[arg(long, conflicts_with_all = ["volume", "null", "sim"])]
    pub read_only: bool,

    /// Where storage calls run: auto, uring, inline or pool=N.
    #[arg(long, conflicts_with_all = ["memory", "null"])]
    pub execution: Option<Execution>,

    /// Do not lock the image: someone else keeps two writers apart.
    #[arg(long, conflicts_with_all = ["memory", "null", "sim"])]
    pub no_lock: bool,

    /// Use huge pages.
    #[arg(long, conflicts_with_all = ["image", "volume", "null", "sim"])]
    pub hugepages: bool,

    /// Number of queues, 1 to 256.
    #[arg(long, value_name = "N")]
    pub queues: Option<u16>,

    /// Largest number of descriptors in a ring: a power of two, 2 to 32768.
    #[arg(long, value_name = "N")]
    pub queue_size: Option<u16>,

    /// Serial number the guest sees, up to 20 characters.
    #[arg(long)]
    pub serial: Option<String>,

    /// Logical block size in bytes, 512 or 4096.
    #[arg(long, value_name = "BYTES")]
    pub block_size: Option<u32>,

    /// Whether the guest finds a disk with a write cache, which it may turn on or off [default: on].
    #[arg(long, value_name = "WHETHER")]
    pub write_cache: Option<WriteCache>,

    /// Which workers its rings get: shared, one, per-queue or a number.
    #[arg(long, value_name = "PLACEMENT", default_value = "shared")]
    pub workers: Placement,

    /// Poll window of its own workers: off, fixed=US or adaptive=US.
    #[arg(long)]
    pub poll: Option<Poll>,

    /// CPUs its own workers are bound to, as in 0-3,5.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,

    /// Most requests a second [default: no limit].
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub limit_iops: Option<u64>,

    /// Requests that may pass at once after a pause [default: a tenth of --limit-iops].
    #[arg(long, value_name = "N", requires = "limit_iops", help_heading = "Limits")]
    pub limit_burst_requests: Option<u64>,

    /// Most bytes a second, read and written, as in 100M [default: no limit].
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub limit_bytes: Option<ByteSize>,

    /// Bytes that may pass at once after a pause, as in 1G [default: a tenth of --limit-bytes].
    #[arg(long, value_name = "SIZE", requires = "limit_bytes", help_heading = "Limits")]
    pub limit_burst_bytes: Option<ByteSize>,

    /// Share the limits of this group with its other exports.
    #[arg(long, value_name = "NAME", help_heading = "Limits")]
    pub limit_group: Option<String>,
}

/// Why there is no description. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum DescriptionError {
    /// cannot read {path}: {source}
    Read {
        /// The file.
        path: PathBuf,
        /// How the system answered.
        source: io::Error,
    },
    /// {path}: {message}
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// {path}: export `{name}`: {source}
    File {
        /// The file.
        path: PathBuf,
        /// The export.
        name: String,
        /// The field at fault.
        source: FieldError,
    },
    /// {0}
    Options(FieldError),
}

impl AddArgs {
    /// The exports that are described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the file and the field.
    pub fn exports(&self) -> Result<Vec<NewExport>, DescriptionError> {
        if let Some(path) = &self.file {
            let mut exports = read(path)?;
            for new in &mut exports {
                let fault =
                    |source, name: &str| DescriptionError::File { path: path.clone(), name: name.into(), source };
                new.check().map_err(|source| fault(source, &new.name))?;
                make_absolute(new).map_err(|source| fault(source, &new.name))?;
            }
            return Ok(exports);
        }
        // The argument parser has seen to it that both are there.
        let (Some(name), Some(flags)) = (&self.name, &self.flags) else {
            let message = "is missing: give a name and options, or --file";
            return Err(DescriptionError::Options(FieldError::new("name", message)));
        };
        let mut new = flags.describe(name).map_err(DescriptionError::Options)?;
        new.check().map_err(DescriptionError::Options)?;
        make_absolute(&mut new).map_err(DescriptionError::Options)?;
        Ok(vec![new])
    }
}

impl ExportFlags {
    /// The description as one value, not yet checked.
    ///
    /// # Errors
    /// A [`FieldError`] for `storage` when no storage was chosen.
    pub fn describe(&self, name: &str) -> Result<NewExport, FieldError> {
        Ok(NewExport {
            name: name.to_owned(),
            kind: ExportKind::Disk,
            socket: Some(self.socket.clone()),
            socket_mode: self.socket_mode,
            socket_owner: self.socket_owner.clone(),
            socket_group: self.socket_group.clone(),
            socket_fd: None,
            listen: None,
            storage: Some(self.storage()?),
            directory: None,
            queues: self.queues,
            queue_size: self.queue_size,
            serial: self.serial.clone(),
            block_size: self.block_size,
            write_cache: self.write_cache,
            workers: self.workers,
            poll: self.poll,
            cpus: self.cpus.clone(),
            limits: self.limits(),
        })
    }

    /// Not those of `add-dir`, because the parser cannot tell whether any option was given where some are nested.
    fn limits(&self) -> Limits {
        Limits {
            iops: self.limit_iops,
            burst_requests: self.limit_burst_requests,
            bytes_per_second: self.limit_bytes,
            burst_bytes: self.limit_burst_bytes,
            group: self.limit_group.clone(),
        }
    }

    fn storage(&self) -> Result<Storage, FieldError> {
        let read_only = self.read_only;
        let intent_log = self.intent_log()?;
        if let Some(path) = self.volume.clone() {
            let least = VolumeStorage::new(path);
            return Ok(Storage::Volume(VolumeStorage {
                log: self.log.clone(),
                sync: self.sync.unwrap_or_default(),
                dirty_memory: self.dirty_memory.unwrap_or(least.dirty_memory),
                memory_file: self.memory_file.clone().unwrap_or_default(),
                direct: !self.no_direct,
                execution: self.execution.unwrap_or_default(),
                lock: !self.no_lock,
                ..least
            }));
        }
        if let Some(path) = self.image.clone() {
            let execution = self.execution.unwrap_or_default();
            return Ok(Storage::File(FileStorage {
                path,
                direct: self.direct,
                read_only,
                execution,
                lock: !self.no_lock,
            }));
        }
        if let Some(size) = self.memory {
            return Ok(Storage::Memory(MemoryStorage {
                size: Some(size),
                path: None,
                hugepages: self.hugepages,
                read_only,
                intent_log,
            }));
        }
        if let Some(size) = self.null {
            return Ok(Storage::Null(NullStorage { size, intent_log }));
        }
        if let Some(size) = self.sim {
            let execution = self.execution.unwrap_or_default();
            return Ok(Storage::Sim(SimStorage { execution, intent_log, ..SimStorage::new(size) }));
        }
        Err(FieldError::new("storage", "is missing: give --image, --volume, --memory, --null or --sim"))
    }

    /// The log over a storage that is made. What only a log has means nothing without one.
    fn intent_log(&self) -> Result<Option<IntentLog>, FieldError> {
        let Some(size) = self.intent_log else {
            let alone = [("sync", self.sync.is_some()), ("dirty_memory", self.dirty_memory.is_some())];
            return match alone.iter().find(|(_, given)| *given && self.volume.is_none()) {
                Some((field, _)) => {
                    Err(FieldError::new(*field, "means nothing without a log: give --volume or --intent-log"))
                }
                None => Ok(None),
            };
        };
        let least = IntentLog::new(size);
        let dirty_memory = self.dirty_memory.unwrap_or(least.dirty_memory);
        Ok(Some(IntentLog { sync: self.sync.unwrap_or_default(), dirty_memory, ..least }))
    }
}

/// `[[export]]` tables, as in the daemon's configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    export: Vec<NewExport>,
}

fn read(path: &Path) -> Result<Vec<NewExport>, DescriptionError> {
    let unreadable = |source| DescriptionError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_to_string(&mut text).map_err(unreadable)?;
    } else {
        text = std::fs::read_to_string(path).map_err(unreadable)?;
    }
    let parsed = if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map(|new| vec![new]).map_err(|error| error.to_string())
    } else {
        parse_toml(&text).map_err(|error| error.to_string().trim_end().to_owned())
    };
    parsed.map_err(|message| DescriptionError::Parse { path: path.to_owned(), message })
}

fn parse_toml(text: &str) -> Result<Vec<NewExport>, toml::de::Error> {
    let tables = text.parse::<toml::Table>()?.contains_key("export");
    if tables { toml::from_str::<Tables>(text).map(|tables| tables.export) } else { Ok(vec![toml::from_str(text)?]) }
}

/// The daemon has a working directory of its own: a relative path means the one of this command.
pub(super) fn make_absolute(new: &mut NewExport) -> Result<(), FieldError> {
    let absolute = |field: &str, path: &mut PathBuf| {
        *path = std::path::absolute(&*path).map_err(|error| FieldError::new(field, error))?;
        Ok(())
    };
    if let Some(socket) = &mut new.socket {
        absolute("socket", socket)?;
    }
    if let Some(Listen::Unix(path)) = &mut new.listen {
        absolute("listen", path)?;
    }
    if let Some(directory) = &mut new.directory {
        absolute("directory.path", &mut directory.path)?;
    }
    match &mut new.storage {
        Some(Storage::File(FileStorage { path, .. }) | Storage::Memory(MemoryStorage { path: Some(path), .. })) => {
            absolute("storage.path", path)
        }
        Some(Storage::Volume(volume)) => {
            absolute("storage.path", &mut volume.path)?;
            volume.log.as_mut().map_or(Ok(()), |log| absolute("storage.log", log))
        }
        Some(Storage::Memory(_) | Storage::Null(_) | Storage::Sim(_)) | None => Ok(()),
    }
}
