//! Faults stay where they are: what panics, fails or hangs takes nobody else along, and shows.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use control::client::Client;
use control::model::{Export, NewExport, Owner, Poll, RingInfo, RingState, SessionState, Settings};
use frontkit::Memory;
use http::Method;
use tests::daemon::{DIRECTORY, Daemon, directory, refusal};
use tests::driver::{readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::process::Group;
use tests::vringd;

const LIMIT: Duration = Duration::from_secs(60);

fn export(name: &str, storage: &str, more: &str) -> String {
    format!(
        "[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\nstorage = {{ {storage} }}\n{more}\n"
    )
}

fn sim(more: &str) -> String {
    format!("kind = 'sim', size = '16M', read_latency = '10us', write_latency = '10us'{more}")
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        ensure!(start.elapsed() < LIMIT, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn wait_failed(daemon: &Daemon, name: &str) -> Result<Export> {
    wait("the export fails", || Ok(daemon.export(name)?.state == SessionState::Failed))?;
    Ok(daemon.export(name)?)
}

/// One worker serves both exports; a panic in the storage of one is that one's end.
#[test]
fn a_panic_fails_its_export_and_no_other() -> Result<()> {
    let config = "workers = 1\n".to_owned()
        + &export("good", "kind = 'memory', size = '16M'", "")
        + &export("bad", &sim(", panic_after = 50"), "");
    let mut daemon = Daemon::serve(&config)?;
    let verified = Spec { rw: Rw::RandRw, mix: 50, depth: 8, verify: true, ..Spec::default() };
    let load = Load::start(&daemon.socket("good"), &verified)?;
    let mut frontend = Frontend::connect(&daemon.socket("bad"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for _ in 1..50 {
        assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 4096)]), (status::OK, 1));
    }
    ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick_if_wanted();

    let bad = wait_failed(&daemon, "bad")?;
    let why = bad.last_error.unwrap_or_default();
    for word in ["ring 0", "panic at", "sim/mod.rs", "panic_after"] {
        assert!(why.contains(word), "`{word}` is not in: {why}");
    }
    wait("the session ends", || Ok(daemon.export("bad")?.frontend.is_none()))?;
    assert!(ring.take_used().is_none(), "what was in flight is not answered");
    let metrics = daemon.client().text("/metrics")?;
    assert!(metrics.contains("vringd_export_failed{export=\"bad\"} 1"), "{metrics}");
    assert!(metrics.contains("vringd_export_failed{export=\"good\"} 0"), "{metrics}");

    // No other session begins, until it is removed and added again.
    wait("the socket is gone", || Ok(!daemon.socket("bad").exists()))?;
    assert!(Frontend::connect(&daemon.socket("bad"), 0).is_err());
    daemon.remove("bad", false)?;
    let again = serde_json::json!({
        "name": "bad", "socket": daemon.socket("bad"), "queues": 1, "storage": { "kind": "sim", "size": "16M" }
    });
    let again: NewExport = serde_json::from_value(again)?;
    let again: Export = daemon.client().send(Method::POST, "/v1/exports", &again)?;
    assert_eq!((again.state, again.last_error), (SessionState::Listening, None));
    let mut frontend = Frontend::connect(&daemon.socket("bad"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 4096)]), (status::OK, 1));

    // All the while the other one was served, by the same worker.
    let done = daemon.export("good")?.rings[0].figures.requests();
    wait("the load goes on", || Ok(daemon.export("good")?.rings[0].figures.requests() > done))?;
    let (report, connection) = load.finish_connected()?;
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_eq!(daemon.workers()?.len(), 1);
    assert_eq!(daemon.export("good")?.state, SessionState::Connected);
    drop(connection);
    daemon.check_alive()?;
    drop((frontend, ring));
    daemon.stop()
}

/// A job on a pool is one request: it fails, and nothing else.
#[test]
fn a_panic_on_a_pool_costs_its_request() -> Result<()> {
    let daemon = Daemon::serve(&export("disk", &sim(", execution = 'pool=2', panic_after = 2"), ""))?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let mut write = || ring.run(kind::OUT, 0, &[readable(DATA, 4096)]).0;
    assert_eq!([write(), write(), write()], [status::OK, status::IOERR, status::OK]);
    let disk = daemon.export("disk")?;
    assert_eq!((disk.state, disk.errors, disk.last_error), (SessionState::Connected, 1, None));
    drop((frontend, ring));
    daemon.stop()
}

/// Every error of the storage is an I/O error to the guest, and the ring goes on.
#[test]
fn an_error_of_the_storage_is_an_error_of_its_request() -> Result<()> {
    let daemon = Daemon::serve(&export("disk", &sim(", error_rate = 1.0"), ""))?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for _ in 0..3 {
        assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 4096)]).0, status::IOERR);
        assert_eq!(ring.run(kind::IN, 0, &[writable(DATA, 4096)]).0, status::IOERR);
        assert_eq!(ring.run(kind::FLUSH, 0, &[]).0, status::IOERR);
        assert_eq!(ring.run(77, 0, &[]).0, status::UNSUPP);
    }
    let disk = daemon.export("disk")?;
    assert_eq!((disk.state, disk.errors), (SessionState::Connected, 12));
    drop((frontend, ring));
    daemon.stop()
}

