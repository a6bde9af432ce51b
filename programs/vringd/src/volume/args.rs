//! The arguments of `vringd volume`. Doc comments are the help texts.

use clap::{Subcommand, ValueEnum};
use control::model::{ByteSize, MemoryFile};
use std::path::PathBuf;

/// Make, look at and change volumes: disks whose synchronous writes share commits.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vringd volume create --size 20G disk.vol               a sparse file, with its log inside
  vringd disk --socket S --storage volume disk.vol       serve it
  vringd volume log add disk.vol --log /dev/nvme0n1p3    a log on a faster device
  vringd volume convert disk.img disk.vol                of an image
  vringd volume check disk.vol                           what a power cut has left, without a change

A volume that is served is refused here: `vringd ctl export show|resize|sync` are for that.
Exit status: 0 done; 1 failed, or check found something wrong; 2 refused, nothing was changed.")]
pub(crate) struct Args {
    /// Print JSON instead of words
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What `vringd volume` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a volume
    #[command(after_help = "\
Examples:
  vringd volume create --size 20G disk.vol
  vringd volume create --size 20G --log-size 1G --log /dev/nvme0n1p3 disk.vol
  vringd volume create --size 100G /dev/vdb              log and data share the device")]
    Create(Create),
    /// Say what a volume is: size, log, whether it was closed in order, what a killed server has left in memory
    Info {
        /// The volume
        path: PathBuf,
        /// How to get at it.
        #[command(flatten)]
        access: Access,
    },
    /// Read a volume and its log, say what would be replayed and what is wrong; changes nothing
    #[command(after_help = "\
Example:
  vringd volume check --json disk.vol | jq .problems")]
    Check {
        /// The volume and its log.
        #[command(flatten)]
        place: Place,
    },
    /// Bring what the log and a killed server's memory hold to its place, as serving would, and close the volume in order
    #[command(after_help = "\
Example:
  vringd volume replay disk.vol && cp --sparse=always disk.vol backup.vol")]
    Replay {
        /// The volume and its log.
        #[command(flatten)]
        place: Place,
        /// Give up what guests wrote and did not flush before a server was killed, also where its memory file is gone
        #[arg(long)]
        discard_memory: bool,
        /// Give up what the log holds from the first place on that cannot be read: flushed writes are lost
        #[arg(long)]
        discard_unreadable: bool,
    },
    /// Make a volume larger, which was closed in order
    #[command(after_help = "\
Examples:
  vringd volume resize disk.vol 40G
  vringd volume resize --shrink disk.vol 10G             what lies behind is lost
  vringd ctl export resize NAME 40G                      while it is served")]
    Resize {
        /// The volume and its log.
        #[command(flatten)]
        place: Place,
        /// New size of the disk, as in 40G
        size: ByteSize,
        /// Make it smaller: what is at the end of the disk is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Put a volume's log on a device of its own, or back into the volume
    #[command(subcommand)]
    Log(Log),
    /// Make a volume of an image, or an image of a volume; holes stay holes
    #[command(after_help = "\
Examples:
  vringd volume convert disk.img disk.vol
  vringd volume convert --to raw disk.vol disk.img
  vringd volume convert /dev/vdb disk.vol                of a device that nobody uses")]
    Convert(Convert),
}

/// A volume and its log.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// The volume
    pub(crate) path: PathBuf,
    /// Its log, where that is in a file or on a device of its own
    #[arg(long, value_name = "PATH")]
    pub(crate) log: Option<PathBuf>,
    /// How to get at it.
    #[command(flatten)]
    pub(crate) access: Access,
}

/// How to get at a volume.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Access {
    /// Where the memory of a killed server would be: auto, none, or the path that it was given [default: auto]
    #[arg(long, value_name = "WHERE")]
    pub(crate) memory_file: Option<MemoryFile>,
    /// Go through the page cache
    #[arg(long)]
    pub(crate) no_direct: bool,
    /// Do not lock the files against others who use them; I/O of a killed server is waited for all the same
    #[arg(long)]
    pub(crate) no_lock: bool,
}

/// Arguments of `vringd volume create`.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// The file to make, or an existing file or block device (with --force)
    pub(crate) path: PathBuf,
    /// Size of the disk, as in 20G
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// Size of the log, 64K to 1T [default: an eighth of the disk, 1M to 256M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) log_size: Option<ByteSize>,
    /// Put the log into this file or on this device
    #[arg(long, value_name = "PATH")]
    pub(crate) log: Option<PathBuf>,
    /// Overwrite what is there
    #[arg(long)]
    pub(crate) force: bool,
    /// How to get at it.
    #[command(flatten)]
    pub(crate) access: Access,
}

/// What can be done about a log.
#[derive(Debug, Subcommand)]
pub(crate) enum Log {
    /// Put the log into a file or on a device of its own
    #[command(after_help = "\
Example:
  vringd volume log add disk.vol --log /dev/nvme0n1p3")]
    Add {
        /// The volume
        path: PathBuf,
        /// The file to make, or an existing file or block device (with --force)
        #[arg(long, value_name = "PATH")]
        log: PathBuf,
        /// Size of a log in a file, 64K to 1T; a device is used whole [default: an eighth of the disk, 1M to 256M]
        #[arg(long, value_name = "SIZE")]
        size: Option<ByteSize>,
        /// Overwrite what is there
        #[arg(long)]
        force: bool,
        /// How to get at it.
        #[command(flatten)]
        access: Access,
    },
    /// Put the log back into the volume, which was closed in order
    #[command(after_help = "\
Examples:
  vringd volume log remove disk.vol --log /dev/nvme0n1p3
  vringd volume log remove disk.vol --lost               the device is gone: says what that costs")]
    Remove {
        /// The volume
        path: PathBuf,
        /// The log that is to be removed
        #[arg(long, value_name = "PATH", required_unless_present = "lost")]
        log: Option<PathBuf>,
        /// The log is gone: go on without what it held
        #[arg(long, conflicts_with = "log")]
        lost: bool,
        /// How to get at it.
        #[command(flatten)]
        access: Access,
    },
}

/// Arguments of `vringd volume convert`.
#[derive(Debug, clap::Args)]
pub(crate) struct Convert {
    /// The image or device to read; with --to raw, the volume
    pub(crate) source: PathBuf,
    /// The file to make, or an existing file or block device (with --force)
    pub(crate) target: PathBuf,
    /// What to make
    #[arg(long, value_name = "KIND", value_enum, default_value_t)]
    pub(crate) to: Form,
    /// Size of the new volume's disk, if it is to be larger than the image
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<ByteSize>,
    /// Size of the new volume's log, 64K to 1T [default: an eighth of the disk, 1M to 256M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) log_size: Option<ByteSize>,
    /// Log of the volume, in a file or on a device of its own
    #[arg(long, value_name = "PATH")]
    pub(crate) log: Option<PathBuf>,
    /// Overwrite what is there
    #[arg(long)]
    pub(crate) force: bool,
    /// How to get at it.
    #[command(flatten)]
    pub(crate) access: Access,
}

/// What a disk's contents lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A volume
    #[default]
    Volume,
    /// A raw image
    Raw,
}
