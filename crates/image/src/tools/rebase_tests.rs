//! Other backing files, and the header that names them.

use super::rebase::{joined, pieces, without};
use super::*;
use crate::header::Header;
use crate::new::New;
use crate::rewrite::steps;
use crate::testing::{self, Findings, read};
use crate::{Qcow2Options, features};
use engine::Solo;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tempfile::TempDir;
use testkit::storage as kit;

fn raw(name: &str) -> Option<Backing> {
    Some(Backing { name: name.into(), is_qcow2: false })
}

fn go(path: &Path, backing: Option<&Backing>) -> Result<Rebased, ToolError> {
    rebase(&Qcow2Options::new(path), backing, false, &mut |_, _| {})
}

/// Zeroes over data, data over zeroes, nothing over both; with and without zero clusters.
#[test]
fn what_differs_behind_an_image_is_copied_into_it_and_nothing_else() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut one = vec![5; 2 << 20];
    one[256 << 10..512 << 10].fill(0);
    let mut other = one.clone();
    other[320 << 10..400 << 10].fill(6);
    other[1 << 20..][..64 << 10].fill(0);
    fs::write(at("one"), &one).unwrap();
    fs::write(at("other"), &other).unwrap();
    for (version, cluster_bits, incompatible) in
        [(3, 9, 0), (3, 16, 0), (3, 21, 0), (2, 16, 0), (3, 16, features::EXTENDED_L2)]
    {
        let backing = Some((b"one".to_vec(), "raw"));
        let new = New { version, cluster_bits, incompatible, size_bytes: 3 << 20, backing, ..New::default() };
        fs::write(at("image"), new.image().unwrap()).unwrap();
        let storage = storage::open(&Qcow2Options::new(at("image"))).unwrap();
        kit::write(&mut Solo::new().unwrap(), &*storage, 5000 << 9, &[9; 512]).unwrap();
        drop(storage);
        let contents = read(&at("image"));
        let rebased = go(&at("image"), raw("other").as_ref()).unwrap();
        assert!(rebased.copied.data_bytes + rebased.copied.zero_bytes <= 192 << 10, "{rebased:?}");
        for backing in [raw("one"), None, raw("other"), raw("one"), None] {
            go(&at("image"), backing.as_ref()).unwrap();
            kit::assert_same(&read(&at("image")), &contents, 0);
            assert_eq!(testing::examine(&fs::read(at("image")).unwrap()), Findings::default());
        }
    }
}

#[test]
fn a_header_keeps_all_but_what_is_behind() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    for cluster_bits in [9, 12, 16] {
        let names = [None, raw("a"), raw(&"long".repeat(40)), raw("b")];
        let backing = Some((b"first".to_vec(), "qcow2"));
        fs::write(&path, New { cluster_bits, backing, ..New::default() }.image().unwrap()).unwrap();
        for backing in names {
            let before = Header::parse(&fs::read(&path).unwrap()).unwrap();
            rebase(&Qcow2Options::new(&path), backing.as_ref(), true, &mut |_, _| {}).unwrap();
            let after = Header::parse(&fs::read(&path).unwrap()).unwrap();
            let name = backing.map(|backing| backing.name.as_os_str().as_bytes().to_vec());
            assert_eq!(after.backing_file, name);
            let mut extensions = before.extensions.clone();
            extensions.backing_format = name.map(|_| "raw".to_owned());
            assert_eq!(after, Header { backing_file: after.backing_file.clone(), extensions, ..before });
            assert_eq!(testing::examine(&fs::read(&path).unwrap()), Findings::default());
        }
        let long = rebase(&Qcow2Options::new(&path), raw(&"x".repeat(1024)).as_ref(), true, &mut |_, _| {});
        let error = long.unwrap_err().to_string();
        assert!(error.contains("1023"), "{error}");
    }
}

#[test]
fn a_name_that_does_not_fit_into_its_cluster_is_refused() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    for backing in [None, Some((b"first".to_vec(), "qcow2"))] {
        fs::write(&path, New { cluster_bits: 9, backing, ..New::default() }.image().unwrap()).unwrap();
        let before = fs::read(&path).unwrap();
        for len in [400, 500, 600, 1023] {
            let long = raw(&"x".repeat(len));
            let refused = rebase(&Qcow2Options::new(&path), long.as_ref(), true, &mut |_, _| {}).unwrap_err();
            assert!(refused.to_string().contains("give a shorter"), "{len}: {refused}");
            assert!(before == fs::read(&path).unwrap(), "{len}");
        }
    }
}

