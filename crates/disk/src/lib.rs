//! What stands behind disks: the list of all kinds of storage, how one is opened as a person describes it, and the disks that are
//! open, by name, each with its users.
//!
//! A new kind is a module with its options and its storage, wherever that is at home, and one line in the list below.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod disks;
#[cfg(test)]
mod logged_tests;
mod migratable;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use storage::{Handed, Kind, Need, OpenError, Opened, Storage};
use utoipa::ToSchema;
use values::{FieldError, IntentLog, fields};
use volume::{adopt_apart, adopt_made, needs_of_log, open_apart, open_made};

pub use disks::{Disk, DiskError, Disks, Lease, Role, Sharing, UnderWay, User, listed, may_use};
pub use image::Qcow2Options;
pub use migratable::CLOSE_THREAD;
pub use rbd::{RbdOptions, Spec as RbdSpec, end_process_if_busy};
pub use sg::{COMMANDS_MAX as SG_COMMANDS_MAX, SgOptions};
pub use storage::{Distribution, FileOptions, MemoryOptions, NullOptions, SimOptions};
pub use volume::VolumeOptions;

/// Lists the kinds of storage: their words, their options, and what they are.
macro_rules! kinds {
    ($(#[doc = $about:literal] $word:literal => $kind:ident($options:ty),)+) => {
        /// What stands behind a disk.
        #[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        #[schema(as = Storage)]
        pub enum StorageSpec {
            $(#[doc = $about] $kind($options),)+
        }

        /// By hand, because the derived form of a tagged enum forgets which field an error is about.
        impl<'de> Deserialize<'de> for StorageSpec {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut table = serde_json::Map::deserialize(deserializer)?;
                let kind = table.remove("kind").ok_or_else(|| D::Error::missing_field("kind"))?;
                match kind.as_str() {
                    $(Some($word) => fields(table).map(Self::$kind),)+
                    _ => {
                        let kinds = Self::KINDS.map(|(kind, _)| kind).join(", ");
                        Err(D::Error::custom(format_args!("invalid field `kind`: {kind} is none of {kinds}")))
                    }
                }
            }
        }

        impl StorageSpec {
            /// The words for all kinds, and what each is.
            pub const KINDS: [(&str, &str); [$($word),+].len()] = [$(($word, $about)),+];

            /// The kind, as it is written.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $word,)+
                }
            }
        }

        impl Deref for StorageSpec {
            type Target = dyn Kind;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$kind(options) => options,)+
                }
            }
        }

        impl DerefMut for StorageSpec {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$kind(options) => options,)+
                }
            }
        }
    };
}

kinds! {
    /// A regular file or a block device.
    "file" => File(FileOptions),
    /// A file or block device with an intent log, made by `vringd volume create`.
    "volume" => Volume(VolumeOptions),
    /// A qcow2 image, with its backing files.
    "qcow2" => Qcow2(Qcow2Options),
    /// An image of a Ceph cluster (RBD).
    "rbd" => Rbd(RbdOptions),
    /// A SCSI device of the host (/dev/sg*), passed through to a unit of a SCSI device.
    "sg" => Sg(SgOptions),
    /// Memory, anonymous or of a file on tmpfs: requests are copies, without system calls.
    "memory" => Memory(MemoryOptions),
    /// Nothing: writes are dropped.
    "null" => Null(NullOptions),
    /// A model of a device, for experiments: contents in memory, modelled time, injected errors.
    "sim" => Sim(SimOptions),
}

