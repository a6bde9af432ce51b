//! Entries of directories: made, found, listed, renamed, removed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, linkat, makedev, mknodat, openat, renameat_with,
};
use rustix::io::Errno;

use super::Check;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("create", create),
    ("mkdir", mkdir),
    ("mknod", special_files),
    ("symlink", symbolic_link),
    ("link", hard_link),
    ("rename", rename),
    ("rename-flags", rename_flags),
    ("unlink", unlink),
    ("tmpfile", tmpfile),
    ("readdir", list),
    ("long-names", long_names),
];

fn create(place: &Path) -> Result<()> {
    let path = place.join("file");
    ensure!(!path.exists(), "it is there already");
    let mode = Mode::from_raw_mode(0o640);
    let created = openat(CWD, &path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode)?;
    File::from(created).write_all(b"content")?;
    ensure!(fs::read(&path)? == b"content");
    ensure!(fs::metadata(&path)?.mode() == 0o100_640, "mode {:o}", fs::metadata(&path)?.mode());
    ensure!(openat(CWD, &path, OFlags::CREATE | OFlags::EXCL, mode).err() == Some(Errno::EXIST));
    drop(openat(CWD, &path, OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY, mode)?);
    ensure!(fs::metadata(&path)?.len() == 0, "O_TRUNC keeps the content");
    Ok(())
}

fn mkdir(place: &Path) -> Result<()> {
    let links = fs::metadata(place)?.nlink();
    fs::create_dir(place.join("sub"))?;
    fs::create_dir_all(place.join("a/b/c"))?;
    ensure!(fs::metadata(place)?.nlink() == links + 2, "links to the parent are not counted");
    let again = fs::create_dir(place.join("sub")).map_err(|error| error.raw_os_error());
    ensure!(again == Err(Some(Errno::EXIST.raw_os_error())));
    let full = fs::remove_dir(place.join("a")).map_err(|error| error.raw_os_error());
    ensure!(full == Err(Some(Errno::NOTEMPTY.raw_os_error())), "{full:?}");
    fs::remove_dir(place.join("sub"))?;
    ensure!(!place.join("sub").exists());
    ensure!(fs::metadata(place)?.nlink() == links + 1);
    Ok(())
}

fn special_files(place: &Path) -> Result<()> {
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, place.join("fifo"), FileType::Fifo, mode, 0)?;
    mknodat(CWD, place.join("socket"), FileType::Socket, mode, 0)?;
    mknodat(CWD, place.join("file"), FileType::RegularFile, mode, 0)?;
    mknodat(CWD, place.join("null"), FileType::CharacterDevice, mode, makedev(1, 3))?;
    mknodat(CWD, place.join("disk"), FileType::BlockDevice, mode, makedev(240, 300))?;
    let kind = |name: &str| fs::symlink_metadata(place.join(name));
    ensure!(kind("fifo")?.file_type().is_fifo());
    ensure!(kind("socket")?.file_type().is_socket());
    ensure!(kind("file")?.file_type().is_file());
    ensure!(kind("null")?.file_type().is_char_device() && kind("null")?.rdev() == makedev(1, 3));
    ensure!(kind("disk")?.file_type().is_block_device() && kind("disk")?.rdev() == makedev(240, 300));
    // The guest's own device is behind the node.
    File::options().write(true).open(place.join("null"))?.write_all(b"nowhere")?;
    ensure!(fs::read(place.join("null"))?.is_empty());
    Ok(())
}

fn symbolic_link(place: &Path) -> Result<()> {
    let long = "x".repeat(4000);
    symlink("target", place.join("link"))?;
    symlink(&long, place.join("long"))?;
    ensure!(fs::read_link(place.join("link"))? == Path::new("target"));
    ensure!(fs::read_link(place.join("long"))? == Path::new(&long));
    ensure!(fs::symlink_metadata(place.join("link"))?.len() == 6);
    ensure!(File::open(place.join("link")).is_err(), "a dangling link can be opened");
    fs::write(place.join("target"), "through the link")?;
    ensure!(fs::read(place.join("link"))? == b"through the link");
    Ok(())
}

fn hard_link(place: &Path) -> Result<()> {
    fs::write(place.join("first"), "one")?;
    fs::hard_link(place.join("first"), place.join("second"))?;
    let (first, second) = (fs::metadata(place.join("first"))?, fs::metadata(place.join("second"))?);
    ensure!(first.ino() == second.ino(), "two inodes");
    ensure!(first.nlink() == 2 && second.nlink() == 2, "{} and {} links", first.nlink(), second.nlink());
    fs::write(place.join("second"), "both")?;
    ensure!(fs::read(place.join("first"))? == b"both");
    fs::remove_file(place.join("first"))?;
    ensure!(fs::metadata(place.join("second"))?.nlink() == 1);
    Ok(())
}

