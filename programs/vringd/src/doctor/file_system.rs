//! File systems: what each costs who serves from it, and which one a path is on.

use super::finding::Level;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::Path;

/// What stands on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// An image, and whether it is written.
    Image { writes: bool },
    /// A directory.
    Directory,
}

/// What a file system of this type (proc_pid_mountinfo(5)) costs, and what helps; nothing where nothing is known.
pub(super) fn cost(kind: &str, used: Use) -> Option<(Level, &'static str, Option<&'static str>)> {
    let writes = matches!(used, Use::Image { writes: true });
    match (kind, used) {
        ("nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "afs" | "lustre" | "9p" | "gfs2" | "ocfs2", _) => Some((
            Level::Slow,
            "requests wait for another host, without an end where it is gone; locks hold as far as it keeps them",
            None,
        )),
        (kind, Use::Image { .. }) if kind.starts_with("fuse") => Some((
            Level::Slow,
            "each request goes through another process, which may hang; io_uring has a thread wait for each",
            Some("put the image on a file system of the kernel"),
        )),
        (kind, Use::Directory) if kind.starts_with("fuse") => Some((
            Level::Slow,
            "each call goes through another process, and workers wait with their other queues while it does",
            Some("execution = \"pool=16\"    # of this directory: calls that hang hold up no worker"),
        )),
        ("overlay", Use::Image { .. }) if writes => Some((
            Level::Slow,
            "the first write copies the whole image into the upper layer, while guests wait",
            Some("put the image on a volume of the container: --volume DIR:DIR"),
        )),
        ("overlay", Use::Directory) => Some((
            Level::Slow,
            "the first write to a file of a lower layer copies all of it; small reads are not mapped",
            None,
        )),
        ("btrfs", _) if writes => Some((
            Level::Slow,
            "each write allocates anew and checksums: images fragment",
            Some("chattr +C DIR    # before the image is made there: copy on write is off for new files"),
        )),
        ("vfat" | "exfat" | "msdos", _) => Some((
            Level::Degraded,
            "there are no holes, no owners and no permissions, and vfat ends files at 4 GiB",
            None,
        )),
        _ => None,
    }
}

/// The type of the file system that a path is on, as its mount says. No more is asked of it than where it is mounted.
pub(super) fn of(path: &Path) -> Option<String> {
    let about = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    let mount = i32::try_from(about.stx_mnt_id).ok()?;
    let mounts = procfs::process::Process::myself().ok()?.mountinfo().ok()?;
    mounts.0.into_iter().find(|it| it.mnt_id == mount).map(|it| it.fs_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_of_a_path_is_found() {
        assert_eq!(of(Path::new("/proc/self")).as_deref(), Some("proc"));
        let shared = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        assert_eq!(of(shared.path()).as_deref(), Some("tmpfs"));
        assert_eq!(of(Path::new("/nonexistent")), None);
    }

    #[test]
    fn what_costs_depends_on_what_is_there() {
        let (image, written) = (Use::Image { writes: false }, Use::Image { writes: true });
        for (kind, used, expected) in [
            ("ext4", written, None),
            ("tmpfs", Use::Directory, None),
            ("nfs4", image, Some(Level::Slow)),
            ("fuse.sshfs", Use::Directory, Some(Level::Slow)),
            ("fuseblk", image, Some(Level::Slow)),
            ("overlay", image, None),
            ("overlay", written, Some(Level::Slow)),
            ("btrfs", image, None),
            ("btrfs", written, Some(Level::Slow)),
            ("btrfs", Use::Directory, None),
            ("vfat", image, Some(Level::Degraded)),
        ] {
            assert_eq!(cost(kind, used).map(|(level, ..)| level), expected, "{kind} {used:?}");
        }
    }
}
