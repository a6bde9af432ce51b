//! Rings move between workers, and workers come and go, while verified requests are in flight.

use std::time::Duration;

use anyhow::{Result, ensure};
use bench::frontend::{Load, Report, Rw, Spec};
use control::model::{Execution, Placement, Poll, Settings};
use tests::daemon::{DIRECTORY, Daemon, directory, refusal};
use tests::image;

const QUEUES: u16 = 2;
const MIB: u64 = 1 << 20;

fn verified(depth: u16) -> Spec {
    Spec { rw: Rw::RandRw, mix: 50, depth, queues: QUEUES, verify: true, ..Spec::default() }
}

fn check(report: &Report) {
    assert!(report.is_clean(), "{} errors, {} mismatches: {:?}", report.errors, report.mismatches, report.faults);
    assert!(report.reads > 0 && report.writes > 0, "{report:?}");
}

/// A daemon with three shared workers and one export named `disk`.
fn daemon(storage: &str) -> Result<Daemon> {
    Daemon::serve(&config(storage))
}

fn config(storage: &str) -> String {
    format!(
        "workers = 3\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = {QUEUES}\nstorage = {storage}\n"
    )
}

/// As [`daemon`], on a file.
fn file_daemon() -> Result<Daemon> {
    let directory = directory()?;
    image::sparse(directory.path(), "disk.img", 64 * MIB)?;
    Daemon::serve_in(directory, &config(&format!("{{ kind = 'file', path = '{DIRECTORY}/disk.img' }}")))
}

/// Moves each ring in turn over all workers, at least `most` moves in all.
fn move_rings(daemon: &Daemon, workers: &[u32], most: u64) -> Result<u64> {
    let mut made = 0;
    while made < most {
        for ring in 0..QUEUES {
            let now = daemon.ring("disk", ring)?.worker;
            let at = workers.iter().position(|worker| Some(*worker) == now).unwrap_or(0);
            let next = workers[(at + 1) % workers.len()];
            let shown = daemon.attach("disk", ring, next)?;
            ensure!(shown.worker == Some(next), "attached to {next}, but the answer shows {shown:?}");
            made += 1;
        }
    }
    Ok(made)
}

fn moves_so_far(daemon: &Daemon) -> Result<u64> {
    (0..QUEUES).map(|ring| Ok(daemon.ring("disk", ring)?.figures.moves)).sum()
}

fn thousand_moves(daemon: Daemon) -> Result<()> {
    let private = daemon.new_worker(Some("disk"))?;
    let load = Load::start(&daemon.socket("disk"), &verified(32))?;
    let made = move_rings(&daemon, &[0, 1, 2, private], 1_200)?;
    assert_eq!(moves_so_far(&daemon)?, made);
    check(&load.finish()?);
    daemon.stop()
}

#[test]
fn a_thousand_moves_on_a_file_lose_nothing() -> Result<()> {
    thousand_moves(file_daemon()?)
}

#[test]
fn a_thousand_moves_on_memory_lose_nothing() -> Result<()> {
    thousand_moves(daemon("{ kind = 'memory', size = '64M' }")?)
}

const SLOW: &str = "{ kind = 'sim', size = '64M', read_latency = '10ms', write_latency = '10ms', channels = 256 }";

#[test]
fn requests_that_take_long_survive_moves() -> Result<()> {
    let daemon = daemon(SLOW)?;
    let load = Load::start(&daemon.socket("disk"), &verified(16))?;
    move_rings(&daemon, &[0, 1, 2], 400)?;
    check(&load.finish()?);
    let in_flight: u64 =
        (0..QUEUES).map(|ring| daemon.ring("disk", ring).map_or(1, |ring| ring.figures.in_flight)).sum();
    assert_eq!(in_flight, 0);
    daemon.stop()
}

/// A worker may be freed as soon as no ring is attached, although requests that it started are in flight.
#[test]
fn a_worker_is_freed_while_requests_are_in_flight_there() -> Result<()> {
    let daemon = daemon(SLOW)?;
    let load = Load::start(&daemon.socket("disk"), &verified(16))?;
    for round in 0..20 {
        let owner = (round % 2 == 0).then_some("disk");
        let worker = daemon.new_worker(owner)?;
        daemon.attach("disk", 0, worker)?;
        daemon.wait_ring("disk", 0, |ring| ring.figures.in_flight > 0)?;
        let (code, status) = refusal(daemon.free_worker(worker));
        assert_eq!((code.as_str(), status), ("busy", 409));
        daemon.attach("disk", 0, 1)?;
        daemon.free_worker(worker)?;
        let left = daemon.workers()?;
        assert!(left.iter().all(|other| other.id != worker), "{left:?}");
    }
    check(&load.finish()?);
    daemon.stop()
}

