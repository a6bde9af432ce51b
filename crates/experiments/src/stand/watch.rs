//! Ends a guest whose server has ended: it would wait for an answer for ever.

use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Looks at a server, without a processor's time, until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Kills the process group `guest` as soon as the process `server` ends. `None` when there is nothing to look at.
    pub(super) fn start(server: Option<u32>, guest: Option<u32>) -> Option<Self> {
        let (server, guest) = (pid(server?)?, pid(guest?)?);
        let server = pidfd_open(server, PidfdFlags::empty()).ok()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
        let stopped = stop.try_clone().ok()?;
        let look = move || {
            let mut both = [PollFd::new(&server, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
            while let Err(rustix::io::Errno::INTR) = poll(&mut both, None) {}
            let [server, stopped] = both;
            if !server.revents().is_empty() && stopped.revents().is_empty() {
                // It may have ended by itself.
                let _gone = kill_process_group(guest, Signal::KILL);
            }
        };
        let thread = thread::Builder::new().name("watch".into()).spawn(look).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A counter of 1 can always be written.
        let _written = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _joined = thread.join();
        }
    }
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").process_group(0).spawn().unwrap()
    }

    #[test]
    fn the_guest_ends_with_its_server() {
        let (mut server, mut guest) = (sleeper(), sleeper());
        let watch = Watch::start(Some(server.id()), Some(guest.id())).unwrap();
        server.kill().unwrap();
        assert_eq!(guest.wait().unwrap().signal(), Some(9));
        server.wait().unwrap();
        drop(watch);
    }

    #[test]
    fn the_guest_outlives_a_watch_that_is_dropped() {
        let (mut server, mut guest) = (sleeper(), sleeper());
        drop(Watch::start(Some(server.id()), Some(guest.id())).unwrap());
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(guest.try_wait().unwrap(), None);
        guest.kill().unwrap();
        guest.wait().unwrap();
    }
}
