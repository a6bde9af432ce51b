//! What an image was before it was opened again.
//!
//! An execve ends librbd's threads and connections, and leaves the lock in the cluster; so does a cluster that refuses a client. Guests go on, and rely
//! on what they have read: so the image that is opened for them again has to be the same one, and nobody else may have written it meanwhile.

use serde::{Deserialize, Serialize};
use storage::Description;

/// What is known of it then, by the next program, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Was {
    /// Its size, as far as guests can have it, in bytes.
    pub(crate) bytes: u64,
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

    pub(crate) fn read(text: &str) -> std::io::Result<Was> {
        serde_json::from_str(text).map_err(std::io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::Execution;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let about = Description {
            kind: "rbd",
            target: "p/i".to_owned(),
            read_only: false,
            direct: true,
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            optimal_io_bytes: 4 << 20,
            discard: true,
            discard_granularity_bytes: 65536,
            write_zeroes: true,
            execution: Execution::Auto,
            execution_chosen: Execution::Inline,
        };
        let (id, owner) = (Some("a1".to_owned()), Some("192.0.2.7:0/1".to_owned()));
        let was = Was { bytes: 1 << 30, about, id, snapshot_id: Some(3), owner, watcher: None };
        let text = was.write().unwrap();
        assert_eq!(Was::read(&text).unwrap(), was);
        for other in
            ["", "{}", &text.replace("\"owner\"", "\"keeper\""), &text.replace("\"bytes\"", "\"more\":1,\"bytes\"")]
        {
            Was::read(other).unwrap_err();
        }
    }
}
