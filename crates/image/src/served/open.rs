//! From a path to a chain of open images.
//!
//! Every file of the chain is opened and locked before a process gives up its rights, and all of a header is checked before the next
//! file is looked for. The formats of backing files are those that the images say: what a guest has written into a raw image must
//! not turn it into another one.

use super::allocator::Allocator;
use super::bitmaps::Bitmaps;
use super::chain::{Chain, Image};
use super::confine::Confines;
use super::error::{ImageError, Trouble};
use super::refcounts::Refcounts;
use super::shared::{METADATA, Shared};
use super::{Qcow2Options, Qcow2Storage, confine, on_the_spot};
use crate::header::Header;
use crate::reference::{self, Reference};
use crate::snapshot::{self, TableError};
use crate::uses::Source;
use crate::{FormatError, features};
use rustix::fs::SeekFrom;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::{FileOptions, FileStorage, Handed, Links, OpenError, Storage};

/// Most images and files behind one another.
const CHAIN_MAX: usize = 200;

/// O_DIRECT takes memory and offsets that are multiples of this, wherever it is found today.
const ALIGN: usize = 4096;

/// What comes behind an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    Nothing,
    Raw(PathBuf),
    Qcow2(PathBuf),
}

/// How the first image is opened.
struct First {
    /// How its path is followed.
    links: Links,

    /// Another program has served it up to now.
    handed: bool,
    /// Its header, if it is known.
    header: Option<Header>,
    /// Without what is behind it.
    apart: bool,
}

impl Default for First {
    fn default() -> First {
        // The image itself is the choice of a person.
        First { links: Links::Follow, handed: false, header: None, apart: false }
    }
}

/// A chain without threads, and the files that have none yet.
pub(super) struct Unstarted {
    pub(super) chain: Chain,
    files: Vec<Arc<FileStorage>>,
    /// What another program knew of dirty bitmaps.
    bitmaps: Option<OwnedFd>,
}

impl Unstarted {
    /// Of files that `open` opens.
    fn of(
        options: &Qcow2Options,
        first: First,
        mut open: impl FnMut(&FileOptions) -> Result<FileStorage, OpenError>,
    ) -> Result<Unstarted, OpenError> {
        let mut files = Vec::new();
        let chain = chain(options, first, &mut |file| {
            let file = Arc::new(open(file)?);
            files.push(file.clone());
            Ok(file)
        })?;
        Ok(Unstarted { chain, files, bitmaps: None })
    }
}

/// How files come to be open.
type Opener<'a> = dyn FnMut(&FileOptions) -> Result<Arc<dyn Storage>, OpenError> + 'a;

/// Opens all files by their paths.
pub(super) fn by_path(options: &Qcow2Options) -> Result<Unstarted, OpenError> {
    by_path_with(options, Links::Follow)
}

/// As above; the path of the image itself is followed as `links` says.
pub(super) fn by_path_with(options: &Qcow2Options, links: Links) -> Result<Unstarted, OpenError> {
    first_by_path(options, First { links, ..First::default() })
}

/// As above, without what is behind the image.
pub(super) fn apart_by_path(options: &Qcow2Options) -> Result<Unstarted, OpenError> {
    first_by_path(options, First { apart: true, ..First::default() })
}

/// As above, of an image whose header is known, and not written yet.
pub(super) fn new_by_path(options: &Qcow2Options, header: Header) -> Result<Unstarted, OpenError> {
    first_by_path(options, First { header: Some(header), ..First::default() })
}

fn first_by_path(options: &Qcow2Options, first: First) -> Result<Unstarted, OpenError> {
    let mut seen: Vec<(u64, u64)> = Vec::new();
    let mut confines = None;
    let links = first.links;
    Unstarted::of(options, first, |file| {
        let Some(confines) = &confines else {
            let opened = FileStorage::open_to_the_last_byte(file, links)?;
            confines = Some(Confines::of(options));
            seen.extend(identity(&file.path));
            return Ok(opened);
        };
        let file = &FileOptions { path: confines.admit(&file.path)?, ..file.clone() };
        let identity = identity(&file.path);
        if identity.is_some_and(|identity| seen.contains(&identity)) {
            return Err(ImageError::Loop { path: file.path.clone() }.into());
        }
        seen.extend(identity);
        FileStorage::open_to_the_last_byte(file, Links::Refuse)
    })
}

