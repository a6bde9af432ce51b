//! Arguments of `vringd disk`: one export, spelled as options.

use crate::confinement::Confinement;
use clap::builder::{PossibleValue, PossibleValuesParser};
use control::ctl::{Behind, DiskFlags, Served};
use control::model::config::NewExport;
use control::model::{ByteSize, Favour, PolicyMode, Span};
use disk::StorageSpec;
use std::path::{Path, PathBuf};

/// What stands before an image of Ceph's, without which IMAGE is a file.
const RBD: &str = "rbd:";
/// The kind of those who name none.
const FILE: &str = "file";

/// Serve one disk on one socket, until SIGTERM, SIGINT or SIGHUP.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Attach a guest:
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=SOCKET -device vhost-user-blk-pci,chardev=c0,num-queues=QUEUES …
  cloud-hypervisor --memory size=1G,shared=on --disk vhost_user=true,socket=SOCKET,num_queues=QUEUES …
Over NBD, to programs and other hosts:
  vringd disk --listen unix:/run/disk.nbd IMAGE
  qemu-img convert -O raw 'nbd+unix:///?socket=/run/disk.nbd' copy.img
A disk whose synchronous writes share commits:
  vringd volume create --size 20G --log-size 256M disk.vol
  vringd disk --socket SOCKET --storage volume disk.vol")]
pub(crate) struct Args {
    /// The image file or block device; rbd:POOL/IMAGE[@SNAPSHOT] of a Ceph cluster; for --storage memory a file on tmpfs or hugetlbfs,
    /// which is optional
    #[arg(value_name = "IMAGE", required_unless_present_any = ["size", "path"])]
    pub(crate) image: Option<PathBuf>,
    /// The same as IMAGE
    #[arg(long, value_name = "IMAGE", conflicts_with = "image", help_heading = "Storage")]
    pub(crate) path: Option<PathBuf>,
    /// Path of the vhost-user socket to make; left out with --fd, --listen, or with a socket from the service manager
    #[arg(long, short, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Inherited descriptor of a listening vhost-user socket, instead of --socket
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    pub(crate) fd: Option<i32>,
    /// Name of the export [default: disk]
    #[arg(long, value_name = "NAME", default_value = "disk", hide_default_value = true)]
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

    /// What stands behind the disk
    #[arg(long, value_name = "KIND", value_parser = kinds(), default_value = FILE, help_heading = "Storage")]
    pub(crate) storage: String,
    /// Capacity, for memory without an image, null and sim, as in 10G
    #[arg(long, value_name = "SIZE", help_heading = "Storage")]
    pub(crate) size: Option<ByteSize>,

    /// The disk.
    #[command(flatten)]
    pub(crate) disk: DiskFlags,

    /// What the process gives up.
    #[command(flatten)]
    pub(crate) confinement: Confinement,
}

fn kinds() -> PossibleValuesParser {
    let kinds =
        StorageSpec::KINDS.map(|(kind, about)| PossibleValue::new(kind).help(about.trim().trim_end_matches('.')));
    PossibleValuesParser::new(kinds)
}

impl Args {
    /// The export that these options describe.
    pub(crate) fn into_export(self) -> Result<NewExport, String> {
        let path_option = if self.path.is_some() { "--path" } else { "IMAGE" };
        let path = self.image.or(self.path);
        let rbd = path.as_deref().and_then(Path::to_str).and_then(|image| image.strip_prefix(RBD));
        let (kind, path) = match rbd {
            // A file of such a name is written with its directory.
            Some(image) if self.storage == FILE => ("rbd".to_owned(), Some(PathBuf::from(image))),
            _ => (self.storage, path),
        };
        let served = Served { kind, kind_option: "--storage", path, path_option, size: self.size };
        let behind = Behind::Storage(served);
        let new = self.disk.describe(self.name, self.socket, behind, None).map_err(|error| error.to_string())?;
        Ok(NewExport { socket_fd: self.fd, poll: Some(new.poll.unwrap_or_default()), ..new })
    }
}
