//! A person's wish to stop. A file of its own: the wish holds for the whole process.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::{Host, Shell, interrupt};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn wish_ends_what_runs_and_what_follows() -> Result<()> {
    interrupt::check()?;
    let scratch = tempfile::tempdir()?;
    // As fio starts its jobs: out of the group of the script.
    let id = scratch.path().join("id");
    let script = format!("setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 3600' & wait", id.display());
    let running = thread::spawn(move || Host::new().run(&script, LONG));
    while !id.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    let job = std::fs::read_to_string(&id)?;
    interrupt::request();
    let error = running.join().ok().context("it does not panic")?.unwrap_err();
    ensure!(error.to_string() == "interrupted", "{error:#}");
    // It is killed by then, and gone when the kernel has come round to it; an hour is what it would sleep.
    while state_of(job.trim()).is_some_and(|state| state != "Z") {
        thread::sleep(Duration::from_millis(10));
    }
    ensure!(interrupt::requested() && interrupt::check().is_err());
    ensure!(Host::new().run("sleep 3600", LONG).is_err());
    Ok(())
}

/// The state letter of a process (proc(5)), which nobody may have waited for yet.
fn state_of(id: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace().next()?.to_owned())
}
