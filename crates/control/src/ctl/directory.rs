//! A directory described by options: `vringd ctl export add-dir`, and `vringd dir`, which shares what describes the
//! directory itself.

use super::add::DescriptionError;
use super::limit::LimitFlags;
use crate::model::config::{ExportKind, NewExport};
use crate::model::directory::{Dax, Directory};
use crate::model::{
    ByteSize, CpuList, Execution, FileMode, Listen, Multidevs, Placement, Poll, Protocol, SecurityModel, Span,
};
use crate::model::{CachePolicy, DaxWhen, FileHandles, MigrationMode, MigrationOnError, Negotiation, Readdirplus};
use std::path::PathBuf;

/// The new directory.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("place").required(true).args(["socket", "listen"]))]
pub struct AddDirArgs {
    /// Name of the export.
    pub name: String,

    /// Path at which the vhost-user socket is made.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Where 9p clients connect, in place of a vhost-user socket: unix:PATH, tcp:PORT (on 127.0.0.1), tcp:IP:PORT,
    /// vsock:PORT or vsock:CID:PORT.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<Listen>,

    /// Permission bits of the socket, in octal.
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<FileMode>,

    /// Owner of the socket: a user name or number.
    #[arg(long, value_name = "USER")]
    pub socket_owner: Option<String>,

    /// Group of the socket: a group name or number.
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,

    /// The directory and how it is served.
    #[command(flatten)]
    pub directory: DirectoryFlags,

    /// Number of request queues, 1 to 64; with --listen the clients that may be connected, 1 to 1024.
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub queues: Option<u16>,

    /// Largest number of descriptors in a ring: a power of two, 2 to 32768.
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub queue_size: Option<u16>,

    /// Which workers its rings get: shared, one, per-queue or a number.
    #[arg(long, value_name = "PLACEMENT", default_value = "shared", help_heading = "Execution")]
    pub workers: Placement,

    /// Poll window of its own workers: off, fixed=US or adaptive=US.
    #[arg(long, help_heading = "Execution")]
    pub poll: Option<Poll>,

    /// CPUs its own workers are bound to, as in 0-3,5.
    #[arg(long, value_name = "LIST", help_heading = "Execution")]
    pub cpus: Option<CpuList>,

    /// Its limits.
    #[command(flatten)]
    pub limits: LimitFlags,

    /// Share the limits of this group with its other exports.
    #[arg(long, value_name = "NAME", help_heading = "Limits")]
    pub limit_group: Option<String>,
}

/// Options that describe a directory; the same words as in the configuration file.
#[derive(Debug, Clone, clap::Args)]
pub struct DirectoryFlags {
    /// The directory to serve
    #[arg(value_name = "DIR")]
    pub path: PathBuf,

