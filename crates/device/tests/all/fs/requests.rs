//! One request of each kind, made from the kernel's structures.

use crate::fs::{FULL, PLAIN, decode, dialect_of, vectors as v};
use device::fs::{
    CopyFileRange, Create, Dialect, Extensions, Fallocate, Fsync, InHeader, Init, Ioctl, LkRequest, Lseek, Mkdir,
    Mknod, Opcode, Open, Poll, Read, ReadDir, Reason, Release, Rename, Request, SecurityContext, SetAttr, SetTime,
    SetXattr, SetupMapping, Statx, Symlink, Time, Write, flags, lock_type,
};

const FH: u64 = 0x1112_1314_1516_1718;

/// The request of a vector, whose header was checked.
fn body(vector: &'static [u8], dialect: Dialect) -> Request<'static> {
    let (header, request) = decode(vector, dialect).unwrap();
    let expected = InHeader {
        len: u32::try_from(vector.len()).unwrap(),
        unique: 0xa1a2_a3a4_a5a6_a7a8,
        nodeid: 0xb1b2_b3b4_b5b6_b7b8,
        uid: 0xc1c2_c3c4,
        gid: 0xd1d2_d3d4,
        pid: 0xe1e2_e3e4,
        ..header
    };
    assert_eq!(header, expected);
    request
}

fn full(vector: &'static [u8]) -> Request<'static> {
    body(vector, FULL)
}

#[test]
fn every_operation_is_told_apart() {
    let mut seen: Vec<Opcode> = v::REQUESTS
        .iter()
        .map(|vector| Opcode::from_raw(decode(vector, dialect_of(vector)).unwrap().0.opcode).unwrap())
        .collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, Opcode::ALL, "there is a vector for each");
}

#[test]
fn names() {
    assert_eq!(full(v::LOOKUP), Request::Lookup { name: c"name" });
    assert_eq!(full(v::UNLINK), Request::Unlink { name: c"name" });
    assert_eq!(full(v::RMDIR), Request::Rmdir { name: c"name" });
    assert_eq!(full(v::LINK), Request::Link { nodeid: FH, name: c"name" });
    let rename = Rename { name: c"name", new_nodeid: FH, new_name: c"new", flags: 0 };
    assert_eq!(full(v::RENAME), Request::Rename(rename));
    assert_eq!(full(v::RENAME2), Request::Rename(Rename { flags: 2, ..rename }));
    let symlink = Symlink { name: c"name", target: c"../target", extensions: Extensions::default() };
    assert_eq!(body(v::SYMLINK, PLAIN), Request::Symlink(symlink));
    assert_eq!(full(v::READLINK), Request::ReadLink);
}

#[test]
fn references() {
    assert_eq!(full(v::FORGET), Request::Forget { nlookup: FH });
    let Request::BatchForget(forgets) = full(v::BATCH_FORGET) else {
        panic!("no batch");
    };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(FH, 3), (0x2122_2324_2526_2728, 4)]);
    assert_eq!((forgets.len(), forgets.is_empty()), (2, false));
}

#[test]
fn attributes() {
    assert_eq!(full(v::GETATTR), Request::GetAttr { fh: Some(FH) });
    let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
    let change = SetAttr {
        fh: Some(FH),
        mode: Some(0x7475_7677),
        uid: Some(0x8182_8384),
        gid: Some(0x9192_9394),
        size: Some(0x2122_2324_2526_2728),
        atime: Some(SetTime::At(time(0x4142_4344_4546_4748, 71))),
        mtime: Some(SetTime::At(time(-2, 72))),
        ctime: Some(time(0x6162_6364_6566_6768, 73)),
        lock_owner: Some(0x3132_3334_3536_3738),
        kill_suidgid: true,
    };
    assert_eq!(full(v::SETATTR), Request::SetAttr(change));
    let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(full(v::SETATTR_NOW), Request::SetAttr(now));
    let statx = Statx { fh: Some(FH), flags: 0x2122_2324, mask: 0x3132_3334 };
    assert_eq!(full(v::STATX), Request::Statx(statx));
    assert_eq!(full(v::ACCESS), Request::Access { mask: 0x1112_1314 });
    assert_eq!(full(v::STATFS), Request::StatFs);
    assert_eq!(full(v::SYNCFS), Request::SyncFs);
}

