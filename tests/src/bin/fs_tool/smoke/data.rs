//! What is in files: read, written, mapped, allocated, copied.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate, fdatasync, fsync, syncfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use super::Check;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("read-write", read_write),
    ("large", large),
    ("append", append),
    ("truncate", truncate),
    ("sync", sync),
    ("fallocate", allocate),
    ("seek-data", holes),
    ("copy-range", copy_range),
    ("private-mapping", private_mapping),
];

const PAGE: usize = 4096;

fn fresh(place: &Path) -> Result<File> {
    Ok(File::options().read(true).write(true).create_new(true).open(place.join("file"))?)
}

/// Bytes that differ at every place.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect()
}

fn read_write(place: &Path) -> Result<()> {
    let file = fresh(place)?;
    file.write_all_at(b"hello", 0)?;
    file.write_all_at(b"there", 10_000)?;
    ensure!(file.metadata()?.len() == 10_005);
    let mut bytes = vec![0xff; 10_010];
    let mut count = 0;
    while let Ok(more @ 1..) = file.read_at(&mut bytes[count..], count as u64) {
        count += more;
    }
    ensure!(count == 10_005, "{count} bytes can be read");
    ensure!(&bytes[..5] == b"hello" && &bytes[10_000..count] == b"there");
    ensure!(bytes[5..10_000].iter().all(|byte| *byte == 0), "a hole is not empty");
    ensure!(file.read_at(&mut bytes, 20_000)? == 0, "there is something behind the end");
    drop(file);
    let readable = File::open(place.join("file"))?;
    ensure!(readable.write_at(b"x", 0).is_err(), "written through a descriptor for reading");
    Ok(())
}

fn large(place: &Path) -> Result<()> {
    // More than any one request carries, and not aligned to anything.
    let content = pattern((5 << 20) + 4321);
    fresh(place)?.write_all(&content)?;
    ensure!(fs::read(place.join("file"))? == content, "other bytes came back");
    let mut file = File::open(place.join("file"))?;
    file.seek(SeekFrom::Start(1_234_567))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    ensure!(tail == content[1_234_567..], "other bytes came back from the middle");
    Ok(())
}

fn append(place: &Path) -> Result<()> {
    let path = place.join("file");
    let open = || File::options().append(true).create(true).open(&path);
    let (mut first, mut second) = (open()?, open()?);
    for number in 0..10 {
        write!(first, "a{number}")?;
        write!(second, "b{number}")?;
    }
    let wanted: String = (0..10).map(|number| format!("a{number}b{number}")).collect();
    ensure!(fs::read_to_string(&path)? == wanted, "{}", fs::read_to_string(&path)?);
    Ok(())
}

fn truncate(place: &Path) -> Result<()> {
    let file = fresh(place)?;
    file.write_all_at(&pattern(9000), 0)?;
    file.set_len(100)?;
    ensure!(file.metadata()?.len() == 100);
    file.set_len(9000)?;
    let content = fs::read(place.join("file"))?;
    ensure!(content[..100] == pattern(100) && content[100..].iter().all(|byte| *byte == 0), "old bytes came back");
    nix::unistd::truncate(&place.join("file"), 7).context("by name")?;
    ensure!(file.metadata()?.len() == 7);
    Ok(())
}

fn sync(place: &Path) -> Result<()> {
    let file = fresh(place)?;
    file.write_all_at(b"durable", 0)?;
    fsync(&file).context("fsync")?;
    fdatasync(&file).context("fdatasync")?;
    fsync(File::open(place)?).context("fsync of a directory")?;
    syncfs(&file).context("syncfs")?;
    Ok(())
}

fn allocate(place: &Path) -> Result<()> {
    let file = fresh(place)?;
    fallocate(&file, FallocateFlags::empty(), 0, 64 << 10).context("fallocate")?;
    ensure!(file.metadata()?.len() == 64 << 10);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 64 << 10, 64 << 10).context("KEEP_SIZE")?;
    ensure!(file.metadata()?.len() == 64 << 10);
    file.write_all_at(&pattern(64 << 10), 0)?;
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8192, 4096).context("PUNCH_HOLE")?;
    let mut wanted = pattern(64 << 10);
    wanted[8192..12288].fill(0);
    ensure!(fs::read(place.join("file"))? == wanted, "the hole is elsewhere");
    Ok(())
}

