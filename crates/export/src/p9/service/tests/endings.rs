//! Sessions that end, or begin anew.

use super::super::fids::Use;
use super::super::session::GIVEN_UP_AT_ONCE;
use super::client::{Body, Client, MSIZE, Served};
use device::p9::Kind;
use rustix::io::Errno;

#[test]
fn a_version_ends_what_was_before() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.open(1, "file", 0).unwrap();
    assert_eq!(served.service.tree().describe().handles, 1);
    assert_eq!(client.session.fids(), 2);
    client.version(MSIZE, "9P2000.L").unwrap();
    assert_eq!(client.read(1, 0, 10), Err(Errno::BADF));
    assert_eq!(client.session.fids(), 0);
    let left = served.service.tree().describe();
    assert_eq!((left.handles, left.nodes), (0, 1));
}

#[test]
fn what_began_before_a_version_finds_no_place_behind_it() {
    let served = Served::new();
    let client = served.client();
    let fids = &client.session.fids;
    // As a slow walk and a slow open have them in hand.
    let old = fids.get(0).unwrap();
    client.version(MSIZE, "9P2000.L").unwrap();
    assert_eq!(fids.insert(1, old.with(Use::Place)), Err(Errno::BADF));
    client.attach(0, "", 0).unwrap();
    assert_eq!(fids.replace(0, &old, old.with(Use::Place)), Err(Errno::BADF));
    assert_eq!(client.session.fids(), 1);
    client.walk(0, 1, &[]).unwrap();
}

#[test]
fn a_session_takes_everything_along() {
    let served = Served::new();
    served.put("file", "content");
    std::fs::create_dir_all(served.path("a/b/c")).unwrap();
    let (client, other) = (served.client(), served.client());
    client.open(1, "file", 2).unwrap();
    client.walk(0, 2, &["a", "b", "c"]).unwrap();
    other.open(1, "file", 0).unwrap();
    drop(client);
    let left = served.service.tree().describe();
    assert_eq!((left.handles, left.nodes), (1, 2), "the other session's file");
    assert_eq!(other.read(1, 0, 7), Ok(b"content".to_vec()));
}

#[test]
fn what_a_client_had_is_given_up_in_parts() {
    let served = Served::new();
    served.put("file", "content");
    let client = served.client();
    client.open(1, "file", 0).unwrap();
    // With the root and the file, seven more than so many parts.
    for fid in 2..3 * GIVEN_UP_AT_ONCE as u32 + 7 {
        client.walk(0, fid, &[]).unwrap();
    }
    let mut left = Vec::new();
    while !client.session.begin_anew() {
        left.push(client.session.fids());
        assert_eq!(client.attach(1, "", 0), Err(Errno::PROTO), "no version is agreed on");
    }
    assert_eq!(left, [2 * GIVEN_UP_AT_ONCE + 7, GIVEN_UP_AT_ONCE + 7, 7]);
    assert_eq!((client.session.fids(), served.service.tree().describe().handles), (0, 0));
    client.version(MSIZE, "9P2000.L").unwrap();
    client.attach(0, "", 0).unwrap();
}

#[test]
fn what_a_ring_leaves_is_counted_until_it_is_given_up() {
    let served = Served::new();
    let most = 2 * GIVEN_UP_AT_ONCE;
    let client = Client { session: super::Session::with_fids(&served.service, most) };
    let begin = || {
        client.version(MSIZE, "9P2000.L").unwrap();
        client.attach(0, "", 0).unwrap();
    };
    begin();
    (1..most as u32).for_each(|fid| drop(client.walk(0, fid, &[]).unwrap()));
    // As a ring that stops answers a version.
    begin();
    let room = most - client.session.fids();
    assert_eq!(room, GIVEN_UP_AT_ONCE - 1);
    (1..=room as u32).for_each(|fid| drop(client.walk(0, fid, &[]).unwrap()));
    assert_eq!(client.walk(0, 1000, &[]), Err(Errno::MFILE));
    client.session.give_up_rest();
    assert_eq!(client.session.fids(), GIVEN_UP_AT_ONCE);
    client.walk(0, 1000, &[]).unwrap();
}

/// Opens a file by 9P2000.u, to be removed when it is closed (ORCLOSE).
fn open_to_be_removed(client: &Client, fid: u32, name: &str) {
    client.walk(0, fid, &[name]).unwrap();
    client.ask(Kind::Open, &Body::of(fid).u8(0x40)).unwrap();
}

#[test]
fn what_is_removed_when_it_is_closed_goes_with_its_client() {
    let served = Served::new();
    for begins_anew in [true, false] {
        ["opened", "replaced", "kept"].iter().for_each(|name| served.put(name, name));
        let client = served.client_of("9P2000.u");
        open_to_be_removed(&client, 1, "opened");
        open_to_be_removed(&client, 2, "replaced");
        client.walk(0, 3, &["kept"]).unwrap();
        client.walk(0, 4, &[]).unwrap();
        let made = Body::of(4).string("made").u32(0o600).u8(0x40 | 1).string("");
        client.ask(Kind::Create, &made).unwrap();
        std::fs::remove_file(served.path("replaced")).unwrap();
        served.put("replaced", "by the host");
        if begins_anew {
            client.version(MSIZE, "9P2000.u").unwrap();
        }
        drop(client);
        let names = std::fs::read_dir(served.directory.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["kept", "replaced"], "another file of the same name is nobody's to remove");
        assert_eq!(served.get("replaced"), "by the host");
    }
}

#[test]
fn what_takes_its_time_to_be_removed_keeps_no_worker() {
    let served = Served::new();
    std::fs::create_dir(served.path("directory")).unwrap();
    let client = served.client_of("9P2000.u");
    open_to_be_removed(&client, 1, "directory");
    let tree = std::sync::Arc::clone(served.service.tree());
    let begins = || {
        passthrough::serves_others();
        // Whoever has the lock of the directory's parent keeps nobody here waiting.
        let _changing = tree.change(tree.subject(passthrough::ROOT).into_iter().collect());
        while !client.session.begin_anew() {}
    };
    std::thread::scope(|scope| scope.spawn(begins).join().unwrap());
    while served.path("directory").exists() {
        std::thread::yield_now();
    }
}
