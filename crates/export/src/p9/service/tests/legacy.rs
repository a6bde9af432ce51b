//! 9P2000.u.

use super::client::{Body, Client, Fields, Served};
use device::p9::{Kind, Qid, qid_type};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

const DIR: u32 = 0x8000_0000;
const SYMLINK: u32 = 0x0200_0000;
const LINK: u32 = 0x0100_0000;
const NAMED_PIPE: u32 = 0x0020_0000;

#[derive(Debug)]
struct Stat {
    qid: Qid,
    mode: u32,
    length: u64,
    name: String,
    extension: String,
}

fn stat_of(answer: &mut Fields) -> Stat {
    let (_size, _kind, _dev) = (answer.u16(), answer.u16(), answer.u32());
    let (qid, mode, _atime, _mtime) = (answer.qid(), answer.u32(), answer.u32(), answer.u32());
    let (length, name) = (answer.u64(), answer.string());
    let (_uid, _gid, _muid) = (answer.string(), answer.string(), answer.string());
    let extension = answer.string();
    let (_n_uid, _n_gid, _n_muid) = (answer.u32(), answer.u32(), answer.u32());
    Stat { qid, mode, length, name, extension }
}

fn stat(client: &Client, fid: u32) -> Stat {
    let mut answer = client.ask(Kind::Stat, &Body::of(fid)).unwrap();
    answer.u16();
    stat_of(&mut answer)
}

fn create(client: &Client, fid: u32, name: &str, perm: u32, mode: u8, extension: &str) -> Result<Qid, Errno> {
    let body = Body::of(fid).string(name).u32(perm).u8(mode).string(extension);
    client.ask(Kind::Create, &body).map(|mut answer| answer.qid())
}

/// A `Twstat` that changes the mode, the length and the name, or leaves them.
pub(super) fn write_stat_body(fid: u32, mode: u32, length: u64, name: &str) -> Body {
    let untouched = [0xff; 13];
    let stat = Body::default().u16(u16::MAX).u32(u32::MAX).raw(&untouched).u32(mode).u32(u32::MAX).u32(u32::MAX);
    let stat = stat.u64(length).string(name).string("").string("").string("").string("");
    let stat = stat.u32(u32::MAX).u32(u32::MAX).u32(u32::MAX);
    let size = stat.bytes().len() as u16;
    Body::of(fid).u16(size + 2).u16(size).raw(stat.bytes())
}

fn write_stat(client: &Client, fid: u32, mode: u32, length: u64, name: &str) -> Result<(), Errno> {
    client.tell(Kind::WriteStat, &write_stat_body(fid, mode, length, name))
}

fn open(client: &Client, fid: u32, mode: u8) -> Result<Qid, Errno> {
    client.ask(Kind::Open, &Body::of(fid).u8(mode)).map(|mut answer| answer.qid())
}

#[test]
fn everything_is_made_by_one_request() {
    let served = Served::new();
    let client = served.client_of("9P2000.u");
    let made = |fid, name: &str, perm, extension: &str| {
        client.walk(0, fid, &[]).unwrap();
        create(&client, fid, name, perm, 2, extension)
    };
    made(1, "file", 0o644, "").unwrap();
    assert_eq!(client.write(1, 0, b"content"), Ok(7));
    assert_eq!(made(2, "directory", DIR | 0o755, "").unwrap().kind, qid_type::DIR);
    assert_eq!(client.read(2, 0, 1000), Ok(vec![]), "it is open");
    assert_eq!(made(3, "link", SYMLINK | 0o777, "file").unwrap().kind, qid_type::SYMLINK);
    assert_eq!(std::fs::read_link(served.path("link")).unwrap().to_str(), Some("file"));
    made(4, "pipe", NAMED_PIPE | 0o600, "").unwrap();
    made(5, "another", LINK, "1\n").unwrap();
    assert_eq!(served.get("another"), "content");
    assert_eq!(made(6, "file", 0o644, ""), Err(Errno::EXIST), "a name that is in use is refused");
    assert_eq!(create(&client, 6, "bad", LINK, 0, "99"), Err(Errno::BADF));
    assert_eq!(create(&client, 6, "bad", LINK, 0, "x"), Err(Errno::INVAL));
    assert_eq!(create(&client, 6, "bad", LINK | DIR, 0, "1"), Err(Errno::INVAL));
    let file = stat(&client, 1);
    assert_eq!((file.mode, file.length, file.name.as_str()), (0o644, 7, "file"));
    assert_eq!(file.extension, "HARDLINKCOUNT 2");
    let link = stat(&client, 3);
    assert_eq!((link.mode & SYMLINK, link.extension.as_str(), link.length), (SYMLINK, "file", 0));
    assert_eq!(stat(&client, 4).mode, NAMED_PIPE | 0o600);
    let root = stat(&client, 0);
    assert_eq!((root.mode & DIR, root.name.as_str(), root.qid.kind), (DIR, "/", qid_type::DIR));
    assert_eq!(client.lopen(5, 0), Err(Errno::OPNOTSUPP), "the other dialect's requests are not there");
}

