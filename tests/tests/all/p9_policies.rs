//! A directory by 9p in a guest: everything that can be asked of it works, however the guest caches and however the
//! server executes and keeps owners.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::getxattr;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::fs_guest::{self, Script};
use tests::lab::Lab;
use tests::p9_guest::{self, KERNEL};

const LIMIT: Duration = Duration::from_secs(120);
/// Whom a server runs as that may do nothing special: `nobody`.
const NOBODY: u32 = 65534;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mappings {
    /// The cache mode writes pages back, so files may be mapped shared.
    Shared,
    Private,
}

/// A way to mount a directory and to serve it.
struct Way {
    options: &'static str,
    mappings: Mappings,
    adapt: fn(Directory) -> Directory,
}

/// Serves a fresh directory in each way and has one guest do one of each thing in each of them. Gives what was served.
fn every_operation(ways: &[Way]) -> Result<Vec<TempDir>> {
    let lab = Lab::take_turn();
    let mut served = Vec::new();
    for (number, way) in ways.iter().enumerate() {
        let shared = TempDir::new()?;
        fs::write(shared.path().join("from-the-host"), "hello guest")?;
        let directory = (way.adapt)(Directory::p9(shared.path()).tag(format!("share{number}")));
        if let Some(user) = directory.user {
            chown(shared.path(), Some(user), Some(user))?;
            chown(shared.path().join("from-the-host"), Some(user), Some(user))?;
        }
        let name = format!("{} {number}", way.options);
        let server = DirectoryServer::start(&lab, &directory).with_context(|| name.clone())?;
        let mapping = if way.mappings == Mappings::Shared { "--shared-mapping" } else { "" };
        let body = format!(
            "test \"$(cat from-the-host)\" = 'hello guest'
             mkdir work
             $tool smoke --9p {mapping} work
             echo 'hello host' >from-the-guest
             chown 12:34 from-the-guest; chmod 640 from-the-guest"
        );
        served.push((name, way.options, shared, server, body));
    }
    let scripts: Vec<Script<'_>> =
        served.iter().map(|(name, options, _, server, body)| Script { name, server, options, body }).collect();
    fs_guest::run_each(&lab, KERNEL, &scripts, LIMIT)?;
    let mut left = Vec::new();
    for (name, _, shared, mut server, _) in served {
        server.check_alive().with_context(|| name.clone())?;
        ensure!(fs::read_to_string(shared.path().join("from-the-guest"))? == "hello host\n", "{name}");
        server.stop().context(name)?;
        left.push(shared);
    }
    Ok(left)
}

#[test]
fn every_operation_works() -> Result<()> {
    let shared = every_operation(&[
        Way { options: "cache=none", mappings: Mappings::Private, adapt: |directory| directory },
        Way {
            options: "cache=readahead",
            mappings: Mappings::Private,
            adapt: |directory| Directory { execution: Some("uring"), ..directory },
        },
        Way {
            options: "cache=mmap",
            mappings: Mappings::Shared,
            adapt: |directory| Directory { execution: Some("inline"), ..directory },
        },
        Way {
            options: "cache=loose",
            mappings: Mappings::Shared,
            adapt: |directory| Directory { execution: Some("pool=4"), ..directory },
        },
        // A server without rights, and a guest whose files have any owner and mode all the same.
        Way {
            options: "cache=none",
            mappings: Mappings::Private,
            adapt: |directory| Directory { user: Some(NOBODY), ..directory }.option("--security-model=mapped-xattr"),
        },
    ])?;
    let there = fs::metadata(shared[0].path().join("from-the-guest"))?;
    ensure!((there.uid(), there.gid(), there.mode() & 0o7777) == (12, 34, 0o640), "{there:?}");

    let file = shared[4].path().join("from-the-guest");
    ensure!(fs::metadata(&file)?.uid() == NOBODY);
    let attribute = |name: &str| -> Result<u32> {
        let mut value = [0; 4];
        ensure!(getxattr(&file, name, &mut value)? == 4, "{name}");
        Ok(u32::from_le_bytes(value))
    };
    ensure!(attribute("user.virtfs.uid")? == 12 && attribute("user.virtfs.gid")? == 34);
    ensure!(attribute("user.virtfs.mode")? == 0o100_640);
    Ok(())
}

#[test]
fn nothing_is_written_to_what_is_served_readonly() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), "content")?;
    let server = DirectoryServer::start(&lab, &Directory::p9(shared.path()).option("--readonly"))?;
    let body = "test \"$(cat file)\" = content
         for order in 'touch new' 'rm file' 'mkdir dir' 'ln file link' 'mv file moved' 'chmod 777 file' 'ln -s a b' \\
             'truncate -s 1 file' 'setfattr -n user.a -v b file'; do
             status=0; $order 2>/tmp/said || status=$?
             test $status != 0
             grep -q 'Read-only file system' /tmp/said
         done
         test \"$(ls)\" = file";
    p9_guest::run(&lab, &server, "cache=none", body, LIMIT)?;
    ensure!(fs::read_to_string(shared.path().join("file"))? == "content");
    Ok(())
}
