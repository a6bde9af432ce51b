//! What may be chosen about a device.

use crate::open::{node, open};
use crate::served::SgStorage;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use storage::kit::check_access;
use storage::{Access, FileOptions, Handed, Kind, Need, OpenError, Opened, Storage};
use utoipa::ToSchema;
use values::{FieldError, Span};

/// Longest time that a command may be given.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// A SCSI device of the host, passed through: a unit of a SCSI device alone can be one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SgStorage)]
pub struct SgOptions {
    /// The device: one of /dev/sg*.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Refuse every command that changes the device.
    #[serde(default)]
    pub read_only: bool,
    /// Have it for oneself: nobody else opens it so, and the host does not use its block device meanwhile.
    #[serde(default = "SgOptions::lock_default")]
    pub lock: bool,
    /// Socket of a `qemu-pr-helper`, which sends persistent reservations in the guest's place; none when left out: they go to the device
    /// as all commands do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub pr_helper: Option<PathBuf>,
    /// How long a command may take before the host aborts it, 1s to 86400s; 60s for disks and 14400s for all others when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// Let commands through that reach beyond the device or change it for good: EXTENDED COPY, new microcode, new states of its ports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfiltered: bool,
}

impl SgOptions {
    /// This device, with every other field at its default.
    pub fn new(path: impl Into<PathBuf>) -> SgOptions {
        SgOptions { path: path.into(), read_only: false, lock: true, pr_helper: None, timeout: None, unfiltered: false }
    }

    fn lock_default() -> bool {
        true
    }

    /// Looks whether there is such a device, which is neither opened nor asked: a guest may have it.
    ///
    /// # Errors
    /// As of opening it, as far as can be seen.
    pub fn foresee(&self) -> Result<(), OpenError> {
        node(self)?;
        let file = FileOptions { read_only: self.read_only, ..FileOptions::new(&self.path) };
        check_access(&file)
    }
}

impl Kind for SgOptions {
    fn check(&self, _block_size_bytes: u32) -> Result<(), FieldError> {
        let field = |name, message: &str| Err(FieldError::new(name, message));
        if self.path.as_os_str().is_empty() {
            return field("storage.path", "is empty: name a device, as in /dev/sg1");
        }
        if self.pr_helper.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return field("storage.pr_helper", "is empty: name a socket, or leave it out");
        }
        match self.timeout {
            Some(Span(timeout)) if !(Duration::from_secs(1)..=TIMEOUT_MAX).contains(&timeout) => {
                field("storage.timeout", "is out of range: use 1s to 86400s")
            }
            _ => Ok(()),
        }
    }

    fn open(&self) -> Result<Opened, OpenError> {
        let (options, device) = (self.clone(), open(self)?);
        Ok(Opened::new(self, move || Ok(Arc::new(SgStorage::start(&options, device)?))))
    }

    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        Ok(Arc::new(SgStorage::adopt(self, handed)?))
    }

    fn needs(&self) -> Vec<Need> {
        // Also for reading: who may not write has it beside others.
        let device = Need { field: "storage.path", path: self.path.clone(), access: Access::Write };
        let helper = self.pr_helper.clone();
        let helper = helper.map(|path| Need { field: "storage.pr_helper", path, access: Access::Write });
        std::iter::once(device).chain(helper).collect()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn passes(&self) -> bool {
        true
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        let helper = self.pr_helper.as_mut().map(|path| ("storage.pr_helper", path));
        std::iter::once(("storage.path", &mut self.path)).chain(helper).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(table: &str) -> SgOptions {
        serde_json::from_str(table).unwrap()
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let options = read(r#"{"path": "/dev/sg1"}"#);
        assert_eq!(options, SgOptions::new("/dev/sg1"));
        options.check(512).unwrap();
        assert!(options.passes() && !options.read_only());
        // As it was written, with the fields that an earlier program does not know left out.
        assert_eq!(serde_json::to_string(&options).unwrap(), r#"{"path":"/dev/sg1","read_only":false,"lock":true}"#);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_field() {
        for (table, field) in [
            (r#"{"path": ""}"#, "storage.path"),
            (r#"{"path": "/dev/sg1", "pr_helper": ""}"#, "storage.pr_helper"),
            (r#"{"path": "/dev/sg1", "timeout": "0s"}"#, "storage.timeout"),
            (r#"{"path": "/dev/sg1", "timeout": "999ms"}"#, "storage.timeout"),
            (r#"{"path": "/dev/sg1", "timeout": "86401s"}"#, "storage.timeout"),
        ] {
            assert_eq!(read(table).check(512).unwrap_err().field, field, "{table}");
        }
    }
}