/// What a path leads to.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// Goes on with the files that another program has opened, in the order of [`chain`].
pub(super) fn handed(options: &Qcow2Options, handed: Handed) -> Result<Unstarted, OpenError> {
    first_handed(options, handed, false)
}

/// As above, over a disk that is open, whatever the image says is behind it.
pub(super) fn handed_over(
    options: &Qcow2Options,
    handed: Handed,
    behind: Arc<dyn Storage>,
) -> Result<Unstarted, OpenError> {
    let mut unstarted = first_handed(options, handed, true)?;
    unstarted.chain.base = Some(unstarted.chain.files.len());
    unstarted.chain.files.push(behind);
    Ok(unstarted)
}

fn first_handed(options: &Qcow2Options, mut handed: Handed, apart: bool) -> Result<Unstarted, OpenError> {
    let bitmaps = handed.memory.take();
    let mut next = Some(handed);
    let unstarted = Unstarted::of(options, First { handed: true, apart, ..First::default() }, |file| {
        let mut this = next.take().ok_or(OpenError::NothingHanded)?;
        next = this.log.take().map(|next| *next);
        FileStorage::adopt(file, this)
    })?;
    Ok(Unstarted { bitmaps, ..unstarted })
}

/// A new image over the one that `behind` is of, which is read through the files that it has open.
pub(super) fn in_front_of(
    options: &Qcow2Options,
    overlay: FileStorage,
    behind: &Chain,
) -> Result<Unstarted, OpenError> {
    let overlay = Arc::new(overlay);
    let first = std::iter::once(overlay.clone() as Arc<dyn Storage>);
    let mut files = first.chain(behind.files.iter().cloned());
    let chain = chain(options, First::default(), &mut |_| files.next().ok_or(OpenError::NothingHanded))?;
    Ok(Unstarted { chain, files: vec![overlay], bitmaps: None })
}

/// The other files that an image leads to, as far as they can be found now, and which of them are written.
pub(super) fn others(options: &Qcow2Options) -> Vec<(PathBuf, bool)> {
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    let mut path = options.path.clone();
    let mut write = !options.read_only;
    let confines = Confines::of(options);
    while found.len() <= CHAIN_MAX {
        let Some(header) = confine::open_to_look(&path).and_then(|file| header(&path, file).ok()) else { break };
        if let Ok(Some(data)) = data_file(&path, &header)
            && let Ok(data) = confines.admit(&data)
        {
            found.push((data, write));
        }
        write = false;
        let behind = behind(&path, &header).ok().and_then(|behind| {
            let admit = |path: PathBuf| confines.admit(&path).ok();
            match behind {
                Behind::Nothing => None,
                Behind::Raw(next) => admit(next).map(Behind::Raw),
                Behind::Qcow2(next) => admit(next).map(Behind::Qcow2),
            }
        });
        match behind {
            Some(Behind::Qcow2(next)) => {
                found.push((next.clone(), false));
                path = next;
            }
            Some(Behind::Raw(next)) => {
                found.push((next, false));
                break;
            }
            Some(Behind::Nothing) | None => break,
        }
    }
    found
}

