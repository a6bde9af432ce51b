//! What a daemon of disks has given up, as the kernel sees it, and that it serves all the same.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use control::client::{Client, ClientError};
use control::model::{
    Attach, Execution, Export, FileSystem, Info, NewWorker, Resize, RingInfo, SandboxInfo, SeccompState, Settings,
    Worker,
};
use http::Method;
use rustix::fs::OFlags;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::fuse::{Client as Fuse, ROOT, name_body, op, read_body};
use tests::image;
use tests::process::Group;
use tests::vringd;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What the kernel says of a process: the value of `name` for each of its threads.
fn status(pid: u32, name: &str) -> Result<Vec<String>> {
    let mut values = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // Threads may end while they are listed.
        let Ok(text) = fs::read_to_string(task?.path().join("status")) else { continue };
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        values.push(value.context("the kernel tells")?.trim().to_owned());
    }
    Ok(values)
}

fn all(pid: u32, name: &str, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let values = status(pid, name)?;
    ensure!(values.iter().all(|value| wanted(value)), "{name} of the threads: {values:?}");
    Ok(())
}

/// `vringd disk` in a directory of its own.
struct Disk {
    process: Group,
    directory: TempDir,
    client: Client,
}

impl Disk {
    fn serve(more: &[&str]) -> Result<Self> {
        let directory = directory()?;
        image::sparse(directory.path(), "disk.img", 16 * MIB)?;
        let mut command = Command::new(vringd::program()?);
        command.args(Self::options(&directory)).args(more).arg(directory.path().join("disk.img"));
        Self::start(&command, directory)
    }

    fn options(directory: &TempDir) -> Vec<PathBuf> {
        let at = |name: &str| directory.path().join(name);
        vec!["disk".into(), "--socket".into(), at("disk.sock"), "--control".into(), at("control.sock")]
    }

    fn start(command: &Command, directory: TempDir) -> Result<Self> {
        let mut process = Group::start(command, &directory.path().join("log"))?;
        let client = Client::new(directory.path().join("control.sock"))?;
        process.wait_until(LIMIT, |_| client.text("/v1/info").is_ok())?;
        Ok(Self { process, directory, client })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn info(&self) -> Result<SandboxInfo> {
        Ok(self.client.get::<Info>("/v1/info")?.sandbox)
    }

    /// Verified load on an export.
    fn load(&self, name: &str) -> Result<()> {
        let spec = Spec { rw: Rw::RandRw, verify: true, ops: Some(2_000), flush_every: 16, ..Spec::default() };
        let load = Load::start(&self.path().join(format!("{name}.sock")), &spec)?;
        load.wait(|_| ());
        let report = load.finish()?;
        ensure!(report.is_clean(), "{report:?}");
        Ok(())
    }

    fn add(&self, name: &str, more: &Value) -> Result<Export, ClientError> {
        let mut new = json!({ "name": name, "socket": self.path().join(format!("{name}.sock")) });
        if let (Value::Object(new), Value::Object(more)) = (&mut new, more) {
            new.extend(more.clone());
        }
        self.client.send(Method::POST, "/v1/exports", &new)
    }

    fn stop(mut self) -> Result<()> {
        self.process.stop("the server", LIMIT)?;
        for name in ["disk.sock", "control.sock"] {
            ensure!(!self.path().join(name).exists(), "{name} is left behind");
        }
        Ok(())
    }
}

fn file(path: &Path) -> Value {
    json!({ "storage": { "kind": "file", "path": path } })
}

/// The message of a refusal of a field.
fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>, field: &str) -> String {
    match result {
        Err(ClientError::Refused { code, status: 422, message, .. }) if code == "invalid-field" => {
            assert!(message.starts_with(&format!("{field}: ")) && !message.contains('\n'), "{message}");
            message
        }
        other => panic!("{field} is not refused: {other:?}"),
    }
}

