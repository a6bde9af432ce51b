//! `vringd doctor` against `vringd serve`: what the one says fails, the other refuses, in the same words.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to be refused, or to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// A user without rights.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// A directory with a configuration and an image.
struct Place {
    dir: tempfile::TempDir,
    /// What starts the program in its place.
    before: Vec<String>,
    daemon: Option<Child>,
}

impl Place {
    /// `{}` in the configuration is the directory. It is short, and on disk.
    fn new(config: &str) -> Place {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let place = Place { dir, before: Vec::new(), daemon: None };
        let at = place.dir.path().display().to_string();
        fs::write(place.path("vringd.toml"), config.replace("{}", &at)).unwrap();
        File::create(place.path("disk.img")).unwrap().set_len(1 << 20).unwrap();
        place
    }

    /// Run by these words.
    fn by(mut self, words: &[&str]) -> Place {
        self.before = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_vringd");
        let mut line: Vec<&str> = self.before.iter().map(String::as_str).collect();
        line.push(program);
        line.extend(words);
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).current_dir(self.dir.path()).env_remove("VRINGD_LOG").env_remove("NOTIFY_SOCKET");
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Exit status and findings.
    fn doctor(&self, more: &[&str]) -> (i32, Vec<Value>) {
        let output = self.run(&[&["doctor", "vringd.toml", "--json"], more].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let json: Value = serde_json::from_str(&said)
            .unwrap_or_else(|error| panic!("{error}: {said}{}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(json["version"], 1);
        assert_eq!(json["serves"], output.status.code() == Some(0), "{said}");
        (output.status.code().unwrap(), json["findings"].as_array().unwrap().clone())
    }

    /// The line by which `vringd serve` is refused, and its status.
    fn refused(&self) -> (i32, String) {
        let mut serve = self.command(&["--log-level", "error", "serve", "vringd.toml"]);
        let mut serve = serve.stderr(Stdio::piped()).spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        while serve.try_wait().unwrap().is_none() {
            if Instant::now() >= end {
                let _ = serve.kill();
                panic!("it is served");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = serve.wait_with_output().unwrap();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// That something fails by this check, and is refused. Answers with what both said.
    fn fails(&self, area: &str, check: &str) -> (Value, String) {
        let (status, findings) = self.doctor(&[]);
        let fails: Vec<_> = findings.iter().filter(|finding| finding["level"] == "fails").collect();
        let found = fails.iter().find(|finding| finding["area"] == area && finding["check"] == check);
        let found = (*found.unwrap_or_else(|| panic!("{area} {check}: {findings:#?}"))).clone();
        assert_eq!(status, 1);
        let (status, line) = self.refused();
        assert!([1, 2].contains(&status), "{status}: {line}");
        (found, line)
    }

    /// As above, in the same words.
    fn agrees(&self, area: &str, check: &str) -> Value {
        let (found, line) = self.fails(area, check);
        let seen = found["seen"].as_str().unwrap();
        assert!(line.contains(seen), "{seen}\nis not in\n{line}");
        found
    }

    fn serve(mut self) -> Place {
        let mut command = self.command(&["--log-level", "error", "serve", "vringd.toml"]);
        self.daemon = Some(command.spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while !self.run(&["ctl", "--control", "control.sock", "info"]).status.success() {
            assert!(Instant::now() < end, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn disk(storage: &str) -> String {
    format!("workers = 1\n[[export]]\nname = 'a'\nsocket = '{{}}/a.sock'\nstorage = {{ {storage} }}\n")
}

fn directory(fields: &str, more: &str) -> String {
    let export = "[[export]]\nname = 'a'\nkind = 'dir'\nsocket = '{}/a.sock'\n";
    format!("workers = 1\n{more}\n{export}directory = {{ {fields} }}\n")
}

const RAW: &str = "kind = 'file', path = '{}/disk.img'";

#[test]
fn a_configuration_that_can_be_served_holds_nothing_back() {
    let place = Place::new(&disk(RAW));
    let (status, findings) = place.doctor(&["--verbose"]);
    assert!(status == 0 && findings.iter().all(|finding| finding["level"] != "fails"), "{findings:#?}");
    for (area, check) in [
        ("kernel", "io-uring"),
        ("limits", "open-files"),
        ("sandbox", "landlock"),
        ("images", "open"),
        ("sockets", "place"),
    ] {
        assert!(findings.iter().any(|finding| finding["area"] == area && finding["check"] == check), "{area} {check}");
    }
    let words = String::from_utf8(place.run(&["doctor", "vringd.toml"]).stdout).unwrap();
    assert!(!words.contains("\ngood ") && words.lines().last().unwrap().starts_with("vringd.toml: "), "{words}");
    let alone = place.run(&["doctor"]);
    let words = String::from_utf8(alone.stdout).unwrap();
    assert!(alone.status.success() && words.lines().last().unwrap().starts_with("this machine: "), "{words}");
}

#[test]
fn a_wrong_configuration_is_refused_as_by_a_check() {
    let long = disk(RAW).replace("a.sock", &"x".repeat(108));
    let contradiction = "[sandbox]\nallow = ['/']\nlandlock = 'off'";
    for config in ["workers = 'x'", "[[export]]\nname = 'a'", contradiction, &long] {
        let place = Place::new(config);
        let (doctor, check) = (place.run(&["doctor", "vringd.toml"]), place.run(&["serve", "--check", "vringd.toml"]));
        assert_eq!((doctor.status.code(), check.status.code()), (Some(2), Some(2)));
        assert_eq!(String::from_utf8(doctor.stderr).unwrap(), String::from_utf8(check.stderr).unwrap());
        assert!(doctor.stdout.is_empty());
    }
    let place = Place::new("[sandbox]\nuser = 'nobody-of-this-name'");
    let doctor = place.run(&["doctor", "vringd.toml"]);
    assert_eq!((doctor.status.code(), String::from_utf8(doctor.stderr).unwrap()), (Some(2), place.refused().1));
}

#[test]
fn images_that_cannot_be_opened() {
    let found = Place::new(&disk("kind = 'file', path = '{}/none.img'")).agrees("images", "open");
    assert!(found["fix"].as_str().unwrap().contains("truncate -s SIZE "), "{found}");
    Place::new(&disk("kind = 'file', path = '{}'")).fails("images", "open");
    Place::new(&disk("kind = 'qcow2', path = '{}/disk.img'")).agrees("images", "open");
    Place::new(&disk("kind = 'volume', path = '{}/disk.img'")).agrees("images", "open");
    Place::new(&disk("kind = 'volume', path = '{}/disk.img', log = '{}/none.log'")).fails("images", "open");
    Place::new(&disk("kind = 'memory', path = '{}/disk.img'")).agrees("images", "open");
    Place::new(&disk(&format!("{RAW}, luks = {{ key_file = '{{}}/none.key' }}"))).agrees("images", "open");

    let place = Place::new(&disk("kind = 'file', path = '{}/pipe'"));
    let made = Command::new("mkfifo").arg(place.path("pipe")).status().unwrap();
    assert!(made.success());
    // A pipe that nobody writes to holds nobody up.
    place.agrees("images", "open");
}

#[test]
fn a_key_for_what_is_no_container() {
    let place = Place::new(&disk(&format!("{RAW}, luks = {{ key_file = '{{}}/key' }}")));
    fs::write(place.path("key"), "secret").unwrap();
    fs::set_permissions(place.path("key"), Permissions::from_mode(0o600)).unwrap();
    place.agrees("images", "open");
}

#[test]
fn memory_in_a_file_that_cannot_be_and_one_that_is_made() {
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = |name: &str| shared.path().join(name).display().to_string();
    let memory = |path: &str, more: &str| Place::new(&disk(&format!("kind = 'memory', path = '{path}'{more}")));
    memory(&at("none/file"), ", size = '1M'").agrees("images", "open");
    memory("{}/new", ", size = '1M'").agrees("images", "open");
    File::create(at("sparse")).unwrap().set_len(1 << 20).unwrap();
    memory(&at("sparse"), ", read_only = true").agrees("images", "open");
    File::create(at("empty")).unwrap();
    memory(&at("empty"), "").agrees("images", "open");
    Place::new(&disk("kind = 'memory', size = '1P'")).agrees("images", "open");
    // What is not there yet is made before the sandbox is.
    let new = format!(
        "control = '{{}}/control.sock'\n{}",
        disk(&format!("kind = 'memory', path = '{}', size = '1M'", at("new")))
    );
    let allowed = format!("[sandbox]\nlandlock = 'on'\nallow = ['{}']\n", shared.path().display());
    let place = Place::new(&format!("{new}{allowed}"));
    let (status, findings) = place.doctor(&[]);
    assert!(status == 0 && !Path::new(&at("new")).exists(), "{findings:#?}");
    drop(place.serve());
}

/// A second export, at the socket `b.sock`.
fn another(storage: &str) -> String {
    format!("[[export]]\nname = 'b'\nsocket = '{{}}/b.sock'\nstorage = {{ {storage} }}\n")
}

#[test]
fn a_file_that_two_exports_write_to() {
    let link = "kind = 'file', path = '{}/link.img'";
    for (first, second, fails) in [
        ("", "", true),
        (", read_only = true", "", true),
        (", read_only = true", ", read_only = true", false),
        (", lock = false", ", lock = false", false),
    ] {
        let config = format!("{}{}", disk(&format!("{RAW}{first}")), another(&format!("{link}{second}")));
        let place = Place::new(&format!("control = '{{}}/control.sock'\n{config}"));
        symlink("disk.img", place.path("link.img")).unwrap();
        if fails {
            let (found, line) = place.fails("images", "open");
            assert_eq!(found["subject"], "export b");
            assert!(line.contains("export b") && line.contains("is in use"), "{line}");
        } else {
            assert_eq!(place.doctor(&[]).0, 0, "{first} {second}");
            drop(place.serve());
        }
    }
    let backing = Place::new(&format!("{}{}", disk("kind = 'qcow2', path = '{}/top.qcow2'"), another(RAW)));
    let made = ["image", "create", "--backing", "disk.img", "--backing-format", "raw", "top.qcow2"];
    assert!(backing.run(&made).status.success());
    backing.fails("images", "open");
}

#[test]
fn a_chain_that_is_broken() {
    let place = Place::new(&disk("kind = 'qcow2', path = '{}/top.qcow2'"));
    let image = |words: &[&str]| assert!(place.run(&[&["image", "create"], words].concat()).status.success());
    image(&["--size", "1M", "base.qcow2"]);
    image(&["--backing", "base.qcow2", "--backing-format", "qcow2", "top.qcow2"]);
    let (status, _) = place.doctor(&[]);
    assert_eq!(status, 0);
    fs::rename(place.path("base.qcow2"), place.path("elsewhere")).unwrap();
    place.agrees("images", "open");
}

#[test]
fn an_image_that_somebody_holds() {
    let control = "control = '{}/control.sock'\n";
    let holder = Place::new(&format!("{control}{}", disk(RAW))).serve();
    let image = holder.path("disk.img").display().to_string();
    for kind in ["file", "qcow2"] {
        let place = Place::new(&disk(&format!("kind = '{kind}', path = '{image}'")));
        let found = place.agrees("images", "open");
        let pid = holder.daemon.as_ref().unwrap().id();
        assert!(found["seen"].as_str().unwrap().contains(&format!("(pid {pid})")), "{found}");
    }
    let reader = Place::new(&disk(&format!("kind = 'file', path = '{image}', read_only = true")));
    reader.agrees("images", "open");
    // Without a lock it is served, and so it is where the image changes hands.
    for more in ["lock = false", "migratable = true"] {
        let place = Place::new(&disk(&format!("kind = 'file', path = '{image}', {more}")));
        assert_eq!(place.doctor(&[]).0, 0, "{more}");
    }
}

#[test]
fn a_daemon_that_serves_already_is_no_obstacle_and_does_not_notice() {
    let place = Place::new(&format!("control = '{{}}/control.sock'\n{}", disk(RAW))).serve();
    let sessions = || {
        let shown = place.run(&["ctl", "--control", "control.sock", "metrics"]);
        let text = String::from_utf8(shown.stdout).unwrap();
        text.lines().filter(|line| line.contains("session")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = sessions();
    let (status, findings) = place.doctor(&[]);
    assert_eq!(status, 0, "{findings:#?}");
    let served: Vec<_> = findings.iter().filter(|finding| finding["check"] == "served").collect();
    assert_eq!(served.len(), 2, "the control socket and that of the export: {findings:#?}");
    assert!(!before.is_empty() && sessions() == before, "nobody connected");
}

#[test]
fn sockets_that_cannot_be_made() {
    let at = |socket: &str| disk(RAW).replace("{}/a.sock", socket);
    Place::new(&at("{}/none/a.sock")).agrees("sockets", "place");
    Place::new(&at("{}/disk.img")).agrees("sockets", "place");
    let controlled = |path: &str, socket: &str| Place::new(&format!("control = '{{}}/{path}'\n{}", at(socket)));
    controlled("disk.img/control.sock", "{}/a.sock").agrees("sockets", "place");
    controlled("none/none/control.sock", "{}/a.sock").agrees("sockets", "place");
    // The directory of the control socket is made, and is there for others then.
    let made = controlled("none/control.sock", "{}/none/a.sock");
    assert_eq!(made.doctor(&[]).0, 0);
    assert!(!made.path("none").exists());
    let mut daemon = made.command(&["--log-level", "error", "serve", "vringd.toml"]).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while !made.path("none/a.sock").exists() {
        assert!(Instant::now() < end && daemon.try_wait().unwrap().is_none(), "it does not serve");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = daemon.kill();
    let _ = daemon.wait();

    let place = Place::new(&disk(RAW));
    let listening = UnixListener::bind(place.path("a.sock")).unwrap();
    let (found, line) = place.fails("sockets", "place");
    assert!(line.contains("another process listens there"), "{line}");
    assert!(found["seen"].as_str().unwrap().contains(&format!("(pid {})", std::process::id())), "{found}");
    listening.set_nonblocking(true).unwrap();
    // The daemon that is refused connects to find out; the doctor does not.
    assert!(listening.accept().is_ok() && listening.accept().is_err());
    drop(listening);
    // Nobody listens any more: it is replaced.
    assert_eq!(place.doctor(&[]).0, 0);

    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("listen = 'tcp:{}'", listening.local_addr().unwrap().port());
    Place::new(&disk(RAW).replace("socket = '{}/a.sock'", &listen)).agrees("sockets", "place");
    let tls = "listen = 'tcp:0'\ntls = { certificates = '{}/none' }";
    Place::new(&disk(RAW).replace("socket = '{}/a.sock'", tls)).agrees("sockets", "place");
    let owner = "socket = '{}/a.sock'\nsocket_owner = 'nobody-of-this-name'";
    Place::new(&disk(RAW).replace("socket = '{}/a.sock'", owner)).agrees("sockets", "place");
}

#[test]
fn a_socket_by_two_names() {
    let other = another("kind = 'null', size = '1M'").replace("{}/b.sock", "{}/there/../a.sock");
    for config in [format!("{}{other}", disk(RAW)), format!("control = '{{}}/there/../a.sock'\n{}", disk(RAW))] {
        let place = Place::new(&config);
        fs::create_dir(place.path("there")).unwrap();
        place.fails("sockets", "place");
    }
}

#[test]
fn who_listens_by_whatever_name_and_who_does_not() {
    let place = Place::new(&disk(RAW));
    // As a daemon does that has changed its directory, or is given another place.
    let listening = UnixListener::bind(place.path("before.sock")).unwrap();
    fs::rename(place.path("before.sock"), place.path("a.sock")).unwrap();
    let (found, line) = place.fails("sockets", "place");
    assert!(line.contains("another process listens there"), "{line}");
    assert!(found["seen"].as_str().unwrap().contains(&format!("(pid {})", std::process::id())), "{found}");
    // Its name, and another file that nobody listens at.
    let place = Place::new(&format!("control = '{{}}/control.sock'\n{}", disk(RAW)));
    let listening_too = UnixListener::bind(place.path("a.sock")).unwrap();
    fs::remove_file(place.path("a.sock")).unwrap();
    drop(UnixListener::bind(place.path("a.sock")).unwrap());
    // And one that is bound, and does not listen.
    let bound = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    let address = rustix::net::SocketAddrUnix::new(place.path("control.sock")).unwrap();
    rustix::net::bind(&bound, &address).unwrap();
    let (status, findings) = place.doctor(&[]);
    assert_eq!(status, 0, "{findings:#?}");
    drop((place.serve(), listening, listening_too, bound));
}

#[test]
fn sockets_of_others_that_a_user_may_not_ask_or_make() {
    if !is_root() {
        return;
    }
    let null = "kind = 'null', size = '1M'";
    let open_to_all = |place: Place| {
        fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
        place.by(&NOBODY)
    };
    let stale = open_to_all(Place::new(&disk(null)));
    drop(UnixListener::bind(stale.path("a.sock")).unwrap());
    stale.agrees("sockets", "place");
    let group = |number: u32| disk(null).replace("name = 'a'", &format!("name = 'a'\nsocket_group = '{number}'"));
    let (_, line) = open_to_all(Place::new(&group(1))).fails("sockets", "owner");
    assert!(line.contains("cannot change its owner"), "{line}");
    let own = open_to_all(Place::new(&format!("control = '{{}}/control.sock'\n{}", group(65534))));
    assert_eq!(own.doctor(&[]).0, 0);
    let inside = ["unshare", "--user", "--map-root-user"];
    let mapped = Place::new(&group(1)).by(&inside);
    if mapped.run(&["--version"]).status.success() {
        mapped.fails("sockets", "owner");
    }
}

#[test]
fn a_configuration_without_an_end_or_a_beginning() {
    let place = Place::new("");
    for (name, says) in [("endless", "16 MiB"), ("pipe", "does not answer within 10 seconds")] {
        fs::remove_file(place.path("vringd.toml")).unwrap();
        match name {
            "endless" => symlink("/dev/zero", place.path("vringd.toml")).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(place.path("vringd.toml")).status().unwrap().success()),
        }
        let doctor = place.run(&["doctor", "vringd.toml"]);
        let line = String::from_utf8(doctor.stderr).unwrap();
        assert!(doctor.status.code() == Some(2) && line.contains(says) && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn directories_that_cannot_be_served() {
    Place::new(&directory("path = '{}/none'", "[sandbox]\nlandlock = 'off'")).agrees("directories", "open");
    // The sandbox comes first, and has its own words.
    Place::new(&directory("path = '{}/none'", "")).agrees("sandbox", "sandbox");
    Place::new(&directory("path = '{}', inode_file_handles = 'mandatory'", "")).agrees("directories", "open");
    Place::new(&directory("path = '{}/disk.img', security_model = 'mapped-file'", "")).agrees("directories", "open");
}

#[test]
fn a_sandbox_that_cannot_be_had() {
    let config = format!("{}[sandbox]\nallow = ['{{}}/none']\n", disk(RAW));
    Place::new(&config).agrees("sandbox", "sandbox");
    if is_root() {
        let config = format!("{}[sandbox]\nuser = '0:0'\n", disk(RAW));
        let place = Place::new(&config).by(&NOBODY);
        fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(place.path("disk.img"), Permissions::from_mode(0o666)).unwrap();
        // Its sockets were to belong to that user, which is refused first.
        let (_, line) = place.fails("sandbox", "sandbox");
        assert!(line.contains("owner"), "{line}");
    }
}

#[test]
fn what_a_user_without_rights_may_not() {
    if !is_root() {
        return;
    }
    let place = Place::new(&disk(RAW)).by(&NOBODY);
    fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(place.path("disk.img"), Permissions::from_mode(0o644)).unwrap();
    let found = place.agrees("images", "open");
    assert!(found["fix"].as_str().unwrap().starts_with("setfacl "), "{found}");
    let reader = Place::new(&disk(&format!("{RAW}, read_only = true"))).by(&NOBODY);
    reader.agrees("sockets", "place");

    let owner = "socket = '{}/a.sock'\nsocket_owner = '1'";
    let place = Place::new(&disk("kind = 'null', size = '1M'").replace("socket = '{}/a.sock'", owner)).by(&NOBODY);
    fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
    let (_, line) = place.fails("sockets", "owner");
    assert!(line.contains("cannot change its owner"), "{line}");
}

#[test]
fn limits_that_are_too_low_for_certain() {
    let null = disk("kind = 'null', size = '1M'").replace("workers = 1", "workers = 20");
    let place = Place::new(&null).by(&["prlimit", "--nofile=48:48"]);
    let (_, line) = place.fails("limits", "open-files");
    assert!(line.contains("Too many open files") || line.contains("os error 24"), "{line}");
    // What a daemon has open that has just started is never too little.
    let config = format!("control = '{{}}/control.sock'\n{}", directory("path = '{}/served'", "workers = 2"));
    let config = config.replace("workers = 1\n", "")
        + &disk(RAW).replace("workers = 1\n", "").replace("'a'", "'b'").replace("a.sock", "b.sock");
    let place = Place::new(&config);
    fs::create_dir(place.path("served")).unwrap();
    let place = place.serve();
    let open = fs::read_dir(format!("/proc/{}/fd", place.daemon.as_ref().unwrap().id())).unwrap().count();
    let limit = format!("--nofile={open}:{open}");
    let (_, findings) = place.by(&["prlimit", &limit]).doctor(&[]);
    let fails = findings.iter().filter(|finding| finding["level"] == "fails").collect::<Vec<_>>();
    assert!(fails.is_empty(), "{fails:#?}");
    if is_root() {
        // Nobody else of that number has a thread, and this one may have few.
        let mut words = vec!["prlimit", "--nproc=12:12", "setpriv", "--reuid=64999", "--regid=64999", "--clear-groups"];
        words.push("--inh-caps=-all");
        let place = Place::new(&null).by(&words);
        fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
        let (_, line) = place.fails("limits", "threads");
        assert!(line.contains("os error 11"), "{line}");
    }
}

#[test]
fn locked_memory_that_is_too_little_for_all_workers() {
    if !is_root() {
        return;
    }
    let null = disk("kind = 'null', size = '1M'").replace("workers = 1", "workers = 8");
    let limited = ["prlimit", "--memlock=262144:262144", "setpriv", "--reuid=64998", "--regid=64998", "--clear-groups"];
    let place = Place::new(&null).by(&limited);
    fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
    // Kernels from 5.12 to 6.13 do not count what workers have.
    if place.doctor(&[]).0 == 1 {
        let (found, line) = place.fails("kernel", "io-uring");
        assert!(line.contains("RLIMIT_MEMLOCK"), "{line}");
        assert!(found["fix"].as_str().unwrap().contains("LimitMEMLOCK"), "{found}");
    }
}

#[test]
fn a_control_group_that_has_no_room_for_threads() {
    let Some(group) = Pids::new(12) else {
        eprintln!("no control groups to make: nothing was tried");
        return;
    };
    let null = disk("kind = 'null', size = '1M'").replace("workers = 1", "workers = 20");
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    let place = Place::new(&null).by(&["sh", "-c", &enter, "sh"]);
    let (found, line) = place.fails("limits", "tasks");
    assert!(line.contains("os error 11"), "{line}");
    assert!(found["fix"].as_str().unwrap().contains(&group.0.display().to_string()), "{found}");
}

/// A control group with a limit of tasks; gone when dropped.
struct Pids(PathBuf);

impl Pids {
    fn new(most: u32) -> Option<Pids> {
        let above = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().map(Path::new);
        let mut above = above.filter(|above| above.join("cgroup.procs").exists());
        let group = above.next()?.join(format!("vringd-doctor-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let group = Pids(group);
        fs::write(group.0.join("pids.max"), most.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn memory_that_is_not_there() {
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let memory = shared.path().join("memory").display().to_string();
    let volume = |dirty: &str| {
        let fields = format!("memory_file = '{memory}', dirty_memory = '{dirty}'");
        let place = Place::new(&disk(&format!("kind = 'volume', path = '{{}}/db.vol', {fields}")));
        let made = place.run(&["volume", "create", "--size", "16M", "--log-size", "1M", "db.vol"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        place
    };
    assert_eq!(volume("1M").doctor(&[]).0, 0);
    let room = rustix::fs::statvfs(shared.path()).unwrap();
    if room.f_blocks > 0 && room.f_blocks * room.f_frsize < 60 << 30 {
        let (_, line) = volume("64G").fails("memory", "memory-file");
        assert!(line.contains("No space left on device"), "{line}");
        assert!(!Path::new(&memory).exists());
    }
    let pages = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").unwrap_or_default();
    if pages.trim() == "0" {
        let place = Place::new(&disk("kind = 'memory', size = '4M', hugepages = true"));
        let (_, line) = place.fails("memory", "huge-pages");
        assert!(line.contains("free huge pages"), "{line}");
    }
}

#[test]
fn a_container_that_forbids_io_uring() {
    let place = Place::new(&disk(RAW));
    let refused = |errno: rustix::io::Errno| {
        // A filter holds its thread, and what that starts.
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let rules = BTreeMap::from([(425, Vec::new())]);
                let answer = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
                let machine = TargetArch::try_from(std::env::consts::ARCH).unwrap();
                let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, machine).unwrap();
                let program: BpfProgram = filter.try_into().unwrap();
                apply_filter(&program).unwrap();
                place.fails("kernel", "io-uring")
            });
            inside.join().unwrap()
        })
    };
    for errno in [rustix::io::Errno::PERM, rustix::io::Errno::NOSYS] {
        let (found, line) = refused(errno);
        assert!(line.contains("io_uring"), "{line}");
        assert!(found["fix"].as_str().unwrap().contains("seccomp="), "{found}");
    }
}

#[test]
fn a_read_only_device() {
    let Some(device) = Loop::new() else {
        eprintln!("no loop devices: nothing was tried");
        return;
    };
    let writer = Place::new(&disk(&format!("kind = 'file', path = '{}'", device.path)));
    let (status, findings) = writer.doctor(&[]);
    let found = findings.iter().find(|finding| finding["check"] == "read-only").unwrap();
    assert_eq!((status, &found["level"]), (0, &"degraded".into()));
    let reader = Place::new(&disk(&format!("kind = 'file', path = '{}', read_only = true", device.path)));
    assert!(reader.doctor(&[]).1.iter().all(|finding| finding["check"] != "read-only"));
    // Kernels let a writer open it.
    let control =
        format!("control = '{{}}/control.sock'\n{}", disk(&format!("kind = 'file', path = '{}'", device.path)));
    drop(Place::new(&control).serve());
}

/// A read-only loop device; gone when dropped.
struct Loop {
    path: String,
    _image: tempfile::NamedTempFile,
}

impl Loop {
    fn new() -> Option<Loop> {
        let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let output =
            Command::new("losetup").args(["--read-only", "--show", "--find"]).arg(image.path()).output().ok()?;
        let path = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        output.status.success().then_some(Loop { path, _image: image })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}

/// A file system whose server never answers.
#[test]
fn a_file_system_that_hangs_is_named_and_left_behind() {
    let place = Place::new(&format!(
        "{}[[export]]\nname = 'b'\nsocket = '{{}}/b.sock'\nstorage = {{ {RAW}, read_only = true, lock = false }}\n",
        disk("kind = 'file', path = '{}/hung/disk.img', read_only = true")
    ));
    fs::create_dir(place.path("hung")).unwrap();
    // A name space of its own, which takes the mount along. Nobody reads from the descriptor.
    let script =
        "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 hung hung && exec \"$@\"";
    let place = place.by(&["unshare", "--mount", "sh", "-c", script, "sh"]);
    if !place.run(&["--version"]).status.success() {
        eprintln!("no FUSE mounts: nothing was tried");
        return;
    }
    let (_, findings) = place.doctor(&[]);
    let late: Vec<_> = findings.iter().filter(|finding| finding["check"] == "answers").collect();
    assert_eq!(late.len(), 1, "{findings:#?}");
    let seen = late[0]["seen"].as_str().unwrap();
    assert!(seen.contains("/hung/disk.img does not answer"), "{seen}");
    assert_eq!(late[0]["subject"], "export a");
}

#[test]
fn nothing_is_changed() {
    let place = Place::new(&format!(
        "control = '{{}}/control.sock'\nworkers = 1\n{}{}",
        disk("kind = 'volume', path = '{}/db.vol'").replace("workers = 1\n", ""),
        directory("path = '{}/served'", "")
            .replace("workers = 1\n", "")
            .replace("'a'", "'b'")
            .replace("a.sock", "b.sock"),
    ));
    let made = place.run(&["volume", "create", "--size", "16M", "--log-size", "1M", "db.vol"]);
    assert!(made.status.success());
    fs::create_dir(place.path("served")).unwrap();
    symlink("nowhere", place.path("served/link")).unwrap();
    drop(UnixListener::bind(place.path("a.sock")).unwrap());
    let all = || {
        let of = |path: &Path| {
            let about = fs::symlink_metadata(path).unwrap();
            (path.to_owned(), about.ino(), about.size(), about.mtime_nsec(), about.ctime_nsec(), about.mode())
        };
        let mut seen: Vec<_> = ["", "served"]
            .iter()
            .flat_map(|name| fs::read_dir(place.path(name)).unwrap())
            .map(|entry| of(&entry.unwrap().path()))
            .collect();
        seen.sort();
        let run = fs::read_dir("/run/vringd").map(Iterator::count).ok();
        (seen, run)
    };
    let before = all();
    let (status, findings) = place.doctor(&["--verbose"]);
    assert_eq!(status, 0, "{findings:#?}");
    assert_eq!(all(), before);
}
