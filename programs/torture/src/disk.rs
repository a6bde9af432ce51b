//! Disks for servers under torture: raw images, volumes and qcow2 images with intent logs and their memory files, and images of clusters.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::Args;
use guest::ceph::{Cluster, Store};
use guest::lab::Lab;
use guest::process;
use tempfile::TempDir;

use super::server::Served;

/// Small enough for a volume to write back all the time.
const VOLUME_LOG: &str = "1M";
const VOLUME_DIRTY_MEMORY: &str = "4M";
const RBD_IMAGE: &str = "disk";

/// What servers under torture may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A raw image.
    Raw,
    /// A volume.
    Volume,
    /// A qcow2 image, with an intent log in a file of its own.
    LoggedImage,
    /// An image of a Ceph cluster, which is made for it.
    Rbd,
}

/// Which of them is served.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(super) struct KindOptions {
    /// Serve volumes instead of raw images
    #[arg(long)]
    volume: bool,
    /// Serve qcow2 images with an intent log instead of raw images
    #[arg(long)]
    logged_image: bool,
    /// Serve images of a Ceph cluster instead of raw images, which needs the lab
    #[arg(long)]
    rbd: bool,
}

impl KindOptions {
    /// As they say, of which one at most is given.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self { volume: true, .. } => Kind::Volume,
            Self { logged_image: true, .. } => Kind::LoggedImage,
            Self { rbd: true, .. } => Kind::Rbd,
            _ => Kind::Raw,
        }
    }
}

impl Kind {
    /// Whether an intent log is in front.
    pub(super) fn has_log(self) -> bool {
        matches!(self, Self::Volume | Self::LoggedImage)
    }

    /// What a way to serve it is called, of which a raw image has as many as there are executions.
    pub(super) fn name(self, execution: &str) -> &str {
        match self {
            Self::Raw => execution,
            Self::Volume => "a volume",
            Self::LoggedImage => "an image with a log",
            Self::Rbd => "an image of a cluster",
        }
    }
}

/// A disk of zeroes.
pub(super) struct Disk {
    served: Served,
    /// What the disk holds: a copy, made when it is asked for, of what is no raw image.
    image: PathBuf,
    /// Of the memory file that a volume has.
    _memory: Option<TempDir>,
    cluster: Option<Cluster>,
}

impl Disk {
    /// One of `bytes` in `directory`; `program` makes what is no raw image, and `execution` is how that is served.
    pub(super) fn new(kind: Kind, program: &Path, directory: &Path, bytes: u64, execution: &str) -> Result<Self> {
        match kind {
            Kind::Raw => Self::raw(directory, bytes, false, execution),
            Kind::Volume => Self::volume(program, directory, bytes, None),
            Kind::LoggedImage => Self::volume(program, directory, bytes, Some(directory.join("disk.qcow2"))),
            Kind::Rbd => Self::rbd(directory, bytes, Store::Memory),
        }
    }

    /// A raw image.
    pub(super) fn raw(directory: &Path, bytes: u64, direct: bool, execution: &str) -> Result<Self> {
        let image = directory.join("disk.img");
        File::create_new(&image)?.set_len(bytes)?;
        let served = Served::File { image: image.clone(), direct, execution: execution.to_owned() };
        Ok(Self { served, image, _memory: None, cluster: None })
    }

    /// A volume, or an image with its log.
    fn volume(program: &Path, directory: &Path, bytes: u64, image: Option<PathBuf>) -> Result<Self> {
        let volume = directory.join("disk.vol");
        let size = bytes.to_string();
        let create = |words: &[&str], path: &Path| process::run(Command::new(program).args(words).arg(path)).map(drop);
        match &image {
            None => create(&["volume", "create", "--log-size", VOLUME_LOG, "--size", &size], &volume)?,
            Some(image) => {
                create(&["image", "create", "--size", &size], image)?;
                create(&["image", "log", "create", "--size", VOLUME_LOG], &volume)?;
            }
        }
        // What must outlive a server lies on tmpfs.
        let directory_of_memory = TempDir::with_prefix_in("vringd-torture-", "/dev/shm")?;
        let memory = directory_of_memory.path().join("memory");
        let served = Served::Volume { volume, image, memory, dirty_memory: VOLUME_DIRTY_MEMORY.into() };
        Ok(Self { served, image: directory.join("disk.img"), _memory: Some(directory_of_memory), cluster: None })
    }

    /// An image of a cluster of its own.
    pub(super) fn rbd(directory: &Path, bytes: u64, store: Store) -> Result<Self> {
        let place = directory.join("ceph");
        fs::create_dir(&place)?;
        let mut cluster = Cluster::start(&Lab::locate()?, &place, store)?;
        cluster.run(&format!("rbd create --size {bytes}B --object-size 64K {RBD_IMAGE}"))?;
        let served = Served::Rbd { image: RBD_IMAGE.into(), conf: cluster.conf() };
        Ok(Self { served, image: place.join("exported"), _memory: None, cluster: Some(cluster) })
    }

    /// The cluster that it is in.
    pub(super) fn cluster(&mut self) -> Option<&mut Cluster> {
        self.cluster.as_mut()
    }

    /// What a server is told.
    pub(super) fn served(&self) -> Served {
        self.served.clone()
    }

    /// The image as it is, which a server may be using; a volume has none.
    pub(super) fn raw_image(&self) -> Option<&Path> {
        matches!(self.served, Served::File { .. }).then_some(self.image.as_path())
    }

    /// An image of what the disk holds, which no server uses any more.
    pub(super) fn final_image(&mut self, program: &Path) -> Result<&Path> {
        if let Some(cluster) = &mut self.cluster {
            // By another program than the one under torture.
            cluster.run(&format!("rm -f exported; rbd export --no-progress {RBD_IMAGE} exported"))?;
        }
        let run = |words: &[&str], paths: &[&Path]| process::run(Command::new(program).args(words).args(paths));
        match &self.served {
            Served::Volume { volume, image: None, .. } => {
                run(&["volume", "convert", "--to", "raw"], &[volume, &self.image])?;
            }
            Served::Volume { image: Some(image), .. } => {
                run(&["image", "check"], &[image])?;
                run(&["image", "convert", "--from", "qcow2", "--to", "raw"], &[image, &self.image])?;
            }
            _ => {}
        }
        Ok(&self.image)
    }
}
