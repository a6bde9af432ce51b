//! Who is at the other end of a connection.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::SessionInfo;

/// Who is at the other end of a unix socket's connection; nobody known for others. Asks the kernel (SO_PEERCRED, unix(7)).
///
/// Not by `rustix`: its process id cannot be 0, which is what the kernel says of a peer outside our pid namespace, such as
/// a hypervisor on the host of our container.
pub fn info(connection: BorrowedFd<'_>) -> SessionInfo {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes, the size of the buffer.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return SessionInfo::default();
    }
    // SAFETY: three integers, zeroed at first: any bytes are valid.
    let credentials = unsafe { credentials.assume_init() };
    // What the kernel says of a socket that has no such peer, of TCP for one: no process, and nobody.
    let uid = Some(credentials.uid).filter(|&uid| uid != u32::MAX);
    SessionInfo { pid: u32::try_from(credentials.pid).ok().filter(|&pid| pid != 0), uid }
}
