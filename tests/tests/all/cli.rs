//! What a person types and writes: what is wrong is said in one line and changes nothing; what is right works.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result};
use tempfile::TempDir;
use tests::image;
use tests::vringd::{self, run};

const MIB: u64 = 1 << 20;

/// A directory with a sparse image `disk.img`, in which commands run.
fn place() -> Result<TempDir> {
    let directory = tests::daemon::directory()?;
    image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    Ok(directory)
}

fn names(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut names = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The command is refused: status 2, one line with all of `words`, nothing on the output, nothing made or removed.
fn refused(directory: &Path, arguments: &[&str], words: &[&str]) -> Result<()> {
    let before = names(directory)?;
    // What is done on the way to a refusal may be logged; the refusal itself is one line.
    let quiet = [&["--log-level", "error"], arguments].concat();
    let output = run(directory, &quiet)?;
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    assert!(said.starts_with("vringd: ") && said.ends_with('\n'), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?}: `{word}` is not in: {said}");
    }
    assert_eq!(names(directory)?, before, "{arguments:?}");
    Ok(())
}

#[test]
fn bad_options_of_a_disk() -> Result<()> {
    let directory = place()?;
    fs::write(directory.path().join("empty.img"), "")?;
    fs::write(directory.path().join("plain"), "precious")?;
    let disk = |more: &[&str], words: &[&str]| {
        refused(directory.path(), &[&["disk", "--socket", "s.sock"], more].concat(), words)
    };
    disk(&["missing.img"], &["storage", "missing.img", "truncate"])?;
    disk(&["."], &["storage", "regular file or a block device"])?;
    disk(&["empty.img"], &["storage", "empty.img", "0 bytes", "truncate"])?;
    disk(&["--queues", "0", "disk.img"], &["queues", "1 to 256"])?;
    disk(&["--queues", "257", "disk.img"], &["queues", "1 to 256"])?;
    disk(&["--queue-size", "1000", "disk.img"], &["queue_size", "power of two"])?;
    disk(&["--block-size", "1024", "disk.img"], &["block_size", "512 or 4096"])?;
    disk(&["--serial", "a serial that is too long", "disk.img"], &["serial", "20"])?;
    disk(&["--name", "a b", "disk.img"], &["name", "letters"])?;
    disk(&["--cpus", "0", "disk.img"], &["cpus", "workers"])?;
    disk(&["--size", "1G", "disk.img"], &["--size", "--storage file"])?;
    disk(&["--storage", "null", "--size", "1000"], &["storage.size", "512"])?;
    disk(&["--storage", "null", "--size", "1M", "--direct"], &["--direct", "--storage null"])?;
    disk(&["--storage", "memory", "--size", "1M", "--execution", "pool=2"], &["--execution", "--storage memory"])?;
    disk(&["--storage", "sim", "--size", "1M", "--error-rate", "2"], &["error_rate", "0 to 1"])?;
    disk(&["--storage", "sim", "--size", "1M", "--channels", "0"], &["channels", "at least 1"])?;
    disk(&["--socket-owner", "nobody-of-this-name", "disk.img"], &["socket_owner", "nobody-of-this-name"])?;
    disk(&["--socket-group", "nobody-of-this-name", "disk.img"], &["socket_group", "nobody-of-this-name"])?;
    disk(&["--control", "missing/deep/c.sock", "disk.img"], &["control socket", "missing/deep"])?;
    disk(&["--control", "plain", "disk.img"], &["plain"])?;

    let socket = |socket: &[&str], words: &[&str]| {
        refused(directory.path(), &[&["disk"], socket, &["disk.img"]].concat(), words)
    };
    socket(&["--socket", "missing/s.sock"], &["socket", "missing/s.sock"])?;
    socket(&["--socket", "plain"], &["socket", "plain", "not a socket", "remove it"])?;
    socket(&["--socket", &"x".repeat(108)], &["socket", "107"])?;
    socket(&[], &["socket", "is missing", "path"])?;
    socket(&["--fd", "2"], &["socket_fd", "3 or more"])?;
    socket(&["--fd", "999"], &["socket_fd", "999", "not open"])?;
    // Not one that the daemon has opened itself meanwhile.
    socket(&["--fd", "60"], &["socket_fd", "60", "not open"])?;
    assert_eq!(fs::read_to_string(directory.path().join("plain"))?, "precious");
    Ok(())
}

