//! A file that is removed while it is open.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Opens `file`, says so by creating `said`, and when there is `told`, by which time the host has
/// removed the file, goes on using it. Then removes one by itself.
pub(crate) fn run(file: &Path, said: &Path, told: &Path) -> Result<()> {
    let mut open = File::options().read(true).write(true).open(file)?;
    open.write_all(b"before")?;
    fs::write(said, "")?;
    while !told.exists() {
        thread::sleep(LOOK_AGAIN_AFTER);
    }
    go_on(&mut open).context("a file that the host has removed")?;

    let own = file.with_extension("own");
    let mut open = File::options().read(true).write(true).create_new(true).open(&own)?;
    open.write_all(b"before")?;
    fs::remove_file(&own)?;
    ensure!(!own.exists(), "a removed name is still there");
    ensure!(open.metadata()?.nlink() == 0, "a removed file has {} links", open.metadata()?.nlink());
    go_on(&mut open).context("a file that the guest has removed")?;
    // Opened once more by what the kernel knows of it, as an editor's child does.
    let again = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)))
        .context("a removed file cannot be opened again")?;
    ensure!(again.metadata()?.ino() == open.metadata()?.ino(), "another file was opened");
    Ok(())
}

fn go_on(open: &mut File) -> Result<()> {
    open.write_all(b" and after").context("write")?;
    open.sync_all().context("fsync")?;
    open.seek(SeekFrom::Start(0))?;
    let mut content = String::new();
    open.read_to_string(&mut content).context("read")?;
    ensure!(content == "before and after", "it holds `{content}`");
    ensure!(open.metadata().context("fstat")?.len() == 16, "its size is wrong");
    open.set_len(1 << 20).context("ftruncate")?;
    open.write_all_at(b"end", (1 << 20) - 3)?;
    ensure!(open.metadata()?.len() == 1 << 20, "its size after ftruncate is wrong");
    open.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).context("fchmod")?;
    Ok(())
}
