//! Where an export is reached: a vhost-user socket that is made or inherited, or an address where clients of NBD or 9p connect.

use super::config::{ExportKind, NewExport};
use super::p9::Protocol;
use std::path::Path;
use values::FieldError;
use values::Listen;

/// Why there is no socket for NBD clients of a storage that is migratable.
pub const NO_NBD: &str =
    "is for NBD clients, who do not migrate: leave out `migratable` (`--migratable`) of the storage";

/// Why a descriptor cannot be a socket for clients.
const STANDARD_STREAMS: &str = "must be 3 or more: 0, 1 and 2 are the standard streams";

impl NewExport {
    /// The path at which a socket is made: vhost-user's, or that of a stream.
    pub fn socket_path(&self) -> Option<&Path> {
        self.socket.as_deref().or_else(|| self.listen.as_ref()?.path())
    }

    /// The field that [`NewExport::socket_path`] comes from.
    pub fn socket_field(&self) -> &'static str {
        if self.listen.is_some() { "listen" } else { "socket" }
    }

    pub(super) fn check_socket(&self) -> Result<(), FieldError> {
        self.check_tls()?;
        if self.listen.is_some() {
            return self.check_listen();
        }
        if self.directory.as_ref().is_some_and(|directory| directory.clients_may_be_root) {
            let message = "is for clients that `listen` waits for: leave it out";
            return Err(FieldError::new("directory.clients_may_be_root", message));
        }
        self.refuse_cids()?;
        match (&self.socket, self.socket_fd) {
            (None, None) => {
                let message = match self.directory.as_ref().map(|directory| directory.protocol) {
                    Some(Protocol::Virtiofs) => "is missing: give the path of the vhost-user socket",
                    _ => "is missing: give the path of the vhost-user socket, or an address to `listen`",
                };
                return Err(FieldError::new("socket", message));
            }
            (Some(_), Some(_)) => {
                return Err(FieldError::new("socket_fd", "excludes `socket`: give one of the two"));
            }
            (None, Some(fd)) if fd < 3 => {
                return Err(FieldError::new("socket_fd", STANDARD_STREAMS));
            }
            (None, Some(_)) => {
                self.refuse_of_files("only goes with `socket`, not with an inherited descriptor")?;
            }
            (Some(path), None) => {
                let length = path.as_os_str().len();
                if length == 0 || length > values::SOCKET_PATH_BYTES_MAX {
                    let most = values::SOCKET_PATH_BYTES_MAX;
                    return Err(FieldError::new(
                        "socket",
                        format_args!("must be 1 to {most} bytes long, not {length}"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_listen(&self) -> Result<(), FieldError> {
        if self.socket.is_some() || self.socket_fd.is_some() {
            return Err(FieldError::new("listen", "excludes a vhost-user socket: give one of the two"));
        }
        if self.kind == ExportKind::Scsi {
            return Err(FieldError::new("listen", "is for NBD and 9p: a SCSI device has a vhost-user `socket`"));
        }
        if self.kind == ExportKind::Dir
            && self.directory.as_ref().is_none_or(|directory| directory.protocol != Protocol::P9)
        {
            let message = "is for disks and for directories over 9p (`protocol = \"9p\"`): give `socket`";
            return Err(FieldError::new("listen", message));
        }
        if self.storage.as_ref().is_some_and(|storage| storage.migratable().is_some()) {
            return Err(FieldError::new("listen", NO_NBD));
        }
        if self.serial.is_some() {
            return Err(FieldError::new("serial", "is for vhost-user: NBD clients see the export's name"));
        }
        if matches!(self.listen, Some(Listen::Fd(number)) if number < 3) {
            return Err(FieldError::new("listen", STANDARD_STREAMS));
        }
        if !matches!(self.listen, Some(Listen::Unix(_))) {
            self.refuse_of_files("only goes with a unix socket: leave it out")?;
        }
        if !matches!(self.listen, Some(Listen::Vsock { .. } | Listen::Fd(_))) {
            self.refuse_cids()?;
        }
        if self.queue_size.is_some() {
            return Err(FieldError::new("queue_size", "is for vhost-user: a stream has no descriptors"));
        }
        if self.directory.as_ref().is_some_and(|directory| directory.tag.is_some()) {
            return Err(FieldError::new("directory.tag", "is for vhost-user: a stream is mounted by its address"));
        }
        Ok(())
    }

    fn check_tls(&self) -> Result<(), FieldError> {
        let Some(tls) = &self.tls else { return Ok(()) };
        if self.kind != ExportKind::Disk {
            return Err(FieldError::new("tls", "is for disks over NBD: directories are served without"));
        }
        if self.listen.is_none() {
            return Err(FieldError::new("tls", "is for NBD clients, and goes with `listen`: vhost-user has none"));
        }
        tls.check()
    }

    fn refuse_cids(&self) -> Result<(), FieldError> {
        match &self.directory {
            Some(directory) if !directory.client_cids.is_empty() => {
                let message = "only goes with `listen` on a vsock: leave it out";
                Err(FieldError::new("directory.client_cids", message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what only a socket has that is made at a path.
    fn refuse_of_files(&self, message: &str) -> Result<(), FieldError> {
        let of_files = [
            ("socket_mode", self.socket_mode.is_some()),
            ("socket_owner", self.socket_owner.is_some()),
            ("socket_group", self.socket_group.is_some()),
        ];
        match of_files.iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(FieldError::new(*field, message)),
            None => Ok(()),
        }
    }
}
