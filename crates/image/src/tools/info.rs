//! What a header says, also of the images behind it.

use super::file::{Image, ToolError, as_text, as_text_if};
use crate::bitmap::{self, AUTO, Entries, Entry, IN_USE, ReadError};
use crate::geometry::Geometry;
use crate::header::{Compression, Header};
use crate::snapshot::{self, Raw, Snapshot, TableError};
use crate::uses::Source;
use crate::{features, reference};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most images behind one another.
const CHAIN_MAX: usize = 200;

/// What is known of an image without looking at its tables. Its JSON is what `vringd image info --json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Info {
    /// Where it is.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// `qcow2`, or `raw` of a backing file that is one.
    pub format: &'static str,
    /// Version of the format, 2 or 3; 0 of a raw file.
    pub version: u32,
    /// Size of the disk, in bytes.
    pub size_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of it that take space.
    pub allocated_bytes: u64,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Bits of a refcount.
    pub refcount_bits: u32,
    /// Of compressed clusters: `zlib` or `zstd`.
    pub compression: &'static str,
    /// Clusters have subclusters (extended L2 entries).
    pub subclusters: bool,
    /// Refcounts may be written late (compatible feature 0).
    pub lazy_refcounts: bool,
    /// It was not closed, and its refcounts may be wrong.
    pub dirty: bool,
    /// It is marked as damaged.
    pub corrupt: bool,
    /// The intent log in front of it, by its name (a UUID), which may hold what the image has not: it is served with that, or was not
    /// closed. None of an image that is closed.
    pub intent_log: Option<String>,
    /// The backing file, as it is written.
    pub backing_file: Option<String>,
    /// Its format.
    pub backing_format: Option<String>,
    /// Where it is.
    #[serde(serialize_with = "as_text_if")]
    pub backing_path: Option<PathBuf>,
    /// The external data file, as it is written.
    pub data_file: Option<String>,
    /// Where it is.
    #[serde(serialize_with = "as_text_if")]
    pub data_path: Option<PathBuf>,
    /// It is a raw image of its own.
    pub data_file_raw: bool,
    /// Persistent bitmaps, if they are valid.
    pub bitmaps: u32,
    /// These, as the directory has them.
    pub dirty_bitmaps: Vec<BitmapEntry>,
    /// Internal snapshots, in their order.
    pub snapshots: Vec<SnapshotInfo>,
}

/// An internal snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotInfo {
    /// What programs call it.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// When it was taken, in seconds since 1970.
    pub taken_s: u32,
    /// Bytes of a virtual machine's state.
    pub vm_state_bytes: u64,
    /// The disk's size then.
    pub size_bytes: u64,
}

/// A persistent dirty bitmap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BitmapEntry {
    /// Its name.
    pub name: String,
    /// Bytes for which a bit stands.
    pub granularity_bytes: u64,
    /// It follows what is written.
    pub enabled: bool,
    /// Whoever serves the image has it in memory; if nobody does it is inconsistent.
    pub in_use: bool,
}

/// Reads what an image says of itself. It may be served meanwhile.
///
/// # Errors
/// It cannot be read, or is no image.
pub fn info(path: &Path) -> Result<Info, ToolError> {
    let mut image = Image::open(path, false)?;
    let header = image.header_to_look()?;
    let about = image.file.metadata().map_err(ToolError::io(path, "measure"))?;
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let name_of = |name: Option<&Vec<u8>>| name.and_then(|name| reference::read(name, path).ok());
    let backing = name_of(header.backing_file.as_ref());
    let snapshots = snapshots(&mut image, &header)?;
    // Who serves the image ignores a directory that is damaged, or is about to be another one.
    let dirty_bitmaps = dirty_bitmaps(&mut image, &header).unwrap_or_default();
    Ok(Info {
        path: path.to_owned(),
        format: "qcow2",
        version: header.version,
        size_bytes: header.size_bytes,
        file_bytes: image.len_bytes(),
        allocated_bytes: about.blocks() * 512,
        cluster_bytes: header.cluster_bytes(),
        refcount_bits: 1 << header.refcount_order,
        compression: match header.compression {
            Compression::Zlib => "zlib",
            Compression::Zstd => "zstd",
        },
        subclusters: header.has(features::EXTENDED_L2),
        lazy_refcounts: header.compatible & features::LAZY_REFCOUNTS != 0,
        dirty: header.has(features::DIRTY),
        corrupt: header.has(features::CORRUPT),
        intent_log: header
            .has(features::LOGGED)
            .then(|| header.extensions.log.map_or_else(String::new, |mark| mark.log.to_string())),
        backing_file: header.backing_file.as_ref().map(text),
        backing_format: header.extensions.backing_format.clone().or(backing.as_ref().and_then(|it| it.format.clone())),
        backing_path: backing.map(|backing| backing.path),
        data_file: header.extensions.data_file.as_ref().map(text),
        data_path: name_of(header.extensions.data_file.as_ref()).map(|data| data.path),
        data_file_raw: header.data_file_is_raw(),
        bitmaps: match header.extensions.bitmaps {
            Some(bitmaps) if header.autoclear & features::BITMAPS != 0 => bitmaps.count,
            _ => 0,
        },
        dirty_bitmaps,
        snapshots,
    })
}

