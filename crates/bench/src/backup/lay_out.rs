//! The disks that are copied, full of data, and a fresh one for each run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use super::case::{Case, Format, Row, Side};
use crate::{image, words};

/// What is laid out.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) dir: &'a Path,
    pub(super) size_bytes: u64,
    /// Formats that a source has.
    pub(super) sources: &'a [Format],
    pub(super) qemu_img: &'a Path,
}

/// Disks that are never served, and those of the run under way; removed with this value.
#[derive(Debug)]
pub(super) struct Files {
    directory: TempDir,
    size_bytes: u64,
    qemu_img: PathBuf,
}

/// What `qemu-img info` says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    virtual_size: u64,
    format: String,
    backing_filename: Option<String>,
}

impl Files {
    /// Lays them out; `progress` gets the bytes written so far.
    pub(super) fn lay_out(order: &Order<'_>, mut progress: impl FnMut(u64)) -> Result<Self> {
        let failed = || format!("cannot lay out {} in {}", words::size(order.size_bytes), order.dir.display());
        // Absolute, as the targets of our jobs have to be.
        let dir = fs::canonicalize(order.dir).with_context(failed)?;
        let directory = tempfile::Builder::new().prefix("vringd-backup-").tempdir_in(dir).with_context(failed)?;
        let files = Self { directory, size_bytes: order.size_bytes, qemu_img: order.qemu_img.to_owned() };
        let raw = files.master(Format::Raw);
        let mut image = File::create_new(&raw).with_context(failed)?;
        image::lay_out(&mut image, order.size_bytes, 0, |bytes| {
            progress(bytes);
            Ok(())
        })
        .with_context(failed)?;
        if order.sources.contains(&Format::Qcow2) {
            let mut convert = Command::new(order.qemu_img);
            convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&raw).arg(files.master(Format::Qcow2));
            guest::process::run(&mut convert).with_context(failed)?;
        }
        if !order.sources.contains(&Format::Raw) {
            fs::remove_file(&raw).with_context(failed)?;
        }
        Ok(files)
    }

    fn master(&self, format: Format) -> PathBuf {
        self.directory.path().join("master").with_extension(format.name())
    }

    /// Where all files lie.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The disk of the run.
    pub(super) fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    /// Its copy.
    pub(super) fn target(&self) -> PathBuf {
        self.directory.path().join("target")
    }

    /// Makes a fresh source, and for who needs it a fresh and empty target, and waits until nothing of that or of an earlier run is
    /// left to be written. Of a chain the source is in front, and the target behind it. A file system that shares extents copies none.
    pub(super) fn renew(&self, side: Side, case: &Case) -> Result<()> {
        let failed = || format!("cannot make the files of a run in {}", self.directory.path().display());
        self.clear();
        let img = |words: &[&str], path: &Path| {
            let mut img = Command::new(&self.qemu_img);
            guest::process::run(img.args(words).arg(path)).map(drop).with_context(failed)
        };
        let (size, behind) = (self.size_bytes.to_string(), self.target());
        let behind = behind.to_str().context("the directory's name is no text")?;
        let full = if case.row == Row::Stream { self.target() } else { self.source() };
        fs::copy(self.master(case.source), full).with_context(failed)?;
        match (case.row, side, case.target) {
            (Row::Stream, _, _) => img(&["create", "-f", "qcow2", "-F", "qcow2", "-b", behind], &self.source())?,
            (Row::Commit, _, _) => {
                img(&["create", "-f", "qcow2", behind], Path::new(&size))?;
                img(&["rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", behind], &self.source())?;
            }
            // It makes the file itself.
            (_, Side::Vringd, _) => {}
            (_, Side::Qemu, Format::Raw) => {
                File::create_new(self.target()).and_then(|file| file.set_len(self.size_bytes)).with_context(failed)?;
            }
            (_, Side::Qemu, Format::Qcow2) => img(&["create", "-f", "qcow2", behind], Path::new(&size))?,
        }
        let directory = File::open(self.directory.path()).with_context(failed)?;
        rustix::fs::syncfs(&directory).with_context(failed)
    }

    /// Waits until the copy is on stable storage.
    pub(super) fn sync_target(&self) -> Result<()> {
        let target = self.target();
        File::open(&target)
            .and_then(|file| file.sync_all())
            .with_context(|| format!("cannot sync {}", target.display()))
    }

    /// Removes the files of a run.
    pub(super) fn clear(&self) {
        for path in [self.source(), self.target()] {
            // It may not have come to that.
            let _absent = fs::remove_file(path);
        }
    }

    /// Checks what a job has made: its format, its size, that it is sound and has nothing behind it. Of what it holds nothing is known: the
    /// disk has changed since.
    pub(super) fn check(&self, side: Side, case: &Case) -> Result<()> {
        let format = case.target;
        // Ours gives what is behind the name of what was in front.
        let target = match (case.row, side) {
            (Row::Stream, _) | (Row::Commit, Side::Vringd) => self.source(),
            _ => self.target(),
        };
        if format == Format::Qcow2 {
            guest::process::run(Command::new(&self.qemu_img).args(["check", "-f", "qcow2"]).arg(&target))?;
        }
        let mut info = Command::new(&self.qemu_img);
        info.args(["info", "-f", format.name(), "--output=json"]).arg(&target);
        let output = guest::process::run(&mut info)?;
        let info: Info = serde_json::from_slice(&output.stdout).context("qemu-img info has other words")?;
        ensure!(info.format == format.name(), "it is {}", info.format);
        ensure!(info.backing_filename.is_none(), "it has something behind it");
        if info.virtual_size != self.size_bytes {
            bail!("it has {} bytes, and the disk {}", info.virtual_size, self.size_bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lay_out(dir: &Path, sources: &[Format], qemu_img: &str) -> Result<Files> {
        Files::lay_out(&Order { dir, size_bytes: 1 << 20, sources, qemu_img: Path::new(qemu_img) }, |_| ())
    }

    #[test]
    fn every_run_has_a_fresh_source_and_qemu_a_target() {
        let dir = tempfile::tempdir().unwrap();
        let files = lay_out(dir.path(), &[Format::Raw], "false").unwrap();
        let master = fs::read(files.master(Format::Raw)).unwrap();
        for side in Side::ALL {
            files.renew(side, &Case { row: Row::Backup, source: Format::Raw, target: Format::Raw, depth: 1 }).unwrap();
            assert_eq!(fs::read(files.source()).unwrap(), master);
            assert_eq!(files.target().exists(), side == Side::Qemu);
            fs::write(files.source(), "changed").unwrap();
        }
        files.sync_target().unwrap();
        files.clear();
        assert!(!files.source().exists() && !files.target().exists());
        let to = |target| Case { row: Row::Mirror, source: Format::Raw, target, depth: 1 };
        let error = format!("{:#}", files.renew(Side::Qemu, &to(Format::Qcow2)).unwrap_err());
        assert!(error.contains("false create -f qcow2 "), "{error}");
        drop(files);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_program_that_fails_is_quoted_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", lay_out(dir.path(), &[Format::Qcow2], "false").unwrap_err());
        assert!(error.contains("cannot lay out 1 MiB") && error.contains("false convert -f raw -O qcow2"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let error = format!("{:#}", lay_out(Path::new("/nonexistent"), &[], "false").unwrap_err());
        assert!(error.contains("/nonexistent"), "{error}");
    }
}