impl StorageSpec {
    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self, block_size_bytes: u32) -> Result<(), FieldError> {
        if let Some(log) = self.intent_log() {
            log.check()?;
        }
        (**self).check(block_size_bytes)
    }

    /// Opens what has a path.
    ///
    /// # Errors
    /// One line that names the path or the field, and what to do.
    pub fn open(&self) -> Result<Opened, OpenError> {
        if let Some(log) = self.intent_log() {
            let lower = self.clone();
            return Ok(Opened::new(self, move || open_made(&log, lower)));
        }
        if self.migratable().is_some() {
            return migratable::open(self);
        }
        let mut opened = (**self).open()?;
        if let Some(log) = self.log() {
            opened = open_apart(log.file, log.lock, opened)?;
        }
        match self.luks() {
            Some(luks) => luks::open(luks, opened),
            None => Ok(opened),
        }
    }

    /// Goes on with a storage that another program has opened as this says. Paths are not looked up again.
    ///
    /// # Errors
    /// As for [`StorageSpec::open`]; also a descriptor that is missing or of another kind.
    pub fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        if self.migratable().is_some() {
            return migratable::adopt(self, handed);
        }
        let image = |handed| match self.log() {
            Some(log) => adopt_apart(log.file, log.lock, handed, |below| (**self).adopt(below)),
            None => (**self).adopt(handed),
        };
        match (self.intent_log(), self.luks()) {
            (Some(log), _) => adopt_made(&log, self.clone(), handed),
            (None, Some(luks)) => luks::adopt(luks, handed, image),
            (None, None) => image(handed),
        }
    }

    /// What a sandbox has to let through.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = (**self).needs();
        needs.extend(self.log().map(|log| needs_of_log(log.file)).into_iter().flatten());
        needs
    }

    /// The same disk without the log in front of it.
    #[must_use]
    pub fn without_log(mut self) -> StorageSpec {
        self.remove_log();
        debug_assert!(self.log().is_none(), "{} keeps its log", self.kind());
        self
    }

    /// The log over a storage that is made.
    pub fn intent_log(&self) -> Option<IntentLog> {
        self.clone().made()?.intent_log.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(table: &str) -> Result<StorageSpec, String> {
        toml::from_str(table).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn every_kind_is_written_as_it_is_read() {
        for (kind, _) in StorageSpec::KINDS {
            // Between them all that any kind needs; what one does not know it refuses.
            let spec = ["path = '/a'", "size = '1M'", "image = 'i'"]
                .iter()
                .find_map(|field| read(&format!("kind = '{kind}'\n{field}")).ok());
            let spec = spec.unwrap_or_else(|| panic!("{kind}"));
            assert_eq!(spec.kind(), kind);
            let json = serde_json::to_value(&spec).unwrap();
            assert_eq!(json["kind"], kind);
            assert_eq!(serde_json::from_value::<StorageSpec>(json).unwrap(), spec);
        }
        assert_eq!(
            read("kind = 'tape'"),
            Err("invalid field `kind`: \"tape\" is none of file, volume, qcow2, rbd, sg, memory, null, sim".to_owned())
        );
        assert_eq!(read("size = 1"), Err("missing field `kind`".to_owned()));
        let message = read("kind = 'sim'\nsize = '1M'\nintent_log = { size = 'many' }").unwrap_err();
        assert!(message.starts_with("invalid field `intent_log.size`: "), "{message}");
    }

    #[test]
    fn what_is_described_as_read_only_is_open_as_such() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let path = image.path().display();
        for (table, read_only) in [
            (format!("kind = 'file'\npath = '{path}'"), false),
            (format!("kind = 'file'\npath = '{path}'\nread_only = true"), true),
            ("kind = 'memory'\nsize = '1M'".to_owned(), false),
            ("kind = 'memory'\nsize = '1M'\nread_only = true".to_owned(), true),
            ("kind = 'null'\nsize = '1M'".to_owned(), false),
            ("kind = 'sim'\nsize = '1M'".to_owned(), false),
        ] {
            let spec = read(&table).unwrap();
            let storage = spec.open().unwrap().start().unwrap();
            assert_eq!((spec.read_only(), storage.describe().read_only), (read_only, read_only), "{table}");
        }
    }

    #[test]
    fn a_log_lies_over_what_is_made() {
        let spec = read("kind = 'memory'\nsize = '4M'\nintent_log = { size = '1M', dirty_memory = '1M' }").unwrap();
        spec.check(512).unwrap();
        let storage = spec.open().unwrap().start().unwrap();
        assert_eq!((storage.capacity_bytes(), storage.describe().kind), (4 << 20, "volume"));
        let handed = storage.hand_over().unwrap();
        drop(storage);
        assert_eq!(spec.adopt(handed).unwrap().describe().kind, "volume");
        let plain = read("kind = 'memory'\nsize = '4M'").unwrap().open().unwrap().start().unwrap();
        assert!(plain.volume().is_none());
        let small = read("kind = 'null'\nsize = '1M'\nintent_log = { size = '1K' }").unwrap();
        assert_eq!(small.check(512).unwrap_err().field, "storage.intent_log.size");
    }
}
