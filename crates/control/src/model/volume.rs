//! Volumes: a storage with an intent log, as a person describes it and as it is shown.

use super::config::FieldError;
use super::latency::LatencySummary;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use utoipa::ToSchema;
use values::{ByteSize, Execution};
use values::{ParseError, text_value};

/// When a guest's write is on stable storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SyncMode {
    /// When the guest asks for it: by a flush, or by a write that must be durable
    #[default]
    Standard,
    /// Before every write is answered
    Always,
    /// Some seconds later: flushes are answered at once, and a power cut loses what they covered
    Disabled,
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standard => "standard",
            Self::Always => "always",
            Self::Disabled => "disabled",
        })
    }
}

/// Where data lies that is not written back yet: in a file of shared memory it outlives the daemon's process, not the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MemoryFile {
    /// In a file of its own where the host keeps shared memory.
    #[default]
    Auto,
    /// In the process alone: what a guest did not flush is lost when the daemon is killed.
    None,
    /// In this file, on tmpfs.
    Path(PathBuf),
}

impl MemoryFile {
    const EXPECTED: &'static str = "a memory file: auto, none, or an absolute path on tmpfs";
}

impl FromStr for MemoryFile {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            path if path.starts_with('/') => Ok(Self::Path(path.into())),
            _ => Err(ParseError::new(text, Self::EXPECTED)),
        }
    }
}

impl fmt::Display for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            // It was read from text.
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

text_value!(MemoryFile, string, "a memory file: auto, none, or an absolute path on tmpfs", "^(auto|none|/.*)$", "auto");

/// A volume: a file or block device that `vringd volume create` has made, which has an intent log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeStorage {
    /// Path of the volume.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Path of its log, for a volume whose log is in a file or on a device of its own; left out where the log lies in the
    /// volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub log: Option<PathBuf>,
    /// When writes are on stable storage.
    #[serde(default)]
    pub sync: SyncMode,
    /// Memory for data that is not written back yet, 1M to 64G; when left out, a 64th of the host's memory, but 64M to 256M.
    #[serde(default = "IntentLog::dirty_memory_default")]
    pub dirty_memory: ByteSize,
    /// Where that memory is: `auto`, `none` or a path on tmpfs. In a file it outlives a killed daemon.
    #[serde(default)]
    pub memory_file: MemoryFile,
    /// Bypass the page cache (O_DIRECT); true when left out.
    #[serde(default = "VolumeStorage::yes")]
    pub direct: bool,
    /// Where the calls of the storage below run.
    #[serde(default)]
    pub execution: Execution,
    /// Lock volume and log, so that no two writers open them; true when left out.
    #[serde(default = "VolumeStorage::yes")]
    pub lock: bool,
}

/// An intent log for storage that is made, not found: as long as that lives, and no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentLog {
    /// Size of the log, 1M to 1T.
    pub size: ByteSize,
    /// When writes are on stable storage, or where the model's stable storage is.
    #[serde(default)]
    pub sync: SyncMode,
    /// Memory for data that is not written back yet, 1M to 64G; when left out, a 64th of the host's memory, but 64M to 256M.
    #[serde(default = "IntentLog::dirty_memory_default")]
    pub dirty_memory: ByteSize,
}

impl VolumeStorage {
    /// The volume at `path` with every other field at its default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            log: None,
            sync: SyncMode::default(),
            dirty_memory: IntentLog::dirty_memory_default(),
            memory_file: MemoryFile::default(),
            direct: true,
            execution: Execution::default(),
            lock: true,
        }
    }

    fn yes() -> bool {
        true
    }

    pub(super) fn check(&self) -> Result<(), FieldError> {
        if self.path.as_os_str().is_empty() {
            return Err(FieldError::new("storage.path", "is empty: give the path of a volume"));
        }
        if self.log.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err(FieldError::new("storage.log", "is empty: give the path of the log, or leave it out"));
        }
        check_dirty_memory("storage.dirty_memory", self.dirty_memory)
    }
}

