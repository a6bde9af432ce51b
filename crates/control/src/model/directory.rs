//! A directory as a person describes it: the `[export.directory]` table of the configuration file, and the `directory`
//! of a request.

use super::p9::{Protocol, SecurityModel};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use utoipa::ToSchema;
use values::{
    ByteSize, CachePolicy, DaxWhen, Execution, FieldError, FileHandles, FileMode, MigrationMode, MigrationOnError,
    Multidevs, Negotiation, Readdirplus, Span,
};

/// A directory of the host, and how it is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// Path of the directory.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Protocol by which it is served.
    #[serde(default, skip_serializing_if = "Protocol::is_default")]
    pub protocol: Protocol,
    /// Where owner, mode and kind of a file are kept that the guest sees.
    #[serde(default, skip_serializing_if = "SecurityModel::is_default")]
    pub security_model: SecurityModel,
    /// Mode that files have on the host under `mapped-xattr` and `mapped-file`, in octal; 0600 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fmode: Option<FileMode>,
    /// Mode that directories have on the host under `mapped-xattr` and `mapped-file`, in octal; 0700 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dmode: Option<FileMode>,
    /// For 9p: what becomes of files of other file systems below the directory; `remap` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multidevs: Option<Multidevs>,
    /// For 9p: longest message that a client is granted, 4K to 1M; 1M when left out. A client asks for less unless it is
    /// told otherwise (`msize=` among its mount options).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msize: Option<ByteSize>,
    /// For 9p clients that `listen` waits for: whoever connects may act as root. Where the daemon is root and the
    /// `security_model` is `passthrough` or `none`, TCP and vsock are refused without it, and unix sockets serve root and the
    /// daemon's own user alone: 9p believes its clients who they are.
    #[serde(default, skip_serializing_if = "is_false")]
    pub clients_may_be_root: bool,
    /// For 9p clients that `listen` waits for on a vsock: context ids of the virtual machines that may connect; any when left
    /// out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_cids: Vec<u32>,
    /// Name by which the guest mounts it, 1 to 36 bytes; the first 36 bytes of the export's name when left out. Empty
    /// to offer none, for a frontend that gives the device its tag. A 9p stream (`listen`) has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// For how long the guest may believe what it was told.
    #[serde(default)]
    pub cache: CachePolicy,
    /// How long attributes are valid in the guest; by the cache policy when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attr_timeout: Option<Span>,
    /// How long names are valid in the guest; by the cache policy when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_timeout: Option<Span>,
    /// How long the absence of a name is valid in the guest; by the cache policy when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negative_timeout: Option<Span>,
    /// The guest collects writes in its page cache (FUSE_WRITEBACK_CACHE). Only for a directory that nobody else writes.
    #[serde(default)]
    pub writeback: bool,
    /// O_DIRECT of the guest's programs bypasses the host's page cache as well.
    #[serde(default)]
    pub allow_direct_io: bool,
    /// Files may be mapped shared under `never` and `metadata` too (FUSE_DIRECT_IO_ALLOW_MMAP).
    #[serde(default)]
    pub allow_mmap: bool,
    /// Whether a listing brings the attributes of its entries along.
    #[serde(default)]
    pub readdirplus: Readdirplus,
    /// Extended attributes are served; true when left out.
    #[serde(default = "yes")]
    pub xattr: bool,
    /// Rules that translate names of extended attributes between guest and host, as in `:map::user.virtiofs.:`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattrmap: Option<String>,
    /// POSIX access control lists over virtio-fs. They need `xattr`, and exclude the translation of ids and a mapped
    /// `security_model`. Over 9p they are attributes like others, which the client applies (`posixacl` among its mount
    /// options).
    #[serde(default)]
    pub posix_acl: Negotiation,
    /// The guest labels what it creates (SELinux). It needs `xattr`.
    #[serde(default)]
    pub security_label: Negotiation,
    /// The daemon drops set-user-id bits and capabilities of files that are written, not the guest
    /// (FUSE_HANDLE_KILLPRIV_V2); true when left out. The guest asks for a file's capabilities before every write otherwise.
    #[serde(default = "yes")]
    pub killpriv_v2: bool,
    /// Locks of byte ranges (fcntl(2)) hold between guests and on the host; false keeps them within a guest. True when
    /// left out.
    #[serde(default = "yes")]
    pub posix_lock: bool,
    /// Locks of whole files (flock(2)) hold between guests and on the host; false keeps them within a guest. True when
    /// left out.
    #[serde(default = "yes")]
    pub flock: bool,
    /// The guest is told which directories are mount points of the host; true when left out.
    #[serde(default = "yes")]
    pub announce_submounts: bool,
    /// When inodes are held by file handles and not by open descriptors.
    #[serde(default)]
    pub inode_file_handles: FileHandles,
    /// Most inodes that the guest can know at a time, 16 to 1073741824; 16777216 when left out. Each takes some 250 bytes of
    /// memory until the guest forgets it, twice that with the security model `mapped-file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<u32>,
    /// Most descriptors that are held for inodes, 16 to 16777216. 4096 when left out; 524288 when
    /// `inode_file_handles` is `never`, where it bounds the inodes that the guest can know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptors_max: Option<u32>,
    /// Most files and directories that the guest can have open, 16 to 16777216; 65536 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files_max: Option<u32>,
    /// O_NOATIME of the guest's programs is kept. It fails for files that the daemon does not own, unless it is
    /// privileged.
    #[serde(default)]
    pub preserve_noatime: bool,
    /// Files that are read often in small pieces are mapped into the daemon, so that such a read is no system call: on ext4,
    /// btrfs and tmpfs. True when left out.
    #[serde(default = "yes")]
    pub read_windows: bool,
    /// Refuse changes.
    #[serde(default)]
    pub read_only: bool,
    /// No file is given a set-user-id bit, a set-group-id bit or file capabilities: a bit that is asked for is left out, a
    /// capability is EPERM. Directories keep their set-group-id bit, and files what they have already.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nosuid: bool,
    /// No device node is made: EPERM. A whiteout (character device 0:0) is none.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nodev: bool,
    /// Rules that translate user ids between guest and host, as in `map:0:100000:65536`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub translate_uid: Vec<String>,
    /// Rules that translate group ids between guest and host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub translate_gid: Vec<String>,
    /// What the guest's inodes are found by where it is migrated to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub migration_mode: MigrationMode,
    /// What becomes of a migration that comes in, when something of its guest is not found here.
    #[serde(default, skip_serializing_if = "is_default")]
    pub migration_on_error: MigrationOnError,
    /// File handles go along with paths, and what is found by a path has to have the same: both sides need the same file
    /// system. Not with `migration_mode` `file-handles`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub migration_verify_handles: bool,
    /// A DAX window: the guest maps files into its memory, and reads and writes them there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dax: Option<Dax>,
    /// Where its file-system calls run.
    #[serde(default)]
    pub execution: Execution,
    /// Time that every operation waits first, up to 10s: a slow directory, for experiments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
}

