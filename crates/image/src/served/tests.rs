//! The storage against a vector, on images that were made here; QEMU's opinion is asked for in the room `tests`.

use super::*;
use crate::features;
use crate::header;
use crate::testing::{Findings, New, examine};
use engine::Solo;
use std::path::Path;
use storage::{Kind, Operation, Task};
use tempfile::TempDir;
use testkit::storage as kit;

/// An image at `path`, and what opens it.
fn made(path: &Path, new: &New) -> Qcow2Options {
    std::fs::write(path, new.image().unwrap()).unwrap();
    Qcow2Options { table_memory: values::ByteSize(64 << 10), ..Qcow2Options::new(path) }
}

fn sound(path: &Path) {
    assert_eq!(examine(&std::fs::read(path).unwrap()), Findings::default());
}

fn refusal(options: &Qcow2Options) -> String {
    options.open().map(|_| ()).unwrap_err().to_string()
}

#[test]
fn random_histories_are_those_of_a_vector() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let mut runner = proptest::test_runner::TestRunner::new(proptest::test_runner::Config::with_cases(6));
    for (cluster_bits, refcount_order, incompatible, version) in
        [(9, 0, 0, 3), (9, 6, 0, 2), (12, 4, 0, 3), (16, 1, 0, 3), (14, 4, features::EXTENDED_L2, 3), (21, 5, 0, 3)]
    {
        let new = New { cluster_bits, refcount_order, incompatible, version, size_bytes: 600 << 10, ..New::default() };
        let executions = vec![storage::Execution::Inline, storage::Execution::Uring, storage::Execution::Pool(2)];
        let moves = kit::moves(executions, 1200);
        let result = runner.run(&moves, |history| {
            // Growth is bounded by the L1 table, and has a test of its own.
            let history: Vec<_> = history.into_iter().filter(|step| !matches!(step, kit::Move::Grow { .. })).collect();
            let options = made(&path, &new);
            let storage = storage::open(&options).unwrap();
            let oracle = kit::play(&*storage, &history);
            drop(storage);
            sound(&path);
            let storage = storage::open(&Qcow2Options { read_only: true, ..options }).unwrap();
            kit::assert_same(&kit::read(&mut Solo::new().unwrap(), &*storage, 0, oracle.len()), &oracle, 0);
            Ok(())
        });
        result.unwrap();
    }
}

#[test]
fn what_is_not_there_comes_from_below() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let base: Vec<u8> = (0..300_032u32).map(|n| (n / 512 + 1) as u8 | 1).collect();
    // A base that ends inside a sector.
    std::fs::write(at("base"), &base[..299_900]).unwrap();
    made(&at("middle"), &New { backing: Some((b"base".to_vec(), "raw")), cluster_bits: 12, ..New::default() });
    let backing =
        Some((b"json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\",\"filename\":\"middle\"}}".to_vec(), "qcow2"));
    let options = made(&at("top"), &New { backing, ..New::default() });
    assert_eq!(options.needs().len(), 3);
    let mut oracle = base[..299_900].to_vec();
    oracle.resize(1 << 20, 0);
    let storage = storage::open(&options).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::assert_same(&kit::read(&mut solo, &*storage, 0, 1 << 20), &oracle, 0);
    for (offset, len) in [(512, 512), (65_536, 65_536), (299_520, 1024), (1 << 19, 512)] {
        oracle[offset..offset + len].fill(0xaa);
        kit::write(&mut solo, &*storage, offset as u64, &oracle[offset..offset + len]).unwrap();
    }
    kit::assert_same(&kit::read(&mut solo, &*storage, 0, 1 << 20), &oracle, 0);
    // The next program goes on with the same files, which need not be found again.
    let handed = storage.hand_over().unwrap();
    std::fs::rename(at("middle"), at("elsewhere")).unwrap();
    drop(storage);
    let storage = options.adopt(handed).unwrap();
    kit::assert_same(&kit::read(&mut solo, &*storage, 0, 1 << 20), &oracle, 0);
    drop(storage);
    sound(&at("top"));
    assert_eq!(std::fs::read(at("base")).unwrap(), base[..299_900]);
}

