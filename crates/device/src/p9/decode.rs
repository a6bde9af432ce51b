//! From the bytes of a request to its type.

use super::dialect::Dialect;
use super::header::Header;
use super::malformed::{Malformed, Reason};
use super::names::Names;
use super::request::{
    Attach, Auth, Create, GetLock, Lcreate, LockKind, LockRequest, Mkdir, Mknod, RenameAt, Request, SetAttr, Symlink,
    XattrCreate,
};
use super::spec::{
    HEADER_BYTES, Kind, NONUNAME, WRITE_HEAD_BYTES, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, setattr_valid,
};
use super::stat::Stat;
use super::wire::Args;
use crate::fs::{SetTime, Time};
use crate::wire::{le16, le32, le64};

/// Longest request, in bytes, without the data of a write. The longest valid one, a `Twstat` with every string at its longest, has
/// some 5 KiB; what is a little longer is still read, so that a name that is too long is told from a message that is.
pub const REQUEST_BYTES_MAX: usize = 8192;

/// Largest offset that files have (`loff_t`).
const OFFSET_MAX: u64 = i64::MAX as u64;

/// How many bytes, from the front of what was sent, the caller needs before it decodes. `front` holds the header, or more.
///
/// # Errors
/// [`Reason::TooShort`] without a whole header, or for a message that says it has none; [`Reason::TooLong`] beyond
/// [`REQUEST_BYTES_MAX`].
#[inline]
pub fn bytes_wanted(front: &[u8]) -> Result<usize, Malformed> {
    let header = front.first_chunk().map(Header::decode);
    let refuse = |reason| Err(Malformed { header, reason });
    let Some(Header { size, kind, .. }) = header else {
        return refuse(Reason::TooShort);
    };
    let size = size as usize;
    if size < HEADER_BYTES {
        return refuse(Reason::TooShort);
    }
    if kind == Kind::Write as u8 {
        return Ok(size.min(WRITE_HEAD_BYTES));
    }
    if size > REQUEST_BYTES_MAX { refuse(Reason::TooLong) } else { Ok(size) }
}

/// Decodes a request. `bytes` is at least as much of its front as [`bytes_wanted`] says. `readable` is how much was sent: the
/// length of a chain's readable part, or a stream's message itself. What lies behind the message's size is ignored.
///
/// # Errors
/// A request that this server does not understand, with the errno to answer.
#[inline]
pub fn decode(bytes: &[u8], readable: u64, dialect: Dialect) -> Result<(Header, Request<'_>), Malformed> {
    let Some((header, behind)) = bytes.split_first_chunk() else {
        return Err(Malformed { header: None, reason: Reason::TooShort });
    };
    let header = Header::decode(header);
    match decode_body(&header, behind, readable, dialect) {
        Ok(request) => Ok((header, request)),
        Err(reason) => Err(Malformed { header: Some(header), reason }),
    }
}

/// `behind` is what there is behind the header.
///
/// Always inlined, as of FUSE: handing a request on by value costs more than decoding it.
#[inline(always)]
fn decode_body<'a>(header: &Header, behind: &'a [u8], readable: u64, dialect: Dialect) -> Result<Request<'a>, Reason> {
    if u64::from(header.size) > readable {
        return Err(Reason::BeyondChain);
    }
    let Some(body_len) = (header.size as usize).checked_sub(HEADER_BYTES) else {
        return Err(Reason::TooShort);
    };
    let kind = match Kind::from_raw(header.kind) {
        Some(kind) if kind.is_spoken_in(dialect) => kind,
        _ if dialect == Dialect::Unknown => return Err(Reason::NoVersion),
        _ => return Ok(Request::Unsupported(header.kind)),
    };
    if kind == Kind::Write {
        // Its data is not among the bytes.
        return write(header, behind, readable);
    }
    let Some(body) = behind.get(..body_len) else {
        return Err(if header.size as usize > REQUEST_BYTES_MAX { Reason::TooLong } else { Reason::BeyondChain });
    };
    let mut args = Args::new(body);
    let request = fields(kind, &mut args)?;
    if args.is_empty() { Ok(request) } else { Err(Reason::TrailingBytes) }
}