#[test]
fn a_stuck_request_shows_with_its_age_until_it_is_answered() -> Result<()> {
    let slow = "kind = 'sim', size = '16M', read_latency = '2s', write_latency = '2s'";
    let config = "stuck_after = '200ms'\n".to_owned() + &export("slow", slow, "");
    let daemon = Daemon::serve(&config)?;
    let mut frontend = Frontend::connect(&daemon.socket("slow"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(daemon.export("slow")?.oldest_in_flight_ms, None);
    ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick_if_wanted();
    let stuck = |ring: &control::model::RingInfo| ring.figures.oldest_in_flight_ms.is_some_and(|age_ms| age_ms >= 200);
    daemon.wait_ring("slow", 0, stuck)?;
    assert!(daemon.export("slow")?.oldest_in_flight_ms >= Some(200));
    wait("it is said", || Ok(daemon.output().contains("a request is stuck")))?;
    ring.wait_used();
    wait("its end is said", || Ok(daemon.output().contains("the stuck request has been answered")))?;
    let said = daemon.output();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("stuck")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines.iter().all(|line| line.contains("export=\"slow\" ring=0 age_ms=")), "{lines:?}");
    assert_eq!(daemon.export("slow")?.oldest_in_flight_ms, None);
    drop((frontend, ring));
    daemon.stop()
}

/// A worker that waits inside a call does not keep those waiting who ask how things are or want to change them, nor other
/// workers' exports.
#[test]
fn a_worker_that_hangs_is_shown_and_waited_for_by_nobody() -> Result<()> {
    let hangs = "kind = 'sim', size = '16M', read_latency = '10s', execution = 'inline'";
    let config = "workers = 1\nstuck_after = '200ms'\n".to_owned()
        + &export("hangs", hangs, "workers = 'one'")
        + &export("good", "kind = 'memory', size = '16M'", "");
    let daemon = Daemon::serve(&config)?;
    let mut frontend = Frontend::connect(&daemon.socket("hangs"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick_if_wanted();
    let shown = daemon.wait_ring("hangs", 0, |ring| ring.state == RingState::Unresponsive)?;
    assert!(shown.figures.oldest_in_flight_ms > Some(200), "{shown:?}");
    wait("it is said", || Ok(daemon.output().contains("a request is stuck")))?;
    let shared = daemon.workers()?.iter().find(|worker| worker.owner == Owner::Daemon).map(|worker| worker.id);
    let shared = shared.context("there is a shared worker")?;
    let poll = Settings { poll: Some(Poll::Fixed(7)), ..Settings::default() };
    let before = daemon.export("hangs")?.poll;
    assert_eq!(refusal(daemon.change("hangs", &poll)), ("failed".into(), 500));
    assert_eq!(refusal(daemon.attach("hangs", 0, shared)), ("failed".into(), 500));
    assert_eq!(refusal(daemon.remove("hangs", true)), ("failed".into(), 500));
    let mut other = Frontend::connect(&daemon.socket("good"), 0)?;
    let mut good = other.ring(0, 64)?;
    assert_eq!(good.run(kind::OUT, 0, &[readable(DATA, 4096)]), (status::OK, 1));
    assert_eq!(ring.wait_used().1, 4097);
    daemon.wait_ring("hangs", 0, |ring| ring.state == RingState::Running && ring.figures.requests() == 1)?;
    // What was refused is not done later either.
    assert_eq!((daemon.ring("hangs", 0)?.worker, daemon.export("hangs")?.poll), (shown.worker, before));
    daemon.attach("hangs", 0, shared)?;
    daemon.change("hangs", &poll)?;
    daemon.remove("hangs", true)?;
    drop((frontend, ring, other, good));
    daemon.stop()
}

/// Whoever removes an export does not wait for requests that its storage does not answer, nor do others; when it has
/// answered, the export can be removed.
#[test]
fn a_removal_does_not_wait_for_storage() -> Result<()> {
    let config = export("slow", "kind = 'sim', size = '16M', read_latency = '6s'", "")
        + &export("good", "kind = 'memory', size = '16M'", "");
    let daemon = Daemon::serve(&config)?;
    let mut frontend = Frontend::connect(&daemon.socket("slow"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick_if_wanted();
    daemon.wait_ring("slow", 0, |ring| ring.figures.oldest_in_flight_ms.is_some())?;
    assert_eq!(refusal(daemon.remove("slow", true)), ("failed".into(), 500));
    let slow = daemon.export("slow")?;
    let why = slow.last_error.unwrap_or_default();
    assert!(slow.state == SessionState::Failed && why.contains("has not answered"), "{:?}: {why}", slow.state);
    assert_eq!(refusal(daemon.remove("slow", false)), ("connected".into(), 409));
    daemon.remove("good", false)?;
    // What was in flight is finished first, as the force of a removal promises.
    assert_eq!(ring.wait_used().1, 4097);
    wait("it is removed", || Ok(daemon.remove("slow", true).is_ok()))?;
    assert_eq!(refusal(daemon.export("slow")), ("no-such-export".into(), 404));
    assert!(!daemon.socket("slow").exists());
    drop((frontend, ring));
    daemon.stop()
}

/// `vringd disk` with a socket and a simulated disk.
fn disk(directory: &Path, more: &[&str]) -> Result<Group> {
    let mut command = Command::new(vringd::program()?);
    command.args(["disk", "--storage", "sim", "--size", "16M", "--queues", "1", "--socket"]);
    command.arg(directory.join("disk.sock")).args(more);
    let mut disk = Group::start(&command, &directory.join("log"))?;
    disk.wait_until(LIMIT, |said| said.contains("listening"))?;
    Ok(disk)
}

#[test]
fn the_failure_of_the_only_export_is_the_end() -> Result<()> {
    let directory = directory()?;
    let mut daemon = disk(directory.path(), &["--panic-after", "3"])?;
    let mut frontend = Frontend::connect(&directory.path().join("disk.sock"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    for _ in 0..3 {
        ring.request(kind::OUT, 0, &[readable(DATA, 512)]);
    }
    ring.kick_if_wanted();
    let ended = daemon.wait(LIMIT)?;
    assert_eq!(ended.code(), Some(3), "{}", daemon.output());
    let said = daemon.output();
    assert!(said.contains("the export has failed") && said.contains("export=\"disk\""), "{said}");
    assert!(!directory.path().join("disk.sock").exists());
    Ok(())
}

#[test]
fn memory_that_is_not_shared_is_told_of() -> Result<()> {
    let directory = directory()?;
    let daemon = disk(directory.path(), &[])?;
    let socket = directory.path().join("disk.sock");
    let memory = Arc::new(Memory::new(0, DATA)?);
    let mut frontend = Frontend::connect_unshared(&socket, 0, memory)?;
    let _rings = [frontend.ring(0, 64)?, frontend.ring(0, 64)?];
    let told = || daemon.output().matches("memory is not shared").count();
    wait("it is said", || Ok(told() > 0))?;
    assert_eq!(told(), 1, "{}", daemon.output());
    drop(frontend);
    // Nothing of it where it is.
    let mut frontend = Frontend::connect(&socket, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 512)]).0, status::OK);
    assert_eq!(told(), 1, "{}", daemon.output());
    Ok(())
}

#[test]
fn descriptors_beyond_the_limit_of_the_process_are_told_of() -> Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    use std::io::{IoSlice, Read, Write};
    use std::os::fd::AsFd;

    /// More than the daemon may have in all.
    const MANY: usize = 40;
    const FEW: u64 = 12;
    let directory = directory()?;
    let daemon = disk(directory.path(), &[])?;
    let pid = Pid::from_raw(i32::try_from(daemon.id())?);
    let mut frontend = std::os::unix::net::UnixStream::connect(directory.path().join("disk.sock"))?;
    // GET_FEATURES of version 1, without a body; and its answer, of 12 bytes of header and 8 of body.
    let question: Vec<u8> = [1_u32, 1, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
    let mut answer = [0; 20];
    frontend.write_all(&question)?;
    frontend.read_exact(&mut answer)?;
    let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(FEW), ..getrlimit(Resource::Nofile) })?;
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let file = std::fs::File::open(directory.path())?;
    let descriptors = [file.as_fd(); MANY];
    ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room for them");
    sendmsg(&frontend, &[IoSlice::new(&question)], &mut ancillary, SendFlags::empty())?;
    wait("it is said", || Ok(daemon.output().contains("RLIMIT_NOFILE")))?;
    prlimit(pid, Resource::Nofile, before)?;
    drop(frontend);
    let mut frontend = Frontend::connect(&directory.path().join("disk.sock"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 512)]).0, status::OK);
    Ok(())
}