#[test]
fn a_disk_has_given_up_all_it_can_and_serves() -> Result<()> {
    let disk = Disk::serve(&[])?;
    let pid = disk.process.id();
    disk.load("disk")?;
    // Everything that an operator may do to it while it runs.
    let _: Worker = disk.client.send(Method::POST, "/v1/workers", &json!({ "cpus": "0" }))?;
    let own: Worker = disk.client.send(Method::POST, "/v1/exports/disk/workers", &NewWorker::default())?;
    let attach = Attach { worker: own.id };
    let _: RingInfo = disk.client.send(Method::PUT, "/v1/exports/disk/rings/0/worker", &attach)?;
    for execution in [Execution::Pool(2), Execution::Inline, Execution::Uring, Execution::Auto] {
        let settings = Settings { execution: Some(execution), ..Settings::default() };
        let _: Export = disk.client.send(Method::PATCH, "/v1/exports/disk", &settings)?;
        disk.load("disk")?;
    }
    let larger = Resize { capacity_bytes: control::model::ByteSize(32 * MIB) };
    let resized: Export = disk.client.send(Method::PUT, "/v1/exports/disk/capacity", &larger)?;
    assert_eq!(resized.storage.context("it is a disk")?.capacity_bytes, 32 * MIB);
    assert_eq!(fs::metadata(disk.path().join("disk.img"))?.len(), 32 * MIB);
    disk.client.text("/metrics")?;

    all(pid, "NoNewPrivs", |value| value == "1")?;
    all(pid, "Seccomp", |value| value == "2")?;
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        all(pid, set, |value| value == "0000000000000000")?;
    }
    let seen = disk.info()?;
    assert!(seen.no_new_privs && seen.capabilities.is_empty(), "{seen:?}");
    assert_eq!((seen.seccomp, seen.file_system), (SeccompState::Kill, FileSystem::Host));
    if let Some(landlock) = &seen.landlock {
        let place = disk.path().canonicalize()?;
        let paths = [place.clone(), place.join("disk.img")].map(|path| path.display().to_string());
        assert_eq!(landlock.paths, paths);
    } else {
        assert!(disk.process.output().contains("without Landlock"), "{}", disk.process.output());
    }
    disk.stop()
}

#[test]
fn what_is_out_of_reach_is_refused_by_name() -> Result<()> {
    let elsewhere = directory()?;
    let other = image::sparse(elsewhere.path(), "other.img", 16 * MIB)?;
    let disk = Disk::serve(&[])?;
    if disk.info()?.landlock.is_none() {
        return Ok(());
    }
    let message = refused(disk.add("other", &file(&other)), "storage.path");
    assert!(message.contains(&format!("--allow {}", elsewhere.path().display())), "{message}");
    let mut new = file(&disk.path().join("disk.img"));
    new["socket"] = json!(elsewhere.path().join("other.sock"));
    refused(disk.add("other", &new), "socket");
    match disk.add("dir", &json!({ "kind": "dir", "directory": { "path": disk.path() } })) {
        Err(ClientError::Refused { code, status: 409, .. }) if code == "unsupported" => {}
        other => panic!("a daemon of disks serves a directory: {other:?}"),
    }
    // What needs no path out of reach is added as ever.
    disk.add("null", &json!({ "storage": { "kind": "null", "size": "1G" } }))?;
    disk.stop()?;

    let allow = elsewhere.path().to_str().context("it is UTF-8")?;
    let disk = Disk::serve(&["--allow", allow])?;
    disk.add("other", &file(&other))?;
    disk.load("other")?;
    disk.client.order(Method::DELETE, "/v1/exports/other?force=true")?;
    assert!(!disk.path().join("other.sock").exists());
    disk.stop()
}

#[test]
fn each_part_can_be_left_out() -> Result<()> {
    let disk = Disk::serve(&["--landlock", "off", "--seccomp", "none", "--capabilities", "all"])?;
    let pid = disk.process.id();
    disk.load("disk")?;
    let seen = disk.info()?;
    let own = status(std::process::id(), "CapEff")?.first().context("this process has a thread")?.clone();
    all(pid, "CapEff", |value| value == own)?;
    all(pid, "NoNewPrivs", |value| value == "1")?;
    // Who runs the tests may filter themselves.
    if status(std::process::id(), "Seccomp")?.iter().all(|value| value == "0") {
        all(pid, "Seccomp", |value| value == "0")?;
        assert_eq!(seen.seccomp, SeccompState::None);
    }
    assert!(seen.landlock.is_none() && seen.landlock_off.is_some_and(|why| why.contains("turned off")));
    disk.stop()?;

    for action in ["log", "trap"] {
        let disk = Disk::serve(&["--seccomp", action])?;
        disk.load("disk")?;
        assert_eq!(serde_json::to_value(disk.info()?.seccomp)?, json!(action));
        disk.stop()?;
    }
    Ok(())
}

