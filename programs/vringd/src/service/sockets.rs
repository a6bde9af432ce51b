//! Sockets that the service manager made for us, so that frontends can connect before we run (sd_listen_fds(3)).

use crate::failure::Failure;
use control::model::{Listen, NewExport};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The name of the control socket among them.
pub(crate) const CONTROL: &str = "control";

/// Descriptors from 3 on, each with its name (FileDescriptorName= in the socket's unit).
#[derive(Debug, Default)]
pub(crate) struct Sockets(Vec<(RawFd, String)>);

impl Sockets {
    /// What the environment says is ours.
    ///
    /// # Errors
    /// [`Failure::Usage`] when it says so in a way that cannot be understood.
    pub(crate) fn inherited() -> Result<Sockets, Failure> {
        let named = sd_notify::listen_fds_with_names().map_err(|error| {
            Failure::Usage(format!("LISTEN_FDS: {error}: pass descriptors from 3 on, and a name for each"))
        })?;
        Ok(Sockets(named.collect()))
    }

    /// Gives each export its socket, by name, in place of the path it has; where there is only one export (`alone`), that one
    /// gets the one that is left, whatever its name. Returns the descriptor of the control socket.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a descriptor that nobody wants, or that two want.
    pub(crate) fn give(self, exports: &mut [NewExport], alone: bool) -> Result<Option<RawFd>, Failure> {
        let mut control = None;
        for (fd, name) in self.0 {
            let refuse = |why: &str| Err(Failure::Usage(format!("inherited descriptor {fd}, `{name}`: {why}")));
            if name == CONTROL {
                if control.replace(fd).is_some() {
                    return refuse("is the second one of this name: pass one control socket");
                }
                continue;
            }
            let wanted = exports.iter_mut().find(|export| alone || export.name == name);
            let Some(export) = wanted else {
                return refuse(
                    "no export has this name: set FileDescriptorName= to that of an export, or to `control`",
                );
            };
            if export.socket_fd.is_some() || matches!(export.listen, Some(Listen::Fd(_))) {
                return refuse(
                    "its export has a descriptor already: pass one socket an export, and no `socket_fd` beside it",
                );
            }
            match &mut export.listen {
                Some(address) => *address = Listen::Fd(fd),
                None => export.socket_fd = Some(fd),
            }
            // Whoever made the socket has seen to these.
            (export.socket, export.socket_mode) = (None, None);
            (export.socket_owner, export.socket_group) = (None, None);
        }
        Ok(control)
    }
}

/// Asks about a descriptor by its number, whether it is open or not.
pub(crate) fn look_at<T>(
    number: RawFd,
    look: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: asking about a descriptor is harmless for any number but -1, and whoever asks does no more.
    look(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Whether there is a descriptor of this number.
pub(crate) fn is_open(number: RawFd) -> bool {
    look_at(number, |fd| rustix::io::fcntl_getfd(fd)).is_ok()
}

/// Takes over a descriptor that somebody has left open for us under this number. `None` when there is none.
pub(crate) fn take_descriptor(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the descriptor is open, and whoever started us hands it over by naming it; names are taken once.
    is_open(number).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, more: &str) -> NewExport {
        let text = format!("name = '{name}'\nstorage = {{ kind = 'null', size = '1M' }}\n{more}");
        toml::from_str(&text).unwrap()
    }

    fn sockets(named: &[(RawFd, &str)]) -> Sockets {
        Sockets(named.iter().map(|(fd, name)| (*fd, (*name).to_owned())).collect())
    }

    #[test]
    fn each_export_gets_the_socket_of_its_name() {
        let mut exports = [
            export("a", "socket = '/run/a'\nsocket_mode = '0660'\nsocket_owner = 'root'\nsocket_group = 'kvm'"),
            export("b", "socket = '/run/b'"),
            export("c", ""),
        ];
        let control = sockets(&[(3, "c"), (4, "control"), (5, "a")]).give(&mut exports, false).unwrap();
        assert_eq!(control, Some(4));
        assert_eq!(exports.each_ref().map(|export| export.socket_fd), [Some(5), None, Some(3)]);
        assert_eq!(exports.each_ref().map(|export| export.socket.is_some()), [false, true, false]);
        for export in &exports {
            export.check().unwrap();
        }
    }

    #[test]
    fn a_stream_listens_on_the_socket_of_its_name() {
        let text = "name = 'p9'\nkind = 'dir'\nlisten = 'tcp:5640'\ndirectory = { path = '/srv', protocol = '9p' }";
        let mut exports: [NewExport; 1] = [toml::from_str(text).unwrap()];
        sockets(&[(3, "p9")]).give(&mut exports, false).unwrap();
        assert_eq!((&exports[0].listen, exports[0].socket_fd), (&Some(Listen::Fd(3)), None));
        exports[0].check().unwrap();
        let line = sockets(&[(4, "p9")]).give(&mut exports, false).unwrap_err().to_string();
        assert!(line.contains("has a descriptor already"), "{line}");
    }

    #[test]
    fn the_only_export_takes_any_name() {
        let mut exports = [export("disk", "")];
        assert_eq!(sockets(&[(3, "vringd@root.socket")]).give(&mut exports, true).unwrap(), None);
        assert_eq!(exports[0].socket_fd, Some(3));
    }

    #[test]
    fn what_nobody_wants_is_refused_by_number_and_name() {
        let refused = |named: &[(RawFd, &str)], alone| {
            let mut exports = [export("a", "")];
            let line = sockets(named).give(&mut exports, alone).unwrap_err().to_string();
            assert!(!line.contains('\n'), "{line}");
            line
        };
        assert!(refused(&[(3, "z")], false).starts_with("inherited descriptor 3, `z`: no export"));
        assert!(refused(&[(3, "a"), (4, "a")], false).starts_with("inherited descriptor 4, `a`: its export has"));
        assert!(refused(&[(3, "x"), (4, "y")], true).starts_with("inherited descriptor 4, `y`: its export has"));
        assert!(refused(&[(3, "control"), (4, "control")], false).contains("second"));
    }
}