#[test]
fn a_second_signal_does_not_wait_for_storage() -> Result<()> {
    let directory = directory()?;
    let control = directory.path().join("control.sock");
    let mut daemon = disk(directory.path(), &["--read-latency", "3600s", "--control", &control.to_string_lossy()])?;
    let mut frontend = Frontend::connect(&directory.path().join("disk.sock"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    ring.request(kind::IN, 0, &[writable(DATA, 512)]);
    ring.kick_if_wanted();
    // What no worker has taken yet is not waited for.
    let client = Client::new(&control)?;
    wait(
        "the request is in flight",
        || Ok(client.get::<RingInfo>("/v1/exports/disk/rings/0")?.figures.in_flight == 1),
    )?;
    let term = || {
        let id = rustix::process::Pid::from_raw(i32::try_from(daemon.id()).unwrap_or(0)).expect("a process id");
        rustix::process::kill_process(id, rustix::process::Signal::TERM)
    };
    term()?;
    wait("the end begins", || Ok(daemon.output().contains("stopping")))?;
    // Longer than what is taken for one and the same signal.
    thread::sleep(Duration::from_secs(1));
    term()?;
    let ended = daemon.wait(LIMIT)?;
    assert_eq!(ended.code(), Some(4), "{}", daemon.output());
    assert!(daemon.output().contains("a second signal"));
    Ok(())
}
