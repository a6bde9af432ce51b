//! The machine that something is measured on, as far as figures depend on it.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Release of the kernel.
pub fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Processors online.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The machine that a run was made on.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    pub(crate) kernel: String,
    pub(crate) processors: usize,
    /// Of the directory that was measured, as in `ext4 on /dev/vda`.
    pub(crate) file_system: String,
}

impl Environment {
    /// As it is, with the file system of `directory`.
    pub(crate) fn of(directory: &Path) -> Self {
        let unknown = || "an unknown file system".into();
        let file_system = Mount::of(directory).map_or_else(unknown, |mount| mount.to_string());
        Self { kernel: kernel(), processors: processors(), file_system }
    }
}

/// A file system where it is mounted, from proc_pid_mountinfo(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of its device.
    pub number: String,
    point: PathBuf,
    /// Such as `ext4`.
    pub kind: String,
    source: String,
}

impl Mount {
    /// The one that `directory` lies on.
    pub fn of(directory: &Path) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let directory = fs::canonicalize(directory).ok()?;
        let number = fs::metadata(&directory).ok()?.dev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        Self::find(&mounts, &number, &directory)
    }

    /// Of all that hold `directory` the deepest, and of several there the last, which is the one that is seen; that with the
    /// number of its files' device if there is one, which file systems that number files otherwise (btrfs) do not have.
    fn find(mounts: &str, number: &str, directory: &Path) -> Option<Self> {
        let holding = mounts.lines().filter_map(Self::parse).filter(|mount| directory.starts_with(&mount.point));
        holding.max_by_key(|mount| (mount.number == number, mount.point.components().count()))
    }

    fn parse(line: &str) -> Option<Self> {
        // Spaces and the like stand as octal numbers in there.
        let unescaped = |text: &str| text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (number, point) = (left.next()?.to_owned(), unescaped(left.nth(1)?).into());
        let mut right = right.split(' ');
        Some(Self { number, point, kind: right.next()?.to_owned(), source: unescaped(right.next()?) })
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if self.source == self.kind || self.source == "none" { Ok(()) } else { write!(f, " on {}", self.source) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:25 / /dev/shm rw shared:2 - tmpfs tmpfs rw
23 21 0:31 /sub /a\\040b rw - btrfs /dev/sdb1 rw
24 21 254:0 /home /home rw - ext4 /dev/vda rw
25 21 0:6 / /srv rw - xfs /dev/vdc rw
26 25 0:7 / /srv rw - tmpfs none rw
";

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        let of = |number: &str, dir: &str| Mount::find(MOUNTS, number, Path::new(dir)).unwrap().to_string();
        assert_eq!(of("254:0", "/var/tmp"), "ext4 on /dev/vda");
        assert_eq!(of("0:25", "/dev/shm/x"), "tmpfs");
        assert_eq!(of("254:0", "/device"), "ext4 on /dev/vda", "names are compared, not letters");
        assert_eq!(of("0:7", "/srv/x"), "tmpfs");
        // btrfs gives its files numbers that are in no list.
        assert_eq!(of("0:99", "/a b/x"), "btrfs on /dev/sdb1");
        assert_eq!(Mount::find("", "0:1", Path::new("/")), None);
    }

    #[test]
    fn this_machine_has_one() {
        assert!(!kernel().is_empty() && processors() > 0);
        assert!(Mount::of(Path::new("/")).is_some());
    }
}
