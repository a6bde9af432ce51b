//! What a header may cost whoever opens it: its iterations are whatever its author wrote.

/// Work of one container: runs of a hash, or blocks of 1 KiB that argon2 fills. A run takes some tenths of a microsecond and a block one,
/// so that the most costly container takes a minute or so; a slot that cryptsetup makes asks for some hundredths.
const WORK_MAX: u64 = 1 << 27;

/// What is left.
#[derive(Clone, Debug)]
pub struct Budget {
    work: u64,
    /// Memory of this host.
    pub(crate) memory_bytes: u64,
}

impl Budget {
    /// For one container.
    pub fn new() -> Budget {
        Budget { work: WORK_MAX, memory_bytes: values::host_memory_bytes() }
    }

    /// Takes so much of it, or nothing where there is less.
    pub(crate) fn spend(&mut self, work: u64) -> Result<(), ()> {
        self.work = self.work.checked_sub(work).ok_or(())?;
        Ok(())
    }

    pub(crate) fn has_memory(&self, bytes: u64) -> bool {
        bytes <= self.memory_bytes
    }
}
