//! The part of it that runs in the guest: one life of a volume, on a mapped device.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use storage::{FileOptions, FileStorage};

use super::mark::Marker;
use crate::powercut::live;
use crate::powercut::record::Tape;
use crate::powercut::trace::Trace;
use crate::rng::Rng;

/// Options of `xtask torture powercut-life`, which its caller on the host knows.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Name of the mapped device that the volume is on.
    #[arg(long)]
    device: String,
    /// A trace in which nothing has happened.
    #[arg(long)]
    before: PathBuf,
    /// Where what has happened goes.
    #[arg(long)]
    tape: PathBuf,
    /// Seed of the load.
    #[arg(long)]
    seed: u64,
    /// Go past the page cache.
    #[arg(long)]
    direct: bool,
}

/// Names of entries of the auxiliary vector: one that means nothing, and where the vDSO is (`include/uapi/linux/auxvec.h`).
const AT_IGNORE: u64 = 1;
const AT_SYSINFO_EHDR: u64 = 33;

/// Forgets the vDSO: that of User Mode Linux lacks a call that rustix takes for granted, and ends the program for.
pub(in crate::powercut) fn forget_vdso() -> Result<()> {
    let mut vector = fs::read("/proc/self/auxv").context("cannot read /proc/self/auxv")?;
    for entry in vector.as_chunks_mut::<16>().0 {
        if entry[..8] == AT_SYSINFO_EHDR.to_ne_bytes() {
            entry[..8].copy_from_slice(&AT_IGNORE.to_ne_bytes());
        }
    }
    // SAFETY: the kernel reads as many bytes as are said to be there, and keeps a copy.
    let result = unsafe {
        libc::prctl(libc::PR_SET_MM, libc::c_long::from(libc::PR_SET_MM_AUXV), vector.as_ptr(), vector.len(), 0_usize)
    };
    ensure!(result == 0, "cannot change the auxiliary vector: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Lives it.
pub(crate) fn run(options: &Options) -> Result<()> {
    forget_vdso()?;
    let before = fs::read(&options.before).with_context(|| format!("cannot read {}", options.before.display()))?;
    let before: Trace = serde_json::from_slice(&before).context("--before holds no trace")?;
    let scene = before.scene.clone();
    let marker = Marker::open(&options.device)?;
    let tape = Tape::marking(before, move |number| marker.mark(number));
    let path = Path::new("/dev/mapper").join(&options.device);
    let file = FileOptions { direct: options.direct, ..FileOptions::new(path) };
    let data = Arc::new(FileStorage::open(&file)?);
    let figures = live::serve(data, None, &tape, &scene, &mut Rng::new(options.seed, 0))?;
    if let Some(error) = tape.unmarked() {
        bail!("cannot mark the log of {}: {error}", options.device);
    }
    let trace = tape.finish().context("a volume that was closed still holds its storage")?;
    let file = File::create(&options.tape).with_context(|| format!("cannot create {}", options.tape.display()))?;
    let mut file = BufWriter::new(file);
    serde_json::to_writer(&mut file, &(trace, figures.commits, figures.sweeps))?;
    file.into_inner()?.sync_all()?;
    Ok(())
}
