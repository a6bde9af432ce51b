//! Threads that another program would have to wait for.
//!
//! `execve` ends all threads of the process, and waits for each however long the kernel keeps it: a thread that is with a device or a file
//! system that hangs would have guests wait, for as long as that does. What is seen here is seen before anybody pauses.

use super::{check::ASK_THREAD, descriptors};
use crate::live::{END_THREAD, TARGET_THREAD};
use disk::CLOSE_THREAD;
use engine::RING_END_THREAD;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// Those that are there only while something is opened, closed or looked at, or is to be closed before another program takes over. Some file systems (FUSE) have them wait interruptibly, and
/// without an end once they are to die: state D would be seen too late.
const ALONE: [&str; 7] =
    [tls::LOOK_THREAD, TARGET_THREAD, CLOSE_THREAD, END_THREAD, RING_END_THREAD, ASK_THREAD, descriptors::END_THREAD];

/// What a thread waits in: as long as it is the same, so is this.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wait {
    name: String,
    /// How often it has left its processor.
    switches: u64,
}

impl Wait {
    /// By `/proc/PID/task/TID/status`. None for a thread that ends when it is told to.
    fn of(status: &str) -> Option<Wait> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        let name = field("Name")?.to_owned();
        if ALONE.contains(&name.as_str()) {
            return Some(Wait { name, switches: 0 });
        }
        let switches = field("voluntary_ctxt_switches")?.parse().ok()?;
        field("State")?.starts_with('D').then_some(Wait { name, switches })
    }

    /// Whether its name says what it is there for.
    fn is_known(&self) -> bool {
        ALONE.contains(&self.name.as_str())
    }
}

/// Threads of this process that wait, by their numbers. None where that cannot be seen.
fn waits() -> BTreeMap<String, Wait> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let wait = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        Some((task.file_name().to_string_lossy().into_owned(), Wait::of(&status)?))
    };
    tasks.filter_map(wait).collect()
}

/// Waits until no thread waits as it did, for as long as `patience` at most.
///
/// # Errors
/// One that still does, and what to do.
pub(super) fn check(patience: Duration) -> Result<(), String> {
    let (by, before) = (Instant::now() + patience, passthrough::closing());
    wait_for_closes(by, |number, done| before.get(&number) == Some(&done))?;
    wait_for(by, |_| true)
}

/// As above, of those that are known by their names: any other may wait for a disk that takes its time.
///
/// # Errors
/// As above.
pub(super) fn check_known(patience: Duration) -> Result<(), String> {
    // What is left to that thread is closed by the process that ends, otherwise.
    let by = Instant::now() + patience;
    wait_for_closes(by, |_, _| true)?;
    wait_for(by, Wait::is_known)
}

/// Waits until nothing of a directory is being closed, or none of that `counts` any more, by its thread and what that has done.
fn wait_for_closes(by: Instant, counts: impl Fn(u64, u64) -> bool) -> Result<(), String> {
    while passthrough::closing().into_iter().any(|(number, done)| counts(number, done)) {
        if Instant::now() >= by {
            return Err("a file of a directory is being closed, and the other program would wait for it: look at its file system, and try again".to_owned());
        }
        std::thread::sleep(LOOK_AGAIN_AFTER);
    }
    Ok(())
}

fn wait_for(by: Instant, counts: impl Fn(&Wait) -> bool) -> Result<(), String> {
    let mut left = waits();
    left.retain(|_, wait| counts(wait));
    while let Some((number, Wait { name, .. })) = left.first_key_value() {
        if Instant::now() >= by {
            let why = "waits for a file or a device that does not answer, and the other program would wait for it";
            return Err(format!("thread `{name}` ({number}) {why}: look at that, and try again"));
        }
        std::thread::sleep(LOOK_AGAIN_AFTER);
        let now = waits();
        left.retain(|number, wait| now.get(number) == Some(wait));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const MOMENT: Duration = Duration::from_millis(50);

    #[test]
    fn a_thread_that_was_left_alone_is_named_until_it_has_ended() {
        for name in ALONE {
            let (ends, end) = channel::<()>();
            let (begins, begun) = channel();
            let hangs = move || begins.send(()).is_ok() && end.recv().is_err();
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(hangs).unwrap();
            // It has its name from then on.
            begun.recv().unwrap();
            let why = check(MOMENT).unwrap_err();
            assert!(why.contains(&format!("thread `{name}` (")) && !why.contains('\n'), "{why}");
            drop(ends);
            thread.join().unwrap();
            assert!(!check(MOMENT).is_err_and(|why| why.contains(name)));
        }
    }

    #[test]
    fn what_waits_in_the_kernel_is_the_same_wait_until_it_was_woken() {
        let status = |name: &str, state: &str, switches: u64| {
            let also = "Umask:\t0022\nTgid:\t12\nCpus_allowed:\t3\n";
            let counts = format!("voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t2\n");
            Wait::of(&format!("Name:\t{name}\nState:\t{state}\n{also}{counts}"))
        };
        let first = status("worker-0", "D (disk sleep)", 7);
        assert_eq!(first, Some(Wait { name: "worker-0".to_owned(), switches: 7 }));
        assert_ne!(first, status("worker-0", "D (disk sleep)", 8));
        for state in ["S (sleeping)", "R (running)", "Z (zombie)"] {
            assert_eq!(status("worker-0", state, 7), None);
        }
        for name in ALONE {
            assert!(status(name, "S (sleeping)", 7).is_some());
        }
        assert_eq!(Wait::of(""), None);
    }
}
