//! From the bytes of a request to its type.

use super::dialect::Dialect;
use super::extensions;
use super::forgets::{FORGET_ONE_BYTES, Forgets};
use super::header::InHeader;
use super::malformed::{Malformed, Reason};
use super::mapping::{REMOVE_ONE_BYTES, RemoveMappings, SetupMapping};
use super::reply::device_parts;
use super::request::{
    CopyFileRange, Create, Fallocate, Fsync, Init, Ioctl, LkRequest, Lseek, Mkdir, Mknod, Open, Poll, Read, ReadDir,
    Release, Rename, Request, SetAttr, SetXattr, Statx, Symlink, Write,
};
use super::spec::{
    IN_HEADER_BYTES, NAME_BYTES_MAX, Opcode, TARGET_BYTES_MAX, WRITE_IN_BYTES, XATTR_NAME_BYTES_MAX,
    XATTR_VALUE_BYTES_MAX, flags, fsync_flag, getattr_flag, lock_type, mapping_flag, open_request, read_flag,
    release_flag, setattr_valid, setxattr_flag, write_flag,
};
use super::time::{SetTime, Time};
use super::wire::{Args, le32, le64};
use std::ffi::CStr;

/// Bytes in front of the data of a WRITE: all of it that has to be copied out of guest memory.
pub const WRITE_HEAD_BYTES: usize = IN_HEADER_BYTES + WRITE_IN_BYTES;

/// Longest request, in bytes, without the data of a WRITE. The longest that clients send has the value of an extended attribute, 64
/// KiB; a BATCH_FORGET of 8189 nodes fits. It bounds what a guest can make a buffer hold, and how much it can have us forget at once.
pub const REQUEST_BYTES_MAX: usize = 128 << 10;

/// Largest offset that files have (`loff_t`).
const OFFSET_MAX: u64 = i64::MAX as u64;

/// How many bytes, from the front of the readable part, the caller copies out of guest memory before it decodes. `front` holds
/// the header, or more.
///
/// # Errors
/// [`Reason::TooShort`] without a whole header, or for a request that says it has none; [`Reason::TooLong`] beyond
/// [`REQUEST_BYTES_MAX`].
#[inline]
pub fn bytes_wanted(front: &[u8]) -> Result<usize, Malformed> {
    let header = front.first_chunk().map(InHeader::decode);
    let refuse = |reason| Err(Malformed { header, reason });
    let Some(InHeader { len, opcode, .. }) = header else {
        return refuse(Reason::TooShort);
    };
    let len = len as usize;
    if len < IN_HEADER_BYTES {
        return refuse(Reason::TooShort);
    }
    if opcode == Opcode::Write as u32 {
        return Ok(len.min(WRITE_HEAD_BYTES));
    }
    if len > REQUEST_BYTES_MAX { refuse(Reason::TooLong) } else { Ok(len) }
}

/// Decodes a request. `bytes` is what was copied: at least as much as [`bytes_wanted`] says. `readable_bytes` is the length of
/// the whole readable part. What lies behind the header's length is ignored.
///
/// # Errors
/// A request that this server does not understand, with the errno to answer.
#[inline]
pub fn decode(bytes: &[u8], readable_bytes: u64, dialect: Dialect) -> Result<(InHeader, Request<'_>), Malformed> {
    let Some((header, behind)) = bytes.split_first_chunk() else {
        return Err(Malformed { header: None, reason: Reason::TooShort });
    };
    let header = InHeader::decode(header);
    match decode_body(&header, behind, readable_bytes, dialect) {
        Ok(request) => Ok((header, request)),
        Err(reason) => Err(Malformed { header: Some(header), reason }),
    }
}

