//! A server that has locked itself in: as root, and as nobody.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::fs_guest;
use tests::lab::Lab;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(120);
const NOBODY: u32 = 65534;

/// The processes of a server: the one that was started and those it has started.
fn processes(first: u32) -> Result<Vec<u32>> {
    let mut all = vec![first];
    let mut at = 0;
    while let Some(parent) = all.get(at) {
        for task in fs::read_dir(format!("/proc/{parent}/task"))? {
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace() {
                let child = child.parse()?;
                // setpriv and the program that it becomes are one process.
                all.push(child);
            }
        }
        at += 1;
    }
    Ok(all)
}

#[test]
fn root_serves_from_inside_a_sandbox() -> Result<()> {
    let lab = Lab::take_turn();
    for sandbox in ["chroot", "namespace"] {
        let shared = TempDir::new()?;
        let directory = Directory { sandbox, ..Directory::new(shared.path()) };
        let server = DirectoryServer::start(&lab, &directory)?;
        let body = "mkdir work
             $tool smoke --shared-mapping work
             touch owned; chown 1234:5678 owned";
        fs_guest::run(&lab, Kernel::Debian, &server, body, LIMIT).context(sandbox)?;
        let owned = fs::metadata(shared.path().join("owned"))?;
        ensure!((owned.uid(), owned.gid()) == (1234, 5678), "{sandbox}: {} and {}", owned.uid(), owned.gid());

        // Whoever serves sees the directory as its root, and nothing above it.
        let inner = *processes(server.id())?.last().context("there is a process")?;
        let seen = fs::metadata(format!("/proc/{inner}/root/."))?;
        ensure!(seen.ino() == fs::metadata(shared.path())?.ino(), "{sandbox}: the server's root is elsewhere");
        ensure!(!fs::exists(format!("/proc/{inner}/root/etc"))?);
        if sandbox == "namespace" {
            for namespace in ["mnt", "pid", "net"] {
                let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}"));
                ensure!(of(&inner.to_string())? != of("self")?, "the server shares its {namespace} namespace");
            }
        }
        let status = fs::read_to_string(format!("/proc/{inner}/status"))?;
        ensure!(status.contains("Seccomp:\t2"), "{sandbox}: the server is not held by seccomp");
        server.stop()?;
    }
    Ok(())
}

#[test]
fn nobody_serves_what_belongs_to_nobody() -> Result<()> {
    let lab = Lab::take_turn();
    for sandbox in ["namespace", "none"] {
        let shared = TempDir::new()?;
        chown(shared.path(), Some(NOBODY), Some(NOBODY))?;
        fs::set_permissions(shared.path(), Permissions::from_mode(0o755))?;
        let directory = Directory { sandbox, user: Some(NOBODY), ..Directory::new(shared.path()) };
        let server = DirectoryServer::start(&lab, &directory)?;
        // In a user namespace of its own the server is root, and so is the guest's. Without, the guest's
        // user has to be the server's own.
        let who = if sandbox == "namespace" { "" } else { "setpriv --reuid=65534 --regid=65534 --clear-groups" };
        let body = format!(
            "{who} sh -euc 'mkdir dir; echo content >dir/file; mv dir/file dir/moved; ln -s moved dir/link
                 test \"$(cat dir/link)\" = content; chmod 600 dir/moved; rm dir/link; ls -la dir'
             cp $tool dir/tool
             cmp $tool dir/tool
             rm dir/tool"
        );
        fs_guest::run(&lab, Kernel::Debian, &server, &body, LIMIT).context(sandbox)?;
        let moved = fs::metadata(shared.path().join("dir/moved"))?;
        ensure!(moved.uid() == NOBODY && moved.mode() & 0o777 == 0o600, "{sandbox}: it belongs to {}", moved.uid());
        server.stop()?;
    }
    Ok(())
}

#[test]
fn read_only_directory_stays_as_it_is() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), "content")?;
    let before = fs::metadata(shared.path().join("file"))?;
    let server = DirectoryServer::start(&lab, &Directory::new(shared.path()).option("--readonly"))?;
    let body = "cat file
         for change in 'touch new' 'mkdir new' 'rm file' 'mv file new' 'ln file new' 'ln -s file new' 'chmod 600 file' \\
             'chown 1:1 file' 'truncate -s 0 file' 'mkfifo new' 'setfattr -n user.x -v y file' 'touch -d @0 file'; do
             if $change; then echo \"$change works\"; exit 1; fi
         done
         if echo x >>file; then exit 1; fi
         test \"$(cat file)\" = content";
    fs_guest::run(&lab, Kernel::Debian, &server, body, LIMIT)?;
    let after = fs::metadata(shared.path().join("file"))?;
    ensure!(after.mtime_nsec() == before.mtime_nsec() && after.ctime_nsec() == before.ctime_nsec(), "it was touched");
    ensure!(fs::read_dir(shared.path())?.count() == 1);
    Ok(())
}

#[test]
fn owners_are_translated() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("host"), "")?;
    chown(shared.path().join("host"), Some(101_000), Some(102_000))?;
    let directory = Directory::new(shared.path())
        .option("--translate-uid=map:0:100000:65536")
        .option("--translate-gid=map:0:100000:65536");
    let server = DirectoryServer::start(&lab, &directory)?;
    let body = "test $(stat -c %u:%g host) = 1000:2000
         touch guest; chown 7:8 guest
         test $(stat -c %u:%g guest) = 7:8
         touch root; test $(stat -c %u:%g root) = 0:0";
    fs_guest::run(&lab, Kernel::Debian, &server, body, LIMIT)?;
    let owner = |name: &str| fs::metadata(shared.path().join(name)).map(|data| (data.uid(), data.gid()));
    ensure!(owner("guest")? == (100_007, 100_008), "{:?}", owner("guest")?);
    ensure!(owner("root")? == (100_000, 100_000), "{:?}", owner("root")?);
    Ok(())
}

#[test]
fn access_control_lists_and_labels_pass() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let server = DirectoryServer::start(&lab, &Directory::new(shared.path()).option("--posix-acl"))?;
    let body = "mkdir dir; chmod 755 . dir
         setfacl --modify user:1:rwx,group:2:r-x dir
         getfacl --omit-header dir | grep -q '^user:daemon:rwx'
         setfacl --default --modify user:1:rwx dir
         (umask 077; touch dir/inherits)
         getfacl --omit-header dir/inherits | grep -q '^user:daemon:rwx'
         setpriv --reuid=1 --regid=1 --clear-groups touch dir/by-daemon
         if setpriv --reuid=3 --regid=3 --clear-groups touch dir/by-another; then exit 1; fi";
    fs_guest::run(&lab, Kernel::Debian, &server, body, LIMIT)?;
    ensure!(fs::metadata(shared.path().join("dir/by-daemon"))?.uid() == 1);
    Ok(())
}