/// Where all that lies beside them in their cluster, or subcluster, reads as zeroes by the tables behind.
#[test]
fn zeroes_over_a_backing_file_take_space_only_beside_data() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut oracle = vec![0; 1 << 20];
    // In the first half of every other cluster, and nowhere in the last eight.
    for cluster in (0..8).step_by(2) {
        oracle[cluster << 16..][..1 << 15].fill(7);
    }
    let base = made(&at("base"), &New { cluster_bits: 12, size_bytes: 1 << 20, ..New::default() });
    let storage = storage::open(&base).unwrap();
    for cluster in (0..8).step_by(2) {
        kit::write(&mut Solo::new().unwrap(), &*storage, cluster << 16, &oracle[..1 << 15]).unwrap();
    }
    drop(storage);
    for incompatible in [0, features::EXTENDED_L2] {
        let backing = Some((b"base".to_vec(), "qcow2"));
        let options = made(&at("top"), &New { incompatible, backing, size_bytes: 1 << 20, ..New::default() });
        let storage = storage::open(&options).unwrap();
        let mut oracle = oracle.clone();
        let mut solo = Solo::new().unwrap();
        let mut task = Task::new();
        let mut zero = |offset: usize, len: usize| {
            oracle[offset..offset + len].fill(0);
            task.begin(Operation::WriteZeroes { offset: offset as u64, len: len as u64, unmap: false, durable: false });
            kit::run(&mut solo, &*storage, &mut task).unwrap();
        };
        // All data of a cluster; beside nothing; in the half without data, a whole subcluster and less.
        zero(0, 1 << 15);
        zero((9 << 16) + 512, 1024);
        zero((2 << 16) + (1 << 15), 2048);
        zero((4 << 16) + (1 << 15) + 512, 512);
        // Over data: a whole subcluster, and less.
        zero((4 << 16) + 4096, 2048);
        zero((6 << 16) + 512, 512);
        kit::assert_same(&kit::read(&mut solo, &*storage, 0, oracle.len()), &oracle, 0);
        drop(storage);
        sound(&at("top"));
        let allocated = crate::tools::check(&at("top"), false, true, &mut |_, _| {}).unwrap().allocated_clusters;
        assert_eq!(allocated, if incompatible == 0 { 3 } else { 1 });
    }
}

#[test]
fn what_cannot_be_served_is_refused_in_one_line() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let with = |new: New| refusal(&made(&at("image"), &new));
    let backing = |name: &str, format| Some((name.as_bytes().to_vec(), format));
    std::fs::write(at("raw"), [7; 4096]).unwrap();
    let none = Some((b"raw".to_vec(), ""));
    for (new, expected) in [
        (New { incompatible: features::DIRTY, ..New::default() }, "dirty bit"),
        (New { incompatible: features::CORRUPT, ..New::default() }, "marked as corrupt"),
        (New { incompatible: features::DATA_FILE, ..New::default() }, "needs an external data file"),
        (New { incompatible: 1 << 9, ..New::default() }, "incompatible feature bit 9"),
        (New { backing: backing("nbd:host:1", "raw"), ..New::default() }, "protocol `nbd`"),
        (New { backing: backing("raw", "vmdk"), ..New::default() }, "format `vmdk`"),
        (New { backing: none, ..New::default() }, "format ``"),
        (New { backing: backing("missing", "raw"), ..New::default() }, "missing, which cannot be looked at"),
        (New { backing: backing("image", "qcow2"), ..New::default() }, "in its own chain"),
        (New { size_bytes: 0, ..New::default() }, "less than one 512-byte sector"),
    ] {
        let error = with(new);
        assert!(error.contains(expected) && error.contains("image") | error.contains("missing"), "{error}");
    }
    let raw = refusal(&Qcow2Options::new(at("raw")));
    assert!(raw.contains("does not begin like a qcow2 image"), "{raw}");
    // A reader needs neither bit to be clear.
    for incompatible in [features::DIRTY, features::CORRUPT] {
        let options = Qcow2Options { read_only: true, ..made(&at("image"), &New { incompatible, ..New::default() }) };
        storage::open(&options).unwrap();
    }
}

