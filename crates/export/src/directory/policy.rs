//! What a guest may keep in its caches, and other choices of an operator.

use super::DaxOptions;
use std::time::Duration;
use values::{CachePolicy, Negotiation, Readdirplus};

/// The choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What the guest keeps.
    pub cache: CachePolicy,
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
    pub readdirplus: Readdirplus,
    /// Extended attributes. Without, the guest is told once that there are none.
    pub xattr: bool,
    /// Set-user-id bits, set-group-id bits and file capabilities are dropped by the server (FUSE_HANDLE_KILLPRIV_V2).
    /// Without, a guest asks for `security.capability` before every write, and waits for the answer.
    pub killpriv_v2: bool,
    /// POSIX access control lists.
    pub posix_acl: Negotiation,
    /// Security labels given at creation (FUSE_SECURITY_CTX).
    pub security_label: Negotiation,
    /// Locks of byte ranges hold between guests and on the host, not within the guest alone.
    pub posix_lock: bool,
    /// Locks of whole files hold between guests and on the host, not within the guest alone.
    pub flock: bool,
    /// Roots of other file systems are shown as such (FUSE_SUBMOUNTS).
    pub announce_submounts: bool,
    /// The guest need not open files, as nothing is written and nothing changes.
    pub no_open: bool,
    /// The DAX window, where there is one.
    pub dax: Option<DaxOptions>,
}

impl Policy {
    /// The choices that go with a cache policy.
    pub fn new(cache: CachePolicy) -> Policy {
        Policy {
            cache,
            attr_timeout: cache.timeout(),
            entry_timeout: cache.timeout(),
            negative_timeout: cache.negative_timeout(),
            writeback: false,
            allow_mmap: false,
            readdirplus: Readdirplus::Auto,
            xattr: true,
            killpriv_v2: true,
            posix_acl: Negotiation::Never,
            security_label: Negotiation::Never,
            posix_lock: true,
            flock: true,
            announce_submounts: true,
            no_open: false,
            dax: None,
        }
    }
}
