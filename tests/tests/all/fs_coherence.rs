//! What the host changes, as a guest sees it within the promise of the cache policy.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest;
use tests::lab::Lab;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(120);

/// What a guest is asked to know before the host changes everything.
const BEFORE: &str = "test \"$(cat content)\" = old
     test $(stat -c %s grown) = 4
     test $(stat -c %a mode) = 644
     test -e removed
     test -e renamed
     ! test -e created
     ! test -e there
     test \"$(readlink link)\" = old
     test \"$(ls dir | tr '\\n' ' ')\" = 'old '
     exec 3<held
     head -c 3 <&3 >/dev/null";

/// And after it.
const AFTER: &str = "test \"$(cat content)\" = new
     test $(stat -c %s grown) = 4096
     test $(stat -c %a mode) = 600
     ! test -e removed
     ! test -e renamed
     test \"$(cat there)\" = renamed
     test \"$(cat created)\" = created
     test \"$(readlink link)\" = new
     test \"$(ls dir | tr '\\n' ' ')\" = 'new '
     test \"$(cat <&3)\" = ' and after'
     echo from-guest >from-guest";

fn prepare(shared: &Path) -> Result<()> {
    let path = |name: &str| shared.join(name);
    fs::write(path("content"), "old")?;
    fs::write(path("grown"), "four")?;
    fs::write(path("mode"), "")?;
    fs::set_permissions(path("mode"), fs::Permissions::from_mode(0o644))?;
    fs::write(path("removed"), "")?;
    fs::write(path("renamed"), "renamed")?;
    std::os::unix::fs::symlink("old", path("link"))?;
    fs::create_dir(path("dir"))?;
    fs::write(path("dir/old"), "")?;
    fs::write(path("held"), "old")?;
    Ok(())
}

fn change(shared: &Path) -> Result<()> {
    let path = |name: &str| shared.join(name);
    // In place, so that the inode stays.
    File::options().write(true).open(path("content"))?.write_all_at(b"new", 0)?;
    File::options().write(true).open(path("grown"))?.set_len(4096)?;
    fs::set_permissions(path("mode"), fs::Permissions::from_mode(0o600))?;
    fs::remove_file(path("removed"))?;
    fs::rename(path("renamed"), path("there"))?;
    fs::write(path("created"), "created")?;
    fs::remove_file(path("link"))?;
    std::os::unix::fs::symlink("new", path("link"))?;
    fs::write(path("dir/new"), "")?;
    fs::remove_file(path("dir/old"))?;
    File::options().write(true).open(path("held"))?.write_all_at(b" and after", 3)?;
    Ok(())
}

/// The guest looks, the host changes, and after `pause` the guest looks again.
fn seen(cache: Cache, pause: &str) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    prepare(shared.path())?;
    let mut server = DirectoryServer::start(&lab, &Directory::new(shared.path()).cache(cache))?;
    let body = format!(
        "{BEFORE}
         touch $job/looked
         until [ -e $job/changed ]; do sleep 0.02; done
         {pause}
         {AFTER}
         exec 3<&-"
    );
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, &body)?;
    guest.wait_for("looked", LIMIT)?;
    change(shared.path())?;
    guest.tell("changed")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    ensure!(fs::read_to_string(shared.path().join("from-guest"))? == "from-guest\n");
    server.check_alive()
}

#[test]
fn host_is_seen_at_once_with_cache_never() -> Result<()> {
    seen(Cache::Never, "")
}

#[test]
fn host_is_seen_after_a_second_with_cache_auto() -> Result<()> {
    seen(Cache::Auto, "sleep 1.1")
}

/// Under the other two the guest may believe what it knows for a day. What it does not know yet,
/// and data under `metadata`, it asks for.
fn first_looks(cache: Cache, data: &str) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("content"), "old")?;
    let server = DirectoryServer::start(&lab, &Directory::new(shared.path()).cache(cache))?;
    let body = format!(
        "test \"$(cat content)\" = old
         touch $job/looked
         until [ -e $job/changed ]; do sleep 0.02; done
         test \"$(cat created)\" = created
         {data}"
    );
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, &body)?;
    guest.wait_for("looked", LIMIT)?;
    fs::write(shared.path().join("created"), "created")?;
    File::options().write(true).open(shared.path().join("content"))?.write_all_at(b"new", 0)?;
    guest.tell("changed")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    Ok(())
}

#[test]
fn data_is_seen_at_once_with_cache_metadata() -> Result<()> {
    first_looks(Cache::Metadata, "test \"$(cat content)\" = new")
}

#[test]
fn new_names_are_found_with_cache_always() -> Result<()> {
    first_looks(Cache::Always, "")
}

/// Two guests that share a directory without caches see each other's work at once.
#[test]
fn guests_see_each_other_with_cache_never() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let serve = || DirectoryServer::start(&lab, &Directory::new(shared.path()).cache(Cache::Never));
    let (first, second) = (serve()?, serve()?);
    // A ball that each throws back when it has seen the other's.
    let ping = "for round in $(seq 40); do echo $round >ping; until [ \"$(cat pong)\" = $round ]; do :; done; done";
    let pong = "for round in $(seq 40); do until [ \"$(cat ping)\" = $round ]; do :; done; echo $round >pong; done";
    fs::write(shared.path().join("ping"), "")?;
    fs::write(shared.path().join("pong"), "")?;
    let players =
        [fs_guest::boot(&lab, Kernel::Debian, &first, ping)?, fs_guest::boot(&lab, Kernel::Debian, &second, pong)?];
    for player in players {
        let ended = player.wait(LIMIT).context("the ball is lost")?;
        ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    }
    Ok(())
}
