//! A new image, over a backing file or not.

use super::chain;
use super::file::{Image, ToolError};
use crate::new::New;
use crate::uses::Source;
use crate::{features, reference};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use storage::kit::ImageLock;
use storage::target::Target;

/// What a new image reads as where nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file, as the image is to name it: a relative path is relative to the image's directory.
    pub name: PathBuf,
    /// It is a qcow2 image, and no raw one.
    pub is_qcow2: bool,
}

impl Backing {
    /// A qcow2 image behind one that is opened as `image`: by its name alone where both are in one directory, which may move. A name with a
    /// colon would be taken for more than a name.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn qcow2(image: &Path, file: &Path) -> Result<Backing, ToolError> {
        let (own, other) = (directory(image)?, directory(file)?);
        let name = file.file_name().ok_or_else(|| ToolError::refused(file, "has no file name"))?;
        let is_plain = own == other && !name.as_bytes().contains(&b':');
        Ok(Backing { name: if is_plain { PathBuf::from(name) } else { other.join(name) }, is_qcow2: true })
    }
}

/// Where names are relative to that an image has which is opened by this path.
pub(super) fn directory(image: &Path) -> Result<PathBuf, ToolError> {
    let parent = image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::canonicalize(parent).map_err(ToolError::io(parent, "find"))
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
    /// What an existing file or device has is written over.
    pub force: bool,
}

impl Default for CreateOptions {
    /// As every program makes them, over nothing, and where nothing is yet.
    fn default() -> CreateOptions {
        CreateOptions {
            size_bytes: None,
            cluster_bytes: 64 << 10,
            refcount_bits: 16,
            subclusters: false,
            backing: None,
            force: false,
        }
    }
}

/// Makes an image in which nothing is allocated. A file that was made is removed after an error.
///
/// # Errors
/// What cannot be made, with the reason; a backing file that cannot be read.
pub fn create(path: &Path, options: &CreateOptions) -> Result<(), ToolError> {
    let new = new(path, options)?;
    let bytes = new.image().map_err(|reason| ToolError::refused(path, reason))?;
    let mut target = Target::make(path, bytes.len() as u64, options.force)?;
    write(path, &bytes, &mut target)?;
    target.keep()?;
    Ok(())
}

/// Writes what an image begins with where it is to be. What was there is gone for good.
pub(super) fn write(path: &Path, bytes: &[u8], target: &mut Target) -> Result<(), ToolError> {
    target.clear()?;
    let file = Image::open(path, true)?.file;
    let _lock = ImageLock::take(path, &file, true)?;
    file.write_all_at(bytes, 0).map_err(ToolError::io(path, "write"))?;
    file.sync_data().map_err(ToolError::io(path, "flush"))
}

/// The size of a new disk with the contents of one of `there` bytes.
pub(super) fn size_for(options: &CreateOptions, from: &Path, there: u64) -> Result<u64, ToolError> {
    match options.size_bytes {
        Some(asked) if asked < there => {
            Err(ToolError::refused(from, format!("has {there} bytes, more than the size that is asked for")))
        }
        asked => Ok(asked.unwrap_or(there)),
    }
}

pub(super) fn new(path: &Path, options: &CreateOptions) -> Result<New, ToolError> {
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

/// All files of an image, and of what is behind it.
pub(super) fn files(image: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let mut files = Vec::new();
    for info in chain(image)? {
        files.extend(info.data_path);
        files.push(info.path);
    }
    Ok(files)
}

/// Whether both paths lead to the same file.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path| std::fs::metadata(path).map(|about| (about.dev(), about.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Whether a backing file may be called that (specification: "Header", `backing_file_size`).
pub(super) fn admit_name(image: &Path, name: &[u8]) -> Result<(), ToolError> {
    match (1..=1023).contains(&name.len()) {
        true => Ok(()),
        false => Err(ToolError::refused(image, "its backing file: a name has 1 to 1023 bytes")),
    }
}

/// The backing file as it is written down, and its size.
pub(super) fn behind(image: &Path, backing: &Backing) -> Result<((Vec<u8>, &'static str), u64), ToolError> {
    let name = backing.name.as_os_str().as_bytes().to_vec();
    let refused = |reason: String| ToolError::refused(image, format!("its backing file: {reason}"));
    admit_name(image, &name)?;
    let found = reference::read(&name, image).map_err(|error| refused(error.to_string()))?;
    let mut file = Image::open(&found.path, false)?;
    let behind = if backing.is_qcow2 { files(&found.path)? } else { vec![found.path] };
    if behind.iter().any(|path| is_same(path, image)) {
        return Err(refused("it is the image itself, or leads to it".to_owned()));
    }
    if !backing.is_qcow2 {
        return Ok(((name, "raw"), file.len_bytes()));
    }
    // Whether it misses a log finds whoever reads it: a snapshot's has none in front of it any more by then.
    Ok(((name, "qcow2"), file.header_to_look()?.size_bytes))
}
