//! Whether a path may have symbolic links in it.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// See the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// A person has chosen the path.
    Follow,
    /// Somebody else has, and it was looked at without symbolic links: one that is there now was put there since, and nothing behind it
    /// is opened.
    Refuse,
}

impl Links {
    /// Opens what there is.
    ///
    /// # Errors
    /// The kernel's refusal; `ELOOP` for a link that must not be there.
    pub fn open(self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self {
            Links::Follow => rustix::fs::open(path, flags, Mode::empty()),
            Links::Refuse => rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_followed_or_refused_wherever_it_is_on_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("d")).unwrap();
        std::fs::write(real.join("d/f"), "f").unwrap();
        std::os::unix::fs::symlink("d", real.join("to-d")).unwrap();
        std::os::unix::fs::symlink("f", real.join("d/to-f")).unwrap();
        for (path, is_real) in [("d/f", true), ("to-d/f", false), ("d/to-f", false)] {
            let open = |links: Links| links.open(&real.join(path), OFlags::RDONLY | OFlags::CLOEXEC);
            assert!(open(Links::Follow).is_ok());
            assert_eq!(open(Links::Refuse).err(), if is_real { None } else { Some(Errno::LOOP) }, "{path}");
        }
    }
}
