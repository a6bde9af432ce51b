//! Tools on images that they made; QEMU's opinion is asked for in the room `tests`.

use super::*;
use crate::Compression;
use crate::header::Header;
use crate::new::New;
use crate::testing::{self, Findings};
use crate::{Qcow2Options, refcount};
use engine::Solo;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use tempfile::TempDir;
use testkit::storage as kit;

fn plain(size_bytes: u64) -> CreateOptions {
    CreateOptions { size_bytes: Some(size_bytes), ..CreateOptions::default() }
}

fn checked(path: &Path) -> Checked {
    check(path, false, true, &mut |_, _| {}).unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ToolError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn images_that_were_made_are_sound_and_say_what_they_are() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    for cluster_bits in [9, 12, 16, 21] {
        for refcount_bits in [1, 8, 16, 64] {
            let options = CreateOptions {
                cluster_bytes: 1 << cluster_bits,
                refcount_bits,
                subclusters: cluster_bits > 14,
                force: true,
                ..plain(100 << 20)
            };
            create(&path, &options).unwrap();
            let info = info(&path).unwrap();
            assert_eq!((info.size_bytes, info.cluster_bytes), (100 << 20, 1 << cluster_bits));
            assert_eq!((info.refcount_bits, info.subclusters), (refcount_bits, cluster_bits > 14));
            let found = checked(&path);
            assert!(found.sound && found.leaked_clusters == 0 && found.allocated_clusters == 0, "{found:?}");
            assert_eq!(found.end_bytes, info.file_bytes);
            assert_eq!(testing::examine(&fs::read(&path).unwrap()), Findings::default());
        }
    }
    // The largest there is, in the smallest clusters: tables that need more than a cluster each.
    create(&path, &CreateOptions { cluster_bytes: 512, refcount_bits: 64, ..options_over(128 << 30) }).unwrap();
    assert!(checked(&path).sound);
    let error = refusal(create(&path, &CreateOptions { cluster_bytes: 512, ..options_over((128 << 30) + 512) }));
    assert!(error.contains("use larger ones"), "{error}");
}

fn options_over(size_bytes: u64) -> CreateOptions {
    CreateOptions { force: true, ..plain(size_bytes) }
}

#[test]
fn an_overlay_has_the_size_of_what_is_behind_it() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("base"), [7; 4096 + 512]).unwrap();
    let over = |name: &str, is_qcow2| CreateOptions {
        size_bytes: None,
        backing: Some(Backing { name: name.into(), is_qcow2 }),
        ..plain(0)
    };
    create(&at("middle"), &over("base", false)).unwrap();
    create(&at("top"), &over("middle", true)).unwrap();
    let all = chain(&at("top")).unwrap();
    let said: Vec<_> = all.iter().map(|info| (info.format, info.size_bytes)).collect();
    assert_eq!(said, [("qcow2", 4608), ("qcow2", 4608), ("raw", 4608)]);
    let storage = storage::open(&Qcow2Options::new(at("top"))).unwrap();
    assert_eq!(kit::read(&mut Solo::new().unwrap(), &*storage, 4096, 512), [7; 512]);
    drop(storage);
    for (name, is_qcow2, why) in
        [("missing", false, "missing"), ("base", true, "does not begin"), ("nbd://x/y", false, "protocol")]
    {
        let error = refusal(create(&at("new"), &over(name, is_qcow2)));
        assert!(error.contains(why), "{error}");
        assert!(!at("new").exists());
    }
    // Nothing is written over by mistake, nor while somebody has it.
    let error = refusal(create(&at("top"), &plain(1 << 20)));
    assert!(error.contains("--force"), "{error}");
    let served = storage::open(&Qcow2Options::new(at("top"))).unwrap();
    refusal(create(&at("top"), &options_over(1 << 20)));
    refusal(check(&at("top"), false, true, &mut |_, _| {}));
    drop(served);
    assert_eq!(chain(&at("top")).unwrap().len(), 3);
    // A chain that leads to itself has an end all the same.
    fs::remove_file(at("base")).unwrap();
    create(&at("base"), &plain(1 << 20)).unwrap();
    let looped = New { backing: Some((b"top".to_vec(), "qcow2")), ..New::default() };
    fs::write(at("middle"), looped.image().unwrap()).unwrap();
    assert!(refusal(chain(&at("top"))).contains("loop"));
}

