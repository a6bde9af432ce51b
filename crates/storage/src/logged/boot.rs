//! Which boot of the machine this is: memory files live as long as that.

use std::sync::OnceLock;
use volume::format::{MemoryAt, Superblock, Uuid};

/// The kernel's name for the time since it was started. Containers of one machine have it in common; /proc may be missing.
pub(super) fn boot_id() -> Option<Uuid> {
    static BOOT: OnceLock<Option<Uuid>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = read.ok().and_then(|text| Uuid::parse_str(text.trim()).ok()).filter(|boot| !boot.is_nil());
        if boot.is_none() {
            tracing::warn!("/proc has no boot id: a memory file that is gone after a kill will not be missed");
        }
        boot
    })
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
}