/// `behind` is what was copied behind the header.
///
/// Always inlined: a request is some 150 bytes, and handing it on by value twice cost more than decoding it.
#[inline(always)]
fn decode_body<'a>(
    header: &InHeader,
    behind: &'a [u8],
    readable_bytes: u64,
    dialect: Dialect,
) -> Result<Request<'a>, Reason> {
    if u64::from(header.len) > readable_bytes {
        return Err(Reason::BeyondChain);
    }
    let Some(body_len) = (header.len as usize).checked_sub(IN_HEADER_BYTES) else {
        return Err(Reason::TooShort);
    };
    let opcode = Opcode::from_raw(header.opcode).ok_or(Reason::UnknownOpcode)?;
    let body = if opcode == Opcode::Write {
        // Its data was not copied.
        behind
    } else if let Some(body) = behind.get(..body_len) {
        body
    } else {
        return Err(if header.len as usize > REQUEST_BYTES_MAX { Reason::TooLong } else { Reason::BeyondChain });
    };
    let (args, total_extlen) = (&mut Args::new(body), header.total_extlen);
    Ok(match opcode {
        Opcode::Lookup => Request::Lookup { name: name(args)? },
        Opcode::Forget => Request::Forget { nlookup: le64::<0, _>(args.take::<8>()?) },
        Opcode::BatchForget => batch_forget(args)?,
        Opcode::GetAttr => getattr(args)?,
        Opcode::SetAttr => setattr(args)?,
        Opcode::ReadLink => Request::ReadLink,
        Opcode::Symlink => symlink(args, total_extlen, dialect)?,
        Opcode::Mknod => mknod(args, total_extlen, dialect)?,
        Opcode::Mkdir => mkdir(args, total_extlen, dialect)?,
        Opcode::Unlink => Request::Unlink { name: name(args)? },
        Opcode::Rmdir => Request::Rmdir { name: name(args)? },
        Opcode::Rename => {
            let new_nodeid = le64::<0, _>(args.take::<8>()?);
            rename(args, new_nodeid, 0)?
        }
        Opcode::Rename2 => {
            let fixed = args.take::<16>()?;
            rename(args, le64::<0, _>(fixed), le32::<8, _>(fixed))?
        }
        Opcode::Link => Request::Link { nodeid: le64::<0, _>(args.take::<8>()?), name: name(args)? },
        Opcode::Open => Request::Open(open(args)?),
        Opcode::OpenDir => Request::OpenDir(open(args)?),
        Opcode::Read => read(args)?,
        Opcode::Write => write(args, body_len)?,
        Opcode::StatFs => Request::StatFs,
        Opcode::Release => Request::Release(release(args)?),
        Opcode::ReleaseDir => Request::ReleaseDir(release(args)?),
        Opcode::Fsync => Request::Fsync(fsync(args)?),
        Opcode::FsyncDir => Request::FsyncDir(fsync(args)?),
        Opcode::SetXattr => setxattr(args, dialect)?,
        Opcode::GetXattr => {
            let size = le32::<0, _>(args.take::<8>()?);
            Request::GetXattr { name: xattr_name(args)?, size }
        }
        Opcode::ListXattr => Request::ListXattr { size: le32::<0, _>(args.take::<8>()?) },
        Opcode::RemoveXattr => Request::RemoveXattr { name: xattr_name(args)? },
        Opcode::Flush => {
            let fixed = args.take::<24>()?;
            Request::Flush { fh: le64::<0, _>(fixed), lock_owner: le64::<16, _>(fixed) }
        }
        Opcode::Init => init(args)?,
        Opcode::ReadDir => Request::ReadDir(readdir(args)?),
        Opcode::ReadDirPlus => Request::ReadDirPlus(readdir(args)?),
        Opcode::GetLk => Request::GetLk(lock(args)?),
        Opcode::SetLk => Request::SetLk(lock(args)?),
        Opcode::SetLkw => Request::SetLkw(lock(args)?),
        Opcode::Access => Request::Access { mask: le32::<0, _>(args.take::<8>()?) },
        Opcode::Create => Request::Create(create(args, total_extlen, dialect)?),
        Opcode::TmpFile => Request::TmpFile(create(args, total_extlen, dialect)?),
        Opcode::Interrupt => Request::Interrupt { unique: le64::<0, _>(args.take::<8>()?) },
        Opcode::Destroy => Request::Destroy,
        Opcode::Ioctl => ioctl(args)?,
        Opcode::Poll => poll(args)?,
        Opcode::Fallocate => fallocate(args)?,
        Opcode::Lseek => lseek(args)?,
        Opcode::CopyFileRange => copy_file_range(args, false)?,
        Opcode::CopyFileRange64 => copy_file_range(args, true)?,
        Opcode::SyncFs => Request::SyncFs,
        Opcode::Statx => statx(args)?,
        Opcode::SetupMapping => setup_mapping(args)?,
        Opcode::RemoveMapping => remove_mapping(args)?,
        Opcode::Bmap | Opcode::NotifyReply => Request::Unsupported(opcode),
    })
}

#[inline]
fn name<'a>(args: &mut Args<'a>) -> Result<&'a CStr, Reason> {
    args.take_string(NAME_BYTES_MAX, Reason::NameTooLong)
}

fn xattr_name<'a>(args: &mut Args<'a>) -> Result<&'a CStr, Reason> {
    args.take_string(XATTR_NAME_BYTES_MAX, Reason::XattrNameTooLong)
}

