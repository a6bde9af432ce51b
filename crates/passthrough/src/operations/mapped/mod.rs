//! Operations where owners, permissions and types are records ([`crate::mapped`]): each comes here from its usual place in one
//! branch.

mod change;
mod create;
mod names;

use crate::mapped::files::Of;
use crate::mapped::{Mapped, Record, attrs, files};
use crate::node::Inode;
use crate::stat::{Key, open_anew, stat};
use crate::table::Found;
use crate::{Attributes, Entry, Node, ROOT, Result, Tree};
use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

impl Tree {
    /// What is recorded of an inode, of which `fd` is a descriptor. The caller holds a lock of its record.
    fn record(&self, mapped: &Mapped, inode: &Inode, fd: BorrowedFd<'_>) -> Result<Record> {
        match &mapped.files {
            None => attrs::load(&self.place(fd)),
            // The root has no name to be looked up by.
            Some(_) if inode.node == ROOT => Ok(Of::Root(fd).load()?.unwrap_or_default()),
            Some(known) => Ok(known.record(inode.node)),
        }
    }

    /// The attributes of a node as the client sees them. `fd` is a descriptor of it, and `stat` what the host says.
    #[inline]
    pub(crate) fn view(&self, node: Node, fd: BorrowedFd<'_>, stat: &Statx) -> Result<Attributes> {
        match &self.mapped {
            None => Ok(self.attributes_of(stat)),
            Some(mapped) => self.view_mapped(mapped, &*self.table.get(node)?, fd, stat),
        }
    }

    pub(crate) fn view_mapped(
        &self,
        mapped: &Mapped,
        inode: &Inode,
        fd: BorrowedFd<'_>,
        stat: &Statx,
    ) -> Result<Attributes> {
        let mut attributes = self.attributes_of(stat);
        let _record = mapped.locks.record(inode);
        self.record(mapped, inode, fd)?.cover(&self.options, &mut attributes);
        Ok(attributes)
    }

    /// Type and permissions of an inode as the client sees them.
    pub(crate) fn mode_in_view(&self, mapped: &Mapped, inode: &Inode, fd: BorrowedFd<'_>) -> Result<u32> {
        let _record = mapped.locks.record(inode);
        let mode = match &mapped.files {
            None => attrs::mode(&self.place(fd))?,
            Some(_) => self.record(mapped, inode, fd)?.mode,
        };
        Ok(Record { mode, ..Record::default() }.mode_of(inode.kind.mode()))
    }

    /// Refuses to open what is a regular file on the host alone.
    ///
    /// # Errors
    /// `ELOOP` for what the client sees as a symbolic link, `ENXIO` for a special file.
    pub(crate) fn is_plain(&self, mapped: &Mapped, inode: &Inode, fd: BorrowedFd<'_>) -> Result<()> {
        if !inode.kind.is_file() {
            return Ok(());
        }
        match self.mode_in_view(mapped, inode, fd)? & libc::S_IFMT {
            libc::S_IFREG => Ok(()),
            libc::S_IFLNK => Err(Errno::LOOP),
            _ => Err(Errno::NXIO),
        }
    }

