//! Disks for servers under torture: raw images, and volumes with their memory files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use guest::process;
use tempfile::TempDir;

use super::server::Served;

/// Small enough for a volume to write back all the time.
const VOLUME_LOG: &str = "1M";
const VOLUME_DIRTY_MEMORY: &str = "4M";

/// A disk of zeroes.
pub(super) struct Disk {
    served: Served,
    /// What the disk holds: of a volume a copy, made when it is asked for.
    image: PathBuf,
    /// Of the memory file that a volume has.
    _memory: Option<TempDir>,
}

impl Disk {
    /// A raw image in `directory`.
    pub(super) fn raw(directory: &Path, bytes: u64, direct: bool, execution: &str) -> Result<Self> {
        let image = directory.join("disk.img");
        File::create_new(&image)?.set_len(bytes)?;
        let served = Served::File { image: image.clone(), direct, execution: execution.to_owned() };
        Ok(Self { served, image, _memory: None })
    }

    /// A volume in `directory`.
    pub(super) fn volume(program: &Path, directory: &Path, bytes: u64) -> Result<Self> {
        let volume = directory.join("disk.vol");
        let mut create = Command::new(program);
        create.args(["volume", "create", "--log-size", VOLUME_LOG, "--size", &bytes.to_string()]).arg(&volume);
        process::run(&mut create)?;
        // What must outlive a server lies on tmpfs.
        let directory_of_memory = TempDir::with_prefix_in("vringd-torture-", "/dev/shm")?;
        let memory = directory_of_memory.path().join("memory");
        let served = Served::Volume { volume, memory, dirty_memory: VOLUME_DIRTY_MEMORY.into() };
        Ok(Self { served, image: directory.join("disk.img"), _memory: Some(directory_of_memory) })
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
    pub(super) fn final_image(&self, program: &Path) -> Result<&Path> {
        if let Served::Volume { volume, .. } = &self.served {
            let mut convert = Command::new(program);
            convert.args(["volume", "convert", "--to", "raw"]).arg(volume).arg(&self.image);
            process::run(&mut convert)?;
        }
        Ok(&self.image)
    }
}