fn rename(place: &Path) -> Result<()> {
    let path = |name: &str| place.join(name);
    fs::create_dir(path("dir"))?;
    fs::write(path("a"), "a")?;
    fs::write(path("b"), "b")?;
    fs::rename(path("a"), path("dir/a"))?;
    ensure!(!path("a").exists() && fs::read(path("dir/a"))? == b"a");
    fs::rename(path("dir/a"), path("b"))?;
    ensure!(fs::read(path("b"))? == b"a", "the target was not replaced");
    fs::rename(path("dir"), path("moved"))?;
    ensure!(path("moved").is_dir() && !path("dir").exists());
    fs::create_dir(path("moved/inner"))?;
    let looped = fs::rename(path("moved"), path("moved/inner/deep")).map_err(|error| error.raw_os_error());
    ensure!(looped == Err(Some(Errno::INVAL.raw_os_error())), "{looped:?}");
    Ok(())
}

fn rename_flags(place: &Path) -> Result<()> {
    let path = |name: &str| place.join(name);
    fs::write(path("b"), "b")?;
    fs::write(path("c"), "c")?;
    renameat_with(CWD, path("b"), CWD, path("c"), RenameFlags::EXCHANGE)?;
    ensure!(fs::read(path("b"))? == b"c" && fs::read(path("c"))? == b"b", "they were not exchanged");
    let refused = renameat_with(CWD, path("b"), CWD, path("c"), RenameFlags::NOREPLACE);
    ensure!(refused == Err(Errno::EXIST), "{refused:?}");
    renameat_with(CWD, path("b"), CWD, path("d"), RenameFlags::NOREPLACE)?;
    ensure!(!path("b").exists() && fs::read(path("d"))? == b"c");
    Ok(())
}

fn unlink(place: &Path) -> Result<()> {
    let path = place.join("file");
    fs::write(&path, "content")?;
    fs::remove_file(&path)?;
    ensure!(!path.exists());
    let gone = fs::remove_file(&path).map_err(|error| error.raw_os_error());
    ensure!(gone == Err(Some(Errno::NOENT.raw_os_error())));
    ensure!(fs::remove_file(place).is_err(), "a directory was unlinked");
    // The same name again is another file.
    fs::write(&path, "new")?;
    ensure!(fs::read(&path)? == b"new");
    Ok(())
}

fn tmpfile(place: &Path) -> Result<()> {
    let nameless = openat(CWD, place, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600))?;
    let mut nameless = File::from(nameless);
    nameless.write_all(b"nameless")?;
    ensure!(fs::read_dir(place)?.next().is_none(), "it has a name");
    ensure!(nameless.metadata()?.nlink() == 0);
    let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless));
    linkat(CWD, by_descriptor, CWD, place.join("named"), AtFlags::SYMLINK_FOLLOW)?;
    ensure!(fs::read(place.join("named"))? == b"nameless");
    ensure!(nameless.metadata()?.nlink() == 1);
    Ok(())
}

fn list(place: &Path) -> Result<()> {
    const FILES: usize = 1500;
    let name = |number: usize| PathBuf::from(format!("entry-{number:04}-{}", "n".repeat(number % 150)));
    let wanted: BTreeSet<PathBuf> = (0..FILES).map(name).collect();
    for path in &wanted {
        File::create(place.join(path))?;
    }
    let names = || -> Result<Vec<PathBuf>> {
        fs::read_dir(place)?.map(|entry| Ok(PathBuf::from(entry?.file_name()))).collect()
    };
    for _ in 0..2 {
        let found = names()?;
        ensure!(found.len() == FILES, "{} entries", found.len());
        ensure!(found.into_iter().collect::<BTreeSet<_>>() == wanted, "other entries");
    }
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        ensure!(entry.file_type()?.is_file() && entry.metadata()?.len() == 0);
    }
    // From the start once more, on one descriptor, and dot and dot-dot are there.
    let directory = openat(CWD, place, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
    let mut stream = Dir::read_from(&directory)?;
    let first: Vec<_> = stream.by_ref().take(700).collect::<Result<_, _>>()?;
    stream.rewind();
    let all: Vec<_> = stream.collect::<Result<_, _>>()?;
    ensure!(all.len() == FILES + 2, "{} entries after going back", all.len());
    ensure!(first.iter().zip(&all).all(|(a, b)| a.file_name() == b.file_name()), "the order has changed");
    ensure!(all.iter().filter(|entry| [c".", c".."].contains(&entry.file_name())).count() == 2);
    // Removed while they are listed, each is seen at most once.
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(place)? {
        let name = entry?.file_name();
        fs::remove_file(place.join(&name))?;
        ensure!(seen.insert(name), "an entry came twice");
    }
    ensure!(seen.len() == FILES, "{} of {FILES} were seen", seen.len());
    ensure!(fs::read_dir(place)?.next().is_none());
    Ok(())
}

fn long_names(place: &Path) -> Result<()> {
    let longest = place.join("n".repeat(255));
    fs::write(&longest, "long")?;
    ensure!(fs::read(&longest)? == b"long");
    let refused = fs::write(place.join("n".repeat(256)), "longer").map_err(|error| error.raw_os_error());
    ensure!(refused == Err(Some(Errno::NAMETOOLONG.raw_os_error())), "{refused:?}");
    let odd = place.join(std::ffi::OsString::from("spaces and \u{fc} and \n newline"));
    fs::write(&odd, "odd")?;
    ensure!(fs::read(&odd)? == b"odd");
    Ok(())
}