#[test]
fn a_ring_cannot_be_attached_where_it_may_not_be() -> Result<()> {
    let other = format!(
        "[[export]]\nname = 'other'\nsocket = '{DIRECTORY}/other.sock'\nqueues = 1\nworkers = 'one'\n\
         storage = {{ kind = 'null', size = '1M' }}\n"
    );
    let daemon = Daemon::serve(&(config("{ kind = 'memory', size = '64M' }") + &other))?;
    let foreign = daemon.export("other")?.workers[0];
    let load = Load::start(&daemon.socket("disk"), &verified(8))?;
    let before = daemon.ring("disk", 0)?.worker;

    let code = |result| {
        let (code, status) = refusal(result);
        format!("{code} {status}")
    };
    assert_eq!(code(daemon.attach("disk", 0, 4711)), "no-such-worker 404");
    assert_eq!(code(daemon.attach("disk", 0, foreign)), "no-such-worker 404");
    assert_eq!(code(daemon.attach("disk", QUEUES, 0)), "no-such-ring 404");
    assert_eq!(code(daemon.attach("nothing", 0, 0)), "no-such-export 404");
    let freed = daemon.new_worker(None)?;
    daemon.free_worker(freed)?;
    assert_eq!(code(daemon.attach("disk", 0, freed)), "no-such-worker 404");
    let busy = refusal(daemon.free_worker(before.expect("a running ring has a worker")));
    assert_eq!(busy, ("busy".into(), 409));

    assert_eq!(daemon.ring("disk", 0)?.worker, before, "a refusal moves nothing");
    check(&load.finish()?);
    daemon.stop()
}

/// What [`change_under_load`] sets and what the export must show then.
fn change_under_load(daemon: &Daemon, settings: &[Settings]) -> Result<()> {
    let mut load = Load::start(&daemon.socket("disk"), &verified(16))?;
    for setting in settings {
        let shown = daemon.change("disk", setting)?;
        if let Some(placement) = setting.placement {
            assert_eq!(shown.placement, placement);
        }
        if let Some(execution) = setting.execution {
            assert_eq!(shown.storage.unwrap().execution, execution);
        }
        if let Some(poll) = setting.poll {
            assert_eq!(shown.poll, poll);
        }
        // The new rule has to serve some requests before the next one comes.
        let target = load.snapshot().ops + 200;
        while load.snapshot().ops < target && !load.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    check(&load.finish()?);
    Ok(())
}

#[test]
fn placement_changes_under_load() -> Result<()> {
    let daemon = daemon("{ kind = 'memory', size = '64M' }")?;
    let rules = [Placement::PerQueue, Placement::One, Placement::Workers(3), Placement::Shared, Placement::PerQueue];
    let mut settings = Vec::new();
    for _ in 0..5 {
        settings.extend(rules.map(|rule| Settings { placement: Some(rule), ..Settings::default() }));
    }
    change_under_load(&daemon, &settings)?;

    let private = |rule| -> Result<usize> {
        Ok(daemon.change("disk", &Settings { placement: Some(rule), ..Settings::default() })?.workers.len())
    };
    assert!(private(Placement::PerQueue)? <= usize::from(QUEUES));
    assert_eq!(private(Placement::Shared)?, 0, "nobody needs the private workers any more");
    daemon.stop()
}

#[test]
fn execution_changes_under_load() -> Result<()> {
    let daemon = file_daemon()?;
    let kinds = [Execution::Uring, Execution::Inline, Execution::Pool(4), Execution::Auto];
    let mut settings = Vec::new();
    for _ in 0..5 {
        settings.extend(kinds.map(|kind| Settings { execution: Some(kind), ..Settings::default() }));
    }
    change_under_load(&daemon, &settings)?;
    daemon.stop()
}

#[test]
fn the_poll_window_changes_under_load() -> Result<()> {
    let daemon = daemon("{ kind = 'memory', size = '64M' }")?;
    daemon.change("disk", &Settings { placement: Some(Placement::PerQueue), ..Settings::default() })?;
    let windows = [Poll::Off, Poll::Fixed(100), Poll::Adaptive(20), Poll::Fixed(1_000_000), Poll::Off];
    let mut settings = Vec::new();
    for _ in 0..5 {
        settings.extend(windows.map(|window| Settings { poll: Some(window), ..Settings::default() }));
    }
    change_under_load(&daemon, &settings)?;
    daemon.stop()
}

#[test]
fn an_execution_that_storage_cannot_have_is_refused() -> Result<()> {
    let daemon = daemon("{ kind = 'memory', size = '64M' }")?;
    let load = Load::start(&daemon.socket("disk"), &verified(8))?;
    let settings = Settings { execution: Some(Execution::Uring), ..Settings::default() };
    assert_eq!(refusal(daemon.change("disk", &settings)), ("unsupported".into(), 409));
    check(&load.finish()?);
    daemon.stop()
}

#[test]
fn a_change_that_is_refused_half_way_changes_nothing() -> Result<()> {
    let directory = directory()?;
    image::sparse(directory.path(), "disk.img", 64 * MIB)?;
    // Room for one worker of the export's own, where `per-queue` needs two.
    let bounded = config(&format!("{{ kind = 'file', path = '{DIRECTORY}/disk.img' }}"));
    let daemon = Daemon::serve_in(directory, &format!("workers_max = 4\n{bounded}"))?;
    let load = Load::start(&daemon.socket("disk"), &verified(8))?;
    daemon.wait_ring("disk", QUEUES - 1, |ring| ring.figures.requests() > 0)?;
    let before = daemon.export("disk")?;
    let settings = Settings {
        execution: Some(Execution::Pool(2)),
        poll: Some(Poll::Off),
        placement: Some(Placement::PerQueue),
        ..Settings::default()
    };
    assert_eq!(refusal(daemon.change("disk", &settings)), ("too-many-workers".into(), 409));
    let after = daemon.export("disk")?;
    assert_eq!(after.storage.map(|storage| storage.execution), before.storage.map(|storage| storage.execution));
    assert_eq!((after.poll, after.placement), (before.poll, before.placement));
    assert!(after.workers.is_empty(), "a worker of its own was left: {:?}", after.workers);
    check(&load.finish()?);
    daemon.stop()
}
