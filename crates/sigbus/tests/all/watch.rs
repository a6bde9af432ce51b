//! Mappings that are watched survive the loss of their pages; others do not.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sigbus::Watch;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr;

const PAGE: usize = 4096;

/// Shared memory that can be shortened, as a frontend's can.
struct Shared {
    file: OwnedFd,
    start: *mut u8,
    len: usize,
}

// SAFETY: everybody here reads and writes through raw pointers.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(pages: usize) -> Shared {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let len = pages * PAGE;
        ftruncate(&file, len as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) }.unwrap();
        Shared { file, start: start.cast(), len }
    }

    fn watch(&self) -> Watch {
        // SAFETY: all of a mapping that is unmapped after the watch has ended, in each test.
        unsafe { Watch::new(self.start, self.len) }.unwrap()
    }

    fn read(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(at).read_volatile() }
    }

    fn write(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(at).write_volatile(byte) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { munmap(self.start.cast(), self.len) }.unwrap();
    }
}

#[test]
fn memory_whose_file_was_shortened_becomes_zeroes() {
    let memory = Shared::new(4);
    let watch = memory.watch();
    for page in 0..4 {
        memory.write(page * PAGE, 0x5a);
    }
    ftruncate(&memory.file, PAGE as u64).unwrap();
    assert_eq!(memory.read(0), 0x5a, "what is there is still shared");
    assert!(!watch.is_gone());
    let before = sigbus::lost();
    assert_eq!(memory.read(2 * PAGE + 1), 0);
    assert!(watch.is_gone());
    assert!(sigbus::lost() > before);
    assert_eq!(memory.read(0), 0, "all of it is replaced");
    memory.write(3 * PAGE, 7);
    assert_eq!(memory.read(3 * PAGE), 7);
    drop(watch);
}

#[test]
fn only_what_is_gone_is_replaced() {
    // More than one block of slots has.
    let all: Vec<(Shared, Watch)> = (0..150)
        .map(|_| {
            let memory = Shared::new(1);
            memory.write(0, 1);
            let watch = memory.watch();
            (memory, watch)
        })
        .collect();
    for (at, (memory, _)) in all.iter().enumerate() {
        if at % 3 == 0 {
            ftruncate(&memory.file, 0).unwrap();
        }
        assert_eq!(memory.read(0), u8::from(at % 3 != 0));
    }
    for (at, (_, watch)) in all.iter().enumerate() {
        assert_eq!(watch.is_gone(), at % 3 == 0, "mapping {at}");
    }
    for (memory, watch) in all {
        drop(watch);
        drop(memory);
    }
    // Slots are used again, from the beginning.
    let memory = Shared::new(1);
    let watch = memory.watch();
    assert!(!watch.is_gone());
    drop(watch);
}

#[test]
fn many_threads_lose_the_same_memory() {
    for _ in 0..50 {
        let memory = Shared::new(16);
        let watch = memory.watch();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    for at in 0..16 {
                        memory.write((at + thread) % 16 * PAGE, 1);
                        std::hint::black_box(memory.read(at * PAGE));
                    }
                });
            }
            ftruncate(&memory.file, 0).unwrap();
        });
        // The threads may have been faster than the file was short.
        memory.read(0);
        assert!(watch.is_gone());
        drop(watch);
    }
}

#[test]
fn an_empty_range_is_not_watched() {
    // SAFETY: no memory at all.
    assert!(unsafe { Watch::new(ptr::null_mut(), 0) }.is_none());
    // SAFETY: as above: it does not end in the address space.
    assert!(unsafe { Watch::new(ptr::without_provenance_mut(usize::MAX), 2) }.is_none());
}

#[test]
#[ignore = "ends its process"]
fn child_watched_no_longer() {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).unwrap();
    let memory = Shared::new(1);
    drop(memory.watch());
    ftruncate(&memory.file, 0).unwrap();
    memory.read(0);
}

#[test]
fn memory_that_is_not_watched_ends_the_process() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "watch::child_watched_no_longer", "--ignored", "--test-threads=1", "--nocapture"]);
    assert_eq!(child.output().unwrap().status.signal(), Some(libc::SIGBUS));
}
