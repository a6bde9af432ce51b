//! What this host has.

/// Memory of this host, in bytes, whatever this process may have of it.
pub fn host_memory_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    host.totalram.saturating_mul(u64::from(host.mem_unit))
}
