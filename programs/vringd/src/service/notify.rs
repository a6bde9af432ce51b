//! The way to the service manager: a datagram socket, connected once, so that it works from inside a sandbox too.

use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Names the manager's socket (sd_notify(3)).
const VARIABLE: &str = "NOTIFY_SOCKET";
/// A manager that does not read must not stop us.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who hears how we are.
#[derive(Debug)]
pub(super) struct Manager {
    socket: Option<UnixDatagram>,
}

impl Manager {
    /// The manager that the environment names, if it names one that can be reached.
    pub(super) fn connect() -> Manager {
        let Some(place) = std::env::var_os(VARIABLE).filter(|place| !place.is_empty()) else {
            return Manager { socket: None };
        };
        match open(&place) {
            Ok(socket) => Manager { socket: Some(socket) },
            Err(error) => {
                tracing::warn!(socket = %place.display(), %error, "the service manager cannot be told how we are");
                Manager { socket: None }
            }
        }
    }

    /// Tells it. That it did not hear is logged, and nothing else: it draws its own conclusions.
    pub(super) fn say(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let lines: Vec<String> = states.iter().map(|state| line(&state.to_string())).collect();
        if let Err(error) = socket.send(lines.join("\n").as_bytes()) {
            tracing::warn!(%error, "the service manager did not hear {}", lines.join(", "));
        }
    }
}

/// A line of its own, whatever is in it: an export's reason may quote what others wrote.
fn line(state: &str) -> String {
    state.replace(['\n', '\r'], " ")
}

fn open(place: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    match place.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(place)?,
    }
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("notify");
        let manager = UnixDatagram::bind(&place).unwrap();
        let ours = Manager { socket: Some(open(place.as_os_str()).unwrap()) };
        // Its path may go: the way is open.
        std::fs::remove_file(&place).unwrap();
        ours.say(&[NotifyState::Ready, NotifyState::Status("one\nREADY=0")]);
        let mut heard = [0; 256];
        let length = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1\nSTATUS=one READY=0");
    }

    #[test]
    fn a_name_without_a_file_is_found() {
        let name = format!("vringd-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        open(OsStr::new(&format!("@{name}"))).unwrap().send(b"x").unwrap();
        assert_eq!(manager.recv(&mut [0; 8]).unwrap(), 1);
        assert!(open(OsStr::new("/nonexistent/notify")).is_err());
    }
}
