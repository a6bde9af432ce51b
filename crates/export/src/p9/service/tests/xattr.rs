//! Extended attributes.

use super::client::Served;
use rustix::io::Errno;

#[test]
fn attributes_are_written_read_listed_and_removed() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.walk(0, 1, &["file"]).unwrap();
    let set = |name: &str, value: &[u8], flags| {
        client.walk(1, 2, &[]).unwrap();
        client.xattr_create(2, name, value.len() as u64, flags).unwrap();
        for (at, byte) in value.iter().enumerate() {
            assert_eq!(client.write(2, at as u64, &[*byte]), Ok(1));
        }
        client.clunk(2)
    };
    let get = |name: &str| {
        let size = client.xattr_walk(1, 3, name)?;
        let value = client.read(3, 0, 100).unwrap();
        assert_eq!(value.len() as u64, size);
        assert_eq!(client.read(3, 1, 1).unwrap(), value.get(1..2).unwrap_or_default());
        assert!(client.read(3, u64::MAX >> 1, 1).unwrap().is_empty());
        client.clunk(3).unwrap();
        Ok::<_, Errno>(value)
    };
    assert_eq!(get("user.name"), Err(Errno::NODATA));
    set("user.name", b"value", 0).unwrap();
    assert_eq!(get("user.name"), Ok(b"value".to_vec()));
    assert_eq!(set("user.name", b"other", 1), Err(Errno::EXIST), "the clunk says what became of it");
    set("user.name", b"other", 2).unwrap();
    set("user.empty", b"", 0).unwrap();
    assert_eq!(get("user.empty"), Ok(vec![]), "an empty value is one");
    let names = get("").unwrap();
    let names: Vec<_> = names.split(|&byte| byte == 0).collect();
    assert!(names.contains(&&b"user.name"[..]) && names.contains(&&b"user.empty"[..]));
    set("user.name", b"", 2).unwrap();
    assert_eq!(get("user.name"), Err(Errno::NODATA), "replaced by nothing is removed");
    assert_eq!(set("user.name", b"", 2), Err(Errno::NODATA));
}

#[test]
fn a_value_that_is_not_whole_is_not_set() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.walk(0, 1, &["file"]).unwrap();
    client.walk(1, 2, &[]).unwrap();
    client.xattr_create(2, "user.name", 4, 0).unwrap();
    assert_eq!(client.write(2, 2, b"abc"), Err(Errno::NOSPC));
    assert_eq!(client.write(2, 2, b"ab"), Ok(2));
    assert_eq!(client.read(2, 0, 4), Err(Errno::BADF));
    assert_eq!(client.look(2), Err(Errno::BADF));
    assert_eq!(client.clunk(2), Err(Errno::INVAL));
    assert_eq!(client.xattr_walk(1, 2, "user.name"), Err(Errno::NODATA));
    assert_eq!(client.xattr_create(0, "user.name", 65_537, 0), Err(Errno::TOOBIG));
}

#[test]
fn values_are_bounded() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.walk(0, 1, &["file"]).unwrap();
    let opened = (2..1000).take_while(|&fid| client.xattr_walk(1, fid, "") != Err(Errno::NFILE)).count();
    assert_eq!(opened, 256);
    client.clunk(2).unwrap();
    client.xattr_walk(1, 2, "").unwrap();
}
