//! Arguments of `vringd dir`: one directory, spelled as options.

use crate::isolation::IsolationArgs;
use control::ctl::{DirectoryFlags, LimitFlags};
use control::model::config::{ExportKind, NewExport};
use control::model::{CpuList, Favour, FileMode, Listen, Placement, PolicyMode, Poll, Span};
use std::path::PathBuf;

/// Serve one directory on one socket, until SIGTERM, SIGINT or SIGHUP.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("place").args(["socket", "fd", "listen"]))]
#[command(after_help = "\
Attach a guest by virtio-fs:
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=SOCKET -device vhost-user-fs-pci,chardev=c0,tag=TAG …
  cloud-hypervisor --memory size=1G,shared=on --fs tag=TAG,socket=SOCKET,num_queues=QUEUES …
  in the guest: mount -t virtiofs TAG /mnt
By 9p, over vhost-user (--protocol 9p):
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=SOCKET \\
    -device vhost-user-test-device-pci,chardev=c0,virtio-id=9,num_vqs=1,vq_size=128,config_size=2+LENGTH_OF_TAG …
  in the guest: mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 TAG /mnt
By 9p, over a socket (--protocol 9p --listen ADDRESS), of this host, a container, or a guest's network:
  mount -t 9p -o trans=unix,version=9p2000.L,msize=1048576,uname=root PATH /mnt       --listen unix:PATH
  mount -t 9p -o trans=tcp,port=5640,version=9p2000.L,msize=1048576 IP /mnt           --listen tcp:IP:5640
A TCP port is made on 127.0.0.1 unless IP says otherwise, which is every user of this host: 9p asks nobody who they are.
Root's daemon listens there with --security-model mapped-xattr, or when told --clients-may-be-root.")]
pub(crate) struct Args {
    /// The directory and how it is served.
    #[command(flatten)]
    pub(crate) directory: DirectoryFlags,
    /// Path of the vhost-user socket to make; left out with --fd, --listen, or with a socket from the service manager
    #[arg(long, short, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Inherited descriptor of a listening vhost-user socket, instead of --socket
    #[arg(long, value_name = "N")]
    pub(crate) fd: Option<i32>,
    /// For 9p without a device: where clients connect: unix:PATH, tcp:PORT (on 127.0.0.1), tcp:IP:PORT, vsock:PORT (every
    /// virtual machine), vsock:CID:PORT or fd:N
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<Listen>,
    /// Permission bits of the socket, in octal [default: 0600]
    #[arg(long, value_name = "MODE", requires = "place")]
    pub(crate) socket_mode: Option<FileMode>,
    /// Owner of the socket, a user name or number
    #[arg(long, value_name = "USER", requires = "place")]
    pub(crate) socket_owner: Option<String>,
    /// Group of the socket, a group name or number
    #[arg(long, value_name = "GROUP", requires = "place")]
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
    /// What is preferred where short answers and free processors cannot both be had
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) favour: Favour,
    /// Whether to choose by itself how workers wait and which ring they have
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub(crate) policy: PolicyMode,

    /// Request queues the guest may use, 1 to 64 [default: 64]; with --listen the clients that may be
    /// connected, 1 to 1024 [default: 64]
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
            listen: self.listen,
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
            poll: Some(self.poll.unwrap_or_default()),
            cpus: self.cpus,
            limits: self.limits.limits(None),
        }
    }
}
