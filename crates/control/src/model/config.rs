//! An export as a person describes it: the `[[export]]` table of the configuration file and the body of
//! `POST /v1/exports` are this same type.

use super::directory::Directory;
use super::limits::Limits;
use super::p9::Listen;
use super::volume::{IntentLog, SyncMode, VolumeStorage};
use super::write_cache::WriteCache;
use serde::de::{self, DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use utoipa::ToSchema;
use values::{ByteSize, CpuList, Execution, FileMode, Placement, Poll, Span};

/// What an export offers to its guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportKind {
    /// A disk (virtio-blk).
    #[default]
    Disk,
    /// A directory (virtio-fs or 9P).
    Dir,
}

impl fmt::Display for ExportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Dir => "dir",
        })
    }
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
    /// For a directory over 9p without a device: where clients connect, each of which is served by a ring of its own.
    /// Descriptors only in the configuration file and on the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
    /// What stands behind a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// What a directory serves, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Directory>,
    /// Number of queues the device offers; when left out, the number of CPUs up to 8. 1 to 256 for a disk. For a
    /// directory 1 to 64 request queues; with virtio-fs its queue for urgent requests comes on top. With `listen` the
    /// clients that may be connected, 1 to 1024; 64 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// Largest number of descriptors in a ring: a power of two, 2 to 32768; 1024 when left out. A frontend that sets
    /// ring sizes itself is bound by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_size: Option<u16>,
    /// Serial number the guest of a disk sees, up to 20 ASCII characters; the name's first 20 characters when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Logical block size of a disk in bytes, 512 or 4096; 512 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// The write cache of a disk as a guest finds it, which may turn it on or off; `on` when left out.
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

/// What stands behind a disk.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Storage {
    /// A regular file or a block device.
    File(FileStorage),
    /// A volume: a file or block device with an intent log.
    Volume(VolumeStorage),
    /// Memory: requests are copies, without system calls.
    Memory(MemoryStorage),
    /// Nothing: reads give zeroes, writes are dropped.
    Null(NullStorage),
    /// A model of a device, for experiments: contents in memory, modelled time, injected errors.
    Sim(SimStorage),
}

/// By hand, because the derived form of a tagged enum forgets which field an error is about.
impl<'de> Deserialize<'de> for Storage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = serde_json::Map::deserialize(deserializer)?;
        let kind = table.remove("kind").ok_or_else(|| D::Error::missing_field("kind"))?;
        match kind.as_str() {
            Some("file") => fields(table).map(Self::File),
            Some("volume") => fields(table).map(Self::Volume),
            Some("memory") => fields(table).map(Self::Memory),
            Some("null") => fields(table).map(Self::Null),
            Some("sim") => fields(table).map(Self::Sim),
            _ => Err(D::Error::custom(format_args!(
                "invalid field `kind`: {kind} is none of file, volume, memory, null, sim"
            ))),
        }
    }
}

/// The fields of one kind of storage; an error names the field.
fn fields<T: DeserializeOwned, E: de::Error>(table: serde_json::Map<String, serde_json::Value>) -> Result<T, E> {
    serde_path_to_error::deserialize(serde_json::Value::Object(table)).map_err(|error| {
        let (mut path, message) = (error.path().to_string(), error.inner().to_string());
        // An unknown or missing field is named by its message already, unless it is a field of a field.
        if path == "." || message.contains(&format!(" field `{path}`")) {
            return E::custom(message);
        }
        let named = ["unknown field `", "missing field `"].iter().find_map(|prefix| message.strip_prefix(prefix));
        if let Some((leaf, _)) = named.and_then(|rest| rest.split_once('`'))
            && !path.ends_with(&format!(".{leaf}"))
        {
            path = format!("{path}.{leaf}");
        }
        E::custom(format_args!("invalid field `{path}`: {message}"))
    })
}

