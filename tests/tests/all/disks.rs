//! Disks apart from exports, under frontends that check every request.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use control::model::{Disk, Export, NewExport, Resize, SessionState};
use http::Method;
use tests::daemon::{DIRECTORY, Daemon, directory, refusal};
use tests::driver::{readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::vringd;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn export(name: &str, disk: &str) -> String {
    format!("[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\ndisk = '{disk}'\n")
}

fn disk(name: &str, storage: &str) -> String {
    format!("[[disk]]\nname = '{name}'\nstorage = {{ {storage} }}\n")
}

fn add(daemon: &Daemon, name: &str, disk: &str) -> Result<Export> {
    let new = serde_json::json!({ "name": name, "socket": daemon.socket(name), "queues": 1, "disk": disk });
    let new: NewExport = serde_json::from_value(new)?;
    Ok(daemon.client().send(Method::POST, "/v1/exports", &new)?)
}

fn resize(daemon: &Daemon, disk: &str, capacity_bytes: u64) -> Result<Disk> {
    let resize: Resize = serde_json::from_value(serde_json::json!({ "capacity_bytes": capacity_bytes }))?;
    Ok(daemon.client().send(Method::PUT, &format!("/v1/disks/{disk}/capacity"), &resize)?)
}

/// One image, opened once, read by two frontends at once: through an upgrade, a resize, and the end of one of them.
#[test]
fn two_frontends_read_one_disk() -> Result<()> {
    let place = directory()?;
    let image = File::create(place.path().join("base.img"))?;
    image.set_len(16 * MIB)?;
    let base = disk("base", &format!("kind = 'file', path = '{DIRECTORY}/base.img', read_only = true"));
    let config = "workers = 2\n".to_owned() + &base + &export("a", "base") + &export("b", "base");
    let daemon = Daemon::serve_in(place, &config)?;
    let reads = Spec { rw: Rw::RandRead, depth: 8, ..Spec::default() };
    let loads = ["a", "b"].map(|name| Load::start(&daemon.socket(name), &reads));
    let [first, second] = loads;
    let (first, second) = (first?, second?);
    let served = |name| daemon.wait_ring(name, 0, |ring| ring.figures.requests() > 100);
    for _ in 0..3 {
        served("a")?;
        served("b")?;
        let takeover = daemon.upgrade()?.takeover.context("it took over")?;
        assert_eq!((takeover.sessions, takeover.lost), (2, vec![]));
    }
    image.set_len(32 * MIB)?;
    image.write_all_at(&[7; 4096], 20 * MIB)?;
    assert_eq!(resize(&daemon, "base", 32 * MIB)?.users.len(), 2);
    for name in ["a", "b"] {
        assert_eq!(daemon.export(name)?.storage.context("a disk")?.capacity_bytes, 32 * MIB);
    }

    let report = first.finish()?;
    assert!(report.errors == 0 && report.reads > 0, "{report:?}");
    daemon.wait_disconnected("a")?;
    let mut frontend = Frontend::connect(&daemon.socket("a"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::IN, 20 * MIB / 512, &[writable(DATA, 4096)]), (status::OK, 4097));
    assert_eq!(frontend.memory().read(DATA, 4096), [7; 4096]);
    assert_ne!(ring.run(kind::OUT, 0, &[readable(DATA, 4096)]).0, status::OK);
    drop((ring, frontend));
    daemon.wait_disconnected("a")?;
    daemon.remove("a", false)?;
    served("b")?;
    let done = daemon.ring("b", 0)?.figures.requests();
    daemon.wait_ring("b", 0, |ring| ring.figures.requests() > done + 100)?;
    let report = second.finish()?;
    assert!(report.errors == 0 && report.reads > 0, "{report:?}");
    daemon.stop()
}

/// A failed export keeps its disk until it is removed; then the disk, with its contents, is for another.
#[test]
fn a_disk_outlives_an_export_that_has_failed() -> Result<()> {
    let model = "kind = 'sim', size = '16M', read_latency = '10us', write_latency = '10us', panic_after = 3";
    let config = "workers = 1\n".to_owned() + &disk("model", model) + &export("bad", "model");
    let mut daemon = Daemon::serve(&config)?;
    let mut frontend = Frontend::connect(&daemon.socket("bad"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    frontend.memory().write(DATA, &[5; 4096]);
    for _ in 0..2 {
        assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 4096)]), (status::OK, 1));
    }
    ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick_if_wanted();
    let start = Instant::now();
    while daemon.export("bad")?.state != SessionState::Failed {
        ensure!(start.elapsed() < LIMIT, "the export does not fail");
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = serde_json::json!({ "name": "good", "socket": daemon.socket("good"), "disk": "model" });
    let second: NewExport = serde_json::from_value(second)?;
    let refused = refusal(daemon.client().send::<Export>(Method::POST, "/v1/exports", &second));
    assert_eq!(refused, ("invalid-field".to_owned(), 422));
    let refused = refusal(daemon.client().order(Method::DELETE, "/v1/disks/model"));
    assert_eq!(refused, ("disk-in-use".to_owned(), 409));

    daemon.remove("bad", false)?;
    assert_eq!(add(&daemon, "good", "model")?.disk.as_deref(), Some("model"));
    let mut frontend = Frontend::connect(&daemon.socket("good"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::IN, 0, &[writable(DATA, 4096)]), (status::OK, 4097));
    assert_eq!(frontend.memory().read(DATA, 4096), [5; 4096]);
    drop((ring, frontend));
    daemon.wait_disconnected("good")?;
    daemon.remove("good", false)?;
    daemon.client().order(Method::DELETE, "/v1/disks/model")?;
    daemon.check_alive()?;
    daemon.stop()
}