#[test]
fn bad_options_of_a_directory_over_9p() -> Result<()> {
    let directory = place()?;
    fs::create_dir(directory.path().join("shared"))?;
    fs::write(directory.path().join("plain"), "precious")?;
    let p9 = |more: &[&str], words: &[&str]| {
        refused(directory.path(), &[&["dir", "--protocol", "9p"], more, &["shared"]].concat(), words)
    };
    p9(&[], &["socket", "is missing", "listen"])?;
    p9(&["--socket", "s.sock", "--queues", "65"], &["queues", "1 to 64"])?;
    p9(&["--socket", "s.sock", "--msize", "4095"], &["directory.msize", "4K to 1M"])?;
    p9(&["--socket", "s.sock", "--msize", "2M"], &["directory.msize", "4K to 1M", "2M"])?;
    p9(&["--socket", "s.sock", "--tag", &"x".repeat(37)], &["directory.tag", "36"])?;
    p9(&["--socket", "s.sock", "--fmode", "0644"], &["directory.fmode", "mapped-xattr"])?;
    p9(&["--socket", "s.sock", "--security-model", "none", "--dmode", "0755"], &["directory.dmode", "mapped-xattr"])?;
    for option in [
        &["--cache", "always"][..],
        &["--attr-timeout", "1s"],
        &["--entry-timeout", "1s"],
        &["--negative-timeout", "1s"],
        &["--writeback"],
        &["--allow-mmap"],
        &["--readdirplus", "off"],
        &["--posix-acl"],
        &["--security-label"],
        &["--no-killpriv-v2"],
        &["--no-posix-lock"],
        &["--no-flock"],
        &["--no-announce-submounts"],
        &["--migration-mode", "file-handles"],
        &["--migration-on-error", "guest-error"],
        &["--migration-verify-handles"],
    ] {
        let field = option[0].trim_start_matches("--").trim_start_matches("no-").replace('-', "_");
        p9(&[&["--socket", "s.sock"], option].concat(), &[&format!("directory.{field}: means nothing for 9p")])?;
    }

    let listen = |address: &str, more: &[&str], words: &[&str]| p9(&[&["--listen", address], more].concat(), words);
    listen("tcp:0", &["--queues", "1025"], &["queues", "1 to 1024"])?;
    listen("tcp:0", &["--queue-size", "128"], &["queue_size", "vhost-user"])?;
    listen("tcp:0", &["--tag", "home"], &["directory.tag", "vhost-user"])?;
    listen("tcp:0", &["--socket-mode", "0660"], &["socket_mode", "unix socket"])?;
    listen("fd:3", &["--socket-group", "root"], &["socket_group", "unix socket"])?;
    listen("unix:p9.sock", &["--socket-owner", "nobody-of-this-name"], &["socket_owner", "nobody-of-this-name"])?;
    listen("unix:plain", &[], &["listen", "plain", "not a socket", "remove it"])?;
    listen("unix:missing/p9.sock", &[], &["listen", "missing/p9.sock"])?;
    listen("fd:2", &[], &["listen", "3 or more"])?;
    listen("fd:999", &[], &["listen", "999", "not open"])?;
    // TEST-NET-1 (RFC 5737) is nobody's.
    let open = &["--clients-may-be-root"];
    listen("tcp:192.0.2.1:1", open, &["listen", "tcp:192.0.2.1:1", "cannot bind it"])?;
    let busy = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = format!("tcp:{}", busy.local_addr()?);
    listen(&address, open, &["listen", &address, "another process", "choose another"])?;
    let missing = ["dir", "--protocol", "9p", "--listen", "unix:p9.sock", "missing"];
    refused(directory.path(), &missing, &["missing"])?;

    let virtiofs =
        |more: &[&str], words: &[&str]| refused(directory.path(), &[&["dir"], more, &["shared"]].concat(), words);
    virtiofs(&["--socket", "s.sock", "--msize", "64K"], &["directory.msize", "9p"])?;
    virtiofs(&["--socket", "s.sock", "--multidevs", "remap"], &["directory.multidevs", "9p"])?;
    virtiofs(&["--listen", "tcp:0"], &["listen", "9p"])?;
    virtiofs(
        &["--socket", "s.sock", "--security-model", "mapped-file", "--posix-acl"],
        &["directory.posix_acl", "security_model"],
    )?;
    assert_eq!(fs::read_to_string(directory.path().join("plain"))?, "precious");
    Ok(())
}

