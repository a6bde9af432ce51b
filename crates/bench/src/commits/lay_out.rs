//! An image, a volume and a qcow2 image with the same data, every block of both written: nobody is faster for finding a hole.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::image;
use crate::words;

/// What is laid out.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) dir: &'a Path,
    pub(super) size_bytes: u64,
    pub(super) log_bytes: u64,
    /// Our own program, which makes the volume.
    pub(super) vringd: &'a Path,
}

/// An image and a volume, removed with this value.
#[derive(Debug)]
pub(super) struct Files {
    directory: TempDir,
}

impl Files {
    /// Lays them out; `progress` gets the bytes of the image written so far.
    pub(super) fn lay_out(order: &Order<'_>, mut progress: impl FnMut(u64)) -> Result<Self> {
        let failed = || format!("cannot lay out {} twice in {}", words::size(order.size_bytes), order.dir.display());
        let directory =
            tempfile::Builder::new().prefix("vringd-commits-").tempdir_in(order.dir).with_context(failed)?;
        let files = Self { directory };
        let mut image = std::fs::File::create_new(files.image()).with_context(failed)?;
        image::lay_out(&mut image, order.size_bytes, 0, |bytes| {
            progress(bytes);
            Ok(())
        })
        .with_context(failed)?;
        let mut command = Command::new(order.vringd);
        command.args(["volume", "convert"]).arg(files.image()).arg(files.volume());
        command.arg("--log-size").arg(order.log_bytes.to_string());
        guest::process::run(&mut command).with_context(failed)?;
        files.settle()?;
        Ok(files)
    }

    /// Makes a qcow2 image of which all is allocated, one of which nothing is, and a log for either.
    pub(super) fn lay_out_qcow2(&self, order: &Order<'_>) -> Result<()> {
        let run = |words: &[&str], paths: &[&Path]| {
            let mut command = Command::new(order.vringd);
            command.args(words).args(paths);
            guest::process::run(&mut command)
                .with_context(|| format!("cannot lay out qcow2 images in {}", order.dir.display()))
        };
        run(&["image", "convert", "--to", "qcow2"], &[&self.image(), &self.full()])?;
        run(&["image", "log", "create", "--size", &order.log_bytes.to_string()], &[&self.log()])?;
        self.empty(order.vringd, order.size_bytes)
    }

    /// Makes the image of which nothing is allocated anew.
    pub(super) fn empty(&self, vringd: &Path, size_bytes: u64) -> Result<()> {
        let mut create = Command::new(vringd);
        create.args(["image", "create", "--force", "--size", &size_bytes.to_string()]).arg(self.thin());
        guest::process::run(&mut create).context("cannot empty the thin image")?;
        self.settle()
    }

    /// A qcow2 image of which all was allocated when it was made.
    pub(super) fn full(&self) -> PathBuf {
        self.directory.path().join("full.qcow2")
    }

    /// One of which nothing was.
    pub(super) fn thin(&self) -> PathBuf {
        self.directory.path().join("thin.qcow2")
    }

    /// A log for either.
    pub(super) fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// The image.
    pub(super) fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// The volume.
    pub(super) fn volume(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    /// Waits until nothing of an earlier run is left to be written.
    pub(super) fn settle(&self) -> Result<()> {
        let directory = std::fs::File::open(self.directory.path())?;
        rustix::fs::syncfs(&directory).context("cannot write the file system back")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_quoted_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let order = Order { dir: dir.path(), size_bytes: 1 << 20, log_bytes: 1 << 20, vringd: Path::new("false") };
        let mut written = 0;
        let error = format!("{:#}", Files::lay_out(&order, |bytes| written = bytes).unwrap_err());
        assert!(error.contains("false volume convert ") && error.contains("ended with exit status: 1"), "{error}");
        assert_eq!(written, 1 << 20);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_is_missing_is_named() {
        let order = Order {
            dir: Path::new("/nonexistent"),
            size_bytes: 1 << 20,
            log_bytes: 1 << 20,
            vringd: Path::new("true"),
        };
        let error = format!("{:#}", Files::lay_out(&order, |_| ()).unwrap_err());
        assert!(error.contains("/nonexistent"), "{error}");
    }
}
