//! What leaves the worker, and what keeps away from it.

use super::client::{Body, Client, Served, decoded, message};
use super::legacy::write_stat_body;
use device::p9::Kind;
use passthrough::{Changing, ROOT};

const REMOVEDIR: u32 = 0x200;
const LARGE: usize = 1 << 20;

fn is_long(client: &Client, kind: Kind, body: &Body) -> bool {
    let message = message(kind, body);
    client.session.is_long(&decoded(&message, client.session.dialect()))
}

fn changes(client: &Client, kind: Kind, body: &Body) -> Option<Changing> {
    let message = message(kind, body);
    client.session.changes(&decoded(&message, client.session.dialect()))
}

/// A directory with files and a directory, which a client has walked to as fids 1 to 4.
fn served(dialect: &str) -> (Served, Client) {
    let served = Served::new();
    std::fs::create_dir(served.path("directory")).unwrap();
    ["small", "other"].iter().for_each(|name| served.put(name, "text"));
    std::fs::write(served.path("large"), vec![1; LARGE]).unwrap();
    let client = served.client_of(dialect);
    for (fid, name) in [(1, "directory"), (2, "small"), (3, "large"), (4, "other")] {
        client.walk(0, fid, &[name]).unwrap();
    }
    (served, client)
}

fn unlink(name: &str, flags: u32) -> Body {
    Body::of(0).string(name).u32(flags)
}

fn rename_at(name: &str, (to, new_name): (u32, &str)) -> Body {
    Body::of(0).string(name).u32(to).string(new_name)
}

fn rename(fid: u32, to: u32, name: &str) -> Body {
    Body::of(fid).u32(to).string(name)
}

#[test]
fn names_that_take_their_time_leave_the_worker() {
    let (_served, client) = served("9P2000.L");
    let long = |kind, body: Body| is_long(&client, kind, &body);
    assert!(long(Kind::UnlinkAt, unlink("directory", REMOVEDIR)) && long(Kind::Remove, Body::of(1)));
    assert!(long(Kind::UnlinkAt, unlink("large", 0)) && long(Kind::Remove, Body::of(3)));
    assert!(!long(Kind::UnlinkAt, unlink("small", 0)) && !long(Kind::Remove, Body::of(2)));
    for (name, fid) in [("small", 2), ("large", 3)] {
        assert!(!long(Kind::RenameAt, rename_at(name, (0, "new"))) && !long(Kind::Rename, rename(fid, 0, "new")));
        assert_eq!(long(Kind::RenameAt, rename_at(name, (0, "other"))), name == "large", "it is written out before");
        assert!(long(Kind::RenameAt, rename_at(name, (1, "new"))) && long(Kind::Rename, rename(fid, 1, "new")));
    }
    assert!(long(Kind::RenameAt, rename_at("small", (0, "large"))) && long(Kind::Rename, rename(2, 0, "large")));
}

#[test]
fn what_has_the_locks_of_directories_keeps_names_off_the_worker() {
    let (served, client) = served("9P2000.L");
    let tree = served.service.tree();
    let [directory, small, other] =
        [c"directory", c"small", c"other"].map(|name| tree.lookup(ROOT, name).unwrap().node);
    let changing: [(_, _, &[_]); 6] = [
        (Kind::UnlinkAt, unlink("directory", REMOVEDIR), &[ROOT, directory]),
        (Kind::Remove, Body::of(1), &[ROOT, directory]),
        (Kind::RenameAt, rename_at("small", (0, "other")), &[ROOT, small, other]),
        (Kind::RenameAt, rename_at("small", (1, "new")), &[ROOT, small, directory]),
        (Kind::Rename, rename(2, 1, "new"), &[ROOT, small, directory]),
        // It waits for the file before it has the lock of a directory.
        (Kind::Link, Body::of(0).u32(2).string("new"), &[small]),
    ];
    client.walk(0, 10, &[]).unwrap();
    client.lopen(10, 0).unwrap();
    let names = [
        (Kind::Walk, Body::of(0).u32(20).u16(1).string("new")),
        (Kind::Mkdir, Body::of(0).string("new").u32(0o755).u32(0)),
        (Kind::Symlink, Body::of(0).string("new").string("small").u32(0)),
        (Kind::Mknod, Body::of(0).string("new").u32(libc::S_IFIFO).u32(0).u32(0).u32(0)),
        (Kind::Lcreate, Body::of(0).string("new").u32(0).u32(0o600).u32(0)),
        (Kind::Link, Body::of(0).u32(2).string("new")),
        (Kind::UnlinkAt, unlink("new", 0)),
        (Kind::Remove, Body::of(4)),
        (Kind::RenameAt, rename_at("large", (0, "new"))),
        (Kind::ReadDir, Body::of(10).u64(0).u32(1000)),
    ];
    for (kind, body, nodes) in changing {
        assert!(names.iter().all(|(kind, body)| !is_long(&client, *kind, body)));
        let changes = changes(&client, kind, &body).unwrap();
        for changed in [ROOT, directory, small, other] {
            assert_eq!(tree.is_changing(changed), nodes.contains(&changed), "{changed} by {kind:?}");
        }
        for (other, body) in &names {
            assert_eq!(
                is_long(&client, *other, body),
                kind != Kind::Link || *other == Kind::Link,
                "{other:?} by {kind:?}"
            );
        }
        // It may lead through what is being changed.
        assert!(is_long(&client, Kind::Walk, &Body::of(0).u32(20).u16(2).string("directory").string("new")));
        drop(changes);
    }
    // As this does, for the name that goes.
    assert!(changes(&client, Kind::UnlinkAt, &unlink("large", 0)).is_none());
    assert!(changes(&client, Kind::Remove, &Body::of(3)).is_none());
}

#[test]
fn an_attribute_that_is_a_name_leaves_the_worker() {
    let (served, client) = served("9P2000.u");
    let tree = served.service.tree();
    let [small, large] = [c"small", c"large"].map(|name| tree.lookup(ROOT, name).unwrap().node);
    let nothing = u64::MAX;
    for length in [nothing, 0, 1 << 20] {
        let body = write_stat_body(2, u32::MAX, length, "large");
        assert!(is_long(&client, Kind::WriteStat, &body), "{length}");
        let changes = changes(&client, Kind::WriteStat, &body).unwrap();
        assert!([ROOT, small, large].iter().all(|node| tree.is_changing(*node)));
        drop(changes);
    }
    let body = write_stat_body(2, u32::MAX, 0, "");
    assert!(!is_long(&client, Kind::WriteStat, &body));
    let changes = changes(&client, Kind::WriteStat, &body).unwrap();
    assert!(tree.is_changing(small) && !tree.is_changing(ROOT));
    drop(changes);
    assert!(is_long(&client, Kind::WriteStat, &write_stat_body(3, u32::MAX, 0, "")));
}
