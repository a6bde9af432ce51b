//! A directory by 9p in a guest: everything that can be asked of it works, however the guest caches and however the
//! server executes and keeps owners.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::fs::getxattr;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::p9_guest;

const LIMIT: Duration = Duration::from_secs(120);
/// Whom a server runs as that may do nothing special: `nobody`.
const NOBODY: u32 = 65534;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mappings {
    /// The cache mode writes pages back, so files may be mapped shared.
    Shared,
    Private,
}

/// Serves a fresh directory with what `adapt` makes of it and has a guest do one of each thing.
fn every_operation(options: &str, mappings: Mappings, adapt: impl FnOnce(Directory) -> Directory) -> Result<TempDir> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("from-the-host"), "hello guest")?;
    let directory = adapt(Directory::p9(shared.path()));
    if let Some(user) = directory.user {
        chown(shared.path(), Some(user), Some(user))?;
        chown(shared.path().join("from-the-host"), Some(user), Some(user))?;
    }
    let mut server = DirectoryServer::start(&lab, &directory)?;
    let mapping = if mappings == Mappings::Shared { "--shared-mapping" } else { "" };
    let body = format!(
        "test \"$(cat from-the-host)\" = 'hello guest'
         mkdir work
         $tool smoke --9p {mapping} work
         echo 'hello host' >from-the-guest
         chown 12:34 from-the-guest; chmod 640 from-the-guest"
    );
    p9_guest::run(&lab, &server, options, &body, LIMIT)?;
    server.check_alive()?;
    ensure!(fs::read_to_string(shared.path().join("from-the-guest"))? == "hello host\n");
    server.stop()?;
    Ok(shared)
}

#[test]
fn every_operation_works_without_a_cache() -> Result<()> {
    let shared = every_operation("cache=none", Mappings::Private, |directory| directory)?;
    let there = fs::metadata(shared.path().join("from-the-guest"))?;
    ensure!((there.uid(), there.gid(), there.mode() & 0o7777) == (12, 34, 0o640), "{there:?}");
    Ok(())
}

#[test]
fn every_operation_works_with_cache_readahead_and_uring() -> Result<()> {
    every_operation("cache=readahead", Mappings::Private, |directory| Directory {
        execution: Some("uring"),
        ..directory
    })?;
    Ok(())
}

#[test]
fn every_operation_works_with_cache_mmap_and_inline() -> Result<()> {
    every_operation("cache=mmap", Mappings::Shared, |directory| Directory { execution: Some("inline"), ..directory })?;
    Ok(())
}

#[test]
fn every_operation_works_with_cache_loose_and_a_pool() -> Result<()> {
    every_operation("cache=loose", Mappings::Shared, |directory| Directory { execution: Some("pool=4"), ..directory })?;
    Ok(())
}

/// A server without rights, and a guest whose files have any owner and mode all the same.
#[test]
fn every_operation_works_with_owners_in_attributes() -> Result<()> {
    let shared = every_operation("cache=none", Mappings::Private, |directory| {
        Directory { user: Some(NOBODY), ..directory }.option("--security-model=mapped-xattr")
    })?;
    let file = shared.path().join("from-the-guest");
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
