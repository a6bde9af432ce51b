//! The arguments of `vringd image`. Doc comments are the help texts.

use ::image::tools::NewSize;
use clap::{Subcommand, ValueEnum};
use control::model::{ByteSize, MemoryFile};
use std::path::PathBuf;
use volume::tools::LOG_BYTES_DEFAULT;

/// Make, look at, check and change qcow2 images
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vringd image create --size 20G disk.qcow2              a thin disk
  vringd image create --backing base.qcow2 --backing-format qcow2 vm1.qcow2
  vringd disk --socket S --storage qcow2 disk.qcow2      serve it
  vringd image check --repair disk.qcow2                 give back what a killed server has leaked

Files are those that QEMU reads and writes. What is not here (repairing
damage, encryption inside qcow2) `qemu-img` does.
Exit status: 0 done; 1 failed, check found damage, or compare a difference; 2 refused, nothing was changed.")]
pub(crate) struct Args {
    /// Print JSON instead of words
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What `vringd image` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make an image in which nothing is allocated, alone or over a backing file
    #[command(after_help = "\
Examples:
  vringd image create --size 20G disk.qcow2
  vringd image create --backing base.img --backing-format raw vm1.qcow2
  vringd image create --size 2T --cluster-size 128K --subclusters disk.qcow2")]
    Create(Create),
    /// Make an image that holds a LUKS container, whose disk reads as noise until it is written
    #[command(after_help = "\
Examples:
  vringd image create-luks --size 20G --luks-key-file key disk.luks
  vringd image create-luks --size 20G --luks-key-file key --format qcow2 disk.qcow2
  vringd disk --socket S --luks-key-file key disk.luks         serve it

Every byte of the key file counts, a newline at its end too: `printf %s PASSPHRASE > key`.")]
    CreateLuks(CreateLuks),
    /// Say what an image is: sizes, features, snapshots, what is behind it; also while it is served
    Info {
        /// The image
        path: PathBuf,
        /// Also what is behind it, image by image
        #[arg(long)]
        chain: bool,
    },
    /// Copy an image, with all that is behind it, into a new one of the same format or another; holes stay holes
    #[command(after_help = "\
Examples:
  vringd image convert disk.img disk.qcow2
  vringd image convert --from qcow2 --to raw disk.qcow2 disk.img
  vringd image convert --from qcow2 --snapshot daily vm1.qcow2 daily.qcow2
  vringd image convert --from qcow2 vm1.qcow2 flat.qcow2      without what was behind it, and without leaks
  vringd image convert --to raw --from qcow2 --force disk.qcow2 /dev/vg/disk
  vringd image convert --from vmdk vm1.vmdk vm1.qcow2         of several files, the one that lists the others

The image must not be written meanwhile. VDI images: `qemu-img convert`. Volumes: `vringd volume convert`.")]
    Convert(Convert),
    /// Say whether two images have the same contents, each with all that is behind it
    #[command(after_help = "\
Examples:
  vringd image compare disk.img --other-format qcow2 disk.qcow2
  vringd image compare --format qcow2 vm1.qcow2 --other-format qcow2 flat.qcow2
  vringd image compare --format vmdk vm1.vmdk --other-format qcow2 vm1.qcow2

Exit status: 0 the same; 1 different, or one cannot be read; 2 refused. Of images of different sizes the rest of the larger has to
read as zeroes.")]
    Compare {
        /// An image or device
        one: PathBuf,
        /// Another
        other: PathBuf,
        /// What the first is, which is never guessed
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        format: Readable,
        /// What the other is
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        other_format: Readable,
        /// Of the first, take the disk as it was at this internal snapshot
        #[arg(long, value_name = "ID|NAME")]
        snapshot: Option<String>,
        /// Of the other
        #[arg(long, value_name = "ID|NAME")]
        other_snapshot: Option<String>,
        /// Directory in which files that the images lead to may lie besides their own, or such a device; may be given often
        #[arg(long, value_name = "PATH")]
        allow_backing: Vec<PathBuf>,
    },
    /// Say where a disk has data, in an image or in what is behind it
    #[command(after_help = "\
Examples:
  vringd image map --format qcow2 disk.qcow2
  vringd image map --json disk.img | jq '[.[] | select(.data) | .length] | add'

What is no data reads as zeroes. JSON has the names of `qemu-img map`. Of an image that is served, NBD
clients are told the same (`vringd disk --listen`).")]
    Map {
        /// An image or device
        path: PathBuf,
        /// What it is, which is never guessed
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        format: Readable,
        /// Take the disk as it was at this internal snapshot
        #[arg(long, value_name = "ID|NAME")]
        snapshot: Option<String>,
        /// Directory in which files that the image leads to may lie besides its own, or such a device; may be given
        /// often
        #[arg(long, value_name = "PATH")]
        allow_backing: Vec<PathBuf>,
    },
    /// List, take, apply and delete internal snapshots of an image that nobody serves
    #[command(after_help = "\
Examples:
  vringd image snapshot create disk.qcow2 before-upgrade
  vringd image snapshot apply disk.qcow2 before-upgrade        what the disk is now is lost
  vringd disk --socket S --storage qcow2 --readonly --snapshot before-upgrade disk.qcow2

A snapshot keeps the clusters that the disk has now: what is written afterwards takes new ones. All of them print the snapshots that
there are then.")]
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Make an intent log for images, bring what one holds into its image, or go on without it
    #[command(
        subcommand,
        after_help = "\
Examples:
  vringd image log create --size 256M vm1.log
  vringd disk --socket S --storage qcow2 --log vm1.log vm1.qcow2     synchronous writes share commits
  vringd image log replay vm1.qcow2 --log vm1.log                    after a power cut, before other programs
  vringd image log forget vm1.qcow2                                  the log is gone: what only it had is lost

While a daemon serves an image with a log, and until that was closed in order, no other program opens the image."
    )]
    Log(Log),
    /// List, add, remove, empty, enable and disable dirty bitmaps of an image that nobody serves
    #[command(after_help = "\
