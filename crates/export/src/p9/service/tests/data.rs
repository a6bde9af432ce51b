//! Files, directories and attributes.

use super::client::{Body, Served, decoded, message};
use device::p9::{Dialect, Kind, qid_type};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn data_is_read_and_written_where_the_client_says() {
    let served = Served::new();
    served.put("file", "0123456789");
    let client = served.client();
    client.open(1, "file", 2).unwrap();
    assert_eq!(client.read(1, 2, 3), Ok(b"234".to_vec()));
    assert_eq!(client.read(1, 8, 100), Ok(b"89".to_vec()));
    assert_eq!(client.read(1, 100, 100), Ok(vec![]));
    assert_eq!(client.write(1, 8, b"abcd"), Ok(4));
    assert_eq!(served.get("file"), "01234567abcd");
    client.open(2, "file", 0).unwrap();
    assert_eq!(client.write(2, 0, b"x"), Err(Errno::BADF), "it is open for reading");
    client.walk(0, 3, &["file"]).unwrap();
    assert_eq!(client.read(3, 0, 1), Err(Errno::BADF), "it is not open");
    client.walk(0, 4, &[]).unwrap();
    client.lopen(4, 0).unwrap();
    assert_eq!(client.read(4, 0, 1), Err(Errno::ISDIR));
    assert_eq!(client.write(4, 0, b"x"), Err(Errno::ISDIR));
    for sync in [Body::of(1).u32(0), Body::of(1).u32(1), Body::of(4).u32(0)] {
        client.tell(Kind::Fsync, &sync).unwrap();
    }
    assert_eq!(client.tell(Kind::Fsync, &Body::of(3).u32(0)), Err(Errno::BADF));
}

#[test]
fn large_reads_fill_the_message_and_no_more() {
    let served = Served::new();
    std::fs::write(served.path("file"), vec![7; 200_000]).unwrap();
    let client = served.client();
    client.open(1, "file", 0).unwrap();
    assert_eq!(client.read(1, 0, u32::MAX).unwrap().len(), 65_536 - 11);
    assert_eq!(client.read(1, 199_999, u32::MAX).unwrap(), [7]);
}

#[test]
fn open_flags_do_what_they_say() {
    let served = Served::new();
    served.put("file", "content");
    std::fs::create_dir(served.path("directory")).unwrap();
    let client = served.client();
    client.open(1, "file", 1 | 0o2000).unwrap();
    assert_eq!(client.write(1, 0, b"!"), Ok(1));
    assert_eq!(served.get("file"), "content!", "it appends");
    client.open(2, "file", 2 | 0o1000).unwrap();
    assert_eq!(served.get("file"), "");
    client.walk(0, 3, &["file"]).unwrap();
    assert_eq!(client.lopen(3, 0o200_000), Err(Errno::NOTDIR));
    client.walk(0, 4, &["directory"]).unwrap();
    assert_eq!(client.lopen(4, 2), Err(Errno::ISDIR));
    client.lopen(4, 0o200_000).unwrap();
}

#[test]
fn only_plain_transfers_go_by_io_uring() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.open(1, "file", 2).unwrap();
    client.open(2, "file", 2 | 0o2000).unwrap();
    client.walk(0, 3, &["file"]).unwrap();
    client.walk(0, 4, &[]).unwrap();
    client.lopen(4, 0).unwrap();
    let by_uring = |kind, body: &Body| {
        let message = message(kind, body);
        let request = decoded(&message, Dialect::L);
        client.session.file_for_uring(&request).is_some()
    };
    let transfer = |fid| Body::of(fid).u64(0).u32(1).raw(b"x");
    let read = |fid| Body::of(fid).u64(0).u32(1);
    assert!(by_uring(Kind::Read, &read(1)) && by_uring(Kind::Write, &transfer(1)));
    assert!(by_uring(Kind::Fsync, &Body::of(1).u32(0)));
    assert!(by_uring(Kind::Read, &read(2)) && !by_uring(Kind::Write, &transfer(2)), "appends");
    assert!(!by_uring(Kind::Read, &read(3)), "not open");
    assert!(!by_uring(Kind::Read, &read(4)) && !by_uring(Kind::Fsync, &Body::of(4).u32(0)), "a directory");
    assert!(!by_uring(Kind::Clunk, &Body::of(1)));
}

#[test]
fn a_write_of_a_user_drops_set_id_bits() {
    let served = Served::new();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    served.put("file", "content");
    let set = || std::fs::set_permissions(served.path("file"), PermissionsExt::from_mode(0o6777)).unwrap();
    let mode = || std::fs::metadata(served.path("file")).unwrap().mode() & 0o7777;
    set();
    let client = served.client();
    client.open(1, "file", 1).unwrap();
    client.write(1, 0, b"x").unwrap();
    assert_eq!(mode(), 0o6777, "the superuser's write leaves them");
    client.attach(2, "", 1234).unwrap();
    client.walk(2, 3, &["file"]).unwrap();
    client.lopen(3, 1).unwrap();
    client.write(3, 0, b"x").unwrap();
    assert_eq!(mode(), 0o777);
}