impl IntentLog {
    /// Least size of a log, in bytes.
    pub const SIZE_MIN: u64 = 1 << 20;
    /// Largest size of a log, in bytes.
    pub const SIZE_MAX: u64 = 1 << 40;
    /// Least memory for data that is not written back yet, in bytes.
    pub const DIRTY_MEMORY_MIN: u64 = 1 << 20;
    /// Most memory for data that is not written back yet, in bytes.
    pub const DIRTY_MEMORY_MAX: u64 = 64 << 30;

    /// A log of this size with every other field at its default.
    pub fn new(size: ByteSize) -> Self {
        Self { size, sync: SyncMode::default(), dirty_memory: Self::dirty_memory_default() }
    }

    /// The memory for data that is not written back yet, where nobody says how much: a 64th of this host's, but
    /// 64 MiB to 256 MiB.
    pub fn dirty_memory_default() -> ByteSize {
        let host = rustix::system::sysinfo();
        dirty_memory_on(host.totalram.saturating_mul(u64::from(host.mem_unit)))
    }

    pub(super) fn check(&self) -> Result<(), FieldError> {
        if !(Self::SIZE_MIN..=Self::SIZE_MAX).contains(&self.size.0) || !self.size.0.is_multiple_of(4096) {
            let message = format!("must be 1M to 1T, a multiple of 4096 bytes, not {}", self.size);
            return Err(FieldError::new("storage.intent_log.size", message));
        }
        check_dirty_memory("storage.intent_log.dirty_memory", self.dirty_memory)
    }
}

/// The memory for what is dirty on a host with so many bytes. More of it makes write-back cheaper (more to sort, and more of
/// it written over before it goes anywhere), but it is taken from tmpfs for each volume, at once: a host with many volumes and
/// little memory has it left for its guests.
fn dirty_memory_on(host_bytes: u64) -> ByteSize {
    const MIB: u64 = 1 << 20;
    ByteSize((host_bytes / 64 / MIB * MIB).clamp(64 * MIB, 256 * MIB))
}

fn check_dirty_memory(field: &str, size: ByteSize) -> Result<(), FieldError> {
    if !(IntentLog::DIRTY_MEMORY_MIN..=IntentLog::DIRTY_MEMORY_MAX).contains(&size.0) {
        return Err(FieldError::new(field, format!("must be 1M to 64G, not {size}")));
    }
    Ok(())
}

/// The intent log of a disk, and what it has done since the export was added. Counts, unless the name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeInfo {
    /// When writes are on stable storage.
    pub sync: SyncMode,
    /// Path of the log; absent when it lies in the volume itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Why it answers every request with an error; absent while it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Size of the log, in bytes.
    pub log_bytes: u64,
    /// Part of the log that is in use: what would be replayed after a power cut, in bytes.
    pub log_used_bytes: u64,
    /// Data in memory that is not written back yet, in bytes.
    pub dirty_bytes: u64,
    /// Most data in memory that is not written back, in bytes: writes wait for room beyond it.
    pub dirty_bytes_max: u64,
    /// Writes that wait for room in memory now.
    pub parked: u64,
    /// Writes that had to wait for room in memory.
    pub parked_writes: u64,
    /// Times that a commit had to wait for room in the log.
    pub parked_commits: u64,
    /// Commits: sequential writes to the log, each with the flush behind it.
    pub commits: u64,
    /// Requests that waited for a commit: flushes and durable writes. Divided by `commits`, how many share one.
    pub committed_requests: u64,
    /// Data in commits, in blocks of 4096 bytes.
    pub committed_blocks: u64,
    /// Bytes written to the log.
    pub committed_bytes: u64,
    /// Flushes that had nothing to wait for: what was written before them was safe already.
    pub flushes_for_nothing: u64,
    /// Commits that failed: their requests were answered with an error.
    pub log_errors: u64,
    /// Data written back to the storage below, in bytes.
    pub written_back_bytes: u64,
    /// Times that everything was written back.
    pub sweeps: u64,
    /// Writes to the storage below that failed and are tried again.
    pub write_back_errors: u64,
    /// Time for which commits were held back for more requests to join them, of those that were.
    pub company_wait: LatencySummary,
    /// Time from the begin of a commit to its end.
    pub commit_latency: LatencySummary,
    /// Time from a request for durability to its answer, where it had to wait: for company and for other commits as well.
    pub flush_latency: LatencySummary,
}