Examples:
  vringd image bitmap list disk.qcow2
  vringd image bitmap remove disk.qcow2 daily                  one that is inconsistent can only be removed

A bitmap says what was written since a backup (`vringd ctl disk backup --bitmap`). All of them print the bitmaps that there are then.")]
    #[command(subcommand)]
    Bitmap(Bitmap),
    /// Say how many bytes a new qcow2 image needs: of a size, or made by `convert`
    #[command(after_help = "\
Examples:
  vringd image measure --size 20G
  vringd image measure disk.img
  vringd image measure --json --from qcow2 vm1.qcow2 | jq .required     for the device that `convert` writes to

JSON has the names of `qemu-img measure`, and its figures; these are higher where `convert` needs more.")]
    Measure(Measure),
    /// Give the disk of an image that nobody has another size; what is new reads as zeroes
    #[command(after_help = "\
Examples:
  vringd image resize disk.qcow2 40G
  vringd image resize vm1.qcow2 +10G                     also over a backing file, whatever that has there
  vringd image resize --format raw disk.img 40G
  vringd image resize --shrink disk.qcow2 20G            what is behind that is lost

A disk that is served grows by `vringd ctl disk resize`.")]
    Resize {
        /// The image
        path: PathBuf,
        /// Its new size, as in 40G, or by how much it grows, as in +10G
        #[arg(value_parser = new_size)]
        size: NewSize,
        /// What it is, which is never guessed
        #[arg(long, value_name = "FORMAT", value_enum, default_value = "qcow2")]
        format: Format,
        /// Make it smaller, too: what is behind its new end is lost
        #[arg(long)]
        shrink: bool,
        /// Directory in which files that the image leads to may lie besides its own, or such a device; may be given
        /// often
        #[arg(long, value_name = "PATH")]
        allow_backing: Vec<PathBuf>,
    },
    /// Write what an image has itself into its backing file, and empty it
    #[command(after_help = "\
Examples:
  vringd image commit vm1.qcow2
  vringd image commit --keep vm1.qcow2                   which then has the same twice

