//! Reads through a mapping answer what a call would have answered, whatever happens to the file.

use crate::common::{Fixture, c, is_root};
use passthrough::{Change, Handle, Node, OpenFile, Options, ROOT, Source, Tree};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const SECOND_NS: u64 = 1_000_000_000;
/// More reads than it takes until a file is tried again after it failed.
const MANY: usize = 20_000;

/// Places whose files are mapped. tmpfs is everywhere.
fn places() -> Vec<PathBuf> {
    let mapped = |place: &PathBuf| {
        let magic = rustix::fs::statfs(place).unwrap().f_type;
        [0x0102_1994, 0xEF53, 0x9123_683E].contains(&magic)
    };
    [PathBuf::from("/dev/shm"), std::env::temp_dir()].into_iter().filter(mapped).collect()
}

/// Never 0, and another for every byte of a few pages.
fn pattern(at: usize) -> u8 {
    (at % 251 + at / PAGE % 4 + 1) as u8
}

fn content(range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(pattern).collect()
}

/// Mappings of this process that show something below a path.
fn mappings_under(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(path.to_str().unwrap())).count()
}

/// An open file of a tree, and the clock that its reader sees.
struct Open<'a> {
    tree: &'a Tree,
    node: Node,
    handle: Handle,
    file: Arc<OpenFile>,
    now_ns: u64,
}

impl<'a> Open<'a> {
    fn new(tree: &'a Tree, name: &str, flags: i32) -> Open<'a> {
        let node = tree.lookup(ROOT, &c(name)).unwrap().node;
        let handle = tree.open(node, flags, false).unwrap().handle;
        Open { tree, node, handle, file: tree.file(handle).unwrap(), now_ns: 100 * SECOND_NS }
    }

    /// What a read through the mapping answers, if it does, in two pieces.
    fn mapped(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0xEE; len];
        let (front, back) = bytes.split_at_mut(len / 3);
        let piece = |part: &mut [u8]| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        let pieces = [piece(front), piece(back)];
        // SAFETY: the pieces are parts of a vector that nobody else uses.
        let read = unsafe { self.file.read_mapped(&pieces, offset as u64, self.now_ns) }?;
        assert!(bytes[read..].iter().all(|&byte| byte == 0xEE), "more was written than was read");
        bytes.truncate(read);
        Some(bytes)
    }

    fn called(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = rustix::io::pread(&*self.file, &mut bytes, offset as u64).unwrap();
        bytes.truncate(read);
        bytes
    }

    /// Reads until the mapping answers.
    fn warm(&self) -> bool {
        (0..MANY).any(|_| self.mapped(0, PAGE).is_some())
    }

    /// Compares both ways all over the file and behind it.
    fn check(&mut self, size: usize) {
        self.now_ns += 2 * SECOND_NS;
        for len in [1, 100, PAGE - 1, PAGE, PAGE + 1, 4 * PAGE] {
            let around = [0, 1, PAGE - 1, PAGE, size / 2, size.saturating_sub(len), size, size + 1, size + PAGE];
            for offset in around.into_iter().chain([size.saturating_sub(1), size.saturating_sub(PAGE)]) {
                let expected = self.called(offset, len);
                let read = self.mapped(offset, len);
                assert!(read.is_none_or(|read| read == expected), "{len} bytes at {offset} of {size}");
            }
        }
    }

    /// As [`Open::check`], where the mapping has to answer.
    fn check_mapped(&mut self, size: usize) {
        self.check(size);
        assert!(self.warm());
        self.check(size);
        assert!(self.warm());
        let expected = self.called(0, PAGE);
        assert_eq!(self.mapped(0, PAGE), Some(expected));
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.tree.release(self.handle, None);
    }
}

