//! `vringd ctl export add`: exports described by a file, or a disk described by options.

use super::disk::{Behind, DiskFlags, Served};
use crate::model::config::NewExport;
use crate::model::{ByteSize, FieldError, Listen, Tls};
use disk::StorageSpec;
use serde::Deserialize;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// How to describe the new export.
#[derive(Debug, Clone, clap::Args)]
pub struct AddArgs {
    /// Read the description from a TOML or JSON file: the fields of one export, or `[[export]]` tables as in the
    /// daemon's configuration file. `-` reads TOML from standard input
    #[arg(long, value_name = "FILE", conflicts_with = "name", required_unless_present = "name")]
    pub file: Option<PathBuf>,

    /// Name of the export
    #[arg(requires = "place")]
    pub name: Option<String>,

    /// Options that describe it.
    #[command(flatten)]
    pub flags: ExportFlags,
}

/// Options that describe an export; the same words as in the configuration file.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(group = clap::ArgGroup::new("place").args(["socket", "listen"]))]
pub struct ExportFlags {
    /// Path at which the vhost-user socket is made
    #[arg(long, value_name = "PATH", requires = "name")]
    pub socket: Option<PathBuf>,

    /// Serve this disk, which is open by itself (`vringd ctl disk add`)
    #[arg(long, value_name = "NAME", conflicts_with = "backing", help_heading = "Storage")]
    pub disk: Option<String>,

    /// The storage of a disk of its own.
    #[command(flatten)]
    pub backing: BackingFlags,

    /// Its device and who serves it.
    #[command(flatten)]
    pub device: DiskFlags,

    /// Share the limits of this group with its other exports
    #[arg(long, value_name = "NAME", help_heading = "Limits")]
    pub limit_group: Option<String>,
}

/// A storage: one option for each kind.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(group = clap::ArgGroup::new("backing").args(["image", "volume", "qcow2", "rbd", "sg", "memory", "null", "sim"]))]
pub struct BackingFlags {
    /// Serve this image or block device
    #[arg(long, value_name = "PATH", help_heading = "Storage")]
    pub image: Option<PathBuf>,

    /// Serve this volume, which `vringd volume create` has made
    #[arg(long, value_name = "PATH", help_heading = "Storage")]
    pub volume: Option<PathBuf>,

    /// Serve this qcow2 image, with its backing files
    #[arg(long, value_name = "PATH", help_heading = "Storage")]
    pub qcow2: Option<PathBuf>,

    /// Serve this image of a Ceph cluster
    #[arg(long, value_name = "POOL/IMAGE[@SNAPSHOT]", help_heading = "Storage")]
    pub rbd: Option<PathBuf>,

    /// Pass this SCSI device of the host through, /dev/sg*
    #[arg(long, value_name = "PATH", help_heading = "Storage")]
    pub sg: Option<PathBuf>,

    /// Serve this much anonymous memory
    #[arg(long, value_name = "SIZE", help_heading = "Storage")]
    pub memory: Option<ByteSize>,

    /// Serve a disk of this size that drops writes
    #[arg(long, value_name = "SIZE", help_heading = "Storage")]
    pub null: Option<ByteSize>,

    /// Serve a modelled device of this size
    #[arg(long, value_name = "SIZE", help_heading = "Storage")]
    pub sim: Option<ByteSize>,
}

/// Why there is no description. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum DescriptionError {
    /// cannot read {path}: {source}
    Read {
        /// The file.
        path: PathBuf,
        /// How the system answered.
        source: io::Error,
    },
    /// {path}: {message}
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// {path}: export `{name}`: {source}
    File {
        /// The file.
        path: PathBuf,
        /// The export.
        name: String,
        /// The field at fault.
        source: FieldError,
    },
    /// {0}
    Options(FieldError),
}

impl AddArgs {
    /// The exports that are described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the file and the field.
    pub fn exports(&self) -> Result<Vec<NewExport>, DescriptionError> {
        if let Some(path) = &self.file {
            // The argument parser cannot tell whether any option was given where some are nested.
            if self.flags != ExportFlags::default() {
                let message = "describes exports as a whole: give no other options with it";
                return Err(DescriptionError::Options(FieldError::new("--file", message)));
            }
            let mut exports = read(path)?;
            for new in &mut exports {
                let fault =
                    |source, name: &str| DescriptionError::File { path: path.clone(), name: name.into(), source };
                new.check().map_err(|source| fault(source, &new.name))?;
                make_absolute(new).map_err(|source| fault(source, &new.name))?;
            }
            return Ok(exports);
        }
        // The argument parser has seen to it that there is one.
        let Some(name) = &self.name else {
            let message = "is missing: give a name and options, or --file";
            return Err(DescriptionError::Options(FieldError::new("name", message)));
        };
        let mut new = self.flags.describe(name).map_err(DescriptionError::Options)?;
        new.check().map_err(DescriptionError::Options)?;
        make_absolute(&mut new).map_err(DescriptionError::Options)?;
        Ok(vec![new])
    }
}

