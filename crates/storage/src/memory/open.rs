//! From options to mapped memory.

use super::MemoryStorage;
use super::foresee::{OPEN_HINT, ROOM_HINT, SPARSE_HINT};
use super::map::{Backing, Map, huge_page_bytes};
use crate::error::check_size;
use crate::file::{check_kind, file_system_memory, huge_page_file};
use crate::jobs::{Jobs, WORK};
use crate::lock::ImageLock;
use crate::{Access, Handed, Kind, Made, Need, OpenError, Opened, Storage};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use utoipa::ToSchema;
use values::{ByteSize, FieldError, IntentLog};

/// What memory without a path is called.
const ANONYMOUS: &str = "anonymous";
const HUGE: &str = "anonymous, huge pages";

/// Memory, anonymous or of a file on tmpfs or hugetlbfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MemoryStorage)]
pub struct MemoryOptions {
    /// Capacity; that of the file when left out. A shorter file is extended, and one that does not exist is made. Anonymous
    /// memory needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// File on tmpfs or hugetlbfs that is mapped; anonymous memory when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Use huge pages for anonymous memory.
    #[serde(default)]
    pub hugepages: bool,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Intent log over it; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent_log: Option<IntentLog>,
}

impl Kind for MemoryOptions {
    fn check(&self, block_size_bytes: u32) -> Result<(), FieldError> {
        if self.intent_log.is_some() && self.path.is_some() {
            let message = "is for anonymous memory: a file would keep what only its log explains; for a file, make \
                           a volume of it (`vringd volume create`)";
            return Err(FieldError::new("storage.intent_log", message));
        }
        if self.intent_log.is_some() && self.read_only {
            return Err(FieldError::new("storage.intent_log", "is for writes, and `read_only` refuses them"));
        }
        if self.hugepages && self.path.is_some() {
            let message = "is for anonymous memory; for a file, put the file on hugetlbfs";
            return Err(FieldError::new("storage.hugepages", message));
        }
        match self.size {
            None if self.path.is_none() => {
                Err(FieldError::new("storage.size", "is missing: anonymous memory needs it"))
            }
            None => Ok(()),
            Some(size) => values::check_size(size, block_size_bytes),
        }
    }

    fn open(&self) -> Result<Opened, OpenError> {
        if self.path.is_none() {
            let options = self.clone();
            return Ok(Opened::new(self, move || Ok(Arc::new(MemoryStorage::open(&options)?))));
        }
        let storage = MemoryStorage::open_without_threads(self)?;
        Ok(Opened::new(storage.describe(), move || {
            WORK.prepare();
            Ok(Arc::new(storage))
        }))
    }

    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        Ok(Arc::new(MemoryStorage::adopt(self, handed)?))
    }

    fn needs(&self) -> Vec<Need> {
        let need =
            |path: &PathBuf| Need { field: "storage.path", path: path.clone(), access: Access::file(self.read_only) };
        self.path.iter().map(need).collect()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        self.path.iter_mut().map(|path| ("storage.path", path)).collect()
    }

    fn made(&mut self) -> Option<Made<'_>> {
        match self.path {
            Some(_) => None,
            None => Some(Made { size: self.size.get_or_insert_default(), intent_log: self.intent_log.as_mut() }),
        }
    }
}

impl MemoryOptions {
    /// 0 = that of the file.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size.map_or(0, |size| size.0)
    }
}

impl MemoryStorage {
    /// Maps the memory.
    ///
    /// # Errors
    /// One line that names the path or the limit, and the fix.
    pub fn open(options: &MemoryOptions) -> Result<MemoryStorage, OpenError> {
        let storage = Self::open_without_threads(options)?;
        WORK.prepare();
        Ok(storage)
    }

    /// As [`MemoryStorage::open`], and starts no thread.
    pub(crate) fn open_without_threads(options: &MemoryOptions) -> Result<MemoryStorage, OpenError> {
        match &options.path {
            Some(path) => open_file(options, path),
            None => open_anonymous(options),
        }
    }

    /// Goes on with memory that another program has filled.
    fn adopt(options: &MemoryOptions, mut handed: Handed) -> Result<MemoryStorage, OpenError> {
        WORK.prepare();
        let size_bytes = handed.capacity_bytes;
        check_size(size_bytes)?;
        let fd = handed.take_data()?;
        let Some(path) = &options.path else {
            let (backing, page, target) = match options.hugepages {
                true => (Backing::Huge { fd }, huge_page_bytes(), HUGE),
                false => (Backing::Anonymous { fd, overcommit: false }, 4096, ANONYMOUS),
            };
            return map_anonymous(options, Ok(backing), page, target, size_bytes);
        };
        check_kind(path, &fd)?;
        let lock = handed.lock.map(|lock| ImageLock::adopt(lock, !options.read_only, false));
        let page = file_page(&fd).map_err(failed(path, "inspect", ""))?;
        let backing = Backing::File { fd, read_only: options.read_only };
        let map = Map::new(backing, size_bytes, page).map_err(failed(path, "map", ""))?;
        Ok(MemoryStorage::new(map, lock, path.display().to_string(), options.read_only, size_bytes))
    }

    fn new(map: Map, lock: Option<ImageLock>, target: String, read_only: bool, size_bytes: u64) -> MemoryStorage {
        MemoryStorage {
            map: Arc::new(map),
            lock,
            target,
            read_only,
            capacity_bytes: AtomicU64::new(size_bytes),
            resizing: Mutex::new(()),
            jobs: Jobs::on(&WORK),
        }
    }
}