#[test]
fn fields_without_their_flag_are_not_there() {
    let mut getattr = v::GETATTR.to_vec();
    getattr[40] = 0;
    assert_eq!(decode(&getattr, FULL).unwrap().1, Request::GetAttr { fh: None });
    let mut setattr = v::SETATTR.to_vec();
    setattr[40..44].fill(0);
    assert_eq!(decode(&setattr, FULL).unwrap().1, Request::SetAttr(SetAttr::default()));
    let mut read = v::READ.to_vec();
    read[60] = 0;
    let Request::Read(read) = decode(&read, FULL).unwrap().1 else {
        panic!("no read");
    };
    assert_eq!(read.lock_owner, None);
}

#[test]
fn new_files() {
    let rdev = (0x456, 0x12378);
    let extensions = Extensions::default();
    let mknod = Mknod { name: c"name", mode: 0x1112_1314, umask: 0x3132_3334, rdev, extensions };
    assert_eq!(body(v::MKNOD, PLAIN), Request::Mknod(mknod));
    let mkdir = Mkdir { name: c"name", mode: 0x1112_1314, umask: 0x3132_3334, extensions };
    assert_eq!(body(v::MKDIR, PLAIN), Request::Mkdir(mkdir));
    let create = Create {
        name: c"name",
        flags: 0x1112_1314,
        mode: 0x2122_2324,
        umask: 0x3132_3334,
        kill_suidgid: true,
        extensions,
    };
    assert_eq!(body(v::CREATE, PLAIN), Request::Create(create));
    assert_eq!(body(v::CREATE, FULL), Request::Create(create), "extensions may be left out");
    assert_eq!(full(v::TMPFILE), Request::TmpFile(Create { name: c"/", ..create }));
}

#[test]
fn extensions_of_new_files() {
    let label = SecurityContext { name: c"security.selinux", value: b"system_u:object_r:x" };
    let extensions = |vector, dialect| match body(vector, dialect) {
        Request::Create(create) => create.extensions,
        other => panic!("{other:?}"),
    };
    let both = extensions(v::CREATE_EXTENDED, FULL);
    assert_eq!(both.security.iter().collect::<Vec<_>>(), [label]);
    assert_eq!((both.security.len(), both.security.is_empty()), (1, false));
    assert_eq!(both.groups.iter().collect::<Vec<_>>(), [0x5152_5354]);
    assert_eq!((both.groups.len(), both.groups.is_empty()), (1, false));
    // Before total_extlen, only the flag told that there is a label.
    let old = Dialect { minor: 37, flags: flags::INIT_EXT | flags::SECURITY_CTX };
    let labelled = extensions(v::CREATE_LABELLED, old);
    assert_eq!(labelled.security.iter().collect::<Vec<_>>(), [label]);
    assert!(labelled.groups.is_empty());
    assert_eq!(extensions(v::CREATE_LABELLED, PLAIN), Extensions::default(), "what was not agreed on is not looked at");
}

