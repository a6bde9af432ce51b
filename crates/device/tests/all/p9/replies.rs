//! Replies, byte by byte.

use crate::p9::examples;
use crate::p9::message::Message;
use device::p9::{
    Attr, Dialect, DirWriter, GetLock, LockKind, Qid, Stat, StatFs, error_out, getattr_out, getlock_out, lock_out,
    open_out, qid_out, read_count_out, readlink_out, reply_header, stat_out, statfs_out, version_out, walk_out,
    write_out, xattrwalk_out,
};

const QID: Qid = Qid { kind: 0x80, version: 0x0102_0304, path: 0x1112_1314_1516_1718 };

fn qid(message: Message) -> Message {
    message.qid(0x80, 0x0102_0304, 0x1112_1314_1516_1718)
}

/// Whether what is appended is this, behind what stands there already.
#[track_caller]
fn appends(encode: impl FnOnce(&mut Vec<u8>), expected: Message) {
    let mut out = b"before".to_vec();
    encode(&mut out);
    assert_eq!(out, Message::body().raw(b"before").raw(&expected.bytes()).bytes());
}

#[test]
fn headers() {
    assert_eq!(reply_header(117, 0xa1a2, 4).to_vec(), Message::new(117, 0xa1a2).raw(&[0; 4]).finish()[..7]);
    assert_eq!(reply_header(0x12, 0x3456, 0x0102_0304 - 7), [4, 3, 2, 1, 0x12, 0x56, 0x34]);
    assert_eq!(reply_header(0, 0, usize::MAX)[..4], [0xff; 4]);
}

#[test]
fn versions() {
    appends(|out| version_out(out, 8192, Dialect::L), Message::body().d(8192).s("9P2000.L"));
    appends(|out| version_out(out, 4096, Dialect::U), Message::body().d(4096).s("9P2000.u"));
    appends(|out| version_out(out, 1, Dialect::Unknown), Message::body().d(1).s("unknown"));
}

#[test]
fn qids() {
    appends(|out| qid_out(out, QID), qid(Message::body()));
    appends(|out| open_out(out, QID, 8168), qid(Message::body()).d(8168));
    appends(|out| walk_out(out, &[]), Message::body().w(0));
    appends(|out| walk_out(out, &[QID; 2]), qid(qid(Message::body().w(2))));
    appends(|out| walk_out(out, &[QID; 17]), (0..16).fold(Message::body().w(16), |message, _| qid(message)));
}

#[test]
fn attributes() {
    let attr = Attr {
        valid: 0x3fff,
        qid: QID,
        mode: 0o100_644,
        uid: 1000,
        gid: 1001,
        nlink: 2,
        rdev: 3,
        size: 4,
        blksize: 5,
        blocks: 6,
        atime: (7, 8),
        mtime: (-9, 10),
        ctime: (11, 12),
        btime: (13, 14),
        generation: 15,
        data_version: 16,
    };
    let expected = qid(Message::body().q(0x3fff)).d(0o100_644).d(1000).d(1001).q(2).q(3).q(4).q(5).q(6);
    let expected = expected.q(7).q(8).q((-9_i64).cast_unsigned()).q(10).q(11).q(12).q(13).q(14).q(15).q(16);
    appends(|out| getattr_out(out, &attr), expected);

    let statfs = StatFs {
        kind: 1,
        block_size: 2,
        blocks: 3,
        blocks_free: 4,
        blocks_available: 5,
        files: 6,
        files_free: 7,
        fsid: 8,
        name_bytes_max: 9,
    };
    let expected = Message::body().d(1).d(2).q(3).q(4).q(5).q(6).q(7).q(8).d(9);
    appends(|out| statfs_out(out, &statfs), expected);
}

#[test]
fn the_small_ones() {
    appends(|out| readlink_out(out, b"../target"), Message::body().s("../target"));
    appends(|out| xattrwalk_out(out, 65536), Message::body().q(65536));
    appends(|out| lock_out(out, 1), Message::body().b(1));
    appends(|out| read_count_out(out, 5), Message::body().d(5));
    appends(|out| write_out(out, 6), Message::body().d(6));
    let held = GetLock { fid: 9, kind: LockKind::Write, start: 1, length: 2, proc_id: 3, client_id: b"client" };
    appends(|out| getlock_out(out, &held), Message::body().b(1).q(1).q(2).d(3).s("client"));
    let free = GetLock { kind: LockKind::Unlock, client_id: b"", ..held };
    appends(|out| getlock_out(out, &free), Message::body().b(2).q(1).q(2).d(3).s(""));
}

