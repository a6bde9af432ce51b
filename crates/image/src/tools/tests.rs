//! Tools on images that they made; QEMU's opinion is asked for in the room `tests`.

use super::*;
use crate::header::Header;
use crate::new::New;
use crate::testing::{self, Findings};
use crate::{Qcow2Options, refcount};
use engine::Solo;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use testkit::storage as kit;

fn plain(size_bytes: u64) -> CreateOptions {
    CreateOptions {
        size_bytes: Some(size_bytes),
        cluster_bytes: 64 << 10,
        refcount_bits: 16,
        subclusters: false,
        backing: None,
        force: false,
    }
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