/// As [`info`], of the image and of all that is behind it.
///
/// # Errors
/// As [`info`], of each; a chain without an end.
pub fn chain(path: &Path) -> Result<Vec<Info>, ToolError> {
    let mut all = vec![info(path)?];
    while let Some(last) = all.last()
        && let Some(name) = &last.backing_file
    {
        let Some(behind) = last.backing_path.clone() else {
            let why = format!("its backing file {name:?} is no name that this program understands: give a path");
            return Err(ToolError::refused(&last.path, why));
        };
        if all.len() > CHAIN_MAX {
            return Err(ToolError::refused(
                path,
                format!("more than {CHAIN_MAX} images behind one another, or a loop of them"),
            ));
        }
        let is_raw = all.last().and_then(|last| last.backing_format.as_deref()) == Some("raw");
        all.push(if is_raw { raw(&behind)? } else { info(&behind)? });
        if is_raw {
            break;
        }
    }
    Ok(all)
}

fn raw(path: &Path) -> Result<Info, ToolError> {
    let image = Image::open(path, false)?;
    let about = image.file.metadata().map_err(ToolError::io(path, "measure"))?;
    Ok(Info {
        path: path.to_owned(),
        format: "raw",
        size_bytes: image.len_bytes(),
        file_bytes: image.len_bytes(),
        allocated_bytes: about.blocks() * 512,
        ..Info::default()
    })
}

/// The dirty bitmaps of an image. It may be served meanwhile.
///
/// # Errors
/// It cannot be read, is no image, or their directory is damaged.
pub fn bitmaps(path: &Path) -> Result<Vec<BitmapEntry>, ToolError> {
    let mut image = Image::open(path, false)?;
    let header = image.header_to_look()?;
    dirty_bitmaps(&mut image, &header)
}

fn dirty_bitmaps(image: &mut Image, header: &Header) -> Result<Vec<BitmapEntry>, ToolError> {
    let Some(bitmaps) = header.extensions.bitmaps.filter(|_| header.autoclear & features::BITMAPS != 0) else {
        return Ok(Vec::new());
    };
    let path = image.path.clone();
    let format = |source| ToolError::Format { path: path.clone(), source };
    let geometry = Geometry::new(header);
    bitmap::check_directory(bitmaps, &geometry).map_err(format)?;
    let told = |(index, entry): (u32, Result<(u64, Entry), ReadError>)| {
        let (_, entry) = entry.map_err(|error| match error {
            ReadError::Io(source) => ToolError::io(&path, "read")(source),
            ReadError::Format(source) => format(source),
        })?;
        entry.check(&geometry, index).map_err(format)?;
        Ok(BitmapEntry {
            name: entry.shown(),
            granularity_bytes: 1 << entry.granularity_bits,
            enabled: entry.is(AUTO),
            in_use: entry.is(IN_USE),
        })
    };
    (0..).zip(Entries::of(image, bitmaps)).map(told).collect()
}

fn snapshots(image: &mut Image, header: &Header) -> Result<Vec<SnapshotInfo>, ToolError> {
    let all = snapshot::all(image, header).map_err(|error| match error {
        TableError::Io(source) => ToolError::io(&image.path, "read")(source),
        TableError::Format(source) => ToolError::Format { path: image.path.clone(), source },
    })?;
    let told = |raw: Raw| {
        let Snapshot { id, name, taken_s, vm_state_bytes, size_bytes, .. } = raw.snapshot;
        let size_bytes = size_bytes.unwrap_or(header.size_bytes);
        SnapshotInfo { id, name, taken_s, vm_state_bytes, size_bytes }
    };
    Ok(all.into_iter().map(told).collect())
}