/// A file of `size` bytes in a fresh tree, in every place.
fn with_file(size: usize, test: impl Fn(&Fixture, &File, &mut Open<'_>)) {
    for place in places() {
        println!("{}", place.display());
        let at = Fixture::within(&place, Options::default());
        std::fs::write(at.path("file"), content(0..size)).unwrap();
        let host = File::options().read(true).write(true).open(at.path("file")).unwrap();
        test(&at, &host, &mut Open::new(&at.tree, "file", libc::O_RDWR));
    }
}

#[test]
fn a_file_is_mapped_when_it_was_read_often_and_unmapped_when_it_is_closed() {
    with_file(8 * PAGE, |at, _, open| {
        assert_eq!(open.mapped(0, PAGE), None, "once is not often");
        assert_eq!((at.tree.describe().windows, mappings_under(at.dir.path())), (0, 0));
        assert!(open.warm());
        assert_eq!((at.tree.describe().windows, mappings_under(at.dir.path())), (1, 1));
        open.check_mapped(8 * PAGE);
        assert_eq!(open.mapped(0, 5 * PAGE), None, "a long read");
        assert_eq!(open.mapped(0, 0), None);
        assert_eq!(open.mapped(usize::MAX - 100, PAGE), None, "an offset that no file has");
        let last = std::mem::replace(&mut open.file, at.tree.file(open.handle).unwrap());
        drop(last);
        let (handle, again) = (open.handle, Open::new(&at.tree, "file", libc::O_RDONLY));
        open.handle = again.handle;
        open.file = Arc::clone(&again.file);
        at.tree.release(handle, None);
        assert_eq!((at.tree.describe().windows, mappings_under(at.dir.path())), (0, 0));
    });
}

#[test]
fn the_end_of_the_file_is_where_it_is() {
    with_file(8 * PAGE, |_, host, open| {
        let mut size = 8 * PAGE;
        open.check_mapped(size);
        // Cut off within a page, at its end, and grown by nothing but zeros.
        for new in [7 * PAGE + 123, 7 * PAGE, 4 * PAGE + 1, 4 * PAGE - 1, 6 * PAGE + 77, 2 * PAGE] {
            host.set_len(new as u64).unwrap();
            size = new;
            open.check(size);
        }
        // Without holes, it is mapped everywhere again.
        host.write_all_at(&content(0..size), 0).unwrap();
        open.check_mapped(size);
        // Grown by what is written, in small and large pieces: behind what was mapped first, too.
        for more in [1, 99, PAGE - 101, 1, PAGE, 3 * PAGE + 5, 100 * PAGE, 1] {
            host.write_all_at(&content(size..size + more), size as u64).unwrap();
            size += more;
            open.check_mapped(size);
        }
        host.set_len(0).unwrap();
        open.check(0);
        assert_eq!(open.called(0, PAGE), b"");
        host.write_all_at(&content(0..3 * PAGE), 0).unwrap();
        open.check_mapped(3 * PAGE);
    });
}

#[test]
fn a_growing_file_is_mapped_a_few_times_and_then_read_by_calls() {
    with_file(2 * PAGE, |at, host, open| {
        let mut size = 2 * PAGE;
        open.check_mapped(size);
        for _ in 0..6 {
            let new = 3 * size;
            host.write_all_at(&content(size..new), size as u64).unwrap();
            size = new;
            open.now_ns += 2 * SECOND_NS;
            for round in 0..300 {
                let expected = open.called(size - PAGE, PAGE);
                assert!(open.mapped(size - PAGE, PAGE).is_none_or(|read| read == expected), "round {round}");
            }
            open.check(size);
        }
        assert_eq!(mappings_under(at.dir.path()), 4);
        open.check_mapped(size);
    });
}

#[test]
fn zeros_and_holes_are_bytes_like_others() {
    with_file(16 * PAGE, |_, host, open| {
        open.check_mapped(16 * PAGE);
        host.write_all_at(&[0; 3 * PAGE], 5 * PAGE as u64 + 17).unwrap();
        open.check_mapped(16 * PAGE);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(host, punch, 9 * PAGE as u64, 2 * PAGE as u64).unwrap();
        fallocate(host, punch, 12 * PAGE as u64 + 100, 50).unwrap();
        open.check(16 * PAGE);
        // An end that is all zeros is an end all the same.
        host.write_all_at(&[0; 2 * PAGE], 14 * PAGE as u64).unwrap();
        host.set_len(15 * PAGE as u64 + 9).unwrap();
        open.check(15 * PAGE + 9);
    });
}

#[test]
fn what_the_client_does_itself_is_seen_at_once() {
    with_file(16 * PAGE, |at, host, open| {
        open.check_mapped(16 * PAGE);
        let shorter = Change { size: Some(9 * PAGE as u64 + 50), ..Change::default() };
        at.tree.set_attributes(open.node, None, &shorter).unwrap();
        assert_eq!(open.mapped(9 * PAGE, PAGE), None);
        open.check_mapped(9 * PAGE + 50);
        host.write_all_at(&content(0..16 * PAGE), 0).unwrap();
        open.check_mapped(16 * PAGE);
        let emptied = at.tree.open(open.node, libc::O_RDWR | libc::O_TRUNC, false).unwrap();
        open.check(0);
        at.tree.release(emptied.handle, None);
    });
}

#[test]
fn reading_takes_no_memory_for_holes() {
    let at = Fixture::within(Path::new("/dev/shm"), Options::default());
    std::fs::write(at.path("file"), content(0..64 * PAGE)).unwrap();
    let blocks = || std::fs::metadata(at.path("file")).unwrap().blocks();
    let mut open = Open::new(&at.tree, "file", libc::O_RDWR);
    open.check_mapped(64 * PAGE);
    let punch = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE).bits();
    at.tree.fallocate(open.handle, punch, 8 * PAGE as u64, 16 * PAGE as u64).unwrap();
    let left = blocks();
    assert_eq!(left, 48 * PAGE as u64 / 512);
    for page in 0..64 {
        open.now_ns += 2 * SECOND_NS;
        for _ in 0..200 {
            assert_eq!(open.mapped(page * PAGE, PAGE), None);
        }
    }
    assert_eq!(blocks(), left);
    // A file that never was whole is not mapped in the first place.
    File::create(at.path("sparse")).unwrap().set_len(64 * PAGE as u64).unwrap();
    assert!(!Open::new(&at.tree, "sparse", libc::O_RDONLY).warm());
    assert_eq!(std::fs::metadata(at.path("sparse")).unwrap().blocks(), 0);
}