#[test]
fn root_serves_as_somebody_else() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let directory = directory()?;
    image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    // The image is root's, and only its directory lets the user remove sockets.
    fs::set_permissions(directory.path().join("disk.img"), Permissions::from_mode(0o600))?;
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777))?;
    let mut command = Command::new(vringd::program()?);
    command.args(Disk::options(&directory)).args(["--user", "65534:65534"]).arg(directory.path().join("disk.img"));
    let disk = Disk::start(&command, directory)?;
    let pid = disk.process.id();
    disk.load("disk")?;
    all(pid, "Uid", |value| value == "65534\t65534\t65534\t65534")?;
    all(pid, "Gid", |value| value == "65534\t65534\t65534\t65534")?;
    all(pid, "CapEff", |value| value == "0000000000000000")?;
    let groups = status(pid, "Groups")?;
    assert!(groups.iter().all(|groups| !groups.split(' ').any(|group| group == "0")), "{groups:?}");
    let seen = disk.info()?;
    assert_eq!((seen.uid, seen.gid), (NOBODY, NOBODY));
    for name in ["disk.sock", "control.sock"] {
        let about = fs::metadata(disk.path().join(name))?;
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o777), (NOBODY, NOBODY, 0o600), "{name}");
    }
    disk.stop()
}

#[test]
fn nobody_serves_from_the_start() -> Result<()> {
    if !is_root() {
        // Whoever runs the tests is nobody then, and has run all of this.
        return Ok(());
    }
    let directory = directory()?;
    let image = image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    let program = directory.path().join("vringd");
    fs::copy(vringd::program()?, &program)?;
    for path in [directory.path(), &image] {
        chown(path, Some(NOBODY), Some(NOBODY))?;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
    command.args(Disk::options(&directory)).arg(image);
    let disk = Disk::start(&command, directory)?;
    disk.load("disk")?;
    let seen = disk.info()?;
    assert!(seen.no_new_privs && seen.capabilities.is_empty() && seen.seccomp == SeccompState::Kill, "{seen:?}");
    assert_eq!(seen.uid, NOBODY);
    disk.stop()
}

/// One line, exit status 2, nothing made.
fn refusal(more: &[&str], words: &[&str]) -> Result<()> {
    let directory = directory()?;
    image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    let mut command = Command::new("timeout");
    command.arg("60").arg(vringd::program()?).args(Disk::options(&directory)).args(["--log-level", "error"]);
    let output = command.args(more).arg(directory.path().join("disk.img")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{more:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{more:?}: `{word}` is not in: {said}");
    }
    assert_eq!(fs::read_dir(directory.path())?.count(), 1, "{more:?}");
    Ok(())
}

#[test]
fn refusals_name_the_option_and_the_fix() -> Result<()> {
    refusal(&["--allow", "/nonexistent"], &["sandbox.allow", "/nonexistent", "name one that exists"])?;
    refusal(&["--allow", "/", "--landlock", "off"], &["sandbox.allow", "landlock off"])?;
    refusal(&["--user", "nobody-of-this-name"], &["sandbox.user", "nobody-of-this-name"])?;
    refusal(&["--user", "4000000000"], &["sandbox.user", "4000000000:GROUP"])?;
    refusal(&["--user", "root", "--capabilities", "all"], &["sandbox.capabilities", "`all`"])?;
    if !is_root() {
        refusal(&["--user", "root"], &["sandbox.user", "root"])?;
    }
    Ok(())
}

/// The kernel takes 16 layers of Landlock and so many filters: a program that goes on enters nothing again.
#[test]
fn programs_that_go_on_are_held_as_the_first() -> Result<()> {
    let disk = Disk::serve(&[])?;
    let pid = disk.process.id();
    let before = disk.info()?;
    let filters = status(pid, "Seccomp_filters")?;
    let upgrade = |more: &[&str]| -> Result<_> {
        let mut command = Command::new(vringd::program()?);
        command.arg("ctl").arg("--control").arg(disk.path().join("control.sock")).arg("upgrade").args(more);
        Ok(command.output()?)
    };
    for _ in 0..20 {
        let output = upgrade(&[])?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    disk.load("disk")?;
    assert_eq!(disk.info()?, before);
    all(pid, "Seccomp_filters", |value| value == filters[0])?;
    all(pid, "NoNewPrivs", |value| value == "1")?;
    all(pid, "CapEff", |value| value == "0000000000000000")?;

    if before.landlock.is_some() {
        let elsewhere = directory()?;
        let program = elsewhere.path().join("vringd");
        fs::copy(vringd::program()?, &program)?;
        let output = upgrade(&["--binary", program.to_str().context("it is UTF-8")?])?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains(&format!("--allow {}", elsewhere.path().display())), "{said}");
        disk.load("disk")?;
    }
    disk.stop()
}

#[test]
fn a_daemon_of_many_is_confined_to_what_is_allowed() -> Result<()> {
    let allowed = directory()?;
    let elsewhere = directory()?;
    fs::create_dir(allowed.path().join("shared"))?;
    fs::write(allowed.path().join("shared/file"), "content")?;
    image::sparse(allowed.path(), "a.img", 16 * MIB)?;
    image::sparse(elsewhere.path(), "b.img", 16 * MIB)?;
    let place = directory()?;
    image::sparse(place.path(), "first.img", 16 * MIB)?;
    let daemon = Daemon::serve_in(
        place,
        &format!(
            "[sandbox]\nallow = ['{}']\n[[export]]\nname = 'first'\nsocket = '{DIRECTORY}/first.sock'\n\
             storage = {{ kind = 'file', path = '{DIRECTORY}/first.img' }}\n",
            allowed.path().display()
        ),
    )?;
    let seen = daemon.client().get::<Info>("/v1/info")?.sandbox;
    if seen.landlock.is_none() {
        return Ok(());
    }
    let add = |new: Value| daemon.client().send::<Export>(Method::POST, "/v1/exports", &new);
    let socket = |name: &str| daemon.path().join(format!("{name}.sock"));
    let disk = |name: &str, path: PathBuf| json!({ "name": name, "socket": socket(name), "storage": { "kind": "file", "path": path } });
    add(disk("a", allowed.path().join("a.img")))?;
    refused(add(disk("b", elsewhere.path().join("b.img"))), "storage.path");
    let tree = |name: &str, path: &Path| json!({ "name": name, "kind": "dir", "socket": socket(name), "directory": { "path": path } });
    refused(add(tree("dir", elsewhere.path())), "directory.path");
    add(tree("dir", &allowed.path().join("shared")))?;

    // Names and data of the directory are served by the rules as they are without.
    let mut guest = Fuse::begin(&socket("dir"))?;
    let node = guest.lookup(ROOT, "file")?;
    let handle = guest.open(op::OPEN, node, OFlags::RDWR.bits().cast_signed())?;
    let read = guest.call(op::READ, node, &read_body(handle, 0, 64))?.ok()?;
    assert_eq!(read.body, b"content");
    guest.call(op::MKDIR, ROOT, &[&[0xed, 1, 0, 0, 0, 0, 0, 0][..], &name_body(b"made")].concat())?.ok()?;
    assert!(allowed.path().join("shared/made").is_dir());
    guest.call(op::RMDIR, ROOT, &name_body(b"made"))?.ok()?;
    guest.check()?;
    drop(guest);

    for name in ["first", "a"] {
        let load =
            Load::start(&socket(name), &Spec { rw: Rw::RandRw, verify: true, ops: Some(500), ..Spec::default() })?;
        load.wait(|_| ());
        assert!(load.finish()?.is_clean());
    }
    all(daemon.id(), "NoNewPrivs", |value| value == "1")?;
    all(daemon.id(), "Seccomp", |value| value == "2")?;
    daemon.stop()
}

#[test]
fn a_daemon_without_a_list_of_directories_says_so() -> Result<()> {
    let elsewhere = directory()?;
    let path = image::sparse(elsewhere.path(), "b.img", 16 * MIB)?;
    let daemon = Daemon::serve("")?;
    let seen = daemon.client().get::<Info>("/v1/info")?.sandbox;
    assert!(seen.landlock.is_none() && seen.landlock_off.is_some_and(|why| why.contains("`allow`")));
    assert!(seen.no_new_privs && seen.seccomp == SeccompState::Kill);
    if is_root() {
        // What opening an image of anybody's and serving a directory take, and no more.
        assert!(seen.capabilities.contains(&"cap_dac_override".to_owned()), "{:?}", seen.capabilities);
        assert!(!seen.capabilities.contains(&"cap_sys_admin".to_owned()), "{:?}", seen.capabilities);
    }
    let new =
        json!({ "name": "b", "socket": daemon.path().join("b.sock"), "storage": { "kind": "file", "path": path } });
    let _: Export = daemon.client().send(Method::POST, "/v1/exports", &new)?;
    daemon.stop()
}
