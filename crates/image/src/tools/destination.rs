//! Where a copy of a disk goes: a new image, of which nothing counts before all is in it; or a scratch file, of which nothing ever does.

use super::CreateOptions;
use super::create::{directory, files, new, write};
use super::file::{Image, ToolError, hidden};
use crate::header::{Compression, Header, MAGIC};
use crate::new::New;
use crate::served::Compressing;
use crate::uses::Source;
use crate::{Qcow2Options, Qcow2Storage};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::copy::GRAIN_BYTES;
use storage::kit::ImageLock;
use storage::target::Target;
use storage::{FileOptions, FileStorage, Handed, Storage};

/// A cluster of 64 KiB has a part of 128 compressed ones, if they are so small.
const REFCOUNT_BITS_MIN: u32 = 16;

/// See the top. Dropped before it is [kept](Self::keep), a file that was made for it is removed; who is killed leaves of a qcow2 image
/// what nobody takes for one.
pub struct Destination {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    is_blank: bool,
    /// What can be kept; not a scratch file.
    kept: Option<Target>,
    /// Of a qcow2 image, whose magic is written last.
    image: Option<Image>,
}

/// Where a copy is to go, before anything that is there is overwritten. Dropped, it leaves that as it was.
pub struct Place {
    path: PathBuf,
    target: Target,
    /// Of a qcow2 image: what it begins with.
    image: Option<(CreateOptions, Vec<u8>)>,
    is_compressed: bool,
}

impl Place {
    /// For a raw image, in a sparse file or on a device.
    ///
    /// # Errors
    /// Something is there, or there is no room.
    pub fn raw(path: &Path, size_bytes: u64, force: bool) -> Result<Place, ToolError> {
        Ok(Place {
            path: path.to_owned(),
            target: Target::make(path, size_bytes, force)?,
            image: None,
            is_compressed: false,
        })
    }

    /// For a qcow2 image.
    ///
    /// # Errors
    /// As above, and what cannot be made.
    pub fn qcow2(path: &Path, options: &CreateOptions) -> Result<Place, ToolError> {
        Place::image(path, options, &new(path, options)?)
    }

    /// For a qcow2 image in which everything is compressed that gets smaller by that. It is written in whole clusters, each once.
    ///
    /// # Errors
    /// As above.
    pub fn compressed(path: &Path, options: &CreateOptions, compression: Compression) -> Result<Place, ToolError> {
        let new = New { compression, ..new(path, options)? };
        if options.cluster_bytes > GRAIN_BYTES as u64 {
            return Err(ToolError::refused(path, "is compressed in clusters of 64 KiB at most: use smaller ones"));
        }
        if options.refcount_bits < REFCOUNT_BITS_MIN {
            let reason = "needs refcounts of 16 bits at least: compressed clusters share others";
            return Err(ToolError::refused(path, reason));
        }
        Ok(Place { is_compressed: true, ..Place::image(path, options, &new)? })
    }

    fn image(path: &Path, options: &CreateOptions, new: &New) -> Result<Place, ToolError> {
        let bytes = new.image().map_err(|reason| ToolError::refused(path, reason))?;
        let target = Target::make(path, bytes.len() as u64, options.force)?;
        Ok(Place { path: path.to_owned(), target, image: Some((options.clone(), bytes)), is_compressed: false })
    }

    /// Overwrites what is there.
    ///
    /// # Errors
    /// It cannot be written, or what is behind it cannot be opened.
    pub fn take(self) -> Result<Destination, ToolError> {
        let Place { path, target: mut kept, image, is_compressed } = self;
        let Some((options, mut bytes)) = image else {
            kept.clear()?;
            let storage = Arc::new(FileStorage::open(&FileOptions::new(&path))?);
            let is_blank = kept.blank;
            return Ok(Destination { path, storage, is_blank, kept: Some(kept), image: None });
        };
        let header = Header::parse(&bytes).map_err(|source| ToolError::Format { path: path.clone(), source })?;
        // Nobody takes it for an image until its magic is written.
        bytes[..MAGIC.len()].fill(0);
        write(&path, &bytes, &mut kept)?;
        // Whoever names what is behind it has chosen that, with all that is behind it in turn.
        let behind = options.backing.as_ref().map(|backing| files(&directory(&path)?.join(&backing.name)));
        let behind = behind.transpose()?.unwrap_or_default();
        let allow = behind.iter().filter_map(|file| directory(file).ok()).collect();
        let storage = Qcow2Storage::open_unflushed(&Qcow2Options { allow, ..Qcow2Options::new(&path) }, header)?;
        let image = Some(Image::open(&path, true)?);
        let storage = Arc::new(storage);
        let storage: Arc<dyn Storage> = if is_compressed { Arc::new(Compressing::new(storage)) } else { storage };
        let is_blank = options.backing.is_none();
        Ok(Destination { path, storage, is_blank, kept: Some(kept), image })
    }
}

