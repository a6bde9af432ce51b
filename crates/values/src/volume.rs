//! What people choose about an intent log.

use crate::text::{ParseError, text_value};
use crate::{ByteSize, FieldError, host_memory_bytes};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use utoipa::ToSchema;

/// When a guest's write is on stable storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
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

impl IntentLog {
    /// Least size of a log, in bytes.
    pub const SIZE_MIN: u64 = 1 << 20;
    /// Largest size of a log, in bytes.
    pub const SIZE_MAX: u64 = 1 << 40;
    /// Least memory for data that is not written back yet, in bytes: room for a few of the largest requests.
    pub const DIRTY_MEMORY_MIN: u64 = 1 << 20;
    /// Most memory for data that is not written back yet, in bytes: slots are numbered with 32 bits, and a sweep should end in
    /// this life.
    pub const DIRTY_MEMORY_MAX: u64 = 64 << 30;

    /// A log of this size with every other field at its default.
    pub fn new(size: ByteSize) -> Self {
        Self { size, sync: SyncMode::default(), dirty_memory: Self::dirty_memory_default() }
    }

    /// The memory for data that is not written back yet, where nobody says how much: a 64th of this host's, but
    /// 64 MiB to 256 MiB.
    pub fn dirty_memory_default() -> ByteSize {
        dirty_memory_on(host_memory_bytes())
    }

    /// Checks the log of a storage.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), FieldError> {
        if !(Self::SIZE_MIN..=Self::SIZE_MAX).contains(&self.size.0) || !self.size.0.is_multiple_of(4096) {
            let message = format!("must be 1M to 1T, a multiple of 4096 bytes, not {}", self.size);
            return Err(FieldError::new("storage.intent_log.size", message));
        }
        Self::check_dirty_memory("storage.intent_log.dirty_memory", self.dirty_memory)
    }

    /// Checks the memory for what is not written back, whose field is `field`.
    ///
    /// # Errors
    /// It is out of range.
    pub fn check_dirty_memory(field: &str, size: ByteSize) -> Result<(), FieldError> {
        if !(Self::DIRTY_MEMORY_MIN..=Self::DIRTY_MEMORY_MAX).contains(&size.0) {
            return Err(FieldError::new(field, format!("must be 1M to 64G, not {size}")));
        }
        Ok(())
    }
}

/// An intent log in a file or on a device of its own, in front of a disk whose own format has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogFile {
    /// Path of the log.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// When writes are on stable storage.
    #[serde(default)]
    pub sync: SyncMode,
    /// Memory for data that is not written back yet, 1M to 64G; when left out, a 64th of the host's memory, but 64M to 256M.
    #[serde(default = "IntentLog::dirty_memory_default")]
    pub dirty_memory: ByteSize,
    /// Where that memory is: `auto`, `none` or a path on tmpfs. In a file it outlives a killed daemon.
    #[serde(default)]
    pub memory_file: MemoryFile,
    /// Bypass the page cache for the log (O_DIRECT); true when left out.
    #[serde(default = "LogFile::direct_default")]
    pub direct: bool,
}

impl LogFile {
    /// The log at `path`, with every other field at its default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            sync: SyncMode::default(),
            dirty_memory: IntentLog::dirty_memory_default(),
            memory_file: MemoryFile::default(),
            direct: true,
        }
    }

    fn direct_default() -> bool {
        true
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.path.as_os_str().is_empty() {
            return Err(FieldError::new("storage.log.path", "is empty: give the path of the log"));
        }
        IntentLog::check_dirty_memory("storage.log.dirty_memory", self.dirty_memory)
    }
}

/// The memory for what is dirty on a host with so many bytes. More of it makes write-back cheaper (more to sort, and more of
/// it written over before it goes anywhere), but it is taken from tmpfs for each volume, at once: a host with many volumes and
/// little memory has it left for its guests.
fn dirty_memory_on(host_bytes: u64) -> ByteSize {
    const MIB: u64 = 1 << 20;
    ByteSize((host_bytes / 64 / MIB * MIB).clamp(64 * MIB, 256 * MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        let fault = |text: &str| toml::from_str::<IntentLog>(text).unwrap().check().unwrap_err().to_string();
        assert!(fault("size = 4096").starts_with("storage.intent_log.size: must be 1M to 1T"));
        assert!(fault("size = 1048577").contains("multiple of 4096"));
        assert!(fault("size = '1M'\ndirty_memory = '65G'").starts_with("storage.intent_log.dirty_memory: "));
        assert!(toml::from_str::<IntentLog>("size = '1M'\nsync = 'often'").is_err());
        let log: IntentLog = toml::from_str("size = '64M'").unwrap();
        assert_eq!(log, IntentLog::new(ByteSize(64 << 20)));
        log.check().unwrap();
    }

    #[test]
    fn a_log_with_a_path_is_checked() {
        let log = |text: &str| toml::from_str::<LogFile>(text).unwrap();
        assert_eq!(log("path = '/l'"), LogFile::new("/l"));
        log("path = '/l'").check().unwrap();
        assert_eq!(log("path = ''").check().unwrap_err().field, "storage.log.path");
        assert_eq!(log("path = '/l'\ndirty_memory = '1K'").check().unwrap_err().field, "storage.log.dirty_memory");
        assert!(toml::from_str::<LogFile>("sync = 'always'").is_err());
    }

    #[test]
    fn memory_for_what_is_dirty_follows_the_hosts() {
        const GIB: u64 = 1 << 30;
        for (host, expected) in
            [(0, 64), (GIB, 64), (4 * GIB, 64), (8 * GIB + 4096, 128), (16 * GIB, 256), (u64::MAX, 256)]
        {
            assert_eq!(dirty_memory_on(host), ByteSize(expected << 20), "{host}");
        }
        IntentLog::check_dirty_memory("dirty_memory", IntentLog::dirty_memory_default()).unwrap();
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
    fn modes_are_written_as_they_are_read() {
        for mode in [SyncMode::Standard, SyncMode::Always, SyncMode::Disabled] {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
    }
}
