//! The size of a guest.

/// The size of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Virtual processors, at least 1.
    pub processors: u32,
    /// Memory in MiB, which takes the host's only as far as it is used.
    pub memory_mib: u32,
    /// Whether the guest is kept on the processors and the memory of one NUMA node, see
    /// [`crate::numa::bind`].
    pub one_node: bool,
    /// Whether the guest's clock counts its instructions, a nanosecond each, and time passes as it does here only while all its
    /// processors wait: what emulation costs is left out. QEMU alone can do so, and by its translator.
    pub instruction_clock: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self { processors: 1, memory_mib: 512, one_node: false, instruction_clock: false }
    }
}