fn holes(place: &Path) -> Result<()> {
    let file = fresh(place)?;
    file.set_len(1 << 20)?;
    file.write_all_at(&pattern(PAGE), 512 << 10)?;
    fsync(&file)?;
    let seek = |from| rustix::fs::seek(&file, from);
    ensure!(seek(rustix::fs::SeekFrom::Data(0))? == 512 << 10, "data is elsewhere");
    ensure!(seek(rustix::fs::SeekFrom::Hole(512 << 10))? == (512 << 10) + PAGE as u64, "the hole is elsewhere");
    ensure!(seek(rustix::fs::SeekFrom::Data(768 << 10)) == Err(Errno::NXIO), "data in a hole");
    Ok(())
}

fn copy_range(place: &Path) -> Result<()> {
    let content = pattern(300_000);
    let from = fresh(place)?;
    from.write_all_at(&content, 0)?;
    let to = File::options().read(true).write(true).create_new(true).open(place.join("copy"))?;
    let (mut from_offset, mut to_offset) = (1000, 77);
    while to_offset < 77 + 250_000 {
        let left = (77 + 250_000 - to_offset) as usize;
        let copied = copy_file_range(&from, Some(&mut from_offset), &to, Some(&mut to_offset), left)?;
        ensure!(copied > 0, "nothing was copied at {to_offset}");
    }
    let copy = fs::read(place.join("copy"))?;
    ensure!(copy.len() == 250_077 && copy[77..] == content[1000..251_000], "another copy");
    Ok(())
}

/// Maps the first page of `file`.
fn map(file: impl AsFd, protection: ProtFlags, flags: MapFlags) -> Result<Mapping, Errno> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { mmap(ptr::null_mut(), PAGE, protection, flags, file, 0)? };
    Ok(Mapping(start.cast()))
}

struct Mapping(*mut u8);

impl Mapping {
    fn get(&self, at: usize) -> u8 {
        assert!(at < PAGE);
        // SAFETY: inside the page, which stays mapped as long as `self`.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u8) {
        assert!(at < PAGE);
        // SAFETY: as above, and only called on mappings made writable.
        unsafe { self.0.add(at).write_volatile(value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { munmap(self.0.cast(), PAGE) }.expect("a mapping can be removed");
    }
}

fn private_mapping(place: &Path) -> Result<()> {
    let file = fresh(place)?;
    file.write_all_at(&pattern(PAGE), 0)?;
    let mapping = map(&file, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?;
    ensure!((0..PAGE).all(|at| mapping.get(at) == pattern(PAGE)[at]), "other bytes are mapped");
    mapping.set(0, !pattern(1)[0]);
    ensure!(fs::read(place.join("file"))? == pattern(PAGE), "a private change went to the file");
    Ok(())
}

pub(super) fn shared_mapping(place: &Path) -> Result<()> {
    let file = fresh(place)?;
    file.write_all_at(&pattern(PAGE), 0)?;
    let mapping = map(&file, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
    ensure!((0..PAGE).all(|at| mapping.get(at) == pattern(PAGE)[at]), "other bytes are mapped");
    mapping.set(100, 1);
    mapping.set(101, 2);
    // SAFETY: the mapping's own range.
    unsafe { msync(mapping.0.cast(), PAGE, MsyncFlags::SYNC) }.context("msync")?;
    let mut wanted = pattern(PAGE);
    wanted[100..102].copy_from_slice(&[1, 2]);
    ensure!(fs::read(place.join("file"))? == wanted, "the change is not in the file");
    file.write_all_at(&[9], 200)?;
    ensure!(mapping.get(200) == 9, "what is written does not show in the mapping");
    Ok(())
}

/// Without cached pages a shared mapping cannot be kept true, and is refused.
pub(super) fn no_shared_mapping(place: &Path, error: Errno) -> Result<()> {
    let file = fresh(place)?;
    file.write_all_at(&pattern(PAGE), 0)?;
    let refused = map(&file, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED).err();
    ensure!(refused == Some(error), "{refused:?}");
    Ok(())
}