#[test]
fn errors_look_as_their_dialect_has_them() {
    appends(|out| error_out(out, Dialect::L, 2), Message::body().d(2));
    appends(|out| error_out(out, Dialect::U, 2), Message::body().s("No such file or directory").d(2));
    appends(|out| error_out(out, Dialect::Unknown, 71), Message::body().s("Protocol error"));
    appends(|out| error_out(out, Dialect::U, 4000), Message::body().s("Unknown error").d(4000));
}

/// The names are those of the C library, which are also what Linux' client knows.
#[test]
fn errors_have_their_usual_names() {
    let mut named = 0;
    for errno in 1..134 {
        let mut out = Vec::new();
        error_out(&mut out, Dialect::Unknown, errno);
        let name = String::from_utf8(out[2..].to_vec()).unwrap();
        if name != "Unknown error" {
            let theirs = std::io::Error::from_raw_os_error(errno).to_string();
            assert_eq!(format!("{name} (os error {errno})"), theirs);
            named += 1;
        }
    }
    assert!(named > 30);
}

#[test]
fn attributes_of_9p2000_u() {
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
    let bytes = examples::stat();
    let behind_their_length = Message::body().w(u16::try_from(bytes.len()).unwrap()).raw(&bytes);
    appends(|out| stat_out(out, &stat), behind_their_length);
    assert_eq!(stat.bytes(), bytes.len());

    // However long the strings are, the sizes agree with what is there.
    let long = vec![b'x'; 70_000];
    let huge = Stat { name: &long, uid: &long, gid: &long, muid: &long, extension: &long, ..stat };
    let mut out = Vec::new();
    stat_out(&mut out, &huge);
    assert_eq!(huge.bytes(), out.len() - 2);
    let outer = u16::from_le_bytes([out[0], out[1]]);
    let inner = u16::from_le_bytes([out[2], out[3]]);
    assert_eq!((usize::from(outer), usize::from(inner)), (out.len() - 2, out.len() - 4));
    let mut link = Vec::new();
    readlink_out(&mut link, &long);
    assert_eq!(usize::from(u16::from_le_bytes([link[0], link[1]])), link.len() - 2);
}

#[test]
fn entries_are_counted_and_stop_where_the_client_has_no_room() {
    let entry = |offset: u64, kind: u8, name: &str| qid(Message::body()).q(offset).b(kind).s(name).bytes();
    let both = [entry(1, 4, "a"), entry(u64::MAX, 8, "second")].concat();
    for limit in 0..100 {
        let mut out = b"before".to_vec();
        let mut writer = DirWriter::new(&mut out, limit);
        let first = writer.would_fit(1);
        assert_eq!(writer.add(QID, 1, 4, b"a"), first);
        let second = writer.would_fit(6);
        assert_eq!(writer.add(QID, u64::MAX, 8, b"second"), second);
        assert_eq!((first, second), (limit >= 25, if limit >= 25 { limit >= 55 } else { limit >= 30 }));
        let count = writer.count();
        assert!(count <= limit);
        assert_eq!(out[..10], [&b"before"[..], &count.to_le_bytes()].concat());
        assert_eq!(out.len(), 10 + count as usize);
        if second && first {
            assert_eq!(out[10..], both);
        }
    }
}

#[test]
fn no_entry_is_longer_than_its_length_can_say() {
    let mut out = Vec::new();
    let mut writer = DirWriter::new(&mut out, u32::MAX);
    assert!(!writer.add(QID, 1, 4, &vec![b'x'; 65_536]));
    assert_eq!(writer.count(), 0);
    assert!(writer.add(QID, 1, 4, &vec![b'x'; 65_535]));
    assert_eq!(writer.count(), 24 + 65_535);
    assert!(!writer.would_fit(usize::MAX));
}

#[test]
fn entries_of_9p2000_u_are_attributes() {
    let stat = Stat { name: b"name", ..Stat::UNTOUCHED };
    let bytes = u32::try_from(stat.bytes()).unwrap();
    for limit in [0, bytes - 1, bytes, 2 * bytes - 1, 2 * bytes] {
        let mut out = Vec::new();
        let mut writer = DirWriter::new(&mut out, limit);
        let added = (0..3).filter(|_| writer.add_stat(&stat)).count();
        assert_eq!(added, (limit / bytes) as usize);
        let mut once = Vec::new();
        stat_out(&mut once, &stat);
        let mut expected = (bytes * (limit / bytes)).to_le_bytes().to_vec();
        expected.extend(once[2..].repeat(added));
        assert_eq!(out, expected);
    }
}
