//! Caches: written back, and dropped.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Once;

/// For a guest: nothing of it waits to be written.
pub(super) const SYNC: &str = "sync\n";
/// For a guest: nothing of it is cached either. 3 is page cache, dentries and inodes (proc_sys_vm(5)).
pub(super) const SYNC_AND_DROP: &str = "sync\necho 3 >/proc/sys/vm/drop_caches\n";

/// Writes back the file system on which `directory` lies.
pub(super) fn write_back(directory: &Path) -> io::Result<()> {
    let directory = File::open(directory)?;
    rustix::fs::syncfs(&directory)?;
    Ok(())
}

/// Drops the host's caches. Only root may; that is said once.
pub(super) fn drop_host() {
    static SAID: Once = Once::new();
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "3") {
        SAID.call_once(|| tracing::warn!("the host's caches stay as they are, only root may drop them: {error}"));
    }
}
