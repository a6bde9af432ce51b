//! A network of this program's own: it has nothing but a loopback interface, and that can be cut.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsString, c_char};
use std::fs;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketType, socket};

use crate::server::PROGRAM_VARIABLE;

/// Tells a run which network it is not in, since it has one of its own.
const OUTSIDE_VARIABLE: &str = "TORTURE_OUTSIDE_NETWORK";
const LOOPBACK: &[u8] = b"lo";

/// The loopback interface, with all that this program and its servers say to each other over a network.
#[derive(Debug)]
pub(super) struct Network(());

impl Network {
    /// The network that this program is in, if it is its own.
    pub(super) fn own() -> Result<Option<Self>> {
        let here = Self::here()?;
        if env::var_os(OUTSIDE_VARIABLE).is_none_or(|outside| outside == here) {
            return Ok(None);
        }
        let network = Self(());
        network.mend()?;
        Ok(Some(network))
    }

    /// Goes on as this program anew, in a network of its own, with `vringd` for the program under torture. Needs no rights.
    ///
    /// # Errors
    /// Always one: it comes back only where that fails.
    pub(super) fn enter(vringd: &Path) -> Result<Infallible> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--"]);
        command.arg(env::current_exe().context("a program has a path")?).args(env::args_os().skip(1));
        command.env(OUTSIDE_VARIABLE, Self::here()?).env(PROGRAM_VARIABLE, vringd);
        Err(command.exec()).context("cannot run unshare (util-linux)")
    }

    /// The name of the network that this program is in (network_namespaces(7)).
    fn here() -> Result<OsString> {
        Ok(fs::read_link("/proc/self/ns/net")?.into_os_string())
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
        ensure!(
            done == 0,
            "the network of this run cannot be {}: {}",
            if up { "up" } else { "down" },
            Error::last_os_error()
        );
        Ok(())
    }
}
