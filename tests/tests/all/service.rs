//! A good citizen among services: what the service manager hears, the sockets it makes, the form of the log.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use control::client::Client;
use control::model::{Export, Info};
use rustix::io::{FdFlags, fcntl_setfd};
use tests::daemon::directory;
use tests::driver::readable;
use tests::frontend::{DATA, Frontend, kind, status};
use tests::process::Group;
use tests::vringd;

const LIMIT: Duration = Duration::from_secs(60);

/// A service manager's end of the conversation.
struct Manager(UnixDatagram);

impl Manager {
    fn new(at: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(at)?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(Self(socket))
    }

    fn hear(&self) -> Result<String> {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// Waits for a message with this in it.
    fn wait(&self, wanted: &str) -> Result<()> {
        let start = Instant::now();
        while !self.hear()?.contains(wanted) {
            ensure!(start.elapsed() < LIMIT, "never heard: {wanted}");
        }
        Ok(())
    }
}

fn null_disk(directory: &Path) -> Result<Command> {
    let mut command = Command::new(vringd::program()?);
    command.args(["disk", "--storage", "null", "--size", "16M", "--queues", "1"]);
    command.arg("--socket").arg(directory.join("disk.sock"));
    Ok(command)
}

#[test]
fn the_service_manager_hears_of_each_step() -> Result<()> {
    let directory = directory()?;
    let place = directory.path().join("notify");
    let manager = Manager::new(&place)?;
    let mut command = null_disk(directory.path())?;
    command.arg("--control").arg(directory.path().join("c.sock"));
    command.env("NOTIFY_SOCKET", &place).env("WATCHDOG_USEC", "200000");
    let mut daemon = Group::start(&command, &directory.path().join("log"))?;
    let first = manager.hear()?;
    assert!(first.starts_with("READY=1\nSTATUS=1 export(s), 0 with a frontend"), "{first}");
    // What is ready answers.
    let mut frontend = Frontend::connect(&directory.path().join("disk.sock"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 512)]).0, status::OK);
    manager.wait("STATUS=1 export(s), 1 with a frontend")?;
    for _ in 0..5 {
        manager.wait("WATCHDOG=1")?;
    }
    drop((frontend, ring));
    daemon.stop("the daemon", LIMIT)?;
    manager.wait("STOPPING=1")?;
    Ok(())
}

/// A worker that spins in our own code would be one; a worker that sleeps in a call stands for it here, because it can be
/// interrupted and so is not waiting for a device.
#[test]
fn the_watchdog_is_left_alone_while_a_worker_hangs() -> Result<()> {
    let directory = directory()?;
    let place = directory.path().join("notify");
    let manager = Manager::new(&place)?;
    let mut command = Command::new(vringd::program()?);
    command.args(["disk", "--storage", "sim", "--size", "16M", "--queues", "1", "--execution", "inline"]);
    command.args(["--read-latency", "4s", "--socket"]).arg(directory.path().join("disk.sock"));
    command.env("NOTIFY_SOCKET", &place).env("WATCHDOG_USEC", "200000");
    let mut daemon = Group::start(&command, &directory.path().join("log"))?;
    manager.wait("WATCHDOG=1")?;
    let mut frontend = Frontend::connect(&directory.path().join("disk.sock"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    ring.request(kind::IN, 0, &[tests::driver::writable(DATA, 512)]);
    ring.kick_if_wanted();
    daemon.wait_until(LIMIT, |said| said.contains("the service manager's watchdog is left alone"))?;
    assert!(daemon.output().contains("does not answer"), "{}", daemon.output());
    ring.wait_used();
    daemon.wait_until(LIMIT, |said| said.contains("the service manager's watchdog hears of us again"))?;
    drop((frontend, ring));
    daemon.stop("the daemon", LIMIT)
}

/// Its other workers serve other guests, whom a restart would harm.
#[test]
fn one_blocked_worker_is_no_dead_daemon() -> Result<()> {
    let directory = directory()?;
    let place = directory.path().join("notify");
    let manager = Manager::new(&place)?;
    let mut command = Command::new(vringd::program()?);
    command.args(["disk", "--storage", "sim", "--size", "16M", "--queues", "2", "--execution", "inline"]);
    command
        .args(["--workers", "per-queue", "--read-latency", "4s", "--socket"])
        .arg(directory.path().join("disk.sock"));
    command.env("NOTIFY_SOCKET", &place).env("WATCHDOG_USEC", "200000");
    let mut daemon = Group::start(&command, &directory.path().join("log"))?;
    manager.wait("WATCHDOG=1")?;
    let mut frontend = Frontend::connect(&directory.path().join("disk.sock"), 0)?;
    let (mut ring, other) = (frontend.ring(0, 64)?, frontend.ring(1, 64)?);
    ring.request(kind::IN, 0, &[tests::driver::writable(DATA, 512)]);
    ring.kick_if_wanted();
    ring.wait_used();
    manager.wait("WATCHDOG=1")?;
    assert!(!daemon.output().contains("is left alone"), "{}", daemon.output());
    drop((frontend, ring, other));
    daemon.stop("the daemon", LIMIT)
}

/// Starts vringd as a service manager does that has made sockets: descriptors from 3 on, with names.
fn activated(log: &Path, sockets: &[&UnixListener], names: &str, words: &str) -> Result<Group> {
    let mut script = String::new();
    for (place, socket) in sockets.iter().enumerate() {
        fcntl_setfd(socket, FdFlags::empty())?;
        // Far from where they go, so that none is overwritten before it is copied.
        let far = 100 + place;
        script += &format!("exec {far}<&{}; ", socket.as_raw_fd());
    }
    for place in 0..sockets.len() {
        script += &format!("exec {}<&{far}; exec {far}<&-; ", 3 + place, far = 100 + place);
    }
    let count = sockets.len();
    script += &format!("export LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES={names}; exec \"$@\" {words}");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]).arg(vringd::program()?);
    Group::start(&command, log)
}

