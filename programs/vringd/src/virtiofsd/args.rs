//! The options of virtiofsd 1.14, as it spells them.

use clap::ValueEnum;
use control::model::directory::Directory;
use control::model::{CachePolicy, FileHandles, MigrationMode, MigrationOnError, Negotiation};
use sandbox::{IdMapping, Mode, Seccomp};
use std::path::PathBuf;

/// Serve one directory to one frontend with the command line of virtiofsd; ends when the frontend disconnects.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The directory to serve
    #[arg(long, value_name = "PATH", required_unless_present_any = ["compat_options", "print_capabilities"])]
    pub(crate) shared_dir: Option<PathBuf>,
    /// Name by which the guest mounts it, 1 to 36 bytes; the frontend's own when left out
    #[arg(long, value_parser = tag)]
    pub(crate) tag: Option<String>,
    /// Path of the vhost-user socket to make
    #[arg(long, value_name = "PATH", required_unless_present_any = ["fd", "socket", "print_capabilities"])]
    pub(crate) socket_path: Option<PathBuf>,
    /// The same (deprecated)
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Group of the socket, which may then connect too
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["fd", "print_capabilities"])]
    pub(crate) socket_group: Option<String>,
    /// Inherited descriptor of a listening socket
    #[arg(long, value_name = "N", conflicts_with_all = ["socket_path", "socket"])]
    pub(crate) fd: Option<i32>,
    /// Threads that file-system calls run on, 256 at most; 0 to run them where requests arrive
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) thread_pool_size: u16,

    /// Serve extended attributes
    #[arg(long)]
    pub(crate) xattr: bool,
    /// POSIX access control lists: never, auto or always; needs no --xattr
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, hide_possible_values = true)]
    #[arg(require_equals = true, num_args = 0..=1, default_missing_value = "always")]
    pub(crate) posix_acl: Negotiation,
    /// Translate names of extended attributes, as in :map::user.virtiofs.:
    #[arg(long, value_name = "RULES")]
    pub(crate) xattrmap: Option<String>,
    /// Security labels from the guest on what it creates: never, auto or always; needs no --xattr
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, hide_possible_values = true)]
    #[arg(require_equals = true, num_args = 0..=1, default_missing_value = "always")]
    pub(crate) security_label: Negotiation,
    /// Refuse changes
    #[arg(long)]
    pub(crate) readonly: bool,
    /// Tell the guest which directories are mount points (the default)
    #[arg(long)]
    pub(crate) announce_submounts: bool,
    /// Do not tell the guest which directories are mount points
    #[arg(long, overrides_with = "announce_submounts")]
    pub(crate) no_announce_submounts: bool,
    /// Hold inodes by file handles and not by descriptors: never, prefer or mandatory
    #[arg(long, value_name = "WHEN", default_value = "prefer", value_parser = file_handles)]
    pub(crate) inode_file_handles: FileHandles,
    /// Drop set-user-id bits and capabilities of written files here, not in the guest
    #[arg(long, overrides_with = "no_killpriv_v2")]
    pub(crate) killpriv_v2: bool,
    /// The opposite of --killpriv-v2 (the default)
    #[arg(long)]
    pub(crate) no_killpriv_v2: bool,
    /// Keep O_NOATIME of the guest's programs
    #[arg(long)]
    pub(crate) preserve_noatime: bool,
    /// Translate user ids between guest and host, as in map:0:100000:65536; may be repeated
    #[arg(long, value_name = "RULE")]
    pub(crate) translate_uid: Vec<String>,
    /// Translate group ids between guest and host; may be repeated
    #[arg(long, value_name = "RULE")]
    pub(crate) translate_gid: Vec<String>,

    /// For how long the guest may believe what it was told: auto, always, never or metadata
    #[arg(long, value_enum, value_name = "POLICY", default_value_t, ignore_case = true, hide_possible_values = true)]
    pub(crate) cache: CachePolicy,
    /// Allow shared mappings of files under --cache never and metadata
    #[arg(long)]
    pub(crate) allow_mmap: bool,
    /// List directories without attributes
    #[arg(long)]
    pub(crate) no_readdirplus: bool,
    /// Let the guest collect writes in its page cache
    #[arg(long)]
    pub(crate) writeback: bool,
    /// Let O_DIRECT of the guest's programs bypass the host's page cache too
    #[arg(long)]
    pub(crate) allow_direct_io: bool,

    /// What inodes are found by where the guest is migrated to: find-paths, or file-handles on the same file system
    #[arg(long, value_name = "MODE", default_value = "find-paths", value_parser = migration_mode)]
    pub(crate) migration_mode: MigrationMode,
    /// When something of a guest that is migrated to here is not found: abort, or guest-error (go on, with errors for the
    /// guest)
    #[arg(long, value_name = "REACTION", default_value = "abort", value_parser = migration_on_error)]
    pub(crate) migration_on_error: MigrationOnError,
    /// With find-paths: send file handles along, and take only what has the same; needs the same file system
    #[arg(long)]
    pub(crate) migration_verify_handles: bool,
    /// Has no meaning: each path is looked at before it is sent in any case
    #[arg(long)]
    pub(crate) migration_confirm_paths: bool,

    /// What hides the rest of the host: namespace, chroot or none
    #[arg(long, value_name = "MODE", default_value_t)]
    pub(crate) sandbox: Mode,
    /// What becomes of a system call that the server has no use for: kill, log, trap or none (allow all)
    #[arg(long, value_name = "ACTION", default_value_t)]
    pub(crate) seccomp: Seccomp,
    /// Capabilities to keep or drop besides the usual ones, as in +sys_admin:-chown
    #[arg(long, value_name = "LIST")]
    pub(crate) modcaps: Option<String>,
    /// Map user ids into the sandbox's user namespace, as in :0:100000:65536: (inside, outside, count); may be repeated
    #[arg(long, value_name = "MAP")]
    pub(crate) uid_map: Vec<IdMapping>,
    /// Map group ids into the sandbox's user namespace; may be repeated
    #[arg(long, value_name = "MAP")]
    pub(crate) gid_map: Vec<IdMapping>,
    /// Most descriptors of the process; 0 to leave the limit alone [default: 1000000, or what the kernel allows]
    #[arg(long, value_name = "N")]
    pub(crate) rlimit_nofile: Option<u64>,

    /// What to log: error, warn, info, debug, trace or off
    #[arg(long, value_name = "LEVEL", default_value = "info", ignore_case = true)]
    pub(crate) log_level: String,
    /// Log to syslog, not to standard error
    #[arg(long)]
    pub(crate) syslog: bool,
    /// Print what the program can do, for libvirt, and end
    #[arg(long)]
    pub(crate) print_capabilities: bool,
    /// Options of the first virtiofsd, as in -o source=PATH,cache=always (deprecated)
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) compat_options: Vec<String>,
    /// Log debugging messages (deprecated)
    #[arg(short = 'd')]
    pub(crate) compat_debug: bool,
    /// Has no meaning (deprecated)
    #[arg(short = 'f')]
    pub(crate) compat_foreground: bool,

    /// Path of a control socket for `vringd ctl`; none when left out
    #[arg(long, value_name = "PATH", help_heading = "Beyond virtiofsd")]
    pub(crate) control: Option<PathBuf>,
    /// Request queues the guest may use, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Beyond virtiofsd")]
    pub(crate) queues: u16,

    /// What only `-o` can say.
    #[arg(skip)]
    pub(crate) compat: super::compat::Compat,
}

fn tag(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > Directory::TAG_BYTES_MAX {
        return Err(format!("must be 1 to {} bytes long", Directory::TAG_BYTES_MAX));
    }
    Ok(text.to_owned())
}

fn file_handles(text: &str) -> Result<FileHandles, String> {
    // An older name of `prefer`.
    let text = if text == "fallback" { "prefer" } else { text };
    FileHandles::from_str(text, false).map_err(|_| "use never, prefer or mandatory".to_owned())
}

fn migration_mode(text: &str) -> Result<MigrationMode, String> {
    MigrationMode::from_str(text, false).map_err(|_| "use find-paths or file-handles".to_owned())
}

fn migration_on_error(text: &str) -> Result<MigrationOnError, String> {
    MigrationOnError::from_str(text, false).map_err(|_| "use abort or guest-error".to_owned())
}
