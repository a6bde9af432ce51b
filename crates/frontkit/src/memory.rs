//! Memory shared with a server: one memfd, accessed by guest address or dealt out in areas that each have one owner.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vhost::VhostUserMemoryRegionInfo;

/// Addresses in the frontend differ from the guest's by this, so that a server that mixes them up shows.
pub const USER_BASE: u64 = 0x7f00_0000_0000;
/// Areas begin at multiples of this, as pages do in a guest.
const ALIGNMENT: usize = 4096;
/// A file with areas is a multiple of this, as QEMU wants its memory.
const FILE_UNIT: u64 = 2 << 20;

/// One region of guest memory. It outlives the servers that map it.
#[derive(Debug)]
pub struct Memory {
    file: File,
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes at the beginning that are accessed by address; behind them lie areas.
    open_bytes: usize,
    guest_addr: u64,
    /// Where it begins in the file.
    file_at: u64,
}

// SAFETY: the mapping lives as long as the value, which accesses it atomically alone, and no area of it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `bytes` bytes that the guest sees at `guest_addr`, sparse until they are touched.
    pub fn new(guest_addr: u64, bytes: u64) -> Result<Self> {
        let len = usize::try_from(bytes)?;
        Self::map(guest_addr, 0, bytes, len, MapFlags::empty())
    }

    /// Maps memory from `file_at` on, a multiple of a page, of a file that the guest sees in part or as a whole: `open`
    /// bytes that are accessed by address, and one area for each of `sizes`. Every page is touched, so that nobody pays
    /// for that later.
    pub fn with_areas(guest_addr: u64, file_at: u64, open: usize, sizes: &[usize]) -> Result<(Arc<Self>, Vec<Area>)> {
        let rounded = || sizes.iter().map(|size| size.next_multiple_of(ALIGNMENT));
        let open = open.next_multiple_of(ALIGNMENT);
        let bytes = (open + rounded().sum::<usize>()).max(ALIGNMENT);
        let file_bytes = (file_at + bytes as u64).next_multiple_of(FILE_UNIT);
        let mut memory = Self::map(guest_addr, file_at, file_bytes, bytes, MapFlags::POPULATE)?;
        memory.open_bytes = open;
        let memory = Arc::new(memory);
        let mut next = open;
        let areas = rounded().map(|len| {
            let area = Area { memory: Arc::clone(&memory), offset: next, len };
            next += len;
            area
        });
        let areas = areas.collect();
        Ok((memory, areas))
    }

    fn map(guest_addr: u64, file_at: u64, file_bytes: u64, bytes: usize, flags: MapFlags) -> Result<Self> {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).context("cannot make a memfd")?);
        file.set_len(file_bytes).context("cannot size the memfd")?;
        // SAFETY: a fresh mapping, and the file does not end before it.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | flags, &file, file_at)
                .context("cannot map guest memory")?
        };
        let start = NonNull::new(start.cast()).context("a mapping is not at address zero")?;
        Ok(Self { file, start, bytes, open_bytes: bytes, guest_addr, file_at })
    }

    /// The region as vhost-user names it.
    pub fn info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: self.guest_addr,
            memory_size: self.bytes as u64,
            userspace_addr: USER_BASE + self.guest_addr,
            mmap_offset: self.file_at,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// First guest address.
    pub fn guest_addr(&self) -> u64 {
        self.guest_addr
    }

    /// The file behind it. What is cut off its end must not be touched any more.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path by which another process of this user can open the file as long as it is open here, and its length in bytes.
    pub fn path(&self) -> Result<(PathBuf, u64)> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        Ok((path.into(), self.file.metadata().context("cannot look at the memfd")?.len()))
    }

    /// The place of `len` bytes at `guest_addr`. Addresses are ours, not a guest's: a wrong one is a mistake of the caller.
    #[inline]
    fn place(&self, guest_addr: u64, len: usize) -> *mut u8 {
        let at = guest_addr.wrapping_sub(self.guest_addr);
        let end = at.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.open_bytes as u64),
            "{len} bytes at {guest_addr:#x} are outside guest memory"
        );
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(at as usize) }
    }

    /// Numbers at `guest_addr`, which fits their alignment.
    #[inline]
    pub(crate) fn fields<T: Fields>(&self, guest_addr: u64) -> &T {
        let place = self.place(guest_addr, size_of::<T>()).cast::<T>();
        assert!(place.is_aligned(), "a field at {guest_addr:#x} is not aligned");
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned. Any bytes are such numbers, and nobody
        // here accesses these bytes otherwise than atomically. Two threads of a frontend that lies may do so in different sizes, which
        // the language leaves open and every processor that this runs on does as it is told.
        unsafe { &*place }
    }

    /// As [`fields`](Self::fields), `len` times one behind the other, and for longer than a borrow.
    pub(crate) fn row<T: Fields>(self: &Arc<Self>, guest_addr: u64, len: usize) -> Row<T> {
        let place = self.place(guest_addr, size_of::<T>() * len).cast::<T>();
        assert!(place.is_aligned(), "a field at {guest_addr:#x} is not aligned");
        Row { start: place, len, _memory: Arc::clone(self) }
    }

    /// `len` bytes at `guest_addr`, most of them in words: one by one they take several times as long.
    fn pieces(&self, guest_addr: u64, len: usize) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        // SAFETY: as for `fields`, and any words are bytes.
        unsafe { slice::from_raw_parts(self.place(guest_addr, len).cast::<AtomicU8>(), len).align_to() }
    }

    /// Writes bytes, as a guest that does not care who looks.
    pub fn write(&self, guest_addr: u64, data: &[u8]) {
        let (front, words, back) = self.pieces(guest_addr, data.len());
        let store = |places: &[AtomicU8], data: &[u8]| {
            places.iter().zip(data).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
        };
        let (first, rest) = data.split_at(front.len());
        store(front, first);
        let (whole, last) = rest.as_chunks();
        words.iter().zip(whole).for_each(|(word, data)| word.store(u64::from_ne_bytes(*data), Ordering::Relaxed));
        store(back, last);
    }

    /// Fills `data` with the bytes at `guest_addr`, whoever writes them now.
    pub fn read_into(&self, guest_addr: u64, data: &mut [u8]) {
        let (front, words, back) = self.pieces(guest_addr, data.len());
        let load = |places: &[AtomicU8], data: &mut [u8]| {
            places.iter().zip(data).for_each(|(place, byte)| *byte = place.load(Ordering::Relaxed));
        };
        let (first, rest) = data.split_at_mut(front.len());
        load(front, first);
        let (whole, last) = rest.as_chunks_mut();
        words.iter().zip(whole).for_each(|(word, data)| *data = word.load(Ordering::Relaxed).to_ne_bytes());
        load(back, last);
    }

    /// As [`read_into`](Self::read_into), `len` bytes.
    pub fn read(&self, guest_addr: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.read_into(guest_addr, &mut data);
        data
    }

    /// One byte.
    pub fn read_byte(&self, guest_addr: u64) -> u8 {
        self.fields::<AtomicU8>(guest_addr).load(Ordering::Relaxed)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping; areas hold the value alive, so that none is left, nor any other reference into it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Numbers that were found once: who accesses them often does not look for them each time.
#[derive(Debug)]
pub(crate) struct Row<T> {
    start: *const T,
    len: usize,
    /// Keeps the mapping.
    _memory: Arc<Memory>,
}

// SAFETY: as for the memory that it is a part of.
unsafe impl<T: Fields> Send for Row<T> {}
// SAFETY: as above.
unsafe impl<T: Fields> Sync for Row<T> {}

impl<T: Fields> Deref for Row<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: as for `Memory::fields`: `Memory::row` has looked at all of it.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

/// What is accessed in memory: numbers that are not torn, whoever else accesses them.
pub(crate) trait Fields {}
impl Fields for AtomicU8 {}
impl Fields for AtomicU16 {}
impl Fields for [AtomicU32; 2] {}
impl Fields for [AtomicU64; 2] {}

/// A part of the memory with one owner on our side.
///
/// Offsets outside it are a mistake of the caller and panic: none of them comes from a server.
#[derive(Debug)]
pub struct Area {
    memory: Arc<Memory>,
    offset: usize,
    len: usize,
}

impl Area {
    /// Where byte `at` is for the server's requests.
    #[inline]
    pub fn guest_addr(&self, at: usize) -> u64 {
        self.memory.guest_addr + (self.offset + at) as u64
    }

    #[inline]
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{len} bytes at {at} are outside the area");
        // SAFETY: inside the area, as just checked, and the area is inside the mapping.
        unsafe { self.memory.start.as_ptr().add(self.offset + at) }
    }

    /// Bytes that no request in flight lets the server write.
    #[inline]
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: inside the mapping; the owner writes through `&mut self` only, and the server under test writes
        // only what requests in flight name.
        unsafe { slice::from_raw_parts(self.place(at, len), len) }
    }

    /// Bytes that no request in flight names.
    #[inline]
    pub fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: as `bytes`, and `&mut self` makes the slice the only one.
        unsafe { slice::from_raw_parts_mut(self.place(at, len), len) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_was_written_is_read_wherever_it_begins_and_ends() {
        let memory = Memory::new(0x2000, 4096).unwrap();
        let data: Vec<u8> = (1..=40).collect();
        for (from, len) in [(0, 40), (3, 2), (3, 33), (8, 8), (5, 3)] {
            memory.write(0x2800, &[0; 64]);
            memory.write(0x2800 + from, &data[..len]);
            let expected = [&vec![0; from as usize][..], &data[..len], &vec![0; 64 - len - from as usize]].concat();
            assert_eq!(memory.read(0x2800, 64), expected);
            assert_eq!(memory.read(0x2800 + from, len), data[..len]);
            assert_eq!(memory.read_byte(0x2800 + from), 1);
        }
    }

    #[test]
    #[should_panic(expected = "outside guest memory")]
    fn nothing_beyond_its_end_is_touched() {
        Memory::new(0, 4096).unwrap().write(4090, &[0; 7]);
    }

    #[test]
    #[should_panic(expected = "outside guest memory")]
    fn nothing_before_its_beginning_is_touched() {
        Memory::new(4096, 4096).unwrap().read(4090, 6);
    }

    #[test]
    fn areas_lie_side_by_side_in_the_memory_that_is_shared() {
        let (memory, mut areas) = Memory::with_areas(1 << 30, 0, 100, &[10, 5000]).unwrap();
        assert_eq!(areas[1].guest_addr(3), (1 << 30) + 8195);
        assert_eq!(memory.info().memory_size, 4 * 4096);
        areas[1].bytes_mut(1, 3).copy_from_slice(b"abc");
        let mut seen = [0; 3];
        memory.file().read_exact_at(&mut seen, 8193).unwrap();
        assert_eq!(&seen, b"abc");
        assert_eq!(areas[0].bytes(0, 4096), [0; 4096]);
    }

    #[test]
    fn a_machine_finds_what_lies_at_a_guest_address_there_in_the_file() {
        let (memory, mut areas) = Memory::with_areas(2 << 20, 2 << 20, 10, &[5000]).unwrap();
        areas[0].bytes_mut(5, 3).copy_from_slice(b"abc");
        let (path, bytes) = memory.path().unwrap();
        assert!(bytes.is_multiple_of(FILE_UNIT));
        let file = File::open(path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes);
        let mut seen = [0; 3];
        file.read_exact_at(&mut seen, areas[0].guest_addr(5)).unwrap();
        assert_eq!(&seen, b"abc");
    }

    #[test]
    #[should_panic(expected = "outside the area")]
    fn an_area_ends_where_the_next_begins() {
        let (_memory, areas) = Memory::with_areas(0, 0, 0, &[10, 10]).unwrap();
        areas[0].bytes(4090, 7);
    }

    #[test]
    #[should_panic(expected = "outside guest memory")]
    fn areas_are_not_accessed_by_address() {
        let (memory, areas) = Memory::with_areas(0, 0, 10, &[10]).unwrap();
        memory.read_byte(areas[0].guest_addr(0));
    }
}
