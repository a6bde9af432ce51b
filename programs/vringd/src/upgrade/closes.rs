//! Files that execve would close, and whose close is work for their file system.
//!
//! Closing a descriptor of a file on FUSE or NFS, and not only the last one, writes back what is dirty and asks a server. execve does that
//! while all guests wait, and hangs where the server does. What goes along goes as it is (`descriptors`); what does not is found here,
//! and the upgrade refused. Nothing here waits for a file system: which one a file is on is told by its mount.

use crate::service::look_at;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, fcntl_getfl, statx};
use rustix::io::{FdFlags, fcntl_getfd};
use std::collections::HashMap;
use std::fs;
use std::os::fd::RawFd;

/// File systems of Linux whose files have work to do when they are closed (`flush` and `release` of struct file_operations), by their
/// names in /proc/self/mountinfo.
const WORK_AT_CLOSE: [&str; 16] = [
    "9p", "afs", "ceph", "cifs", "coda", "ecryptfs", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "orangefs", "overlay",
    "smb3", "vboxsf", "virtiofs",
];
/// What the kernel calls a file system of fuse that has a name.
const NAMED_FUSE: &str = "fuse.";

/// Which file systems are mounted, by the mounts' numbers.
pub(super) struct Mounts(HashMap<u64, String>);

impl Mounts {
    /// Those that this process sees.
    pub(super) fn now() -> Mounts {
        Mounts::read(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    /// By /proc/self/mountinfo: only those that work when a file is closed.
    fn read(text: &str) -> Mounts {
        let mount = |line: &str| {
            let (about, rest) = line.split_once(" - ")?;
            let kind = rest.split(' ').next()?;
            let works = WORK_AT_CLOSE.contains(&kind) || kind.starts_with(NAMED_FUSE);
            works.then_some((about.split(' ').next()?.parse().ok()?, kind.to_owned()))
        };
        Mounts(text.lines().filter_map(mount).collect())
    }

    /// A file that execve would close now, in words.
    pub(super) fn closed_by_execve(&self) -> Option<String> {
        let closed =
            |number: &RawFd| look_at(*number, |fd| fcntl_getfd(fd)).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
        if self.0.is_empty() {
            return None;
        }
        (0..descriptors_max()).filter(closed).find_map(|number| self.works(number))
    }

    /// Files with descriptors below `end`, in words.
    pub(super) fn below(&self, end: RawFd) -> Vec<String> {
        (0..end).filter_map(|number| self.works(number)).collect()
    }

    /// What a descriptor is, if its close is work: a file. A path alone (O_PATH) has none; of a directory that does not go along, because no
    /// guest uses it, the next program opens the path, and asks the same server.
    fn works(&self, number: RawFd) -> Option<String> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let about = look_at(number, |fd| statx(fd, c"", flags, StatxFlags::TYPE | StatxFlags::MNT_ID)).ok()?;
        let kind = self.0.get(&about.stx_mnt_id)?;
        let is_file = FileType::from_raw_mode(about.stx_mode.into()) == FileType::RegularFile;
        if !is_file || look_at(number, |fd| fcntl_getfl(fd)).ok()?.contains(OFlags::PATH) {
            return None;
        }
        let path = fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        Some(format!("descriptor {number} ({} on {kind})", path.display()))
    }
}

/// No descriptor of this process is as large (`FDSize`, proc_pid_status(5)); 0 where that cannot be seen.
fn descriptors_max() -> RawFd {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.and_then(|size| size.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn mounts_whose_files_work_at_close_are_known_by_their_names() {
        let text = "22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n\
                    40 22 0:52 / /a\\040b rw shared:7 master:1 - fuse.sshfs host: rw,user_id=0\n\
                    41 22 0:53 / /n rw - nfs4 host:/ rw\n\
                    42 22 0:54 / /c rw - fusectl none rw\n\
                    what is this\n";
        let mut found: Vec<_> = Mounts::read(text).0.into_iter().collect();
        found.sort();
        assert_eq!(found, [(40, "fuse.sshfs".to_owned()), (41, "nfs4".to_owned())]);
        assert!(Mounts::read("").0.is_empty());
    }

    /// As if the file system of this test's files were another one.
    #[test]
    fn files_that_would_be_closed_are_named_and_others_are_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kept = file.as_file().try_clone().unwrap();
        let id = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).unwrap().stx_mnt_id;
        let mounts = Mounts(HashMap::from([(id, "fuse.test".to_owned())]));
        let number = file.as_raw_fd();
        let words = mounts.works(number).unwrap();
        assert_eq!(words, format!("descriptor {number} ({} on fuse.test)", file.path().display()));
        // Other tests of this process have files there, too.
        assert!(mounts.closed_by_execve().is_some() && mounts.below(number + 1).contains(&words));
        let path = rustix::fs::open(file.path(), OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap();
        let directory = File::open(file.path().parent().unwrap()).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        for other in [path.as_raw_fd(), directory.as_raw_fd(), reader.as_raw_fd(), -1, RawFd::MAX] {
            assert_eq!(mounts.works(other), None);
        }
        assert_eq!(Mounts(HashMap::new()).closed_by_execve(), None);
        assert!(descriptors_max() > kept.as_raw_fd());
    }
}
