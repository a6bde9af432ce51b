//! The images of a chain, and where a byte of the disk lies.

use super::Qcow2Storage;
use super::disk;
use super::error::Trouble;
use crate::compressed::decompress;
use crate::entry::{self, Cluster, Compressed, State};
use crate::geometry::Geometry;
use crate::tables::{Found, Locked, Tables};
use crate::{FormatError, features, header::Header};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use storage::{FileStorage, Storage};

/// Decompressed clusters that an image keeps, in bytes: neighbouring sectors are often read one after the other.
const DECOMPRESSED_BYTES_MAX: u64 = 1 << 20;

/// One image.
pub(super) struct Image {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    pub(super) geometry: Geometry,
    pub(super) tables: Tables,
    /// Number of its file, and of the file with its guest clusters.
    pub(super) file: usize,
    pub(super) data: usize,
    /// Virtual size, in bytes.
    pub(super) size_bytes: AtomicU64,
    decompressed: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
    /// A compressed cluster was damaged, and that was said.
    damaged: AtomicBool,
}

/// All images of a disk, each the backing file of the one before it, and all files.
pub(super) struct Chain {
    pub(super) files: Vec<Arc<dyn Storage>>,
    pub(super) images: Vec<Image>,
    /// The number of the raw file behind the last image.
    pub(super) base: Option<usize>,
    /// Held while the first image's header is read and written: see [`super::refcounts::patch_header`].
    pub(super) header: Mutex<()>,
    /// A flush has failed. The kernel tells of what it could not write once: whoever asks next is told that all is well, and it is not.
    pub(super) unflushed: AtomicBool,
    /// Zeroes of the first image cover something that comes behind it later.
    pub(super) covers: AtomicBool,
}

/// What one image says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    Unallocated,
    Zero,
    Data {
        host: u64,
        copied: bool,
    },
    Compressed(Compressed),
    /// Its L2 table has to be loaded first.
    Missing,
}

/// Where a range of the disk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Zero,
    /// In the file with this number.
    Data {
        file: usize,
        host: u64,
    },
    /// In the cluster of this image that begins at `guest`.
    Compressed {
        image: usize,
        guest: u64,
        at: Compressed,
    },
    /// An L2 table has to be loaded first.
    Missing,
}