#[test]
fn open_files() {
    let open = Open { flags: 0x1112_1314, kill_suidgid: true };
    assert_eq!(full(v::OPEN), Request::Open(open));
    assert_eq!(full(v::OPENDIR), Request::OpenDir(Open { kill_suidgid: false, ..open }));
    let lock_owner = 0x3132_3334_3536_3738;
    let release = Release { fh: FH, flags: 0x2122_2324, flush: true, flock_unlock: false, lock_owner };
    assert_eq!(full(v::RELEASE), Request::Release(release));
    let release = Release { flush: false, flock_unlock: true, ..release };
    assert_eq!(full(v::RELEASEDIR), Request::ReleaseDir(release));
    assert_eq!(full(v::FLUSH), Request::Flush { fh: FH, lock_owner });
    assert_eq!(full(v::FSYNC), Request::Fsync(Fsync { fh: FH, data_only: true }));
    assert_eq!(full(v::FSYNCDIR), Request::FsyncDir(Fsync { fh: FH, data_only: false }));
    let readdir = ReadDir { fh: FH, offset: 0xf122_2324_2526_2728, size: 0x3132_3334 };
    assert_eq!(full(v::READDIR), Request::ReadDir(readdir));
    assert_eq!(full(v::READDIRPLUS), Request::ReadDirPlus(readdir));
}

#[test]
fn data() {
    let read = Read {
        fh: FH,
        offset: 0x2122_2324_2526_2728,
        size: 0x3132_3334,
        lock_owner: Some(0x4142_4344_4546_4748),
        flags: 0x5152_5354,
    };
    assert_eq!(full(v::READ), Request::Read(read));
    let write = Write {
        fh: FH,
        offset: 0x2122_2324_2526_2728,
        size: 6,
        write_flags: 6,
        lock_owner: Some(0x4142_4344_4546_4748),
        flags: 0x5152_5354,
    };
    assert_eq!(full(v::WRITE), Request::Write(write));
    assert_eq!((write.kill_priv(), write.is_writeback()), (true, false));
    let fallocate = Fallocate { fh: FH, offset: 0x2122_2324_2526_2728, len: 0x3132_3334_3536_3738, mode: 0x4142_4344 };
    assert_eq!(full(v::FALLOCATE), Request::Fallocate(fallocate));
    let lseek = Lseek { fh: FH, offset: 0x2122_2324_2526_2728, whence: 4 };
    assert_eq!(full(v::LSEEK), Request::Lseek(lseek));
    let copy = CopyFileRange {
        fh_in: FH,
        offset_in: 0x2122_2324_2526_2728,
        nodeid_out: 0x3132_3334_3536_3738,
        fh_out: 0x4142_4344_4546_4748,
        offset_out: 0x5152_5354_5556_5758,
        len: 0x6162_6364_6566_6768,
        flags: 0x7172_7374_7576_7778,
        wide: false,
    };
    assert_eq!(full(v::COPY_FILE_RANGE), Request::CopyFileRange(copy));
    assert_eq!(full(v::COPY_FILE_RANGE_64), Request::CopyFileRange(CopyFileRange { wide: true, ..copy }));
}

#[test]
fn the_data_of_a_write_is_not_copied() {
    let write = full(v::WRITE);
    for copied in [80, 83, v::WRITE.len()] {
        let decoded = device::fs::decode(&v::WRITE[..copied], v::WRITE.len() as u64, FULL);
        assert_eq!(decoded.unwrap().1, write);
    }
    assert_eq!(device::fs::bytes_wanted(v::WRITE), Ok(device::fs::WRITE_HEAD_BYTES));
    assert_eq!(device::fs::bytes_wanted(&v::READ[..40]), Ok(v::READ.len()));
}

#[test]
fn extended_attributes() {
    let set = SetXattr { name: c"user.a", value: b"value", flags: 1, acl_kill_sgid: true };
    assert_eq!(full(v::SETXATTR), Request::SetXattr(set));
    let short = SetXattr { acl_kill_sgid: false, ..set };
    assert_eq!(body(v::SETXATTR_SHORT, PLAIN), Request::SetXattr(short));
    assert_eq!(full(v::GETXATTR), Request::GetXattr { name: c"user.a", size: 0x1112_1314 });
    assert_eq!(full(v::LISTXATTR), Request::ListXattr { size: 0x1112_1314 });
    assert_eq!(full(v::REMOVEXATTR), Request::RemoveXattr { name: c"user.a" });
}

