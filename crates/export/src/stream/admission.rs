//! Who may connect to a stream. 9P asks nobody who they are: the kernel says it of the other end of a socket, if anybody does.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use vhost_user::SessionInfo;

/// Whose connections are served; anybody's by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Root's and this user's alone, as the kernel names the peer of a unix socket (SO_PEERCRED): nobody's over TCP and vsock.
    pub user: Option<u32>,
    /// Over vsock those of virtual machines with these context ids alone; of any, if there are none.
    pub cids: Vec<u32>,
}

/// Why a client is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is another user, or nobody whom the kernel knows.
    User(Option<u32>),
    /// It is another virtual machine, or none.
    Cid(Option<u32>),
}

impl Admission {
    /// Looks at who is at the other end of a connection.
    pub(super) fn refuses(&self, connection: BorrowedFd<'_>, peer: SessionInfo) -> Option<Refusal> {
        self.refuses_peer(peer.uid, || cid(connection))
    }

    fn refuses_peer(&self, uid: Option<u32>, cid: impl FnOnce() -> Option<u32>) -> Option<Refusal> {
        if let Some(own) = self.user
            && uid.is_none_or(|uid| uid != 0 && uid != own)
        {
            return Some(Refusal::User(uid));
        }
        if self.cids.is_empty() {
            return None;
        }
        let cid = cid();
        cid.is_none_or(|cid| !self.cids.contains(&cid)).then_some(Refusal::Cid(cid))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIX: &str = "who would act as root; `clients_may_be_root` lets everybody connect";
        match self {
            Refusal::User(Some(uid)) => write!(f, "turned away user {uid}, {FIX}"),
            Refusal::User(None) => write!(f, "turned away a client whose user is not known, {FIX}"),
            Refusal::Cid(Some(cid)) => write!(f, "turned away context id {cid}, which is not in `client_cids`"),
            Refusal::Cid(None) => f.write_str("turned away a client that is no virtual machine of `client_cids`"),
        }
    }
}

/// The context id at the other end of a vsock; of no other socket.
fn cid(connection: BorrowedFd<'_>) -> Option<u32> {
    let mut name = MaybeUninit::<libc::sockaddr_vm>::zeroed();
    let mut bytes = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes, the size of the buffer.
    let result = unsafe { libc::getpeername(connection.as_raw_fd(), name.as_mut_ptr().cast(), &raw mut bytes) };
    // SAFETY: integers, zeroed at first: any bytes are valid.
    let name = unsafe { name.assume_init() };
    (result == 0 && i32::from(name.svm_family) == libc::AF_VSOCK).then_some(name.svm_cid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anybody_unless_told_otherwise() {
        let anybody = Admission::default();
        assert_eq!(anybody.refuses_peer(Some(1000), || panic!("nobody asked")), None);
        assert_eq!(anybody.refuses_peer(None, || Some(3)), None);
    }

    #[test]
    fn root_and_one_user_alone() {
        let own = Admission { user: Some(7), cids: Vec::new() };
        assert_eq!(own.refuses_peer(Some(0), || None), None);
        assert_eq!(own.refuses_peer(Some(7), || None), None);
        assert_eq!(own.refuses_peer(Some(65534), || None), Some(Refusal::User(Some(65534))));
        // TCP, and vsock whatever its context id.
        assert_eq!(own.refuses_peer(None, || None), Some(Refusal::User(None)));
        let told = own.refuses_peer(Some(8), || None).unwrap().to_string();
        assert!(told.contains("user 8") && told.contains("clients_may_be_root"), "{told}");
    }

    #[test]
    fn the_virtual_machines_that_were_named() {
        let some = Admission { user: None, cids: vec![3, 5] };
        assert_eq!(some.refuses_peer(None, || Some(5)), None);
        assert_eq!(some.refuses_peer(None, || Some(4)), Some(Refusal::Cid(Some(4))));
        // An inherited socket may be of another kind.
        assert_eq!(some.refuses_peer(Some(0), || None), Some(Refusal::Cid(None)));
    }
}