#[test]
fn leaks_are_given_back_and_damage_is_left_alone() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    create(&path, &plain(8 << 20)).unwrap();
    let storage = storage::open(&Qcow2Options::new(&path)).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &*storage, 0, &[1; 512]).unwrap();
    kit::write(&mut solo, &*storage, 4 << 20, &[2; 512]).unwrap();
    // As a kill leaves it: nothing is given back.
    let left = fs::read(&path).unwrap();
    drop(storage);
    fs::write(&path, &left).unwrap();
    let found = checked(&path);
    assert!(found.sound && found.leaked_clusters > 0 && found.repaired_clusters == 0, "{found:?}");
    assert_eq!((found.allocated_clusters, found.total_clusters), (2, 128));
    let repaired = check(&path, true, true, &mut |_, _| {}).unwrap();
    assert_eq!((repaired.leaked_clusters, repaired.repaired_clusters), (0, found.leaked_clusters));
    assert_eq!(testing::examine(&fs::read(&path).unwrap()), Findings::default());
    let storage = storage::open(&Qcow2Options::new(&path)).unwrap();
    assert_eq!(kit::read(&mut solo, &*storage, 4 << 20, 512), [2; 512]);
    drop(storage);
    // A cluster that is used, and counted as free.
    let mut image = left;
    let header = Header::parse(&image).unwrap();
    let block = u64::from_be_bytes(image[header.refcount_table_offset as usize..][..8].try_into().unwrap()) as usize;
    let used = header.l1_offset >> header.cluster_bits;
    refcount::set(&mut image[block..][..1 << 16], header.refcount_order, used, 0);
    fs::write(&path, &image).unwrap();
    let found = check(&path, true, true, &mut |_, _| {}).unwrap();
    assert!(!found.sound && found.problems[0].contains("used 1 times and counted 0 times"), "{found:?}");
    assert_eq!(found.repaired_clusters, 0);
    assert_eq!(fs::read(&path).unwrap(), image, "nothing is repaired over damage");
}

/// Bytes that were changed at random: whatever is found, it ends, and within bounds.
#[test]
fn images_that_lie_are_examined_to_the_end() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    create(&path, &CreateOptions { cluster_bytes: 4096, ..plain(4 << 20) }).unwrap();
    let storage = storage::open(&Qcow2Options::new(&path)).unwrap();
    let mut solo = Solo::new().unwrap();
    for at in 0..64 {
        kit::write(&mut solo, &*storage, at * 9 * 4096, &[1; 512]).unwrap();
    }
    drop(storage);
    let sound = fs::read(&path).unwrap();
    let (mut numbers, mut damaged) = (0x9e37_79b9_7f4a_7c15u64, 0);
    let mut next = |below: usize| {
        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (numbers >> 33) as usize % below
    };
    for _ in 0..400 {
        let mut image = sound.clone();
        for _ in 0..=next(3) {
            // Headers and tables rather than what guests wrote.
            let (within, bits) = ([120, 5 * 4096, sound.len()][next(3)], next(256) as u8);
            let at = next(within);
            image[at] ^= bits;
        }
        fs::write(&path, &image).unwrap();
        match check(&path, false, true, &mut |_, _| {}) {
            Ok(found) => damaged += u32::from(!found.sound),
            Err(error) => assert!(error.to_string().starts_with(&path.display().to_string()), "{error}"),
        }
        let _ = info(&path);
    }
    assert!(damaged > 50, "{damaged} were found to be damaged");
}