#[test]
fn attributes_and_name_change_together() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client_of("9P2000.u");
    client.walk(0, 1, &["file"]).unwrap();
    write_stat(&client, 1, 0o600, 3, "renamed").unwrap();
    assert_eq!(served.get("renamed"), "con");
    assert_eq!(std::fs::metadata(served.path("renamed")).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(stat(&client, 1).name, "renamed");
    write_stat(&client, 1, u32::MAX, u64::MAX, "renamed").unwrap();
    assert_eq!(write_stat(&client, 1, u32::MAX, u64::MAX, "a/b"), Err(Errno::INVAL));
    assert_eq!(write_stat(&client, 1, DIR | 0o600, u64::MAX, ""), Err(Errno::INVAL), "a file stays one");
    open(&client, 1, 2).unwrap();
    write_stat(&client, 1, u32::MAX, u64::MAX, "").unwrap();
    assert_eq!(write_stat(&client, 0, u32::MAX, u64::MAX, "x"), Err(Errno::BUSY));
}

/// A change of nothing asks for the file to be made durable.
#[test]
fn what_is_to_be_durable_is_synced_or_refused() {
    let served = Served::new();
    served.put("file", "content");
    std::os::unix::fs::symlink("file", served.path("link")).unwrap();
    let client = served.client_of("9P2000.u");
    client.walk(0, 1, &[]).unwrap();
    create(&client, 1, "pipe", NAMED_PIPE | 0o600, 0, "").unwrap();
    client.walk(0, 2, &["file"]).unwrap();
    client.walk(0, 3, &["link"]).unwrap();
    let sync = |fid| write_stat(&client, fid, u32::MAX, u64::MAX, "");
    assert_eq!([0, 1, 2, 3].map(sync), [Ok(()), Err(Errno::NXIO), Ok(()), Err(Errno::LOOP)]);
    assert_eq!(served.service.tree().describe().handles, 0);
}

#[test]
fn a_directory_is_a_file_of_attributes() {
    let served = Served::new();
    (0..50).for_each(|number| served.put(&format!("name-{number:02}"), "12345"));
    std::os::unix::fs::symlink("target", served.path("link")).unwrap();
    let client = served.client_of("9P2000.u");
    client.walk(0, 1, &[]).unwrap();
    open(&client, 1, 0).unwrap();
    for count in [120, 1000, 100_000] {
        let (mut seen, mut offset) = (BTreeMap::new(), 0);
        loop {
            let bytes = client.read(1, offset, count).unwrap();
            if bytes.is_empty() {
                break;
            }
            offset += bytes.len() as u64;
            let mut answer = Fields::new(bytes);
            while !answer.is_empty() {
                let stat = stat_of(&mut answer);
                assert!(seen.insert(stat.name.clone(), stat).is_none(), "a name came twice");
            }
        }
        assert_eq!(seen.len(), 51);
        assert_eq!(seen["name-07"].length, 5);
        assert_eq!(seen["link"].extension, "target");
    }
    assert_eq!(client.read(1, 7, 1000), Err(Errno::INVAL), "reading goes on where it ended");
    assert_eq!(client.read(1, 0, 10), Err(Errno::INVAL), "nothing would mean the end");
    assert_eq!(served.service.tree().describe().nodes, 1, "a listing leaves nothing behind");
}

#[test]
fn open_modes_do_what_they_say() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client_of("9P2000.u");
    client.walk(0, 1, &["file"]).unwrap();
    open(&client, 1, 0x80 | 1).unwrap();
    assert_eq!(client.write(1, 0, b"!"), Ok(1));
    assert_eq!(served.get("file"), "content!");
    client.walk(0, 2, &["file"]).unwrap();
    open(&client, 2, 3).unwrap();
    assert_eq!(client.read(2, 0, 100), Ok(b"content!".to_vec()));
    client.walk(0, 3, &["file"]).unwrap();
    open(&client, 3, 0x10 | 0x40 | 2).unwrap();
    assert_eq!(served.get("file"), "");
    client.clunk(3).unwrap();
    assert!(!served.path("file").exists(), "removed with the fid");
}
