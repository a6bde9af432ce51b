//! Scripts on this machine.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::{Output, Shell, child};

/// This machine. A script that outlives its limit is killed with all its process group; the next one can
/// run.
#[derive(Debug)]
pub struct Host {
    kernel: String,
    cpu_s: f64,
}

impl Host {
    /// Ready at once.
    pub fn new() -> Self {
        Self { kernel: rustix::system::uname().release().to_string_lossy().into_owned(), cpu_s: 0.0 }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Shell for Host {
    fn run(&mut self, script: &str, limit: Duration) -> Result<Output> {
        let mut command = Command::new("sh");
        command.arg("-eu");
        let ended = child::run(&command, script, limit)?;
        self.cpu_s += ended.cpu_s;
        Ok(ended.output)
    }

    fn cpu_s(&mut self) -> Result<f64> {
        Ok(self.cpu_s)
    }

    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
