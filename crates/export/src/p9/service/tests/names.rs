//! Names that come, move and go.

use super::client::{Body, Listed, Served};
use device::p9::{Kind, qid_type};
use passthrough::{Options, Security};
use rustix::io::Errno;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

#[test]
fn everything_can_be_made() {
    let served = Served::new();
    let client = served.client();
    let directory = client.mkdir(0, "directory").unwrap();
    assert_eq!(directory.kind, qid_type::DIR);
    assert!(served.path("directory").is_dir());
    let link = client.ask(Kind::Symlink, &Body::of(0).string("link").string("far/away").u32(0)).unwrap().qid();
    assert_eq!(link.kind, qid_type::SYMLINK);
    client.walk(0, 1, &["link"]).unwrap();
    assert_eq!(client.ask(Kind::ReadLink, &Body::of(1)).unwrap().string(), "far/away");
    assert_eq!(client.lopen(1, 0), Err(Errno::LOOP));
    let fifo = Body::of(0).string("fifo").u32(libc::S_IFIFO | 0o644).u32(0).u32(0).u32(0);
    client.ask(Kind::Mknod, &fifo).unwrap();
    assert!(std::fs::metadata(served.path("fifo")).unwrap().file_type().is_fifo());
    client.walk(0, 2, &["fifo"]).unwrap();
    assert_eq!(client.lopen(2, 0), Err(Errno::NXIO), "a client opens those itself");
    client.walk(0, 3, &[]).unwrap();
    let file = client.lcreate(3, "file", 2 | 0o100, 0o640).unwrap();
    assert_eq!(client.look(3).unwrap().qid, file);
    assert_eq!(std::fs::metadata(served.path("file")).unwrap().permissions().mode() & 0o7777, 0o640);
    client.tell(Kind::Link, &Body::of(0).u32(3).string("another")).unwrap();
    assert_eq!(client.look(3).unwrap().links, 2);
    assert_eq!(client.mkdir(0, "directory"), Err(Errno::EXIST));
    assert_eq!(client.mkdir(0, "a/b"), Err(Errno::INVAL));
    assert_eq!(client.mkdir(0, ".."), Err(Errno::INVAL));
    assert_eq!(client.mkdir(3, "in-a-file"), Err(Errno::NOTDIR));
}

#[test]
fn a_created_file_is_open_and_its_fid_the_files() {
    let served = Served::new();
    let client = served.client();
    client.walk(0, 1, &[]).unwrap();
    client.lcreate(1, "file", 2 | 0o100, 0o600).unwrap();
    assert_eq!(client.write(1, 0, b"written"), Ok(7));
    assert_eq!(client.read(1, 3, 100), Ok(b"tten".to_vec()));
    assert_eq!(served.get("file"), "written");
    assert_eq!(client.walk(1, 1, &[]), Err(Errno::INVAL), "an open fid is not walked on");
    assert_eq!(client.lopen(1, 0), Err(Errno::INVAL));
    client.walk(1, 2, &[]).unwrap();
    client.lopen(2, 0).unwrap();
    assert_eq!(client.read(2, 0, 100), Ok(b"written".to_vec()));
    // What is there is opened, unless it must not be there.
    client.walk(0, 3, &[]).unwrap();
    assert_eq!(client.lcreate(3, "file", 2 | 0o100 | 0o200, 0o600), Err(Errno::EXIST));
    client.lcreate(3, "file", 2 | 0o100, 0o600).unwrap();
    assert_eq!(client.read(3, 0, 100), Ok(b"written".to_vec()));
}