/// No file system has as much left as this threshold: the log says so, and the guest of a SCSI device is told; an upgrade takes it along.
#[test]
fn it_is_said_when_a_thin_disk_has_little_space_left() -> Result<()> {
    let place = directory()?;
    File::create(place.path().join("thin.img"))?.set_len(16 * MIB)?;
    let thin = disk("thin", &format!("kind = 'file', path = '{DIRECTORY}/thin.img'")) + "space_threshold = '4095T'\n";
    let device = format!(
        "[[export]]\nname = 'vm'\nkind = 'scsi'\nsocket = '{DIRECTORY}/vm.sock'\nluns = [{{ lun = 0, disk = 'thin' }}]\n"
    );
    let daemon = Daemon::serve_in(place, &(thin + &device))?;
    let tool = vringd::beside_the_test("scsi_tool")?;
    let ask = |cdb: &str, more: &[&str]| {
        let asked = Command::new(&tool).arg(daemon.socket("vm")).args(["0", cdb]).args(more).output()?;
        ensure!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        Ok(String::from_utf8(asked.stdout)?)
    };
    // THIN PROVISIONING SOFT THRESHOLD REACHED, when it has been looked at.
    let told = ask("000000000000", &["--pause", "2"])?;
    ensure!(told.starts_with("0 2 0 70000600000000") && told.contains("3807"), "it was told {told}");
    ensure!(daemon.output().contains("space runs low"), "the log says nothing: {}", daemon.output());
    // MODE SENSE: one soft threshold, of 4095 Ti in sets of 1 Mi; LOG SENSE: what is left, and what is used.
    let threshold = ask("1a081c024000", &["--in", "64", "--before", "2"])?;
    ensure!(threshold.contains("5c02001400000000000000000000000080010000fff00000"), "{threshold}");
    let used = ask("4d004c00000000004000", &["--in", "64", "--before", "2"])?;
    ensure!(used.contains("0c000018000103") && used.contains("000203"), "{used}");
    daemon.upgrade()?;
    let shown: Disk = daemon.client().get("/v1/disks/thin")?;
    assert_eq!(shown.space_threshold_bytes, Some(4095 << 40));

    let nothing = serde_json::json!({ "kind": "null", "size": "1M" });
    let new = serde_json::json!({ "name": "no", "space_threshold": "1G", "storage": nothing });
    let refused = daemon.client().send::<Disk>(Method::POST, "/v1/disks", &new).map(drop);
    ensure!(
        refused
            .as_ref()
            .is_err_and(|error| error.to_string().contains("nobody counts the space of this null: leave it out")),
        "{refused:?}"
    );
    daemon.stop()
}
