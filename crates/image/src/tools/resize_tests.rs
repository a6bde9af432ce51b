//! Disks of other sizes.

use super::*;
use crate::header::Header;
use crate::new::New;
use crate::testing::{self, Findings, read};
use crate::{Qcow2Options, features};
use engine::Solo;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use testkit::storage as kit;

fn qcow2(path: &Path) -> From {
    From::Qcow2(Qcow2Options::new(path))
}

fn to(path: &Path, size_bytes: u64) -> Result<Resized, ToolError> {
    resize(&qcow2(path), NewSize::To(size_bytes), false, &mut |_, _| {})
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ToolError>) -> String {
    result.unwrap_err().to_string()
}

fn write(path: &Path, offset: u64, bytes: &[u8]) {
    let storage = storage::open(&Qcow2Options::new(path)).unwrap();
    kit::write(&mut Solo::new().unwrap(), &*storage, offset, bytes).unwrap();
}

fn sound(path: &Path) {
    assert_eq!(testing::examine(&fs::read(path).unwrap()), Findings::default());
}

/// Whatever the layout, and wherever a longer L1 table or refcount table has to go.
#[test]
fn disks_grow_past_the_end_of_their_l1_table() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    for cluster_bits in [9, 12, 16, 21] {
        for refcount_order in [0, 4, 6] {
            for version in [2, 3] {
                let new = New { version, cluster_bits, refcount_order, size_bytes: 1 << 20, ..New::default() };
                if version == 2 && refcount_order != 4 {
                    continue;
                }
                fs::write(&path, new.image().unwrap()).unwrap();
                let mut contents = vec![0; 1 << 20];
                contents[300 << 10..][..200 << 10].fill(7);
                write(&path, 300 << 10, &[7; 200 << 10]);
                for size_bytes in [3 << 20, (40 << 20) + 512, 2 << 30] {
                    let before = Header::parse(&fs::read(&path).unwrap()).unwrap();
                    let resized = to(&path, size_bytes).unwrap();
                    let said = Resized { size_bytes, size_bytes_before: before.size_bytes };
                    assert_eq!(resized, said);
                    sound(&path);
                    let now = Header::parse(&fs::read(&path).unwrap()).unwrap();
                    assert_eq!(now.size_bytes, size_bytes);
                    assert_eq!(now.l1_offset == before.l1_offset, now.l1_entries == before.l1_entries, "{new:?}");
                    if size_bytes < 1 << 30 {
                        contents.resize(size_bytes as usize, 0);
                        kit::assert_same(&read(&path), &contents, 0);
                        let last = contents.len() - 512;
                        contents[last..].fill(9);
                        write(&path, last as u64, &[9; 512]);
                        sound(&path);
                    }
                }
            }
        }
    }
    let smallest = New { cluster_bits: 9, ..New::default() };
    fs::write(&path, smallest.image().unwrap()).unwrap();
    let before = fs::read(&path).unwrap();
    let error = refusal(to(&path, (128 << 30) + 512));
    assert!(error.contains("vringd image convert"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
    to(&path, 128 << 30).unwrap();
    sound(&path);
}

/// Nothing of what is behind the image comes up, nor what lies behind the old end in its last cluster.
#[test]
fn what_is_new_reads_as_zeroes() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("base"), vec![5; 4 << 20]).unwrap();
    for (version, cluster_bits, incompatible) in
        [(3, 9, 0), (3, 16, 0), (3, 21, 0), (2, 16, 0), (3, 16, features::EXTENDED_L2)]
    {
        for data_file in [None, Some(b"data".to_vec())] {
            if data_file.is_some() && version == 2 {
                continue;
            }
            fs::write(at("data"), vec![6; 3 << 20]).unwrap();
            let size_bytes = (1 << 20) + 512;
            let backing = Some((b"base".to_vec(), "raw"));
            let has_data_file = data_file.is_some();
            let new = New { version, cluster_bits, incompatible, size_bytes, backing, data_file, ..New::default() };
            fs::write(at("image"), new.image().unwrap()).unwrap();
            write(&at("image"), 1 << 20, &[8; 512]);
            let mut contents = read(&at("image"));
            for size_bytes in [(1 << 20) + 4096, 3 << 20, 9 << 20] {
                to(&at("image"), size_bytes).unwrap();
                contents.resize(size_bytes as usize, 0);
                kit::assert_same(&read(&at("image")), &contents, 0);
                let found = check(&at("image"), false, true, &mut |_, _| {}).unwrap();
                assert!(found.sound && found.leaked_clusters == 0, "{new:?}: {found:?}");
                assert!(!has_data_file || fs::metadata(at("data")).unwrap().len() >= size_bytes);
            }
        }
    }
}

#[test]
fn disks_shrink_when_they_are_told_to() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    fs::write(&path, New { size_bytes: 4 << 20, ..New::default() }.image().unwrap()).unwrap();
    write(&path, 0, &[3; 4 << 20]);
    let error = refusal(to(&path, 1 << 20));
    assert!(error.starts_with(&path.display().to_string()) && error.contains("--shrink"), "{error}");
    let size_bytes = (1 << 20) + 512;
    resize(&qcow2(&path), NewSize::To(size_bytes), true, &mut |_, _| {}).unwrap();
    assert_eq!(read(&path), vec![3; size_bytes as usize]);
    sound(&path);
    assert_eq!(check(&path, false, true, &mut |_, _| {}).unwrap().allocated_clusters, 17);
    let resized = resize(&qcow2(&path), NewSize::By(1 << 20), false, &mut |_, _| {}).unwrap();
    assert_eq!(resized.size_bytes, (2 << 20) + 512);
    let mut contents = vec![3; size_bytes as usize];
    contents.resize((2 << 20) + 512, 0);
    kit::assert_same(&read(&path), &contents, 0);
    sound(&path);
}

#[test]
fn what_cannot_be_resized_is_left_alone() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let image = New::default().image().unwrap();
    fs::write(&path, &image).unwrap();
    let served = storage::open(&Qcow2Options::new(&path)).unwrap();
    refusal(to(&path, 8 << 20));
    drop(served);
    for size in [NewSize::To(0), NewSize::To(u64::MAX), NewSize::By(u64::MAX)] {
        let error = refusal(resize(&qcow2(&path), size, true, &mut |_, _| {}));
        assert!(error.contains("8 EiB"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), image);
    let raw = From::Raw(path.clone());
    let len = image.len() as u64;
    assert!(refusal(resize(&raw, NewSize::To(512), false, &mut |_, _| {})).contains("--shrink"));
    let resized = resize(&raw, NewSize::By(100), false, &mut |_, _| {}).unwrap();
    assert_eq!(resized, Resized { size_bytes: len + 512, size_bytes_before: len });
    assert_eq!(fs::read(&path).unwrap(), [&image[..], &[0; 512]].concat());
    resize(&raw, NewSize::To(len), true, &mut |_, _| {}).unwrap();
    assert_eq!(fs::read(&path).unwrap(), image);
    let error = refusal(resize(&From::Raw("/dev/null".into()), NewSize::To(512), false, &mut |_, _| {}));
    assert!(error.contains("no regular file"), "{error}");
}
