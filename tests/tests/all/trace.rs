//! `vringd ctl trace`: a slow request shows with its stages, whatever it waits for; fast ones do not.
//!
//! What is to be slow takes a second or two, and what is not some microseconds: a machine that stops for as long is no test's fault.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::trace::{SlowRequest, StageTimes, Trace, WaitedFor, Way};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon, refusal};
use tests::driver::{readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::fuse::{self, ROOT, op};
use tests::vringd;

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long what is slow takes, and what is found slow.
const SLOW_US: f64 = 1_500_000.0;
const SLOWER_THAN: &str = "1s";
/// fcntl(2): which signal tells of a lease that is to be given back.
const F_SETSIG: i32 = 10;

/// A disk on a model of a device, whose reads are slow and whose writes are not.
fn slow_reads(name: &str, execution: &str) -> String {
    format!(
        "[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\nworkers = 'one'\nstorage = {{ kind = 'sim', \
         size = '16M', read_latency = '1500ms', write_latency = '10us', execution = '{execution}' }}\n"
    )
}

fn directory(path: &str, more: &str) -> String {
    format!(
        "[[export]]\nname = 'home'\nkind = 'dir'\nsocket = '{DIRECTORY}/home.sock'\nqueues = 1\ndirectory = {{ path = '{path}' }}\n{more}\n"
    )
}

/// A reader in a process of its own. It is killed when this is dropped.
struct Reader {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Reader {
    /// Begins to read, and waits until it does.
    fn start(daemon: &Daemon, words: &[&str]) -> Result<Reader> {
        let traces = |daemon: &Daemon| -> Result<Vec<Trace>> { Ok(daemon.client().get("/v1/traces")?) };
        let before = traces(daemon)?.len();
        let mut command = Command::new(vringd::program()?);
        command.arg("ctl").arg("--control").arg(daemon.path().join("control.sock"));
        command.args(["trace", "--json"]).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().context("vringd ctl trace starts")?;
        let lines = BufReader::new(process.stdout.take().context("its output is a pipe")?);
        let reader = Reader { process, lines };
        wait("a trace begins", || Ok(traces(daemon)?.len() > before))?;
        Ok(reader)
    }

    /// The next line; `None` when there are no more.
    fn next(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        let bytes = self.lines.read_line(&mut line)?;
        if bytes == 0 { Ok(None) } else { Ok(Some(serde_json::from_str(&line)?)) }
    }

    /// The next line, which is a request.
    fn request(&mut self) -> Result<SlowRequest> {
        let mut line = self.next()?.context("there is a line")?;
        let request: SlowRequest = serde_json::from_value(line["request"].take()).with_context(|| format!("{line}"))?;
        let StageTimes { waited_us_max, .. } = request.times;
        // Rounded as JSON has it.
        let whole = (request.times.total_us() - request.total_us).abs();
        ensure!(whole < 1.0 && waited_us_max >= 0.0, "its stages do not add up: {request:?}");
        Ok(request)
    }

    /// The last line, when it has ended.
    fn summary(mut self) -> Result<Value> {
        let mut line = self.next()?.context("there is a line")?;
        ensure!(line["summary"].is_object() && self.next()?.is_none(), "{line}");
        ensure!(self.process.wait()?.success());
        Ok(line["summary"].take())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It has ended by itself if this fails.
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        ensure!(start.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn slow_requests_show_by_stages_and_fast_ones_do_not() -> Result<()> {
    let config =
        [("timer", "uring"), ("inline", "inline"), ("pool", "pool=2")].map(|(name, how)| slow_reads(name, how));
    let daemon = Daemon::serve(&config.concat())?;
    for (name, ways) in [("timer", vec![Way::Timer]), ("inline", vec![]), ("pool", vec![Way::Thread])] {
        let mut frontend = Frontend::connect(&daemon.socket(name), 0)?;
        let mut ring = frontend.ring(0, 64)?;
        let mut reader = Reader::start(&daemon, &[name, "--slower-than", SLOWER_THAN, "--count", "1"])?;
        for _ in 0..20 {
            assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 4096)]), (status::OK, 1));
        }
        assert_eq!(ring.run(kind::IN, 8, &[writable(DATA, 8192)]).0, status::OK);
        let slow = reader.request()?;
        assert_eq!((&*slow.export, slow.ring, &*slow.kind, slow.failed), (name, 0, "read", false), "{slow:?}");
        assert_eq!((slow.offset, slow.bytes, slow.answered_by), (Some(4096), Some(8192), None), "{slow:?}");
        let times = slow.times;
        let there_us = if name == "inline" { times.inline_us } else { times.behind_us + times.start_us };
        assert!(there_us >= SLOW_US && times.held_us + times.lock_us + times.unknown_us == 0.0, "{slow:?}");
        assert_eq!((slow.parts, &slow.ways), (u32::from(name != "inline"), &ways), "{slow:?}");
        let summary = reader.summary()?;
        assert_eq!((&summary["slow"], &summary["lost"]), (&json!(1), &json!(0)), "{summary}");
        assert!(summary["answered"].as_u64().is_some_and(|answered| answered >= 21), "{summary}");
        // Its reader ended the trace.
        assert_eq!(daemon.client().get::<Vec<Trace>>("/v1/traces")?, []);
    }
    daemon.stop()
}

#[test]
fn readers_have_bounds_of_their_own() -> Result<()> {
    let daemon = Daemon::serve(&slow_reads("disk", "uring"))?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let mut patient = Reader::start(&daemon, &["--slower-than", "1000s", "--for", "3s"])?;
    let mut curious = Reader::start(&daemon, &["--export", "all", "--slower-than", "1us", "--count", "2"])?;
    assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 4096)]).0, status::OK);
    assert_eq!(ring.run(kind::IN, 0, &[writable(DATA, 4096)]).0, status::OK);
    let kinds = [curious.request()?.kind, curious.request()?.kind];
    assert_eq!(kinds, ["write", "read"]);
    curious.summary()?;
    let line = patient.next()?.context("there is a summary")?;
    assert_eq!(line["summary"]["slow"], 0, "{line}");
    daemon.stop()
}

