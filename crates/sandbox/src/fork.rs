//! One process more: the one that goes on, and the one that stays behind and waits.

use crate::error::{SandboxError, last_error};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// What the waiting process hands on.
const HANDED_ON: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Which of the two a process is.
pub(crate) enum Forked {
    /// The new one.
    Child,
    /// The old one, with the number of the new one.
    Parent(Pid),
}

/// Makes a copy of this process, which must have one thread.
pub(crate) fn fork() -> Result<Forked, SandboxError> {
    // SAFETY: the process has no other thread, as `Sandbox::enter` has seen, so nothing is locked or half done in the copy.
    match unsafe { libc::fork() } {
        0 => Ok(Forked::Child),
        pid => match Pid::from_raw(pid).filter(|_| pid > 0) {
            Some(pid) => Ok(Forked::Parent(pid)),
            None => Err(SandboxError::kernel("start a process", "let the daemon have more processes")(last_error())),
        },
    }
}

/// Lets this process hear of its children: who starts a daemon may have had no use for that, and the daemon inherits it.
pub(crate) fn hear_of_children() {
    // SAFETY: asks for the default action, which runs no code here.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ends a process that is a copy, without what a program does at its end: that is for the original to do.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(status) }
}

/// Goes on in a child, while the parent waits for it and does nothing else. Returns in the child.
pub(crate) fn go_on_in_child() -> Result<(), SandboxError> {
    // The numbers of a process namespace end at its border, this descriptor does not.
    let parent = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .map_err(SandboxError::kernel("open this process", "use Linux 5.3 or newer"))?;
    // Before the fork: what comes in between waits for who is to hand it on.
    let before = block_signals();
    match fork() {
        Ok(Forked::Parent(child)) => wait_for(child),
        Ok(Forked::Child) => {
            give_signals_an_end();
            set_mask(&before);
            end_with(&parent)
        }
        Err(error) => {
            set_mask(&before);
            Err(error)
        }
    }
}

/// The signals that the parent waits for.
fn handed_on() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call writes the set that the others and the caller use.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in HANDED_ON {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        set.assume_init()
    }
}

/// Blocks what the parent waits for. Answers with the mask as it was.
fn block_signals() -> libc::sigset_t {
    let signals = handed_on();
    let mut before = MaybeUninit::uninit();
    // SAFETY: reads one set and writes the other. It cannot fail with a known way of changing the mask.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, before.as_mut_ptr());
        before.assume_init()
    }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: reads one set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// The first process of a namespace is not ended by a signal that it has no handler for, not even by one from outside.
/// Until the daemon has handlers of its own these end it as they end any program.
fn give_signals_an_end() {
    extern "C" fn end(signal: libc::c_int) {
        leave(128 + signal);
    }

    for signal in HANDED_ON {
        let mut present = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: writes the present action, whose handler is then compared with a constant.
        let default = unsafe {
            libc::sigaction(signal, std::ptr::null(), present.as_mut_ptr()) == 0
                && present.assume_init().sa_sigaction == libc::SIG_DFL
        };
        if default {
            // SAFETY: a structure of integers and pointers, for which zero is a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = end as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // SAFETY: the handler has the type that an action without flags calls, and makes one system call.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
}

/// Ends this process when its parent ends, however that happens.
fn end_with(parent: &OwnedFd) -> Result<(), SandboxError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(SandboxError::kernel("ask for the parent's end", "use a kernel with prctl"))?;
    // A parent that ended before that gave no signal.
    let mut poll = [PollFd::new(parent, PollFlags::IN)];
    match rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) => Ok(()),
        _ => Err(SandboxError::ParentDied),
    }
}

/// Waits for the child, hands signals on to it, and exits as it does.
fn wait_for(child: Pid) -> ! {
    // Sockets that the child serves must close when the child closes them, and nothing here needs a file or a right.
    close_all();
    for set in [caps::CapSet::Ambient, caps::CapSet::Effective, caps::CapSet::Permitted, caps::CapSet::Inheritable] {
        // A process that only waits with more rights than it needs is no reason to end its child.
        let _ = caps::clear(None, set);
    }
    let signals = handed_on();
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                if let Some(code) = status.exit_status() {
                    leave(code);
                }
                if let Some(signal) = status.terminating_signal() {
                    leave(128 + signal);
                }
            }
            Ok(None) => {}
            // Nobody to wait for, and no way to learn how that came about.
            Err(_) => leave(1),
        }
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: reads the set and writes the information.
        let signal = unsafe { libc::sigwaitinfo(&raw const signals, info.as_mut_ptr()) };
        if signal <= 0 || signal == libc::SIGCHLD {
            continue;
        }
        // SAFETY: the call has answered with a signal, so it has written the information.
        let from_terminal = unsafe { info.assume_init() }.si_code == libc::SI_KERNEL;
        // A terminal gives its signals to the child as well, and twice means something else to a daemon than once.
        if !from_terminal {
            // SAFETY: sends a signal to the child, which exists until it has been waited for above.
            unsafe { libc::kill(child.as_raw_nonzero().get(), signal) };
        }
    }
}

/// Closes every file but the standard ones.
fn close_all() {
    // SAFETY: the process only waits from here on: whatever owned these descriptors in it is never used or dropped.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
