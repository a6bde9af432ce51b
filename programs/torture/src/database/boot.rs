//! The end of a boot of the host, as a volume sees it: what its superblock says of a memory file is of another one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use volume::Blocks;
use volume::format::{MemoryAt, Uuid, read_superblock, write_superblock};

/// The superblocks of a volume that nobody serves.
struct Superblocks(File);

impl Blocks for Superblocks {
    fn len(&self) -> u64 {
        self.0.metadata().map_or(0, |about| about.len())
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn zero_at(&mut self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Has the volume's last opening be one of another boot.
pub(super) fn ends(volume: &Path) -> Result<()> {
    let file = File::options().read(true).write(true).open(volume).context("cannot open the volume")?;
    let mut data = Superblocks(file);
    let mut superblock = read_superblock(&mut data)?;
    let memory = superblock.memory.take().context("the volume says of no memory file")?;
    superblock.memory = Some(MemoryAt { boot: Uuid::new_v4(), ..memory });
    Ok(write_superblock(&mut data, &mut superblock)?)
}
