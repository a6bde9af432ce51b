//! Whether the daemon can do its work, as those ask who look after it.

use crate::daemon::Daemon;
use crate::service::blocked_in_kernel;
use engine::EngineError;
use export::Export;
use std::sync::Arc;

impl Daemon {
    /// The exports that cannot serve any more, each with the reason.
    pub(crate) fn failures(&self) -> Vec<(String, String)> {
        let failed = |export: &Arc<Export>| Some((export.name().to_owned(), export.failure()?));
        self.all().iter().filter_map(failed).collect()
    }

    /// Whether the workers that have rings take their turns. One that does is enough: what holds a single worker up is no
    /// reason to take the exports of the others down. One that waits for a device in the kernel does not count: that is for
    /// the device to mend.
    pub(crate) fn workers_answer(&self) -> Result<(), String> {
        let mut silent = Ok(());
        for worker in self.engine().workers().iter().filter(|worker| worker.alive && !worker.rings.is_empty()) {
            match self.engine().worker_answers(worker.number) {
                Ok(()) => return Ok(()),
                Err(error @ EngineError::Unresponsive { .. }) if !blocked_in_kernel(worker.tid) => {
                    silent = Err(error.to_string());
                }
                // It may have been freed meanwhile.
                Err(_) => {}
            }
        }
        silent
    }

    /// One line for whoever looks at the service.
    pub(crate) fn status_line(&self) -> String {
        let exports = self.all();
        let connected = exports.iter().filter(|export| export.connected()).count();
        let mut line = format!("{} export(s), {connected} with a frontend", exports.len());
        for (name, why) in self.failures() {
            line += &format!("; {name} has failed: {why}");
        }
        line
    }
}
