//! The one message that travels from us to the frontend on our own initiative.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{AddressFamily, SendFlags, SocketType, sockopt};
use vhost::vhost_user::message::BackendReq;

use crate::refusal::Refusal;
use crate::wire;

/// Handle by which any thread tells the connected frontend that the device's config space changed.
///
/// Sends VHOST_USER_BACKEND_CONFIG_CHANGE_MSG over the backend channel. Does nothing when the frontend has opened no
/// such channel, or when its session is over.
#[derive(Clone, Debug, Default)]
pub struct ConfigChange(Arc<Mutex<Option<OwnedFd>>>);

impl ConfigChange {
    /// Announces the change. Returns whether a message was sent. Never blocks: a channel that is full holds
    /// announcements that the frontend has not read yet, and reading them makes it read the config space anew.
    pub fn announce(&self) -> bool {
        let channel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(channel) = channel.as_ref() else {
            return false;
        };
        let message = wire::header(BackendReq::CONFIG_CHANGE_MSG.into(), wire::VERSION, 0);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(channel, &message, flags) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!("cannot announce the changed config space to the frontend: {error}");
                false
            }
        }
    }

    /// Takes over the channel that SET_BACKEND_REQ_FD brought.
    pub(crate) fn open(&self, channel: OwnedFd) -> Result<(), Refusal> {
        let family = sockopt::socket_domain(&channel).map_err(|_| Refusal::BackendChannel)?;
        let kind = sockopt::socket_type(&channel).map_err(|_| Refusal::BackendChannel)?;
        if family != AddressFamily::UNIX || kind != SocketType::STREAM {
            return Err(Refusal::BackendChannel);
        }
        self.replace(Some(channel));
        Ok(())
    }

    /// A duplicate of the channel, if there is one.
    pub(crate) fn duplicate(&self) -> io::Result<Option<OwnedFd>> {
        crate::handover::duplicate(self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref())
    }

    /// The session is over.
    pub(crate) fn close(&self) {
        self.replace(None);
    }

    fn replace(&self, channel: Option<OwnedFd>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }
}
