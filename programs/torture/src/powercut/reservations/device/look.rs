//! The part of it that looks, in the guest: behind each entry of the kernel's log the power goes, and what is left is mounted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::{Lived, Looked};
use crate::powercut::device::inside::forget_vdso;
use crate::powercut::device::log::{self, What};
use crate::powercut::reservations::cut::{self, Tally};
use crate::powercut::reservations::state::{Found, May};

/// Options of `xtask torture powercut-reservations-look`, which its caller on the host knows.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// What the device had before.
    #[arg(long)]
    before: PathBuf,
    /// The log of dm-log-writes.
    #[arg(long)]
    log: PathBuf,
    /// What has happened.
    #[arg(long)]
    lived: PathBuf,
    /// A device of the same size.
    #[arg(long)]
    scratch: PathBuf,
    /// Where it is mounted.
    #[arg(long)]
    mount: PathBuf,
    /// Where what was seen goes.
    #[arg(long)]
    looked: PathBuf,
}

/// Looks behind each entry.
pub(crate) fn run(options: &Options) -> Result<()> {
    forget_vdso()?;
    let lived: Lived = serde_json::from_slice(&fs::read(&options.lived)?).context("--lived holds no lives")?;
    let mut device = fs::read(&options.before)?;
    let mut looked = Looked { tally: Tally::default(), violation: None };
    let mut marks = lived.may.into_iter();
    let mut may = May::only(&Found::default());
    // Nothing was told before a violation.
    let entries = if lived.violation.is_none() { log::read(&File::open(&options.log)?)? } else { Vec::new() };
    let total = entries.len();
    for (number, entry) in entries.into_iter().enumerate() {
        let mut is_news = true;
        match entry.what {
            What::Nothing => is_news = false,
            What::Mark(text) => {
                let (mark, now) = marks.next().with_context(|| format!("nobody knows of the mark `{text}`"))?;
                ensure!(text == mark.to_string(), "the mark {mark} is missing: `{text}` stands in its place");
                may = now;
            }
            What::Write { offset, data, .. } => {
                let place = device.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..data.len()));
                place.context("a write behind the device's end")?.copy_from_slice(&data);
            }
            // The device below gives zeroes back.
            What::Discard { offset, bytes } => {
                let place = device.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes as usize));
                place.context("a range behind the device's end")?.fill(0);
            }
        }
        if !is_news {
            continue;
        }
        looked.tally.cuts += 1;
        looked.tally.events += 1;
        let found = look(options, &device).with_context(|| format!("behind entry {number} of {total}"))?;
        if !found.as_ref().is_ok_and(|found| may.permits(found)) {
            looked.violation =
                Some(format!("cut behind entry {number} of {total}: {may:?} may be there, and is not: {found:?}"));
            break;
        }
    }
    if looked.violation.is_none() {
        let missing = marks.count();
        ensure!(missing == 0, "the last {missing} events are not in the log");
    }
    serde_json::to_writer(&File::create(&options.looked)?, &looked)?;
    Ok(())
}

/// What a daemon makes of the file on this device.
fn look(options: &Options, device: &[u8]) -> Result<Result<Found, String>> {
    File::options().write(true).open(&options.scratch)?.write_all_at(device, 0)?;
    let _mounted = Mounted::new(&options.scratch, &options.mount)?;
    cut::kept(&options.mount.join("kept"))
}

/// A file system, as long as it is mounted.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn new(device: &Path, at: &'a Path) -> Result<Self> {
        mount(device, at, "ext4", MountFlags::empty(), None).context("cannot mount what a cut has left")?;
        Ok(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0, UnmountFlags::empty()) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}