/// In small clusters long names have no place beside one another: nothing is written, as a power cut would leave neither.
#[test]
fn a_header_that_would_not_switch_at_once_is_refused() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let (one, other) = ("one/".repeat(150), "other/".repeat(100));
    let backing = Some((one.into_bytes(), "raw"));
    fs::write(&path, New { cluster_bits: 10, backing, ..New::default() }.image().unwrap()).unwrap();
    let rebase = |backing: Option<Backing>| rebase(&Qcow2Options::new(&path), backing.as_ref(), true, &mut |_, _| {});
    let before = fs::read(&path).unwrap();
    let error = rebase(raw(&other)).unwrap_err().to_string();
    assert!(error.contains("no room") && before == fs::read(&path).unwrap(), "{error}");
    for backing in [None, raw(&other), raw("short")] {
        rebase(backing).unwrap();
    }
}

#[test]
fn ranges_are_taken_out_of_ranges() {
    let left = without(vec![0..10, 20..30, 40..50], &[0..2, 4..6, 9..22, 23..24, 30..60]);
    assert_eq!(left, [2..4, 6..9, 22..23, 24..30]);
    assert_eq!(pieces(5..25, 10).collect::<Vec<_>>(), [5..10, 10..20, 20..25]);
    assert_eq!(joined(vec![1536..2048, 0..512, 512..700]), [0..1024, 1536..2048]);
}

/// A cut leaves some sectors of what is being written, and not others: the header names the one or the other.
#[test]
fn a_header_switches_with_one_sector() {
    let (mut seen, mut torn) = (0, 0);
    for (version, cluster_bits) in [(3, 9), (3, 10), (3, 11), (3, 12), (3, 16), (2, 12)] {
        let new = |backing: Option<&str>| {
            let backing = backing.map(|name| (name.as_bytes().to_vec(), if name == "c" { "qcow2" } else { "raw" }));
            New { version, cluster_bits, backing, ..New::default() }.image().unwrap()
        };
        let long = "long".repeat(if cluster_bits == 9 { 20 } else { 150 });
        let other_long = long.to_uppercase();
        let names = [None, Some("a"), Some("c"), Some(&long[..]), Some("another name"), Some(&other_long)];
        for (from, to) in names.iter().flat_map(|from| names.iter().map(move |to| (*from, *to))) {
            let image = new(from);
            let mut before = image[..1 << cluster_bits].to_vec();
            let (old, wanted) = (Header::parse(&before).unwrap(), Header::parse(&new(to)).unwrap());
            // 1024 bytes have no room for both.
            let is_torn = cluster_bits == 10 && [from, to].iter().all(|name| name.is_some_and(|name| name.len() > 500));
            torn += u32::from(is_torn);
            for (at, bytes) in steps(&old, &wanted, &before.clone()) {
                let sectors = at / 512..(at + bytes.len()).div_ceil(512);
                for mask in 0..1u32 << sectors.len().min(4) {
                    let mut cut = before.clone();
                    for sector in sectors.clone().filter(|sector| mask >> (sector - sectors.start).min(3) & 1 == 1) {
                        let range = (sector * 512).max(at)..((sector + 1) * 512).min(at + bytes.len());
                        cut[range.clone()].copy_from_slice(&bytes[range.start - at..range.end - at]);
                    }
                    let read = Header::parse(&cut).unwrap();
                    let said = (&read.backing_file, &read.extensions.backing_format);
                    let one = said == (&old.backing_file, &old.extensions.backing_format);
                    let other = said == (&wanted.backing_file, &wanted.extensions.backing_format);
                    assert!(one || other || is_torn, "{from:?} to {to:?}: {read:?}");
                    seen += 1;
                }
                before[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(Header::parse(&before).unwrap(), wanted, "{from:?} to {to:?}");
            let names = before.windows(4).filter(|four| four.eq_ignore_ascii_case(b"long")).count();
            assert_eq!(
                names,
                to.filter(|name| name.len() > 50).map_or(0, |name| name.len() / 4),
                "nothing is left of {from:?}"
            );
        }
    }
    assert!(seen > 300 && torn == 4, "{seen}, {torn}");
}