#[test]
fn locks() {
    let lock = LkRequest {
        fh: FH,
        owner: 0x2122_2324_2526_2728,
        start: 0x3132_3334_3536_3738,
        end: 0x4142_4344_4546_4748,
        kind: lock_type::WRITE,
        pid: 0x5152_5354,
        lk_flags: 0,
    };
    assert_eq!(full(v::GETLK), Request::GetLk(lock));
    assert!(!lock.flock());
    let whole = LkRequest { start: 0, end: i64::MAX as u64, kind: lock_type::UNLOCK, ..lock };
    assert_eq!(full(v::SETLK), Request::SetLk(whole));
    let flock = LkRequest { kind: lock_type::READ, lk_flags: 1, ..whole };
    assert_eq!(full(v::SETLKW), Request::SetLkw(flock));
    assert!(flock.flock());
}

#[test]
fn what_is_left() {
    let init = Init {
        major: 7,
        minor: 45,
        max_readahead: 0x1112_1314,
        flags: flags::INIT_EXT | flags::ASYNC_READ | flags::SECURITY_CTX,
    };
    assert_eq!(full(v::INIT), Request::Init(init));
    assert_eq!(full(v::DESTROY), Request::Destroy);
    assert_eq!(full(v::INTERRUPT), Request::Interrupt { unique: FH });
    let ioctl = Ioctl {
        fh: FH,
        flags: 0x2122_2324,
        command: 0x3132_3334,
        argument: 0x4142_4344_4546_4748,
        input: b"abcd",
        out_size: 0x5152_5354,
    };
    assert_eq!(full(v::IOCTL), Request::Ioctl(ioctl));
    let poll = Poll { fh: FH, kh: 0x2122_2324_2526_2728, flags: 1, events: 0x4142_4344 };
    assert_eq!(full(v::POLL), Request::Poll(poll));
    for (vector, opcode) in [(v::BMAP, Opcode::Bmap), (v::NOTIFY_REPLY, Opcode::NotifyReply)] {
        assert_eq!(full(vector), Request::Unsupported(opcode));
    }
}

#[test]
fn mappings_are_read_as_linux_writes_them() {
    let setup = SetupMapping { offset: 0, len: 4096, writable: false, window_offset: 0 };
    assert_eq!(full(v::SETUPMAPPING), Request::SetupMapping(setup));
    let mut message = v::SETUPMAPPING.to_vec();
    for (at, value) in [(48, 6 << 20), (56, 2 << 20), (64, 3), (72, 4_u64 << 20)] {
        message[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let setup = SetupMapping { offset: 6 << 20, len: 2 << 20, writable: true, window_offset: 4 << 20 };
    assert_eq!(decode(&message, FULL).unwrap().1, Request::SetupMapping(setup));
    message[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(decode(&message, FULL).unwrap_err().reason, Reason::BadOffset);

    let parts = |message: &[u8]| match decode(message, FULL).unwrap().1 {
        Request::RemoveMapping(parts) => parts.iter().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(parts(v::REMOVEMAPPING), []);
    let mut message = v::REMOVEMAPPING.to_vec();
    message[40] = 2;
    message.extend([2 << 20, 1, u64::MAX, u64::MAX].iter().flat_map(|value: &u64| value.to_le_bytes()));
    message[0] = message.len() as u8;
    assert_eq!(parts(&message), [(2 << 20, 1), (u64::MAX, u64::MAX)]);
    message[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode(&message, FULL).unwrap_err().reason, Reason::BadSize);
}

/// A negative offset is the search's own affair: nothing is there, and the request is well formed.
#[test]
fn a_search_may_begin_before_the_file() {
    let mut message = v::LSEEK.to_vec();
    message[48..56].copy_from_slice(&[0xff; 8]);
    let (_, request) = decode(&message, FULL).unwrap();
    assert_eq!(request, Request::Lseek(Lseek { fh: FH, offset: u64::MAX, whence: 4 }));
}
