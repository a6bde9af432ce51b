//! Somebody less powerful to be: `--user`.

use crate::error::SandboxError;
use rustix::process::{Gid, Uid};

/// A user with their groups, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// The user's own group.
    pub gid: u32,
    /// All groups, the own one included.
    pub groups: Vec<u32>,
}

impl Identity {
    /// Who this process is now.
    pub fn own() -> Identity {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        }
    }

    /// Becomes this user for ever: for this thread and all that it starts. The rights of root end with it. A process that is
    /// this user already is left as it is.
    ///
    /// Capabilities go with it where root had them; where somebody else did, [`Capabilities::apply`] takes them.
    ///
    /// [`Capabilities::apply`]: crate::Capabilities::apply
    ///
    /// # Errors
    /// For a process that may not become somebody else.
    pub fn assume(&self) -> Result<(), SandboxError> {
        const FIX: &str = "start the daemon as root, or leave --user out";

        let own = Identity::own();
        if (own.uid, own.gid) == (self.uid, self.gid) {
            return Ok(());
        }
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_groups(&groups).map_err(SandboxError::kernel("take the user's groups", FIX))?;
        let gid = Gid::from_raw(self.gid);
        rustix::thread::set_thread_res_gid(gid, gid, gid)
            .map_err(SandboxError::kernel("take the user's own group", FIX))?;
        let uid = Uid::from_raw(self.uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(SandboxError::kernel("become the user", FIX))
    }
}
