//! Who may connect to a directory over 9p without a device.
//!
//! 9P believes its clients who they are, and the daemon does for them what they ask as the user it runs as. So a client
//! of root's daemon acts as root on the files below the directory, and may leave a set-user-id program of root's there:
//! that is for root alone, unless the operator says otherwise.

use crate::failure::field;
use control::ApiError;
use control::model::directory::Directory;
use control::model::{Listen, NewExport, Tls};
use export::{Admission, StreamListener};
use sandbox::State;

/// Rights with which a process that is not root can act as if it were, on files or by becoming another user.
const OF_ROOT: [&str; 8] = [
    "cap_chown",
    "cap_dac_override",
    "cap_dac_read_search",
    "cap_fowner",
    "cap_setfcap",
    "cap_setgid",
    "cap_setuid",
    "cap_sys_admin",
];

/// The user as whom exports are served, and whether that is root or as good as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    uid: u32,
    is_root: bool,
}

impl Server {
    /// This process, which is to become the user `becomes` before it serves. Asked before it enters a user namespace,
    /// which has a root of its own.
    pub(crate) fn here(becomes: Option<u32>) -> Server {
        let own = rustix::process::geteuid().as_raw();
        let uid = becomes.unwrap_or(own);
        // Whoever becomes another user keeps no right of root's.
        let keeps = uid == own;
        // A kernel that does not answer leaves it open, which counts as root.
        let has_none = |state: State| !state.capabilities.iter().any(|name| OF_ROOT.contains(&name.as_str()));
        Server { uid, is_root: uid == 0 || keeps && !State::of_thread().is_ok_and(has_none) }
    }

    /// Whether clients of this directory act as root.
    fn lends_root(self, about: &Directory) -> bool {
        self.is_root && !about.security_model.is_mapped()
    }

    /// Refuses an export that others than root would connect to as root.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the ways out.
    pub(crate) fn check(self, new: &NewExport) -> Result<(), ApiError> {
        let (Some(listen), Some(about)) = (&new.listen, &new.directory) else { return Ok(()) };
        if about.clients_may_be_root || !self.lends_root(about) {
            return Ok(());
        }
        match listen {
            Listen::Tcp(_) | Listen::Vsock { .. } => Err(anybody(listen)),
            Listen::Unix(_) => self.check_file(new),
            // Nobody knows yet what it is.
            Listen::Fd(_) => Ok(()),
        }
    }

    /// Refuses a socket file that lets others connect.
    fn check_file(self, new: &NewExport) -> Result<(), ApiError> {
        const FIX: &str = "would let others connect, who act as root, because this daemon is root: leave it out, use \
                           `security_model` mapped-xattr, another user for the daemon, or `clients_may_be_root`";
        // To connect is to write.
        if let Some(mode) = new.socket_mode.filter(|mode| mode.0 & 0o022 != 0) {
            return Err(field("socket_mode", format_args!("{mode} {FIX}")));
        }
        if let Some(owner) = &new.socket_owner
            && ![0, self.uid].contains(&crate::users::user(owner)?)
        {
            return Err(field("socket_owner", format_args!("`{owner}` {FIX}")));
        }
        Ok(())
    }

    /// The same listener for those who may connect.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] for an inherited socket to which anybody may connect.
    pub(crate) fn admit(self, new: &NewExport, listener: StreamListener) -> Result<StreamListener, ApiError> {
        let Some(about) = &new.directory else {
            warn_of_nbd(&new.name, &listener, new.tls.as_ref());
            return Ok(listener);
        };
        let own_alone = self.lends_root(about) && !about.clients_may_be_root;
        if own_alone && !listener.knows_users() {
            return Err(anybody(listener.address()));
        }
        let admission = Admission { user: own_alone.then_some(self.uid), cids: about.client_cids.clone() };
        Ok(listener.admitting(admission))
    }

    /// As [`Server::admit`], for a listener that another program has handed over: it goes on as it was begun.
    pub(crate) fn admit_begun(self, new: &NewExport, listener: StreamListener) -> StreamListener {
        let Some(about) = &new.directory else { return listener };
        // An older program asked for no word of the operator's. Its clients are not cut off; the next start refuses them.
        let asked_for = self.check(new).is_ok() && (about.clients_may_be_root || listener.knows_users());
        let user = match self.lends_root(about) && !about.clients_may_be_root {
            true if asked_for => Some(self.uid),
            true => {
                tracing::warn!(
                    export = new.name,
                    "whoever connects acts as root: say `clients_may_be_root` at the next start"
                );
                None
            }
            false => None,
        };
        listener.admitting(Admission { user, cids: about.client_cids.clone() })
    }
}

/// Says of an address of a disk what it lets others do.
pub(crate) fn warn_of_nbd(export: &str, listener: &StreamListener, tls: Option<&Tls>) {
    if listener.knows_users() {
        return;
    }
    let address = listener.address();
    match tls {
        Some(tls) if tls.clients_may_be_anonymous => {
            tracing::warn!(export, "whoever reaches {address} has the disk, as `tls.clients_may_be_anonymous` says");
        }
        Some(_) => {}
        None => tracing::warn!(
            export,
            "whoever reaches {address} has the disk: NBD asks nobody who they are, and nothing is encrypted without `tls`"
        ),
    }
}

fn anybody(address: &impl std::fmt::Display) -> ApiError {
    field(
        "listen",
        format_args!(
            "{address}: whoever connects would act as root, because 9p asks nobody who they are and this daemon is root: \
             use `security_model` mapped-xattr, another user for the daemon, a unix socket, or `clients_may_be_root`"
        ),
    )
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
