//! How quiet an idle server is.

use std::thread;
use std::time::{Duration, Instant};

use guest::usage::{Error, Sample};
use serde::Serialize;

/// Long enough for any sensible poll window to close after the last request.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// How quiet an idle process is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Idle {
    /// How long it was watched.
    pub seconds: f64,
    /// Context switches of all its threads in that time.
    pub wakeups: u64,
    /// CPU time of all its threads in that time.
    pub cpu_s: f64,
}

impl Idle {
    /// Wake-ups a second; 0 is the only good figure for a server without requests.
    pub fn wakeups_per_s(&self) -> f64 {
        self.wakeups as f64 / self.seconds
    }
}

/// Watches process `pid` for `time` and counts its wake-ups.
///
/// The caller keeps a frontend connected that submits nothing.
///
/// # Errors
/// The process does not exist or ends meanwhile.
pub fn idle(pid: u32, time: Duration) -> Result<Idle, Error> {
    let before = Sample::take(pid)?;
    let started = Instant::now();
    thread::sleep(time);
    let seconds = started.elapsed().as_secs_f64();
    let usage = Sample::take(pid)?.since(&before);
    Ok(Idle { seconds, wakeups: usage.switches(), cpu_s: usage.cpu_s() })
}

/// As [`idle`], for a server that had requests until now: lets its poll window close first.
pub(crate) fn idle_settled(pid: u32, time: Duration) -> Result<Idle, Error> {
    thread::sleep(SETTLE_TIME);
    idle(pid, time)
}