/// A file offset or length. Beyond the largest, system calls and io_uring would take some for "the current position" or worse.
#[inline]
fn offset(offset: u64) -> Result<u64, Reason> {
    if offset <= OFFSET_MAX { Ok(offset) } else { Err(Reason::BadOffset) }
}

/// `fuse_read_in`.
#[inline]
fn read<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<40>()?;
    let owned = le32::<20, _>(fixed) & read_flag::LOCKOWNER != 0;
    Ok(Request::Read(Read {
        fh: le64::<0, _>(fixed),
        offset: offset(le64::<8, _>(fixed))?,
        size: le32::<16, _>(fixed),
        lock_owner: owned.then_some(le64::<24, _>(fixed)),
        flags: le32::<32, _>(fixed).cast_signed(),
    }))
}

/// `fuse_write_in`, with data behind it that was not copied. `body_len` counts both.
#[inline]
fn write<'a>(args: &mut Args<'a>, body_len: usize) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<WRITE_IN_BYTES>()?;
    let data_len = body_len.checked_sub(WRITE_IN_BYTES).ok_or(Reason::TooShort)?;
    let (size, write_flags) = (le32::<16, _>(fixed), le32::<20, _>(fixed));
    if size as usize > data_len {
        return Err(Reason::BadSize);
    }
    Ok(Request::Write(Write {
        fh: le64::<0, _>(fixed),
        offset: offset(le64::<8, _>(fixed))?,
        size,
        write_flags,
        lock_owner: (write_flags & write_flag::LOCKOWNER != 0).then_some(le64::<24, _>(fixed)),
        flags: le32::<32, _>(fixed).cast_signed(),
    }))
}

/// `fuse_getattr_in`.
#[inline]
fn getattr<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<16>()?;
    let opened = le32::<0, _>(fixed) & getattr_flag::FH != 0;
    Ok(Request::GetAttr { fh: opened.then_some(le64::<8, _>(fixed)) })
}

/// `fuse_batch_forget_in` and so many `fuse_forget_one`.
fn batch_forget<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let count = le32::<0, _>(args.take::<8>()?) as usize;
    // A request is shorter than 2 MiB: a product that overflows is too large as well.
    let raw = args.take_bytes(count.saturating_mul(FORGET_ONE_BYTES))?;
    Ok(Request::BatchForget(Forgets::new(raw)))
}

/// `fuse_setattr_in`.
fn setattr<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<88>()?;
    let valid = le32::<0, _>(fixed);
    let has = |flag: u32| valid & flag != 0;
    let time = |seconds: u64, nanoseconds: u32| {
        // Larger ones mean "now" and "leave it" to utimensat(2), and nothing good to others.
        let checked = nanoseconds < 1_000_000_000;
        checked.then_some(Time { seconds: seconds.cast_signed(), nanoseconds }).ok_or(Reason::BadTime)
    };
    let set = |flag: u32, now: u32, seconds: u64, nanoseconds: u32| {
        Ok(match (has(flag), has(now)) {
            (false, _) => None,
            (true, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(time(seconds, nanoseconds)?)),
        })
    };
    Ok(Request::SetAttr(SetAttr {
        fh: has(setattr_valid::FH).then_some(le64::<8, _>(fixed)),
        mode: has(setattr_valid::MODE).then_some(le32::<68, _>(fixed)),
        uid: has(setattr_valid::UID).then_some(le32::<76, _>(fixed)),
        gid: has(setattr_valid::GID).then_some(le32::<80, _>(fixed)),
        size: has(setattr_valid::SIZE).then_some(le64::<16, _>(fixed)).map(offset).transpose()?,
        atime: set(setattr_valid::ATIME, setattr_valid::ATIME_NOW, le64::<32, _>(fixed), le32::<56, _>(fixed))?,
        mtime: set(setattr_valid::MTIME, setattr_valid::MTIME_NOW, le64::<40, _>(fixed), le32::<60, _>(fixed))?,
        ctime: match has(setattr_valid::CTIME) {
            true => Some(time(le64::<48, _>(fixed), le32::<64, _>(fixed))?),
            false => None,
        },
        lock_owner: has(setattr_valid::LOCKOWNER).then_some(le64::<24, _>(fixed)),
        kill_suidgid: has(setattr_valid::KILL_SUIDGID),
    }))
}

fn symlink<'a>(args: &mut Args<'a>, total_extlen: u16, dialect: Dialect) -> Result<Request<'a>, Reason> {
    let name = name(args)?;
    let target = args.take_string(TARGET_BYTES_MAX, Reason::NameTooLong)?;
    let extensions = extensions::decode(args.rest(), total_extlen, dialect)?;
    Ok(Request::Symlink(Symlink { name, target, extensions }))
}

