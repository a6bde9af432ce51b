//! From a description to a running storage.

use crate::logged::{LoggedSpec, OpenedVolume, VolumeOptions};
use crate::{
    Execution, FileOptions, FileStorage, MemoryOptions, MemoryStorage, NullOptions, NullStorage, OpenError, SimOptions,
    SimStorage, Storage,
};
use std::fmt;
use std::sync::Arc;

/// What to open.
#[derive(Clone, Debug, PartialEq)]
pub enum StorageSpec {
    /// A regular file or a block device.
    File(FileOptions),
    /// Memory, anonymous or of a file on tmpfs or hugetlbfs.
    Memory(MemoryOptions),
    /// Nothing, quickly.
    Null(NullOptions),
    /// A model of a device.
    Sim(SimOptions),
    /// A volume: data and an intent log in a file or on devices.
    Volume(VolumeOptions),
    /// A volume that ends with the process, over one of the storages that do so too.
    Logged(Box<LoggedSpec>),
}

/// Opens a storage.
///
/// # Errors
/// One line that names the path or the field, and what to do.
pub fn open(spec: &StorageSpec) -> Result<Arc<dyn Storage>, OpenError> {
    Ok(match spec {
        StorageSpec::File(options) => Arc::new(FileStorage::open(options)?),
        StorageSpec::Memory(options) => Arc::new(MemoryStorage::open(options)?),
        StorageSpec::Null(options) => Arc::new(NullStorage::open(options)?),
        StorageSpec::Sim(options) => Arc::new(SimStorage::open(options)?),
        StorageSpec::Volume(options) => Arc::new(OpenedVolume::new(options)?.start()?),
        StorageSpec::Logged(spec) => Arc::new(spec.open()?),
    })
}

/// A storage of which all that has a path is open, and that has no threads yet: made by a process that is about to give up the
/// right to open it, and started when it has.
#[must_use]
pub struct Opened(Progress);

enum Progress {
    /// Open. It gets its execution, which may be threads, when it starts.
    File(FileStorage, Execution),
    /// Mapped.
    Memory(MemoryStorage),
    /// Open, with its log and its memory file; nothing is replayed yet.
    Volume(Box<OpenedVolume>),
    /// It has no path.
    Later(StorageSpec),
}

impl Opened {
    /// Opens what has a path.
    ///
    /// # Errors
    /// As for [`open`].
    pub fn new(spec: StorageSpec) -> Result<Opened, OpenError> {
        Ok(Opened(match spec {
            StorageSpec::File(options) => {
                let execution = options.execution;
                let options = FileOptions { execution: Execution::Auto, ..options };
                Progress::File(FileStorage::open_without_threads(&options)?, execution)
            }
            StorageSpec::Memory(options) if options.path.is_some() => {
                Progress::Memory(MemoryStorage::open_without_threads(&options)?)
            }
            StorageSpec::Volume(options) => Progress::Volume(Box::new(OpenedVolume::new(&options)?)),
            other => Progress::Later(other),
        }))
    }

    /// Starts its threads.
    ///
    /// # Errors
    /// When there can be none, or for what is wrong with a storage that has no path.
    pub fn start(self) -> Result<Arc<dyn Storage>, OpenError> {
        match self.0 {
            Progress::File(storage, execution) => {
                storage.prepare_threads();
                if execution != Execution::Auto {
                    storage.set_execution(execution)?;
                }
                Ok(Arc::new(storage))
            }
            Progress::Memory(storage) => {
                crate::blocking::prepare();
                Ok(Arc::new(storage))
            }
            Progress::Volume(volume) => Ok(Arc::new(volume.start()?)),
            Progress::Later(spec) => open(&spec),
        }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Progress::File(storage, _) => write!(f, "Opened({:?})", storage.describe()),
            Progress::Memory(storage) => write!(f, "Opened({:?})", storage.describe()),
            Progress::Volume(volume) => write!(f, "Opened({volume:?})"),
            Progress::Later(spec) => write!(f, "Opened(later: {spec:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        tasks.map(name).filter(|name| name.starts_with("file-")).count()
    }

    #[test]
    fn what_is_open_has_threads_when_it_starts() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let options = FileOptions { execution: Execution::Pool(3), ..FileOptions::new(image.path()) };
        let opened = Opened::new(StorageSpec::File(options)).unwrap();
        assert!(format!("{opened:?}").contains(&image.path().display().to_string()));
        // The file may go: it is open.
        let path = image.into_temp_path();
        std::fs::remove_file(&path).unwrap();
        let storage = opened.start().unwrap();
        assert_eq!(storage.describe().execution, Execution::Pool(3));
        assert_eq!(storage.capacity_bytes(), 1 << 20);
        // A thread has its name once it has run for the first time.
        while pool_threads() < 3 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_has_no_path_is_opened_when_it_starts() {
        let null = |size_bytes| StorageSpec::Null(NullOptions { size_bytes, zeroes: false });
        assert_eq!(Opened::new(null(4096)).unwrap().start().unwrap().capacity_bytes(), 4096);
        assert!(Opened::new(null(1)).unwrap().start().is_err());
        let missing = MemoryOptions { path: Some("/nonexistent/image".into()), ..MemoryOptions::default() };
        assert!(Opened::new(StorageSpec::Memory(missing)).is_err());
    }
}
