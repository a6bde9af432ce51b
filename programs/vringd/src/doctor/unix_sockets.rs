//! Unix sockets that answer a connection, with the files that they are bound to: sock_diag(7), as `ss -xl` asks.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A socket that is bound to a file and answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// As it was bound, which may have been another directory's relative path.
    pub(super) path: PathBuf,
    /// The socket's own inode.
    pub(super) socket: u64,
    /// The file's inode, its low 32 bits, and its device as the kernel has it; `None` where the kernel was not asked.
    pub(super) file: Option<(u32, u32)>,
}

/// `NLMSG_ERROR`, `NLMSG_DONE`, `NLM_F_REQUEST` and `NLM_F_DUMP` (include/uapi/linux/netlink.h).
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x1 | 0x300;
/// `SOCK_DIAG_BY_FAMILY` (include/uapi/linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_NAME` and `UDIAG_SHOW_VFS`, and the attributes that these show (include/uapi/linux/unix_diag.h).
const SHOW: u32 = 0x1 | 0x2;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
/// `AF_UNIX`, `SOCK_STREAM` and `SOCK_SEQPACKET` (include/linux/net.h), `TCP_ESTABLISHED` and `TCP_LISTEN` (include/net/tcp_states.h).
const UNIX: u8 = 1;
const STREAM: u8 = 1;
const SEQPACKET: u8 = 5;
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
/// Bytes before the payload of a message, before the attributes of a socket, and before the value of one.
const MESSAGE: usize = 16;
const SOCKET: usize = 16;
const ATTRIBUTE: usize = 4;
/// Larger than any datagram of a dump (`NLMSG_GOODSIZE` is at most 8 KiB, and a dump's at most 32).
const DATAGRAM: usize = 64 << 10;

/// All of this network namespace.
///
/// # Errors
/// The kernel's: it has no unix_diag, or nobody may ask it.
pub(super) fn bound() -> Result<Vec<Bound>, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let kernel = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    rustix::net::send(&kernel, &request(), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut datagram = vec![0; DATAGRAM];
    while read(&kernel, &mut datagram, &mut found)? {}
    Ok(found)
}

/// struct nlmsghdr, struct unix_diag_req.
fn request() -> Vec<u8> {
    let mut request = Vec::new();
    let length = (MESSAGE + 24) as u32;
    request.extend(length.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([UNIX, 0, 0, 0]);
    // All states, of all sockets.
    for word in [u32::MAX, 0, SHOW, 0, 0] {
        request.extend(word.to_ne_bytes());
    }
    request
}

/// Whether more follows.
fn read(kernel: &OwnedFd, datagram: &mut [u8], found: &mut Vec<Bound>) -> Result<bool, Errno> {
    let (_, length) = rustix::net::recv(kernel, &mut *datagram, RecvFlags::empty())?;
    take(datagram.get(..length).ok_or(Errno::MSGSIZE)?, found)
}

/// The messages of a datagram. Whether more follows.
fn take(mut datagram: &[u8], found: &mut Vec<Bound>) -> Result<bool, Errno> {
    while let Some(length) = u32_at(datagram, 0) {
        let length = length as usize;
        let message = datagram.get(MESSAGE..length).ok_or(Errno::BADMSG)?;
        match u16_at(datagram, 4) {
            Some(NLMSG_DONE) => return Ok(false),
            Some(NLMSG_ERROR) => {
                let error = u32_at(message, 0).unwrap_or(0).cast_signed();
                return Err(Errno::from_raw_os_error(error.saturating_neg()));
            }
            Some(SOCK_DIAG_BY_FAMILY) => found.extend(socket(message)),
            _ => {}
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// struct unix_diag_msg and its attributes.
fn socket(message: &[u8]) -> Option<Bound> {
    let (kind, state) = (*message.get(1)?, *message.get(2)?);
    // Whoever is connected has the file of the one that listens.
    let answers = match kind {
        STREAM => state == LISTEN,
        SEQPACKET => state != ESTABLISHED,
        _ => true,
    };
    let (mut path, mut file) = (None, None);
    let mut left = message.get(SOCKET..)?;
    while let (Some(length), Some(kind)) = (u16_at(left, 0), u16_at(left, 2)) {
        let length = usize::from(length);
        let value = left.get(ATTRIBUTE..length)?;
        match kind {
            UNIX_DIAG_NAME => path = Some(value),
            UNIX_DIAG_VFS => file = Some((u32_at(value, 0)?, u32_at(value, 4)?)),
            _ => {}
        }
        left = left.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    // An abstract one has no file.
    let (path, file) = (path?, file?);
    let path = path.split(|byte| *byte == 0).next()?;
    answers.then(|| Bound {
        path: PathBuf::from(OsStr::from_bytes(path)),
        socket: u32_at(message, 4).unwrap_or(0).into(),
        file: Some(file),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    #[test]
    fn who_answers_is_there_with_the_file_and_who_does_not_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let [listens, receives] = ["listens", "receives"].map(|name| directory.path().join(name));
        let listening = UnixListener::bind(&listens).unwrap();
        let connected = (UnixStream::connect(&listens).unwrap(), listening.accept().unwrap());
        let receiving = UnixDatagram::bind(&receives).unwrap();
        let bound_alone = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = rustix::net::SocketAddrUnix::new(directory.path().join("alone")).unwrap();
        rustix::net::bind(&bound_alone, &address).unwrap();
        let Ok(all) = bound() else {
            eprintln!("no unix_diag: nothing was tried");
            return;
        };
        let mut here: Vec<_> = all.into_iter().filter(|it| it.path.starts_with(directory.path())).collect();
        here.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(here.iter().map(|it| &it.path).collect::<Vec<_>>(), [&listens, &receives]);
        for one in here {
            let about = std::fs::metadata(&one.path).unwrap();
            assert_eq!(one.file.unwrap().0, about.ino() as u32);
        }
        drop((connected, receiving));
    }

    #[test]
    fn what_is_cut_short_is_refused_or_left_out() {
        let mut whole = request();
        whole[..4].copy_from_slice(&1000_u32.to_ne_bytes());
        assert_eq!(take(&whole, &mut Vec::new()), Err(Errno::BADMSG));
        whole[..4].copy_from_slice(&3_u32.to_ne_bytes());
        assert_eq!(take(&whole, &mut Vec::new()), Err(Errno::BADMSG));
        let mut found = Vec::new();
        for length in 0..40 {
            assert_eq!(socket(&whole[..length]), None);
        }
        assert_eq!(take(&[], &mut found), Ok(true));
    }
}
