//! A network of this program's own: it has nothing but a loopback interface, and that can be cut.

use std::ffi::c_char;
use std::fs;
use std::io::Error;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const LOOPBACK: &[u8] = b"lo";

/// The loopback interface, with all that this program and its servers say to each other over a network.
#[derive(Debug)]
pub(super) struct Network(());

impl Network {
    /// Moves this program, and all that it starts from now on, into a network of its own. Needs no rights: in a user namespace it is root.
    ///
    /// # Errors
    /// User namespaces are not allowed here, or this program has threads.
    pub(super) fn enter() -> Result<Self> {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        // SAFETY: descriptors and memory stay shared.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }
            .context("no network of this run's own: allow user namespaces (sysctl user.max_user_namespaces)")?;
        // user_namespaces(7): whoever may not set groups outside has to give that up before groups are mapped.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
        let network = Self(());
        network.mend()?;
        Ok(network)
    }

    /// What is sent from now on is lost, and connections know nothing of it.
    pub(super) fn cut(&self) -> Result<()> {
        self.set(false)
    }

    /// Whole again. TCP repeats what was lost.
    pub(super) fn mend(&self) -> Result<()> {
        self.set(true)
    }

    fn set(&self, up: bool) -> Result<()> {
        let asked = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        // SAFETY: integers and a union of plain old data, for all of which zeroes are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(LOOPBACK) {
            *to = *from as c_char;
        }
        request.ifr_ifru.ifru_flags = if up { (libc::IFF_UP | libc::IFF_RUNNING) as i16 } else { 0 };
        // SAFETY: netdevice(7): the kernel reads an ifreq, which outlives the call.
        let done = unsafe { libc::ioctl(asked.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
        let state = if up { "up" } else { "down" };
        ensure!(done == 0, "the network of this run cannot be {state}: {}", Error::last_os_error());
        Ok(())
    }
}
