//! The daemon's program is replaced while verified requests are in flight, and frontends see nothing but a pause.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Report, Rw, Spec};
use control::model::{Execution, Info, Placement, Poll, SessionState, Settings};
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::driver::{readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::image;
use tests::vringd;

const MIB: u64 = 1 << 20;
const QUEUES: u16 = 2;

fn export(name: &str, storage: &str) -> String {
    format!("[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = {QUEUES}\nstorage = {storage}\n")
}

fn file() -> String {
    export("disk", &format!("{{ kind = 'file', path = '{DIRECTORY}/disk.img' }}"))
}

/// A daemon with two shared workers, a disk named `disk` on an image, and what else `config` says.
fn daemon(config: &str) -> Result<Daemon> {
    let directory = directory()?;
    image::sparse(directory.path(), "disk.img", 32 * MIB)?;
    Daemon::serve_in(directory, &format!("workers = 2\n{}{config}", file()))
}

fn verified(depth: u16) -> Spec {
    Spec { rw: Rw::RandRw, mix: 50, depth, queues: QUEUES, verify: true, ..Spec::default() }
}

fn check(report: &Report) {
    assert!(report.is_clean(), "{} errors, {} mismatches: {:?}", report.errors, report.mismatches, report.faults);
    assert!(report.reads > 0 && report.writes > 0, "{report:?}");
}

fn ctl(daemon: &Daemon, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(vringd::program()?);
    command.arg("ctl").arg("--control").arg(daemon.path().join("control.sock")).args(words);
    Ok(command.output()?)
}

fn info(daemon: &Daemon) -> Result<Info> {
    Ok(daemon.client().get("/v1/info")?)
}

/// Tries to upgrade, and returns the one line that says why not.
fn refused(daemon: &Daemon, binary: Option<&Path>) -> Result<String> {
    let before = info(daemon)?.upgrades;
    let mut words = vec!["upgrade"];
    if let Some(binary) = binary {
        words.extend(["--binary", binary.to_str().context("test paths are UTF-8")?]);
    }
    let output = ctl(daemon, &words)?;
    let line = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(info(daemon)?.upgrades, before);
    Ok(line)
}

#[test]
fn frontends_see_nothing_but_a_pause() -> Result<()> {
    let more = export("ram", "{ kind = 'memory', size = '32M' }")
        + &export("model", "{ kind = 'sim', size = '32M', read_latency = '1ms', write_latency = '1ms' }")
        + &export("idle", "{ kind = 'null', size = '1M' }");
    let mut daemon = daemon(&more)?;
    // A file is written through the page cache, memory in place, and a model has requests in flight at any time.
    let names = ["disk", "ram", "model"];
    let loads = names.map(|name| Load::start(&daemon.socket(name), &verified(16)));
    let loads = loads.into_iter().collect::<Result<Vec<_>, _>>()?;
    for name in names {
        daemon.wait_ring(name, 1, |ring| ring.figures.requests() > 100)?;
    }
    for _ in 0..5 {
        let takeover = daemon.upgrade()?.takeover.context("it took over")?;
        assert_eq!((takeover.sessions, takeover.rings), (3, 3 * usize::from(QUEUES)));
        // Figures begin anew: these are requests that the new program has served.
        for name in names {
            daemon.wait_ring(name, 1, |ring| ring.figures.requests() > 100)?;
        }
        daemon.check_alive()?;
    }
    for load in loads {
        check(&load.finish()?);
    }
    for name in names {
        daemon.wait_disconnected(name)?;
        assert_eq!(daemon.export(name)?.sessions.connects, 1);
    }
    // The endpoints are what they were.
    for name in ["disk", "idle"] {
        let mut frontend = Frontend::connect(&daemon.socket(name), 0)?;
        let mut ring = frontend.ring(0, 64)?;
        assert_eq!(ring.run(kind::IN, 0, &[writable(DATA, 4096)]), (status::OK, 4097));
    }
    let place = daemon.path().to_owned();
    let sockets = ["disk.sock", "ram.sock", "model.sock", "idle.sock", "control.sock"];
    assert!(sockets.iter().all(|name| place.join(name).exists()));
    let ended = daemon.terminate()?;
    assert!(ended.success(), "{ended}: {}", daemon.output());
    for name in sockets {
        assert!(!place.join(name).exists(), "{name} is left behind");
    }
    Ok(())
}

#[test]
fn contents_in_memory_go_along() -> Result<()> {
    let daemon = daemon(&export("ram", "{ kind = 'memory', size = '32M' }"))?;
    let mut frontend = Frontend::connect(&daemon.socket("ram"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for at in 0..64u64 {
        frontend.memory().write(DATA, &[at as u8 + 1; 4096]);
        assert_eq!(ring.run(kind::OUT, at * 1000, &[readable(DATA, 4096)]), (status::OK, 1));
    }
    drop((ring, frontend));
    daemon.wait_disconnected("ram")?;
    daemon.upgrade()?;
    let mut frontend = Frontend::connect(&daemon.socket("ram"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for at in 0..64u64 {
        assert_eq!(ring.run(kind::IN, at * 1000, &[writable(DATA, 4096)]), (status::OK, 4097));
        assert_eq!(frontend.memory().read(DATA, 4096), [at as u8 + 1; 4096]);
    }
    daemon.stop()
}

#[test]
fn what_was_changed_stays_changed() -> Result<()> {
    let daemon = daemon("")?;
    let load = Load::start(&daemon.socket("disk"), &verified(8))?;
    daemon.wait_ring("disk", 1, |ring| ring.figures.requests() > 100)?;
    let freed = daemon.new_worker(None)?;
    let extra = daemon.new_worker(None)?;
    daemon.free_worker(freed)?;
    let settings = Settings {
        execution: Some(Execution::Pool(2)),
        poll: Some(Poll::Fixed(7)),
        placement: Some(Placement::PerQueue),
        ..Settings::default()
    };
    daemon.change("disk", &settings)?;
    daemon.attach("disk", 0, extra)?;
    let resized = ctl(&daemon, &["export", "resize", "disk", "48M"])?;
    assert!(resized.status.success());
    let before = (daemon.export("disk")?, daemon.workers()?);

    daemon.upgrade()?;
    daemon.wait_ring("disk", 1, |ring| ring.figures.requests() > 100)?;
    let after = (daemon.export("disk")?, daemon.workers()?);
    assert_eq!(after.0.storage, before.0.storage);
    assert_eq!((after.0.poll, after.0.placement), (before.0.poll, before.0.placement));
    assert_eq!(after.0.features, before.0.features);
    assert_eq!(after.0.socket, before.0.socket);
    let workers = |list: &[control::model::Worker]| {
        list.iter()
            .map(|worker| (worker.id, worker.owner.clone(), worker.poll, worker.rings.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(workers(&after.1), workers(&before.1));
    // A number is not used twice, whatever program gives it.
    let newest = after.1.iter().map(|worker| worker.id).max().unwrap_or(0);
    assert!(daemon.new_worker(None)? > newest);
    check(&load.finish()?);
    daemon.stop()
}

#[test]
fn an_image_stays_locked() -> Result<()> {
    let daemon = daemon("")?;
    daemon.upgrade()?;
    let place = directory()?;
    let mut command = Command::new(vringd::program()?);
    command.arg("disk").arg("--socket").arg(place.path().join("second.sock"));
    let output = command.arg(daemon.path().join("disk.img")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("in use") && said.contains(&format!("pid {}", daemon.id())), "{said}");
    daemon.stop()
}

/// A program that says that it can go on, and is gone when it comes to that.
fn fickle(directory: &Path) -> Result<std::path::PathBuf> {
    let path = directory.join("fickle");
    let program = vringd::program()?;
    fs::write(&path, format!("#!/bin/sh\nrm '{}'\nexec '{}' \"$@\"\n", path.display(), program.display()))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

#[test]
fn a_program_that_cannot_go_on_leaves_the_old_one_serving() -> Result<()> {
    // What the daemon may not do its children may not either, and a shell does more than a daemon.
    let more = export("ram", "{ kind = 'memory', size = '32M' }") + "[sandbox]\nseccomp = 'none'\n";
    let daemon = daemon(&more)?;
    let loads = ["disk", "ram"].map(|name| Load::start(&daemon.socket(name), &verified(16)));
    let loads = loads.into_iter().collect::<Result<Vec<_>, _>>()?;
    daemon.wait_ring("disk", 1, |ring| ring.figures.requests() > 100)?;
    let text = daemon.path().join("text");
    fs::write(&text, "no program at all\n")?;
    let script = daemon.path().join("script");
    fs::write(&script, "no program either\n")?;
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
    let cases = [
        (Path::new("/nonexistent/vringd"), "No such file"),
        (Path::new("/bin/false"), "exit status: 1"),
        (Path::new("/bin/true"), "is not a vringd"),
        (&text, "Permission denied"),
        (&script, "cannot be started"),
        (&fickle(daemon.path())?, "cannot be executed: ENOENT"),
    ];
    for (binary, words) in cases {
        let line = refused(&daemon, Some(binary))?;
        assert!(line.contains(words) && line.contains(binary.to_str().unwrap_or_default()), "{words}: {line}");
        for name in ["disk", "ram"] {
            let before = daemon.ring(name, 1)?.figures.requests();
            daemon.wait_ring(name, 1, |ring| ring.figures.requests() > before + 100)?;
        }
    }
    daemon.upgrade()?;
    for load in loads {
        check(&load.finish()?);
    }
    daemon.stop()
}

#[test]
fn requests_that_do_not_end_keep_the_old_program() -> Result<()> {
    let slow = "{ kind = 'sim', size = '1M', read_latency = '6s', write_latency = '6s' }";
    let daemon = daemon(&export("slow", slow))?;
    let load = Load::start(&daemon.socket("disk"), &verified(16))?;
    let mut frontend = Frontend::connect(&daemon.socket("slow"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let request = ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick();
    daemon.wait_ring("slow", 0, |ring| ring.figures.oldest_in_flight_ms.is_some_and(|age_ms| age_ms > 2_000))?;
    let line = refused(&daemon, None)?;
    assert!(line.contains("`slow`") && line.contains("ring 0 has a request in flight"), "{line}");
    // It is answered in the end, as if nobody had asked for anything.
    ring.wait_used();
    assert_eq!(ring.status(request), status::OK);
    daemon.upgrade()?;
    check(&load.finish()?);
    daemon.stop()
}

#[test]
fn a_directory_is_handed_over_when_nobody_is_connected() -> Result<()> {
    let directory = format!(
        "[[export]]\nname = 'tree'\nkind = 'dir'\nsocket = '{DIRECTORY}/tree.sock'\ndirectory = {{ path = '{DIRECTORY}' }}\n"
    );
    let daemon = daemon(&directory)?;
    let load = Load::start(&daemon.socket("disk"), &verified(16))?;
    let frontend = UnixStream::connect(daemon.socket("tree"))?;
    while daemon.export("tree")?.state != SessionState::Connected {
        std::thread::yield_now();
    }
    drop(frontend);
    daemon.wait_disconnected("tree")?;
    daemon.upgrade()?;
    drop(UnixStream::connect(daemon.socket("tree"))?);
    check(&load.finish()?);
    daemon.stop()
}

#[test]
fn what_is_no_state_is_refused_as_wrong_usage() -> Result<()> {
    let place = directory()?;
    let garbage = place.path().join("garbage");
    fs::write(&garbage, [0x5a; 4096])?;
    let adopt = |words: &[&str], input: Stdio| -> Result<String> {
        let output = Command::new(vringd::program()?).arg("adopt").args(words).stdin(input).output()?;
        let line = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(2), "{words:?}: {line}");
        assert!(output.stdout.is_empty() && line.lines().count() == 1, "{words:?}: {line}");
        Ok(line)
    };
    let file = || -> Result<Stdio> { Ok(fs::File::open(&garbage)?.into()) };
    assert!(adopt(&["--check", "--state-fd", "0"], file()?)?.contains("no upgrade state"));
    assert!(adopt(&["--state-fd", "0"], file()?)?.contains("no upgrade state"));
    assert!(adopt(&["--check", "--state-fd", "0"], Stdio::null())?.contains("no upgrade state"));
    assert!(adopt(&["--state-fd", "77"], Stdio::null())?.contains("descriptor 77 is not open"));
    assert!(adopt(&["--state-fd", "-1"], Stdio::null())?.contains("descriptor -1 is not open"));
    Ok(())
}

/// A guest of a SCSI device sees nothing of an upgrade either: nothing is lost, its reservation is as it was, and no unit has anything to
/// tell first.
#[test]
fn upgrades_lose_and_tell_nothing_of_a_scsi_disk() -> Result<()> {
    let mut command = Command::new(vringd::beside_the_test("torture")?);
    command.args(["upgrade", "--protocol", "scsi", "--rounds", "10", "--vringd"]).arg(vringd::program()?);
    let output = command.output()?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    println!("{said}");
    ensure!(output.status.success() && said.contains("nothing lost"), "the torture ended with {}", output.status);
    Ok(())
}
