//! Where a worker's thread runs: CPUs, NUMA node, cgroup. What is not said is inherited from the daemon.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Highest CPU number that the kernel's cpu_set_t of glibc and rustix can name.
const CPU_MAX: usize = 1023;
/// linux/mempolicy.h: MPOL_PREFERRED, memory from this node while it has some.
const MPOL_PREFERRED: libc::c_int = 1;
/// Nodes that fit in one word of a node mask.
const NODE_MAX: u32 = 63;

/// A set of CPUs, written as the kernel writes it: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(BTreeSet<usize>);

/// `{0}` is not a list of CPUs: write numbers and ranges like 0-3,8 (0 to 1023)
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub struct CpuListError(String);

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || CpuListError(text.to_owned());
        let number = |part: &str| part.parse::<usize>().ok().filter(|cpu| *cpu <= CPU_MAX).ok_or_else(error);
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(error());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

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
    pub(crate) fn apply(&self) -> Result<(), SpecError> {
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
    for cpu in &cpus.0 {
        set.set(*cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn cpus_of_node(node: u32) -> Result<CpuList, SpecError> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let text = std::fs::read_to_string(path).map_err(|_| SpecError::NoNode(node))?;
    text.parse().map_err(|_| SpecError::NoNode(node))
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
    fn cpu_lists_read_back_as_the_kernel_writes_them() {
        for (text, written) in [("0", "0"), ("3,1,2", "1-3"), ("0-2,5,7-8\n", "0-2,5,7-8")] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), written);
        }
        for text in ["", "a", "3-1", "1,", "-1", "1024", "0-99999999"] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_thread_can_be_pinned_and_refusals_name_the_cause() {
        std::thread::spawn(|| {
            let first = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..CPU_MAX).find(|cpu| first.is_set(*cpu)).unwrap();
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
