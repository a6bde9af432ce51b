//! Attempts to reach what lies outside the directory: by names, links, forged numbers, special
//! files. From a client without a kernel, which can say anything, and from within a guest.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat};
use rustix::io::Errno;
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest;
use tests::fuse::{Client, ROOT, Reply, create_body, name_body, op, open_body, read_body, release_body, write_body};
use tests::lab::Lab;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(120);
const SECRET: &str = "the secret";

/// A shared directory with an outside that must stay as it is.
struct House {
    whole: TempDir,
}

impl House {
    fn build() -> Result<Self> {
        let house = Self { whole: TempDir::new()? };
        fs::create_dir(house.shared())?;
        fs::create_dir(house.outside())?;
        fs::write(house.outside().join("secret"), SECRET)?;
        fs::create_dir(house.shared().join("sub"))?;
        fs::write(house.shared().join("sub/file"), "inside")?;
        Ok(house)
    }

    fn shared(&self) -> PathBuf {
        self.whole.path().join("shared")
    }

    fn outside(&self) -> PathBuf {
        self.whole.path().join("outside")
    }

    /// Fails if anything outside has changed.
    fn check_outside(&self) -> Result<()> {
        let names = |path: &Path| -> Result<BTreeSet<OsString>> {
            fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
        };
        ensure!(names(self.whole.path())? == BTreeSet::from(["outside".into(), "shared".into()]), "new names outside");
        ensure!(names(&self.outside())? == BTreeSet::from(["secret".into()]), "new names outside");
        ensure!(fs::read_to_string(self.outside().join("secret"))? == SECRET, "the secret has changed");
        Ok(())
    }
}

/// Every operation that takes a name, with that name.
fn with_name(client: &mut Client, parent: u64, name: &[u8]) -> Result<Vec<(u32, Reply)>> {
    let plain = name_body(name);
    let mkdir = [&0o755_u32.to_le_bytes()[..], &[0; 4], &plain].concat();
    let mknod = [&0o100_644_u32.to_le_bytes()[..], &[0; 12], &plain].concat();
    let to_name = [&ROOT.to_le_bytes()[..], b"sub\0", &plain].concat();
    let from_name = [&ROOT.to_le_bytes()[..], &plain, b"taken\0"].concat();
    let to_name_2 = [&ROOT.to_le_bytes()[..], &[0; 8], b"sub\0", &plain].concat();
    let file = client.walk("sub/file")?;
    let link = [&file.to_le_bytes()[..], &plain].concat();
    let symlink = [&plain[..], b"target\0"].concat();
    [
        (op::LOOKUP, plain.clone()),
        (op::UNLINK, plain.clone()),
        (op::RMDIR, plain.clone()),
        (op::MKDIR, mkdir),
        (op::MKNOD, mknod),
        (op::SYMLINK, symlink),
        (op::LINK, link),
        (op::CREATE, create_body(OFlags::RDWR.bits() as i32, 0o100_644, name)),
        (op::RENAME, to_name),
        (op::RENAME, from_name),
        (op::RENAME2, to_name_2),
    ]
    .into_iter()
    .map(|(opcode, body)| Ok((opcode, client.call(opcode, parent, &body)?)))
    .collect()
}

#[test]
fn no_name_leads_out() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    let outside = house.outside();
    let absolute = outside.to_str().expect("UTF-8").to_owned();
    let server = DirectoryServer::start(&lab, &Directory::new(house.shared()))?;
    let mut client = Client::begin(&server.socket())?;
    let sub = client.lookup(ROOT, "sub")?;
    let own = [ROOT, sub].map(|node| (node, ()));
    let inodes: BTreeSet<u64> = [house.shared(), house.shared().join("sub")]
        .iter()
        .map(|path| fs::metadata(path).map(|data| data.ino()))
        .collect::<Result<_, _>>()?;
    for (parent, ()) in own {
        for name in [
            "",
            ".",
            "..",
            "../outside",
            "../outside/secret",
            "../..",
            "/",
            "/etc/passwd",
            "sub/../../outside/secret",
            "sub/file",
            "./sub",
            "sub/",
            "//",
            &absolute,
            &format!("{absolute}/secret"),
            &"n".repeat(256),
            &"../".repeat(1000),
        ] {
            for (opcode, reply) in with_name(&mut client, parent, name.as_bytes())? {
                // A directory may be asked for itself and for what is above it, as long as that is inside.
                let is_inside =
                    opcode == op::LOOKUP && [".", ".."].contains(&name) && inodes.contains(&reply.u64_at(40));
                ensure!(reply.error != 0 || is_inside, "operation {opcode} takes `{name}` in node {parent}: {reply:?}");
            }
        }
    }
    house.check_outside()?;
    ensure!(fs::read_to_string(house.shared().join("sub/file"))? == "inside");
    client.check()
}

