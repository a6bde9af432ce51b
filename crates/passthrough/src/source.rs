//! Opening the directory that a tree serves.

use crate::error::OpenError;
use crate::mount::{Mounts, try_handles};
use crate::options::{FileHandles, MigrationMode, Options, Source};
use crate::security::Security;
use crate::share::Share;
use crate::stat::{Key, Kind, stat};
use crate::table::{Bounds, Table};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a tree consists of before anybody has looked at it.
pub(crate) struct Beginning {
    pub(crate) label: PathBuf,
    pub(crate) proc_self_fd: OwnedFd,
    pub(crate) mounts: Mounts,
    pub(crate) table: Table,
}

/// Opens the root, and finds out what its mount can do.
pub(crate) fn begin(source: Source, options: &Options, share: Arc<Share>) -> Result<Beginning, OpenError> {
    let (root, proc_self_fd, label) = match source {
        Source::Opened { root, proc_self_fd, label } => (root, proc_self_fd, label),
        Source::Path(path) => (open_root(&path)?, open_proc(&path)?, path),
    };
    if [options.nodes_max, options.descriptors_max, options.open_files_max].contains(&0) {
        return Err(OpenError::Limits { path: label });
    }
    let stat = match stat(root.as_fd(), c"") {
        Ok(stat) => stat,
        Err(source) => return Err(OpenError::Root { path: label, source }),
    };
    let (key, kind) = (Key::of(&stat), Kind::of(&stat));
    if !kind.is_directory() && !kind.is_file() {
        return Err(OpenError::Kind { path: label });
    }
    if matches!(options.security, Security::MappedFile { .. }) && !kind.is_directory() {
        return Err(OpenError::MappedFile { path: label });
    }
    let mounts = Mounts::default();
    let mount = mounts.get(key.mount);
    mount.explore(proc_self_fd.as_fd(), root.as_fd(), kind, options.file_handles);
    if options.file_handles == FileHandles::Mandatory && !mount.has_handles() {
        let source = mount.file().and_then(|file| try_handles(file, root.as_fd())).err().unwrap_or(Errno::OPNOTSUPP);
        return Err(OpenError::FileHandles { path: label, source });
    }
    if options.migration.mode == MigrationMode::FileHandles {
        let by_handles = mount.file().and_then(|file| try_handles(file, root.as_fd()));
        by_handles.map_err(|source| OpenError::MigrationHandles { path: label.clone(), source })?;
    }
    if matches!(options.security, Security::MappedXattr { .. })
        && let Ok(file) = mount.file()
        && rustix::fs::fgetxattr(file, c"user.virtfs.uid", &mut [0_u8; 4]) == Err(Errno::OPNOTSUPP)
    {
        return Err(OpenError::MappedXattr { path: label });
    }
    let permanent_max = match (options.file_handles, options.security) {
        // Where a file system has no handles nothing can be closed, and what was asked for is not meant for that.
        (FileHandles::Prefer | FileHandles::Mandatory, _) => usize::MAX,
        // A node holds its directory as well, which the client may forget.
        (FileHandles::Never, Security::MappedFile { .. }) => options.descriptors_max / 2,
        (FileHandles::Never, _) => options.descriptors_max,
    };
    let max = Bounds { nodes: options.nodes_max, descriptors: options.descriptors_max, permanent: permanent_max };
    let table = Table::new(root, key, kind, mount, max, share);
    Ok(Beginning { label, proc_self_fd, mounts, table })
}

fn open_root(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Who names the directory may name it through links: it is the one path here that no client has a say in.
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty())
        .map_err(|source| OpenError::Root { path: path.to_owned(), source })
}

/// `/proc/self/fd` of this process. `path` is what it is needed for.
pub(crate) fn open_proc(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, c"/proc/self/fd", flags, Mode::empty())
        .map_err(|source| OpenError::Proc { path: path.to_owned(), source })
}