/// Every request but a write.
#[inline(always)]
fn fields<'a>(kind: Kind, args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    Ok(match kind {
        Kind::Version => {
            let msize = word(args)?;
            Request::Version { msize, version: args.take_name()? }
        }
        Kind::Auth => auth(args)?,
        Kind::Attach => attach(args)?,
        Kind::Flush => Request::Flush { oldtag: le16::<0, _>(args.take::<2>()?) },
        Kind::Walk => {
            let fixed = args.take::<10>()?;
            let names = Names::take(args, usize::from(le16::<8, _>(fixed)))?;
            Request::Walk { fid: le32::<0, _>(fixed), newfid: le32::<4, _>(fixed), names }
        }
        Kind::Read => {
            let (fid, offset, count) = range(args.take::<16>()?);
            Request::Read { fid, offset: checked_offset(offset)?, count }
        }
        Kind::ReadDir => {
            // What an entry said may be any number.
            let (fid, offset, count) = range(args.take::<16>()?);
            Request::ReadDir { fid, offset, count }
        }
        Kind::Write => return Err(Reason::TooShort),
        Kind::Clunk => Request::Clunk { fid: word(args)? },
        Kind::Remove => Request::Remove { fid: word(args)? },
        Kind::StatFs => Request::StatFs { fid: word(args)? },
        Kind::Lopen => {
            let (fid, flags) = pair(args)?;
            Request::Lopen { fid, flags }
        }
        Kind::Lcreate => lcreate(args)?,
        Kind::Symlink => {
            let fid = word(args)?;
            Request::Symlink(Symlink { fid, name: args.take_name()?, target: args.take_path()?, gid: word(args)? })
        }
        Kind::Mknod => mknod(args)?,
        Kind::Rename => {
            let (fid, dfid) = pair(args)?;
            Request::Rename { fid, dfid, name: args.take_name()? }
        }
        Kind::ReadLink => Request::ReadLink { fid: word(args)? },
        Kind::GetAttr => {
            let fixed = args.take::<12>()?;
            Request::GetAttr { fid: le32::<0, _>(fixed), mask: le64::<4, _>(fixed) }
        }
        Kind::SetAttr => setattr(args.take::<60>()?)?,
        Kind::XattrWalk => {
            let (fid, newfid) = pair(args)?;
            Request::XattrWalk { fid, newfid, name: xattr_name(args)? }
        }
        Kind::XattrCreate => xattr_create(args)?,
        Kind::Fsync => fsync(args)?,
        Kind::Lock => lock(args)?,
        Kind::GetLock => getlock(args)?,
        Kind::Link => {
            let (dfid, fid) = pair(args)?;
            Request::Link { dfid, fid, name: args.take_name()? }
        }
        Kind::Mkdir => {
            let dfid = word(args)?;
            let name = args.take_name()?;
            let (mode, gid) = pair(args)?;
            Request::Mkdir(Mkdir { dfid, name, mode, gid })
        }
        Kind::RenameAt => {
            let (olddirfid, oldname) = (word(args)?, args.take_name()?);
            let (newdirfid, newname) = (word(args)?, args.take_name()?);
            Request::RenameAt(RenameAt { olddirfid, oldname, newdirfid, newname })
        }
        Kind::UnlinkAt => {
            let dfid = word(args)?;
            Request::UnlinkAt { dfid, name: args.take_name()?, flags: word(args)? }
        }
        Kind::Open => {
            let fixed = args.take::<5>()?;
            Request::Open { fid: le32::<0, _>(fixed), mode: fixed[4] }
        }
        Kind::Create => create(args)?,
        Kind::Stat => Request::Stat { fid: word(args)? },
        Kind::WriteStat => Request::WriteStat { fid: word(args)?, stat: Stat::take(args)? },
    })
}

#[inline]
fn word(args: &mut Args<'_>) -> Result<u32, Reason> {
    Ok(le32::<0, _>(args.take::<4>()?))
}

#[inline]
fn pair(args: &mut Args<'_>) -> Result<(u32, u32), Reason> {
    let fixed = args.take::<8>()?;
    Ok((le32::<0, _>(fixed), le32::<4, _>(fixed)))
}

/// fid, offset and count.
#[inline]
fn range(fixed: &[u8; 16]) -> (u32, u64, u32) {
    (le32::<0, _>(fixed), le64::<4, _>(fixed), le32::<12, _>(fixed))
}

fn xattr_name<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Reason> {
    args.take_string(XATTR_NAME_BYTES_MAX, Reason::XattrNameTooLong)
}

/// A file offset or length. Beyond the largest, system calls and io_uring would take some for "the current position" or worse.
#[inline]
fn checked_offset(offset: u64) -> Result<u64, Reason> {
    if offset <= OFFSET_MAX { Ok(offset) } else { Err(Reason::BadOffset) }
}

/// Twrite, whose data is all that was sent behind the count.
#[inline]
fn write<'a>(header: &Header, behind: &'a [u8], readable: u64) -> Result<Request<'a>, Reason> {
    let Some(data_len) = (header.size as usize).checked_sub(WRITE_HEAD_BYTES) else {
        return Err(Reason::TooShort);
    };
    let (fid, offset, count) = range(Args::new(behind).take::<16>()?);
    // Older Linux leaves data that it does not copy out of the message's size, over virtio.
    let is_behind_the_message = data_len == 0 && WRITE_HEAD_BYTES as u64 + u64::from(count) <= readable;
    if count as usize != data_len && !is_behind_the_message {
        return Err(Reason::BadCount);
    }
    Ok(Request::Write { fid, offset: checked_offset(offset)?, count })
}

/// The number of a user, which plain 9P2000 does not have.
fn user(args: &mut Args<'_>) -> Result<u32, Reason> {
    if args.is_empty() { Ok(NONUNAME) } else { word(args) }
}

fn auth<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let afid = word(args)?;
    let (uname, aname) = (args.take_name()?, args.take_path()?);
    Ok(Request::Auth(Auth { afid, uname, aname, n_uname: user(args)? }))
}

