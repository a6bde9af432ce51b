//! Where the memory of a volume lives: a file on tmpfs, so that it outlives the process.
//!
//! What guests have written and not flushed is in memory alone. A page cache would keep that when a server is killed, and guests
//! that live on count on it; so does a volume. The file is the volume's, by its name and by what its first page says; only its
//! owner may look into it, and when a volume is closed in order there is nothing left in it, and it goes.

use super::boot::{awaited, boot_id};
use super::epoch::EPOCH_STEP_MIN;
use super::error::VolumeError;
use crate::BLOCK_BYTES;
use crate::cache::{self, Cache, CacheOptions};
use crate::format::{MemoryAt, Superblock, Uuid};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, FlockOperation, MemfdFlags, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use storage::kit::file_system_memory;
use values::MemoryFile;

/// Where memory files are, unless it cannot be made.
pub const MEMORY_DIRECTORY: &str = "/run/vringd";

/// Where they are then.
pub const MEMORY_DIRECTORY_OF_OTHERS: &str = "/dev/shm";

/// Where it is when nobody says otherwise, as (directory, beginning of the name): the first that can be used.
const PLACES: [(&str, &str); 2] = [(MEMORY_DIRECTORY, "volume"), (MEMORY_DIRECTORY_OF_OTHERS, "vringd-volume")];

/// The paths that come into question for the memory of a volume, best first.
fn candidates(place: &MemoryFile, volume: &Uuid) -> Vec<PathBuf> {
    match place {
        MemoryFile::Auto => PLACES.iter().map(|(dir, name)| named(dir, name, volume)).collect(),
        MemoryFile::Path(path) => vec![path.clone()],
        MemoryFile::None => Vec::new(),
    }
}

/// The path of a memory file that is open already; none for memory without a name.
pub(super) fn found(place: &MemoryFile, volume: &Uuid) -> Option<PathBuf> {
    match place {
        MemoryFile::Auto => Some(default_memory_path(volume)),
        MemoryFile::Path(path) => Some(path.clone()),
        MemoryFile::None => None,
    }
}

/// The directory in which the memory files of volumes are made now.
pub(super) fn directory(place: &MemoryFile) -> Option<PathBuf> {
    // Of any volume whose file is not there yet.
    found(place, &Uuid::nil())?.parent().map(Path::to_owned)
}

/// Whether a directory is on tmpfs. By its path alone: a sandbox need not let it be listed.
fn is_in_memory(directory: &Path) -> io::Result<bool> {
    file_system_memory(rustix::fs::open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Refuses a place for a memory file that is to be made later, where it would be refused then.
pub(super) fn check_place(place: &MemoryFile) -> Result<(), VolumeError> {
    let Some(directory) = directory(place) else { return Ok(()) };
    let failed = VolumeError::io(&directory, "look for a place for the memory file in");
    if is_in_memory(&directory).map_err(failed)? { Ok(()) } else { Err(VolumeError::NotTmpfs { path: directory }) }
}

/// Whether a file could be made where somebody has named one. Nothing is made.
pub(super) fn check_named(place: &MemoryFile) -> Result<(), VolumeError> {
    let MemoryFile::Path(path) = place else { return Ok(()) };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let failed = VolumeError::io(path, "make the memory file");
    rustix::fs::accessat(CWD, directory, access, AtFlags::EACCESS).map_err(|errno| failed(errno.into()))?;
    if is_in_memory(directory).unwrap_or(false) { Ok(()) } else { Err(VolumeError::NotTmpfs { path: path.clone() }) }
}

fn named(directory: &str, name: &str, volume: &Uuid) -> PathBuf {
    Path::new(directory).join(format!("{name}-{volume}.memory"))
}

/// Where the memory of a volume is when nobody says otherwise: where there is a file already, or else where one can be made.
pub fn default_memory_path(volume: &Uuid) -> PathBuf {
    let candidates = candidates(&MemoryFile::Auto, volume);
    let there = candidates.iter().find(|path| path.exists());
    let possible = || candidates.iter().find(|path| path.parent().is_some_and(usable));
    there.or_else(possible).or(candidates.last()).cloned().unwrap_or_default()
}

/// As [`found`], of a file that need not be open, nor its directory be there. Nothing is made.
pub(super) fn likely(place: &MemoryFile, volume: &Uuid) -> Option<PathBuf> {
    let candidates = candidates(place, volume);
    let there = candidates.iter().find(|path| *place != MemoryFile::Auto || path.exists());
    let possible =
        || candidates.iter().find(|path| path.parent().is_some_and(|directory| in_memory(directory).is_some()));
    there.or_else(possible).or(candidates.last()).cloned()
}

/// Where the directory is, or is to be made, if that is on tmpfs and this user may make files there.
fn in_memory(directory: &Path) -> Option<&Path> {
    // Not made before it is known that it would do: /run need not be on tmpfs.
    let above = if directory.is_dir() { directory } else { directory.parent()? };
    let fits = is_in_memory(above).unwrap_or(false) && may_make_files(above);
    fits.then_some(above)
}

fn may_make_files(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

/// Whether files can be made in a directory that is on tmpfs, which is made itself if need be.
fn usable(directory: &Path) -> bool {
    if in_memory(directory).is_none() {
        return false;
    }
    let _ = DirBuilder::new().mode(0o700).create(directory);
    may_make_files(directory)
}

/// Slots for zeroes cost little and let large ranges be zeroed at once, but not everything at once.
const ZERO_SLOTS_MIN: u32 = 1 << 14;
const ZERO_SLOTS_MAX: u32 = 1 << 20;

/// What a memory file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Nothing that matters.
    Blank,
    /// So many blocks that are newer than what the volume and its log hold.
    Versions(u64),
}

impl Contents {
    pub(super) fn versions(self) -> u64 {
        match self {
            Contents::Blank => 0,
            Contents::Versions(versions) => versions,
        }
    }
}

/// An open memory file.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) fd: OwnedFd,
    /// Its name; none for memory without one.
    pub(crate) path: Option<PathBuf>,
    /// It was there already.
    pub(crate) found: bool,
    /// Another program has handed it over, and it is as this one would make it.
    pub(crate) handed: bool,
    /// The file that the volume is in.
    pub(crate) home: Option<Home>,
}

/// The file that a volume is in: its path, and what tells it from a copy.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    path: PathBuf,
    pub(super) identity: [u64; 2],
}

