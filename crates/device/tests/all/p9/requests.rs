//! Requests of each type, field by field.

use crate::p9::decode;
use crate::p9::examples::{self, TAG, named};
use crate::p9::message::Message;
use device::p9::{
    Attach, Auth, Create, Dialect, GetLock, Header, Kind, Lcreate, LockKind, LockRequest, Mkdir, Mknod, NOFID,
    NONUNAME, Qid, RenameAt, Request, SetAttr, SetTime, Stat, Symlink, Time, WRITE_HEAD_BYTES, XattrCreate,
    bytes_wanted,
};

/// Whether the example reads as this.
#[track_caller]
fn reads(name: &str, expected: Request<'_>) {
    let example = named(name);
    let (header, request) = decode(&example.bytes, example.dialect).unwrap();
    assert_eq!(request, expected, "{name}");
    let size = u32::try_from(example.bytes.len()).unwrap();
    assert_eq!(header, Header { size, kind: header.kind, tag: TAG });
    let message = name.split('_').next().unwrap();
    assert_eq!(Kind::from_raw(header.kind).unwrap().name(), message);
}

#[test]
fn messages_of_both_dialects() {
    reads("Tversion", Request::Version { msize: 8192, version: b"9P2000.L" });
    reads("Tauth", Request::Auth(Auth { afid: 1, uname: b"user", aname: b"/tree", n_uname: 1000 }));
    reads("Tattach", Request::Attach(Attach { fid: 1, afid: NOFID, uname: b"user", aname: b"/tree", n_uname: 1000 }));
    let unnumbered = Attach { fid: 1, afid: 2, uname: b"user", aname: b"/tree", n_uname: NONUNAME };
    assert_eq!(unnumbered.uid(), None);
    assert_eq!(Attach { n_uname: 0, ..unnumbered }.uid(), Some(0));
    reads("Tattach_short", Request::Attach(unnumbered));
    reads("Tflush", Request::Flush { oldtag: 0xb1b2 });
    reads("Tread", Request::Read { fid: 1, offset: i64::MAX as u64, count: 65536 });
    reads("Twrite", Request::Write { fid: 1, offset: 0x0102_0304_0506_0708, count: 5 });
    reads("Tclunk", Request::Clunk { fid: 1 });
    reads("Tremove", Request::Remove { fid: 1 });
}

