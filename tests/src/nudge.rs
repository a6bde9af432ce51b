//! Wakes guests of User Mode Linux that sleep over an interrupt.
//!
//! The kernel of several processors now and then loses a SIGIO while its processors go idle, about once in twenty runs of a busy minute.
//! What was notified stays unread in the ring's call socket, and the guest sleeps until another signal makes it look. This one makes it
//! look. A server's missing notification is not hidden by that: a guest that looks finds its sockets empty.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const INTERVAL: Duration = Duration::from_secs(1);

/// Makes the guest that process `id` is look at its devices, again and again until it has ended.
pub(crate) fn begin(id: u32) -> Result<()> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("a child has a process id")?;
    let guest = pidfd_open(pid, PidfdFlags::empty()).context("watching the guest's process")?;
    thread::Builder::new().name("nudge".to_owned()).spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            // While it starts, the signal would end it.
            if catches_sigio(id) != Some(false) && pidfd_send_signal(&guest, Signal::IO).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// `None`: the process has ended.
fn catches_sigio(id: u32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
    Some(caught & 1 << (Signal::IO.as_raw() - 1) != 0)
}
