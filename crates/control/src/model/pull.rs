//! Pulls: disks as they are at one moment, which backup programs read over NBD while guests go on.

use super::bitmap::check_bitmap_name;
use super::job::{CopyDisk, CopyFormat};
use super::name::check_name;
use super::snapshot::check_path;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;
use values::{FieldError, Listen, Tls};

/// A pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPull {
    /// The disks, all at the same moment: at least one, each once.
    pub disks: Vec<PullDisk>,
    /// Absolute path of the directory in which what guests write over is kept, in a file without a name; `/var/tmp` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub scratch: Option<PathBuf>,
    /// NBD clients have to begin TLS, and are told nothing before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// A disk, and where NBD clients read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullDisk {
    /// Name of the disk, which is that of the NBD export.
    pub disk: String,
    /// Where NBD clients connect: a unix socket that is made for it, with mode 0600, a TCP or a vsock port.
    pub listen: Listen,
    /// Name of a dirty bitmap, 1 to 1023 bytes, which clients find as `qemu:dirty-bitmap:NAME`: what was written since the last
    /// backup with it. One that the disk does not have yet is begun, and everything is dirty. For qcow2 disks only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bitmap: Option<String>,
}

impl NewPull {
    /// Where what guests write over is kept, if nobody says.
    pub const SCRATCH: &str = "/var/tmp";

    /// The disks, each with the address as its target. There is no file whose format would have to leave out what has not changed.
    pub(super) fn copies(&self) -> Vec<CopyDisk> {
        let copy = |PullDisk { disk, listen, bitmap }: &PullDisk| CopyDisk {
            disk: disk.clone(),
            target: PathBuf::from(listen.to_string()),
            format: CopyFormat::Qcow2,
            force: false,
            bitmap: bitmap.clone(),
            backing: None,
        };
        self.disks.iter().map(copy).collect()
    }

    /// The directory in which what guests write over is kept.
    pub fn scratch(&self) -> PathBuf {
        self.scratch.clone().unwrap_or_else(|| PathBuf::from(Self::SCRATCH))
    }

    /// Checks every field.
    pub(super) fn check(&self) -> Result<(), FieldError> {
        for (index, PullDisk { disk, listen, bitmap }) in self.disks.iter().enumerate() {
            let place = |field: &str| format!("disks[{index}].{field}");
            check_name(&place("disk"), disk)?;
            let before = self.disks.get(..index).unwrap_or_default();
            if before.iter().any(|other| other.disk == *disk) {
                return Err(FieldError::new(place("disk"), format_args!("`{disk}` is in the list already")));
            }
            bitmap.as_deref().map_or(Ok(()), |bitmap| check_bitmap_name(&place("bitmap"), bitmap))?;
            match listen {
                Listen::Unix(path) => check_path(&place("listen"), path)?,
                Listen::Fd(_) => {
                    let message = "must be an address of its own: unix:PATH, tcp:IP:PORT or vsock:PORT";
                    return Err(FieldError::new(place("listen"), message));
                }
                // The kernel gives each another one.
                Listen::Tcp(address) if address.port() == 0 => continue,
                Listen::Tcp(_) | Listen::Vsock { .. } => {}
            }
            if let Some(other) = before.iter().find(|other| other.listen == *listen) {
                let message =
                    format_args!("{listen} is that of `{}` already: give each disk one of its own", other.disk);
                return Err(FieldError::new(place("listen"), message));
            }
        }
        if self.disks.is_empty() {
            return Err(FieldError::new("disks", "must name at least one disk"));
        }
        self.tls.as_ref().map_or(Ok(()), Tls::check)?;
        self.scratch.as_deref().map_or(Ok(()), |scratch| check_path("scratch", scratch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(text: &str) -> NewPull {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_disk_and_an_address_are_enough() {
        let new =
            pull(r#"{"disks": [{"disk": "db", "listen": "unix:/run/db"}, {"disk": "log", "listen": "tcp:10809"}]}"#);
        new.check().unwrap();
        assert_eq!(new.scratch(), PathBuf::from("/var/tmp"));
        assert_eq!(serde_json::from_str::<NewPull>(&serde_json::to_string(&new).unwrap()).unwrap(), new);
        let targets: Vec<_> = new.copies().into_iter().map(|copy| copy.target).collect();
        assert_eq!(targets, [PathBuf::from("unix:/run/db"), PathBuf::from("tcp:127.0.0.1:10809")]);
        // Two of any port are two ports.
        pull(r#"{"disks": [{"disk": "a", "listen": "tcp:0"}, {"disk": "b", "listen": "tcp:0"}]}"#).check().unwrap();
    }

    #[test]
    fn every_bad_field_is_named() {
        let fault = |disks: &str, more: &str| {
            pull(&format!(r#"{{"disks": [{disks}]{more}}}"#)).check().expect_err(disks).to_string()
        };
        let a = r#"{"disk": "a", "listen": "unix:/a"}"#;
        for (disks, begin) in [
            (String::new(), "disks: must name at least one"),
            (r#"{"disk": "", "listen": "unix:/a"}"#.to_owned(), "disks[0].disk: must be 1 to 64"),
            (r#"{"disk": "a", "listen": "unix:a"}"#.to_owned(), "disks[0].listen: must be an absolute path"),
            (r#"{"disk": "a", "listen": "fd:3"}"#.to_owned(), "disks[0].listen: must be an address of its own"),
            (format!("{a}, {a}"), "disks[1].disk: `a` is in the list already"),
            (
                format!(r#"{a}, {{"disk": "b", "listen": "unix:/a"}}"#),
                "disks[1].listen: unix:/a is that of `a` already: give each disk one of its own",
            ),
            (r#"{"disk": "a", "listen": "tcp:0", "bitmap": ""}"#.to_owned(), "disks[0].bitmap: must be 1 to 1023"),
        ] {
            let said = fault(&disks, "");
            assert!(said.starts_with(begin), "{said}");
        }
        assert!(fault(a, r#", "scratch": "tmp""#).starts_with("scratch: must be an absolute path"));
        assert!(fault(a, r#", "tls": {"certificates": ""}"#).starts_with("tls.certificates: is empty"));
        assert!(serde_json::from_str::<NewPull>(r#"{"disks": [], "limit": "1M"}"#).is_err());
    }
}
