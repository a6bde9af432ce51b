//! What a guest may keep in its caches, and other choices of an operator.

use std::time::Duration;

/// How long what never changes by another hand may be believed.
const LONG: Duration = Duration::from_secs(86400);

/// What a guest keeps in its caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Nothing: every call sees the host's files as they are.
    Never,
    /// Names and attributes, but no data.
    Metadata,
    /// Names and attributes for a second; data until the file is opened again or changes its size or time.
    #[default]
    Auto,
    /// Everything, for as long as it likes: nobody else changes the files.
    Always,
}

/// When a listing brings attributes along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadDirPlus {
    /// Every time.
    On,
    /// Never.
    Off,
    /// The guest chooses, by what it sees programs ask for after a listing.
    #[default]
    Auto,
}

/// Whether the guest is to use a feature that not every guest has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// It is not offered.
    #[default]
    Never,
    /// If it has it.
    Auto,
    /// A guest without it is refused.
    Always,
}

/// The choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What the guest keeps.
    pub cache: Cache,
    /// How long it believes attributes.
    pub attr_timeout: Duration,
    /// How long it believes that a name leads to a node.
    pub entry_timeout: Duration,
    /// How long it believes that a name leads nowhere; zero: it asks each time.
    pub negative_timeout: Duration,
    /// The guest gathers writes in its cache (FUSE_WRITEBACK_CACHE).
    pub writeback: bool,
    /// Shared mappings of files that are not cached (FUSE_DIRECT_IO_ALLOW_MMAP).
    pub allow_mmap: bool,
    /// Attributes with listings.
    pub readdirplus: ReadDirPlus,
    /// Extended attributes. Without, the guest is told once that there are none.
    pub xattr: bool,
    /// Set-user-id bits, set-group-id bits and file capabilities are dropped by the server (FUSE_HANDLE_KILLPRIV_V2).
    /// Without, a guest asks for `security.capability` before every write, and waits for the answer.
    pub killpriv_v2: bool,
    /// POSIX access control lists.
    pub posix_acl: Grant,
    /// Security labels given at creation (FUSE_SECURITY_CTX).
    pub security_label: Grant,
    /// Locks of byte ranges hold between guests and on the host, not within the guest alone.
    pub posix_lock: bool,
    /// Locks of whole files hold between guests and on the host, not within the guest alone.
    pub flock: bool,
    /// Roots of other file systems are shown as such (FUSE_SUBMOUNTS).
    pub announce_submounts: bool,
    /// The guest need not open files, as nothing is written and nothing changes.
    pub no_open: bool,
}

impl Policy {
    /// The choices that go with a cache policy.
    pub fn new(cache: Cache) -> Policy {
        let believed = match cache {
            Cache::Never => Duration::ZERO,
            Cache::Auto => Duration::from_secs(1),
            Cache::Metadata | Cache::Always => LONG,
        };
        // A file that appears is what people look for most often from both sides: a guest that trusts the host's files for a
        // second only keeps asking for those it has not found.
        let negative_timeout = if believed == LONG { LONG } else { Duration::ZERO };
        Policy {
            cache,
            attr_timeout: believed,
            entry_timeout: believed,
            negative_timeout,
            writeback: false,
            allow_mmap: false,
            readdirplus: ReadDirPlus::Auto,
            xattr: true,
            killpriv_v2: true,
            posix_acl: Grant::Never,
            security_label: Grant::Never,
            posix_lock: true,
            flock: true,
            announce_submounts: true,
            no_open: false,
        }
    }
}
