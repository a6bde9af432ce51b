//! The generic driver's interface (Linux' `include/scsi/sg.h`).

use libc::{c_int, c_uchar, c_uint, c_ulong, c_ushort, c_void, iovec};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// Most pieces of a command's data: UIO_MAXIOV of Linux' `include/uapi/linux/uio.h`.
pub(crate) const PIECES_MAX: usize = 1024;
/// Most bytes of sense data (SPC-5, "Sense data").
const SENSE_BYTES: usize = 252;

const SG_IO: c_ulong = 0x2285;
const SG_GET_VERSION_NUM: c_ulong = 0x2282;
const SG_GET_SG_TABLESIZE: c_ulong = 0x227f;
/// Of `include/uapi/linux/fs.h`; this driver answers in bytes.
const BLKSECTGET: c_ulong = 0x1267;

/// Behind what was sent before. The driver puts a command in front of all others by itself.
const SG_FLAG_Q_AT_TAIL: c_uint = 0x10;

/// The first version of `struct sg_io_hdr`.
const INTERFACE: c_int = b'S' as c_int;
/// The version of the driver that has it.
const VERSION_MIN: c_int = 30_000;

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Way {
    /// SG_DXFER_NONE.
    None = -1,
    /// SG_DXFER_TO_DEV.
    Out = -2,
    /// SG_DXFER_FROM_DEV.
    In = -3,
}

/// `struct sg_io_hdr`.
#[repr(C)]
struct Header {
    interface_id: c_int,
    dxfer_direction: c_int,
    cmd_len: c_uchar,
    mx_sb_len: c_uchar,
    iovec_count: c_ushort,
    dxfer_len: c_uint,
    dxferp: *mut c_void,
    cmdp: *const c_uchar,
    sbp: *mut c_uchar,
    timeout: c_uint,
    flags: c_uint,
    pack_id: c_int,
    usr_ptr: *mut c_void,
    status: c_uchar,
    masked_status: c_uchar,
    msg_status: c_uchar,
    sb_len_wr: c_uchar,
    host_status: c_ushort,
    driver_status: c_ushort,
    resid: c_int,
    duration: c_uint,
    info: c_uint,
}

const _: () = assert!(cfg!(not(target_pointer_width = "64")) || size_of::<Header>() == 88);

/// What the driver says of a command that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// SCSI status.
    pub(crate) status: u8,
    /// What became of it on its way.
    pub(crate) host_status: u16,
    pub(crate) sense: Vec<u8>,
    /// Bytes of data that were moved.
    pub(crate) moved_bytes: u64,
}

/// Has a command performed, and waits for its end. On a thread [without signals](without_signals): one that comes meanwhile has the kernel send the
/// command once more.
///
/// # Safety
/// The pieces are valid for reads (`Out`) or writes (`In`) until this returns. They may change meanwhile.
///
/// # Errors
/// The kernel's, which has no outcome: as a rule the command was not sent.
pub(crate) unsafe fn perform(
    device: impl AsFd,
    cdb: &[u8],
    (way, pieces, bytes): (Way, &[iovec], u32),
    timeout_ms: u32,
) -> io::Result<Ended> {
    let mut sense = [0; SENSE_BYTES];
    let too_long = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let mut header = Header {
        interface_id: INTERFACE,
        dxfer_direction: way as c_int,
        cmd_len: u8::try_from(cdb.len()).map_err(too_long)?,
        mx_sb_len: SENSE_BYTES as c_uchar,
        iovec_count: u16::try_from(pieces.len()).map_err(too_long)?,
        dxfer_len: bytes,
        dxferp: pieces.as_ptr().cast_mut().cast(),
        cmdp: cdb.as_ptr(),
        sbp: sense.as_mut_ptr(),
        timeout: timeout_ms,
        flags: SG_FLAG_Q_AT_TAIL,
        pack_id: 0,
        usr_ptr: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        msg_status: 0,
        sb_len_wr: 0,
        host_status: 0,
        driver_status: 0,
        resid: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: all that the header points to outlives the call, by itself or as our caller promises; the driver writes the pieces of data
    // that it is to write, at most the announced bytes of sense data, and the header.
    if unsafe { libc::ioctl(device.as_fd().as_raw_fd(), SG_IO, &raw mut header) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let left = u32::try_from(header.resid).unwrap_or(0);
    Ok(Ended {
        status: header.status,
        host_status: header.host_status,
        sense: sense[..usize::from(header.sb_len_wr).min(SENSE_BYTES)].to_vec(),
        moved_bytes: bytes.saturating_sub(left).into(),
    })
}

/// Has a command of ours performed that reads into `data`.
///
/// # Errors
/// As [`perform`].
pub(crate) fn read(device: impl AsFd, cdb: &[u8], data: &mut [u8], timeout_ms: u32) -> io::Result<Ended> {
    let piece = iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    let bytes = u32::try_from(data.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: it is ours.
    unsafe { perform(device, cdb, (Way::In, &[piece], bytes), timeout_ms) }
}

/// An `ioctl` that answers with a number.
fn number(device: impl AsFd, request: c_ulong) -> io::Result<c_int> {
    let mut answer: c_int = 0;
    // SAFETY: the requests that this module uses write one int.
    if unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request, &raw mut answer) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

/// Whether this is a device of the generic driver.
pub(crate) fn is_generic(device: impl AsFd) -> bool {
    number(device, SG_GET_VERSION_NUM).is_ok_and(|version| version >= VERSION_MIN)
}

/// Most bytes that one command moves: what the host's adapter takes, in as many pieces as it takes where each is a page.
///
/// # Errors
/// The kernel's.
pub(crate) fn transfer_bytes_max(device: impl AsFd) -> io::Result<u32> {
    const PAGE_BYTES: u32 = 4096;
    let fd = device.as_fd();
    let bytes = u32::try_from(number(fd, BLKSECTGET)?).unwrap_or(0);
    let pieces = u32::try_from(number(fd, SG_GET_SG_TABLESIZE)?).unwrap_or(0);
    Ok(bytes.min(pieces.saturating_mul(PAGE_BYTES)))
}

/// Signals that a thread brings about itself. They end a process that blocks them, whatever handlers it has: guest memory that is gone is SIGBUS.
const OWN: [c_int; 6] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Has something done while no signal of others comes to this thread. Threads that it starts get none, ever.
pub(crate) fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are ours; the first is filled before it is changed and read, and the call fills the second.
    let is_blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in OWN {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = f();
    if is_blocked {
        // SAFETY: the set is what the call above has filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn threads_that_are_started_without_signals_get_none() {
        let before = blocked();
        let there = without_signals(|| std::thread::spawn(blocked)).join().unwrap();
        assert_eq!(blocked(), before);
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGALRM] {
            assert!(there & 1 << (signal - 1) != 0, "{signal}");
        }
        for signal in OWN {
            assert!(there & 1 << (signal - 1) == 0, "{signal}");
        }
    }
}