#[test]
fn an_image_leads_to_no_file_that_nobody_allows() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["own", "own/below", "other"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    for name in ["own/base", "own/below/base", "other/base"] {
        std::fs::write(at(name), [7; 4096]).unwrap();
    }
    std::os::unix::fs::symlink(at("other/base"), at("own/link")).unwrap();
    std::os::unix::fs::symlink(at("own/base"), at("own/inner")).unwrap();
    let fifo = std::ffi::CString::new(at("own/fifo").into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: a string that ends.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let with = |name: &str, allow: &[&str]| {
        let backing = Some((name.as_bytes().to_vec(), "raw"));
        let options = made(&at("own/image"), &New { backing, ..New::default() });
        Qcow2Options { allow: allow.iter().map(|name| at(name)).collect(), ..options }
    };
    for name in ["base", "below/base", "inner"] {
        storage::open(&with(name, &[])).unwrap();
    }
    let absolute = at("other/base").display().to_string();
    for name in ["../other/base", "link", &absolute] {
        let options = with(name, &[]);
        let error = refusal(&options);
        let fix = format!("add {} to `allow`", at("other").canonicalize().unwrap().display());
        assert!(error.contains(&fix), "{error}");
        assert_eq!(options.needs().len(), 1, "the sandbox does not let it through either");
        let allowed = with(name, &["other"]);
        storage::open(&allowed).unwrap();
        assert_eq!(allowed.needs().len(), 2);
    }
    for name in ["fifo", "below", "/dev/null"] {
        let error = refusal(&with(name, &[]));
        assert!(error.contains("no regular file") || error.contains("another directory"), "{error}");
        assert_eq!(with(name, &[]).needs().len(), 1);
    }
    // A directory may be allowed, and no device in it.
    let confines = confine::Confines::of(&with("base", &["other"]));
    let (device, directory) = (at("other/device"), at("other").canonicalize().unwrap());
    assert!(!confines.allows(&device, true) && confines.allows(&device, false) && confines.allows(&directory, true));
    // An image that is no file itself keeps nobody waiting.
    assert_eq!(Qcow2Options::new(at("own/fifo")).needs().len(), 1);
}

#[test]
fn files_grow_at_the_first_write_and_not_before() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New::default());
    let long = std::fs::metadata(&path).unwrap().len();
    // The last cluster has the L1 table, of which one entry is used.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(long - 60_000).unwrap();
    let bytes = || std::fs::metadata(&path).unwrap().len();
    let storage = storage::open(&options).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::read(&mut solo, &*storage, 0, 4096);
    assert_eq!(bytes(), long - 60_000);
    kit::write(&mut solo, &*storage, 0, &[1; 512]).unwrap();
    assert!(bytes() > long);
    drop(storage);
    sound(&path);
}

#[test]
fn features_that_are_not_maintained_are_cleared_by_the_first_write() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New { autoclear: 1 << 20 | features::BITMAPS, ..New::default() });
    let autoclear = || header::Header::parse(&std::fs::read(&path).unwrap()).unwrap().autoclear;
    let storage = storage::open(&options).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::read(&mut solo, &*storage, 0, 4096);
    assert_eq!(autoclear(), 1 << 20 | features::BITMAPS);
    kit::write(&mut solo, &*storage, 0, &[1; 512]).unwrap();
    assert_eq!(autoclear(), 0);
}