#[test]
fn conversions_keep_contents_and_holes() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut contents = vec![0u8; (9 << 20) + 512];
    for (from, len) in [(0, 700), (70_000, 200_000), (5 << 20, 1 << 20), ((9 << 20) + 100, 412)] {
        contents[from..from + len].iter_mut().enumerate().for_each(|(n, byte)| *byte = (n / 512) as u8 | 1);
    }
    fs::write(at("raw"), &contents).unwrap();
    let raw = From::Raw(at("raw"));
    for cluster_bytes in [512, 64 << 10, 2 << 20] {
        let options = CreateOptions { size_bytes: None, cluster_bytes, ..options_over(0) };
        let mut last = (0, 0);
        let converted = to_qcow2(&raw, &at("image"), &options, None, &mut |done, all| {
            last = (done, all);
            // Who is killed now leaves no image.
            assert!(refusal(info(&at("image"))).contains("does not begin"));
        })
        .unwrap();
        assert_eq!(
            (converted.size_bytes, last),
            (contents.len() as u64, (contents.len() as u64, contents.len() as u64))
        );
        let found = checked(&at("image"));
        assert!(found.sound && found.leaked_clusters == 0, "{found:?}");
        let info = info(&at("image")).unwrap();
        assert!(cluster_bytes > 64 << 10 || info.allocated_bytes < 4 << 20, "{info:?}");
        to_raw(&From::Qcow2(Qcow2Options::new(at("image"))), &at("back"), true, &mut |_, _| {}).unwrap();
        kit::assert_same(&fs::read(at("back")).unwrap(), &contents, 0);
    }
    // With what is behind it, and then without.
    let over = CreateOptions {
        size_bytes: Some(12 << 20),
        backing: Some(Backing { name: "image".into(), is_qcow2: true }),
        ..plain(0)
    };
    create(&at("top"), &over).unwrap();
    let storage = storage::open(&Qcow2Options::new(at("top"))).unwrap();
    kit::write(&mut Solo::new().unwrap(), &*storage, 11 << 20, &[9; 4096]).unwrap();
    // Nobody copies what is being written.
    let top = From::Qcow2(Qcow2Options { read_only: true, ..Qcow2Options::new(at("top")) });
    refusal(to_raw(&top, &at("new"), false, &mut |_, _| {}));
    assert!(!at("new").exists());
    drop(storage);
    let flat = CreateOptions { size_bytes: None, ..plain(0) };
    to_qcow2(&top, &at("flat"), &flat, None, &mut |_, _| {}).unwrap();
    assert_eq!(chain(&at("flat")).unwrap().len(), 1);
    contents.resize(12 << 20, 0);
    contents[11 << 20..][..4096].fill(9);
    let storage = storage::open(&Qcow2Options::new(at("flat"))).unwrap();
    kit::assert_same(&kit::read(&mut Solo::new().unwrap(), &*storage, 0, contents.len()), &contents, 0);
    drop(storage);
    // A raw image that ends inside a sector is one sector longer as a disk.
    fs::write(at("odd"), &contents[..100_001]).unwrap();
    to_qcow2(&From::Raw(at("odd")), &at("even"), &flat, None, &mut |_, _| {}).unwrap();
    assert_eq!(info(&at("even")).unwrap().size_bytes, 100_001u64.next_multiple_of(512));
    // What does not fit is not cut off.
    let small = CreateOptions { size_bytes: Some(11 << 20), ..plain(0) };
    let error = refusal(to_qcow2(&top, &at("new"), &small, None, &mut |_, _| {}));
    assert!(error.contains("more than the size that is asked for") && !at("new").exists(), "{error}");
    assert_eq!(refusal(measure(Some(&top), &small, &mut |_, _| {})), error);
    // What is there stays without a word.
    let error = refusal(to_raw(&top, &at("flat"), false, &mut |_, _| {}));
    assert!(error.contains("--force"), "{error}");
}

