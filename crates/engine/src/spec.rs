//! Where a worker's thread runs: CPUs, NUMA node, cgroup. What is not said is inherited from the daemon.

use std::path::{Path, PathBuf};
use values::CpuList;

/// linux/mempolicy.h: MPOL_PREFERRED, memory from this node while it has some.
const MPOL_PREFERRED: libc::c_int = 1;
/// Nodes that fit in one word of a node mask.
const NODE_MAX: u32 = 63;

/// What is asked of a new worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerSpec {
    /// CPUs it may run on.
    pub cpus: Option<CpuList>,
    /// NUMA node whose memory it prefers, and on whose CPUs it runs where `cpus` does not say otherwise.
    pub numa_node: Option<u32>,
    /// Directory of the cgroup (version 1, or version 2 in threaded mode) its thread enters.
    pub cgroup: Option<PathBuf>,
}

/// Why a thread could not be put where it was told to be.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum SpecError {
    /// cannot run on CPUs {cpus}: {source} (which exist is in /sys/devices/system/cpu/online)
    Affinity {
        /// The CPUs asked for.
        cpus: CpuList,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// there is no NUMA node {0} (which exist is in /sys/devices/system/node/online)
    NoNode(u32),
    /// cannot prefer memory of NUMA node {node}: {source}
    MemoryPolicy {
        /// The node asked for.
        node: u32,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// cannot enter cgroup {path}: {source} (it needs a writable cgroup.threads or tasks file; a daemon confined by Landlock must be started with the directory in `allow`)
    Cgroup {
        /// The cgroup's directory.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl WorkerSpec {
    /// Applies to the calling thread.
    ///
    /// # Errors
    /// There is no such place, or the thread may not be there.
    pub fn apply(&self) -> Result<(), SpecError> {
        if let Some(path) = &self.cgroup {
            enter_cgroup(path).map_err(|source| SpecError::Cgroup { path: path.clone(), source })?;
        }
        let node_cpus = self.numa_node.map(cpus_of_node).transpose()?;
        if let Some(cpus) = self.cpus.as_ref().or(node_cpus.as_ref()) {
            pin(cpus).map_err(|source| SpecError::Affinity { cpus: cpus.clone(), source })?;
        }
        if let Some(node) = self.numa_node {
            prefer_node(node).map_err(|source| SpecError::MemoryPolicy { node, source })?;
        }
        Ok(())
    }
}

fn pin(cpus: &CpuList) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.cpus() {
        set.set(usize::from(*cpu));
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn cpus_of_node(node: u32) -> Result<CpuList, SpecError> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let text = std::fs::read_to_string(path).map_err(|_| SpecError::NoNode(node))?;
    text.trim().parse().map_err(|_| SpecError::NoNode(node))
}

fn prefer_node(node: u32) -> std::io::Result<()> {
    if node > NODE_MAX {
        return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mask: libc::c_ulong = 1 << node;
    // SAFETY: the mask is one readable word, and the kernel is told one word's bits (it wants one more than it reads).
    let result = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            MPOL_PREFERRED,
            &raw const mask,
            libc::c_ulong::from(libc::c_ulong::BITS) + 1,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn enter_cgroup(path: &Path) -> std::io::Result<()> {
    let tid = rustix::thread::gettid().as_raw_nonzero().to_string();
    let unified = path.join("cgroup.threads");
    // Version 1 has `tasks` instead. Opening for writing only: a directory that is no cgroup must not gain a file.
    let file = if unified.exists() { unified } else { path.join("tasks") };
    std::io::Write::write_all(&mut std::fs::OpenOptions::new().write(true).open(file)?, tid.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_and_refusals_name_the_cause() {
        std::thread::spawn(|| {
            let first = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..usize::from(CpuList::CPU_MAX)).find(|cpu| first.is_set(*cpu)).unwrap();
            let spec = WorkerSpec { cpus: Some(cpu.to_string().parse().unwrap()), ..WorkerSpec::default() };
            spec.apply().unwrap();
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);

            let none = WorkerSpec { cpus: Some("1023".parse().unwrap()), ..WorkerSpec::default() };
            assert!(none.apply().unwrap_err().to_string().contains("1023"));
            let node = WorkerSpec { numa_node: Some(4000), ..WorkerSpec::default() };
            assert!(node.apply().unwrap_err().to_string().contains("node 4000"));
            let cgroup = WorkerSpec { cgroup: Some("/nonexistent".into()), ..WorkerSpec::default() };
            assert!(cgroup.apply().unwrap_err().to_string().contains("/nonexistent"));
        })
        .join()
        .unwrap();
    }
}