fn chain(
    options: &Qcow2Options,
    First { links: _, handed, header: mut known, apart }: First,
    open: &mut Opener<'_>,
) -> Result<Chain, OpenError> {
    let (mut files, mut base) = (Vec::new(), None);
    let mut found = Vec::new();
    let mut path = options.path.clone();
    loop {
        let read_only = options.read_only || !found.is_empty();
        let with = |path: &Path| FileOptions {
            direct: options.direct,
            read_only,
            lock: options.lock,
            ..FileOptions::new(path)
        };
        if found.len() > CHAIN_MAX {
            return Err(ImageError::Chain { path: options.path.clone(), most: CHAIN_MAX }.into());
        }
        let file = open(&with(&path))?;
        // Shared, and not duplicated: guests may wait, and some file systems ask a server when a descriptor is closed.
        let fd = file.hand_over().map_err(|source| read_error(&path, source))?.data;
        let fd = fd.ok_or(OpenError::NothingHanded)?;
        let header = known.take().map_or_else(|| header(&path, &fd), Ok)?;
        let header = match &options.snapshot {
            Some(wanted) if found.is_empty() => as_of(&path, &fd, &header, wanted)?,
            _ => header,
        };
        // A log is in front of the first image, and whoever opens that with it sees to what it says. Without one, what another program has
        // served misses nothing: it could not say so, see `LoggedStorage::go_without`.
        if let Some(mark) = header.log_mark()
            && !(found.is_empty() && (options.log.is_some() || handed))
        {
            return Err(ImageError::Logged { path, log: mark.log }.into());
        }
        if found.is_empty() {
            admit(options, handed, &header)?;
        }
        let l1_bytes = header.l1_entries as usize * 8;
        let l1 = read_at(&fd, header.l1_offset, l1_bytes).map_err(|source| read_error(&path, source))?;
        if l1.len() < l1_bytes {
            let source = FormatError::Short { offset: header.l1_offset, what: "the L1 table" };
            return Err(ImageError::Format { path, source }.into());
        }
        let l1: Vec<u64> = l1.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes)).collect();
        let number = files.len();
        files.push(file);
        let data = match data_file(&path, &header)? {
            None => number,
            Some(data) => {
                files.push(open(&with(&data))?);
                number + 1
            }
        };
        let next = if apart { Behind::Nothing } else { behind(&path, &header)? };
        found.push((path, header, l1, (number, data)));
        match next {
            Behind::Qcow2(next) => path = next,
            Behind::Raw(next) => {
                base = Some(files.len());
                files.push(open(&FileOptions { read_only: true, ..with(&next) })?);
                break;
            }
            Behind::Nothing => break,
        }
    }
    let memory_bytes = options.table_memory.0 / found.len() as u64;
    let images = found.into_iter();
    let images = images.map(|(path, header, l1, files)| Image::new(path, header, &l1, files, memory_bytes)).collect();
    Ok(Chain {
        files,
        images,
        base,
        header: Default::default(),
        unflushed: Default::default(),
        covers: Default::default(),
    })
}

/// Refuses to write what must not be written, and what is no disk. What another program has served up to now and marked is still
/// read: see [`Shared::broken`].
fn admit(options: &Qcow2Options, handed: bool, header: &Header) -> Result<(), OpenError> {
    let path = options.path.clone();
    if header.size_bytes < 512 {
        return Err(ImageError::Size { path, size_bytes: header.size_bytes }.into());
    }
    if !options.read_only && !handed && header.has(features::CORRUPT) {
        let is_behind_log = header.has(features::LOGGED);
        return Err(
            if is_behind_log { ImageError::CorruptBehindLog { path } } else { ImageError::Corrupt { path } }.into()
        );
    }
    if !options.read_only && header.has(features::DIRTY) {
        return Err(ImageError::Dirty { path }.into());
    }
    Ok(())
}

/// Whether the image that a reader has opened is one to be written.
pub(super) fn admit_writer(options: &Qcow2Options, chain: &Chain) -> Result<(), OpenError> {
    admit(options, false, &chain.top().header)
}

fn read_error(path: &Path, source: std::io::Error) -> OpenError {
    ImageError::Read { path: path.to_owned(), source }.into()
}

/// Reads bytes of a file that may be open with O_DIRECT; fewer at its end.
fn read_at(fd: impl AsFd, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let start = offset / ALIGN as u64 * ALIGN as u64;
    let skip = (offset - start) as usize;
    let whole = (skip + len).next_multiple_of(ALIGN);
    let mut memory = vec![0; whole + ALIGN];
    let begin = memory.as_ptr().align_offset(ALIGN);
    let buf = &mut memory[begin..begin + whole];
    let mut got = 0;
    while got < whole {
        match rustix::io::pread(&fd, &mut buf[got..], start + got as u64) {
            Ok(0) => break,
            Ok(bytes) => got += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !got.is_multiple_of(ALIGN) {
            // The end of the file.
            break;
        }
    }
    Ok(buf[skip.min(got)..(skip + len).min(got).max(skip.min(got))].to_vec())
}

fn header(path: &Path, fd: impl AsFd) -> Result<Header, OpenError> {
    let failed = |source| ImageError::Format { path: path.to_owned(), source };
    let first = read_at(&fd, 0, 512).map_err(|source| read_error(path, source))?;
    let bytes = Header::bytes_needed(&first).map_err(failed)?;
    let first = read_at(&fd, 0, bytes as usize).map_err(|source| read_error(path, source))?;
    Ok(Header::parse(&first).map_err(failed)?)
}

/// The header of the image as it was at a snapshot.
fn as_of(path: &Path, fd: impl AsFd, header: &Header, wanted: &str) -> Result<Header, OpenError> {
    let failed = |source| ImageError::Format { path: path.to_owned(), source };
    let all = snapshot::all(&mut File(&fd), header).map_err(|error| match error {
        TableError::Io(source) => read_error(path, source),
        TableError::Format(source) => failed(source).into(),
    })?;
    let refused = |reason| ImageError::Snapshot { path: path.to_owned(), reason };
    let index = snapshot::find(&all, wanted).map_err(refused)?;
    Ok(all[index].snapshot.header(header, index as u32).map_err(failed)?)
}

/// The bytes of a file that may be open with O_DIRECT.
struct File<'a, F>(&'a F);

