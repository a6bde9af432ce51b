//! Disk images to measure on: laid out once, with data in every block.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempPath;

use crate::frontend::rng::Rng;
use crate::parse;
use crate::words;

const CHUNK_BYTES: usize = 1 << 20;

/// An image that is made for a run: `SIZE@DIR`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeImage {
    size_bytes: u64,
    dir: PathBuf,
}

impl std::str::FromStr for MakeImage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, dir) = text
            .split_once('@')
            .ok_or_else(|| format!("`{text}` names no directory; write SIZE@DIR, such as 1G@/dev/shm"))?;
        let size_bytes = parse::positive_size(size)?;
        if !size_bytes.is_multiple_of(4096) {
            return Err(format!("`{size}` is not a multiple of 4096 bytes"));
        }
        Ok(Self { size_bytes, dir: PathBuf::from(dir) })
    }
}

/// An image and whether it is ours to delete.
#[derive(Debug)]
pub(crate) enum Image {
    /// A person's file or block device.
    Given(PathBuf),
    /// Deleted when dropped.
    Made(TempPath),
}

impl Image {
    /// Takes an image that exists.
    pub(crate) fn given(path: &Path) -> Result<Self> {
        let data = fs::metadata(path)
            .with_context(|| format!("--image {}: cannot use it; --make-image SIZE@DIR makes one", path.display()))?;
        if !data.is_file() && !data.file_type().is_block_device() {
            bail!("--image {}: neither a file nor a block device", path.display());
        }
        if data.is_file() && data.blocks() * 512 < data.len() {
            eprintln!("--image {}: has holes, which are faster to read than data and slower to write", path.display());
        }
        Ok(Self::Given(path.to_owned()))
    }

    /// Lays out a new image; `progress` gets the bytes written so far.
    pub(crate) fn make(order: &MakeImage, mut progress: impl FnMut(u64)) -> Result<Self> {
        let failed =
            || format!("--make-image: cannot lay out {} in {}", words::size(order.size_bytes), order.dir.display());
        let (mut file, path) = tempfile::Builder::new()
            .prefix("bench-")
            .suffix(".img")
            .tempfile_in(&order.dir)
            .with_context(failed)?
            .into_parts();
        lay_out(&mut file, order.size_bytes, 0, |bytes| {
            progress(bytes);
            Ok(())
        })
        .with_context(failed)?;
        Ok(Self::Made(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Made(path) => path,
        }
    }
}

/// Writes `size_bytes` that no file system compresses or finds twice, others for each `seed`, and waits until they are on the
/// disk. `go_on` gets the bytes written so far.
///
/// # Errors
/// Writing failed, or `go_on` did.
pub fn lay_out(
    file: &mut File,
    size_bytes: u64,
    seed: u64,
    mut go_on: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut rng = Rng::new(size_bytes, seed);
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    let mut written = 0;
    while written < size_bytes {
        rng.fill(&mut chunk);
        let length = CHUNK_BYTES.min((size_bytes - written) as usize);
        file.write_all(&chunk[..length])?;
        written += length as u64;
        go_on(written)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_size_and_directory() {
        let order: MakeImage = "1G@/dev/shm".parse().unwrap();
        assert_eq!(order, MakeImage { size_bytes: 1 << 30, dir: "/dev/shm".into() });
        for bad in ["1G", "x@/tmp", "0@/tmp", "100@/tmp"] {
            assert!(bad.parse::<MakeImage>().is_err(), "{bad} must not pass");
        }
    }

    #[test]
    fn a_made_image_is_full_of_data_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let order = MakeImage { size_bytes: (1 << 20) + 4096, dir: dir.path().into() };
        let mut last = 0;
        let image = Image::make(&order, |bytes| last = bytes).unwrap();
        let data = fs::read(image.path()).unwrap();
        assert_eq!((data.len() as u64, last), (order.size_bytes, order.size_bytes));
        assert!(data.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
        assert!(data[..4096] != data[1 << 20..], "blocks differ");
        let path = image.path().to_owned();
        drop(image);
        assert!(!path.exists());
    }

    #[test]
    fn a_missing_image_names_the_way_to_make_one() {
        let error = Image::given(Path::new("/nonexistent.img")).unwrap_err().to_string();
        assert!(error.contains("--make-image SIZE@DIR"), "{error}");
        assert!(Image::given(Path::new("/")).is_err());
    }
}
