//! Who may use an image, as its file says, and another file that is to say the same.

use rustix::fs::{Gid, Mode, Uid, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The extended attribute of an access control list: the kernel's `XATTR_NAME_POSIX_ACL_ACCESS` (linux/xattr.h).
const ACL: &str = "system.posix_acl_access";
/// The longest value of an extended attribute: the kernel's `XATTR_SIZE_MAX` (linux/limits.h).
const ACL_BYTES_MAX: usize = 65536;
/// What group and others may do. With an access control list, what all but the owner and others may do at most.
const OTHERS: u32 = 0o077;

/// Owner, group, mode and access control list of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    uid: u32,
    gid: u32,
    mode: u32,
    /// As the kernel gives and takes it.
    acl: Option<Vec<u8>>,
}

impl Access {
    /// # Errors
    /// The kernel's.
    pub(super) fn of(file: &File) -> io::Result<Access> {
        let about = file.metadata()?;
        let mut acl = vec![0; ACL_BYTES_MAX];
        let acl = match rustix::fs::fgetxattr(file, ACL, &mut acl[..]) {
            Ok(len) => {
                acl.truncate(len);
                Some(acl)
            }
            // There is none, or the file system has none.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Access { uid: about.uid(), gid: about.gid(), mode: about.mode() & 0o7777, acl })
    }

    /// For the same owner, but nobody else who may not use a file of access `other`, too.
    pub(super) fn narrowed_by(&self, other: &Access) -> Access {
        // Whom the lists name is not compared.
        let has_list = self.acl.is_some() || other.acl.is_some();
        let others = if has_list { 0 } else { self.mode & other.mode & OTHERS };
        Access { mode: self.mode & !OTHERS | others, acl: None, ..*self }
    }

    /// Gives it to a file. Nobody may read that in between who could neither before nor can afterwards.
    ///
    /// # Errors
    /// The kernel's. The file has what it had, as far as the kernel lets it.
    pub(super) fn give(&self, file: &File) -> io::Result<()> {
        let had = Access::of(file)?;
        let given = self.put(file, &had);
        if given.is_err() {
            let _ = Access::of(file).and_then(|has| had.put(file, &has));
        }
        given
    }

    fn put(&self, file: &File, has: &Access) -> io::Result<()> {
        if self == has {
            return Ok(());
        }
        let mode = |mode| rustix::fs::fchmod(file, Mode::from_raw_mode(mode));
        let is_owned_alike = (has.uid, has.gid) == (self.uid, self.gid);
        if !is_owned_alike || has.acl != self.acl {
            mode(has.mode & self.mode & !OTHERS)?;
        }
        if has.acl.is_some() && self.acl.is_none() {
            rustix::fs::fremovexattr(file, ACL)?;
        }
        if !is_owned_alike {
            rustix::fs::fchown(file, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))?;
        }
        if let Some(acl) = self.acl.as_ref().filter(|_| has.acl != self.acl) {
            rustix::fs::fsetxattr(file, ACL, acl, XattrFlags::empty())?;
        }
        mode(self.mode)?;
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A list that lets this user read and write beside the owner, as `setfacl -m u:USER:rw` makes it: version 2, then a tag, rights
    /// and an identity each (linux/posix_acl_xattr.h).
    fn acl(user: u32) -> Vec<u8> {
        let entries =
            [(1u16, 6u16, u32::MAX), (2, 6, user), (4, 0, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)];
        let entries = entries.iter().flat_map(|(tag, rights, who)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &who.to_le_bytes()].concat()
        });
        2u32.to_le_bytes().into_iter().chain(entries).collect()
    }

    pub(crate) fn of(path: &Path) -> Access {
        Access::of(&File::open(path).unwrap()).unwrap()
    }

    /// Gives a file a list that names this user.
    pub(crate) fn share(path: &Path, user: u32) {
        rustix::fs::setxattr(path, ACL, &acl(user), XattrFlags::empty()).unwrap();
    }

    #[test]
    fn any_access_becomes_any_other() {
        let directory = tempfile::TempDir::new_in(testkit::storage::disk()).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let files: Vec<_> = (0..6)
            .map(|number: u32| {
                let path = directory.path().join(number.to_string());
                fs::write(&path, "").unwrap();
                let mode = [0o600, 0o644, 0o640, 0o400, 0o660, 0o606][number as usize];
                fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
                if is_root && number % 2 == 1 {
                    std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
                }
                if number >= 4 {
                    share(&path, 1000 + number);
                }
                path
            })
            .collect();
        for from in &files {
            for to in &files {
                let (wanted, had) = (of(from), of(to));
                let file = File::open(to).unwrap();
                let narrow = wanted.narrowed_by(&had);
                narrow.give(&file).unwrap();
                assert_eq!(of(to), narrow);
                assert_eq!((narrow.uid, narrow.acl.is_none()), (wanted.uid, true));
                assert_eq!(narrow.mode & OTHERS & !(wanted.mode & had.mode), 0, "{wanted:?} {had:?}");
                wanted.give(&file).unwrap();
                assert_eq!(of(to), wanted);
                had.give(&file).unwrap();
                assert_eq!(of(to), had);
            }
        }
    }

    #[test]
    fn what_cannot_be_given_changes_nothing() {
        let directory = tempfile::TempDir::new_in(testkit::storage::disk()).unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "").unwrap();
        share(&path, 1000);
        let had = of(&path);
        let impossible = Access { acl: Some(b"no list".to_vec()), mode: 0o644, ..had.clone() };
        impossible.give(&File::open(&path).unwrap()).unwrap_err();
        assert_eq!(of(&path), had);
    }
}