#[test]
fn files_belong_to_who_attached() {
    let served = Served::new();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::fs::set_permissions(served.directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let client = served.client();
    client.attach(1, "", 1234).unwrap();
    client.walk(1, 2, &[]).unwrap();
    client.lcreate(2, "file", 2 | 0o100, 0o600).unwrap();
    client.ask(Kind::Mkdir, &Body::of(1).string("directory").u32(0o755).u32(2345)).unwrap();
    let (file, directory) = (client.look(2).unwrap(), std::fs::metadata(served.path("directory")).unwrap());
    assert_eq!((file.uid, file.gid), (1234, 0));
    assert_eq!((directory.uid(), directory.gid()), (1234, 2345));
    // Nobody in particular is the daemon.
    client.attach(3, "", u32::MAX).unwrap();
    client.walk(3, 4, &[]).unwrap();
    client.lcreate(4, "own", 2 | 0o100, 0o600).unwrap();
    assert_eq!(client.look(4).unwrap().uid, 0);
}

#[test]
fn names_go() {
    let served = Served::new();
    served.put("file", "content");
    std::fs::create_dir(served.path("directory")).unwrap();
    let client = served.client();
    assert_eq!(client.unlink(0, "directory", 0), Err(Errno::ISDIR));
    assert_eq!(client.unlink(0, "file", 0x200), Err(Errno::NOTDIR));
    assert_eq!(client.unlink(0, "file", 1), Err(Errno::INVAL));
    client.unlink(0, "directory", 0x200).unwrap();
    client.unlink(0, "file", 0).unwrap();
    assert_eq!(client.unlink(0, "file", 0), Err(Errno::NOENT));
    assert_eq!(client.unlink(0, "..", 0x200), Err(Errno::INVAL));
    assert_eq!(std::fs::read_dir(served.directory.path()).unwrap().count(), 0);
}

#[test]
fn an_open_file_goes_on_without_a_name() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.open(1, "file", 2).unwrap();
    client.unlink(0, "file", 0).unwrap();
    assert_eq!(client.look(1).unwrap().links, 0);
    assert_eq!(client.write(1, 7, b" and more"), Ok(9));
    client.change(1, 8, 0, 11).unwrap();
    assert_eq!(client.read(1, 0, 100), Ok(b"content and".to_vec()));
    // Another fid of it, as Linux makes one for what it does by a descriptor.
    client.walk(1, 2, &[]).unwrap();
    assert_eq!(client.look(2).unwrap().size, 11);
    client.change(2, 8, 0, 7).unwrap();
    client.lopen(2, 0).unwrap();
    assert_eq!(client.read(2, 0, 100), Ok(b"content".to_vec()));
    client.clunk(2).unwrap();
    client.clunk(1).unwrap();
    let left = served.service.tree().describe();
    assert_eq!((left.handles, left.nodes), (0, 1));
}

#[test]
fn remove_takes_the_fid_along_and_nobody_elses_file() {
    let served = Served::new();
    served.put("file", "content");
    served.put("other", "other");
    std::fs::create_dir_all(served.path("full/inner")).unwrap();
    let client = served.client();
    let remove = |fid| client.tell(Kind::Remove, &Body::of(fid));
    client.walk(0, 1, &["file"]).unwrap();
    remove(1).unwrap();
    assert!(!served.path("file").exists());
    assert_eq!(client.clunk(1), Err(Errno::BADF));
    client.walk(0, 1, &["full"]).unwrap();
    assert_eq!(remove(1), Err(Errno::NOTEMPTY));
    assert_eq!(client.clunk(1), Err(Errno::BADF), "the fid is gone nevertheless");
    // Somebody has put another file there.
    client.walk(0, 1, &["other"]).unwrap();
    std::fs::rename(served.path("other"), served.path("moved")).unwrap();
    served.put("other", "new");
    assert_eq!(remove(1), Err(Errno::NOENT));
    assert_eq!(served.get("other"), "new");
    client.walk(0, 1, &[]).unwrap();
    assert_eq!(remove(1), Err(Errno::BUSY));
}

#[test]
fn renames_move_places() {
    let served = Served::new();
    std::fs::create_dir_all(served.path("from/directory/inner")).unwrap();
    std::fs::create_dir_all(served.path("to")).unwrap();
    let client = served.client();
    client.walk(0, 1, &["from"]).unwrap();
    client.walk(0, 2, &["to"]).unwrap();
    client.walk(1, 3, &["directory", "inner"]).unwrap();
    client.rename_at((1, "directory"), (2, "renamed")).unwrap();
    let to = client.look(2).unwrap().qid;
    assert_eq!(client.walk(3, 4, &["..", ".."]).unwrap()[1].path, to.path, "the way back leads through the new place");
    // By the fid alone, which knows its new name.
    client.walk(2, 5, &["renamed"]).unwrap();
    client.tell(Kind::Rename, &Body::of(5).u32(1).string("back")).unwrap();
    assert!(served.path("from/back/inner").is_dir());
    client.tell(Kind::Rename, &Body::of(5).u32(1).string("again")).unwrap();
    assert!(served.path("from/again/inner").is_dir());
    client.tell(Kind::Remove, &Body::of(3)).unwrap();
    client.tell(Kind::Remove, &Body::of(5)).unwrap();
    assert_eq!(std::fs::read_dir(served.path("from")).unwrap().count(), 0);
    assert_eq!(client.rename_at((1, "nowhere"), (2, "x")), Err(Errno::NOENT));
    assert_eq!(client.rename_at((0, "from"), (1, "x")), Err(Errno::INVAL), "not beneath itself");
    assert_eq!(client.rename_at((0, "from"), (2, "../x")), Err(Errno::INVAL));
    assert_eq!(client.tell(Kind::Rename, &Body::of(0).u32(2).string("x")), Err(Errno::BUSY));
}