    /// How it is served: virtiofs or 9p
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t, help_heading = "Device")]
    #[arg(hide_possible_values = true)]
    pub protocol: Protocol,

    /// Name by which the guest mounts it, up to 36 bytes; empty to leave it to the frontend [default: the name]
    #[arg(long, value_name = "TAG", help_heading = "Device")]
    pub tag: Option<String>,

    /// For 9p: the longest message that a client is granted, 4K to 1M [default: 1M]
    #[arg(long, value_name = "BYTES", help_heading = "Device")]
    pub msize: Option<ByteSize>,

    /// For 9p with --listen: whoever connects may act as root. Needed for TCP and vsock, and to let other users connect to a
    /// unix socket, where the daemon is root and the security model passthrough or none
    #[arg(long, help_heading = "Device")]
    pub clients_may_be_root: bool,

    /// For 9p with --listen vsock: context id of a virtual machine that may connect; may be repeated [default: any]
    #[arg(long = "client-cid", value_name = "CID", help_heading = "Device")]
    pub client_cids: Vec<u32>,

    /// For how long the guest may believe what it was told: never, metadata, auto or always
    #[arg(
        long,
        value_enum,
        value_name = "POLICY",
        default_value_t,
        help_heading = "Cache",
        hide_possible_values = true
    )]
    pub cache: CachePolicy,

    /// How long attributes are valid in the guest, as in 5s [default: by the policy]
    #[arg(long, value_name = "TIME", help_heading = "Cache")]
    pub attr_timeout: Option<Span>,

    /// How long names are valid in the guest [default: by the policy]
    #[arg(long, value_name = "TIME", help_heading = "Cache")]
    pub entry_timeout: Option<Span>,

    /// How long the absence of a name is valid in the guest [default: by the policy]
    #[arg(long, value_name = "TIME", help_heading = "Cache")]
    pub negative_timeout: Option<Span>,

    /// Let the guest collect writes in its page cache; only for a directory that nobody else writes
    #[arg(long, help_heading = "Cache")]
    pub writeback: bool,

    /// Let O_DIRECT of the guest's programs bypass the host's page cache too
    #[arg(long, help_heading = "Cache")]
    pub allow_direct_io: bool,

    /// Allow shared mappings of files under --cache never and metadata
    #[arg(long, help_heading = "Cache")]
    pub allow_mmap: bool,

    /// Whether listings bring attributes along: on, off or auto
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = "Cache", hide_possible_values = true)]
    pub readdirplus: Readdirplus,

    /// Show the guest a window of this size, a power of two up to 512M, in which it has files in its memory (DAX); needs a
    /// frontend with shared memory regions, as QEMU 11.1
    #[arg(long, value_name = "SIZE", help_heading = "Cache")]
    pub dax_window: Option<ByteSize>,

    /// Which files whose size is a multiple of 2M are mapped there: never (unless mounted with -o dax), inode (those with the
    /// extended attribute user.vringd.dax on the host) or always [default: inode]
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        requires = "dax_window",
        help_heading = "Cache",
        hide_possible_values = true
    )]
    pub dax: Option<DaxWhen>,

    /// Refuse changes
    #[arg(long, visible_alias = "readonly", help_heading = "Files")]
    pub read_only: bool,

    /// Give no file a set-user-id bit, a set-group-id bit or capabilities
    #[arg(long, help_heading = "Files")]
    pub nosuid: bool,

    /// Make no device nodes
    #[arg(long, help_heading = "Files")]
    pub nodev: bool,

    /// Where owner, mode and kind of a file are kept: passthrough, none, mapped-xattr or mapped-file
    #[arg(
        long,
        value_enum,
        value_name = "MODEL",
        default_value_t,
        help_heading = "Files",
        hide_possible_values = true
    )]
    pub security_model: SecurityModel,

    /// Mode that files have on the host under mapped-xattr and mapped-file, in octal [default: 0600]
    #[arg(long, value_name = "MODE", help_heading = "Files")]
    pub fmode: Option<FileMode>,

    /// Mode that directories have on the host under mapped-xattr and mapped-file, in octal [default: 0700]
    #[arg(long, value_name = "MODE", help_heading = "Files")]
    pub dmode: Option<FileMode>,

    /// For 9p: files of other file systems: remap (give them numbers of their own), forbid or warn [default: remap]
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Files", hide_possible_values = true)]
    pub multidevs: Option<Multidevs>,

    /// Serve no extended attributes
    #[arg(long, help_heading = "Files")]
    pub no_xattr: bool,

    /// Translate names of extended attributes, as in :map::user.virtiofs.:
    #[arg(long, value_name = "RULES", conflicts_with = "no_xattr", help_heading = "Files")]
    pub xattrmap: Option<String>,

    /// POSIX access control lists: never, auto (when the guest knows them) or always
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, conflicts_with = "no_xattr", help_heading = "Files")]
    #[arg(require_equals = true, num_args = 0..=1, default_missing_value = "always", hide_possible_values = true)]
    pub posix_acl: Negotiation,

    /// Security labels from the guest on what it creates: never, auto or always
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, conflicts_with = "no_xattr", help_heading = "Files")]
    #[arg(require_equals = true, num_args = 0..=1, default_missing_value = "always", hide_possible_values = true)]
    pub security_label: Negotiation,

    /// Leave it to the guest to drop set-user-id bits and capabilities of written files: one more request a write
    #[arg(long, help_heading = "Files")]
    pub no_killpriv_v2: bool,

    /// Keep locks of byte ranges within the guest
    #[arg(long, help_heading = "Files")]
    pub no_posix_lock: bool,

    /// Keep locks of whole files within the guest
    #[arg(long, help_heading = "Files")]
    pub no_flock: bool,

    /// Do not tell the guest which directories are mount points
    #[arg(long, help_heading = "Files")]
    pub no_announce_submounts: bool,

    /// Keep O_NOATIME of the guest's programs
    #[arg(long, help_heading = "Files")]
    pub preserve_noatime: bool,

    /// Do not map files that are read often in small pieces
    #[arg(long, help_heading = "Execution")]
    pub no_read_windows: bool,

    /// Hold inodes by file handles and not by descriptors: never, prefer or mandatory
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = "Files", hide_possible_values = true)]
    pub inode_file_handles: FileHandles,

    /// Most inodes the guest can know at a time; each takes some 250 bytes [default: 16777216]
    #[arg(long, value_name = "N", help_heading = "Files")]
    pub nodes_max: Option<u32>,

    /// Most descriptors to hold for inodes [default: 4096; 524288 without file handles]
    #[arg(long, value_name = "N", help_heading = "Files")]
    pub descriptors_max: Option<u32>,

    /// Most files the guest can have open [default: 65536]
    #[arg(long, value_name = "N", help_heading = "Files")]
    pub open_files_max: Option<u32>,

    /// Translate user ids between guest and host, as in map:0:100000:65536; may be repeated
    #[arg(long, value_name = "RULE", help_heading = "Files")]
    pub translate_uid: Vec<String>,

    /// Translate group ids between guest and host; may be repeated
    #[arg(long, value_name = "RULE", help_heading = "Files")]
    pub translate_gid: Vec<String>,

    /// What inodes are found by where the guest is migrated to: find-paths, or file-handles on the same file system
    #[arg(long, value_enum, value_name = "MODE", default_value_t, help_heading = "Migration")]
    #[arg(hide_possible_values = true)]
    pub migration_mode: MigrationMode,

    /// When something of a guest that is migrated to here is not found: abort, or guest-error (go on, with errors for the
    /// guest)
    #[arg(long, value_enum, value_name = "REACTION", default_value_t, help_heading = "Migration")]
    #[arg(hide_possible_values = true)]
    pub migration_on_error: MigrationOnError,

    /// With find-paths: send file handles along, and take only what has the same; needs the same file system
    #[arg(long, help_heading = "Migration")]
    pub migration_verify_handles: bool,

    /// Where file-system calls run: auto, uring, inline or pool=N
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Execution")]
    pub execution: Execution,

    /// Let every operation wait first, as in 1ms: a slow directory, for experiments
    #[arg(long, value_name = "TIME", help_heading = "Execution")]
    pub delay: Option<Span>,
}

