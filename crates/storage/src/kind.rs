//! What opens a storage: the options of one kind of it, as a person writes them.

use crate::{Execution, Handed, Look, OpenError, Storage};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use values::{FieldError, IntentLog, LogFile, Luks, SyncMode};

/// One kind of storage: its options are the fields that a person writes in the configuration, the API and on the command line.
/// All that others have to know of a kind is here; whoever lists the kinds only gives it its word.
pub trait Kind: fmt::Debug + Send {
    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    fn check(&self, block_size_bytes: u32) -> Result<(), FieldError>;

    /// Opens what has a path. Threads come when it is started, because there may be none before a process gives up its rights.
    ///
    /// # Errors
    /// One line that names the path or the field, and what to do.
    fn open(&self) -> Result<Opened, OpenError>;

    /// Goes on with what another program has opened as these options say. Paths are not looked up again.
    ///
    /// # Errors
    /// As for [`Kind::open`]; also a descriptor that is missing or of another kind.
    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError>;

    /// Whether it understands what it is to open again ([`Handed::again`]), which is found out before anybody pauses.
    ///
    /// # Errors
    /// Why not.
    fn check_again(&self, _again: &str) -> Result<(), OpenError> {
        Err(OpenError::NothingHanded)
    }

    /// What a sandbox has to let through.
    fn needs(&self) -> Vec<Need> {
        Vec::new()
    }

    /// Whether writes are refused, so that any number of users may share it.
    fn read_only(&self) -> bool {
        false
    }

    /// The paths that may be relative, each with the name of its field.
    fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        Vec::new()
    }

    /// As it would be with its calls running elsewhere; a kind whose calls run nowhere else ignores it.
    fn set_execution(&mut self, _execution: Execution) {}

    /// As it would be with writes becoming stable at another time, where there is a log that this concerns.
    fn set_sync(&mut self, sync: SyncMode) {
        if let Some(made) = self.made()
            && let Some(log) = made.intent_log
        {
            log.sync = sync;
        }
    }

    /// The container that it holds, if the disk is what is encrypted in one.
    fn luks(&self) -> Option<&Luks> {
        None
    }

    /// The intent log in front of it, if it has one that lies elsewhere.
    fn log(&self) -> Option<FrontLog<'_>> {
        None
    }

    /// As it would be without that log.
    fn remove_log(&mut self) {}

    /// How it is looked at, where another process may have it while no guest runs here: see [`Custody`](crate::Custody).
    fn migratable(&self) -> Option<&dyn Look> {
        None
    }

    /// Whether it performs SCSI commands itself, and no operation: see [`Pass`](crate::Pass).
    fn passes(&self) -> bool {
        false
    }

    /// Of a kind that is made and not found: what an intent log over it needs to know.
    fn made(&mut self) -> Option<Made<'_>> {
        None
    }
}

/// An intent log in front of a storage, which lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct FrontLog<'a> {
    /// Where.
    pub file: &'a LogFile,
    /// Whether it is locked, as what is behind it.
    pub lock: bool,
}

/// Storage that is made when it is opened and ends with the process.
#[derive(Debug)]
pub struct Made<'a> {
    /// Its size: whoever puts a log over it makes it larger by what that needs.
    pub size: &'a mut values::ByteSize,
    /// The log over it, if there is one.
    pub intent_log: Option<&'a mut IntentLog>,
}

/// The field that lets a storage change hands.
const MIGRATABLE: &str = "storage.migratable";
/// An option that stands in its way.
pub const READ_ONLY: &str = "`read_only` (`--readonly`), which any number of daemons share";
/// Another one.
pub const NO_LOCK: &str = "`lock = false` (`--no-lock`)";
/// Another one.
pub const LUKS: &str = "`luks` (`--luks-key-file`)";

/// The field that names the key file of a container.
pub const KEY_FILE: &str = "storage.luks.key_file";

/// A file or directory that a storage uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The field that names it.
    pub field: &'static str,
    /// Where it is.
    pub path: PathBuf,
    /// What is done with it.
    pub access: Access,
}

impl Need {
    /// The key file of a container.
    pub fn key_file(luks: &Luks) -> Need {
        Need { field: KEY_FILE, path: luks.key_file.clone(), access: Access::Read }
    }
}

/// What is done with a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The file is read.
    Read,
    /// The file is read and written.
    Write,
    /// Files are made in the directory before a process gives up its rights, and removed at any time.
    Make,
    /// Files are made, opened and removed in the directory at any time.
    MakeLater,
}

impl Access {
    /// Of a file.
    pub fn file(read_only: bool) -> Access {
        if read_only { Access::Read } else { Access::Write }
    }

    /// Whether it is of a directory, for files that nobody knows yet.
    pub fn makes_files(self) -> bool {
        matches!(self, Access::Make | Access::MakeLater)
    }
}

/// A storage of which all that has a path is open, and that has no threads yet: made by a process that is about to give up the
/// right to open it, and started when it has.
#[must_use]
pub struct Opened {
    about: String,
    start: Box<dyn FnOnce() -> Result<Arc<dyn Storage>, OpenError> + Send>,
}

impl Opened {
    /// Something open; `start` is what is left to do.
    pub fn new(
        about: impl fmt::Debug,
        start: impl FnOnce() -> Result<Arc<dyn Storage>, OpenError> + Send + 'static,
    ) -> Opened {
        Opened { about: format!("{about:?}"), start: Box::new(start) }
    }

    /// Starts its threads.
    ///
    /// # Errors
    /// When there can be none, or for what is wrong with a storage that has no path.
    pub fn start(self) -> Result<Arc<dyn Storage>, OpenError> {
        (self.start)()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({})", self.about)
    }
}

/// Opens a storage and starts it.
///
/// # Errors
/// As for [`Kind::open`] and [`Opened::start`].
pub fn open(kind: &dyn Kind) -> Result<Arc<dyn Storage>, OpenError> {
    kind.open()?.start()
}

/// Checks the options of a storage that changes hands; `obstacle` names the field of another option that it has and says what that is.
///
/// # Errors
/// What stands in the way.
pub fn check_migratable(kind: &impl Kind, obstacles: &[(bool, &str)]) -> Result<(), FieldError> {
    let obstacle = obstacles.iter().find(|(has, _)| *has).map(|(_, obstacle)| obstacle);
    match obstacle.filter(|_| kind.migratable().is_some()) {
        Some(obstacle) => {
            Err(FieldError::new(MIGRATABLE, format!("does not go with {obstacle}: leave one of the two out")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileOptions, MemoryOptions, NullOptions};
    use values::ByteSize;

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
        let opened = options.open().unwrap();
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
        let null = |bytes| NullOptions { size: ByteSize(bytes), ..NullOptions::default() };
        assert_eq!(null(4096).open().unwrap().start().unwrap().capacity_bytes(), 4096);
        assert!(null(1).open().unwrap().start().is_err());
        let missing = MemoryOptions { path: Some("/nonexistent/image".into()), ..MemoryOptions::default() };
        assert!(missing.open().is_err());
    }
}