#[test]
fn a_lie_that_is_met_marks_the_image_and_ends_its_writes() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New::default());
    let mut solo = Solo::new().unwrap();
    let storage = storage::open(&options).unwrap();
    kit::write(&mut solo, &*storage, 0, &[1; 512]).unwrap();
    drop(storage);
    // The first entry of the L2 table names the L1 table.
    let mut image = std::fs::read(&path).unwrap();
    let parsed = header::Header::parse(&image).unwrap();
    let l1 = parsed.l1_offset as usize;
    let l2 = (u64::from_be_bytes(image[l1..l1 + 8].try_into().unwrap()) & !crate::entry::COPIED) as usize;
    image[l2..l2 + 8].copy_from_slice(&(parsed.l1_offset | crate::entry::COPIED).to_be_bytes());
    std::fs::write(&path, &image).unwrap();
    let storage = storage::open(&options).unwrap();
    kit::write(&mut solo, &*storage, 512, &[2; 512]).unwrap_err();
    let error = kit::write(&mut solo, &*storage, 1 << 19, &[2; 512]).unwrap_err().to_string();
    assert!(error.contains("marked as corrupt"), "{error}");
    assert!(kit::read(&mut solo, &*storage, 1 << 19, 512).iter().all(|byte| *byte == 0), "others are still read");
    // Nor does a successor lose the disk.
    let handed = storage.hand_over().unwrap();
    drop(storage);
    let storage = options.adopt(handed).unwrap();
    let error = kit::write(&mut solo, &*storage, 1 << 19, &[2; 512]).unwrap_err().to_string();
    assert!(error.contains("marked as corrupt"), "{error}");
    assert!(kit::read(&mut solo, &*storage, 1 << 19, 512).iter().all(|byte| *byte == 0), "others are still read");
    drop(storage);
    assert!(refusal(&options).contains("marked as corrupt"));
    // Behind a log: no tool repairs the image as long as it says that the log has more.
    std::fs::write(&path, &image).unwrap();
    let storage = storage::open(&options).unwrap();
    storage
        .marked()
        .unwrap()
        .set_log_mark(Some(storage::LogMark { log: uuid::Uuid::from_bytes([1; 16]), from: 2, epoch: 3 }))
        .unwrap();
    kit::write(&mut solo, &*storage, 512, &[2; 512]).unwrap_err();
    let error = kit::write(&mut solo, &*storage, 1 << 19, &[2; 512]).unwrap_err().to_string();
    assert!(error.contains("marked as corrupt") && error.contains("vringd image log forget"), "{error}");
    // Nor does a successor advise anything else.
    let handed = storage.hand_over().unwrap();
    drop(storage);
    let storage = options.adopt(handed).unwrap();
    let error = kit::write(&mut solo, &*storage, 1 << 19, &[2; 512]).unwrap_err().to_string();
    assert!(error.contains("marked as corrupt") && error.contains("vringd image log forget"), "{error}");
}

#[test]
fn a_disk_grows_as_far_as_its_l1_table() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New { cluster_bits: 12, ..New::default() });
    let storage = storage::open(&options).unwrap();
    let mut solo = Solo::new().unwrap();
    storage.resize(2 << 20).unwrap();
    kit::write(&mut solo, &*storage, (2 << 20) - 512, &[3; 512]).unwrap();
    let error = storage.resize((2 << 20) + 512).unwrap_err().to_string();
    assert!(error.contains("vringd image resize"), "{error}");
    assert!(storage.resize(1 << 20).is_err());
    drop(storage);
    let storage = storage::open(&options).unwrap();
    assert_eq!(storage.capacity_bytes(), 2 << 20);
    assert_eq!(kit::read(&mut solo, &*storage, (2 << 20) - 512, 512), [3; 512]);
    drop(storage);
    sound(&path);
}

#[test]
fn what_a_data_file_has_behind_the_end_does_not_come_up() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let (small, large) = ((1 << 20) + 512, 2 << 20);
    let options = made(&path, &New { data_file: Some(b"data".to_vec()), size_bytes: small, ..New::default() });
    std::fs::write(directory.path().join("data"), vec![0xee; large as usize]).unwrap();
    let storage = storage::open(&options).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &*storage, 1 << 20, &[1; 512]).unwrap();
    storage.resize(large).unwrap();
    assert_eq!(kit::read(&mut solo, &*storage, 1 << 20, 512), [1; 512]);
    let new = (large - small) as usize;
    assert_eq!(kit::read(&mut solo, &*storage, small, new), vec![0; new]);
    // Nor by a write beside it.
    kit::write(&mut solo, &*storage, large - 512, &[2; 512]).unwrap();
    assert_eq!(kit::read(&mut solo, &*storage, small, new - 512), vec![0; new - 512]);
}

#[test]
fn a_discard_up_to_the_end_asks_again_after_the_disk_has_grown() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let storage = inside(&made(&path, &New { size_bytes: (1 << 20) + 512, ..New::default() }));
    let mut solo = Solo::new().unwrap();
    let (tail, end) = (1 << 20, (1 << 20) + 512);
    kit::write(&mut solo, &storage, tail, &[1; 512]).unwrap();
    storage.resize(2 << 20).unwrap();
    kit::write(&mut solo, &storage, end, &[2; 512]).unwrap();
    assert!(matches!(storage.shared.unmap(tail, end, false), Err(error::Trouble::Grown)));
    assert_eq!(kit::read(&mut solo, &storage, end, 512), [2; 512]);
}

