//! What may be chosen about an image.

use super::{Qcow2Storage, about, open};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use storage::{
    Access, Description, Execution, FrontLog, Handed, KEY_FILE, Kind, LUKS, Look, NO_LOCK, Need, OpenError, Opened,
    READ_ONLY, Storage, check_migratable,
};
use utoipa::ToSchema;
use values::{ByteSize, FieldError, LogFile, Luks, SyncMode};

/// A qcow2 image, with its backing files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Qcow2Storage)]
pub struct Qcow2Options {
    /// Path of the image.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Bypass the page cache (O_DIRECT).
    #[serde(default)]
    pub direct: bool,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Where calls run.
    #[serde(default)]
    pub execution: Execution,
    /// Lock the image and its backing files, as QEMU does; true when left out.
    #[serde(default = "Qcow2Options::lock_default")]
    pub lock: bool,
    /// Open and lock the image only while a guest runs, so that another daemon can take it over when the guest migrates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migratable: bool,
    /// Directories in which backing files and external data files may lie besides the image's own, and block devices that may be used as
    /// such; none when left out.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub allow: Vec<PathBuf>,
    /// Serve the disk as it was at this internal snapshot, an identifier or a name; with `read_only`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Memory for L2 tables of the image and its backing files together, 64K to 4G; 32M when left out, which is enough for 256 GiB of disk
    /// in clusters of 64 KiB.
    #[serde(default = "Qcow2Options::table_memory_default")]
    pub table_memory: ByteSize,
    /// The intent log in front of the image, whose synchronous writes share commits; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogFile>,
    /// The disk is what is encrypted in the LUKS container that is the image's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luks: Option<Luks>,
}

impl Qcow2Options {
    /// The image at `path`, with every other field at its default.
    pub fn new(path: impl Into<PathBuf>) -> Qcow2Options {
        Qcow2Options {
            path: path.into(),
            direct: false,
            read_only: false,
            execution: Execution::Auto,
            lock: true,
            migratable: false,
            allow: Vec::new(),
            snapshot: None,
            table_memory: Qcow2Options::table_memory_default(),
            log: None,
            luks: None,
        }
    }

    fn lock_default() -> bool {
        true
    }

    fn table_memory_default() -> ByteSize {
        ByteSize(32 << 20)
    }
}

impl Kind for Qcow2Options {
    fn check(&self, _block_size_bytes: u32) -> Result<(), FieldError> {
        if self.path.as_os_str().is_empty() {
            return Err(FieldError::new("storage.path", "is empty: give the path of a qcow2 image"));
        }
        if self.allow.iter().any(|path| path.as_os_str().is_empty()) {
            let message = "has an empty path: give directories, or block devices";
            return Err(FieldError::new("storage.allow", message));
        }
        if self.snapshot.is_some() && !self.read_only {
            let message = "is read and never written: give `read_only = true` (`--readonly`) as well";
            return Err(FieldError::new("storage.snapshot", message));
        }
        if !(64 << 10..=4 << 30).contains(&self.table_memory.0) {
            return Err(FieldError::new("storage.table_memory", "is out of range: use 64K to 4G"));
        }
        if let Some(log) = &self.log {
            if self.read_only {
                let message = "is for images that are written: leave it out, or leave out `read_only` (`--readonly`)";
                return Err(FieldError::new("storage.log", message));
            }
            log.check()?;
        }
        let log = (self.log.is_some(), "`log` (`--log`)");
        let luks = (self.luks.is_some(), LUKS);
        check_migratable(self, &[(self.read_only, READ_ONLY), (!self.lock, NO_LOCK), log, luks])?;
        self.luks.as_ref().map_or(Ok(()), Luks::check)
    }

    fn migratable(&self) -> Option<&dyn Look> {
        self.migratable.then_some(self)
    }

    fn open(&self) -> Result<Opened, OpenError> {
        let chain = open::by_path(self)?;
        let options = self.clone();
        Ok(Opened::new(self, move || start(&options, chain)))
    }

    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        start(self, open::handed(self, handed)?)
    }

    fn needs(&self) -> Vec<Need> {
        let need = |path, access| Need { field: "storage.path", path, access };
        let mut needs = vec![need(self.path.clone(), Access::file(self.read_only))];
        needs.extend(open::others(self).into_iter().map(|(path, write)| need(path, Access::file(!write))));
        needs.extend(self.luks.as_ref().map(Need::key_file));
        needs
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        let allow = self.allow.iter_mut().map(|path| ("storage.allow", path));
        let key_file = self.luks.as_mut().map(|luks| (KEY_FILE, &mut luks.key_file));
        let log = self.log.as_mut().map(|log| ("storage.log.path", &mut log.path));
        std::iter::once(("storage.path", &mut self.path)).chain(allow).chain(log).chain(key_file).collect()
    }

    fn log(&self) -> Option<FrontLog<'_>> {
        self.log.as_ref().map(|file| FrontLog { file, lock: self.lock })
    }

    fn remove_log(&mut self) {
        self.log = None;
    }

    fn set_sync(&mut self, sync: SyncMode) {
        if let Some(log) = &mut self.log {
            log.sync = sync;
        }
    }

    fn luks(&self) -> Option<&Luks> {
        self.luks.as_ref()
    }

    fn set_execution(&mut self, execution: Execution) {
        self.execution = execution;
    }
}

impl Look for Qcow2Options {
    /// As a reader, who changes nothing, not even by closing it.
    fn look(&self) -> Result<(Description, u64), OpenError> {
        let reader = Qcow2Options { read_only: true, lock: false, ..self.clone() };
        let chain = open::by_path(&reader)?.chain;
        open::admit_writer(self, &chain)?;
        Ok((about(&chain, false).executed(self.execution), chain.top().size_bytes()))
    }
}

fn start(options: &Qcow2Options, chain: open::Unstarted) -> Result<Arc<dyn Storage>, OpenError> {
    Ok(Arc::new(Qcow2Storage::start(options, chain)?))
}
