//! What an image was to the program before this one, which is the same process.
//!
//! An execve ends librbd's threads and connections, and leaves the lock in the cluster. Guests go on, and rely on what they have read: so the
//! image that is opened for them again has to be the same one, and nobody else may have written it meanwhile.

use serde::{Deserialize, Serialize};
use storage::Description;

/// What passes from one program to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Was {
    /// What guests were told of it.
    pub(crate) about: Description,
    /// Its id, which no other image of the pool ever has; none of the first format.
    pub(crate) id: Option<String>,
    /// The snapshot's.
    pub(crate) snapshot_id: Option<u64>,
    /// The address of the client that had the lock.
    pub(crate) owner: Option<String>,
    /// The address of one that had a watch alone. Whoever changes the image waits for its answer, until the cluster sees that it is gone.
    pub(crate) watcher: Option<String>,
}

impl Was {
    pub(crate) fn write(&self) -> std::io::Result<String> {
        serde_json::to_string(self).map_err(std::io::Error::other)
    }

    pub(crate) fn read(text: &str) -> Option<Was> {
        serde_json::from_str(text).ok()
    }
}