/// `fuse_mknod_in`.
fn mknod<'a>(args: &mut Args<'a>, total_extlen: u16, dialect: Dialect) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<16>()?;
    Ok(Request::Mknod(Mknod {
        name: name(args)?,
        mode: le32::<0, _>(fixed),
        umask: le32::<8, _>(fixed),
        rdev: device_parts(le32::<4, _>(fixed)),
        extensions: extensions::decode(args.rest(), total_extlen, dialect)?,
    }))
}

/// `fuse_mkdir_in`.
fn mkdir<'a>(args: &mut Args<'a>, total_extlen: u16, dialect: Dialect) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<8>()?;
    Ok(Request::Mkdir(Mkdir {
        name: name(args)?,
        mode: le32::<0, _>(fixed),
        umask: le32::<4, _>(fixed),
        extensions: extensions::decode(args.rest(), total_extlen, dialect)?,
    }))
}

/// The two names behind `fuse_rename_in` and `fuse_rename2_in`.
fn rename<'a>(args: &mut Args<'a>, new_nodeid: u64, flags: u32) -> Result<Request<'a>, Reason> {
    Ok(Request::Rename(Rename { name: name(args)?, new_nodeid, new_name: name(args)?, flags }))
}

/// `fuse_open_in`.
fn open(args: &mut Args<'_>) -> Result<Open, Reason> {
    let fixed = args.take::<8>()?;
    Ok(Open {
        flags: le32::<0, _>(fixed).cast_signed(),
        kill_suidgid: le32::<4, _>(fixed) & open_request::KILL_SUIDGID != 0,
    })
}

/// `fuse_create_in`.
fn create<'a>(args: &mut Args<'a>, total_extlen: u16, dialect: Dialect) -> Result<Create<'a>, Reason> {
    let fixed = args.take::<16>()?;
    Ok(Create {
        name: name(args)?,
        flags: le32::<0, _>(fixed).cast_signed(),
        mode: le32::<4, _>(fixed),
        umask: le32::<8, _>(fixed),
        kill_suidgid: le32::<12, _>(fixed) & open_request::KILL_SUIDGID != 0,
        extensions: extensions::decode(args.rest(), total_extlen, dialect)?,
    })
}

/// `fuse_release_in`.
fn release(args: &mut Args<'_>) -> Result<Release, Reason> {
    let fixed = args.take::<24>()?;
    let flags = le32::<12, _>(fixed);
    Ok(Release {
        fh: le64::<0, _>(fixed),
        flags: le32::<8, _>(fixed).cast_signed(),
        flush: flags & release_flag::FLUSH != 0,
        flock_unlock: flags & release_flag::FLOCK_UNLOCK != 0,
        lock_owner: le64::<16, _>(fixed),
    })
}

/// `fuse_setupmapping_in`. Its handle is no file's: Linux names the node alone.
fn setup_mapping<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<40>()?;
    let mapping_flags = le64::<24, _>(fixed);
    Ok(Request::SetupMapping(SetupMapping {
        offset: offset(le64::<8, _>(fixed))?,
        len: le64::<16, _>(fixed),
        writable: mapping_flags & mapping_flag::WRITE != 0,
        window_offset: le64::<32, _>(fixed),
    }))
}

/// `fuse_removemapping_in` and so many `fuse_removemapping_one`.
fn remove_mapping<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let count = le32::<0, _>(args.take::<4>()?) as usize;
    let raw = args.take_bytes(count.saturating_mul(REMOVE_ONE_BYTES))?;
    Ok(Request::RemoveMapping(RemoveMappings::new(raw)))
}

/// `fuse_fsync_in`.
fn fsync(args: &mut Args<'_>) -> Result<Fsync, Reason> {
    let fixed = args.take::<16>()?;
    Ok(Fsync { fh: le64::<0, _>(fixed), data_only: le32::<8, _>(fixed) & fsync_flag::FDATASYNC != 0 })
}

/// `fuse_setxattr_in`, whose second half is there when it was negotiated.
fn setxattr<'a>(args: &mut Args<'a>, dialect: Dialect) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<8>()?;
    let size = le32::<0, _>(fixed) as usize;
    let setxattr_flags = if dialect.has(flags::SETXATTR_EXT) { le32::<0, _>(args.take::<8>()?) } else { 0 };
    let name = xattr_name(args)?;
    if size > XATTR_VALUE_BYTES_MAX {
        return Err(Reason::XattrValueTooLong);
    }
    Ok(Request::SetXattr(SetXattr {
        name,
        value: args.take_bytes(size)?,
        flags: le32::<4, _>(fixed),
        acl_kill_sgid: setxattr_flags & setxattr_flag::ACL_KILL_SGID != 0,
    }))
}

