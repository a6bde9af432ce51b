//! A network of this program's own: it has nothing but a loopback interface, and that can be cut.

use std::env;
use std::ffi::c_char;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketType, socket};

use crate::server::PROGRAM_VARIABLE;

/// Tells a run that it is in a network of its own.
const INSIDE_VARIABLE: &str = "TORTURE_HAS_A_NETWORK";
const LOOPBACK: &[u8] = b"lo";

/// The loopback interface, with all that this program and its servers say to each other over a network.
#[derive(Debug)]
pub(super) struct Network(());

impl Network {
    /// The network that this program is in, if it is its own.
    pub(super) fn own() -> Result<Option<Self>> {
        if env::var_os(INSIDE_VARIABLE).is_none() {
            return Ok(None);
        }
        let network = Self(());
        network.mend()?;
        Ok(Some(network))
    }

    /// Runs this program once more in a network of its own, with `vringd` for the program under torture. Needs no rights.
    pub(super) fn run_inside(vringd: &Path) -> Result<ExitStatus> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--fork", "--kill-child", "--"]);
        command.arg(env::current_exe().context("a program has a path")?).args(env::args_os().skip(1));
        command.env(INSIDE_VARIABLE, "1").env(PROGRAM_VARIABLE, vringd);
        command.status().context("cannot run unshare (util-linux)")
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
