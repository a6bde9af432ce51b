//! The signal handler, and the handlers that were there before.

use crate::{machine, watch};
use libc::{c_int, c_void, sigaction, siginfo_t};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

/// What a page that is gone is told by.
const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// Who handled them before.
static PREVIOUS: [OnceLock<sigaction>; SIGNALS.len()] = [OnceLock::new(), OnceLock::new()];

/// Installs the handler once. False when the kernel does not let us.
pub(crate) fn install() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| SIGNALS.iter().zip(&PREVIOUS).all(|(&signal, previous)| replace(signal, previous)))
}

/// Puts our handler before the present one, which is in its place before ours can need it.
fn replace(signal: c_int, previous: &OnceLock<sigaction>) -> bool {
    let mut present = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: asking for the present action; zeros are one too, whatever the kernel writes.
    if unsafe { libc::sigaction(signal, ptr::null(), present.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: as above.
    let present = unsafe { present.assume_init() };
    // The mask stays what the present handler needs.
    let mut ours = present;
    ours.sa_sigaction = on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as libc::sighandler_t;
    // On the alternate stack, where the runtime's handler looks for stacks that overflow.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (present.sa_flags & libc::SA_NODEFER);
    previous.set(present).is_ok()
        // SAFETY: the handler only does what handlers may: it changes its own context, or hands on.
        && unsafe { libc::sigaction(signal, &raw const ours, ptr::null_mut()) } == 0
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives every handler with SA_SIGINFO a `siginfo_t`.
    let caused_here = unsafe { (*info).si_code } > 0;
    // What somebody sends (`kill(2)`) is no fault, whatever it interrupts.
    // SAFETY: the context is the one the kernel gave us.
    if caused_here && unsafe { machine::recover(context) } {
        return;
    }
    // SAFETY: the kernel says with these signals which address they are about.
    let address = unsafe { (*info).si_addr() } as usize;
    if caused_here && signal == libc::SIGBUS && watch::replace(address) {
        return;
    }
    let previous =
        SIGNALS.iter().zip(&PREVIOUS).find(|(known, _)| **known == signal).and_then(|(_, action)| action.get());
    let (address, flags) = previous.map_or((libc::SIG_DFL, 0), |action| (action.sa_sigaction, action.sa_flags));
    match address {
        libc::SIG_IGN if !caused_here => {}
        // The kernel lets nobody ignore a fault.
        libc::SIG_DFL | libc::SIG_IGN => die(signal, caused_here),
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flag says that the address is a function of this type.
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag the address is a function of this type.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Lets the signal have its default effect when the handler returns: a fault happens again, what was sent is sent again.
fn die(signal: c_int, caused_here: bool) {
    // SAFETY: zeros are the default action with an empty mask; both calls may be made in a handler. The signal is blocked
    // until we return.
    unsafe {
        let default = MaybeUninit::<sigaction>::zeroed().assume_init();
        libc::sigaction(signal, &raw const default, ptr::null_mut());
        if !caused_here {
            libc::raise(signal);
        }
    }
}
