//! Any bytes as a 9P request.

use crate::p9::{self, Dialect, Header, Request, SetTime};

/// Decodes a 9P request made of any bytes, as a ring does, and checks that what is accepted keeps its promises.
///
/// Layout of `data`: flags (1), message (rest). Flags: bits 0 and 1 are the dialect (0 none, 2 9P2000.u, otherwise 9P2000.L); bit 6
/// lets 512 bytes lie behind the message, as a chain may have them; bit 7 makes the message's size its own, so that deep checks are
/// reached.
pub fn p9_request(data: &[u8]) {
    let Some((&options, message)) = data.split_first() else {
        return;
    };
    let mut message = message.to_vec();
    let actual = u32::try_from(message.len()).unwrap_or(u32::MAX);
    if options & 0x80 != 0
        && let Some(size) = message.first_chunk_mut()
    {
        *size = actual.to_le_bytes();
    }
    let dialect = match options & 3 {
        0 => Dialect::Unknown,
        2 => Dialect::U,
        _ => Dialect::L,
    };
    let readable = message.len() as u64 + if options & 0x40 != 0 { 512 } else { 0 };
    let Ok(wanted) = p9::bytes_wanted(&message) else {
        return;
    };
    assert!(wanted <= p9::REQUEST_BYTES_MAX);
    let front = &message[..wanted.min(message.len())];
    match p9::decode(front, readable, dialect) {
        Ok((header, request)) => assert_sound(&header, &request, readable, dialect),
        Err(malformed) => {
            assert!(malformed.errno() > 0 && malformed.tag().is_some());
            let mut out = Vec::new();
            p9::error_out(&mut out, dialect, malformed.errno());
            assert!(!out.is_empty());
        }
    }
}

fn assert_sound(header: &Header, request: &Request<'_>, readable: u64, dialect: Dialect) {
    use Request as R;
    assert!(u64::from(header.size) <= readable);
    assert!(dialect != Dialect::Unknown || matches!(request, R::Version { .. }));
    let name = |name: &[u8]| assert!(name.len() <= 255 && !name.contains(&0));
    let path = |path: &[u8]| assert!(path.len() <= 4095 && !path.contains(&0));
    let offset_max = i64::MAX as u64;
    match request {
        R::Version { version, .. } => name(version),
        R::Auth(auth) => {
            name(auth.uname);
            path(auth.aname);
        }
        R::Attach(attach) => {
            name(attach.uname);
            path(attach.aname);
        }
        R::Walk { names, .. } => {
            assert!(names.len() <= 16);
            assert_eq!(names.iter().count(), names.len());
            names.iter().for_each(name);
        }
        R::Read { offset, .. } => assert!(*offset <= offset_max),
        R::Write { offset, count, .. } => {
            assert!(*offset <= offset_max && u64::from(*count) + p9::WRITE_HEAD_BYTES as u64 <= readable);
        }
        R::Lcreate(create) => name(create.name),
        R::Symlink(link) => {
            name(link.name);
            path(link.target);
        }
        R::Mknod(node) => name(node.name),
        R::Rename { name: new, .. }
        | R::XattrWalk { name: new, .. }
        | R::Link { name: new, .. }
        | R::UnlinkAt { name: new, .. } => name(new),
        R::RenameAt(rename) => {
            name(rename.oldname);
            name(rename.newname);
        }
        R::SetAttr(change) => {
            assert!(change.size.is_none_or(|size| size <= offset_max));
            for set in [change.atime, change.mtime] {
                if let Some(SetTime::At(at)) = set {
                    assert!(at.nanoseconds < 1_000_000_000);
                }
            }
            assert!(change.uid != Some(u32::MAX) && change.gid != Some(u32::MAX));
        }
        R::XattrCreate(set) => {
            name(set.name);
            assert!(set.size <= 65536);
        }
        R::Lock(lock) => {
            name(lock.client_id);
            assert!(lock.start <= lock.end() && lock.end() <= offset_max);
        }
        R::GetLock(lock) => {
            name(lock.client_id);
            assert!(lock.start <= lock.end() && lock.end() <= offset_max);
            assert_back(header, dialect, |out| {
                out.extend_from_slice(&lock.fid.to_le_bytes());
                p9::getlock_out(out, lock);
            });
        }
        R::Mkdir(directory) => name(directory.name),
        R::Create(create) => {
            name(create.name);
            path(create.extension);
        }
        R::WriteStat { fid, stat } => {
            [stat.name, stat.uid, stat.gid, stat.muid].into_iter().for_each(name);
            path(stat.extension);
            assert_eq!(stat.bytes() + p9::HEADER_BYTES + 6, header.size as usize);
            assert_back(header, dialect, |out| {
                out.extend_from_slice(&fid.to_le_bytes());
                p9::stat_out(out, stat);
            });
        }
        R::Unsupported(kind) => assert_eq!(*kind, header.kind),
        R::Flush { .. }
        | R::Clunk { .. }
        | R::Remove { .. }
        | R::StatFs { .. }
        | R::Lopen { .. }
        | R::ReadLink { .. }
        | R::GetAttr { .. }
        | R::ReadDir { .. }
        | R::Fsync { .. }
        | R::Open { .. }
        | R::Stat { .. } => {}
    }
}

/// Whether what an encoder makes of a request's fields is as long as the request, and reads as one again. Replies that have the
/// fields of their request are checked by it.
fn assert_back(header: &Header, dialect: Dialect, encode: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    encode(&mut body);
    let message = [&p9::reply_header(header.kind, header.tag, body.len())[..], &body].concat();
    assert_eq!(message.len(), header.size as usize);
    let (again, _) = p9::decode(&message, message.len() as u64, dialect).expect("it was read before");
    assert_eq!(again, *header);
}