impl Home {
    /// `None` for what is no regular file: of a device there is no more to know than its number, which changes. So do the numbers
    /// of file systems; what is left are a file's number and the time of its birth.
    pub(crate) fn of(path: &Path) -> Option<Home> {
        let wanted = StatxFlags::INO | StatxFlags::TYPE | StatxFlags::BTIME;
        let about = statx(CWD, path, AtFlags::empty(), wanted).ok()?;
        if FileType::from_raw_mode(about.stx_mode.into()) != FileType::RegularFile {
            return None;
        }
        let born = about.stx_btime;
        let born_ns = born.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(born.tv_nsec.into());
        Some(Home { path: path.to_owned(), identity: [about.stx_ino, born_ns] })
    }
}

impl Memory {
    /// The file of the volume with this superblock, if there is one.
    pub(crate) fn find(
        place: &MemoryFile,
        superblock: &Superblock,
        home: Option<Home>,
    ) -> Result<Option<Memory>, VolumeError> {
        let closed = match &superblock.memory {
            Some(_) => awaited(superblock).is_none(),
            None => superblock.clean,
        };
        let found = Memory::find_in(candidates(place, &superblock.volume), *place == MemoryFile::Auto, closed)?;
        Ok(found.map(|file| Memory { home, ..file }))
    }

    /// `others`: in a directory of somebody else there may be files of others, and none of ours. `closed`: the volume was closed in
    /// order, or in another boot, so that no file holds anything of it.
    fn find_in(candidates: Vec<PathBuf>, others: bool, closed: bool) -> Result<Option<Memory>, VolumeError> {
        let mut hidden = None;
        for path in candidates {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(fd) => {
                    check(&path, &fd)?;
                    return Ok(Some(Memory { fd, path: Some(path), found: true, handed: false, home: None }));
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // Not the file but its directory keeps us out.
                Err(Errno::ACCESS) if others && matches!(rustix::fs::lstat(&path), Err(Errno::ACCESS)) => {
                    hidden = Some(path);
                }
                Err(errno) => return Err(VolumeError::io(&path, "open the memory file")(errno.into())),
            }
        }
        match hidden {
            Some(path) if !closed => Err(VolumeError::HiddenMemory { path }),
            _ => Ok(None),
        }
    }