#[test]
fn no_link_is_followed() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    symlink(house.outside(), house.shared().join("to-directory"))?;
    symlink(house.outside().join("secret"), house.shared().join("to-file"))?;
    symlink("../outside", house.shared().join("relative"))?;
    symlink(format!("/proc/self/root{}", house.outside().display()), house.shared().join("by-proc"))?;
    let server = DirectoryServer::start(&lab, &Directory::new(house.shared()))?;
    let mut client = Client::begin(&server.socket())?;
    for name in ["to-directory", "to-file", "relative", "by-proc"] {
        let link = client.lookup(ROOT, name)?;
        for (opcode, body) in [
            (op::OPEN, open_body(OFlags::RDONLY.bits() as i32)),
            (op::OPEN, open_body((OFlags::WRONLY | OFlags::TRUNC).bits() as i32)),
            (op::OPENDIR, open_body(OFlags::RDONLY.bits() as i32)),
            (op::LOOKUP, name_body(b"secret")),
            (op::UNLINK, name_body(b"secret")),
            (op::CREATE, create_body(OFlags::RDWR.bits() as i32, 0o100_644, b"left")),
            (op::MKDIR, [&0o755_u32.to_le_bytes()[..], &[0; 4], b"left\0"].concat()),
            // struct fuse_setattr_in: FATTR_SIZE, no handle, size 0.
            (op::SETATTR, [&8_u32.to_le_bytes()[..], &[0; 84]].concat()),
        ] {
            let reply = client.call(opcode, link, &body)?;
            ensure!(reply.error != 0, "operation {opcode} follows {name}: {reply:?}");
        }
        // What is created in its place stays in its place.
        let created = client.call(
            op::CREATE,
            ROOT,
            &create_body((OFlags::RDWR | OFlags::TRUNC).bits() as i32, 0o100_644, name.as_bytes()),
        )?;
        ensure!(created.error != 0, "CREATE follows {name}: {created:?}");
        let target = client.call(op::READLINK, link, &[])?.ok()?;
        ensure!(!target.body.is_empty());
        // The link's own owner changes, not its target's (FATTR_UID; uid is at 76).
        let mut chown = [&2_u32.to_le_bytes()[..], &[0; 84]].concat();
        chown[76..80].copy_from_slice(&4321_u32.to_le_bytes());
        client.call(op::SETATTR, link, &chown)?.ok()?;
        ensure!(fs::symlink_metadata(house.shared().join(name))?.uid() == 4321, "{name} has not got its owner");
        ensure!(fs::metadata(house.outside().join("secret"))?.uid() != 4321, "{name} was followed");
        ensure!(fs::metadata(house.outside())?.uid() != 4321, "{name} was followed");
    }
    house.check_outside()?;
    client.check()
}

#[test]
fn node_that_became_a_link_is_still_what_it_was() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    for handles in ["never", "prefer"] {
        fs::create_dir(house.shared().join("door"))?;
        fs::write(house.shared().join("door/secret"), "harmless")?;
        let directory = Directory::new(house.shared()).option(format!("--inode-file-handles={handles}"));
        let server = DirectoryServer::start(&lab, &directory)?;
        let mut client = Client::begin(&server.socket())?;
        let door = client.lookup(ROOT, "door")?;
        let inner = client.lookup(door, "secret")?;
        // The host (or another guest) puts a link in the place of what the client knows.
        fs::rename(house.shared().join("door"), house.shared().join("moved"))?;
        symlink(house.outside(), house.shared().join("door"))?;
        let again = client.lookup(door, "secret")?;
        ensure!(again == inner, "another file was found in the directory that has moved");
        let handle = client.open(op::OPEN, again, OFlags::RDWR.bits() as i32)?;
        let content = client.call(op::READ, again, &read_body(handle, 0, 4096))?.ok()?;
        ensure!(content.body == b"harmless", "read {:?}", String::from_utf8_lossy(&content.body));
        client.call(op::RELEASE, again, &release_body(handle))?.ok()?;
        client.call(op::UNLINK, door, &name_body(b"secret"))?.ok()?;
        ensure!(!house.shared().join("moved/secret").exists());
        house.check_outside()?;
        fs::remove_file(house.shared().join("door"))?;
        fs::remove_dir(house.shared().join("moved"))?;
    }
    Ok(())
}

