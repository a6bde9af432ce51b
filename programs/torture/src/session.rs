//! How a session under a checking frontend ends, well or not.

use std::path::Path;

use anyhow::{Context, Error, Result, anyhow};

use crate::disk::Disk;
use crate::frontend::{Farewell, Load};
use crate::server::Server;

/// All that is in flight comes back, and the disk holds what it must, as the server shows it and beside the server, which ends.
pub(crate) fn finish(load: &mut Load, server: &mut Option<Server>, disk: &mut Disk, program: &Path) -> Result<()> {
    load.read_back().context("at the end of the session")?;
    load.disconnect(Farewell::Stopped)?;
    if let Some(server) = server.take() {
        server.stop()?;
    }
    load.check_image(disk.final_image(program)?)
}

/// The error with what the server said, which is of use if something went wrong.
pub(crate) fn with_last_words(error: Error, server: Option<&Server>) -> Error {
    match server.map(Server::output) {
        Some(said) if !said.trim().is_empty() => anyhow!("{error:#}; the server said:\n{said}"),
        _ => error,
    }
}
