//! Copies against `memcpy`, and over pages that are gone.

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use sigbus::{Gone, Guard};
use std::fs::File;
use std::ptr;

const PAGE: usize = 4096;

/// A shared mapping, of a file or of nothing.
struct Mapping(*mut u8, usize);

// SAFETY: the pages are shared memory that everybody here reads and writes through raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File, len: usize) -> Mapping {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }.unwrap();
        Mapping(at.cast(), len)
    }

    /// Address space that nobody may touch.
    fn forbidden(len: usize) -> Mapping {
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE) }.unwrap();
        Mapping(at.cast(), len)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.1);
        self.0.wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { munmap(self.0.cast(), self.1) }.unwrap();
    }
}

fn guard() -> Guard {
    assert!(sigbus::supported(), "these tests are for machines with guarded copies");
    Guard::install().unwrap()
}

/// A file of `pages` pages that end in other bytes than zero.
fn file(pages: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    rustix::io::pwrite(&file, &vec![0xA5; pages * PAGE], 0).unwrap();
    file
}

#[test]
fn every_length_and_alignment_is_copied_as_memcpy_copies() {
    const MAX: usize = 8200;
    let guard = guard();
    let source: Vec<u8> = (0..MAX + 16).map(|at| (at * 7 + at / 251) as u8).collect();
    let mut copied = vec![0_u8; MAX + 32];
    let mut expected = copied.clone();
    for len in 0..=MAX {
        // Every pair of alignments for short ones, and each of them for long ones too.
        let pairs = if len < 80 { 64 } else { 8 };
        for pair in 0..pairs {
            let (from, to) = (pair % 8, if len < 80 { pair / 8 } else { (pair * 3 + len) % 8 });
            copied.fill(0xEE);
            expected.fill(0xEE);
            expected[to..to + len].copy_from_slice(&source[from..from + len]);
            // SAFETY: both ranges lie in vectors of ours, which are two.
            let outcome = unsafe { guard.copy(copied.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
            assert_eq!(outcome, Ok(()));
            assert!(copied == expected, "{len} bytes from {from} to {to}");
        }
    }
}

#[test]
fn bytes_are_read_as_they_are() {
    let guard = guard();
    for byte in 0..=255_u8 {
        // SAFETY: a byte of ours.
        assert_eq!(unsafe { guard.byte(&raw const byte) }, Ok(byte));
    }
}

#[test]
fn what_was_cut_off_a_file_is_gone_and_what_is_left_is_not() {
    let guard = guard();
    let file = file(4);
    let mapping = Mapping::of(&file, 4 * PAGE);
    let mut own = vec![0_u8; 4 * PAGE];
    // SAFETY: here and below: a mapping that is not touched otherwise, and a vector of ours.
    let mut copy = |from: usize, len: usize| unsafe { guard.copy(own.as_mut_ptr(), mapping.at(from), len) };
    assert_eq!(copy(0, 4 * PAGE), Ok(()));
    file.set_len(PAGE as u64 + 100).unwrap();
    assert_eq!(copy(0, 2 * PAGE), Ok(()), "the page with the end of the file is there");
    assert_eq!(copy(0, 2 * PAGE + 1), Err(Gone));
    assert_eq!(copy(3 * PAGE, 1), Err(Gone));
    assert_eq!(copy(3 * PAGE, 0), Ok(()), "nothing touches nothing");
    // SAFETY: as above.
    unsafe {
        assert_eq!(guard.byte(mapping.at(2 * PAGE - 1)), Ok(0));
        assert_eq!(guard.byte(mapping.at(99)), Ok(0xA5));
        assert_eq!(guard.byte(mapping.at(2 * PAGE)), Err(Gone));
    }
    file.set_len(4 * PAGE as u64).unwrap();
    assert_eq!(copy(0, 4 * PAGE), Ok(()), "a file that has grown is there again");
    assert!(own[PAGE + 100..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_destination_that_is_gone_is_an_error_too() {
    let guard = guard();
    let file = file(2);
    let mapping = Mapping::of(&file, 2 * PAGE);
    let own = vec![7_u8; 2 * PAGE];
    file.set_len(PAGE as u64).unwrap();
    // SAFETY: a mapping that is not touched otherwise, and a vector of ours.
    let copy = |to: usize, len: usize| unsafe { guard.copy(mapping.at(to), own.as_ptr(), len) };
    assert_eq!(copy(0, PAGE), Ok(()));
    assert_eq!(copy(PAGE, 1), Err(Gone));
    assert_eq!(copy(PAGE - 3, 11), Err(Gone));
    let mut bytes = [0; 4];
    rustix::io::pread(&file, &mut bytes, 0).unwrap();
    assert_eq!(bytes, [7; 4]);
}

#[test]
fn memory_that_may_not_be_touched_is_gone() {
    let guard = guard();
    let forbidden = Mapping::forbidden(PAGE);
    let mut own = [0_u8; 64];
    // SAFETY: address space of ours without memory, and an array of ours.
    unsafe {
        assert_eq!(guard.copy(own.as_mut_ptr(), forbidden.at(8), 64), Err(Gone));
        assert_eq!(guard.copy(forbidden.at(8), own.as_ptr(), 5), Err(Gone));
        assert_eq!(guard.byte(forbidden.at(0)), Err(Gone));
        // An address that no process has: the kernel tells it without saying where.
        assert_eq!(guard.byte(ptr::without_provenance(0xDEAD_0000_0000_0000)), Err(Gone));
    }
}

#[test]
fn threads_meet_a_file_that_comes_and_goes() {
    const THREADS: usize = 4;
    const TIMES: usize = 20;
    let guard = guard();
    let file = file(2);
    let mapping = Mapping::of(&file, 2 * PAGE);
    std::thread::scope(|scope| {
        let read = || {
            let (mut there, mut gone) = (0, 0);
            let mut own = vec![0_u8; PAGE];
            while there < TIMES || gone < TIMES {
                // SAFETY: a mapping that is only read, and a vector of this thread.
                match unsafe { guard.copy(own.as_mut_ptr(), mapping.at(PAGE), PAGE) } {
                    Ok(()) => there += 1,
                    Err(Gone) => gone += 1,
                }
            }
        };
        let readers: Vec<_> = (0..THREADS).map(|_| scope.spawn(read)).collect();
        // The file goes on changing until every thread has seen it both ways.
        while readers.iter().any(|reader| !reader.is_finished()) {
            for pages in [1, 2] {
                file.set_len(pages * PAGE as u64).unwrap();
                std::thread::yield_now();
            }
        }
    });
}
