//! Disks: storages that are open and have names, apart from the exports that use them.

use super::export::StorageInfo;
use super::name::check_name;
use disk::{StorageSpec, User};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use values::FieldError;

/// Description of a disk: the `[[disk]]` table of the configuration file and the body of `POST /v1/disks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDisk {
    /// Name, unique among the disks of the daemon: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub name: String,
    /// What stands behind it.
    pub storage: StorageSpec,
}

impl NewDisk {
    /// The smallest unit of a disk's size: exports with larger blocks leave a tail out.
    const BLOCK_BYTES: u32 = 512;

    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_name("name", &self.name)?;
        self.storage.check(Self::BLOCK_BYTES)
    }
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Name, unique among the disks of the daemon.
    pub name: String,
    /// The export that was described with its storage, with which it goes; absent for a disk that stays open until it is
    /// removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<User>,
    /// What stands behind it. Guests may see larger blocks, and a capacity of whole ones.
    pub storage: StorageInfo,
    /// Its users. A disk that is not read-only has one at most.
    pub users: Vec<User>,
}