/// Files of a directory in the guest's memory, which needs a frontend with shared memory regions (QEMU 11.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Dax {
    /// How much of them can be there at a time: a power of two, 2M to 512M.
    pub window: ByteSize,
    /// Which files; `inode` when left out.
    #[serde(default)]
    pub when: DaxWhen,
}

fn yes() -> bool {
    true
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Directory {
    /// Longest tag in bytes (virtio 1.3, 5.11.4).
    pub const TAG_BYTES_MAX: usize = 36;
    /// Bounds of `descriptors_max` and `open_files_max`: below it no guest gets far, above it no kernel goes.
    pub const DESCRIPTORS: std::ops::RangeInclusive<u32> = 16..=1 << 24;
    /// Bounds of `nodes_max`.
    pub const NODES: std::ops::RangeInclusive<u32> = 16..=1 << 30;
    /// The `nodes_max` that is meant when it is left out: more than fit into the memory of most guests, where an inode takes
    /// several times as much as here.
    pub const NODES_MAX_DEFAULT: u32 = 1 << 24;
    /// The `descriptors_max` that is meant when it is left out and file handles may be used.
    pub const DESCRIPTORS_MAX_DEFAULT: u32 = 4096;
    /// The `descriptors_max` that is meant when it is left out and every inode holds a descriptor: half of what a process
    /// can usually have.
    pub const DESCRIPTORS_MAX_WITHOUT_HANDLES: u32 = 1 << 19;
    /// The `open_files_max` that is meant when it is left out.
    pub const OPEN_FILES_MAX_DEFAULT: u32 = 65_536;
    /// The longest `delay` that is accepted: beyond it a guest takes the device for dead.
    pub const DELAY_MAX: Duration = Duration::from_secs(10);
    /// Bounds of `msize`, in bytes: a directory cannot be read in less than the one, and what a client has in flight is bounded
    /// by the other.
    pub const MSIZE: std::ops::RangeInclusive<u64> = 4096..=1 << 20;
    /// The `msize` that is meant when it is left out, in bytes.
    pub const MSIZE_DEFAULT: u32 = 1 << 20;
    /// Bounds of the window of `dax`, in bytes: what is mapped at a time, 2 MiB, and half of the 512 regions of memory with which QEMU
    /// ends.
    pub const DAX_WINDOW: std::ops::RangeInclusive<u64> = 2 << 20..=512 << 20;
    /// The `fmode` that is meant when it is left out (QEMU's).
    pub const FMODE_DEFAULT: FileMode = FileMode(0o600);
    /// The `dmode` that is meant when it is left out (QEMU's).
    pub const DMODE_DEFAULT: FileMode = FileMode(0o700);

    /// The directory at `path` with every other field at its default.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            protocol: Protocol::default(),
            security_model: SecurityModel::default(),
            fmode: None,
            dmode: None,
            multidevs: None,
            msize: None,
            clients_may_be_root: false,
            client_cids: Vec::new(),
            tag: None,
            cache: CachePolicy::default(),
            attr_timeout: None,
            entry_timeout: None,
            negative_timeout: None,
            writeback: false,
            allow_direct_io: false,
            allow_mmap: false,
            readdirplus: Readdirplus::default(),
            xattr: true,
            xattrmap: None,
            posix_acl: Negotiation::default(),
            security_label: Negotiation::default(),
            killpriv_v2: true,
            posix_lock: true,
            flock: true,
            announce_submounts: true,
            inode_file_handles: FileHandles::default(),
            nodes_max: None,
            descriptors_max: None,
            open_files_max: None,
            preserve_noatime: false,
            read_windows: true,
            read_only: false,
            nosuid: false,
            nodev: false,
            translate_uid: Vec::new(),
            translate_gid: Vec::new(),
            migration_mode: MigrationMode::default(),
            migration_on_error: MigrationOnError::default(),
            migration_verify_handles: false,
            dax: None,
            execution: Execution::default(),
            delay: None,
        }
    }

    /// The tag of an export with this name: as given, or the beginning of the name; `None` when none is to be offered.
    pub fn tag(&self, export: &str) -> Option<String> {
        match &self.tag {
            Some(tag) if tag.is_empty() => None,
            Some(tag) => Some(tag.clone()),
            // Names of exports are ASCII.
            None => Some(export.chars().take(Self::TAG_BYTES_MAX).collect()),
        }
    }

    /// How long attributes are valid in the guest: as given, or by the cache policy.
    pub fn attr_timeout(&self) -> Duration {
        self.attr_timeout.map_or(self.cache.timeout(), |span| span.0)
    }

    /// How long names are valid in the guest: as given, or by the cache policy.
    pub fn entry_timeout(&self) -> Duration {
        self.entry_timeout.map_or(self.cache.timeout(), |span| span.0)
    }

    /// How long the absence of a name is valid in the guest: as given, or by the cache policy.
    pub fn negative_timeout(&self) -> Duration {
        self.negative_timeout.map_or(self.cache.negative_timeout(), |span| span.0)
    }

    /// Most inodes that the guest can know: as given, or the default.
    pub fn nodes_max(&self) -> u32 {
        self.nodes_max.unwrap_or(Self::NODES_MAX_DEFAULT)
    }

    /// Most descriptors held for inodes: as given, or the default.
    pub fn descriptors_max(&self) -> u32 {
        self.descriptors_max.unwrap_or(match self.inode_file_handles {
            FileHandles::Never => Self::DESCRIPTORS_MAX_WITHOUT_HANDLES,
            FileHandles::Prefer | FileHandles::Mandatory => Self::DESCRIPTORS_MAX_DEFAULT,
        })
    }

    /// Most open files: as given, or the default.
    pub fn open_files_max(&self) -> u32 {
        self.open_files_max.unwrap_or(Self::OPEN_FILES_MAX_DEFAULT)
    }

    /// Longest 9p message that a client is granted, in bytes: as given, or the default.
    pub fn msize_max(&self) -> u32 {
        // What is larger has been refused.
        self.msize.and_then(|msize| u32::try_from(msize.0).ok()).unwrap_or(Self::MSIZE_DEFAULT)
    }

    /// Checks everything that can be checked without opening anything, but for the grammars of the translation rules,
    /// which belong to the file tree.
    pub(super) fn check(&self) -> Result<(), FieldError> {
        let refuse = |field: &str, message: &str| Err(FieldError::new(format!("directory.{field}"), message));
        if self.path.as_os_str().is_empty() {
            return refuse("path", "is empty: give the path of a directory");
        }
        if let Some(tag) = self.tag.as_ref().filter(|tag| tag.len() > Self::TAG_BYTES_MAX || tag.contains('\0')) {
            let message = format!("must be at most {} bytes without NUL, not {}", Self::TAG_BYTES_MAX, tag.len());
            return refuse("tag", &message);
        }
        self.check_attributes()?;
        self.check_protocol()?;
        self.check_dax()?;
        for (field, most, bounds) in [
            ("nodes_max", self.nodes_max, Self::NODES),
            ("descriptors_max", self.descriptors_max, Self::DESCRIPTORS),
            ("open_files_max", self.open_files_max, Self::DESCRIPTORS),
        ] {
            if let Some(most) = most.filter(|most| !bounds.contains(most)) {
                let (least, largest) = bounds.into_inner();
                return refuse(field, &format!("must be {least} to {largest}, not {most}"));
            }
        }
        if let Some(delay) = self.delay.filter(|delay| delay.0 > Self::DELAY_MAX) {
            return refuse("delay", &format!("must be at most {}, not {delay}", Span(Self::DELAY_MAX)));
        }
        Ok(())
    }

    /// What means nothing for the protocol, and what only goes with something else.
    fn check_protocol(&self) -> Result<(), FieldError> {
        let refuse = |field: &str, message: &str| Err(FieldError::new(format!("directory.{field}"), message));
        let modes = [("fmode", self.fmode), ("dmode", self.dmode)];
        if let Some((field, _)) = modes.iter().find(|(_, mode)| mode.is_some() && !self.security_model.is_mapped()) {
            return refuse(field, "only goes with `security_model` mapped-xattr or mapped-file: leave it out");
        }
        if let Some(msize) = self.msize.filter(|msize| !Self::MSIZE.contains(&msize.0)) {
            let (least, most) = Self::MSIZE.into_inner();
            return refuse("msize", &format!("must be {} to {}, not {msize}", ByteSize(least), ByteSize(most)));
        }
        let (elsewhere, message) = match self.protocol {
            Protocol::Virtiofs => {
                (self.of_9p().find(|(_, given)| *given), "is for 9p: set `protocol` to 9p, or leave it out")
            }
            Protocol::P9 => (self.of_virtiofs().find(|(_, given)| *given), "means nothing for 9p: leave it out"),
        };
        if let Some((field, _)) = elsewhere {
            return refuse(field, message);
        }
        if self.migration_mode == MigrationMode::FileHandles {
            if self.migration_verify_handles {
                let message = "is for `migration_mode` find-paths: leave it out";
                return refuse("migration_verify_handles", message);
            }
            if self.security_model == SecurityModel::MappedFile {
                let message = "file-handles excludes `security_model` mapped-file, whose records are found by paths";
                return refuse("migration_mode", message);
            }
        }
        if self.security_model.is_mapped() && self.posix_acl != Negotiation::Never {
            return refuse(
                "posix_acl",
                "excludes a mapped `security_model`, under which no list is applied to new files",
            );
        }
        Ok(())
    }

    /// What a window does not go with.
    fn check_dax(&self) -> Result<(), FieldError> {
        let Some(dax) = self.dax else { return Ok(()) };
        let refuse = |field: &str, message: &str| Err(FieldError::new(format!("directory.{field}"), message));
        let (least, most) = Self::DAX_WINDOW.into_inner();
        if !(least..=most).contains(&dax.window.0) || !dax.window.0.is_power_of_two() {
            let (least, most, given) = (ByteSize(least), ByteSize(most), dax.window);
            return refuse("dax.window", &format!("must be a power of two, {least} to {most}, not {given}"));
        }
        if self.read_only {
            let message = "excludes `read_only`: QEMU maps only what it could write to as well";
            return refuse("dax", message);
        }
        if self.writeback {
            return refuse("dax", "excludes `writeback`: sizes and times would be the guest's, and its writes are not");
        }
        let migrates = self.migration_mode != MigrationMode::default()
            || self.migration_on_error != MigrationOnError::default()
            || self.migration_verify_handles;
        if migrates {
            return refuse(
                "dax",
                "excludes the options of migration: a guest with files in its memory stays where it is",
            );
        }
        Ok(())
    }

    fn of_9p(&self) -> impl Iterator<Item = (&'static str, bool)> {
        [
            ("multidevs", self.multidevs.is_some()),
            ("msize", self.msize.is_some()),
            ("clients_may_be_root", self.clients_may_be_root),
            ("client_cids", !self.client_cids.is_empty()),
        ]
        .into_iter()
    }

    /// What a 9p client decides by its own mount options, or cannot be told, and how it would be migrated.
    fn of_virtiofs(&self) -> impl Iterator<Item = (&'static str, bool)> {
        [
            ("cache", self.cache != CachePolicy::default()),
            ("attr_timeout", self.attr_timeout.is_some()),
            ("entry_timeout", self.entry_timeout.is_some()),
            ("negative_timeout", self.negative_timeout.is_some()),
            ("writeback", self.writeback),
            ("allow_direct_io", self.allow_direct_io),
            ("allow_mmap", self.allow_mmap),
            ("readdirplus", self.readdirplus != Readdirplus::default()),
            ("posix_acl", self.posix_acl != Negotiation::Never),
            ("security_label", self.security_label != Negotiation::Never),
            ("killpriv_v2", !self.killpriv_v2),
            ("posix_lock", !self.posix_lock),
            ("flock", !self.flock),
            ("announce_submounts", !self.announce_submounts),
            ("dax", self.dax.is_some()),
            ("migration_mode", self.migration_mode != MigrationMode::default()),
            ("migration_on_error", self.migration_on_error != MigrationOnError::default()),
            ("migration_verify_handles", self.migration_verify_handles),
        ]
        .into_iter()
    }

    fn check_attributes(&self) -> Result<(), FieldError> {
        let needs_xattr = [
            ("xattrmap", self.xattrmap.is_some()),
            ("posix_acl", self.posix_acl != Negotiation::Never),
            ("security_label", self.security_label != Negotiation::Never),
        ];
        if let Some((field, _)) = needs_xattr.iter().find(|(_, given)| *given && !self.xattr) {
            return Err(FieldError::new(
                format!("directory.{field}"),
                "needs extended attributes: set `xattr` to true",
            ));
        }
        if self.posix_acl != Negotiation::Never {
            let translated = [("translate_uid", &self.translate_uid), ("translate_gid", &self.translate_gid)];
            if let Some((field, _)) = translated.iter().find(|(_, rules)| !rules.is_empty()) {
                let message = "excludes `posix_acl`: access control lists carry ids that nobody translates";
                return Err(FieldError::new(format!("directory.{field}"), message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
