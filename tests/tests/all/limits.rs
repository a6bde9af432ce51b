//! Limits under real load: they hold, change while requests wait, move with rings, and keep nobody from leaving.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use control::model::{Group, GroupSettings, Limits, NewGroup, Rates, Settings};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon, refusal};
use tests::fuse::{Client, ROOT, op};
use tests::vringd;

const QUEUES: u16 = 2;
const MIB: u64 = 1 << 20;
/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with two shared workers, a group `gold`, and the disks `a` and `b`, of which `b` is in the group.
fn daemon(limits: &str) -> Result<Daemon> {
    let disk = |name: &str, limits: &str| {
        format!(
            "[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = {QUEUES}\n\
             storage = {{ kind = 'memory', size = '64M' }}\nlimits = {{ {limits} }}\n"
        )
    };
    let group = "[[group]]\nname = 'gold'\niops = 1000\n";
    Daemon::serve(&format!("workers = 2\n{group}{}{}", disk("a", limits), disk("b", "group = 'gold'")))
}

fn verified(depth: u16) -> Spec {
    Spec { rw: Rw::RandRw, mix: 50, depth, queues: QUEUES, verify: true, ..Spec::default() }
}

fn limit(daemon: &Daemon, export: &str, limits: Value) -> Result<Limits> {
    let limits: Limits = serde_json::from_value(limits)?;
    Ok(daemon.change(export, &Settings { limits: Some(limits), ..Settings::default() })?.limits)
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !there() {
        ensure!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn throttled(daemon: &Daemon, export: &str) -> Result<u64> {
    Ok(daemon.export(export)?.rings.iter().map(|ring| ring.figures.throttled).sum())
}

#[test]
fn no_more_requests_pass_than_the_limit_allows() -> Result<()> {
    let daemon = daemon("iops = 2000, burst_requests = 100")?;
    let start = Instant::now();
    let mut load = Load::start(&daemon.socket("a"), &verified(32))?;
    wait_for("two thousand requests", || load.snapshot().ops >= 2000)?;
    // While the frontend is there: its rings go with it, and their figures with them.
    assert!(throttled(&daemon, "a")? > 0);
    let seconds: f64 = daemon.export("a")?.rings.iter().map(|ring| ring.figures.throttled_seconds).sum();
    assert!(seconds > 0.0);
    let report = load.finish()?;
    let most = 2000.0 * start.elapsed().as_secs_f64() + 100.0;
    assert!(report.is_clean(), "{:?}", report.faults);
    assert!(report.ops as f64 <= most, "{} of at most {most}", report.ops);
    daemon.stop()
}

#[test]
fn no_more_bytes_pass_than_the_limit_allows() -> Result<()> {
    let daemon = daemon("bytes_per_second = '16M', burst_bytes = '1M'")?;
    let start = Instant::now();
    let spec = Spec { rw: Rw::Read, block_bytes: 1 << 18, depth: 4, queues: QUEUES, ..Spec::default() };
    let mut load = Load::start(&daemon.socket("a"), &spec)?;
    wait_for("sixteen MiB", || load.snapshot().bytes >= 16 * MIB)?;
    let report = load.finish()?;
    // The last request of each ring may overdraw.
    let most = 16.0 * MIB as f64 * start.elapsed().as_secs_f64() + (1 + u64::from(QUEUES)) as f64 * MIB as f64;
    assert!(report.bytes as f64 <= most, "{} of at most {most}", report.bytes);
    daemon.stop()
}

#[test]
fn a_limit_that_is_lifted_lets_waiting_requests_go_at_once() -> Result<()> {
    let daemon = daemon("iops = 1")?;
    let load = Load::start(&daemon.socket("a"), &Spec { ops: Some(20_000), ..verified(16) })?;
    // At one a second this would take five hours.
    wait_for("a request that waits", || throttled(&daemon, "a").is_ok_and(|count| count > 0))?;
    assert!(!load.is_finished());
    assert_eq!(limit(&daemon, "a", json!({"iops": 1_000_000}))?.iops, Some(1_000_000));
    assert!(limit(&daemon, "a", json!({"iops": 0}))?.is_none());
    wait_for("the rest of the load", || load.is_finished())?;
    let report = load.finish()?;
    assert!(report.is_clean() && report.ops == 20_000, "{report:?}");
    daemon.stop()
}

#[test]
fn a_group_that_is_changed_lets_its_exports_go() -> Result<()> {
    let daemon = daemon("")?;
    let change = |settings: GroupSettings| -> Result<Group> {
        Ok(daemon.client().send(Method::PATCH, "/v1/groups/gold", &settings)?)
    };
    let slow = change(GroupSettings { iops: Some(1), ..GroupSettings::default() })?;
    assert_eq!((slow.iops, slow.exports), (Some(1), vec!["b".to_owned()]));
    let load = Load::start(&daemon.socket("b"), &Spec { ops: Some(20_000), ..verified(16) })?;
    wait_for("a request that waits", || throttled(&daemon, "b").is_ok_and(|count| count > 0))?;
    assert!(!load.is_finished());
    change(GroupSettings { iops: Some(0), ..GroupSettings::default() })?;
    wait_for("the rest of the load", || load.is_finished())?;
    assert!(load.finish()?.is_clean());
    daemon.stop()
}

#[test]
fn rings_that_wait_move_and_lose_nothing() -> Result<()> {
    let daemon = daemon("iops = 5000")?;
    let load = Load::start(&daemon.socket("a"), &verified(32))?;
    for step in 0..200u32 {
        let ring = (step % u32::from(QUEUES)) as u16;
        daemon.attach("a", ring, (step / 2) % 2)?;
        if step % 50 == 0 {
            let change =
                if step % 100 == 0 { json!({"iops": 3000, "group": "gold"}) } else { json!({"iops": 0, "group": ""}) };
            limit(&daemon, "a", change)?;
        }
    }
    limit(&daemon, "a", json!({"iops": 0, "group": ""}))?;
    let report = load.finish()?;
    assert!(report.is_clean() && report.ops > 0, "{report:?}");
    daemon.stop()
}

/// A frontend in a process of its own, which can be killed with requests on its rings. It is when this is dropped.
struct Frontend(Child);

impl Frontend {
    fn start(daemon: &Daemon, export: &str) -> Result<Frontend> {
        let mut command = Command::new(vringd::program()?);
        command.args(["bench", "disk", "--time", "600", "--queues", "2", "--depth", "16", "--socket"]);
        command.arg(daemon.socket(export)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let frontend = Frontend(command.spawn().context("vringd bench disk starts")?);
        wait_for("a request that waits", || throttled(daemon, export).is_ok_and(|count| count > 0))?;
        Ok(frontend)
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        // It has ended by itself if this fails.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn a_frontend_leaves_while_its_requests_wait() -> Result<()> {
    let daemon = daemon("iops = 2")?;
    drop(Frontend::start(&daemon, "a")?);
    daemon.wait_disconnected("a")?;
    // The limit holds for the next one too, and goes when it is lifted.
    let again = Frontend::start(&daemon, "a")?;
    limit(&daemon, "a", json!({"iops": 0}))?;
    let before = daemon.ring("a", 0)?.figures.requests();
    daemon.wait_ring("a", 0, |ring| ring.figures.requests() > before + 1000)?;
    drop(again);
    daemon.wait_disconnected("a")?;
    daemon.stop()
}

#[test]
fn the_daemon_ends_while_requests_wait() -> Result<()> {
    let daemon = daemon("iops = 1")?;
    let _frontend = Frontend::start(&daemon, "a")?;
    daemon.stop()
}

#[test]
fn requests_of_a_directory_wait_and_urgent_ones_do_not() -> Result<()> {
    let shared = TempDir::new()?;
    std::fs::write(shared.path().join("file"), "contents")?;
    let path = shared.path().display();
    let daemon = Daemon::serve(&format!(
        "workers = 1\n[[export]]\nname = 'home'\nkind = 'dir'\nsocket = '{DIRECTORY}/home.sock'\nqueues = 1\n\
         limits = {{ iops = 1 }}\ndirectory = {{ path = '{path}' }}\n"
    ))?;
    let mut client = Client::begin(&daemon.socket("home"))?;
    let file = client.lookup(ROOT, "file")?;
    // At one a second these take most of a minute.
    let calls: Vec<_> = (0..50).map(|_| client.begin_call(op::ACCESS, ROOT, &[0; 8])).collect();
    client.forget(file, 1);
    assert!(calls.last().is_some_and(|last| !client.has_ended(*last)));
    limit(&daemon, "home", json!({"iops": 0}))?;
    for call in calls {
        client.end_call(call)?.ok()?;
    }
    let rings = daemon.export("home")?.rings;
    assert_eq!(rings[0].figures.throttled, 0, "{:?}", rings[0]);
    assert!(rings[1].figures.throttled > 0, "{:?}", rings[1]);
    daemon.stop()
}

#[test]
fn groups_are_made_named_and_removed() -> Result<()> {
    let daemon = daemon("")?;
    let client = daemon.client();
    let silver = NewGroup::new("silver", Rates { bytes_per_second: Some(MIB), ..Rates::default() });
    client.send::<Group>(Method::POST, "/v1/groups", &silver)?;
    assert_eq!(refusal(client.send::<Group>(Method::POST, "/v1/groups", &silver)), ("group-exists".into(), 409));
    assert_eq!(refusal(client.order(Method::DELETE, "/v1/groups/gold")), ("group-in-use".into(), 409));
    assert_eq!(refusal(client.get::<Group>("/v1/groups/none")), ("no-such-group".into(), 404));
    let unknown = Settings { limits: Some(serde_json::from_value(json!({"group": "none"}))?), ..Settings::default() };
    assert_eq!(refusal(daemon.change("a", &unknown)), ("invalid-field".into(), 422));
    assert_eq!(limit(&daemon, "b", json!({"group": "silver"}))?.group.as_deref(), Some("silver"));
    client.order(Method::DELETE, "/v1/groups/gold")?;
    let left: Vec<Group> = client.get("/v1/groups")?;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].exports, ["b"]);
    daemon.stop()
}