#[test]
fn a_discard_of_very_much_of_nothing_leaves_the_worker_to_others() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let size_bytes = 8 << 30;
    let storage = inside(&made(&path, &New { cluster_bits: 9, size_bytes, ..New::default() }));
    let mut solo = Solo::new().unwrap();
    let mut task = Task::new();
    task.begin(Operation::Discard { offset: 0, len: size_bytes });
    let (mut turns, mut step) = (0, Storage::start(&storage, &mut task, Token::request(0), &mut solo.io()));
    while matches!(step, Step::Pending) {
        turns += 1;
        let completion = solo.wait().unwrap();
        step = storage.resume(&mut task, completion, &mut solo.io());
    }
    assert!(matches!(step, Step::Done(Ok(()))) && turns > 10, "{turns} turns");
}

#[test]
fn a_disk_that_grows_has_no_valid_bitmaps() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New { autoclear: features::BITMAPS, ..New::default() });
    storage::open(&options).unwrap().resize(2 << 20).unwrap();
    let parsed = header::Header::parse(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((parsed.autoclear, parsed.size_bytes), (0, 2 << 20));
}

/// Each image has memory for two tables, and eight readers are in eight of them.
#[test]
fn long_chains_are_read_with_few_tables() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let at = |name: u32| directory.path().join(name.to_string());
    let new = New { cluster_bits: 9, size_bytes: 256 << 10, ..New::default() };
    let mut solo = Solo::new().unwrap();
    for name in 0..30u32 {
        let backing = name.checked_sub(1).map(|behind| (behind.to_string().into_bytes(), "qcow2"));
        let storage = storage::open(&made(&at(name), &New { backing, ..new.clone() })).unwrap();
        for table in 0..8 {
            kit::write(&mut solo, &*storage, (table * 64 + u64::from(name)) * 512, &[name as u8 + 1; 512]).unwrap();
        }
    }
    let few = values::ByteSize(1);
    let options = Qcow2Options { table_memory: few, execution: storage::Execution::Uring, ..Qcow2Options::new(at(29)) };
    let storage = inside(&options);
    std::thread::scope(|scope| {
        for table in 0..8u64 {
            let storage = &storage;
            scope.spawn(move || {
                let mut solo = Solo::new().unwrap();
                assert_eq!(kit::read(&mut solo, storage, (table * 64 + 63) * 512, 512), [0; 512]);
                for name in 0..30u64 {
                    let got = kit::read(&mut solo, storage, (table * 64 + name) * 512, 512);
                    assert_eq!(got, [name as u8 + 1; 512]);
                }
            });
        }
    });
    assert!(storage.shared.chain.images.iter().all(|image| image.tables.loaded() <= 2));
}

#[test]
fn a_damaged_compressed_cluster_is_an_error_of_its_own() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New::default());
    let mut solo = Solo::new().unwrap();
    let storage = storage::open(&options).unwrap();
    kit::write(&mut solo, &*storage, 0, &[0xff; 512]).unwrap();
    drop(storage);
    // The first cluster is compressed now, and its data are no such.
    let mut image = std::fs::read(&path).unwrap();
    let l1 = header::Header::parse(&image).unwrap().l1_offset as usize;
    let l2 = (u64::from_be_bytes(image[l1..l1 + 8].try_into().unwrap()) & !crate::entry::COPIED) as usize;
    let host = u64::from_be_bytes(image[l2..l2 + 8].try_into().unwrap()) & !crate::entry::COPIED;
    image[l2..l2 + 8].copy_from_slice(&(host | 1 << 62).to_be_bytes());
    std::fs::write(&path, &image).unwrap();
    let storage = storage::open(&options).unwrap();
    let mut memory = [0u8; 512];
    let mut task = Task::new();
    task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 512 }];
    task.begin(Operation::Read { offset: 0 });
    kit::run(&mut solo, &*storage, &mut task).unwrap_err();
    kit::write(&mut solo, &*storage, 65_536, &[2; 512]).unwrap();
    assert_eq!(header::Header::parse(&std::fs::read(&path).unwrap()).unwrap().incompatible, 0);
}

