//! A file system that is the shared directory and nothing else.

use crate::error::SandboxError;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

const FIX: &str = "start the daemon where it may mount, or use --sandbox=chroot or --sandbox=none";

/// Opens a directory by its name, without the right to read it.
pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd, SandboxError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|source| SandboxError::SharedDir { path: path.to_owned(), source })
}

/// `/proc/self/fd`, as a mount of its own where the process may make one: then it has no directory above it.
pub(crate) fn proc_self_fd() -> Result<OwnedFd, SandboxError> {
    let path = "/proc/self/fd";
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, path, flags)
        .or_else(|_| rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()))
        .map_err(SandboxError::kernel("open /proc/self/fd", "mount /proc"))
}

/// Makes `shared_dir` the root of this mount namespace, with what is mounted below it, and drops everything else. Answers
/// with `/proc/self/fd`. The namespace must be this process's own.
pub(crate) fn enter(shared_dir: &Path) -> Result<OwnedFd, SandboxError> {
    // Slave: what the host mounts below the directory later appears here, and nothing goes the other way.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", slave).map_err(SandboxError::kernel("detach the mounts from the host's", FIX))?;

    let flags = MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::RELATIME;
    if let Err(error) = rustix::mount::mount("proc", "/proc", "proc", flags, None) {
        // A container that hides parts of its /proc forbids a fresh one. The mount of `/proc/self/fd` alone, made next, is
        // as good to this process: it shows no other.
        tracing::debug!(%error, "no fresh /proc in the sandbox");
    }
    let proc_self_fd = proc_self_fd()?;

    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let new_root = rustix::mount::open_tree(CWD, shared_dir, flags)
        .map_err(SandboxError::kernel("make a mount of the shared directory", FIX))?;
    rustix::mount::move_mount(&new_root, "", CWD, shared_dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(SandboxError::kernel("mount the shared directory over itself", FIX))?;
    let old_root = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(SandboxError::kernel("open the root directory", FIX))?;

    // With one directory for both, the old root ends up mounted on the new one, where it is taken off.
    rustix::process::fchdir(&new_root).map_err(SandboxError::kernel("change to the shared directory", FIX))?;
    rustix::process::pivot_root(".", ".").map_err(SandboxError::kernel("change the root of the mounts", FIX))?;
    rustix::process::fchdir(&old_root).map_err(SandboxError::kernel("change to the old root", FIX))?;
    rustix::mount::mount_change(".", slave)
        .map_err(SandboxError::kernel("detach the old root from the host's", FIX))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(SandboxError::kernel("unmount the old root", FIX))?;
    rustix::process::fchdir(&new_root).map_err(SandboxError::kernel("change to the new root", FIX))?;
    Ok(proc_self_fd)
}