/// The kernel drops `security.capability` at a write, and knows nothing of the name it is mapped to.
#[test]
fn a_write_drops_a_mapped_capability() {
    let served = Served::with(passthrough::Options {
        xattr: true,
        xattr_map: ":map::user.virtiofs.:".parse().unwrap(),
        ..passthrough::Options::default()
    });
    served.put("file", "content");
    let path = served.path("file");
    let name = c"user.virtiofs.security.capability";
    let set = || rustix::fs::setxattr(&path, name, &[0; 20], rustix::fs::XattrFlags::empty()).unwrap();
    let has = || rustix::fs::getxattr(&path, name, &mut [0_u8; 0][..]) != Err(Errno::NODATA);
    let client = served.client();
    client.open(1, "file", 1).unwrap();
    set();
    client.write(1, 0, b"x").unwrap();
    assert!(!has(), "by a call");
    set();
    let message = message(Kind::Write, &Body::of(1).u64(0).u32(1).raw(b"x"));
    assert!(client.session.file_for_uring(&decoded(&message, Dialect::L)).is_some());
    assert!(!has(), "by io_uring");
}

#[test]
fn attributes_are_read_and_changed() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.walk(0, 1, &["file"]).unwrap();
    let before = client.look(1).unwrap();
    let host = std::fs::metadata(served.path("file")).unwrap();
    assert_eq!((before.mode, before.size, before.links), (host.mode(), 7, 1));
    assert_eq!(before.qid.path, host.ino());
    assert_ne!(before.qid.version, 0, "Linux caches nothing of version 0");
    client.change(1, 1 | 8, 0o604, 3).unwrap();
    let after = client.look(1).unwrap();
    assert_eq!((after.mode & 0o7777, after.size), (0o604, 3));
    assert_ne!(after.qid.version, before.qid.version);
    assert_eq!(served.get("file"), "con");
    assert_eq!(client.look(0).unwrap().qid.version, 0, "directories have none");
    // Times: of access and change, given.
    let times = Body::of(1).u32(0x10 | 0x20 | 0x80 | 0x100).u32(0).u32(0).u32(0).u64(0);
    client.tell(Kind::SetAttr, &times.u64(100).u64(5).u64(200).u64(6)).unwrap();
    let host = std::fs::metadata(served.path("file")).unwrap();
    assert_eq!((host.atime(), host.atime_nsec(), host.mtime(), host.mtime_nsec()), (100, 5, 200, 6));
    // The time of change alone.
    client.change(1, 0x40, 0, 0).unwrap();
    let touched = std::fs::metadata(served.path("file")).unwrap();
    assert_eq!((touched.mode(), touched.mtime()), (host.mode(), 200));
    assert!((touched.ctime(), touched.ctime_nsec()) >= (host.ctime(), host.ctime_nsec()));
    assert_eq!(client.change(0, 8, 0, 0), Err(Errno::ISDIR));
    let mut figures = client.ask(Kind::StatFs, &Body::of(1)).unwrap();
    assert_eq!((figures.u32(), figures.u32() > 0, figures.u64() > 0), (0x0102_1997, true, true));
}

#[test]
fn a_directory_is_read_in_pieces_of_any_size() {
    let served = Served::new();
    let names: BTreeSet<String> = (0..300).map(|number| format!("name-{number:03}")).collect();
    names.iter().for_each(|name| served.put(name, ""));
    std::fs::create_dir(served.path("directory")).unwrap();
    std::os::unix::fs::symlink("x", served.path("link")).unwrap();
    let client = served.client();
    client.walk(0, 1, &[]).unwrap();
    assert_eq!(client.list(1, 0, 1000).err(), Some(Errno::BADF), "it is not open");
    client.lopen(1, 0).unwrap();
    for count in [40, 100, 4096, 1_000_000] {
        let (mut seen, mut offset) = (Vec::new(), 0);
        loop {
            let listed = client.list(1, offset, count).unwrap();
            let Some(last) = listed.last() else { break };
            offset = last.offset;
            seen.extend(listed);
        }
        let files: BTreeSet<String> = seen.iter().map(|entry| entry.name.clone()).collect();
        assert_eq!(files.len(), seen.len(), "a name came twice in pieces of {count}");
        assert!(files.is_superset(&names));
        assert_eq!(files.len(), names.len() + 4);
        let find = |name: &str| seen.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!((find("directory").qid.kind, find("directory").kind), (qid_type::DIR, libc::DT_DIR));
        assert_eq!((find("link").qid.kind, find("link").kind), (qid_type::SYMLINK, libc::DT_LNK));
        let root = client.look(0).unwrap().qid.path;
        assert_eq!((find(".").qid.path, find("..").qid.path), (root, root), "nothing of what is above is told");
        client.walk(0, 2, &["name-007"]).unwrap();
        assert_eq!(find("name-007").qid.path, client.look(2).unwrap().qid.path);
        client.clunk(2).unwrap();
    }
    assert_eq!(client.list(1, 0, 10).err(), Some(Errno::INVAL), "nothing would mean the end");
    client.open(3, "name-000", 0).unwrap();
    assert_eq!(client.list(3, 0, 1000).err(), Some(Errno::NOTDIR));
}