#[test]
fn one_read_a_second_is_a_call_and_slow_ones_are_followed_by_calls() {
    with_file(4 * PAGE, |_, _, open| {
        assert!(open.warm());
        assert!(open.mapped(0, PAGE).is_some());
        open.now_ns += SECOND_NS;
        assert_eq!(open.mapped(0, PAGE), None, "so that its time of access is kept");
        assert!(open.mapped(0, PAGE).is_some());
        open.file.mapped_read_took(10_000, PAGE, open.now_ns);
        open.file.mapped_read_took(1_000_000, PAGE, open.now_ns);
        assert!(open.mapped(0, PAGE).is_some(), "once may be an accident");
        open.now_ns += SECOND_NS / 2;
        open.file.mapped_read_took(1_000_000, PAGE, open.now_ns);
        assert!(open.mapped(0, PAGE).is_some(), "so may be twice, if it is long ago");
        let mut calls = Vec::new();
        for _ in 0..7 {
            open.file.mapped_read_took(1_000_000, PAGE, open.now_ns);
            calls.push((0..MANY).take_while(|_| open.mapped(0, PAGE).is_none()).count());
        }
        assert_eq!(calls, [64, 128, 256, 512, 1024, 1024, 1024]);
    });
}

#[test]
fn files_that_must_not_be_mapped_are_not() {
    for place in places() {
        let options = Options { allow_direct_io: true, ..Options::default() };
        let at = Fixture::within(&place, options.clone());
        std::fs::write(at.path("file"), content(0..4 * PAGE)).unwrap();
        std::fs::write(at.path("small"), content(0..100)).unwrap();
        for flags in [libc::O_WRONLY, libc::O_RDWR | libc::O_DIRECT] {
            assert!(!Open::new(&at.tree, "file", flags).warm(), "flags {flags:#o}");
        }
        assert!(!Open::new(&at.tree, "small", libc::O_RDONLY).warm());
        assert!(Open::new(&at.tree, "file", libc::O_RDONLY).warm());
        let without = Options { read_windows: false, ..options };
        let tree = Tree::new(Source::Path(at.dir.path().to_owned()), without).unwrap();
        assert!(!Open::new(&tree, "file", libc::O_RDONLY).warm());
    }
}

