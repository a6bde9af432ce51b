//! What a process costs: CPU time and context switches, from `/proc` (see proc(5)).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use serde::Serialize;

/// Long enough for any sensible poll window to close after the last request.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// Why a process could not be measured.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum Error {
    /// no process {pid}: {cause}; is it still running, and is the pid right?
    NoProcess {
        /// The pid that was asked for.
        pid: u32,
        /// What the kernel said.
        cause: io::Error,
    },
    /// {path}: not what proc(5) describes: {text:?}
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
    },
}

/// CPU time and context switches of a process between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Usage {
    /// CPU time spent in the program, all threads.
    pub user_s: f64,
    /// CPU time spent in the kernel on its behalf, all threads.
    pub system_s: f64,
    /// How often a thread went to sleep, which is how often one had to be woken.
    pub voluntary_switches: u64,
    /// How often a thread was interrupted in favour of another.
    pub involuntary_switches: u64,
}

impl Usage {
    /// CPU time altogether, in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// Context switches altogether.
    pub fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }
}

/// The counters of a process at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    user_ticks: u64,
    system_ticks: u64,
    switches: BTreeMap<u32, (u64, u64)>,
}

impl Sample {
    /// Reads the counters of process `pid`.
    ///
    /// # Errors
    /// The process does not exist, or `/proc` is not Linux's.
    pub fn take(pid: u32) -> Result<Self, Error> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let missing = |cause| Error::NoProcess { pid, cause };
        let path = dir.join("stat");
        let text = fs::read_to_string(&path).map_err(missing)?;
        let (user_ticks, system_ticks) =
            parse_stat(&text).ok_or_else(|| Error::Malformed { path, text: text.clone() })?;
        let mut switches = BTreeMap::new();
        for task in fs::read_dir(dir.join("task")).map_err(missing)? {
            let task = task.map_err(missing)?;
            if let Some((tid, counts)) = thread_switches(&task.path()) {
                switches.insert(tid, counts);
            }
        }
        Ok(Self { user_ticks, system_ticks, switches })
    }

    /// What was used between `earlier` and this sample.
    ///
    /// The switches of a thread that ended in between are lost with it: `/proc` keeps none.
    pub fn since(&self, earlier: &Self) -> Usage {
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        let seconds = |now: u64, then: u64| now.saturating_sub(then) as f64 / ticks_per_s;
        let mut usage = Usage {
            user_s: seconds(self.user_ticks, earlier.user_ticks),
            system_s: seconds(self.system_ticks, earlier.system_ticks),
            ..Usage::default()
        };
        for (tid, (voluntary, involuntary)) in &self.switches {
            let (voluntary_then, involuntary_then) = earlier.switches.get(tid).copied().unwrap_or_default();
            usage.voluntary_switches += voluntary.saturating_sub(voluntary_then);
            usage.involuntary_switches += involuntary.saturating_sub(involuntary_then);
        }
        usage
    }
}

/// `utime` and `stime`, fields 14 and 15 of `/proc/PID/stat`, in clock ticks.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    // The command's name may hold spaces and parentheses: fields count from the last one.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user = fields.next()?.parse().ok()?;
    let system = fields.next()?.parse().ok()?;
    Some((user, system))
}

/// Voluntary and involuntary switches from `/proc/PID/task/TID/status`.
fn parse_switches(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((field("voluntary_ctxt_switches:")?, field("nonvoluntary_ctxt_switches:")?))
}

/// `None` for a thread that ended while we looked.
fn thread_switches(task: &Path) -> Option<(u32, (u64, u64))> {
    let tid = task.file_name()?.to_str()?.parse().ok()?;
    let text = fs::read_to_string(task.join("status")).ok()?;
    Some((tid, parse_switches(&text)?))
}

/// Whether process `pid` exists and has not ended (a zombie has).
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    text.rsplit_once(')').is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X') | None))
}

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
    std::thread::sleep(time);
    let seconds = started.elapsed().as_secs_f64();
    let usage = Sample::take(pid)?.since(&before);
    Ok(Idle { seconds, wakeups: usage.switches(), cpu_s: usage.cpu_s() })
}

/// As [`idle`], for a server that had requests until now: lets its poll window close first.
pub(crate) fn idle_settled(pid: u32, time: Duration) -> Result<Idle, Error> {
    std::thread::sleep(SETTLE_TIME);
    idle(pid, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_hostile_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 150 75 9 9 20 0 4 0 100 1 1 1";
        assert_eq!(parse_stat(stat), Some((150, 75)));
        assert_eq!(parse_stat("42 (short) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn switches_are_read_by_name() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(parse_switches(status), Some((12, 3)));
        assert_eq!(parse_switches("Name:\tx\n"), None);
    }

    #[test]
    fn new_threads_count_from_zero_and_ended_ones_not_at_all() {
        let earlier = Sample { user_ticks: 100, system_ticks: 50, switches: [(1, (10, 1)), (2, (5, 5))].into() };
        let later = Sample { user_ticks: 300, system_ticks: 50, switches: [(1, (14, 2)), (3, (7, 0))].into() };
        let usage = later.since(&earlier);
        assert_eq!((usage.voluntary_switches, usage.involuntary_switches), (11, 1));
        assert!(usage.user_s > 0.0);
        assert_eq!(usage.cpu_s(), usage.user_s);
    }

    #[test]
    fn a_thread_that_sleeps_and_wakes_is_seen() {
        let pid = std::process::id();
        let before = Sample::take(pid).unwrap();
        let sleeper = std::thread::spawn(|| {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Sample::take(std::process::id()).unwrap()
        });
        let usage = sleeper.join().unwrap().since(&before);
        assert!(usage.voluntary_switches >= 20, "{usage:?}");
    }

    #[test]
    fn an_ended_process_is_not_alive_even_before_it_is_reaped() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        while is_alive(child.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
        assert!(is_alive(std::process::id()));
    }

    #[test]
    fn a_missing_process_says_so() {
        let error = Sample::take(u32::MAX).unwrap_err().to_string();
        assert!(error.starts_with("no process 4294967295"), "{error}");
    }
}