impl DirectoryFlags {
    /// The directory as one value, not yet checked.
    pub fn describe(&self) -> Directory {
        Directory {
            path: self.path.clone(),
            protocol: self.protocol,
            security_model: self.security_model,
            fmode: self.fmode,
            dmode: self.dmode,
            multidevs: self.multidevs,
            msize: self.msize,
            clients_may_be_root: self.clients_may_be_root,
            client_cids: self.client_cids.clone(),
            tag: self.tag.clone(),
            cache: self.cache,
            attr_timeout: self.attr_timeout,
            entry_timeout: self.entry_timeout,
            negative_timeout: self.negative_timeout,
            writeback: self.writeback,
            allow_direct_io: self.allow_direct_io,
            allow_mmap: self.allow_mmap,
            readdirplus: self.readdirplus,
            xattr: !self.no_xattr,
            xattrmap: self.xattrmap.clone(),
            posix_acl: self.posix_acl,
            security_label: self.security_label,
            killpriv_v2: !self.no_killpriv_v2,
            posix_lock: !self.no_posix_lock,
            flock: !self.no_flock,
            announce_submounts: !self.no_announce_submounts,
            inode_file_handles: self.inode_file_handles,
            nodes_max: self.nodes_max,
            descriptors_max: self.descriptors_max,
            open_files_max: self.open_files_max,
            preserve_noatime: self.preserve_noatime,
            read_windows: !self.no_read_windows,
            read_only: self.read_only,
            nosuid: self.nosuid,
            nodev: self.nodev,
            translate_uid: self.translate_uid.clone(),
            translate_gid: self.translate_gid.clone(),
            migration_mode: self.migration_mode,
            migration_on_error: self.migration_on_error,
            migration_verify_handles: self.migration_verify_handles,
            dax: self.dax_window.map(|window| Dax { window, when: self.dax.unwrap_or_default() }),
            execution: self.execution,
            delay: self.delay,
        }
    }
}

impl AddDirArgs {
    /// The export that is described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError::Options`] for the first field that cannot be used.
    pub fn export(&self) -> Result<NewExport, DescriptionError> {
        let mut new = NewExport {
            name: self.name.clone(),
            kind: ExportKind::Dir,
            socket: self.socket.clone(),
            socket_mode: self.socket_mode,
            socket_owner: self.socket_owner.clone(),
            socket_group: self.socket_group.clone(),
            socket_fd: None,
            listen: self.listen.clone(),
            tls: None,
            storage: None,
            disk: None,
            luns: Vec::new(),
            directory: Some(self.directory.describe()),
            queues: self.queues,
            queue_size: self.queue_size,
            serial: None,
            block_size: None,
            write_cache: None,
            workers: self.workers,
            poll: self.poll,
            cpus: self.cpus.clone(),
            limits: self.limits.limits(self.limit_group.clone()),
        };
        new.check().map_err(DescriptionError::Options)?;
        super::add::make_absolute(&mut new).map_err(DescriptionError::Options)?;
        Ok(new)
    }
}
