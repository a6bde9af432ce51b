//! Which boot of the machine this is: memory files live as long as that.

use crate::format::{MemoryAt, Superblock, Uuid};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

/// The kernel's name for the time since it was started. Containers of one machine have it in common, but for those whose manager
/// mounts another over it at each start (systemd-nspawn): that one says nothing of the memory of the machine. /proc may be missing.
pub(super) fn boot_id() -> Option<Uuid> {
    static BOOT: OnceLock<Option<Uuid>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let boot = kernels(Path::new("/proc/sys/kernel/random/boot_id"));
        if boot.is_none() {
            tracing::warn!(
                "/proc has no boot id of the kernel's: a memory file that is gone after a kill will not be missed"
            );
        }
        boot
    })
}

/// What the kernel says at `path`, and nobody else.
fn kernels(path: &Path) -> Option<Uuid> {
    let mut file = File::open(path).ok()?;
    let about = rustix::fs::fstatfs(&file).ok()?;
    if about.f_type != rustix::fs::PROC_SUPER_MAGIC {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Uuid::parse_str(text.trim()).ok().filter(|boot| !boot.is_nil())
}

/// The memory file without which the volume must not be opened: its last server was not ended in order, and the memory of that time
/// is still there. Where nobody can say which boot this is, it is taken for the same.
pub(super) fn awaited(superblock: &Superblock) -> Option<&MemoryAt> {
    superblock.memory.as_ref().filter(|memory| boot_id().is_none_or(|boot| boot == memory.boot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_one_name() {
        assert_eq!(boot_id(), boot_id());
        assert!(boot_id().is_some_and(|boot| !boot.is_nil()));
    }

    #[test]
    fn a_name_that_is_not_the_kernels_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0f0e0d0c-0b0a-4908-8706-050403020100\n").unwrap();
        assert_eq!(kernels(file.path()), None);
    }
}