Nobody may have either file. The backing file grows if it is smaller. Other images over the same backing file change with it:
they are worth nothing any more. Whoever is interrupted begins again.")]
    Commit {
        /// The image
        path: PathBuf,
        /// Leave in the image what it has
        #[arg(long)]
        keep: bool,
        /// Directory in which files that the image leads to may lie besides its own, or such a device; may be given
        /// often
        #[arg(long, value_name = "PATH")]
        allow_backing: Vec<PathBuf>,
    },
    /// Give an image another backing file, or none; it reads as before
    #[command(after_help = "\
Examples:
  vringd image rebase --backing other.qcow2 --backing-format qcow2 vm1.qcow2
  vringd image rebase --no-backing vm1.qcow2             which then has all that was behind it
  vringd image rebase --unsafe --backing moved.img --backing-format raw vm1.qcow2      the same file by another name

What differs behind the image is copied into it first. Nobody may have the image, nor write to what is behind it.")]
    Rebase(Rebase),
    /// Compare what is used in an image with what its refcounts say; changes nothing without --repair
    #[command(after_help = "\
Examples:
  vringd image check disk.qcow2
  vringd image check --json disk.qcow2 | jq .leaked_bytes

Leaks are clusters that are counted and not used: they cost space, and are what a killed server leaves at worst. Damage is
what somebody would write over: `qemu-img check -r all` repairs that, as far as it can be.")]
    Check {
        /// The image, which nobody serves
        path: PathBuf,
        /// Give leaks back, unless something is damaged
        #[arg(long)]
        repair: bool,
        /// Do not lock the image against others who use it
        #[arg(long, conflicts_with = "repair")]
        no_lock: bool,
    },
}

/// What `vringd image snapshot` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    /// Say which there are; also while the image is served
    List {
        /// The image
        path: PathBuf,
    },
    /// Keep the disk as it is now
    Create {
        /// The image
        path: PathBuf,
        /// What to call it
        name: String,
    },
    /// Have the disk be as it was; what it is now is lost
    Apply {
        /// The image
        path: PathBuf,
        /// Which snapshot, an identifier or a name
        #[arg(value_name = "ID|NAME")]
        snapshot: String,
    },
    /// Forget a snapshot
    Delete {
        /// The image
        path: PathBuf,
        /// Which snapshot, an identifier or a name
        #[arg(value_name = "ID|NAME")]
        snapshot: String,
    },
}

/// What `vringd image bitmap` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Bitmap {
    /// Say which there are; also while the image is served
    List {
        /// The image
        path: PathBuf,
    },
    /// Add one that is enabled, with nothing in it
    Add {
        /// The image
        path: PathBuf,
        /// What to call it
        name: String,
        /// Bytes for which a bit stands: a power of two, 512 to 2G
        #[arg(long, value_name = "SIZE", default_value = "64K")]
        granularity: ByteSize,
    },
    /// Remove one, also one that is inconsistent
    Remove {
        /// The image
        path: PathBuf,
        /// Its name
        name: String,
    },
    /// Let one say that nothing was written
    Clear {
        /// The image
        path: PathBuf,
        /// Its name
        name: String,
    },
    /// Let one follow what is written
    Enable {
        /// The image
        path: PathBuf,
        /// Its name
        name: String,
    },
    /// Let one stay as it is, whatever is written
    Disable {
        /// The image
        path: PathBuf,
        /// Its name
        name: String,
    },
}

/// Arguments of `vringd image create`.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// The file to make, or an existing file or block device (with --force)
    pub(crate) path: PathBuf,
    /// Size of the disk, as in 20G [default: that of the backing file]
    #[arg(long, value_name = "SIZE", required_unless_present = "backing")]
    pub(crate) size: Option<ByteSize>,
    /// What the image reads as where nothing was written; relative to the image's directory
    #[arg(long, value_name = "PATH", requires = "backing_format")]
    pub(crate) backing: Option<PathBuf>,
    /// Format of the backing file, which is written down and never guessed
    #[arg(long, value_name = "FORMAT", value_enum, requires = "backing")]
    pub(crate) backing_format: Option<Format>,
    /// How it is laid out.
    #[command(flatten)]
    pub(crate) layout: Layout,
    /// Overwrite what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// What can be done about an image's intent log.