impl Image {
    pub(super) fn new(
        path: PathBuf,
        header: Header,
        l1: &[u64],
        (file, data): (usize, usize),
        memory_bytes: u64,
    ) -> Image {
        let geometry = Geometry::new(&header);
        Image {
            path,
            tables: Tables::new(&geometry, l1, memory_bytes),
            geometry,
            size_bytes: AtomicU64::new(header.size_bytes / 512 * 512),
            header,
            file,
            data,
            decompressed: Mutex::new(VecDeque::new()),
            damaged: AtomicBool::new(false),
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// What is at a guest offset, and for how many bytes at most.
    #[inline]
    fn one(&self, guest: u64) -> Result<(Local, u64), FormatError> {
        let geometry = &self.geometry;
        let (l1, index) = geometry.place(guest);
        let inside = guest & (geometry.cluster_bytes() - 1);
        let (word, bitmap) = match self.tables.find(l1, index) {
            Found::NoTable => return Ok((Local::Unallocated, geometry.guest(l1 + 1, 0) - guest)),
            Found::Missing => return Ok((Local::Missing, 1)),
            Found::Entry(word, bitmap) => (word, bitmap),
        };
        let cluster = entry::l2(geometry, guest - inside, word, bitmap)?;
        Ok(match (cluster, cluster.state(geometry, inside)) {
            (Cluster::Plain { copied, .. }, Some((state, len))) => {
                let local = match state {
                    State::Unallocated => Local::Unallocated,
                    State::Zero => Local::Zero,
                    State::Data(host) => Local::Data { host, copied },
                };
                (local, len)
            }
            (Cluster::Compressed(at), _) => (Local::Compressed(at), geometry.cluster_bytes() - inside),
            // A plain cluster has a state everywhere.
            (Cluster::Plain { .. }, None) => (Local::Zero, geometry.cluster_bytes() - inside),
        })
    }

    /// What this image says of `guest` and at most `len` bytes, as far as it is one thing in one place.
    #[inline]
    pub(super) fn local(&self, guest: u64, len: u64) -> Result<(Local, u64), FormatError> {
        let (first, mut bytes) = self.one(guest)?;
        if matches!(first, Local::Missing | Local::Compressed(_)) {
            return Ok((first, bytes.min(len)));
        }
        while bytes < len {
            // An entry that is wrong is met when its turn comes.
            let Ok((next, more)) = self.one(guest + bytes) else { break };
            let goes_on = match (first, next) {
                (Local::Data { host, copied }, Local::Data { host: there, copied: too }) => {
                    there == host + bytes && copied == too
                }
                (one, other) => one == other,
            };
            if !goes_on {
                break;
            }
            bytes += more;
        }
        Ok((first, bytes.min(len)))
    }

    pub(super) fn has_data_file(&self) -> bool {
        self.header.has(features::DATA_FILE)
    }
}

impl Chain {
    /// Brings a file to stable storage. The kernel tells of what it could not write once, and somebody else may have been told.
    pub(super) fn flush(&self, number: usize) -> Result<(), i32> {
        // What cannot be asked has not failed.
        disk::prepare()?;
        let flushed = disk::flush(self.file(number)).inspect_err(|errno| self.flush_has_failed(*errno));
        if self.is_unflushed() { Err(libc::EIO) } else { flushed }
    }

    /// From now on nothing is written, and no flush succeeds.
    pub(super) fn flush_has_failed(&self, errno: i32) {
        if !self.unflushed.swap(true, Ordering::SeqCst) {
            let path = self.top().path.display();
            tracing::error!(%path, errno, "a flush has failed: what was written may be lost, and nothing is written until the image is opened again");
        }
    }

    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed.load(Ordering::SeqCst)
    }

    pub(super) fn file(&self, number: usize) -> &dyn Storage {
        &*self.files[number]
    }

    /// See [`FileStorage::mark_again`].
    pub(super) fn mark_again(&self) {
        let files = self.files.iter().filter_map(|file| file.as_any()?.downcast_ref::<FileStorage>());
        files.for_each(FileStorage::mark_again);
    }

    pub(super) fn top(&self) -> &Image {
        &self.images[0]
    }

    /// Whether what is behind all images is one itself, which is written meanwhile: see [`super::relink`].
    pub(super) fn is_over_image(&self) -> bool {
        self.base.is_some_and(|number| Qcow2Storage::of(&self.files[number]).is_some())
    }

    /// Whether there is something behind the first image, or will be.
    pub(super) fn has_backing(&self) -> bool {
        self.images.len() > 1 || self.base.is_some() || self.covers.load(Ordering::Relaxed)
    }

    /// Files that end inside their last cluster, which a write then goes beyond, or before the disk does; and how long they have to be.
    pub(super) fn short(&self) -> Vec<(usize, u64)> {
        let top = self.top();
        let whole = self.file(top.file).capacity_bytes().next_multiple_of(top.geometry.cluster_bytes());
        let data = top.has_data_file().then(|| (top.data, top.size_bytes()));
        let files = std::iter::once((top.file, whole)).chain(data);
        let short = files.filter(|(number, bytes)| {
            let file = self.file(*number);
            file.capacity_bytes() < *bytes && file.describe().kind != "device"
        });
        short.collect()
    }

    /// Where the disk's byte `guest` lies, and at most `len` bytes from there on.
    ///
    /// # Errors
    /// The number of the image whose entry is wrong.
    #[inline]
    pub(super) fn resolve(&self, guest: u64, len: u64) -> Result<(Piece, u64), Trouble> {
        self.resolve_by(guest, len, |number, guest, len| {
            self.images[number].local(guest, len).map_err(|error| Trouble::Format(number, error))
        })
    }

    /// As above, and loads what is missing: image by image, so that a long chain needs no more than one table in memory at a time. What
    /// is known of an image stays true: the first one's clusters stay while the task is inside, and all others do not change. Blocks.
    pub(super) fn resolve_loading(&self, guest: u64, len: u64) -> Result<(Piece, u64), Trouble> {
        self.resolve_by(guest, len, |number, guest, len| self.local_loading(number, guest, len))
    }

    /// What one image says, after its table was loaded if that is missing. Blocks.
    pub(super) fn local_loading(&self, number: usize, guest: u64, len: u64) -> Result<(Local, u64), Trouble> {
        let image = &self.images[number];
        let look = || image.local(guest, len).map_err(|error| Trouble::Format(number, error));
        match look()? {
            (Local::Missing, _) => {
                let (l1, _) = image.geometry.place(guest);
                let mut locked = image.tables.lock();
                self.load_locked(number, l1, &mut locked)?;
                // It stays while the lock is held.
                let found = look();
                drop(locked);
                found
            }
            found => Ok(found),
        }
    }

    #[inline]
    fn resolve_by(
        &self,
        guest: u64,
        len: u64,
        look: impl Fn(usize, u64, u64) -> Result<(Local, u64), Trouble>,
    ) -> Result<(Piece, u64), Trouble> {
        let mut len = len;
        for (number, image) in self.images.iter().enumerate() {
            let left = image.size_bytes().saturating_sub(guest);
            if left == 0 {
                return Ok((Piece::Zero, len));
            }
            let (local, bytes) = look(number, guest, len.min(left))?;
            len = bytes;
            match local {
                Local::Unallocated => {}
                Local::Zero => return Ok((Piece::Zero, len)),
                Local::Data { host, .. } => return Ok(self.within(image.data, host, len)),
                Local::Compressed(at) => {
                    let guest = guest & !(image.geometry.cluster_bytes() - 1);
                    return Ok((Piece::Compressed { image: number, guest, at }, len));
                }
                Local::Missing => return Ok((Piece::Missing, len)),
            }
        }
        Ok(match self.base {
            Some(file) => self.within(file, guest, len),
            None => (Piece::Zero, len),
        })
    }

    /// What lies behind the end of a file reads as zeroes.
    #[inline]
    fn within(&self, file: usize, host: u64, len: u64) -> (Piece, u64) {
        let there = self.file(file).capacity_bytes().saturating_sub(host);
        if there == 0 { (Piece::Zero, len) } else { (Piece::Data { file, host }, len.min(there)) }
    }

    /// Brings the L2 table for a guest offset into memory. Blocks.
    pub(super) fn load(&self, number: usize, guest: u64) -> Result<(), Trouble> {
        let image = &self.images[number];
        let (l1, _) = image.geometry.place(guest);
        self.load_locked(number, l1, &mut image.tables.lock())
    }

    /// As above, by whoever has the lock.
    pub(super) fn load_locked(&self, number: usize, l1: u64, locked: &mut Locked<'_>) -> Result<(), Trouble> {
        if locked.has(l1) {
            return Ok(());
        }
        let image = &self.images[number];
        let value = image.tables.l1(l1);
        let place = entry::l1(&image.geometry, l1, value).map_err(|error| Trouble::Format(number, error))?;
        let mut bytes = vec![0; image.geometry.cluster_bytes() as usize];
        if let Some(place) = place {
            let file = self.file(image.file);
            if place.offset >= file.capacity_bytes() {
                let rule = "the table does not lie behind the end of the image";
                return Err(Trouble::Format(number, FormatError::L1 { index: l1, value, rule }));
            }
            disk::read(file, place.offset, &mut bytes)?;
        }
        let words: Vec<u64> = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes)).collect();
        locked.install(l1, &words);
        Ok(())
    }

    /// The contents of a compressed cluster. Blocks, and takes a while.
    pub(super) fn decompressed(&self, number: usize, at: Compressed) -> Result<Arc<[u8]>, Trouble> {
        let image = &self.images[number];
        let kept = || image.decompressed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, cluster)) = kept().iter().find(|(host, _)| *host == at.host) {
            return Ok(cluster.clone());
        }
        let start = at.host / 512 * 512;
        let mut data = vec![0; (at.host + at.len - start).next_multiple_of(512) as usize];
        let file = self.file(image.file);
        // It is data that is damaged, and no metadata: whoever asks for it hears of it, and the image goes on.
        let wrong = |rule| {
            if !image.damaged.swap(true, Ordering::Relaxed) {
                let (path, error) = (image.path.display(), FormatError::Compressed { host: at.host, rule });
                tracing::error!(%path, %error, "a cluster is damaged and cannot be read; of others like it no more is said");
            }
            Trouble::Errno(libc::EIO)
        };
        if start >= file.capacity_bytes() {
            return Err(wrong("it does not lie behind the end of the image"));
        }
        disk::read(file, start, &mut data)?;
        let data = &data[(at.host - start) as usize..][..at.len as usize];
        let mut cluster = vec![0; image.geometry.cluster_bytes() as usize];
        decompress(image.header.compression, data, &mut cluster).map_err(wrong)?;
        let cluster: Arc<[u8]> = cluster.into();
        let mut kept = kept();
        kept.push_front((at.host, cluster.clone()));
        let most = (DECOMPRESSED_BYTES_MAX >> image.geometry.cluster_bits).max(1);
        kept.truncate(most as usize);
        Ok(cluster)
    }

    /// Reads the disk. Blocks.
    pub(super) fn read(&self, guest: u64, buf: &mut [u8]) -> Result<(), Trouble> {
        let mut done = 0;
        while done < buf.len() {
            let at = guest + done as u64;
            let (piece, len) = self.resolve_loading(at, (buf.len() - done) as u64)?;
            let part = &mut buf[done..done + len as usize];
            match piece {
                Piece::Zero => part.fill(0),
                Piece::Data { file, host } => disk::read(self.file(file), host, part)?,
                Piece::Compressed { image, guest, at: compressed } => {
                    let cluster = self.decompressed(image, compressed)?;
                    part.copy_from_slice(&cluster[(at - guest) as usize..][..len as usize]);
                }
                Piece::Missing => return Err(Trouble::Errno(libc::EIO)),
            }
            done += len as usize;
        }
        Ok(())
    }

    /// Whether all of a range reads as zeroes because nothing is there. `None`: to know it would block, and it must not.
    pub(super) fn is_zero(&self, guest: u64, len: u64, may_block: bool) -> Result<Option<bool>, Trouble> {
        let mut done = 0;
        while done < len {
            let (at, rest) = (guest + done, len - done);
            let (piece, bytes) = if may_block { self.resolve_loading(at, rest)? } else { self.resolve(at, rest)? };
            match piece {
                Piece::Zero => done += bytes,
                Piece::Missing => return Ok(None),
                Piece::Data { .. } | Piece::Compressed { .. } => return Ok(Some(false)),
            }
        }
        Ok(Some(true))
    }
}