/// Text that gets small, noise that does not, zeroes, and an end inside a cluster.
#[test]
fn what_is_compressed_reads_as_before_and_takes_less() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut contents: Vec<u8> = (0..3_000_320usize).map(|n| (n / 100 % 97) as u8 + 32).collect();
    let mut noise = testkit::Rng(5);
    contents[1_000_000..1_400_000].iter_mut().for_each(|byte| *byte = noise.below(256) as u8);
    contents[2_000_000..2_300_000].fill(0);
    fs::write(at("raw"), &contents).unwrap();
    // Holes that end inside of clusters.
    let file = fs::File::options().write(true).open(at("raw")).unwrap();
    for hole in [70_000u64..900_000, 1_450_000..1_600_000, 2_500_000..2_600_000] {
        let (start, end) = (hole.start.next_multiple_of(4096), hole.end / 4096 * 4096);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, start, end - start).unwrap();
        contents[start as usize..end as usize].fill(0);
    }
    let raw = From::Raw(at("raw"));
    for (cluster_bytes, subclusters) in [(512, false), (4096, false), (16 << 10, true), (64 << 10, false)] {
        for kind in [Compression::Zlib, Compression::Zstd] {
            let what = format!("{kind:?}, {cluster_bytes}");
            let options = CreateOptions { size_bytes: None, cluster_bytes, subclusters, ..options_over(0) };
            // A larger disk ends somewhere else than what is copied.
            let larger = CreateOptions { size_bytes: Some(8 << 20), ..options.clone() };
            to_qcow2(&raw, &at("image"), &larger, Some(kind), &mut |_, _| {}).unwrap();
            to_raw(&From::Qcow2(Qcow2Options::new(at("image"))), &at("back"), true, &mut |_, _| {}).unwrap();
            kit::assert_same(&fs::read(at("back")).unwrap()[..contents.len()], &contents, 0);
            to_qcow2(&raw, &at("image"), &options, Some(kind), &mut |_, _| {}).unwrap();
            let found = checked(&at("image"));
            assert!(found.sound && found.leaked_clusters == 0, "{what}: {found:?}");
            let info = info(&at("image")).unwrap();
            // Sectors of 512 bytes have nothing less.
            let most = if cluster_bytes == 512 { 4 << 20 } else { 1 << 20 };
            assert!(info.allocated_bytes < most, "{what}: {info:?}");
            to_raw(&From::Qcow2(Qcow2Options::new(at("image"))), &at("back"), true, &mut |_, _| {}).unwrap();
            kit::assert_same(&fs::read(at("back")).unwrap(), &contents, 0);
            // A guest writes over some of it, and what nobody uses any more is free.
            let storage = storage::open(&Qcow2Options::new(at("image"))).unwrap();
            let mut solo = Solo::new().unwrap();
            let mut now = contents.clone();
            for place in 0..40 {
                let place = place * 70_144;
                now[place..place + 4096].fill(7);
                kit::write(&mut solo, &*storage, place as u64, &[7; 4096]).unwrap();
            }
            kit::assert_same(&kit::read(&mut solo, &*storage, 0, now.len()), &now, 0);
            drop(storage);
            let found = checked(&at("image"));
            assert!(found.sound && found.leaked_clusters == 0, "{what}, written: {found:?}");
        }
    }
    for (options, why) in [
        (CreateOptions { cluster_bytes: 128 << 10, ..plain(4 << 20) }, "64 KiB at most"),
        (CreateOptions { refcount_bits: 8, ..plain(4 << 20) }, "refcounts of 16 bits"),
    ] {
        let error = refusal(to_qcow2(&raw, &at("new"), &options, Some(Compression::Zlib), &mut |_, _| {}));
        assert!(error.contains(why) && !at("new").exists(), "{error}");
    }
}

/// Somebody else writes over what a conversion is about to finish.
#[test]
fn a_conversion_finishes_nothing_that_is_not_its_own() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let unfinished = [&[0; 4], &New::default().image().unwrap()[4..]].concat();
    fs::write(&path, &unfinished).unwrap();
    let other = fs::File::options().read(true).write(true).open(&path).unwrap();
    let lock = storage::kit::ImageLock::take(&path, &other, true).unwrap();
    let finish = || destination::finish(&path, &mut file::Image::open(&path, true).unwrap());
    refusal(finish());
    drop(lock);
    assert_eq!(fs::read(&path).unwrap(), unfinished);
    finish().unwrap();
    assert!(checked(&path).sound);
    assert!(refusal(finish()).contains("somebody else"));
}