/// A reader that is killed says nothing to anybody.
#[test]
fn a_reader_that_is_killed_leaves_nothing_behind() -> Result<()> {
    let daemon = Daemon::serve(&slow_reads("disk", "uring"))?;
    let traces = || -> Result<Vec<Trace>> { Ok(daemon.client().get("/v1/traces")?) };
    let reader = Reader::start(&daemon, &["disk", "--slower-than", SLOWER_THAN])?;
    let trace = traces()?.pop().context("there is a trace")?;
    assert!(trace.export.as_deref() == Some("disk") && trace.seconds_left <= 10.0, "{trace:?}");
    drop(reader);
    wait("the trace ends", || Ok(traces()?.is_empty()))?;
    let taken = daemon.client().post::<Value>(&format!("/v1/traces/{}/take", trace.id));
    assert_eq!(refusal(taken), ("no-such-trace".into(), 404));
    daemon.stop()
}

#[test]
fn an_upgrade_is_said_and_the_trace_goes_on() -> Result<()> {
    let daemon = Daemon::serve(&slow_reads("disk", "uring"))?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let mut reader = Reader::start(&daemon, &["--slower-than", SLOWER_THAN, "--count", "1"])?;
    daemon.upgrade()?;
    let line = reader.next()?.context("there is a line")?;
    assert!(line["note"].as_str().is_some_and(|note| note.starts_with("the daemon was upgraded to ")), "{line}");
    assert_eq!(ring.run(kind::IN, 0, &[writable(DATA, 4096)]).0, status::OK);
    assert_eq!(reader.request()?.kind, "read");
    reader.summary()?;
    daemon.stop()
}

#[test]
fn a_ring_that_moves_names_both_workers() -> Result<()> {
    let daemon = Daemon::serve(&format!("workers = 1\n{}", slow_reads("disk", "uring")))?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let mut reader = Reader::start(&daemon, &["--slower-than", SLOWER_THAN, "--count", "1"])?;
    let request = ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick_if_wanted();
    let before = daemon.wait_ring("disk", 0, |ring| ring.figures.in_flight == 1)?.worker.context("it runs")?;
    let after = daemon.workers()?.iter().map(|worker| worker.id).find(|id| *id != before).context("another worker")?;
    daemon.attach("disk", 0, after)?;
    ring.wait_used();
    assert_eq!(ring.status(request), status::OK);
    let slow = reader.request()?;
    assert_eq!((slow.worker, slow.answered_by), (before, Some(after)), "{slow:?}");
    assert!(slow.times.behind_us + slow.times.start_us >= SLOW_US, "{slow:?}");
    daemon.stop()
}

#[test]
fn a_limit_is_what_requests_waited_for() -> Result<()> {
    let limited = "[[export]]\nname = 'disk'\nsocket = '@DIR@/disk.sock'\nqueues = 1\nstorage = { kind = 'memory', size = '16M' }\n\
                   limits = { iops = 1, burst_requests = 1 }\n";
    let daemon = Daemon::serve(limited)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let mut reader = Reader::start(&daemon, &["--slower-than", "500ms", "--count", "1"])?;
    for _ in 0..3 {
        ring.request(kind::OUT, 0, &[readable(DATA, 4096)]);
    }
    ring.kick_if_wanted();
    let slow = reader.request()?;
    assert_eq!((&*slow.kind, slow.waited_for), ("write", Some(WaitedFor::Limit)), "{slow:?}");
    assert!(slow.times.waited_us_max >= 500_000.0 - slow.total_us, "{slow:?}");
    daemon.stop()
}