/// A regular file or a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileStorage {
    /// Path of the image or device.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Bypass the page cache (O_DIRECT).
    #[serde(default)]
    pub direct: bool,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Where its calls run.
    #[serde(default)]
    pub execution: Execution,
    /// Lock the image, so that no two writers open it; true when left out.
    #[serde(default = "FileStorage::lock_default")]
    pub lock: bool,
}

impl FileStorage {
    fn lock_default() -> bool {
        true
    }
}

/// Memory, anonymous or of a file on tmpfs or hugetlbfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryStorage {
    /// Capacity; that of the file when left out. Anonymous memory needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// File on tmpfs or hugetlbfs that is mapped; anonymous memory when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Use huge pages for anonymous memory.
    #[serde(default)]
    pub hugepages: bool,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Intent log over it; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent_log: Option<IntentLog>,
}

/// Nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NullStorage {
    /// Capacity.
    pub size: ByteSize,
    /// Intent log over it; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent_log: Option<IntentLog>,
}

/// How simulated latencies are spread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Always the mean.
    #[default]
    Constant,
    /// Evenly between mean × (1 − spread) and mean × (1 + spread).
    Uniform,
    /// Normal with standard deviation mean × spread, cut at 0.
    Normal,
    /// Exponential with the given mean; `latency_spread` is not used.
    Exponential,
}

/// A model of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SimStorage {
    /// Capacity.
    pub size: ByteSize,
    /// Mean latency of a read; 100us when left out.
    #[serde(default = "SimStorage::latency_default")]
    pub read_latency: Span,
    /// Mean latency of a write; 100us when left out.
    #[serde(default = "SimStorage::latency_default")]
    pub write_latency: Span,
    /// Shape of the latencies.
    #[serde(default)]
    pub distribution: Distribution,
    /// Spread of the latencies relative to their mean, 0 to 1; 0 when left out.
    #[serde(default)]
    pub latency_spread: f64,
    /// Number of operations the device serves at once, 1 to 65535; 32 when left out.
    #[serde(default = "SimStorage::channels_default")]
    pub channels: u16,
    /// Time a flush takes, alone or behind a write that must be durable; 0 when left out.
    #[serde(default)]
    pub flush_cost: Span,
    /// Time that a read or write takes longer when it does not follow the last one of its channel; 0 when left out.
    #[serde(default)]
    pub seek: Span,
    /// Share of operations that fail, 0 to 1; 0 when left out.
    #[serde(default)]
    pub error_rate: f64,
    /// Which operation, counted from 1, panics the daemon's own code on its arrival, once: for tests of what that takes
    /// down. 0, when left out, is none.
    #[serde(default)]
    pub panic_after: u64,
    /// Seed of the random numbers: equal seeds give equal runs.
    #[serde(default)]
    pub seed: u64,
    /// Who waits for the device: nobody, the worker (`inline`) or a pool.
    #[serde(default)]
    pub execution: Execution,
    /// Intent log over it; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent_log: Option<IntentLog>,
}

impl SimStorage {
    /// A model of the given capacity with every other field at its default.
    pub fn new(size: ByteSize) -> Self {
        Self {
            size,
            read_latency: Self::latency_default(),
            write_latency: Self::latency_default(),
            distribution: Distribution::default(),
            latency_spread: 0.0,
            channels: Self::channels_default(),
            flush_cost: Span::default(),
            seek: Span::default(),
            error_rate: 0.0,
            panic_after: 0,
            seed: 0,
            execution: Execution::default(),
            intent_log: None,
        }
    }

    fn latency_default() -> Span {
        Span(std::time::Duration::from_micros(100))
    }

    fn channels_default() -> u16 {
        32
    }
}

/// A field whose value cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path of the field, as in `storage.size`.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl FieldError {
    /// An error about the named field.
    pub fn new(field: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { field: field.into(), message: message.to_string() }
    }
}

