//! What the daemon chooses by itself is told, can be recorded, and is decided again from the record; and it can be told to choose
//! nothing.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use serde_json::Value;
use tests::daemon::{DIRECTORY, Daemon};
use tests::vringd;

/// A trial needs a fifth of a second of a processor that nothing interrupts.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `vringd` to its end, with its log and errors.
fn run(daemon: &Daemon, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(vringd::program()?);
    command.args(arguments).current_dir(daemon.path());
    command.env("VRINGD_CONTROL", "control.sock");
    command.output().context("vringd runs")
}

/// The same, for what has to succeed.
fn said(daemon: &Daemon, arguments: &[&str]) -> Result<String> {
    let output = run(daemon, arguments)?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn decisions_are_told_recorded_and_made_again() -> Result<()> {
    let daemon = Daemon::serve(&format!(
        "workers = 1\nfavour = 'efficiency'\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 1\n\
         storage = {{ kind = 'memory', size = '16M' }}\n"
    ))?;
    let spec = Spec { rw: Rw::RandRw, mix: 50, depth: 1, queues: 1, verify: true, ..Spec::default() };
    let load = Load::start(&daemon.socket("disk"), &spec)?;
    let policy = || -> Result<Value> { Ok(serde_json::from_str(&said(&daemon, &["ctl", "policy", "--json"])?)?) };
    let start = Instant::now();
    let worker = loop {
        let policy = policy()?;
        assert_eq!(policy["favour"], "efficiency");
        let worker = policy["workers"][0].clone();
        if worker["trials"].as_u64() >= Some(1) {
            break worker;
        }
        ensure!(start.elapsed() < PATIENCE, "nothing was tried: {worker}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(worker["pinned"], false);
    assert!(worker["decisions"][0]["why"].as_str().is_some_and(|why| why.contains("us a request")), "{worker}");
    assert!(said(&daemon, &["ctl", "policy"])?.starts_with("favours efficiency\n"));
    // The preference is another at once, and the work goes on.
    assert!(said(&daemon, &["ctl", "policy", "--favour", "latency"])?.starts_with("favours latency\n"));
    // The busy worker hears of it without being told.
    loop {
        let record: Value = daemon.client().get("/v1/policy/record")?;
        let last = record["workers"][0]["stretches"].as_array().and_then(|stretches| stretches.last().cloned());
        if last.is_some_and(|last| last["before"]["favour"] == "latency" && last["verdicts"][0].is_object()) {
            break;
        }
        ensure!(start.elapsed() < 2 * PATIENCE, "nothing was tried for the new preference: {record}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let saved = said(&daemon, &["ctl", "policy", "--record", "record.json"])?;
    assert!(saved.starts_with("saved ") && saved.ends_with(" to record.json\n"), "{saved}");
    let (report, _) = load.finish_connected()?;
    assert!(report.is_clean(), "{:?}", report.faults);

    let told = said(&daemon, &["policy", "replay", "record.json", "--with", "favour=balance"])?;
    assert!(told.lines().count() >= 1 && told.lines().all(|line| line.starts_with("worker-0 ")), "{told}");
    let json = said(&daemon, &["policy", "replay", "record.json", "--json"])?;
    let first: Value = serde_json::from_str(json.lines().next().context("a decision")?)?;
    assert_eq!(first["decision"]["recorded"], first["decision"]["again"]);

    let record = std::fs::read_to_string(daemon.path().join("record.json"))?;
    let mut other: Value = serde_json::from_str(&record)?;
    other["workers"][0]["stretches"][0]["verdicts"] = Value::Array(Vec::new());
    for (text, status, word) in [
        (other.to_string(), 1, "its decisions are not those that this program"),
        (record.replacen("\"version\":1", "\"version\":7", 1), 2, "version: form 7 of a record"),
        (record.replacen("\"samples\":[{", "\"samples\":[{\"more\":1,", 1), 2, "stretches[0].samples[0]"),
        (format!("{record} {{}}"), 2, "no record of a policy: trailing characters"),
        ("disk.img".to_owned(), 2, "no record of a policy"),
    ] {
        std::fs::write(daemon.path().join("other.json"), text)?;
        let output = run(&daemon, &["policy", "replay", "other.json"])?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{error}");
        assert!(error.contains("other.json") && error.contains(word) && error.lines().count() == 1, "{error}");
    }
    daemon.stop()
}

/// Two queues on a worker each, with so little to do that one worker is enough.
fn idle_workers(policy: &str) -> Result<(Daemon, Load)> {
    let daemon = Daemon::serve(&format!(
        "workers = 2\npolicy = '{policy}'\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 2\n\
         limits = {{ iops = 2000 }}\nstorage = {{ kind = 'memory', size = '16M' }}\n"
    ))?;
    let spec = Spec { rw: Rw::RandRw, mix: 50, depth: 1, queues: 2, verify: true, ..Spec::default() };
    let load = Load::start(&daemon.socket("disk"), &spec)?;
    daemon.wait_ring("disk", 1, |ring| ring.worker.is_some())?;
    Ok((daemon, load))
}

fn workers_of(daemon: &Daemon) -> Result<Vec<Option<u32>>> {
    (0..2).map(|ring| Ok(daemon.ring("disk", ring)?.worker)).collect()
}

fn placement(daemon: &Daemon) -> Result<Value> {
    Ok(daemon.client().get::<Value>("/v1/policy")?["placement"].clone())
}

/// Looks that decide are a tenth of a second apart, and ten of them gather.
const LONG_ENOUGH: Duration = Duration::from_secs(4);

#[test]
fn rings_with_little_to_do_share_a_worker_until_somebody_says_otherwise() -> Result<()> {
    let (daemon, load) = idle_workers("auto")?;
    let start = Instant::now();
    let workers = loop {
        let (placement, workers) = (placement(&daemon)?, workers_of(&daemon)?);
        let decisions = placement["decisions"].as_array().cloned().unwrap_or_default();
        let gathered = decisions.iter().find(|decision| decision["cause"] == "gather");
        if let Some(gathered) = gathered
            && workers[0] == workers[1]
        {
            let why = gathered["why"].as_str().unwrap_or_default();
            ensure!(why.ends_with("processors' work on 2 workers, where 1 are enough"), "{why}");
            break workers;
        }
        // On a machine that is busy with other things a change may look like a loss, be undone, and be tried again only when the load shifts.
        ensure!(start.elapsed() < PATIENCE, "the rings do not come together: {placement}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(said(&daemon, &["ctl", "policy"])?.contains("\nrings, "));
    // What was seen gives the same decisions again, and a decision that was made up is noticed.
    said(&daemon, &["ctl", "policy", "--record", "record.json"])?;
    let told = said(&daemon, &["policy", "replay", "record.json"])?;
    assert!(told.lines().any(|line| line.starts_with("rings ") && line.contains(": gather ")), "{told}");
    let record = std::fs::read_to_string(daemon.path().join("record.json"))?;
    let other = record.replacen("\"cause\":\"gather\"", "\"cause\":\"spread\"", 1);
    ensure!(other != record, "no decision in {record}");
    std::fs::write(daemon.path().join("other.json"), other)?;
    assert_eq!(run(&daemon, &["policy", "replay", "other.json"])?.status.code(), Some(1));
    // Attached by hand, a ring stays where it is.
    let other = workers[0].map(|worker| 1 - worker).context("a worker")?;
    daemon.attach("disk", 0, other)?;
    std::thread::sleep(LONG_ENOUGH);
    assert_eq!(daemon.ring("disk", 0)?.worker, Some(other));
    let (report, _) = load.finish_connected()?;
    assert!(report.is_clean(), "{:?}", report.faults);
    daemon.stop()
}

#[test]
fn a_fixed_policy_moves_and_tries_nothing_until_it_may() -> Result<()> {
    let (daemon, load) = idle_workers("fixed")?;
    let before = workers_of(&daemon)?;
    std::thread::sleep(LONG_ENOUGH);
    assert_eq!((workers_of(&daemon)?, placement(&daemon)?["changes"].clone()), (before, 0.into()));
    assert!(said(&daemon, &["ctl", "policy"])?.starts_with("fixed: nothing is tried, learned or moved\n"));
    assert!(said(&daemon, &["ctl", "policy", "--set", "auto"])?.starts_with("favours balance\n"));
    let start = Instant::now();
    while placement(&daemon)?["changes"] == 0 {
        ensure!(start.elapsed() < PATIENCE, "no ring is moved");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (report, _) = load.finish_connected()?;
    assert!(report.is_clean(), "{:?}", report.faults);
    daemon.stop()
}
