//! Reads what the kernel says of itself.

use super::{Facts, Refusal};
use engine::Abilities;
use sandbox::State;

/// `uring` was tried by a thread with the daemon's rights.
pub(in crate::doctor) fn read(uring: Result<Abilities, Refusal>) -> Facts {
    let word =
        |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).map(|text| text.trim().to_owned());
    let number = |name: &str| word(name).ok()?.parse::<i64>().ok();
    Facts {
        release: word("osrelease").unwrap_or_default(),
        uring,
        disabled: number("io_uring_disabled").and_then(|number| number.try_into().ok()),
        group: number("io_uring_group"),
        filtered: State::of_thread().is_ok_and(|state| state.seccomp),
    }
}

/// Tries what so many workers need, on the thread that calls.
pub(in crate::doctor) fn try_uring(workers: usize) -> Result<Abilities, Refusal> {
    Abilities::probe(workers).map_err(|error| Refusal { errno: error.raw_os_error(), words: error.to_string() })
}
