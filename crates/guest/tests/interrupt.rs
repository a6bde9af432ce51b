//! A person's wish to stop. A file of its own: the wish holds for the whole process.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::{Host, Shell, interrupt};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn wish_ends_what_runs_and_what_follows() -> Result<()> {
    interrupt::check()?;
    let running = thread::spawn(|| Host::new().run("sleep 3600", LONG));
    interrupt::request();
    let error = running.join().ok().context("it does not panic")?.unwrap_err();
    ensure!(error.to_string() == "interrupted", "{error:#}");
    ensure!(interrupt::requested() && interrupt::check().is_err());
    ensure!(Host::new().run("sleep 3600", LONG).is_err());
    Ok(())
}