#[test]
fn forged_numbers_are_refused() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    let server = DirectoryServer::start(&lab, &Directory::new(house.shared()))?;
    let mut client = Client::begin(&server.socket())?;
    let sub = client.lookup(ROOT, "sub")?;
    let file = client.lookup(sub, "file")?;
    let handle = client.open(op::OPEN, file, OFlags::RDONLY.bits() as i32)?;
    let listing = client.open(op::OPENDIR, sub, OFlags::RDONLY.bits() as i32)?;
    let numbers = [0, 3, 4, 5, 17, file + 1000, u64::from(u32::MAX), 1 << 63, u64::MAX - 1, u64::MAX];

    for node in numbers.into_iter().filter(|node| ![ROOT, sub, file].contains(node)) {
        for (opcode, body) in [
            (op::LOOKUP, name_body(b"file")),
            (op::GETATTR, vec![0; 16]),
            (op::SETATTR, vec![0; 88]),
            (op::OPEN, open_body(0)),
            (op::OPENDIR, open_body(0)),
            (op::READLINK, vec![]),
            (op::STATFS, vec![]),
            (op::MKDIR, [&0o755_u32.to_le_bytes()[..], &[0; 4], b"left\0"].concat()),
            (op::UNLINK, name_body(b"file")),
            (op::LISTXATTR, [&4096_u32.to_le_bytes()[..], &[0; 4]].concat()),
        ] {
            let reply = client.call(opcode, node, &body)?;
            ensure!(reply.error != 0, "operation {opcode} knows node {node}: {reply:?}");
        }
        // FORGET of what is not known has no answer, and no effect either.
        client.forget(node, u64::MAX);
    }
    for number in numbers.into_iter().filter(|number| ![handle, listing].contains(number)) {
        for (opcode, body) in [
            (op::READ, read_body(number, 0, 4096)),
            (op::WRITE, write_body(number, 0, 4, b"evil")),
            (op::READDIR, read_body(number, 0, 4096)),
            (op::READDIRPLUS, read_body(number, 0, 4096)),
            (op::LSEEK, [&number.to_le_bytes()[..], &[0; 16]].concat()),
            (op::COPY_FILE_RANGE, [&number.to_le_bytes()[..], &[0; 48]].concat()),
        ] {
            let reply = client.call(opcode, file, &body)?;
            ensure!(reply.error != 0, "operation {opcode} knows handle {number}: {reply:?}");
        }
    }
    // Real handles, for what they are not.
    for (opcode, body) in [
        (op::READDIR, read_body(handle, 0, 4096)),
        (op::READDIRPLUS, read_body(handle, 0, 4096)),
        (op::READ, read_body(listing, 0, 4096)),
        (op::WRITE, write_body(listing, 0, 4, b"evil")),
        (op::WRITE, write_body(handle, 0, 4, b"evil")),
    ] {
        let reply = client.call(opcode, file, &body)?;
        ensure!(reply.error != 0, "operation {opcode} takes a handle for something else: {reply:?}");
    }
    // After RELEASE it is as if it had never been, also the second time.
    client.call(op::RELEASE, file, &release_body(handle))?.ok()?;
    let stale = client.call(op::READ, file, &read_body(handle, 0, 4096))?;
    ensure!(stale.error != 0, "a released handle still reads: {stale:?}");
    client.call(op::RELEASE, file, &release_body(handle))?;
    client.call(op::RELEASEDIR, sub, &release_body(listing))?.ok()?;

    // Forgotten more often than looked up, a node is gone; the root stays whatever happens.
    client.forget(file, u64::MAX);
    let forgotten = client.call(op::GETATTR, file, &[0; 16])?;
    ensure!(forgotten.error != 0, "a forgotten node is still known: {forgotten:?}");
    client.forget(ROOT, u64::MAX);
    client.check()?;
    ensure!(client.walk("sub/file")? != 0);
    ensure!(fs::read_to_string(house.shared().join("sub/file"))? == "inside");
    house.check_outside()
}