/// Serves an image with its inside at hand.
fn inside(options: &Qcow2Options) -> Qcow2Storage {
    Qcow2Storage::start(options, open::by_path(options).unwrap()).unwrap()
}

#[test]
fn no_worker_waits_for_whoever_has_the_allocator() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let path = directory.path().join("image");
    let options = Qcow2Options { execution: storage::Execution::Uring, ..made(&path, &New::default()) };
    let storage = inside(&options);
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &storage, 0, &[1; 512]).unwrap();
    let mut held = storage.shared.allocator().unwrap();
    let taken = held.take_ready(1, true).unwrap();
    allocator::Taken::new(&storage.shared.returns, taken).unused();
    let mut memory = [7u8; 512];
    let mut task = Task::new();
    task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 512 }];
    task.begin(Operation::Write { offset: 65_536, durable: false });
    let mut step = Storage::start(&storage, &mut task, Token::request(0), &mut solo.io());
    drop(held);
    while matches!(step, Step::Pending) {
        let completion = solo.wait().unwrap();
        step = storage.resume(&mut task, completion, &mut solo.io());
    }
    assert!(matches!(step, Step::Done(Ok(()))));
    drop(storage);
    sound(&path);
}

#[test]
fn a_ring_that_falls_leaves_nothing_taken() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let path = directory.path().join("image");
    let options = Qcow2Options { execution: storage::Execution::Uring, ..made(&path, &New::default()) };
    let storage = inside(&options);
    let mut solo = Solo::new().unwrap();
    let mut memory = [7u8; 512];
    let mut task = Task::new();
    task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 512 }];
    task.begin(Operation::Write { offset: 0, durable: false });
    // The clusters are prepared elsewhere; then the data is written, and nobody links it.
    assert!(matches!(Storage::start(&storage, &mut task, Token::request(0), &mut solo.io()), Step::Pending));
    let prepared = solo.wait().unwrap();
    assert!(matches!(storage.resume(&mut task, prepared, &mut solo.io()), Step::Pending));
    solo.wait().unwrap();
    // Nor does what is given back wait for whoever has the allocator.
    let allocator = storage.shared.allocator().unwrap();
    drop(task);
    drop(allocator);
    assert!(storage.shared.claims.is_empty());
    drop(storage);
    sound(&path);
}

#[test]
fn what_a_ring_that_falls_has_begun_to_change_keeps_nobody_waiting() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let path = directory.path().join("image");
    let options = Qcow2Options { execution: storage::Execution::Uring, ..made(&path, &New::default()) };
    let storage = inside(&options);
    let (mut fallen, mut solo) = (Solo::new().unwrap(), Solo::new().unwrap());
    let mut memory = [7u8; 512];
    let write = |memory: &mut [u8; 512]| {
        let mut task = Task::new();
        task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 512 }];
        task.begin(Operation::Write { offset: 0, durable: false });
        task
    };
    let mut begun = write(&mut memory);
    assert!(matches!(Storage::start(&storage, &mut begun, Token::request(0), &mut fallen.io()), Step::Pending));
    let mut waiting = write(&mut memory);
    assert!(matches!(Storage::start(&storage, &mut waiting, Token::request(1), &mut solo.io()), Step::Pending));
    // Its ring falls, and is forgotten with what another worker still does for it.
    begun.lost();
    let told = solo.wait().unwrap();
    assert!(matches!(storage.resume(&mut waiting, told, &mut solo.io()), Step::Done(Err(_))));
    kit::write(&mut solo, &storage, 512, &[8; 512]).unwrap_err();
    kit::write(&mut solo, &storage, 1 << 16, &[8; 512]).unwrap();
    drop(begun);
    kit::write(&mut solo, &storage, 512, &[8; 512]).unwrap();
}