#[derive(Debug, Subcommand)]
pub(crate) enum Log {
    /// Make a log, which goes in front of any image
    Create {
        /// The file to make, or an existing file or block device (with --force)
        path: PathBuf,
        /// Size of the log, 64K to 1T
        #[arg(long, value_name = "SIZE", default_value_t = ByteSize(LOG_BYTES_DEFAULT))]
        size: ByteSize,
        /// Overwrite what is there
        #[arg(long)]
        force: bool,
        /// Overwrite a log that was not closed, too: the writes that only it has are lost
        #[arg(long, requires = "force")]
        lost: bool,
        /// Go through the page cache
        #[arg(long)]
        no_direct: bool,
    },
    /// Bring what the log and a killed server's memory hold into the image, as serving would, and close both
    Replay {
        /// The image
        path: PathBuf,
        /// Its log
        #[arg(long, value_name = "PATH")]
        log: PathBuf,
        /// Where the memory of a killed server would be: auto, none, or the path that it was given [default: auto]
        #[arg(long, value_name = "WHERE")]
        memory_file: Option<MemoryFile>,
        /// Go through the page cache
        #[arg(long)]
        no_direct: bool,
        /// Give up what guests wrote and did not flush before a server was killed, also where its memory file is gone
        #[arg(long)]
        discard_memory: bool,
        /// Give up what the log holds from the first place on that cannot be read: flushed writes are lost
        #[arg(long)]
        discard_unreadable: bool,
        /// Trust that an image belongs to the log which says nothing of it, because another program repaired it behind `log forget`
        #[arg(long)]
        repaired: bool,
        /// Directory in which files that the image leads to may lie besides its own, or such a device; may be given often
        #[arg(long, value_name = "PATH")]
        allow_backing: Vec<PathBuf>,
    },
    /// Go on without the log that an image had when its server was killed: all that only the log had is lost, unless `log replay --repaired`
    /// brings it into the image afterwards
    Forget {
        /// The image
        path: PathBuf,
    },
}

/// Arguments of `vringd image create-luks`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateLuks {
    /// The file to make, or an existing file or block device (with --force)
    pub(crate) path: PathBuf,
    /// Size of the disk, as in 20G; the image is larger by what the container begins with
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: ByteSize,
    /// File that has the passphrase, and nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) luks_key_file: PathBuf,
    /// Image that holds the container
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Version of LUKS: 2, or 1, which QEMU opens as well
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=2))]
    pub(crate) luks_version: u16,
    /// Bytes that are encrypted together, 512 to 4096: the disk's block size [default: 4096; in version 1, 512]
    #[arg(long, value_name = "BYTES")]
    pub(crate) sector_size: Option<u32>,
    /// How the key comes from the passphrase [default: argon2id; in version 1, pbkdf2]
    #[arg(long, value_name = "NAME", value_enum)]
    pub(crate) pbkdf: Option<Pbkdf>,
    /// Memory of argon2id, as in 256M: opening needs it, too [default: 1G, or half of this host's]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pbkdf_memory: Option<ByteSize>,
    /// Overwrite what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// How a key comes from a passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pbkdf {
    /// Argon2id, which costs memory
    Argon2id,
    /// PBKDF2, which costs time alone
    Pbkdf2,
}