    /// As [`Tree::lookup`] of a name that is one, in a directory of which `dir_fd` is a descriptor.
    pub(crate) fn lookup_mapped(
        &self,
        mapped: &Mapped,
        dir: &Arc<Inode>,
        dir_fd: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(Arc<Inode>, Entry)> {
        mapped.existing(name)?;
        let _names = mapped.locks.names(dir);
        let seen = stat(dir_fd, name)?;
        if mapped.files.is_some() && files::is_record(dir_fd, &seen)? {
            return Err(Errno::NOENT);
        }
        let (inode, stat) = match self.table.reference(&Key::of(&seen)) {
            Found::Known(inode) => (inode, seen),
            // By a descriptor, which its record takes anyway: a handle that was taken by name may lead elsewhere.
            Found::Unsure { .. } => self.look_up_by_path(dir_fd, &dir.mount, name)?,
        };
        let found = self.found(mapped, dir, dir_fd, name, &inode, &stat);
        let attributes = found.inspect_err(|_| self.forget(inode.node, 1))?;
        let entry = Entry { attributes, ..self.entry(&inode, &stat, &dir.mount) };
        Ok((inode, entry))
    }

    /// The view of what was found under a name. The caller holds a lock of the directory's names.
    fn found(
        &self,
        mapped: &Mapped,
        dir: &Arc<Inode>,
        dir_fd: BorrowedFd<'_>,
        name: &CStr,
        inode: &Arc<Inode>,
        stat: &Statx,
    ) -> Result<Attributes> {
        let mut attributes = self.attributes_of(stat);
        let _record = mapped.locks.record(inode);
        let record = match &mapped.files {
            None => attrs::load(&self.place(&self.table.pin(inode)?))?,
            Some(_) => Of::Name(dir_fd, name).load()?.unwrap_or_default(),
        };
        self.remember(mapped, inode, Some((dir, name)), record);
        record.cover(&self.options, &mut attributes);
        Ok(attributes)
    }

    /// Finds out what is recorded of a node that lies under a name, where records are beside names.
    pub(crate) fn find_record(
        &self,
        mapped: &Mapped,
        (dir, dir_fd, name): (&Arc<Inode>, BorrowedFd<'_>, &CStr),
        inode: &Arc<Inode>,
    ) -> Result<()> {
        let record = Of::Name(dir_fd, name).load()?.unwrap_or_default();
        self.remember(mapped, inode, Some((dir, name)), record);
        Ok(())
    }

    /// Keeps what was found out about a node where records are beside names, if the client has not forgotten it meanwhile.
    fn remember(&self, mapped: &Mapped, inode: &Inode, name: Option<(&Arc<Inode>, &CStr)>, record: Record) {
        let Some(known) = &mapped.files else { return };
        known.found(inode.node, name, record);
        // Whoever forgets it later sees what was kept.
        if self.table.get(inode.node).is_err() {
            known.forget(inode.node);
        }
    }

    /// Type, permissions and group of a directory in which something is made; the group is one of the host's side.
    fn directory_in_view(&self, mapped: &Mapped, dir: &Inode, fd: BorrowedFd<'_>) -> Result<(u32, u32)> {
        let record = {
            let _record = mapped.locks.record(dir);
            self.record(mapped, dir, fd)?
        };
        if let (Some(mode), Some(gid)) = (record.mode, record.gid) {
            return Ok((mode, gid));
        }
        let stat = stat(fd, c"")?;
        Ok((record.mode_of(stat.stx_mode.into()), record.gid.unwrap_or(stat.stx_gid)))
    }

    /// Reads the target of what stands for a symbolic link, up to `bytes_max` bytes of it.
    ///
    /// # Errors
    /// `EINVAL` for what is none.
    pub(crate) fn read_link_mapped(
        &self,
        mapped: &Mapped,
        inode: &Arc<Inode>,
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<()> {
        let pin = self.table.pin(inode)?;
        if self.mode_in_view(mapped, inode, pin.as_fd())? & libc::S_IFMT != libc::S_IFLNK {
            return Err(Errno::INVAL);
        }
        let file = open_anew(self.proc_self_fd.as_fd(), pin.as_fd(), OFlags::RDONLY)?;
        out.clear();
        out.resize(bytes_max, 0);
        let length = rustix::io::pread(file, &mut out[..], 0).unwrap_or(0);
        // No path goes on behind a NUL.
        let end = out.iter().take(length).position(|&byte| byte == 0).unwrap_or(length);
        out.truncate(end);
        if end == 0 { Err(Errno::IO) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::creds::Caller;
    use crate::options::{FileHandles, Options, Source};
    use crate::security::Security;

    const WHO: Caller<'static> = Caller { uid: 1000, gid: 100, groups: &[] };

    #[test]
    fn what_the_client_forgets_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let security = Security::MappedFile { fmode: Security::FMODE, dmode: Security::DMODE };
        for file_handles in [FileHandles::Never, FileHandles::Prefer] {
            let options = Options { security, file_handles, ..Options::default() };
            let tree = Tree::new(Source::Path(directory.path().to_owned()), options).unwrap();
            let known = || tree.mapped.as_ref().unwrap().files.as_ref().unwrap().len();
            let dir = tree.mkdir(WHO, ROOT, c"dir", 0o755, 0, None).unwrap().node;
            let file = tree.mknod(WHO, dir, c"file", libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap().node;
            for number in 0..20 {
                let name = std::ffi::CString::new(format!("link-{number}")).unwrap();
                tree.link(file, dir, &name).unwrap();
            }
            assert_eq!(known(), 2);
            let names = tree.mapped.as_ref().unwrap().files.as_ref().unwrap().names(file);
            assert_eq!(names.len(), 8, "the latest alone are remembered");
            assert_eq!(names[0].name.as_c_str(), c"link-19");
            drop(names);
            // A name needs its directory, also when the client has forgotten that.
            tree.forget(dir, 1);
            let change = crate::Change { mode: Some(0o600), ..crate::Change::default() };
            tree.set_attributes(file, None, &change).unwrap();
            tree.forget(file, 20);
            assert_eq!(known(), 1);
            tree.forget(file, 1);
            assert_eq!((known(), tree.describe().nodes), (0, 1));
            tree.lookup(ROOT, c"dir").unwrap();
            tree.clear();
            assert_eq!((known(), tree.describe().nodes, tree.describe().descriptors), (0, 1, 1));
            std::fs::remove_dir_all(directory.path().join("dir")).unwrap();
        }
    }
}