fn attach<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let (fid, afid) = pair(args)?;
    let (uname, aname) = (args.take_name()?, args.take_path()?);
    Ok(Request::Attach(Attach { fid, afid, uname, aname, n_uname: user(args)? }))
}

fn lcreate<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let (fid, name) = (word(args)?, args.take_name()?);
    let fixed = args.take::<12>()?;
    Ok(Request::Lcreate(Lcreate {
        fid,
        name,
        flags: le32::<0, _>(fixed),
        mode: le32::<4, _>(fixed),
        gid: le32::<8, _>(fixed),
    }))
}

fn mknod<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let (dfid, name) = (word(args)?, args.take_name()?);
    let fixed = args.take::<16>()?;
    Ok(Request::Mknod(Mknod {
        dfid,
        name,
        mode: le32::<0, _>(fixed),
        major: le32::<4, _>(fixed),
        minor: le32::<8, _>(fixed),
        gid: le32::<12, _>(fixed),
    }))
}

fn setattr<'a>(fixed: &[u8; 60]) -> Result<Request<'a>, Reason> {
    let valid = le32::<4, _>(fixed);
    let has = |flag: u32| valid & flag != 0;
    let id = |id: u32| (id != u32::MAX).then_some(id);
    let time = |flag: u32, given: u32, seconds: u64, nanoseconds: u64| -> Result<Option<SetTime>, Reason> {
        Ok(match (has(flag), has(given)) {
            (false, _) => None,
            (true, false) => Some(SetTime::Now),
            (true, true) => {
                // Larger ones mean "now" and "leave it" to utimensat(2), and nothing good to others.
                let nanoseconds = u32::try_from(nanoseconds).ok().filter(|below| *below < 1_000_000_000);
                let nanoseconds = nanoseconds.ok_or(Reason::BadTime)?;
                Some(SetTime::At(Time { seconds: seconds.cast_signed(), nanoseconds }))
            }
        })
    };
    Ok(Request::SetAttr(SetAttr {
        fid: le32::<0, _>(fixed),
        mode: has(setattr_valid::MODE).then_some(le32::<8, _>(fixed)),
        uid: has(setattr_valid::UID).then_some(le32::<12, _>(fixed)).and_then(id),
        gid: has(setattr_valid::GID).then_some(le32::<16, _>(fixed)).and_then(id),
        size: has(setattr_valid::SIZE).then_some(le64::<20, _>(fixed)).map(checked_offset).transpose()?,
        atime: time(setattr_valid::ATIME, setattr_valid::ATIME_SET, le64::<28, _>(fixed), le64::<36, _>(fixed))?,
        mtime: time(setattr_valid::MTIME, setattr_valid::MTIME_SET, le64::<44, _>(fixed), le64::<52, _>(fixed))?,
        ctime: has(setattr_valid::CTIME),
    }))
}

fn xattr_create<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let (fid, name) = (word(args)?, xattr_name(args)?);
    let fixed = args.take::<12>()?;
    let size = le64::<0, _>(fixed);
    if size > XATTR_VALUE_BYTES_MAX {
        return Err(Reason::XattrValueTooLong);
    }
    Ok(Request::XattrCreate(XattrCreate { fid, name, size: size as u32, flags: le32::<8, _>(fixed) }))
}

/// Tfsync, whose second field the specification did not have at first.
fn fsync<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fid = word(args)?;
    let datasync = !args.is_empty() && word(args)? != 0;
    Ok(Request::Fsync { fid, datasync })
}

/// A lock's type and range, which is not empty and ends at the largest offset or before.
fn lock_range(kind: u8, start: u64, length: u64) -> Result<LockKind, Reason> {
    let kind = match kind {
        0 => LockKind::Read,
        1 => LockKind::Write,
        2 => LockKind::Unlock,
        _ => return Err(Reason::BadLock),
    };
    match start.checked_add(length.saturating_sub(1)) {
        Some(end) if end <= OFFSET_MAX => Ok(kind),
        _ => Err(Reason::BadLock),
    }
}

fn lock<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<29>()?;
    let (start, length) = (le64::<9, _>(fixed), le64::<17, _>(fixed));
    Ok(Request::Lock(LockRequest {
        fid: le32::<0, _>(fixed),
        kind: lock_range(fixed[4], start, length)?,
        flags: le32::<5, _>(fixed),
        start,
        length,
        proc_id: le32::<25, _>(fixed),
        client_id: args.take_name()?,
    }))
}

fn getlock<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<25>()?;
    let (start, length) = (le64::<5, _>(fixed), le64::<13, _>(fixed));
    Ok(Request::GetLock(GetLock {
        fid: le32::<0, _>(fixed),
        kind: lock_range(fixed[4], start, length)?,
        start,
        length,
        proc_id: le32::<21, _>(fixed),
        client_id: args.take_name()?,
    }))
}

fn create<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let (fid, name) = (word(args)?, args.take_name()?);
    let fixed = args.take::<5>()?;
    let (perm, mode) = (le32::<0, _>(fixed), fixed[4]);
    Ok(Request::Create(Create { fid, name, perm, mode, extension: args.take_path()? }))
}