#[test]
fn a_walk_has_its_names_in_their_order() {
    let walk = |example: &str| {
        let example = named(example);
        let (_, request) = decode(&example.bytes, example.dialect).unwrap();
        let Request::Walk { fid: 1, newfid: 2, names } = request else { panic!("{request:?}") };
        assert_eq!(names.is_empty(), names.iter().next().is_none());
        names.iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    assert_eq!(walk("Twalk"), [&b"a"[..], b"..", b"long name"]);
    assert!(walk("Twalk_clone").is_empty());

    let names = (0..16).fold(Message::new(110, TAG).d(1).d(1).w(16), |message, at| message.s(vec![b'a' + at; 255]));
    let bytes = names.finish();
    let (_, request) = decode(&bytes, Dialect::L).unwrap();
    let Request::Walk { fid: 1, newfid: 1, names } = request else { panic!("{request:?}") };
    assert!(names.iter().zip(b'a'..).all(|(name, letter)| name == vec![letter; 255]));
    assert_eq!(names.iter().count(), 16);
}

#[test]
fn messages_of_9p2000_l() {
    reads("Tstatfs", Request::StatFs { fid: 1 });
    reads("Tlopen", Request::Lopen { fid: 1, flags: 0o2002 });
    let create = Lcreate { fid: 1, name: b"file", flags: 0o101, mode: 0o100_644, gid: 1000 };
    reads("Tlcreate", Request::Lcreate(create));
    reads("Tsymlink", Request::Symlink(Symlink { fid: 1, name: b"link", target: b"../target", gid: 1000 }));
    let node = Mknod { dfid: 1, name: b"node", mode: 0o60_660, major: 8, minor: 17, gid: 1000 };
    reads("Tmknod", Request::Mknod(node));
    reads("Trename", Request::Rename { fid: 1, dfid: 2, name: b"new" });
    let rename = RenameAt { olddirfid: 1, oldname: b"old", newdirfid: 2, newname: b"new" };
    reads("Trenameat", Request::RenameAt(rename));
    reads("Treadlink", Request::ReadLink { fid: 1 });
    reads("Tgetattr", Request::GetAttr { fid: 1, mask: 0x3fff });
    reads("Txattrwalk", Request::XattrWalk { fid: 1, newfid: 2, name: b"user.name" });
    reads("Txattrwalk_list", Request::XattrWalk { fid: 1, newfid: 2, name: b"" });
    let set = XattrCreate { fid: 1, name: b"user.name", size: 65536, flags: 2 };
    reads("Txattrcreate", Request::XattrCreate(set));
    reads("Treaddir", Request::ReadDir { fid: 1, offset: u64::MAX, count: 8168 });
    reads("Tfsync", Request::Fsync { fid: 1, datasync: true });
    reads("Tfsync_short", Request::Fsync { fid: 1, datasync: false });
    reads("Tlink", Request::Link { dfid: 1, fid: 2, name: b"name" });
    reads("Tmkdir", Request::Mkdir(Mkdir { dfid: 1, name: b"directory", mode: 0o755, gid: 1000 }));
    reads("Tunlinkat", Request::UnlinkAt { dfid: 1, name: b"name", flags: 0x200 });
}

#[test]
fn attributes_change_as_their_flags_say() {
    let everything = SetAttr {
        fid: 1,
        mode: Some(0o640),
        uid: Some(1001),
        gid: Some(1002),
        size: Some(4097),
        atime: Some(SetTime::At(Time { seconds: 11, nanoseconds: 12 })),
        mtime: Some(SetTime::At(Time { seconds: -1, nanoseconds: 999_999_999 })),
        ctime: true,
    };
    reads("Tsetattr", Request::SetAttr(everything));
    // What no flag names is not even looked at.
    let now = SetAttr { fid: 1, atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    reads("Tsetattr_now", Request::SetAttr(now));

    let some = |valid: u32| {
        let fields = Message::new(26, TAG).d(1).d(valid).d(0o640).d(u32::MAX).d(u32::MAX).q(4097);
        let bytes = fields.q(11).q(12).q(u64::MAX).q(999_999_999).finish();
        match decode(&bytes, Dialect::L).unwrap().1 {
            Request::SetAttr(change) => change,
            other => panic!("{other:?}"),
        }
    };
    let none = SetAttr { fid: 1, ..SetAttr::default() };
    assert_eq!(some(0), none);
    assert_eq!(some(0x1), SetAttr { mode: everything.mode, ..none });
    assert_eq!(some(0x2 | 0x4), none, "nobody's number changes nothing");
    assert_eq!(some(0x8), SetAttr { size: everything.size, ..none });
    assert_eq!(some(0x10), SetAttr { atime: Some(SetTime::Now), ..none });
    assert_eq!(some(0x20 | 0x100), SetAttr { mtime: everything.mtime, ..none });
    assert_eq!(some(0x40), SetAttr { ctime: true, ..none });
    assert_eq!(some(0x80 | 0x100), none, "a time is given, and yet stays");
}

#[test]
fn locks_end_where_their_length_says() {
    let lock = LockRequest {
        fid: 1,
        kind: LockKind::Write,
        flags: 1,
        start: 100,
        length: 50,
        proc_id: 4321,
        client_id: b"client",
    };
    reads("Tlock", Request::Lock(lock));
    assert_eq!((lock.end(), lock.waits()), (149, true));
    assert!(!LockRequest { flags: 2, ..lock }.waits());
    let asked = GetLock { fid: 1, kind: LockKind::Read, start: 100, length: 0, proc_id: 4321, client_id: b"client" };
    reads("Tgetlock", Request::GetLock(asked));
    assert_eq!(asked.end(), i64::MAX as u64);
}

#[test]
fn messages_of_9p2000_u() {
    reads("Topen", Request::Open { fid: 1, mode: 0x12 });
    let create = Create { fid: 1, name: b"device", perm: 0x0080_01b0, mode: 2, extension: b"b 8 17" };
    reads("Tcreate", Request::Create(create));
    reads("Tstat", Request::Stat { fid: 1 });
    let stat = Stat {
        kind: 0xb1b2,
        dev: 0xb3b4_b5b6,
        qid: Qid { kind: 0xb7, version: 0xb8b9_babb, path: 0xc1c2_c3c4_c5c6_c7c8 },
        mode: 0xd1d2_d3d4,
        atime: 0xd5d6_d7d8,
        mtime: 0xd9da_dbdc,
        length: 0xe1e2_e3e4_e5e6_e7e8,
        name: b"name",
        uid: b"owner",
        gid: b"group",
        muid: b"writer",
        extension: b"extension",
        n_uid: 0xf1f2_f3f4,
        n_gid: 0xf5f6_f7f8,
        n_muid: 0xf9fa_fbfc,
    };
    reads("Twstat", Request::WriteStat { fid: 1, stat });
    assert_eq!(stat.bytes(), examples::stat().len());
}

/// A dialect's own messages are none in the other one, whatever they hold: clients then try an older message.
#[test]
fn messages_of_the_other_dialect_are_not_supported() {
    for example in examples::all() {
        for dialect in [Dialect::L, Dialect::U] {
            let (header, request) = decode(&example.bytes, dialect).unwrap();
            let kind = Kind::from_raw(header.kind).unwrap();
            let supported = !matches!(request, Request::Unsupported(_));
            assert_eq!(supported, kind.is_spoken_in(dialect), "{}", example.name);
            assert!(supported || request == Request::Unsupported(header.kind));
        }
    }
    for kind in 0..=u8::MAX {
        if Kind::from_raw(kind).is_none() {
            let bytes = Message::new(kind, TAG).raw(b"whatever").finish();
            assert_eq!(decode(&bytes, Dialect::L).unwrap().1, Request::Unsupported(kind));
        }
    }
}

/// A ring copies no more of a write than stands in front of its data.
#[test]
fn a_write_s_data_is_not_wanted() {
    let write = named("Twrite").bytes;
    assert_eq!(bytes_wanted(&write), Ok(WRITE_HEAD_BYTES));
    assert_eq!(bytes_wanted(&write[..7]), Ok(WRITE_HEAD_BYTES));
    let huge = crate::p9::message::with(&write, 0, &u32::MAX.to_le_bytes());
    assert_eq!(bytes_wanted(&huge), Ok(WRITE_HEAD_BYTES));
    assert_eq!(bytes_wanted(&named("Tread").bytes), Ok(23));
    // The message may end before what was sent does.
    let longer = [&named("Tread").bytes[..], b"more"].concat();
    let (header, request) = decode(&longer, Dialect::L).unwrap();
    assert_eq!((header.size, request), (23, Request::Read { fid: 1, offset: i64::MAX as u64, count: 65536 }));
}

/// Over virtio, old kernels count the head alone: the data lies behind the message, in the same chain.
#[test]
fn a_write_s_data_may_lie_behind_the_message() {
    let head = Message::new(118, TAG).d(1).q(4096).d(512).finish();
    let expected = Request::Write { fid: 1, offset: 4096, count: 512 };
    assert_eq!(device::p9::decode(&head, 23 + 512, Dialect::L).unwrap().1, expected);
    assert_eq!(device::p9::decode(&head, 23 + 600, Dialect::L).unwrap().1, expected);
    assert!(device::p9::decode(&head, 23 + 511, Dialect::L).is_err());
}

#[test]
fn a_version_names_a_dialect() {
    assert_eq!(Dialect::from_version(b"9P2000.L"), Dialect::L);
    assert_eq!(Dialect::from_version(b"9P2000.u"), Dialect::U);
    for other in [&b"9P2000"[..], b"9P2000.l", b"9P2000.L ", b"", b"unknown", b"\xff"] {
        assert_eq!(Dialect::from_version(other), Dialect::Unknown);
    }
    assert_eq!(Dialect::default(), Dialect::Unknown);
    assert_eq!([Dialect::L, Dialect::U, Dialect::Unknown].map(Dialect::version), ["9P2000.L", "9P2000.u", "unknown"]);
}
