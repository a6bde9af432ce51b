//! What a run was made on.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The machine, as far as figures depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Environment {
    /// Release of the kernel.
    pub(super) kernel: String,
    /// Processors online.
    pub(super) processors: usize,
    /// File system and device of the directory that was measured, as in `ext4 on /dev/vda`.
    pub(super) file_system: String,
}

impl Environment {
    /// That of this machine, with the file system of `dir`.
    pub(super) fn of(dir: &Path) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        Self {
            kernel,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            file_system: file_system(&mounts, &dir).unwrap_or_else(|| "an unknown file system".into()),
        }
    }
}

/// The mount that `dir` lies on: of all that hold it the deepest, and of several there the last (proc_pid_mountinfo(5)).
fn file_system(mounts: &str, dir: &Path) -> Option<String> {
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        let mut after = after.split(' ');
        let (kind, device) = (after.next()?.to_owned(), after.next()?.to_owned());
        Some((point, format!("{kind} on {device}")))
    };
    let holding = mounts.lines().filter_map(parse).filter(|(point, _)| dir.starts_with(point));
    holding.max_by_key(|(point, _)| Path::new(point).components().count()).map(|(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /dev rw - devtmpfs dev rw
24 22 0:6 / /a\\040b rw master:3 - xfs /dev/vdb rw
25 22 0:6 / /srv rw - xfs /dev/vdc rw
26 25 0:7 / /srv rw - tmpfs none rw
";

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        let of = |dir: &str| file_system(MOUNTS, Path::new(dir)).unwrap();
        assert_eq!(of("/var/tmp"), "ext4 on /dev/vda");
        assert_eq!(of("/a b/c"), "xfs on /dev/vdb");
        assert_eq!(of("/device"), "ext4 on /dev/vda", "names are compared, not letters");
        assert_eq!(of("/srv/x"), "tmpfs on none");
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn this_machine_has_one() {
        let environment = Environment::of(Path::new("/"));
        assert!(!environment.kernel.is_empty() && environment.processors > 0);
        assert!(environment.file_system.contains(" on "), "{environment:?}");
    }
}