#[test]
fn images_are_compared_by_what_they_read_as() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut contents = vec![0u8; 5 << 20];
    contents[70_000..3_000_000].iter_mut().enumerate().for_each(|(n, byte)| *byte = (n / 512) as u8 | 1);
    fs::write(at("raw"), &contents).unwrap();
    let raw = From::Raw(at("raw"));
    let qcow2 = |name: &str| From::Qcow2(Qcow2Options { read_only: true, ..Qcow2Options::new(at(name)) });
    to_qcow2(&raw, &at("image"), &CreateOptions { size_bytes: Some(6 << 20), ..plain(0) }, None, &mut |_, _| {})
        .unwrap();
    let mut last = (0, 0);
    let found = compare(&raw, &qcow2("image"), &mut |done, all| last = (done, all)).unwrap();
    assert_eq!((found.same, found.size_bytes, last), (true, [5 << 20, 6 << 20], (6 << 20, 6 << 20)));
    assert!(found.read_bytes <= 5 << 20, "{found:?}");
    // Zeroes that are written are the same as none, and whatever is different is, also behind the end of the other.
    let over =
        CreateOptions { size_bytes: None, backing: Some(Backing { name: "image".into(), is_qcow2: true }), ..plain(0) };
    create(&at("top"), &over).unwrap();
    let change = |offset: u64, bytes: &[u8]| {
        let storage = storage::open(&Qcow2Options::new(at("top"))).unwrap();
        kit::write(&mut Solo::new().unwrap(), &*storage, offset, bytes).unwrap();
    };
    change(4 << 20, &[0; 4096]);
    assert!(compare(&qcow2("top"), &raw, &mut |_, _| {}).unwrap().same);
    change((6 << 20) - 512, &[0, 0, 5].repeat(171)[..512]);
    let found = compare(&qcow2("top"), &raw, &mut |_, _| {}).unwrap();
    assert_eq!((found.same, found.differs_at), (false, Some((6 << 20) - 510)));
    change(100_352, &[0xff; 512]);
    assert_eq!(compare(&raw, &qcow2("top"), &mut |_, _| {}).unwrap().differs_at, Some(100_352));
}

/// An image with some clusters of 4 KiB, and where its refcount table is.
fn filled(path: &Path, refcount_bits: u32) -> (Vec<u8>, Header) {
    create(path, &CreateOptions { cluster_bytes: 4096, refcount_bits, ..options_over(1 << 20) }).unwrap();
    let storage = storage::open(&Qcow2Options::new(path)).unwrap();
    kit::write(&mut Solo::new().unwrap(), &*storage, 0, &[1; 40 << 10]).unwrap();
    drop(storage);
    let image = fs::read(path).unwrap();
    let header = Header::parse(&image).unwrap();
    (image, header)
}

fn put(image: &mut [u8], at: u64, word: u64) {
    image[at as usize..][..8].copy_from_slice(&word.to_be_bytes());
}

fn word(image: &[u8], at: u64) -> u64 {
    u64::from_be_bytes(image[at as usize..][..8].try_into().unwrap())
}

#[test]
fn blocks_that_lie_where_others_do_are_damage_and_are_not_written() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let (mut image, header) = filled(&path, 16);
    // Two entries of the table name one block, which counts itself twice.
    let table = header.refcount_table_offset;
    let block = word(&image, table);
    put(&mut image, table + 8, block);
    refcount::set(&mut image[block as usize..][..4096], 4, block >> 12, 2);
    fs::write(&path, &image).unwrap();
    let found = check(&path, true, true, &mut |_, _| {}).unwrap();
    assert!(!found.sound && found.problems.iter().any(|it| it.contains("refcount block 1")), "{found:?}");
    assert_eq!((found.repaired_clusters, fs::read(&path).unwrap()), (0, image));
}

