//! Whether a connection has room: librbd ends the program where it can have no thread, and waits for ever where it can have no descriptor.

use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};

/// Descriptors that a connection has while it is made, and some for whoever else wants one meanwhile.
const DESCRIPTORS: usize = 40;
/// Its threads, and those of the image.
const THREADS: usize = 20;
/// Stack of a thread that does nothing.
const STACK_BYTES: usize = 64 << 10;

/// Whether there is room for so many connections. What is missing, and what gives it.
pub(crate) fn look(connections: usize) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    // Where `/proc` is not to be seen nothing is known.
    if let (Some(limit), Ok(open)) = (limit, fs::read_dir("/proc/self/fd")) {
        descriptors(open.count(), limit, connections)?;
    }
    threads(THREADS * connections).map_err(|error| {
        format!("it takes about {THREADS} threads, and there can be none ({error}): raise `TasksMax=` and `LimitNPROC=` of the unit (`ulimit -u`)")
    })
}

fn descriptors(open: usize, limit: usize, connections: usize) -> Result<(), String> {
    if open + DESCRIPTORS * connections <= limit {
        return Ok(());
    }
    Err(format!(
        "it takes about {DESCRIPTORS} descriptors, and {open} are open of {limit}: raise `LimitNOFILE=` of the unit (`ulimit -n`)"
    ))
}

/// Has so many threads for a moment. Of limits there are several (a user's, a control group's and those above it, the machine's), of which
/// most are not to be seen in a sandbox, and none says what others will have of it.
fn threads(count: usize) -> io::Result<()> {
    // One look at a time: two would take each other's room.
    static LOOKING: Mutex<()> = Mutex::new(());
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let gate = Mutex::new(());
    thread::scope(|scope| {
        // They stay until it is open, which it is when all are there, and when there can be no more.
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..count {
            let thread = Builder::new().name("rbd-room".to_owned()).stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, || drop(gate.lock()))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_named_with_its_limit() {
        look(1).unwrap();
        descriptors(984, 1024, 1).unwrap();
        let short = descriptors(985, 1024, 1).unwrap_err();
        assert!(short.contains("985 are open of 1024") && short.contains("LimitNOFILE="), "{short}");
        // Those who came at the same time have none yet.
        descriptors(900, 1024, 4).unwrap_err();
        threads(THREADS).unwrap();
    }
}