/// `fuse_init_in`, of which each generation is longer; every one starts with the versions.
fn init<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let versions = args.take::<8>()?;
    let mut init = Init { major: le32::<0, _>(versions), minor: le32::<4, _>(versions), ..Init::default() };
    if let Ok(fixed) = args.take::<8>() {
        init.max_readahead = le32::<0, _>(fixed);
        init.flags = u64::from(le32::<4, _>(fixed));
    }
    if init.flags & flags::INIT_EXT != 0 {
        init.flags |= u64::from(le32::<0, _>(args.take::<4>()?)) << 32;
    }
    Ok(Request::Init(init))
}

/// `fuse_read_in` once more. Directory offsets are the file system's own and may be anything.
fn readdir(args: &mut Args<'_>) -> Result<ReadDir, Reason> {
    let fixed = args.take::<40>()?;
    Ok(ReadDir { fh: le64::<0, _>(fixed), offset: le64::<8, _>(fixed), size: le32::<16, _>(fixed) })
}

/// `fuse_lk_in`.
fn lock(args: &mut Args<'_>) -> Result<LkRequest, Reason> {
    let fixed = args.take::<48>()?;
    let lock = LkRequest {
        fh: le64::<0, _>(fixed),
        owner: le64::<8, _>(fixed),
        start: le64::<16, _>(fixed),
        end: le64::<24, _>(fixed),
        kind: le32::<32, _>(fixed),
        pid: le32::<36, _>(fixed),
        lk_flags: le32::<40, _>(fixed),
    };
    let known = matches!(lock.kind, lock_type::READ | lock_type::WRITE | lock_type::UNLOCK);
    if known && lock.start <= lock.end && lock.end <= OFFSET_MAX { Ok(lock) } else { Err(Reason::BadLock) }
}

/// `fuse_ioctl_in` with what the caller's memory held.
fn ioctl<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<32>()?;
    Ok(Request::Ioctl(Ioctl {
        fh: le64::<0, _>(fixed),
        flags: le32::<8, _>(fixed),
        command: le32::<12, _>(fixed),
        argument: le64::<16, _>(fixed),
        input: args.take_bytes(le32::<24, _>(fixed) as usize)?,
        out_size: le32::<28, _>(fixed),
    }))
}

/// `fuse_poll_in`.
fn poll<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<24>()?;
    Ok(Request::Poll(Poll {
        fh: le64::<0, _>(fixed),
        kh: le64::<8, _>(fixed),
        flags: le32::<16, _>(fixed),
        events: le32::<20, _>(fixed),
    }))
}

/// `fuse_fallocate_in`.
fn fallocate<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<32>()?;
    Ok(Request::Fallocate(Fallocate {
        fh: le64::<0, _>(fixed),
        offset: offset(le64::<8, _>(fixed))?,
        len: offset(le64::<16, _>(fixed))?,
        mode: le32::<24, _>(fixed),
    }))
}

/// `fuse_lseek_in`.
fn lseek<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<24>()?;
    Ok(Request::Lseek(Lseek {
        fh: le64::<0, _>(fixed),
        // Not refused here: to a search a negative offset is one beyond the file (ENXIO), no malformed request.
        offset: le64::<8, _>(fixed),
        whence: le32::<16, _>(fixed),
    }))
}

/// `fuse_copy_file_range_in`.
fn copy_file_range<'a>(args: &mut Args<'a>, wide: bool) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<56>()?;
    Ok(Request::CopyFileRange(CopyFileRange {
        fh_in: le64::<0, _>(fixed),
        offset_in: offset(le64::<8, _>(fixed))?,
        nodeid_out: le64::<16, _>(fixed),
        fh_out: le64::<24, _>(fixed),
        offset_out: offset(le64::<32, _>(fixed))?,
        len: le64::<40, _>(fixed),
        flags: le64::<48, _>(fixed),
        wide,
    }))
}

/// `fuse_statx_in`.
fn statx<'a>(args: &mut Args<'a>) -> Result<Request<'a>, Reason> {
    let fixed = args.take::<24>()?;
    let opened = le32::<0, _>(fixed) & getattr_flag::FH != 0;
    Ok(Request::Statx(Statx {
        fh: opened.then_some(le64::<8, _>(fixed)),
        flags: le32::<16, _>(fixed),
        mask: le32::<20, _>(fixed),
    }))
}