impl ExportFlags {
    /// The description as one value, not yet checked.
    ///
    /// # Errors
    /// A [`FieldError`] for `storage` when no storage was chosen, or for an option that it would ignore.
    pub fn describe(&self, name: &str) -> Result<NewExport, FieldError> {
        let behind = match &self.disk {
            Some(disk) => Behind::Disk(disk.clone()),
            None => Behind::Storage(self.backing.served()?),
        };
        self.device.clone().describe(name.to_owned(), self.socket.clone(), behind, self.limit_group.clone())
    }
}

impl BackingFlags {
    /// The kind that was chosen.
    ///
    /// # Errors
    /// None was.
    pub(super) fn served(&self) -> Result<Served, FieldError> {
        let found = |kind: &str, path: &Option<PathBuf>, path_option| {
            path.clone().map(|path| Served {
                kind: kind.into(),
                kind_option: "storage",
                path: Some(path),
                path_option,
                ..Served::default()
            })
        };
        let made = |kind: &str, size: Option<ByteSize>| {
            size.map(|size| Served { kind: kind.into(), kind_option: "storage", size: Some(size), ..Served::default() })
        };
        let message = "is missing: give --image, --volume, --qcow2, --rbd, --sg, --memory, --null or --sim";
        found("file", &self.image, "--image")
            .or_else(|| found("volume", &self.volume, "--volume"))
            .or_else(|| found("qcow2", &self.qcow2, "--qcow2"))
            .or_else(|| found("rbd", &self.rbd, "--rbd"))
            .or_else(|| found("sg", &self.sg, "--sg"))
            .or_else(|| made("memory", self.memory))
            .or_else(|| made("null", self.null))
            .or_else(|| made("sim", self.sim))
            .ok_or_else(|| FieldError::new("storage", message))
    }
}

/// `[[export]]` tables, as in the daemon's configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    export: Vec<NewExport>,
}

fn read(path: &Path) -> Result<Vec<NewExport>, DescriptionError> {
    let unreadable = |source| DescriptionError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_to_string(&mut text).map_err(unreadable)?;
    } else {
        text = std::fs::read_to_string(path).map_err(unreadable)?;
    }
    let parsed = if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map(|new| vec![new]).map_err(|error| error.to_string())
    } else {
        parse_toml(&text).map_err(|error| error.to_string().trim_end().to_owned())
    };
    parsed.map_err(|message| DescriptionError::Parse { path: path.to_owned(), message })
}

fn parse_toml(text: &str) -> Result<Vec<NewExport>, toml::de::Error> {
    let tables = text.parse::<toml::Table>()?.contains_key("export");
    if tables { toml::from_str::<Tables>(text).map(|tables| tables.export) } else { Ok(vec![toml::from_str(text)?]) }
}

/// The daemon has a working directory of its own: a relative path means the one of this command.
pub(super) fn make_absolute(new: &mut NewExport) -> Result<(), FieldError> {
    if let Some(socket) = &mut new.socket {
        absolute("socket", socket)?;
    }
    if let Some(Listen::Unix(path)) = &mut new.listen {
        absolute("listen", path)?;
    }
    if let Some(tls) = &mut new.tls {
        absolute(Tls::CERTIFICATES, &mut tls.certificates)?;
    }
    if let Some(directory) = &mut new.directory {
        absolute("directory.path", &mut directory.path)?;
    }
    new.storage.as_mut().map_or(Ok(()), make_storage_absolute)
}

/// As [`make_absolute`], for what stands behind a disk.
pub(super) fn make_storage_absolute(storage: &mut StorageSpec) -> Result<(), FieldError> {
    storage.paths().into_iter().try_for_each(|(field, path)| absolute(field, path))
}

/// Makes the path in `field` absolute.
pub(super) fn absolute(field: &str, path: &mut PathBuf) -> Result<(), FieldError> {
    *path = std::path::absolute(&*path).map_err(|error| FieldError::new(field, error))?;
    Ok(())
}