    /// The volume's file, or a new one.
    ///
    /// # Errors
    /// There is none, and must be one; or it is not to be used.
    pub(crate) fn open(place: &MemoryFile, superblock: &Superblock, home: Option<Home>) -> Result<Memory, VolumeError> {
        if let Some(file) = Memory::find(place, superblock, home.clone())? {
            file.lock()?;
            return Ok(file);
        }
        if let Some(missing) = missing(place, superblock) {
            return Err(missing);
        }
        let path = match place {
            MemoryFile::None => return Memory::anonymous(),
            MemoryFile::Path(path) => path.clone(),
            MemoryFile::Auto => default_memory_path(&superblock.volume),
        };
        let failed = VolumeError::io(&path, "make the memory file");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
        let file = Memory { fd, path: Some(path.clone()), found: false, handed: false, home };
        if let Err(error) = check(&path, &file.fd).and_then(|()| file.lock()) {
            file.remove();
            return Err(error);
        }
        Ok(file)
    }

    /// Whether the last opening of the volume was one of this host: that has made its file before it wrote anything. What a file holds that
    /// is another one's is [looked at](Self::contents) later.
    pub(super) fn was_here(place: &MemoryFile, superblock: &Superblock) -> Result<bool, VolumeError> {
        let file = match Memory::find(place, superblock, None) {
            Ok(Some(file)) => file,
            // As far as this user can see.
            Ok(None) | Err(VolumeError::HiddenMemory { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(cache::peek(&file.fd).map_or(true, |header| header.current > 0 || belongs(&header, superblock)))
    }

    /// Keeps others away until the last duplicate of the descriptor is closed. A volume has locks of its own; a copy of it has the
    /// same name.
    pub(super) fn lock(&self) -> Result<(), VolumeError> {
        match rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => Err(VolumeError::MemoryInUse { path: self.shown() }),
            Err(errno) => Err(VolumeError::io(&self.shown(), "lock the memory file")(errno.into())),
        }
    }

    /// Memory without a name.
    pub(crate) fn anonymous() -> Result<Memory, VolumeError> {
        let failed = |errno: Errno| VolumeError::Memory { bytes: 0, source: errno.into() };
        let fd = rustix::fs::memfd_create(c"volume", MemfdFlags::CLOEXEC).map_err(failed)?;
        Ok(Memory { fd, path: None, found: false, handed: false, home: None })
    }

    /// Removes its name, and what it holds. A name that cannot be removed stays, with nothing behind it.
    pub(crate) fn remove(&self) {
        let Some(path) = &self.path else { return };
        if let Err(error) = rustix::fs::unlink(path) {
            // It may still be mapped, so that it must not become shorter.
            let bytes = rustix::fs::fstat(&self.fd).map_or(0, |about| u64::try_from(about.st_size).unwrap_or(0));
            // Of a page that lies in the hole in part the rest would stay.
            let bytes = bytes.next_multiple_of(BLOCK_BYTES as u64);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let emptied = rustix::fs::fallocate(&self.fd, hole, 0, bytes).is_ok();
            tracing::debug!(path = %path.display(), %error, emptied, "a memory file without contents stays");
        }
    }

    /// Removes its name if nobody had it before.
    pub(crate) fn remove_if_new(&self) {
        if !self.found {
            self.remove();
        }
    }

    /// What the file holds for the volume with this superblock. Nothing is changed.
    ///
    /// # Errors
    /// It holds versions of another volume, or of another opening than the last one of this; or nothing, and the memory of the last
    /// opening is missed.
    pub(crate) fn contents(&self, superblock: &Superblock) -> Result<Contents, VolumeError> {
        let path = self.shown();
        if !self.found {
            // Nobody missed another when this one was made.
            return Ok(Contents::Blank);
        }
        // Who looked for it here has found another.
        let blank = || match awaited(superblock) {
            Some(memory) => Err(misses(memory, superblock, format!("what {} holds now is not it", path.display()))),
            None => Ok(Contents::Blank),
        };
        if self.is_blank().map_err(VolumeError::io(&path, "read the memory file"))? {
            return blank();
        }
        let Ok(header) = cache::peek(&self.fd) else { return Err(VolumeError::NoMemoryFile { path: path.clone() }) };
        let volume = superblock.volume;
        let found = Uuid::from_bytes(header.volume);
        if found != volume {
            return Err(VolumeError::ForeignMemory { path: path.clone(), found, volume });
        }
        if let Some(home) = self.home.as_ref().filter(|_| !self.handed && header.home != [0; 2])
            && home.identity != header.home
        {
            return Err(VolumeError::MemoryOfOriginal { path: path.clone(), volume, copy: home.path.clone() });
        }
        if !self.handed && header.generation > superblock.generation {
            let (versions, generation, found) = (header.current, header.generation, superblock.generation);
            return Err(VolumeError::NewerMemory { path: path.clone(), volume, versions, generation, found });
        }
        match (header.current, belongs(&header, superblock)) {
            (0, true) if !self.handed => Ok(Contents::Blank),
            (versions, true) => Ok(Contents::Versions(versions)),
            (0, false) if !self.handed => blank(),
            (versions, false) => Err(VolumeError::StaleMemory { path: path.clone(), volume, versions }),
        }
    }

    /// What the superblock of an opening with this memory says of it: nothing if it ends with the process.
    pub(super) fn record(&self) -> Option<MemoryAt> {
        let path = self.path.as_ref()?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
        boot_id().map(|boot| MemoryAt { boot, path })
    }

    /// Whether nobody has finished its header: it was made, and then the process was killed.
    fn is_blank(&self) -> io::Result<bool> {
        let mut page = [0; BLOCK_BYTES];
        let got = rustix::io::pread(&self.fd, &mut page[..], 0)?;
        // What says that it is a header comes last.
        Ok((0..got).zip(page).all(|(at, byte)| byte == 0 || cache::HEADER_REST.contains(&at)))
    }

    /// The cache that lives in the file, with what was found there.
    pub(crate) fn cache(
        &self,
        contents: &Contents,
        superblock: &Superblock,
        dirty_bytes: u64,
    ) -> Result<Cache, VolumeError> {
        let failed = |source| VolumeError::Memory { bytes: dirty_bytes, source };
        let fd = self.fd.try_clone().map_err(failed)?;
        let volume = *superblock.volume.as_bytes();
        match contents {
            Contents::Versions(_) => {
                let path = self.shown();
                cache::recover(fd, volume, superblock.capacity_bytes).map_err(|source| VolumeError::Io {
                    path,
                    what: "go on with the memory file",
                    source,
                })
            }
            Contents::Blank => {
                let data_slots = u32::try_from(dirty_bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX >> 2);
                let options = CacheOptions {
                    capacity_bytes: superblock.capacity_bytes,
                    data_slots,
                    zero_slots: data_slots.saturating_mul(4).clamp(ZERO_SLOTS_MIN, ZERO_SLOTS_MAX),
                };
                cache::create(fd, &options, volume, superblock.epoch).map_err(failed)
            }
        }
    }

    /// Its name, in words.
    pub(crate) fn shown(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| PathBuf::from("memory"))
    }
}

/// Whether a memory file is of the opening that was the last to serve.
fn belongs(header: &cache::Header, superblock: &Superblock) -> bool {
    let of = |epoch: u64| (epoch..epoch.saturating_add(EPOCH_STEP_MIN)).contains(&superblock.epoch);
    of(header.epoch) || header.next_epoch != 0 && of(header.next_epoch)
}

/// Why a volume must not be opened that has no memory file in its place; none if it may be.
pub(super) fn missing(place: &MemoryFile, superblock: &Superblock) -> Option<VolumeError> {
    let memory = awaited(superblock)?;
    let candidates = candidates(place, &superblock.volume);
    let why = match candidates.last() {
        None => "no memory file is to be used".to_owned(),
        Some(_) if candidates.contains(&PathBuf::from(&memory.path)) => "it is not there".to_owned(),
        Some(path) => format!("{} is to be used instead", path.display()),
    };
    Some(misses(memory, superblock, why))
}

fn misses(memory: &MemoryAt, superblock: &Superblock, why: String) -> VolumeError {
    VolumeError::MissingMemory { path: PathBuf::from(&memory.path), volume: superblock.volume, why }
}

/// Refuses what is not a file of ours in memory. In /dev/shm anybody can leave a file of any name.
fn check(path: &Path, fd: &OwnedFd) -> Result<(), VolumeError> {
    let failed = VolumeError::io(path, "inspect the memory file");
    let about = rustix::fs::fstat(fd).map_err(|errno| failed(errno.into()))?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile || !file_system_memory(fd).unwrap_or(false) {
        return Err(VolumeError::NotTmpfs { path: path.to_owned() });
    }
    if about.st_uid != rustix::process::geteuid().as_raw() {
        return Err(VolumeError::NotOurs { path: path.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid() -> Uuid {
        Uuid::from_u128(u128::from(std::process::id()) << 64 | 0x5eed)
    }

    /// Of a volume that was not closed, and says of no memory file.
    fn superblock() -> Superblock {
        let options = crate::format::CreateOptions {
            capacity_bytes: 1 << 20,
            log_bytes: crate::format::LOG_BYTES_MIN,
            volume: uuid(),
            log: Uuid::new_v4(),
            log_path: None,
            apart: false,
            created_by: String::new(),
        };
        let mut superblock = crate::served::ephemeral::superblock_of(&options).unwrap();
        superblock.clean = false;
        superblock
    }

    #[test]
    fn a_file_is_made_found_and_removed() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = MemoryFile::Path(directory.path().join("memory"));
        assert!(Memory::find(&place, &superblock(), None).unwrap().is_none());
        let made = Memory::open(&place, &superblock(), None).unwrap();
        assert!(!made.found);
        let used = Memory::open(&place, &superblock(), None).unwrap_err();
        assert!(matches!(used, VolumeError::MemoryInUse { .. }), "{used}");
        drop(made);
        let found = Memory::open(&place, &superblock(), None).unwrap();
        assert!(found.found);
        let mode = rustix::fs::fstat(&found.fd).unwrap().st_mode;
        assert_eq!(mode & 0o777, 0o600);
        found.remove();
        assert!(Memory::find(&place, &superblock(), None).unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_removed_is_emptied() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = MemoryFile::Path(directory.path().join("memory"));
        let mut file = Memory::open(&place, &superblock(), None).unwrap();
        rustix::io::write(&file.fd, &[7; 10_000]).unwrap();
        // A directory that is not there stands for one that nothing may be removed from.
        file.path = Some(directory.path().join("gone/memory"));
        file.remove();
        let about = rustix::fs::fstat(&file.fd).unwrap();
        assert_eq!((about.st_size, about.st_blocks), (10_000, 0));
        assert!(file.is_blank().unwrap());
    }

    #[test]
    fn disks_and_strange_files_are_refused() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = directory.path().join("memory");
        let error = Memory::open(&MemoryFile::Path(path.clone()), &superblock(), None).unwrap_err();
        assert!(matches!(error, VolumeError::NotTmpfs { .. }), "{error}");
        assert!(!path.exists(), "and nothing is left");
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(Memory::open(&MemoryFile::Path(link), &superblock(), None).is_err());
    }

    #[test]
    fn a_header_that_was_not_finished_is_none() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = MemoryFile::Path(directory.path().join("memory"));
        let file = Memory::open(&place, &superblock(), None).unwrap();
        let mut page = [0; 4096];
        page[8..88].fill(1);
        rustix::io::pwrite(&file.fd, &page, 0).unwrap();
        assert!(file.is_blank().unwrap());
        for at in [0, 7, 88, 4095] {
            rustix::io::pwrite(&file.fd, &[1], at).unwrap();
            assert!(!file.is_blank().unwrap(), "byte {at} is not one of those that come first");
            rustix::io::pwrite(&file.fd, &[0], at).unwrap();
        }
    }

    /// Becomes nobody, this thread alone, if it may look everywhere.
    fn lose_rights() {
        if rustix::process::geteuid().is_root() {
            // SAFETY: the system call takes three numbers. libc's function of that name would change all threads.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        }
    }

    #[test]
    fn a_directory_of_somebody_else_hides_nothing_of_a_closed_volume() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let shut = directory.path().join("shut");
        std::fs::create_dir(&shut).unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&shut, PermissionsExt::from_mode(0o000)).unwrap();
        let candidates = || vec![shut.join("memory"), directory.path().join("memory")];
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                lose_rights();
                assert!(Memory::find_in(candidates(), true, true).unwrap().is_none());
                let hidden = Memory::find_in(candidates(), true, false).unwrap_err();
                assert!(matches!(&hidden, VolumeError::HiddenMemory { path } if path.starts_with(&shut)), "{hidden}");
                // It was named: whoever named it meant it.
                let named = Memory::find_in(candidates(), false, true).unwrap_err();
                assert!(matches!(named, VolumeError::Io { .. }), "{named}");
            });
            looks.join().unwrap();
        });
        std::fs::set_permissions(&shut, PermissionsExt::from_mode(0o700)).unwrap();
    }

    #[test]
    fn directories_on_disks_are_passed_over() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert!(!usable(directory.path()));
        assert!(!usable(&directory.path().join("below")));
        assert!(!directory.path().join("below").exists());
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(usable(directory.path()) && usable(&directory.path().join("below")));
        let path = default_memory_path(&uuid());
        assert!(usable(path.parent().unwrap()), "{}", path.display());
    }

    #[test]
    fn the_default_is_where_a_file_is() {
        let path = named("/dev/shm", "vringd-volume", &uuid());
        std::fs::write(&path, "").unwrap();
        assert_eq!(default_memory_path(&uuid()), path);
        std::fs::remove_file(&path).unwrap();
    }
}
