//! `vringd ctl disk pull`: its arguments.

use super::add::{DescriptionError, absolute};
use super::tls::TlsFlags;
use crate::model::{Listen, NewJob, NewPull, PullDisk, Tls};
use std::path::PathBuf;
use std::str::FromStr;

/// A disk and an address, as in `db=unix:/run/db.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskListen {
    /// Name of the disk.
    pub disk: String,
    /// The address.
    pub listen: Listen,
}

impl FromStr for DiskListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((disk, listen)) if !disk.is_empty() => {
                let listen = listen.parse().map_err(|error: values::ParseError| error.to_string())?;
                Ok(Self { disk: disk.to_owned(), listen })
            }
            _ => Err("must be the name of a disk, `=` and an address, as in db=unix:/run/db.sock".to_owned()),
        }
    }
}

/// What is read where.
#[derive(Debug, Clone, clap::Args)]
pub struct PullArgs {
    /// Disks, each with the address at which NBD clients read it, as in db=unix:/run/db.sock.
    #[arg(required = true, value_name = "DISK=ADDRESS")]
    pub disks: Vec<DiskListen>,

    /// Tell clients what was written since the last backup with this dirty bitmap; before the first one, everything.
    #[arg(long, value_name = "NAME")]
    pub bitmap: Option<String>,

    /// Directory with room for what guests write over meanwhile [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,

    /// What protects what clients say.
    #[command(flatten)]
    pub tls: TlsFlags,
}

impl PullArgs {
    /// The job that is described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the field.
    pub fn job(&self) -> Result<NewJob, DescriptionError> {
        let describe = || {
            let mut disks = Vec::with_capacity(self.disks.len());
            for DiskListen { disk, listen } in self.disks.clone() {
                let mut listen = listen;
                if let Listen::Unix(path) = &mut listen {
                    absolute("listen", path)?;
                }
                disks.push(PullDisk { disk, listen, bitmap: self.bitmap.clone() });
            }
            let mut scratch = self.scratch.clone();
            scratch.as_mut().map_or(Ok(()), |scratch| absolute("scratch", scratch))?;
            let mut tls = self.tls.tls();
            tls.as_mut().map_or(Ok(()), |tls| absolute(Tls::CERTIFICATES, &mut tls.certificates))?;
            let new = NewJob::Pull(NewPull { disks, scratch, tls });
            new.check()?;
            Ok(new)
        };
        describe().map_err(DescriptionError::Options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_read() {
        let read = |text: &str| text.parse::<DiskListen>();
        let listen = Listen::Unix("/run/a=b".into());
        assert_eq!(read("db=unix:/run/a=b"), Ok(DiskListen { disk: "db".into(), listen }));
        for wrong in ["db", "=unix:/a", ""] {
            assert!(read(wrong).unwrap_err().starts_with("must be the name of a disk"), "{wrong}");
        }
        assert!(read("db=/run/db.sock").unwrap_err().contains("unix:PATH"));
    }
}