impl Destination {
    /// A sparse file in `directory` without a name, which goes with the process at the latest.
    ///
    /// # Errors
    /// There is no such directory, or no room for a file of that size.
    pub fn scratch(directory: &Path, size_bytes: u64) -> Result<Destination, ToolError> {
        let file = nameless(directory).map_err(ToolError::io(directory, "make a file in it"))?;
        file.set_len(size_bytes).map_err(ToolError::io(directory, "make a file of this size in it"))?;
        let handed = Handed::new(size_bytes, Arc::new(file.into()), None);
        let options = FileOptions { lock: false, ..FileOptions::new(directory) };
        let storage = Arc::new(FileStorage::adopt(&options, handed)?);
        Ok(Destination { path: directory.to_owned(), storage, is_blank: true, kept: None, image: None })
    }

    /// What is written to. Flushes are not waited for in a qcow2 image: [`keep`](Self::keep) does that.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Whether it reads as zeroes where nothing was written.
    pub fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// All is in it: it is an image from now on, also when the power goes. Nobody else may have its storage.
    ///
    /// # Errors
    /// It cannot be brought to stable storage, or is somebody else's by now.
    pub fn keep(self) -> Result<(), ToolError> {
        let Destination { path, storage, is_blank: _, kept, image } = self;
        let Some(kept) = kept else { return Ok(()) };
        // What was reserved is given back, and nobody writes any more.
        let closed = Arc::downgrade(&storage);
        drop(storage);
        if closed.strong_count() > 0 {
            return Err(ToolError::refused(&path, "is still being written to: this is a bug"));
        }
        let Some(mut image) = image else { return Ok(kept.keep()?) };
        match finish(&path, &mut image) {
            Ok(()) => Ok(kept.keep()?),
            Err(trouble) => {
                if matches!(trouble, ToolError::Open(_) | ToolError::Refused { .. }) {
                    kept.leave();
                }
                Err(trouble)
            }
        }
    }
}

/// A new file for reading and writing, which nobody else finds.
fn nameless(directory: &Path) -> io::Result<File> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        // File systems without such files say so in several ways.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        made => return Ok(File::from(made?)),
    }
    let path = hidden(directory);
    let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    std::fs::remove_file(&path)?;
    Ok(File::from(file))
}

/// Makes an image of what was written, unless it is somebody else's by now.
pub(super) fn finish(path: &Path, image: &mut Image) -> Result<(), ToolError> {
    let _lock = ImageLock::take(path, &image.file, true)?;
    let mut magic = [1; MAGIC.len()];
    image.read(0, &mut magic).map_err(ToolError::io(path, "read"))?;
    if magic != [0; MAGIC.len()] {
        return Err(ToolError::refused(path, "was written by somebody else meanwhile, and is left alone"));
    }
    image.file.sync_all().map_err(ToolError::io(path, "flush"))?;
    image.file.write_all_at(&MAGIC, 0).map_err(ToolError::io(path, "finish"))?;
    image.file.sync_all().map_err(ToolError::io(path, "flush"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_file_leaves_nothing_behind() {
        let directory = tempfile::TempDir::new().unwrap();
        let names = || std::fs::read_dir(directory.path()).unwrap().count();
        for keep in [false, true] {
            let scratch = Destination::scratch(directory.path(), 1 << 40).unwrap();
            assert!(scratch.is_blank() && names() == 0);
            assert_eq!(scratch.storage().capacity_bytes(), 1 << 40);
            if keep {
                scratch.keep().unwrap();
            }
            assert_eq!(names(), 0);
        }
        let none = directory.path().join("none");
        let error = Destination::scratch(&none, 512).err().unwrap().to_string();
        assert_eq!(
            error,
            format!("{}: cannot make a file in it: No such file or directory (os error 2)", none.display())
        );
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Destination::scratch(&file, 512).err().unwrap().to_string();
        assert!(
            error.starts_with(&format!("{}: cannot make a file in it: Not a directory", file.display())),
            "{error}"
        );
    }
}
