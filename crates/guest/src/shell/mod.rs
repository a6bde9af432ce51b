//! One way to run scripts, wherever they run.

use std::time::Duration;

use anyhow::Result;

mod agent;
mod child;
mod host;
mod ssh;

pub(crate) use agent::Agent;
pub use agent::{Guest, Share};
pub use host::Host;
pub use ssh::Ssh;

/// Most that a script may say on either of its outputs, in bytes.
pub const OUTPUT_BYTES_MAX: u64 = 64 << 20;

/// What a script left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; 128 and the number of the signal that ended it.
    pub status: i32,
    /// What it wrote to its standard output, at most [`OUTPUT_BYTES_MAX`].
    pub stdout: String,
    /// What it wrote to its standard error, at most [`OUTPUT_BYTES_MAX`].
    pub stderr: String,
}

/// A place where scripts run, one after the other.
pub trait Shell: Send {
    /// Runs `script` with `sh -eu` to its end, as root in a guest, with nothing on its standard input.
    ///
    /// Fails when the place is gone, when `limit` passes, when the script says more than
    /// [`OUTPUT_BYTES_MAX`], and after [`crate::interrupt::request`]. A script that
    /// fails is no error here. After an error a guest is dead: it has been killed.
    fn run(&mut self, script: &str, limit: Duration) -> Result<Output>;

    /// Processor time used so far, in seconds, to 10 ms: what the host spent on a guest of ours, with all
    /// its threads and children; what scripts used on the host, with the children they waited for; how long
    /// the processors of a machine behind ssh were busy with anything. Differences are what counts.
    fn cpu_s(&mut self) -> Result<f64>;

    /// Release of the kernel that the scripts see.
    fn kernel(&self) -> &str;

    /// The process on this host that is the guest, where there is one.
    fn pid(&self) -> Option<u32>;

    /// Ends it in good order, within seconds; what does not end by then is killed. Dropping ends it at
    /// once.
    fn end(self: Box<Self>) -> Result<()>;
}
