//! What is known about files: attributes, extended attributes, flags, locks, the file system.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FlockOperation, IFlags, Mode, OFlags, RenameFlags, StatxFlags, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, accessat, fallocate, flock, getxattr, ioctl_getflags,
    ioctl_setflags, listxattr, openat, removexattr, renameat_with, setxattr, statvfs, statx, utimensat,
};
use rustix::io::Errno;

use super::Check;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("mode", mode),
    ("owner", owner),
    ("times", times),
    ("statx", every_attribute),
    ("birth", birth),
    ("statfs", file_system),
    ("access", access),
    ("xattr", extended_attributes),
    ("flags", flags),
    ("flock", whole_file_lock),
];

fn mode(place: &Path) -> Result<()> {
    let path = place.join("file");
    File::create(&path)?;
    for mode in [0o000, 0o777, 0o4755, 0o2755, 0o600] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        ensure!(fs::metadata(&path)?.mode() & 0o7777 == mode, "{:o}", fs::metadata(&path)?.mode());
    }
    fs::set_permissions(place, fs::Permissions::from_mode(0o1777))?;
    ensure!(fs::metadata(place)?.mode() & 0o7777 == 0o1777);
    Ok(())
}

fn owner(place: &Path) -> Result<()> {
    let path = place.join("file");
    File::create(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755))?;
    chown(&path, Some(1234), Some(5678))?;
    let metadata = fs::metadata(&path)?;
    ensure!((metadata.uid(), metadata.gid()) == (1234, 5678));
    ensure!(metadata.mode() & 0o7777 == 0o755, "set-id bits survive another owner: {:o}", metadata.mode());
    chown(&path, Some(0), None)?;
    ensure!((fs::metadata(&path)?.uid(), fs::metadata(&path)?.gid()) == (0, 5678));
    symlink("file", place.join("link"))?;
    lchown(place.join("link"), Some(42), Some(43))?;
    ensure!(fs::symlink_metadata(place.join("link"))?.uid() == 42);
    ensure!(fs::metadata(&path)?.uid() == 0, "the link's target has another owner");
    Ok(())
}

fn times(place: &Path) -> Result<()> {
    times_as(place, |nanoseconds| nanoseconds)
}

/// Linux's client keeps whole seconds since 1970 of the times that a program sets.
pub(super) fn times_in_seconds(place: &Path) -> Result<()> {
    times_as(place, |_| 0)
}

/// `kept` is what becomes of nanoseconds.
fn times_as(place: &Path, kept: fn(i64) -> i64) -> Result<()> {
    let path = place.join("file");
    File::create(&path)?;
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let set = |last_access, last_modification| {
        utimensat(CWD, &path, &Timestamps { last_access, last_modification }, AtFlags::empty())
    };
    let got = || fs::metadata(&path).map(|data| ((data.atime(), data.atime_nsec()), (data.mtime(), data.mtime_nsec())));
    set(at(1_000_000, 123_456_789), at(2_000_000, 987_654_321))?;
    let wanted = ((1_000_000, kept(123_456_789)), (2_000_000, kept(987_654_321)));
    ensure!(got()? == wanted, "{:?}", got()?);
    set(at(0, UTIME_OMIT), at(3_000_000, 0))?;
    ensure!(got()? == (wanted.0, (3_000_000, 0)), "{:?}", got()?);
    if kept(1) == 1 {
        set(at(-1000, 0), at(0, UTIME_OMIT))?;
        ensure!(got()?.0 == (-1000, 0), "a time before 1970: {:?}", got()?);
    }
    set(at(0, UTIME_NOW), at(0, UTIME_NOW))?;
    ensure!(got()?.1.0 > 1_700_000_000, "{:?}", got()?);
    Ok(())
}