/// Threads that meet in the same clusters, each with sectors of its own.
#[test]
fn many_threads_share_an_image() {
    const THREADS: usize = 4;
    const SIZE: usize = 4 << 20;
    for (directory, cluster_bits) in [(kit::shm(), 16), (kit::disk(), 14), (kit::shm(), 9)] {
        let directory = TempDir::new_in(directory).unwrap();
        let path = directory.path().join("image");
        let options = made(&path, &New { cluster_bits, size_bytes: SIZE as u64, ..New::default() });
        let storage = storage::open(&options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let storage = storage.clone();
                scope.spawn(move || {
                    let mut solo = Solo::new().unwrap();
                    let mut mine = vec![0u8; SIZE / 512 / THREADS];
                    let mut state = 77 + thread as u64;
                    let mut task = Task::new();
                    for round in 0..1500u64 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let which = (state >> 33) as usize % mine.len();
                        let offset = ((which * THREADS + thread) * 512) as u64;
                        match state >> 20 & 7 {
                            0 => {
                                let operation =
                                    Operation::WriteZeroes { offset, len: 512, unmap: true, durable: false };
                                task.begin(operation);
                                kit::run(&mut solo, &*storage, &mut task).unwrap();
                                mine[which] = 0;
                            }
                            1 => {
                                task.begin(Operation::Flush);
                                kit::run(&mut solo, &*storage, &mut task).unwrap();
                            }
                            2 | 3 => {
                                let got = kit::read(&mut solo, &*storage, offset, 512);
                                assert_eq!(got, [mine[which]; 512], "round {round}, sector {offset}");
                            }
                            _ => {
                                mine[which] = round as u8 | 1;
                                kit::write(&mut solo, &*storage, offset, &[mine[which]; 512]).unwrap();
                            }
                        }
                    }
                    for (which, byte) in mine.iter().enumerate() {
                        let offset = ((which * THREADS + thread) * 512) as u64;
                        assert_eq!(kit::read(&mut solo, &*storage, offset, 512), [*byte; 512]);
                    }
                });
            }
        });
        drop(storage);
        sound(&path);
    }
}

/// Images of which bytes were changed at random: whatever they say, requests end, one way or the other.
#[test]
fn images_that_lie_are_served_or_refused_and_never_more() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut below = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % bound
    };
    let (mut refused, mut failed, mut done) = (0, 0, 0);
    let rounds = std::env::var("LIES").map_or(400, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let cluster_bits = [9, 12, 14][round % 3];
        let incompatible = if cluster_bits == 14 && round % 2 == 0 { features::EXTENDED_L2 } else { 0 };
        let new = New { cluster_bits, incompatible, size_bytes: 256 << 10, ..New::default() };
        let options = made(&path, &new);
        let mut solo = Solo::new().unwrap();
        let storage = storage::open(&options).unwrap();
        for _ in 0..8 {
            kit::write(&mut solo, &*storage, (below(500) * 512) as u64, &[7; 3072]).unwrap();
        }
        drop(storage);
        let mut image = std::fs::read(&path).unwrap();
        for _ in 0..1 + below(6) {
            // Most of the lies are about what the image is made of.
            let end = [112, 5 << cluster_bits, image.len()][below(3)];
            let at = below(end.min(image.len()));
            image[at] = if below(2) == 0 { 0xff } else { below(256) as u8 };
        }
        std::fs::write(&path, &image).unwrap();
        let Ok(storage) = storage::open(&options) else {
            refused += 1;
            continue;
        };
        let mut memory = vec![1u8; 64 << 10];
        let sectors = storage.capacity_bytes().min(1 << 30) as usize / 512;
        for _ in 0..40 {
            let (at, count) = (below(sectors), 1 + below(100));
            let (offset, len) = ((at * 512) as u64, (count.min(sectors - at) * 512) as u64);
            let mut task = Task::new();
            task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: len as usize }];
            task.begin(match below(5) {
                0 | 1 => Operation::Write { offset, durable: false },
                2 => Operation::Read { offset },
                3 => Operation::WriteZeroes { offset, len, unmap: true, durable: false },
                _ => Operation::Flush,
            });
            match kit::run(&mut solo, &*storage, &mut task) {
                Ok(()) => done += 1,
                Err(_) => failed += 1,
            }
        }
        drop(storage);
        assert!(std::fs::metadata(&path).unwrap().len() < 1 << 30, "a lie made the image large");
    }
    assert!(refused > 20 && failed > 100 && done > 1000, "{refused} refused, {failed} failed, {done} done");
}
