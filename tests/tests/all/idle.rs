//! A frontend that is connected and has nothing to ask costs nothing: no thread of the daemon wakes up.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use bench::frontend::{Connection, Load, Rw, Spec};
use tests::daemon::{DIRECTORY, Daemon};

/// Longer than any poll window below, and than what a control connection leaves behind.
const SETTLE: Duration = Duration::from_millis(500);
const WATCHED: Duration = Duration::from_millis(500);

fn daemon(more: &str) -> Result<Daemon> {
    Daemon::serve(&format!(
        "workers = 2\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 2\n\
         storage = {{ kind = 'memory', size = '16M' }}\n{more}\n"
    ))
}

fn spec() -> Spec {
    Spec { rw: Rw::RandRw, mix: 50, depth: 8, queues: 2, verify: true, ..Spec::default() }
}

/// Watches all threads of the daemon, by the kernel's count of context switches and by the workers' own.
fn assert_quiet(daemon: &Daemon) -> Result<()> {
    let sleeps = || -> Result<Vec<u64>> { Ok(daemon.workers()?.iter().map(|worker| worker.figures.sleeps).collect()) };
    thread::sleep(SETTLE);
    // The connection that reads them wakes the daemon's own threads, but no worker.
    let before = sleeps()?;
    thread::sleep(SETTLE);
    let idle = bench::idle(daemon.id(), WATCHED)?;
    assert_eq!(idle.wakeups, 0, "{idle:?}");
    assert_eq!(sleeps()?, before, "a worker woke up");
    Ok(())
}

fn worked_then_quiet(more: &str) -> Result<()> {
    let daemon = daemon(more)?;
    let load = Load::start(&daemon.socket("disk"), &Spec { ops: Some(2_000), ..spec() })?;
    load.wait(|_| ());
    let (report, connection) = load.finish_connected()?;
    assert!(report.is_clean(), "{:?}", report.faults);
    assert!(connection.is_some());
    assert_quiet(&daemon)?;
    drop(connection);
    daemon.wait_disconnected("disk")?;
    assert_quiet(&daemon)?;
    daemon.stop()
}

#[test]
fn a_daemon_without_a_frontend_sleeps() -> Result<()> {
    let daemon = daemon("")?;
    assert_quiet(&daemon)?;
    daemon.stop()
}

#[test]
fn a_frontend_that_never_asked_wakes_nobody() -> Result<()> {
    let daemon = daemon("")?;
    let connection = Connection::open(&daemon.socket("disk"), &spec())?;
    assert_quiet(&daemon)?;
    drop(connection);
    daemon.stop()
}

#[test]
fn shared_workers_sleep_when_the_requests_end() -> Result<()> {
    worked_then_quiet("")
}

#[test]
fn private_workers_sleep_when_the_requests_end() -> Result<()> {
    worked_then_quiet("workers = 'per-queue'\npoll = 'adaptive=1000'")
}

#[test]
fn a_fixed_poll_window_closes_too() -> Result<()> {
    worked_then_quiet("workers = 'one'\npoll = 'fixed=20000'")
}

/// The thread that looks for stuck requests looks no more when none is under way.
#[test]
fn nobody_looks_for_stuck_requests_where_there_are_none() -> Result<()> {
    let daemon = Daemon::serve(&format!(
        "workers = 2\nstuck_after = '50ms'\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 2\n\
         storage = {{ kind = 'memory', size = '16M' }}\n"
    ))?;
    let load = Load::start(&daemon.socket("disk"), &Spec { ops: Some(2_000), ..spec() })?;
    load.wait(|_| ());
    let (report, connection) = load.finish_connected()?;
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_quiet(&daemon)?;
    assert!(!daemon.output().contains("stuck"), "{}", daemon.output());
    drop(connection);
    daemon.stop()
}

#[test]
fn workers_that_a_ring_has_left_sleep() -> Result<()> {
    let daemon = daemon("")?;
    let load = Load::start(&daemon.socket("disk"), &spec())?;
    let private = daemon.new_worker(Some("disk"))?;
    for worker in [0, 1, private].repeat(20) {
        daemon.attach("disk", 0, worker)?;
    }
    let (report, connection) = load.finish_connected()?;
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_quiet(&daemon)?;
    drop(connection);
    daemon.stop()
}