/// Arguments of `vringd image convert`.
#[derive(Debug, clap::Args)]
pub(crate) struct Convert {
    /// The image or device to read
    pub(crate) source: PathBuf,
    /// The file to make, or an existing file or block device (with --force)
    pub(crate) target: PathBuf,
    /// What the source is, which is never guessed
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) from: Readable,
    /// What to make
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "qcow2")]
    pub(crate) to: Format,
    /// Copy the disk as it was at this internal snapshot
    #[arg(long, value_name = "ID|NAME")]
    pub(crate) snapshot: Option<String>,
    /// Directory in which files that the source leads to may lie besides its own, or such a device; may be given often
    #[arg(long, value_name = "PATH")]
    pub(crate) allow_backing: Vec<PathBuf>,
    /// Size of the new disk, if it is to be larger
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<ByteSize>,
    /// How a new qcow2 image is laid out.
    #[command(flatten)]
    pub(crate) layout: Layout,
    /// Compress what gets smaller by that: for an image that is kept, or is behind others; guests' writes are not compressed
    #[arg(long, short = 'c')]
    pub(crate) compress: bool,
    /// How (zstd: QEMU 5.1 or later)
    #[arg(long, value_name = "TYPE", value_enum, default_value_t, requires = "compress")]
    pub(crate) compression: Compression,
    /// Overwrite what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// How clusters are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    /// DEFLATE, which every program reads
    #[default]
    Zlib,
    /// Zstandard; QEMU's encoder makes smaller images
    Zstd,
}

/// Arguments of `vringd image measure`.
#[derive(Debug, clap::Args)]
pub(crate) struct Measure {
    /// An image or device that is to be converted
    #[arg(required_unless_present = "size")]
    pub(crate) source: Option<PathBuf>,
    /// Size of the new disk; with a source, if it is to be larger
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<ByteSize>,
    /// What the source is, which is never guessed
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t, requires = "source")]
    pub(crate) from: Readable,
    /// Measure the disk as it was at this internal snapshot
    #[arg(long, value_name = "ID|NAME", requires = "source")]
    pub(crate) snapshot: Option<String>,
    /// Directory in which files that the source leads to may lie besides its own, or such a device; may be given often
    #[arg(long, value_name = "PATH", requires = "source")]
    pub(crate) allow_backing: Vec<PathBuf>,
    /// How the new image is laid out.
    #[command(flatten)]
    pub(crate) layout: Layout,
}

/// Arguments of `vringd image rebase`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rebase {
    /// The image
    pub(crate) path: PathBuf,
    /// What the image reads as where it has nothing itself; relative to its directory
    #[arg(long, value_name = "PATH", requires = "backing_format", required_unless_present = "no_backing")]
    pub(crate) backing: Option<PathBuf>,
    /// Format of the backing file, which is written down and never guessed
    #[arg(long, value_name = "FORMAT", value_enum, requires = "backing")]
    pub(crate) backing_format: Option<Format>,
    /// There is to be nothing behind it
    #[arg(long, conflicts_with_all = ["backing", "backing_format"])]
    pub(crate) no_backing: bool,
    /// Change the header and copy nothing: whatever differs comes up
    #[arg(long = "unsafe")]
    pub(crate) unchecked: bool,
    /// Directory in which files that the image leads to may lie besides its own, or such a device; may be given often
    #[arg(long, value_name = "PATH")]
    pub(crate) allow_backing: Vec<PathBuf>,
}

/// How a new image is laid out.
#[derive(Debug, clap::Args)]
pub(crate) struct Layout {
    /// Bytes of a cluster, a power of two: 512 to 2M
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub(crate) cluster_size: ByteSize,
    /// Bits of a refcount, a power of two: 1 to 64
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) refcount_bits: u32,
    /// Divide clusters into 32 parts that are copied and allocated one by one (QEMU 5.2 or later)
    #[arg(long)]
    pub(crate) subclusters: bool,
}

fn new_size(text: &str) -> Result<NewSize, String> {
    let (size, of): (_, fn(u64) -> NewSize) = match text.strip_prefix('+') {
        Some(more) => (more, NewSize::By),
        None => (text, NewSize::To),
    };
    size.parse().map(|ByteSize(bytes)| of(bytes)).map_err(|error| error.to_string())
}

/// What a file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A raw image
    #[default]
    Raw,
    /// A qcow2 image
    Qcow2,
}

/// What a file is that is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Readable {
    /// A raw image
    #[default]
    Raw,
    /// A qcow2 image
    Qcow2,
    /// An image of VMware
    Vmdk,
    /// An image of Hyper-V
    Vhdx,
    /// An image of Virtual PC, Hyper-V or Azure (VHD)
    #[value(alias = "vhd")]
    Vpc,
}
