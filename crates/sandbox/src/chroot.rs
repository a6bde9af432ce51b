//! Another root directory, and nothing more.

use crate::error::SandboxError;
use crate::{Entered, mounts};
use std::path::Path;

/// Makes `shared_dir` the root directory.
pub(crate) fn enter(shared_dir: &Path) -> Result<Entered, SandboxError> {
    const FIX: &str = "start the daemon with CAP_SYS_CHROOT, or use --sandbox=none";

    let proc_self_fd = mounts::proc_self_fd()?;
    rustix::process::chroot(shared_dir).map_err(SandboxError::kernel("change the root directory", FIX))?;
    rustix::process::chdir("/").map_err(SandboxError::kernel("change to the new root directory", FIX))?;
    Ok(Entered { root: mounts::open_directory(Path::new("/"))?, proc_self_fd })
}