/// A call that waits for another process on the host: for its lock, and for its lease.
#[test]
fn calls_of_a_directory_show_what_they_wait_for() -> Result<()> {
    let shared = TempDir::new()?;
    let path = shared.path().join("file");
    let file = File::create_new(&path)?;
    let of_the_host = |kind: i32| libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&of_the_host(libc::F_WRLCK)))?;
    let daemon = Daemon::serve(&directory(shared.path().to_str().context("a path")?, ""))?;
    let mut client = fuse::Client::begin(&daemon.socket("home"))?;
    let node = client.walk("file")?;
    let handle = client.open(op::OPEN, node, libc::O_RDWR)?;
    let mut reader = Reader::start(&daemon, &["home", "--slower-than", SLOWER_THAN, "--count", "1"])?;
    let mut lock = [handle.to_le_bytes(), 1_u64.to_le_bytes(), 10_u64.to_le_bytes(), 19_u64.to_le_bytes()].concat();
    lock.extend((libc::F_WRLCK as u32).to_le_bytes());
    lock.extend([0; 12]);
    let waiting = client.begin_call(op::SETLKW, node, &lock);
    thread::sleep(Duration::from_micros(SLOW_US as u64));
    // Requests go on meanwhile, and are not shown.
    client.call(op::GETATTR, ROOT, &[0; 16])?.ok()?;
    fcntl(&file, FcntlArg::F_SETLK(&of_the_host(libc::F_UNLCK)))?;
    client.end_call(waiting)?.ok()?;
    let slow = reader.request()?;
    assert_eq!((&*slow.kind, slow.node, &slow.ways), ("setlkw", Some(node), &vec![Way::Lock]), "{slow:?}");
    assert!(slow.times.lock_us > 0.0 && slow.times.behind_us == 0.0, "{slow:?}");
    reader.summary()?;

    let leased = File::create_new(shared.path().join("leased"))?;
    // SAFETY: no memory of ours is involved; the signal that tells of a break is one that is ignored.
    let answers = unsafe {
        [
            libc::fcntl(leased.as_raw_fd(), F_SETSIG, libc::SIGURG),
            libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK),
        ]
    };
    ensure!(answers == [0, 0], "no lease: {}", std::io::Error::last_os_error());
    let node = client.lookup(ROOT, "leased")?;
    let mut reader = Reader::start(&daemon, &["home", "--slower-than", SLOWER_THAN, "--count", "1"])?;
    let waiting = client.begin_call(op::OPEN, node, &fuse::open_body(libc::O_RDONLY));
    thread::sleep(Duration::from_micros(SLOW_US as u64));
    assert!(!client.has_ended(waiting), "a lease is broken at once");
    drop(leased);
    client.end_call(waiting)?.ok()?;
    let slow = reader.request()?;
    assert_eq!((&*slow.kind, slow.node, &slow.ways), ("open", Some(node), &vec![Way::Thread]), "{slow:?}");
    assert!(slow.times.behind_us > 0.0 && slow.times.inline_us == 0.0, "{slow:?}");
    daemon.stop()
}

/// What a limit holds up of a 9p client has been taken from its ring.
#[test]
fn requests_of_9p_are_held() -> Result<()> {
    let shared = TempDir::new()?;
    let path = shared.path().to_str().context("a path")?;
    let config = directory(path, "limits = { iops = 1, burst_requests = 1 }")
        .replace("directory = {", "directory = { protocol = '9p',");
    let daemon = Daemon::serve(&config)?;
    let mut client = tests::p9::Client::begin(&daemon.socket("home"))?;
    let mut reader = Reader::start(&daemon, &["home", "--slower-than", "500ms", "--count", "1"])?;
    // Tgetattr of the root, with all that there is.
    const TGETATTR: u8 = 24;
    let body = || tests::p9::Body::default().u32(tests::p9::ROOT).u64(0x7ff);
    let calls = (0..3).map(|_| client.begin_call(TGETATTR, body())).collect::<Result<Vec<_>>>()?;
    let slow = reader.request()?;
    assert_eq!((&*slow.kind, slow.fid), ("Tgetattr", Some(tests::p9::ROOT)), "{slow:?}");
    assert!(slow.times.held_us > 0.0, "{slow:?}");
    for call in calls {
        client.end_call(call)?.ok()?;
    }
    daemon.stop()
}
