//! Arguments of `vringd dir`: one directory, spelled as options.

use crate::isolation::IsolationArgs;
use control::ctl::{DirectoryFlags, LimitFlags};
use control::model::config::{ExportKind, NewExport};
use control::model::{CpuList, FileMode, Placement, Poll, Span};
use std::path::PathBuf;

/// Serve one directory on one socket, until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Attach a guest:
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=SOCKET -device vhost-user-fs-pci,chardev=c0,tag=TAG …
  cloud-hypervisor --memory size=1G,shared=on --fs tag=TAG,socket=SOCKET,num_queues=QUEUES …
In the guest:
  mount -t virtiofs TAG /mnt")]
pub(crate) struct Args {
    /// The directory and how it is served.
    #[command(flatten)]
    pub(crate) directory: DirectoryFlags,
    /// Path of the vhost-user socket to make; left out with --fd, or with a socket from the service manager
    #[arg(long, short, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Inherited descriptor of a listening vhost-user socket, instead of --socket
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    pub(crate) fd: Option<i32>,
    /// Permission bits of the socket, in octal [default: 0600]
    #[arg(long, value_name = "MODE", requires = "socket")]
    pub(crate) socket_mode: Option<FileMode>,
    /// Owner of the socket, a user name or number
    #[arg(long, value_name = "USER", requires = "socket")]
    pub(crate) socket_owner: Option<String>,
    /// Group of the socket, a group name or number
    #[arg(long, value_name = "GROUP", requires = "socket")]
    pub(crate) socket_group: Option<String>,
    /// Name of the export [default: dir]
    #[arg(long, value_name = "NAME", default_value = "dir", hide_default_value = true)]
    pub(crate) name: String,
    /// Path of a control socket for `vringd ctl`; none when left out
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Name requests in the log that have not been answered for this long; 0s for none [default: 30s]
    #[arg(long, value_name = "TIME", default_value_t = crate::config::stuck_after_default(), hide_default_value = true)]
    pub(crate) stuck_after: Span,

    /// Request queues the guest may use, 1 to 64 [default: one a CPU, up to 8]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub(crate) queues: Option<u16>,
    /// Largest ring, in descriptors: a power of two up to 32768 [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub(crate) queue_size: Option<u16>,

    /// Who serves the queues: shared, one (worker), per-queue, or a number of workers
    #[arg(long, value_name = "PLACEMENT", default_value = "shared", help_heading = "Execution")]
    pub(crate) workers: Placement,
    /// How long a worker looks for work before it sleeps: off, fixed=US, adaptive, adaptive=US [default: adaptive]
    #[arg(long, value_name = "WINDOW", help_heading = "Execution")]
    pub(crate) poll: Option<Poll>,
    /// CPUs of the export's own workers, as in 0-3,8
    #[arg(long, value_name = "LIST", help_heading = "Execution")]
    pub(crate) cpus: Option<CpuList>,

    /// Its limits.
    #[command(flatten)]
    pub(crate) limits: LimitFlags,

    /// What the process may do besides.
    #[command(flatten)]
    pub(crate) isolation: IsolationArgs,
}

impl Args {
    /// The export that these options describe.
    pub(crate) fn into_export(self) -> NewExport {
        NewExport {
            name: self.name,
            kind: ExportKind::Dir,
            socket: self.socket,
            socket_mode: self.socket_mode,
            socket_owner: self.socket_owner,
            socket_group: self.socket_group,
            socket_fd: self.fd,
            storage: None,
            directory: Some(self.directory.describe()),
            queues: self.queues,
            queue_size: self.queue_size,
            serial: None,
            block_size: None,
            workers: self.workers,
            poll: self.poll.or_else(|| Some(crate::config::poll_default())),
            cpus: self.cpus,
            limits: self.limits.limits(None),
        }
    }
}