#[test]
fn usage_errors_name_the_option() -> Result<()> {
    let directory = place()?;
    let before = names(directory.path())?;
    let cases: [(&[&str], &str); 17] = [
        (&["dir", "--protocol", "nfs", "--socket", "s.sock", "."], "--protocol"),
        (&["dir", "--protocol", "9p", "--listen", "nowhere", "."], "--listen"),
        (&["dir", "--protocol", "9p", "--listen", "tcp:files.example:1", "."], "tcp:IP:PORT"),
        (&["dir", "--protocol", "9p", "--listen", "tcp:0", "--socket", "s.sock", "."], "--socket"),
        (&["dir", "--protocol", "9p", "--socket", "s.sock", "--msize", "big", "."], "--msize"),
        (&["dir", "--protocol", "9p", "--socket", "s.sock", "--multidevs", "allow", "."], "--multidevs"),
        (&["dir", "--protocol", "9p", "--socket", "s.sock", "--security-model", "mapped", "."], "--security-model"),
        (&["dir", "--protocol", "9p", "--socket", "s.sock", "--fmode", "0999", "."], "--fmode"),
        (&["disk", "--socket", "s.sock"], "IMAGE"),
        (&["disk", "--socket", "s.sock", "--queues", "many", "disk.img"], "--queues"),
        (&["disk", "--socket", "s.sock", "--execution", "fast", "disk.img"], "--execution"),
        (&["disk", "--socket", "s.sock", "--workers", "0", "disk.img"], "--workers"),
        (&["disk", "--socket", "s.sock", "--poll", "fixed", "disk.img"], "--poll"),
        (&["disk", "--socket", "s.sock", "--socket-mode", "0999", "disk.img"], "--socket-mode"),
        (&["disk", "--socket", "s.sock", "--fd", "3", "disk.img"], "--fd"),
        (&["disk", "--socket", "s.sock", "--colour", "disk.img"], "--colour"),
        (&["dsik"], "dsik"),
    ];
    for (arguments, word) in cases {
        let output = run(directory.path(), arguments)?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with("error: ") && said.contains(word), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    let output = run(directory.path(), &["disk", "--log-level", "loud", "--socket", "s.sock", "disk.img"])?;
    let said = stderr(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("--log-level") && said.contains("info"), "{said}");
    assert_eq!(names(directory.path())?, before);
    Ok(())
}

const GOOD: &str = "[[export]]\nname = 'a'\nsocket = 'a.sock'\nstorage = { kind = 'file', path = 'disk.img' }\n";

#[test]
fn bad_configurations() -> Result<()> {
    let directory = place()?;
    let path = directory.path().join("c.toml");
    let config = |text: &str, words: &[&str]| {
        fs::write(&path, text)?;
        refused(directory.path(), &["serve", "c.toml"], words)
    };
    // What the file itself says is refused with its name, and `--check` refuses it too.
    let checked = |text: &str, words: &[&str]| {
        config(text, &[&["c.toml"], words].concat())?;
        refused(directory.path(), &["serve", "--check", "c.toml"], &[&["c.toml"], words].concat())
    };
    checked("workers = [", &["line 1"])?;
    checked("workers = 'many'", &["line 1", "workers"])?;
    checked(&format!("{GOOD}colour = 'red'\n"), &["line 5", "colour"])?;
    checked(&GOOD.replace("path = ", "pfad = "), &["pfad", "path"])?;
    checked(&GOOD.replace("'file'", "'tape'"), &["kind", "tape", "file, volume, qcow2, rbd, sg, memory, null, sim"])?;
    checked(&GOOD.replace("path = 'disk.img'", "path = 3"), &["path"])?;
    checked(&GOOD.replace("'a'\n", "''\n"), &["name"])?;
    checked(&GOOD.replace("socket = 'a.sock'\n", ""), &["socket", "missing"])?;
    checked(&format!("{GOOD}queues = 0\n"), &["export a", "queues", "1 to 256"])?;
    checked(&format!("{GOOD}socket_fd = 5\n"), &["export a", "socket_fd", "one of the two"])?;
    checked(&format!("{GOOD}poll = 'often'\n"), &["poll", "often", "adaptive"])?;
    checked(&GOOD.repeat(2), &["name", "used twice"])?;
    checked(&format!("{GOOD}{}", GOOD.replace("'a'", "'b'")), &["socket", "a.sock", "used twice"])?;
    checked("workers = 9\nworkers_max = 8\n", &["workers: 9", "workers_max"])?;
    checked("workers_max = 9999\n", &["workers_max", "1 to 1024"])?;
    refused(directory.path(), &["serve", "missing.toml"], &["missing.toml"])?;

    // What only the system can say is refused when it starts: all or nothing.
    let second = GOOD.replace("'a'", "'b'").replace("a.sock", "b.sock");
    config(&format!("{GOOD}{}", second.replace("disk.img", "missing.img")), &["export b", "storage", "missing.img"])?;
    config(&format!("{GOOD}{second}"), &["export b", "storage", "disk.img", "lock"])?;
    config(&format!("control = 'missing/deep/c.sock'\n{GOOD}"), &["control socket", "missing/deep"])?;
    Ok(())
}

#[test]
fn a_good_configuration_is_checked_without_a_trace() -> Result<()> {
    let directory = place()?;
    fs::write(directory.path().join("c.toml"), GOOD)?;
    let before = names(directory.path())?;
    let output = run(directory.path(), &["serve", "--check", "c.toml"])?;
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout)?;
    assert!(said.contains("export a: file on a.sock"), "{said}");
    assert_eq!(names(directory.path())?, before);
    Ok(())
}