#[test]
fn files_of_an_overlay_are_not_mapped() {
    if !is_root() {
        return;
    }
    // In a mount namespace of this thread's own, which goes with it.
    let done = std::thread::spawn(|| {
        let at = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir(at.path().join(name)).unwrap();
        }
        std::fs::write(at.path().join("lower/file"), content(0..4 * PAGE)).unwrap();
        // SAFETY: the thread shares nothing that the others rely on: its working directory, and its mounts.
        if unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) } != 0 {
            return "no namespace";
        }
        let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).unwrap();
        let place = |name: &str| at.path().join(name).to_str().unwrap().to_owned();
        let parts = format!("lowerdir={},upperdir={},workdir={}", place("lower"), place("upper"), place("work"));
        let flags = rustix::mount::MountFlags::empty();
        if rustix::mount::mount("overlay", place("merged"), "overlay", flags, &*c(&parts)).is_err() {
            return "no overlay";
        }
        let tree = Tree::new(Source::Path(at.path().join("merged")), Options::default()).unwrap();
        assert!(!Open::new(&tree, "file", libc::O_RDONLY).warm());
        drop(tree);
        rustix::mount::unmount(place("merged"), rustix::mount::UnmountFlags::empty()).unwrap();
        "not mapped"
    });
    println!("{}", done.join().unwrap());
}

#[test]
fn mappings_are_few() {
    const FILES: usize = 1100;
    const MOST: usize = 1024;
    let at = Fixture::within(Path::new("/dev/shm"), Options::default());
    let mut open = Vec::new();
    for number in 0..FILES {
        let name = format!("file-{number}");
        std::fs::write(at.path(&name), content(0..PAGE)).unwrap();
        let file = Open::new(&at.tree, &name, libc::O_RDONLY);
        assert_eq!((0..200).any(|_| file.mapped(0, PAGE).is_some()), number < MOST);
        open.push(file);
    }
    assert_eq!((at.tree.describe().windows, mappings_under(at.dir.path())), (MOST, MOST));
    open.remove(0);
    assert!(open.last().unwrap().warm(), "room for one more");
    open.clear();
    assert_eq!((at.tree.describe().windows, mappings_under(at.dir.path())), (0, 0));
}

#[test]
fn mappings_are_not_long() {
    const GIB: u64 = 1 << 30;
    // Sparse files are only mapped where a hole takes no memory.
    for place in places().into_iter().filter(|place| place != Path::new("/dev/shm")) {
        let at = Fixture::within(&place, Options::default());
        for (name, size) in [("huge", 40 * GIB), ("large", 20 * GIB), ("large too", 20 * GIB)] {
            let host = File::create(at.path(name)).unwrap();
            host.set_len(size).unwrap();
            host.write_all_at(&content(0..PAGE), 0).unwrap();
        }
        assert!(!Open::new(&at.tree, "huge", libc::O_RDONLY).warm());
        let first = Open::new(&at.tree, "large", libc::O_RDONLY);
        assert!(first.warm());
        let second = Open::new(&at.tree, "large too", libc::O_RDONLY);
        assert!(!second.warm());
        drop(first);
        assert!(second.warm());
    }
}

