//! A new image, over a backing file or not.

use super::file::{Image, ToolError};
use crate::new::New;
use crate::uses::Source;
use crate::{features, reference};
use rustix::fs::FileType;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use storage::kit::ImageLock;

/// What a new image reads as where nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file, as the image is to name it: a relative path is relative to the image's directory.
    pub name: PathBuf,
    /// It is a qcow2 image, and no raw one.
    pub is_qcow2: bool,
}

/// What a new image is to be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Size of the disk, in bytes; that of the backing file when left out.
    pub size_bytes: Option<u64>,
    /// Bytes of a cluster: a power of two, 512 to 2 MiB.
    pub cluster_bytes: u64,
    /// Bits of a refcount: a power of two, 1 to 64.
    pub refcount_bits: u32,
    /// Clusters have 32 subclusters, which are copied and allocated one by one.
    pub subclusters: bool,
    /// What is behind it.
    pub backing: Option<Backing>,
    /// An existing file or device is written over.
    pub force: bool,
}

/// Makes an image in which nothing is allocated. A file that was made is removed after an error.
///
/// # Errors
/// What cannot be made, with the reason; a backing file that cannot be read.
pub fn create(path: &Path, options: &CreateOptions) -> Result<(), ToolError> {
    let new = new(path, options)?;
    let bytes = new.image().map_err(|reason| ToolError::refused(path, reason))?;
    let (file, is_made) = target(path, options.force)?;
    let written = write(path, &file, &bytes);
    if written.is_err() && is_made {
        // The error is what counts.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn new(path: &Path, options: &CreateOptions) -> Result<New, ToolError> {
    let refuse = |reason: &str| Err(ToolError::refused(path, reason));
    if !options.cluster_bytes.is_power_of_two() || !(512..=2 << 20).contains(&options.cluster_bytes) {
        return refuse("clusters have 512 bytes to 2 MiB, and a power of two of them");
    }
    if !options.refcount_bits.is_power_of_two() || options.refcount_bits > 64 {
        return refuse("a refcount has 1, 2, 4, 8, 16, 32 or 64 bits");
    }
    if options.subclusters && options.cluster_bytes < 16 << 10 {
        return refuse("subclusters need clusters of 16 KiB at least");
    }
    let backing = options.backing.as_ref().map(|backing| behind(path, backing)).transpose()?;
    let Some(size_bytes) = options.size_bytes.or(backing.as_ref().map(|(_, size_bytes)| *size_bytes)) else {
        return refuse("a size is needed, or a backing file that has one");
    };
    if !(512..1 << 63).contains(&size_bytes) {
        return refuse("a disk has one sector of 512 bytes at least, and less than 8 EiB");
    }
    Ok(New {
        version: 3,
        cluster_bits: options.cluster_bytes.ilog2(),
        refcount_order: options.refcount_bits.ilog2(),
        size_bytes: size_bytes.next_multiple_of(512),
        incompatible: if options.subclusters { features::EXTENDED_L2 } else { 0 },
        backing: backing.map(|(backing, _)| backing),
        ..New::default()
    })
}

/// The backing file as it is written down, and its size.
fn behind(image: &Path, backing: &Backing) -> Result<((Vec<u8>, &'static str), u64), ToolError> {
    let name = backing.name.as_os_str().as_bytes().to_vec();
    let refused = |reason: String| ToolError::refused(image, format!("its backing file: {reason}"));
    if name.is_empty() || name.len() > 1023 {
        return Err(refused("a name has 1 to 1023 bytes".to_owned()));
    }
    let found = reference::read(&name, image).map_err(|error| refused(error.to_string()))?;
    let mut file = Image::open(&found.path, false)?;
    if !backing.is_qcow2 {
        return Ok(((name, "raw"), file.len_bytes()));
    }
    Ok(((name, "qcow2"), file.header()?.size_bytes))
}

/// The file to write, and whether it was made.
fn target(path: &Path, force: bool) -> Result<(File, bool), ToolError> {
    let made = File::options().read(true).write(true).create_new(true).open(path);
    match made {
        Ok(file) => return Ok((file, true)),
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(ToolError::io(path, "make the file")(error));
        }
        Err(_) if !force => return Err(ToolError::refused(path, "is there already: --force writes over it")),
        Err(_) => {}
    }
    Ok((Image::open(path, true)?.file, false))
}

fn write(path: &Path, file: &File, bytes: &[u8]) -> Result<(), ToolError> {
    let _lock = ImageLock::take(path, file, true)?;
    let about = rustix::fs::fstat(file).map_err(|errno| ToolError::io(path, "measure")(errno.into()))?;
    if FileType::from_raw_mode(about.st_mode) == FileType::RegularFile {
        file.set_len(0).map_err(ToolError::io(path, "empty"))?;
    }
    file.write_all_at(bytes, 0).map_err(ToolError::io(path, "write"))?;
    file.sync_all().map_err(ToolError::io(path, "flush"))?;
    // A power cut does not forget its name either.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(ToolError::io(path, "flush the directory of"))
}