impl<F: AsFd> Source for File<'_, F> {
    fn len_bytes(&self) -> u64 {
        // Reads say where they begin: the descriptor's offset is nobody's.
        rustix::fs::seek(self.0, SeekFrom::End(0)).unwrap_or(0)
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let there = read_at(self.0, offset, buf.len())?;
        buf.fill(0);
        buf[..there.len()].copy_from_slice(&there);
        Ok(())
    }
}

/// What is behind the first image, whether or not it is open, where it really is.
pub(super) fn behind_first(options: &Qcow2Options, chain: &Chain) -> Result<Behind, ImageError> {
    let confines = Confines::of(options);
    Ok(match behind(&options.path, &chain.top().header)? {
        Behind::Nothing => Behind::Nothing,
        Behind::Raw(path) => Behind::Raw(confines.admit(&path)?),
        Behind::Qcow2(path) => Behind::Qcow2(confines.admit(&path)?),
    })
}

fn behind(image: &Path, header: &Header) -> Result<Behind, ImageError> {
    let path = || image.to_owned();
    let Some(name) = &header.backing_file else { return Ok(Behind::Nothing) };
    let named = reference::read(name, image).map_err(|source| ImageError::Backing { path: path(), source })?;
    let Reference { path: file, format } = named;
    match header.extensions.backing_format.clone().or(format).as_deref() {
        Some("raw") => Ok(Behind::Raw(file)),
        Some("qcow2") => Ok(Behind::Qcow2(file)),
        Some(format) => Err(ImageError::BackingFormat { path: path(), format: format.to_owned() }),
        None => Err(ImageError::NoFormat { path: path() }),
    }
}

fn data_file(image: &Path, header: &Header) -> Result<Option<PathBuf>, ImageError> {
    let path = || image.to_owned();
    if !header.has(features::DATA_FILE) {
        return Ok(None);
    }
    let name = header.extensions.data_file.as_ref().ok_or_else(|| ImageError::NoDataFile { path: path() })?;
    let named = reference::read(name, image).map_err(|source| ImageError::DataFile { path: path(), source })?;
    Ok(Some(named.path))
}

impl Qcow2Storage {
    /// Starts threads, and reads what a writer needs.
    pub(super) fn start(
        options: &Qcow2Options,
        Unstarted { chain, files, bitmaps }: Unstarted,
    ) -> Result<Qcow2Storage, OpenError> {
        for file in &files {
            file.start_threads(options.execution)?;
        }
        Qcow2Storage::over(chain, options.read_only, bitmaps)
    }

    /// Over files that are open and started.
    pub(super) fn over(chain: Chain, read_only: bool, handed: Option<OwnedFd>) -> Result<Qcow2Storage, OpenError> {
        let on_the_spot = on_the_spot(&chain);
        METADATA.prepare();
        let path = chain.top().path.clone();
        let mut allocator = None;
        if !read_only {
            let refcounts = Refcounts::read(&chain).map_err(|trouble| match trouble {
                Trouble::Errno(errno) | Trouble::Apart(errno) => {
                    read_error(&path, std::io::Error::from_raw_os_error(errno))
                }
                Trouble::Grown => read_error(&path, std::io::ErrorKind::Interrupted.into()),
                Trouble::Format(_, source) => ImageError::Format { path: path.clone(), source }.into(),
            })?;
            allocator = Some(Allocator::new(refcounts));
        }
        let bitmaps = if read_only { Bitmaps::default() } else { Bitmaps::load(&chain, handed) };
        Ok(Qcow2Storage { shared: Arc::new(Shared::new(chain, allocator, bitmaps, on_the_spot)) })
    }
}