/// Reads all over a file while `change` changes it, which is told how many reads have ended. There must be mapped answers,
/// and all of them `right` where they are from.
fn race(
    open: &Open<'_>,
    size_max: usize,
    rounds: usize,
    mut change: impl FnMut(&AtomicUsize) + Send,
    right: impl Fn(usize, &[u8]) -> bool,
) {
    let reads = AtomicUsize::new(0);
    let mut mapped = 0;
    let mut wrong = None;
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| (0..rounds).for_each(|_| change(&reads)));
        let mut at: usize = 1;
        while !changes.is_finished() {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (at >> 33) % (size_max + PAGE);
            let len = 1 + (at >> 20) % (2 * PAGE);
            if let Some(read) = open.mapped(offset, len) {
                mapped += 1;
                // Told at the end: `change` waits for further reads.
                if offset + read.len() > size_max || !right(offset, &read) {
                    wrong = Some((offset, read));
                }
            }
            reads.fetch_add(1, Ordering::Release);
        }
    });
    assert_eq!(wrong, None);
    assert!(mapped > 0);
}

#[test]
fn readers_see_nothing_that_never_was_while_a_file_is_cut_and_grows() {
    const PAGES: usize = 8;
    with_file(PAGES * PAGE, |_, host, open| {
        assert!(open.warm());
        let mut round = 0;
        // Cut off between pages, so that no byte below the end is ever another than its own: within a page even a call may
        // see what the kernel zeroes.
        let change = |reads: &AtomicUsize| {
            round += 1;
            let mut size = round % PAGES * PAGE;
            host.set_len(size as u64).unwrap();
            for more in [1 + round % 3000, 2 * PAGE, 777, PAGES * PAGE] {
                let end = (size + more).min(PAGES * PAGE);
                host.write_all_at(&content(size..end), size as u64).unwrap();
                size = end;
                // A read that began before the file was cut off ends before its page is whole again.
                let seen = reads.load(Ordering::Acquire);
                while reads.load(Ordering::Acquire) == seen {
                    std::thread::yield_now();
                }
            }
        };
        race(open, PAGES * PAGE, 250, change, |offset, read| *read == content(offset..offset + read.len()));
    });
}

#[test]
fn readers_see_old_new_or_zeros_while_a_file_is_cut_within_pages() {
    const PAGES: usize = 8;
    with_file(PAGES * PAGE, |_, host, open| {
        assert!(open.warm());
        let mut round: usize = 0;
        let change = |_: &AtomicUsize| {
            round += 1;
            let size = round * 977 % (PAGES * PAGE);
            host.set_len(size as u64).unwrap();
            host.write_all_at(&content(size..PAGES * PAGE), size as u64).unwrap();
        };
        race(open, PAGES * PAGE, 3000, change, |offset, read| {
            read.iter().zip(offset..).all(|(&byte, at)| byte == 0 || byte == pattern(at))
        });
    });
}

#[test]
fn a_file_that_is_written_past_its_end_through_a_mapping_ends_where_it_ends() {
    with_file(3 * PAGE + 100, |_, host, open| {
        open.check_mapped(3 * PAGE + 100);
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let shared = rustix::mm::MapFlags::SHARED;
        // SAFETY: a new mapping; the byte is inside its last page.
        unsafe {
            let mapping = rustix::mm::mmap(std::ptr::null_mut(), 4 * PAGE, access, shared, host, 0).unwrap();
            mapping.cast::<u8>().add(4 * PAGE - 1).write_volatile(0x77);
            assert_eq!(open.mapped(3 * PAGE, PAGE), None);
            open.check_mapped(3 * PAGE + 100);
            rustix::mm::munmap(mapping, 4 * PAGE).unwrap();
        }
    });
}
