//! How many files the daemon may have open: `--rlimit-nofile`.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a daemon asks for that was told nothing: a descriptor for each file that a guest uses at once.
pub const OPEN_FILES_DEFAULT: u64 = 1_000_000;

/// Where the kernel says how much is possible.
const NR_OPEN: &str = "/proc/sys/fs/nr_open";

/// Why the limit could not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum RlimitError {
    /// --rlimit-nofile={wanted} is more than this system allows a process: use at most {possible}, or raise it with sysctl fs.nr_open
    System {
        /// What was asked for.
        wanted: u64,
        /// `fs.nr_open`.
        possible: u64,
    },
    /// --rlimit-nofile={wanted}: {source}; use at most the hard limit, {hard}, or start the daemon with CAP_SYS_RESOURCE
    Refused {
        /// What was asked for.
        wanted: u64,
        /// The hard limit.
        hard: u64,
        /// The kernel's answer.
        source: Errno,
    },
}

/// Lets the process have `wanted` files open; without a wish [`OPEN_FILES_DEFAULT`], or as many as it may have when that is
/// less; with 0 as many as before. Answers with the limit that is then in force, in files.
///
/// # Errors
/// When what was asked for is more than the system, or the caller's rights, allow.
pub fn set_open_files_max(wanted: Option<u64>) -> Result<u64, RlimitError> {
    let present = getrlimit(Resource::Nofile);
    let soft = present.current.unwrap_or(u64::MAX);
    let hard = present.maximum.unwrap_or(u64::MAX);
    // Without /proc the kernel is the only judge.
    let possible = std::fs::read_to_string(NR_OPEN).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    let set = |limit: u64| setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) });
    match wanted {
        Some(0) => Ok(soft),
        Some(wanted) if wanted > possible => Err(RlimitError::System { wanted, possible }),
        Some(wanted) => match set(wanted) {
            Ok(()) => Ok(wanted),
            Err(source) => Err(RlimitError::Refused { wanted, hard, source }),
        },
        None if soft >= OPEN_FILES_DEFAULT => Ok(soft),
        None => {
            let limit = OPEN_FILES_DEFAULT.min(possible);
            if set(limit).is_ok() {
                return Ok(limit);
            }
            // The hard limit is everybody's to take, and less only where it was set to less for a reason.
            let limit = hard.min(limit);
            match set(limit) {
                Ok(()) => Ok(limit),
                Err(_) => Ok(soft),
            }
        }
    }
}
