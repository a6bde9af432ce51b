//! A thread in the daemon's place: what it may do tells what the daemon may.
//!
//! Rights, users and Landlock's rules are a thread's own, so that a thread enters all of the sandbox but the list of system calls, which
//! the kernel gives to the whole process. It tries, and ends with what it has given up.

use crate::config::Config;
use crate::confine::{Held, Plan};
use crate::doctor::subjects::{CONTROL, named};
use crate::failure::Failure;
use control::model::MemoryFile;
use disk::{NullOptions, StorageSpec};
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub(super) struct Trial(Arc<(Plan, Config)>);

impl Trial {
    /// In the place of a daemon of `config`, without the files of those that are `refused`, and without those that are `late`: what does not
    /// answer would hold its threads up.
    ///
    /// # Errors
    /// What the configuration asks for cannot be.
    pub(super) fn new(config: &Config, refused: &[String], late: &[String]) -> Result<Trial, Failure> {
        let mut config = config.clone();
        let plan = Plan::new(&mut config)?;
        config.exports.retain(|export| !late.contains(&named(&export.name)));
        config.control = config.control.take().filter(|_| !late.iter().any(|late| late == CONTROL));
        let is_refused = |subject: &str| refused.iter().chain(late).any(|refused| refused == subject);
        for disk in &mut config.disks {
            seen_from_afar(&mut disk.storage, is_refused(&format!("disk {}", disk.name)));
        }
        for export in &mut config.exports {
            let is_refused = is_refused(&named(&export.name));
            if let Some(storage) = &mut export.storage {
                seen_from_afar(storage, is_refused);
            }
            export.tls = export.tls.take().filter(|_| !is_refused);
        }
        Ok(Trial(Arc::new((plan, config))))
    }

    /// With the sockets' owners as the plan has them.
    pub(super) fn config(&self) -> &Config {
        &self.0.1
    }

    /// Whom the daemon is to become: a user's number.
    pub(super) fn becomes(&self) -> Option<u32> {
        self.0.0.becomes().map(|(uid, _)| uid)
    }

    /// Gives up, on the thread that calls, what the daemon would give up.
    ///
    /// # Errors
    /// What cannot be had, as the daemon would say it.
    pub(super) fn enter(&self) -> Result<Held, Failure> {
        self.0.0.hold_thread(&self.0.1)
    }
}

/// As the sandbox needs it.
fn seen_from_afar(storage: &mut StorageSpec, is_refused: bool) {
    // Whoever serves memory in a file makes that before the sandbox has to name it.
    let is_made =
        matches!(storage, StorageSpec::Memory(memory) if memory.path.as_ref().is_some_and(|path| !path.exists()));
    if is_refused || is_made {
        *storage = StorageSpec::Null(NullOptions::default());
    }
    without_memory_file(storage);
}

/// Without a memory file: to ask where it would be makes its directory.
pub(super) fn without_memory_file(storage: &mut StorageSpec) {
    match storage {
        StorageSpec::Volume(volume) => volume.memory_file = MemoryFile::None,
        StorageSpec::Qcow2(image) => {
            if let Some(log) = &mut image.log {
                log.memory_file = MemoryFile::None;
            }
        }
        _ => {}
    }
}