impl VolumeInfo {
    /// How many requests share a commit; 0 before the first commit.
    pub fn requests_a_commit(&self) -> f64 {
        if self.commits == 0 { 0.0 } else { self.committed_requests as f64 / self.commits as f64 }
    }

    /// Share of the log that is in use, 0 to 1.
    pub fn log_fill(&self) -> f64 {
        share(self.log_used_bytes, self.log_bytes)
    }

    /// Share of the memory for dirty data that is in use, 0 to 1.
    pub fn dirty_fill(&self) -> f64 {
        share(self.dirty_bytes, self.dirty_bytes_max)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_enough() {
        let volume: VolumeStorage = toml::from_str("path = '/v'").unwrap();
        assert_eq!(volume, VolumeStorage::new("/v"));
        volume.check().unwrap();
        let log: IntentLog = toml::from_str("size = '64M'").unwrap();
        assert_eq!(log, IntentLog::new(ByteSize(64 << 20)));
        log.check().unwrap();
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let fault = |text: &str| toml::from_str::<VolumeStorage>(text).unwrap().check().unwrap_err().to_string();
        assert!(fault("path = ''").starts_with("storage.path: is empty"));
        assert!(fault("path = '/v'\nlog = ''").starts_with("storage.log: is empty"));
        assert_eq!(fault("path = '/v'\ndirty_memory = 4096"), "storage.dirty_memory: must be 1M to 64G, not 4K");
        let fault = |text: &str| toml::from_str::<IntentLog>(text).unwrap().check().unwrap_err().to_string();
        assert!(fault("size = 4096").starts_with("storage.intent_log.size: must be 1M to 1T"));
        assert!(fault("size = 1048577").contains("multiple of 4096"));
        assert!(fault("size = '1M'\ndirty_memory = '65G'").starts_with("storage.intent_log.dirty_memory: "));
        assert!(toml::from_str::<IntentLog>("size = '1M'\nsync = 'often'").is_err());
        assert!(toml::from_str::<VolumeStorage>("path = '/v'\nsize = '1M'").is_err());
    }

    #[test]
    fn memory_for_what_is_dirty_follows_the_hosts() {
        const GIB: u64 = 1 << 30;
        for (host, expected) in
            [(0, 64), (GIB, 64), (4 * GIB, 64), (8 * GIB + 4096, 128), (16 * GIB, 256), (u64::MAX, 256)]
        {
            assert_eq!(dirty_memory_on(host), ByteSize(expected << 20), "{host}");
        }
        let here = IntentLog::dirty_memory_default();
        check_dirty_memory("dirty_memory", here).unwrap();
        assert_eq!(here, VolumeStorage::new("/v").dirty_memory);
    }

    #[test]
    fn a_memory_file_is_a_word_or_a_path() {
        for text in ["auto", "none", "/dev/shm/a b"] {
            let file: MemoryFile = text.parse().unwrap();
            assert_eq!(file.to_string(), text);
            assert_eq!(serde_json::from_value::<MemoryFile>(text.into()).unwrap(), file);
        }
        assert!("shm/x".parse::<MemoryFile>().unwrap_err().to_string().contains("an absolute path on tmpfs"));
    }

    #[test]
    fn shares_of_nothing_are_nothing() {
        let nothing = VolumeInfo::default();
        assert_eq!((nothing.requests_a_commit(), nothing.log_fill(), nothing.dirty_fill()), (0.0, 0.0, 0.0));
        let some = VolumeInfo { commits: 4, committed_requests: 10, log_bytes: 8, log_used_bytes: 2, ..nothing };
        assert_eq!((some.requests_a_commit(), some.log_fill()), (2.5, 0.25));
    }

    #[test]
    fn modes_are_written_as_they_are_read() {
        for mode in [SyncMode::Standard, SyncMode::Always, SyncMode::Disabled] {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
    }
}
