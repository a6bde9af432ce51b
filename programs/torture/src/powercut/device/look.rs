//! What the daemon's program makes of a volume that a cut has left, by the commands that an operator would use.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use guest::process;
use tempfile::TempDir;

use crate::powercut::live::Before;
use crate::powercut::oracle::Oracle;
use crate::powercut::stamp::{self, SECTOR_BYTES};

/// Has `program` check, replay and copy what is `left`, and compares the copy with what the disk may hold.
pub(super) fn look(program: &Path, left: &Before) -> Result<()> {
    let directory = TempDir::with_prefix("vringd-torture-")?;
    let (volume, raw) = (directory.path().join("disk.vol"), directory.path().join("disk.raw"));
    fs::write(&volume, left.devices.first().context("a volume has a device")?)?;
    let command = |words: &[&str]| {
        let mut command = Command::new(program);
        // A cut leaves no memory, and the directory may be on a file system that has no O_DIRECT.
        command.arg("volume").args(words).args(["--memory-file", "none", "--no-direct"]).arg(&volume);
        command
    };
    for words in [&["check"], &["replay"], &["check"]] {
        process::run(&mut command(words))?;
    }
    process::run(command(&["convert", "--to", "raw"]).arg(&raw))?;
    compare(left, &fs::read(&raw)?)
}

/// Fails where a disk holds what it may not.
fn compare(left: &Before, disk: &[u8]) -> Result<()> {
    let (least, most) = left.known.disk_bytes;
    ensure!((least..=most).contains(&(disk.len() as u64)), "the copy has {} bytes, not {least} to {most}", disk.len());
    let operations = &left.operations;
    // Whether all was durable matters to what is asked for later only.
    let oracle = Oracle::new(&left.known, disk.len() / SECTOR_BYTES, operations.len() as u32, false);
    for (sector, bytes) in (0..).zip(disk.chunks(SECTOR_BYTES)) {
        let content = stamp::read(sector, bytes);
        ensure!(
            oracle.permits(sector, content, operations),
            "sector {sector} of the copy: expected {}; found {content}",
            oracle.describe(sector, operations)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::powercut::oracle::NEW;
    use crate::powercut::trace::Known;
    use crate::powercut::trace::{Kind, Operation};

    #[test]
    fn a_copy_is_compared_sector_by_sector() {
        let operation = |kind| Operation { kind, first: 0, count: 2, durable: true, queue: 0 };
        let left = Before {
            devices: Vec::new(),
            known: Known { sectors: vec![vec![1], vec![NEW, 1]], disk_bytes: (1024, 1024) },
            operations: vec![operation(Kind::WriteZeroes), operation(Kind::Write)],
        };
        let mut disk = vec![0; 2 * SECTOR_BYTES];
        assert!(compare(&left, &disk).unwrap_err().to_string().contains("sector 0"));
        stamp::write(1, 0, &mut disk[..SECTOR_BYTES]);
        compare(&left, &disk).unwrap();
        stamp::write(1, 0, &mut disk);
        compare(&left, &disk).unwrap();
        disk[SECTOR_BYTES] ^= 1;
        assert!(compare(&left, &disk).unwrap_err().to_string().contains("sector 1"));
        assert!(compare(&left, &disk[..SECTOR_BYTES]).unwrap_err().to_string().contains("512 bytes"));
    }
}