#[test]
fn special_files_are_not_opened_by_the_server() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    let mode = Mode::from_raw_mode(0o666);
    let path = |name: &str| house.shared().join(name);
    mknodat(CWD, path("fifo"), FileType::Fifo, mode, 0)?;
    mknodat(CWD, path("zero"), FileType::CharacterDevice, mode, makedev(1, 5))?;
    mknodat(CWD, path("terminal"), FileType::CharacterDevice, mode, makedev(5, 0))?;
    mknodat(CWD, path("disk"), FileType::BlockDevice, mode, makedev(7, 0))?;
    let _listener = UnixListener::bind(path("socket"))?;
    let server = DirectoryServer::start(&lab, &Directory::new(house.shared()))?;
    let mut client = Client::begin(&server.socket())?;
    for name in ["fifo", "zero", "terminal", "disk", "socket"] {
        let node = client.lookup(ROOT, name)?;
        for flags in [
            OFlags::RDONLY,
            OFlags::WRONLY,
            OFlags::RDWR,
            OFlags::RDWR | OFlags::NONBLOCK,
            OFlags::RDWR | OFlags::TRUNC,
        ] {
            let reply = client.call(op::OPEN, node, &open_body(flags.bits() as i32))?;
            ensure!(reply.error != 0, "{name} is opened with {flags:?}");
            let create = create_body(flags.bits() as i32, 0o100_644, name.as_bytes());
            let reply = client.call(op::CREATE, ROOT, &create)?;
            ensure!(reply.error != 0, "{name} is opened by CREATE with {flags:?}");
        }
        ensure!(client.call(op::OPENDIR, node, &open_body(0))?.error == -Errno::NOTDIR.raw_os_error(), "{name}");
        // FATTR_SIZE.
        let truncate = [&8_u32.to_le_bytes()[..], &[0; 84]].concat();
        ensure!(client.call(op::SETATTR, node, &truncate)?.error != 0, "{name} is truncated");
    }
    client.check()
}

#[test]
fn open_files_are_bounded() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    let server = DirectoryServer::start(&lab, &Directory::new(house.shared()).option("--open-files-max=500"))?;
    let mut client = Client::begin(&server.socket())?;
    let file = client.walk("sub/file")?;
    let mut handles = Vec::new();
    let refusal = loop {
        let reply = client.call(op::OPEN, file, &open_body(0))?;
        if reply.error != 0 {
            break reply.error;
        }
        handles.push(reply.u64_at(0));
        ensure!(handles.len() <= 500, "there is no end to it");
    };
    ensure!(refusal == -Errno::NFILE.raw_os_error(), "refused with {refusal}");
    ensure!(handles.len() == 500, "only {} could be opened", handles.len());
    for handle in handles {
        client.call(op::RELEASE, file, &release_body(handle))?.ok()?;
    }
    client.open(op::OPEN, file, 0)?;
    client.check()
}

#[test]
fn guest_cannot_go_through_a_link_that_is_swapped_in() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    for sandbox in ["none", "namespace"] {
        let directory =
            Directory { sandbox, queues: Some(2), workers: Some("per-queue"), ..Directory::new(house.shared()) };
        let mut server = DirectoryServer::start(&lab, &directory.cache(Cache::Never))?;
        let body = format!("mkdir {sandbox}; $tool escape {sandbox} {}", house.outside().display());
        fs_guest::run(&lab, Kernel::Smp(2), &server, &body, LIMIT)?;
        house.check_outside()?;
        server.check_alive()?;
    }
    Ok(())
}

/// While a guest's requests are under way, the host itself swaps a directory and a link.
#[test]
fn guest_cannot_go_through_a_link_that_the_host_swaps_in() -> Result<()> {
    let lab = Lab::take_turn();
    let house = House::build()?;
    fs::create_dir(house.shared().join("door"))?;
    fs::write(house.shared().join("door/secret"), "harmless")?;
    symlink(house.outside(), house.shared().join("link"))?;
    let mut server = DirectoryServer::start(&lab, &Directory::new(house.shared()).cache(Cache::Never))?;
    let body = "touch $job/ready
         until [ -e $job/over ]; do
             content=$(cat door/secret 2>/dev/null) || content=harmless
             [ \"$content\" = harmless ]
             echo left >door/left 2>/dev/null || true
             ls door >/dev/null 2>&1 || true
         done
         touch $job/survived";
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, body)?;
    guest.wait_for("ready", LIMIT)?;
    for _ in 0..4000 {
        rustix::fs::renameat_with(
            CWD,
            house.shared().join("door"),
            CWD,
            house.shared().join("link"),
            rustix::fs::RenameFlags::EXCHANGE,
        )?;
    }
    guest.tell("over")?;
    guest.wait_for("survived", LIMIT)?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    house.check_outside()?;
    server.check_alive()
}