impl NewExport {
    /// Queues of one disk, at most: what vhost-user's multiqueue frontends in use can address.
    pub const QUEUES_MAX: u16 = 256;
    /// Request queues of one directory, at most.
    pub const REQUEST_QUEUES_MAX: u16 = 64;
    /// Connections of one 9p stream, at most.
    pub const CONNECTIONS_MAX: u16 = 1024;
    /// The connections that are meant when they are left out.
    pub const CONNECTIONS_DEFAULT: u16 = 64;
    /// Descriptors in a split ring, at most (virtio 1.3, 2.7).
    pub const QUEUE_SIZE_MAX: u16 = 32768;
    /// Longest serial number in bytes: VIRTIO_BLK_ID_BYTES (linux/virtio_blk.h; virtio 1.3, 5.2.6).
    pub const SERIAL_BYTES_MAX: usize = 20;
    /// Longest socket path in bytes: `sun_path` of `struct sockaddr_un` less its terminator (unix(7)).
    pub const SOCKET_PATH_BYTES_MAX: usize = 107;

    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        self.check_name()?;
        self.check_socket()?;
        self.check_device()?;
        self.limits.check()?;
        match self.kind {
            ExportKind::Disk => self.check_disk(),
            ExportKind::Dir => self.check_dir(),
        }
    }

    /// What stands behind a disk.
    ///
    /// # Errors
    /// A [`FieldError`] for `storage` when there is none.
    pub fn storage(&self) -> Result<&Storage, FieldError> {
        self.storage.as_ref().ok_or_else(|| FieldError::new("storage", "is missing: say what stands behind the disk"))
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

    /// The number of queues: as given, or one a CPU up to 8, so that a guest has what it can use and no more. Of a stream,
    /// the connections.
    pub fn queues(&self) -> u16 {
        if self.listen.is_some() {
            return self.queues.unwrap_or(Self::CONNECTIONS_DEFAULT);
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        self.queues.unwrap_or(u16::try_from(cpus.min(8)).unwrap_or(8))
    }

    /// The largest number of descriptors in a ring: as given, or its default.
    pub fn queue_size(&self) -> u16 {
        self.queue_size.unwrap_or(1024)
    }

    /// The serial number: as given, or the first bytes of the name (which is ASCII once checked).
    pub fn serial(&self) -> String {
        self.serial.clone().unwrap_or_else(|| self.name.chars().take(Self::SERIAL_BYTES_MAX).collect())
    }

    fn check_name(&self) -> Result<(), FieldError> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let dots = self.name.bytes().all(|b| b == b'.');
        if dots || self.name.len() > 64 || !self.name.bytes().all(legal) {
            return Err(FieldError::new("name", "must be 1 to 64 letters, digits, `.`, `_` or `-` (not dots alone)"));
        }
        Ok(())
    }

    fn check_device(&self) -> Result<(), FieldError> {
        let most = match self.kind {
            ExportKind::Disk => Self::QUEUES_MAX,
            ExportKind::Dir if self.listen.is_some() => Self::CONNECTIONS_MAX,
            ExportKind::Dir => Self::REQUEST_QUEUES_MAX,
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
        if let Some(size) = self.block_size.filter(|size| ![512, 4096].contains(size)) {
            return Err(FieldError::new("block_size", format_args!("must be 512 or 4096, not {size}")));
        }
        let serial =
            |text: &&String| text.len() > Self::SERIAL_BYTES_MAX || !text.bytes().all(|b| (0x20..0x7f).contains(&b));
        if self.serial.as_ref().is_some_and(|text| serial(&text)) {
            let most = Self::SERIAL_BYTES_MAX;
            return Err(FieldError::new("serial", format_args!("must be at most {most} printable ASCII characters")));
        }
        self.storage()?.check(self.block_size_bytes())
    }

    fn check_dir(&self) -> Result<(), FieldError> {
        let of_disks = [
            ("storage", self.storage.is_some()),
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

impl Storage {
    /// The kind, as it is written.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Volume(_) => "volume",
            Self::Memory(_) => "memory",
            Self::Null(_) => "null",
            Self::Sim(_) => "sim",
        }
    }

    /// The intent log over a storage that is made, not found.
    pub fn intent_log(&self) -> Option<&IntentLog> {
        match self {
            Self::File(_) | Self::Volume(_) => None,
            Self::Memory(memory) => memory.intent_log.as_ref(),
            Self::Null(null) => null.intent_log.as_ref(),
            Self::Sim(sim) => sim.intent_log.as_ref(),
        }
    }

    /// Says when writes are on stable storage, where there is a log that it concerns.
    pub fn set_sync(&mut self, sync: SyncMode) {
        let log = match self {
            Self::File(_) => None,
            Self::Volume(volume) => {
                volume.sync = sync;
                None
            }
            Self::Memory(memory) => memory.intent_log.as_mut(),
            Self::Null(null) => null.intent_log.as_mut(),
            Self::Sim(sim) => sim.intent_log.as_mut(),
        };
        if let Some(log) = log {
            log.sync = sync;
        }
    }

    /// The files behind it, each with the name of its field: images, volumes, logs.
    pub fn paths(&self) -> Vec<(&'static str, &Path)> {
        let paths = match self {
            Self::File(file) => [Some(("storage.path", &file.path)), None],
            Self::Volume(volume) => {
                [Some(("storage.path", &volume.path)), volume.log.as_ref().map(|log| ("storage.log", log))]
            }
            Self::Memory(memory) => [memory.path.as_ref().map(|path| ("storage.path", path)), None],
            Self::Null(_) | Self::Sim(_) => [None, None],
        };
        paths.into_iter().flatten().map(|(field, path)| (field, path.as_path())).collect()
    }

    fn check(&self, block_size_bytes: u32) -> Result<(), FieldError> {
        if let Some(log) = self.intent_log() {
            log.check()?;
        }
        match self {
            Self::File(file) if file.path.as_os_str().is_empty() => {
                Err(FieldError::new("storage.path", "is empty: give the path of an image or block device"))
            }
            Self::File(_) => Ok(()),
            Self::Volume(volume) => volume.check(),
            Self::Memory(memory) => {
                if memory.intent_log.is_some() && memory.path.is_some() {
                    let message = "is for anonymous memory: a file would keep what only its log explains; for a file, make \
                                   a volume of it (`vringd volume create`)";
                    return Err(FieldError::new("storage.intent_log", message));
                }
                if memory.intent_log.is_some() && memory.read_only {
                    return Err(FieldError::new("storage.intent_log", "is for writes, and `read_only` refuses them"));
                }
                if memory.hugepages && memory.path.is_some() {
                    let message = "is for anonymous memory; for a file, put the file on hugetlbfs";
                    return Err(FieldError::new("storage.hugepages", message));
                }
                match memory.size {
                    None if memory.path.is_none() => {
                        Err(FieldError::new("storage.size", "is missing: anonymous memory needs it"))
                    }
                    None => Ok(()),
                    Some(size) => check_size(size, block_size_bytes),
                }
            }
            Self::Null(null) => check_size(null.size, block_size_bytes),
            Self::Sim(sim) => sim.check(block_size_bytes),
        }
    }
}

impl SimStorage {
    fn check(&self, block_size_bytes: u32) -> Result<(), FieldError> {
        check_size(self.size, block_size_bytes)?;
        for (field, value) in [("storage.latency_spread", self.latency_spread), ("storage.error_rate", self.error_rate)]
        {
            // Written so that NaN is refused as well.
            if !(0.0..=1.0).contains(&value) {
                return Err(FieldError::new(field, format_args!("must be from 0 to 1, not {value}")));
            }
        }
        if self.channels == 0 {
            return Err(FieldError::new("storage.channels", "must be at least 1"));
        }
        Ok(())
    }
}

fn check_size(size: ByteSize, block_size_bytes: u32) -> Result<(), FieldError> {
    // Offsets are signed in the kernel's file interface (loff_t).
    if size.0 == 0 || size.0 > i64::MAX as u64 || !size.0.is_multiple_of(u64::from(block_size_bytes)) {
        let message = format!("must be a positive multiple of the block size ({block_size_bytes} bytes), not {size}");
        return Err(FieldError::new("storage.size", message));
    }
    Ok(())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