#[test]
fn sockets_that_were_made_for_it_are_served_by_name_and_left_alone() -> Result<()> {
    let directory = directory()?;
    let at = |name: &str| directory.path().join(name);
    let (control, one, two) =
        (UnixListener::bind(at("c.sock"))?, UnixListener::bind(at("one.sock"))?, UnixListener::bind(at("two.sock"))?);
    let config = at("config.toml");
    // The first has a path of its own, which the socket that was made for it replaces; the second has none.
    std::fs::write(
        &config,
        format!(
            "control = '{}'\n[[export]]\nname = 'one'\nsocket = '{}'\nqueues = 1\nstorage = {{ kind = 'null', size = '1M' }}\n\
             [[export]]\nname = 'two'\nqueues = 1\nstorage = {{ kind = 'null', size = '2M' }}\n",
            at("unused.sock").display(),
            at("other.sock").display()
        ),
    )?;
    let words = format!("serve '{}'", config.display());
    let mut daemon = activated(&at("log"), &[&two, &control, &one], "two:control:one", &words)?;
    drop((control, one, two));
    daemon.wait_until(LIMIT, |said| said.matches("listening").count() == 2)?;
    let client = Client::new(at("c.sock"))?;
    assert_eq!(client.get::<Info>("/v1/info")?.exports, 2);
    for (name, capacity_bytes) in [("one", 1 << 20), ("two", 2 << 20)] {
        let shown: Export = client.get(&format!("/v1/exports/{name}"))?;
        assert!(shown.socket.starts_with("fd "), "{}", shown.socket);
        let mut frontend = Frontend::connect(&at(&format!("{name}.sock")), 0)?;
        // The first field of the configuration space (virtio 1.3, 5.2.4): the capacity in sectors.
        let sectors = u64::from_le_bytes(frontend.config(0, 8)?.try_into().expect("eight bytes"));
        assert_eq!(sectors * 512, capacity_bytes);
    }
    daemon.stop("the daemon", LIMIT)?;
    for name in ["c.sock", "one.sock", "two.sock"] {
        assert!(at(name).exists(), "{name} belongs to whoever made it");
    }
    assert!(!at("unused.sock").exists() && !at("other.sock").exists());
    Ok(())
}

#[test]
fn the_only_export_takes_the_only_socket() -> Result<()> {
    let directory = directory()?;
    let path = directory.path().join("vringd@root.sock");
    let socket = UnixListener::bind(&path)?;
    let words = "disk --storage null --size 1M --queues 1";
    let mut daemon = activated(&directory.path().join("log"), &[&socket], "vringd@root.socket", words)?;
    daemon.wait_until(LIMIT, |said| said.contains("listening"))?;
    let mut frontend = Frontend::connect(&path, 0)?;
    let mut ring = frontend.ring(0, 64)?;
    assert_eq!(ring.run(kind::OUT, 0, &[readable(DATA, 512)]).0, status::OK);
    drop((frontend, ring));
    daemon.stop("the daemon", LIMIT)
}

#[test]
fn a_socket_that_nobody_wants_is_refused_by_its_name() -> Result<()> {
    let directory = directory()?;
    let config = directory.path().join("config.toml");
    std::fs::write(&config, "")?;
    let socket = UnixListener::bind(directory.path().join("x.sock"))?;
    let words = format!("serve '{}'", config.display());
    let mut daemon = activated(&directory.path().join("log"), &[&socket], "stray", &words)?;
    assert_eq!(daemon.wait(LIMIT)?.code(), Some(2));
    let said = daemon.output();
    assert!(said.contains("descriptor 3, `stray`: no export has this name") && said.lines().count() == 1, "{said}");
    Ok(())
}

#[test]
fn each_line_of_a_json_log_is_an_object_that_names_its_export() -> Result<()> {
    let directory = directory()?;
    let mut command = null_disk(directory.path())?;
    command.args(["--log-format", "json", "--log-level", "debug"]);
    let log = directory.path().join("log");
    let mut daemon = Group::start(&command, &log)?;
    daemon.wait_until(LIMIT, |said| said.contains("listening"))?;
    let mut frontend = Frontend::connect(&directory.path().join("disk.sock"), 0)?;
    let ring = frontend.ring(0, 64)?;
    // A descriptor chain that leads nowhere breaks the ring, which is a line about a ring.
    ring.queue.set_available_entry(0, 9999);
    ring.queue.set_available_index(1);
    ring.kick();
    daemon.wait_until(LIMIT, |said| said.contains("the ring is broken"))?;
    drop((frontend, ring));
    daemon.wait_until(LIMIT, |said| said.contains("session ended"))?;
    daemon.stop("the daemon", LIMIT)?;
    let text = std::fs::read_to_string(&log)?;
    let lines: Vec<serde_json::Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let line = |message: &str| {
        let found = lines.iter().find(|line| line["message"].as_str().is_some_and(|said| said.starts_with(message)));
        found.unwrap_or_else(|| panic!("`{message}` is not in:\n{text}"))
    };
    for message in ["listening", "frontend connected", "session ended"] {
        assert_eq!(line(message)["export"], "disk", "{message}");
    }
    assert_eq!(
        (&line("the ring is broken")["export"], &line("the ring is broken")["ring"]),
        (&"disk".into(), &0.into())
    );
    // What the link says of its messages stands in a session of the export.
    assert_eq!(line("message GET_FEATURES")["span"]["export"], "disk");
    assert!(lines.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()));
    Ok(())
}