pub(super) fn open_anonymous(options: &MemoryOptions) -> Result<MemoryStorage, OpenError> {
    let size_bytes = options.size_bytes();
    check_size(size_bytes)?;
    match options.hugepages {
        true => map_anonymous(options, Backing::huge(), huge_page_bytes(), HUGE, size_bytes),
        false => map_anonymous(options, Backing::anonymous(false), 4096, ANONYMOUS, size_bytes),
    }
}

fn map_anonymous(
    options: &MemoryOptions,
    backing: Result<Backing, Errno>,
    page: u64,
    target: &str,
    size_bytes: u64,
) -> Result<MemoryStorage, OpenError> {
    let map = backing.and_then(|backing| Map::new(backing, size_bytes, page)).map_err(|errno| OpenError::Map {
        size_bytes,
        source: errno.into(),
        hint: match options.hugepages {
            true => format!(
                "; it takes {} free huge pages of {} KiB: raise /proc/sys/vm/nr_hugepages, or leave `hugepages` out",
                size_bytes.div_ceil(page),
                page >> 10
            ),
            false => "; it is more than the system can give: choose a smaller size".to_owned(),
        },
    })?;
    Ok(MemoryStorage::new(map, None, target.to_owned(), options.read_only, size_bytes))
}

/// The error of a call on `path`.
pub(super) fn failed(path: &Path, what: &'static str, hint: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno: Errno| OpenError::Path { path: path.to_owned(), what, source: errno.into(), hint }
}

/// Unit in which a file is mapped, in bytes.
fn file_page(fd: impl AsFd) -> Result<u64, Errno> {
    let about = rustix::fs::fstat(fd)?;
    Ok(u64::try_from(about.st_blksize).unwrap_or(4096).next_power_of_two().max(4096))
}

fn open_file(options: &MemoryOptions, path: &Path) -> Result<MemoryStorage, OpenError> {
    let failed = |what, hint| failed(path, what, hint);
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if options.size_bytes() > 0 {
        check_size(options.size_bytes())?;
    }
    let open = |more| rustix::fs::open(path, flags | more, Mode::RUSR | Mode::WUSR);
    // A new file is made through no link: in a directory of many, somebody else may have put one there.
    let made = match options.size_bytes() > 0 && !options.read_only {
        true => open(OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW),
        false => Err(Errno::EXIST),
    };
    let found = match made {
        Err(Errno::EXIST) => open(OFlags::empty()),
        made => made,
    };
    let fd = found.map_err(failed("open", OPEN_HINT))?;
    check_kind(path, &fd)?;
    let in_memory = file_system_memory(&fd).unwrap_or(false);
    if !in_memory {
        return Err(OpenError::NotMemory { path: path.to_owned() });
    }
    let lock = ImageLock::take(path, &fd, !options.read_only)?;
    let about = rustix::fs::fstat(&fd).map_err(failed("inspect", ""))?;
    let huge = huge_page_file(&fd);
    let page = file_page(&fd).map_err(failed("inspect", ""))?;
    let present_bytes = u64::try_from(about.st_size).unwrap_or(0);
    let unit = unit(&fd).map_err(failed("inspect", ""))?;
    let size_bytes = file_size(options, path, present_bytes, unit)?;
    if options.read_only {
        let allocated_bytes = u64::try_from(about.st_blocks).unwrap_or(0).saturating_mul(512);
        if !huge && allocated_bytes < present_bytes {
            return Err(failed("map a sparse file for reading", SPARSE_HINT)(Errno::NOSPC));
        }
    } else {
        allocate(&fd, unit, size_bytes).map_err(failed("allocate its space", ROOM_HINT))?;
    }
    let backing = Backing::File { fd: fd.into(), read_only: options.read_only };
    let map = Map::new(backing, size_bytes, page).map_err(failed("map", ""))?;
    Ok(MemoryStorage::new(map, Some(lock), path.display().to_string(), options.read_only, size_bytes))
}

/// Unit in which a file may end, in bytes.
pub(super) fn unit(fd: impl AsFd) -> Result<u64, Errno> {
    Ok(if huge_page_file(&fd) { file_page(fd)? } else { 512 })
}

/// `unit`: files of huge pages end at a page, whatever was asked for.
pub(super) fn file_size(options: &MemoryOptions, path: &Path, present_bytes: u64, unit: u64) -> Result<u64, OpenError> {
    let asked_bytes = options.size_bytes();
    let path = path.to_owned();
    match asked_bytes {
        0 if present_bytes < 512 => Err(OpenError::Empty { path, size_bytes: present_bytes }),
        0 => Ok(present_bytes / 512 * 512),
        _ if present_bytes > asked_bytes.next_multiple_of(unit) => {
            Err(OpenError::TooLong { path, present_bytes, asked_bytes })
        }
        _ if options.read_only && present_bytes < asked_bytes => {
            Err(OpenError::TooShort { path, present_bytes, asked_bytes })
        }
        _ => Ok(asked_bytes),
    }
}

/// Unit in which a mapped file ends, in bytes.
pub(super) fn file_unit(fd: impl AsFd, map: &Map) -> u64 {
    if huge_page_file(fd) { map.page_bytes() } else { 512 }
}

/// Extends the file to `size_bytes`, in whole `unit`s, and gives it all its space.
pub(super) fn allocate(fd: impl AsFd, unit: u64, size_bytes: u64) -> Result<(), Errno> {
    let size = size_bytes.checked_next_multiple_of(unit).ok_or(Errno::FBIG)?;
    loop {
        match rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, size) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
