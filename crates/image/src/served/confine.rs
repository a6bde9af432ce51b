//! Which other files an image may lead to.
//!
//! What an image says is no more trustworthy than whoever wrote it, and the process that opens it may read every file of the host. So
//! backing files and external data files are regular files in the image's own directory, or in one that a person allows; block devices
//! are allowed one by one. Places are compared without symbolic links, and opened without any: one that appears meanwhile leads nowhere.

use super::Qcow2Options;
use super::error::ImageError;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// See the top.
pub(crate) struct Confines {
    image: PathBuf,
    /// The image's directory.
    own: Option<PathBuf>,
    /// Directories and devices.
    allowed: Vec<PathBuf>,
}

impl Confines {
    pub(super) fn of(options: &Qcow2Options) -> Confines {
        Confines::new(&options.path, &options.allow)
    }

    /// Of the image at `image`: its own directory, and what a person allows.
    pub(crate) fn new(image: &Path, allow: &[PathBuf]) -> Confines {
        // What is not there allows nothing.
        let allowed = allow.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
        Confines { image: image.to_owned(), own: own_directory(image), allowed }
    }

    /// Where a file that the image leads to really is, if it may be used. Nothing is opened.
    pub(crate) fn admit(&self, path: &Path) -> Result<PathBuf, ImageError> {
        let failed = |source| ImageError::Look { image: self.image.clone(), path: path.to_owned(), source };
        let real = std::fs::canonicalize(path).map_err(failed)?;
        let kind = std::fs::symlink_metadata(&real).map_err(failed)?.file_type();
        let (image, is_device) = (self.image.clone(), kind.is_block_device());
        if !self.allows(&real, is_device) {
            let directory = real.parent().unwrap_or(&real).to_owned();
            return Err(match is_device {
                true => ImageError::Device { image, path: real },
                false => ImageError::Outside { image, path: real, directory },
            });
        }
        if kind.is_file() || is_device { Ok(real) } else { Err(ImageError::NoFile { image, path: real }) }
    }

    /// Whether something may be at this place, which has no symbolic links: of devices none but those that are named.
    pub(super) fn allows(&self, real: &Path, is_device: bool) -> bool {
        match is_device {
            true => self.allowed.iter().any(|allowed| allowed == real),
            false => self.allowed.iter().chain(&self.own).any(|directory| real.starts_with(directory)),
        }
    }
}

impl Qcow2Options {
    /// Options of an image to which this one leads: what is behind that may lie where it may for this one.
    pub(crate) fn behind(&self, path: PathBuf) -> Qcow2Options {
        let allow = self.allow.iter().cloned().chain(own_directory(&self.path)).collect();
        Qcow2Options { allow, ..Qcow2Options::new(path) }
    }
}

/// The directory of an image, unless it is a device: the directory of those is everybody's.
fn own_directory(image: &Path) -> Option<PathBuf> {
    if std::fs::metadata(image).is_ok_and(|it| it.file_type().is_block_device()) {
        return None;
    }
    let directory = image.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::canonicalize(directory.unwrap_or(Path::new("."))).ok()
}

/// Opens a regular file or block device to read it, and waits for nobody.
pub(super) fn open_to_look(path: &Path) -> Option<File> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
}
