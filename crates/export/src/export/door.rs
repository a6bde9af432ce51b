//! Where clients come in: a vhost-user socket with one frontend at a time, or a stream's with many clients.

use super::Served;
use crate::stream::{Clients, StreamListener, serve};
use crate::target::ExportTarget;
use crate::{ExportError, Socket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use vhost_user::{Endpoint, Handover, Resume, StopFd};

pub(super) enum Door {
    Frontend(Endpoint),
    Stream(StreamListener, Arc<dyn Clients>),
}

impl Door {
    /// Binds what is not bound yet. Returns how the socket is shown, too.
    ///
    /// # Errors
    /// A socket that cannot be bound, or a stream's for something else than 9P.
    pub(super) fn open(socket: Socket, served: &Served) -> Result<(Door, String), ExportError> {
        let endpoint = match socket {
            Socket::Path { path, options } => Endpoint::bind(&path, &options)?,
            Socket::Fd(fd) => Endpoint::from_fd(fd)?,
            Socket::Bound(endpoint) => endpoint,
            Socket::Stream(listener) => {
                let clients: Arc<dyn Clients> = match served {
                    Served::P9(p9) => p9.clone(),
                    Served::Disk(disk) => disk.clone(),
                    Served::Directory(_) | Served::Scsi(_) => return Err(ExportError::NoStream),
                };
                let shown = listener.to_string();
                return Ok((Door::Stream(listener, clients), shown));
            }
        };
        let number = endpoint.as_fd().as_raw_fd();
        let shown = endpoint.path().map_or_else(|| format!("fd {number}"), |path| path.display().to_string());
        Ok((Door::Frontend(endpoint), shown))
    }

    /// Serves whoever comes in until `stop` is signalled.
    pub(super) fn serve(self, target: &mut ExportTarget, stop: &StopFd, handover: &Handover, resume: Option<Resume>) {
        match self {
            Door::Frontend(endpoint) => vhost_user::serve_on(endpoint, target, stop, handover, resume),
            Door::Stream(listener, clients) => serve(listener, target, &*clients, (stop, handover)),
        }
    }
}
