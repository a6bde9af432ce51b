//! The API with the fake behind it, at a socket.

use super::Fake;
use control::ControlServer;
use std::path::PathBuf;
use std::sync::Arc;

/// A served fake: its directory goes when it goes.
pub(crate) struct Served {
    pub(crate) server: ControlServer,
    pub(crate) fake: Arc<Fake>,
    pub(crate) directory: tempfile::TempDir,
}

impl Served {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::with_content();
        let server = control::start(&directory.path().join("control.sock"), fake.clone()).unwrap();
        Self { server, fake, directory }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.server.path().to_owned()
    }
}
