//! Sessions on directories of their own, driven by messages.

mod client;
mod data;
mod endings;
mod legacy;
mod locks;
mod names;
mod weight;
mod xattr;

use super::Session;
use client::{Body, Client, MSIZE, Served};
use device::p9::{Dialect, Kind, NOFID, NONUNAME, qid_type};
use rustix::io::Errno;
use std::sync::Arc;

#[test]
fn nothing_comes_before_a_version() {
    let served = Served::new();
    let client = Client { session: Session::new(&served.service) };
    assert_eq!(client.attach(0, "", 0), Err(Errno::PROTO));
    assert_eq!(client.version(MSIZE, "9P2000"), Ok((MSIZE, "unknown".into())));
    assert_eq!(client.attach(0, "", 0), Err(Errno::PROTO));
    assert_eq!(client.version(4095, "9P2000.L"), Err(Errno::MSGSIZE));
    assert_eq!(client.session.dialect(), Dialect::Unknown);
    assert_eq!(client.version(8192, "9P2000.L"), Ok((8192, "9P2000.L".into())));
    assert_eq!((client.session.msize(), client.session.dialect()), (8192, Dialect::L));
    assert_eq!(client.attach(0, "", 0).unwrap().kind, qid_type::DIR);
}

#[test]
fn messages_are_as_long_as_everybody_takes_them() {
    let served = Served::new();
    served.put("file", "");
    let client = served.client();
    assert_eq!(client.version(u32::MAX, "9P2000.L").unwrap().0, 1 << 20);
    for (msize, expected) in [(500_000, 499_712), (65_536, 61_440), (4096, 4072)] {
        assert_eq!(client.version(msize, "9P2000.L").unwrap().0, msize);
        client.attach(0, "", 0).unwrap();
        client.walk(0, 1, &["file"]).unwrap();
        let (_, iounit) = client.lopen(1, 0).unwrap();
        assert_eq!(iounit, expected, "whole pages where there is room for one");
    }
}

#[test]
fn attaching_is_by_a_path_beneath_the_root() {
    let served = Served::new();
    std::fs::create_dir_all(served.path("a/b")).unwrap();
    served.put("a/file", "content");
    std::os::unix::fs::symlink("a", served.path("link")).unwrap();
    let client = served.client();
    let root = client.look(0).unwrap().qid;
    assert_eq!(client.attach(1, "/", 0), Ok(root));
    assert_eq!(client.attach(2, "/a//b/../.", 0).unwrap().path, client.walk(0, 20, &["a"]).unwrap()[0].path);
    assert_eq!(client.attach(3, "/../..", 0), Ok(root), "there is nothing above the root");
    assert_eq!(client.attach(4, "nowhere", 0), Err(Errno::NOENT));
    assert_eq!(client.attach(5, "link/b", 0), Err(Errno::NOTDIR), "links are not followed");
    assert_eq!(client.attach(6, "a/file", 0).unwrap().kind, qid_type::FILE);
    // Where it attached is where it ends.
    let a = client.look(2).unwrap().qid;
    assert_eq!(client.walk(2, 21, &["b", "..", "..", ".."]).unwrap().last(), Some(&a));
    assert_eq!(client.attach(0, "", 0), Err(Errno::BADF), "the fid is in use");
    assert_eq!(client.attach(NOFID, "", 0), Err(Errno::BADF));
    let authenticated = Body::of(30).u32(31).string("").string("").u32(NONUNAME);
    assert_eq!(client.tell(Kind::Attach, &authenticated), Err(Errno::BADF));
    let auth = Body::of(31).string("").string("").u32(NONUNAME);
    assert_eq!(client.tell(Kind::Auth, &auth), Err(Errno::NOENT));
}