fn every_attribute(place: &Path) -> Result<()> {
    let path = place.join("file");
    fs::write(&path, "content")?;
    let all = statx(CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    ensure!(all.stx_size == 7 && all.stx_nlink == 1 && all.stx_blksize >= 512);
    ensure!(all.stx_mtime.tv_sec > 1_700_000_000 && all.stx_ctime.tv_sec > 1_700_000_000);
    Ok(())
}

fn birth(place: &Path) -> Result<()> {
    let path = place.join("file");
    fs::write(&path, "content")?;
    let all = statx(CWD, &path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    // Only the protocol's own statx carries it.
    ensure!(all.stx_mask & StatxFlags::BTIME.bits() != 0, "there is no time of birth");
    ensure!(all.stx_btime.tv_sec > 1_700_000_000);
    Ok(())
}

fn file_system(place: &Path) -> Result<()> {
    let all = statvfs(place)?;
    ensure!(all.f_blocks > 0 && all.f_bsize >= 512, "{} blocks of {}", all.f_blocks, all.f_bsize);
    ensure!(all.f_namemax == 255, "names of up to {}", all.f_namemax);
    Ok(())
}

fn access(place: &Path) -> Result<()> {
    let path = place.join("file");
    File::create(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    accessat(CWD, &path, Access::READ_OK | Access::WRITE_OK, AtFlags::empty())?;
    ensure!(accessat(CWD, &path, Access::EXEC_OK, AtFlags::empty()) == Err(Errno::ACCESS));
    Ok(())
}

fn extended_attributes(place: &Path) -> Result<()> {
    let path = place.join("file");
    File::create(&path)?;
    setxattr(&path, "user.one", b"first", XattrFlags::CREATE)?;
    setxattr(&path, "user.two", b"", XattrFlags::empty())?;
    ensure!(setxattr(&path, "user.one", b"x", XattrFlags::CREATE) == Err(Errno::EXIST));
    ensure!(setxattr(&path, "user.three", b"x", XattrFlags::REPLACE) == Err(Errno::NODATA));
    let mut value = [0; 64];
    let count = getxattr(&path, "user.one", &mut value)?;
    ensure!(&value[..count] == b"first");
    ensure!(getxattr(&path, "user.two", &mut value)? == 0);
    ensure!(getxattr(&path, "user.one", &mut [0_u8; 2]) == Err(Errno::RANGE));
    ensure!(getxattr(&path, "user.none", &mut value) == Err(Errno::NODATA));
    let mut names = vec![0_u8; 4096];
    let count = listxattr(&path, &mut names)?;
    let names: BTreeSet<&[u8]> = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    ensure!(names.contains(&b"user.one"[..]) && names.contains(&b"user.two"[..]), "{names:?}");
    removexattr(&path, "user.one")?;
    ensure!(getxattr(&path, "user.one", &mut value) == Err(Errno::NODATA));
    setxattr(place, "user.dir", b"directory", XattrFlags::empty()).context("of a directory")?;
    Ok(())
}

fn flags(place: &Path) -> Result<()> {
    let path = place.join("file");
    let file = File::create(&path)?;
    let before = ioctl_getflags(&file).context("FS_IOC_GETFLAGS")?;
    ioctl_setflags(&file, before | IFlags::NODUMP).context("FS_IOC_SETFLAGS")?;
    ensure!(ioctl_getflags(&file)?.contains(IFlags::NODUMP));
    ioctl_setflags(&file, before)?;
    ensure!(!ioctl_getflags(&file)?.contains(IFlags::NODUMP));
    Ok(())
}

/// What Linux refuses by itself, as it has no message for it.
pub(super) fn not_in_9p(place: &Path) -> Result<()> {
    let path = place.join("file");
    let file = File::create(&path)?;
    File::create(place.join("other"))?;
    let mode = Mode::from_raw_mode(0o600);
    let nameless = openat(CWD, place, OFlags::TMPFILE | OFlags::RDWR, mode).err();
    ensure!(nameless == Some(Errno::OPNOTSUPP), "O_TMPFILE: {nameless:?}");
    for flags in [RenameFlags::EXCHANGE, RenameFlags::NOREPLACE] {
        let refused = renameat_with(CWD, &path, CWD, place.join("other"), flags);
        // A target that must not be there is looked for before the file system is asked.
        let wanted = if flags == RenameFlags::NOREPLACE { Errno::EXIST } else { Errno::INVAL };
        ensure!(refused == Err(wanted), "{flags:?}: {refused:?}");
    }
    let refused = renameat_with(CWD, &path, CWD, place.join("new"), RenameFlags::NOREPLACE);
    ensure!(refused == Err(Errno::INVAL), "NOREPLACE: {refused:?}");
    let refused = fallocate(&file, FallocateFlags::empty(), 0, 4096);
    ensure!(refused == Err(Errno::OPNOTSUPP), "fallocate: {refused:?}");
    let refused = ioctl_getflags(&file).err();
    ensure!(refused == Some(Errno::NOTTY), "FS_IOC_GETFLAGS: {refused:?}");
    let all = statx(CWD, &path, AtFlags::empty(), StatxFlags::BTIME)?;
    ensure!(all.stx_mask & StatxFlags::BTIME.bits() == 0, "there is a time of birth");
    Ok(())
}

fn whole_file_lock(place: &Path) -> Result<()> {
    let path = place.join("file");
    let (first, second) = (File::create(&path)?, File::open(&path)?);
    flock(&first, FlockOperation::NonBlockingLockExclusive)?;
    let taken = flock(&second, FlockOperation::NonBlockingLockShared);
    ensure!(taken == Err(Errno::WOULDBLOCK), "{taken:?}");
    drop(first);
    flock(&second, FlockOperation::NonBlockingLockShared).context("after the holder has closed")?;
    Ok(())
}