/// 8192 entries that name one block of counts: they are not taken for four thousand million counts.
#[test]
fn what_is_only_counted_takes_no_memory() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    create(&path, &CreateOptions { refcount_bits: 1, ..plain(1 << 20) }).unwrap();
    let mut image = fs::read(&path).unwrap();
    let header = Header::parse(&image).unwrap();
    let block = word(&image, header.refcount_table_offset);
    image[block as usize..][..1 << 16].fill(0xff);
    fs::write(&path, &image).unwrap();
    // One block is honest: all that it counts behind the end is leaked, and given back.
    let found = checked(&path);
    assert!(found.sound && found.leaked_clusters == (1 << 19) - 4, "{found:?}");
    assert!(check(&path, true, true, &mut |_, _| {}).unwrap().repaired_clusters == found.leaked_clusters);
    assert!(checked(&path).leaked_clusters == 0);
    for entry in 0..8192 {
        put(&mut image, header.refcount_table_offset + entry * 8, block);
    }
    fs::write(&path, &image).unwrap();
    assert!(!checked(&path).sound);
}

/// As `qemu-img snapshot -d` leaves it that was killed: counted for a snapshot that is not there, and entries say so.
#[test]
fn a_leak_that_entries_call_shared_is_not_made_damage() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let (mut image, header) = filled(&path, 16);
    let table = word(&image, header.l1_offset) & 0x00ff_ffff_ffff_fe00;
    let entry = word(&image, table);
    put(&mut image, table, entry & !(1 << 63));
    let block = word(&image, header.refcount_table_offset) as usize;
    refcount::set(&mut image[block..][..4096], 4, (entry & 0x00ff_ffff_ffff_fe00) >> 12, 2);
    fs::write(&path, &image).unwrap();
    let found = check(&path, true, true, &mut |_, _| {}).unwrap();
    assert!(found.sound && (found.leaked_clusters, found.repaired_clusters) == (1, 0), "{found:?}");
    assert!(checked(&path).sound);
}

#[test]
fn an_image_is_not_made_over_what_is_behind_it() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("base"), [7; 4096]).unwrap();
    let over = |name: &str, is_qcow2| CreateOptions {
        size_bytes: None,
        backing: Some(Backing { name: name.into(), is_qcow2 }),
        ..options_over(0)
    };
    create(&at("middle"), &over("base", false)).unwrap();
    std::os::unix::fs::symlink("base", at("link")).unwrap();
    for (path, backing, is_qcow2) in [("base", "base", false), ("link", "base", false), ("base", "middle", true)] {
        let error = refusal(create(&at(path), &over(backing, is_qcow2)));
        assert!(error.contains("the image itself"), "{error}");
    }
    assert_eq!(fs::read(at("base")).unwrap(), [7; 4096]);
    // Nor over what an image behind it has its data in.
    let apart = New { data_file: Some(b"data".to_vec()), ..New::default() };
    fs::write(at("apart"), apart.image().unwrap()).unwrap();
    fs::write(at("data"), [8; 4096]).unwrap();
    assert!(refusal(create(&at("data"), &over("apart", true))).contains("the image itself"));
    assert_eq!(fs::read(at("data")).unwrap(), [8; 4096]);
}

/// A server was killed, and the kernel still writes for it: an open file description holds a mark, and nobody alive does.
#[test]
fn tools_wait_for_what_a_killed_server_has_under_way() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let path = directory.path().join("image");
    create(&path, &plain(1 << 20)).unwrap();
    let tools: [&(dyn Fn() + Sync); 3] = [
        &|| drop(check(&path, true, true, &mut |_, _| {}).unwrap()),
        &|| drop(check(&path, false, false, &mut |_, _| {}).unwrap()),
        &|| create(&path, &options_over(1 << 20)).unwrap(),
    ];
    for tool in tools {
        let mark = fs::File::options().read(true).write(true).open(&path).unwrap();
        let lock = libc::flock {
            l_type: libc::F_RDLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            // `storage::late`, the mark with number 7.
            l_start: (1 << 61) + 7,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: a structure that the call reads.
        assert_eq!(unsafe { libc::fcntl(mark.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(tool);
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert!(!waiting.is_finished());
            drop(mark);
        });
    }
    assert!(checked(&path).sound);
}