#[test]
fn a_rename_replaces() {
    let served = Served::new();
    served.put("one", "one");
    served.put("two", "two");
    let client = served.client();
    client.walk(0, 1, &["one"]).unwrap();
    client.walk(0, 2, &["two"]).unwrap();
    client.rename_at((0, "one"), (0, "two")).unwrap();
    assert_eq!(served.get("two"), "one");
    assert_eq!(client.tell(Kind::Remove, &Body::of(2)), Err(Errno::NOENT), "it has no name any more");
    client.tell(Kind::Remove, &Body::of(1)).unwrap();
    assert!(!served.path("two").exists());
}

#[test]
fn a_tree_that_is_only_read_stays_as_it_is() {
    let served = Served::with(Options { read_only: true, ..Options::default() });
    served.put("file", "content");
    let client = served.client();
    client.walk(0, 1, &[]).unwrap();
    assert_eq!(client.lcreate(1, "new", 2 | 0o100, 0o600), Err(Errno::ROFS));
    assert_eq!(client.mkdir(0, "new"), Err(Errno::ROFS));
    assert_eq!(client.unlink(0, "file", 0), Err(Errno::ROFS));
    assert_eq!(client.rename_at((0, "file"), (0, "new")), Err(Errno::ROFS));
    client.walk(0, 2, &["file"]).unwrap();
    assert_eq!(client.lopen(2, 1), Err(Errno::ROFS));
    assert_eq!(client.change(2, 8, 0, 0), Err(Errno::ROFS));
    client.lopen(2, 0).unwrap();
    assert_eq!(client.read(2, 0, 100), Ok(b"content".to_vec()));
}

#[test]
fn a_client_does_not_see_how_a_mapped_directory_keeps_its_files() {
    let (fmode, dmode) = (Security::FMODE, Security::DMODE);
    for security in [Security::MappedXattr { fmode, dmode }, Security::MappedFile { fmode, dmode }] {
        let served = Served::with(Options { security, xattr: true, ..Options::default() });
        let client = served.client();
        client.attach(1, "", 1234).unwrap();
        client.ask(Kind::Mkdir, &Body::of(1).string("directory").u32(0o775).u32(2345)).unwrap();
        let link = Body::of(1).string("link").string("far/away").u32(2345);
        assert_eq!(client.ask(Kind::Symlink, &link).unwrap().qid().kind, qid_type::SYMLINK);
        let device = Body::of(1).string("device").u32(libc::S_IFCHR | 0o600).u32(1).u32(3).u32(2345);
        client.ask(Kind::Mknod, &device).unwrap();
        assert!(std::fs::symlink_metadata(served.path("link")).unwrap().is_file());
        assert!(std::fs::symlink_metadata(served.path("device")).unwrap().is_file());
        let names = ["directory", "link", "device"];
        let modes = [libc::S_IFDIR | 0o775, libc::S_IFLNK, libc::S_IFCHR | 0o600];
        for (fid, (name, mode)) in (10..).zip(names.into_iter().zip(modes)) {
            client.walk(0, fid, &[name]).unwrap();
            let found = client.look(fid).unwrap();
            let seen = if name == "link" { found.mode & libc::S_IFMT } else { found.mode };
            assert_eq!((seen, found.uid, found.gid), (mode, 1234, 2345), "{security:?} {name}");
        }
        assert_eq!(client.look(12).unwrap().rdev, 0x103);
        assert_eq!(client.ask(Kind::ReadLink, &Body::of(11)).unwrap().string(), "far/away");
        assert_eq!(client.walk(11, 20, &["x"]), Err(Errno::NOTDIR));
        assert_eq!(client.lopen(11, 0), Err(Errno::LOOP), "{security:?}");
        assert_eq!(client.lopen(12, 0), Err(Errno::NXIO), "{security:?}");
        // Nothing of it is shown, reached or left behind.
        client.walk(0, 2, &[]).unwrap();
        client.lopen(2, 0).unwrap();
        let listed = client.list(2, 0, 10_000).unwrap();
        let mut seen: Vec<_> = listed.iter().map(|entry| entry.name.as_str()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [".", "..", "device", "directory", "link"], "{security:?}");
        let is_listed_as = |entry: &Listed| [libc::DT_UNKNOWN, libc::DT_LNK].contains(&entry.kind);
        assert!(listed.iter().all(|entry| entry.name != "link" || is_listed_as(entry)), "{security:?}");
        assert!(client.walk(0, 20, &[".virtfs_metadata"]).is_err());
        assert!(client.xattr_walk(11, 20, "user.virtfs.mode").is_err(), "{security:?}");
        client.rename_at((0, "link"), (10, "moved")).unwrap();
        assert_eq!(client.ask(Kind::ReadLink, &Body::of(11)).unwrap().string(), "far/away");
        client.unlink(10, "moved", 0).unwrap();
        client.unlink(0, "device", 0).unwrap();
        client.unlink(0, "directory", 0x200).unwrap();
    }
}