#[test]
fn man_pages_and_completions() -> Result<()> {
    let directory = place()?;
    let output = run(directory.path(), &["man", "man"])?;
    assert!(output.status.success(), "{}", stderr(&output));
    for page in ["vringd.1", "vringd-disk.1", "vringd-serve.1", "vringd-ctl.1"] {
        let text = fs::read_to_string(directory.path().join("man").join(page)).context(page)?;
        assert!(text.contains(".TH "), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = run(directory.path(), &["completions", shell])?;
        assert!(output.status.success());
        let script = String::from_utf8(output.stdout)?;
        assert!(script.contains("vringd") && script.contains("queue-size"), "{shell}");
    }
    Ok(())
}

#[test]
fn the_socket_belongs_to_whom_it_should() -> Result<()> {
    let directory = place()?;
    let start = |more: &[&str]| -> Result<(u32, u32, u32)> {
        let socket = directory.path().join("s.sock");
        let mut command = Command::new(vringd::program()?);
        command.arg("disk").arg("--socket").arg(&socket).args(more).arg(directory.path().join("disk.img"));
        let log = directory.path().join("log");
        let mut daemon = tests::process::Group::start(&command, &log)?;
        daemon.wait_until(std::time::Duration::from_secs(20), |said| said.contains("listening"))?;
        let about = fs::symlink_metadata(&socket)?;
        let shown = (about.permissions().mode() & 0o7777, about.uid(), about.gid());
        assert!(daemon.terminate(std::time::Duration::from_secs(20))?.success());
        assert!(!socket.exists(), "the socket goes with the daemon");
        Ok(shown)
    };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    assert_eq!(start(&[])?, (0o600, uid, gid), "nobody else may connect unless told");
    assert_eq!(start(&["--socket-mode", "0660"])?, (0o660, uid, gid));
    let (own, group) = (uid.to_string(), gid.to_string());
    assert_eq!(start(&["--socket-owner", &own, "--socket-group", &group])?, (0o600, uid, gid));
    if uid == 0 {
        // Only root can give a socket away.
        let given = start(&["--socket-owner", "12345", "--socket-group", "54321", "--socket-mode", "0640"])?;
        assert_eq!(given, (0o640, 12345, 54321));
    }
    Ok(())
}