#[test]
fn walks_go_as_far_as_they_get() {
    let served = Served::new();
    std::fs::create_dir_all(served.path("a/b")).unwrap();
    served.put("a/file", "content");
    std::os::unix::fs::symlink("..", served.path("a/out")).unwrap();
    let client = served.client();
    assert_eq!(client.walk(0, 1, &[]), Ok(vec![]), "another fid of the same place");
    assert_eq!(client.look(1).unwrap().qid, client.look(0).unwrap().qid);
    let qids = client.walk(1, 2, &["a", "b"]).unwrap();
    assert_eq!(client.look(2).unwrap().qid, qids[1]);
    assert_eq!(client.walk(1, 3, &["a", "nowhere", "b"]).unwrap().len(), 1);
    assert_eq!(client.look(3), Err(Errno::BADF), "a walk that ends early makes no fid");
    assert_eq!(client.walk(1, 3, &["nowhere"]), Err(Errno::NOENT));
    assert_eq!(client.walk(1, 3, &["a", "file", ".."]).unwrap().len(), 2, "a file has no way back");
    assert_eq!(client.walk(1, 3, &["a", "out", "a"]).unwrap().len(), 2, "a link is where a walk ends");
    for name in ["", "a/b", "/", "../..", "a/.."] {
        assert_eq!(client.walk(1, 3, &[name]), Err(Errno::INVAL), "{name:?}");
    }
    assert_eq!(client.walk(1, 2, &["a"]), Err(Errno::BADF), "the fid is in use");
    assert_eq!(client.walk(9, 3, &["a"]), Err(Errno::BADF));
    // On itself.
    client.walk(1, 1, &["a"]).unwrap();
    assert_eq!(client.look(1).unwrap().qid, qids[0]);
    assert_eq!(client.walk(1, 1, &["b", "nowhere"]).unwrap().len(), 1);
    assert_eq!(client.look(1).unwrap().qid, qids[0], "it stays where it was");
}

#[test]
fn nothing_lies_above_the_root() {
    let served = Served::new();
    std::fs::create_dir_all(served.path("a/b/c")).unwrap();
    let client = served.client();
    let root = client.look(0).unwrap().qid;
    let ups = ["a", "b", "c", "..", "..", "..", "..", "..", ".."];
    let qids = client.walk(0, 1, &ups).unwrap();
    assert_eq!(qids.len(), ups.len());
    assert_eq!(qids[5..], [root; 4]);
    // Not even after the directory has been moved on the host.
    client.walk(0, 2, &["a", "b", "c"]).unwrap();
    std::fs::rename(served.path("a/b"), served.path("moved")).unwrap();
    let qids = client.walk(2, 3, &["..", "..", "..", ".."]).unwrap();
    assert_eq!(qids[2..], [root; 2]);
}

#[test]
fn fids_are_bounded() {
    let served = Served::new();
    let client = Client { session: Session::with_fids(&served.service, 3) };
    client.version(MSIZE, "9P2000.L").unwrap();
    client.attach(0, "", 0).unwrap();
    client.walk(0, 1, &[]).unwrap();
    client.walk(0, 2, &[]).unwrap();
    assert_eq!(client.walk(0, 3, &[]), Err(Errno::MFILE));
    assert_eq!(client.attach(3, "", 0), Err(Errno::MFILE));
    client.clunk(1).unwrap();
    assert_eq!(client.clunk(1), Err(Errno::BADF));
    client.walk(0, 3, &[]).unwrap();
    assert_eq!(client.session.fids(), 3);
}

#[test]
fn fids_of_many_threads_are_all_there() {
    let served = Served::new();
    served.put("file", "content");
    let client = Arc::new(served.client());
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let client = client.clone();
            std::thread::spawn(move || {
                for round in 0..200 {
                    let fid = 1 + thread * 1000 + round;
                    client.open(fid, "file", 0).unwrap();
                    assert_eq!(client.read(fid, 0, 7), Ok(b"content".to_vec()));
                    if round % 2 == 0 {
                        client.clunk(fid).unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(client.session.fids(), 1 + 4 * 100);
    assert_eq!(served.service.tree().describe().handles, 4 * 100);
}
