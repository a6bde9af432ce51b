//! What an image has, in its backing file.

use super::commit::Backing;
use super::resize::resize_by;
use super::*;
use crate::Qcow2Options;
use crate::new::New;
use crate::testing::{self, Findings, read};
use engine::Solo;
use std::fs;
use storage::Links;
use storage::{Operation, Task};
use tempfile::TempDir;
use testkit::storage as kit;

/// Data, zeroes over data of the backing file, and nothing: in pieces that lie closer than a copy looks at.
#[test]
fn only_what_an_image_has_itself_goes_into_its_backing_file() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().join(name);
    for (cluster_bits, is_qcow2) in [(9, false), (9, true), (16, false), (16, true)] {
        fs::write(at("raw"), vec![5; 2 << 20]).unwrap();
        let size_bytes = 2 << 20;
        let middle = New { cluster_bits: 12, size_bytes, backing: Some((b"raw".to_vec(), "raw")), ..New::default() };
        fs::write(at("middle"), middle.image().unwrap()).unwrap();
        let (name, format) = if is_qcow2 { ("middle", "qcow2") } else { ("raw", "raw") };
        let backing = Some((name.as_bytes().to_vec(), format));
        let new = New { cluster_bits, size_bytes: 3 << 20, backing, ..New::default() };
        fs::write(at("top"), new.image().unwrap()).unwrap();
        let storage = storage::open(&Qcow2Options::new(at("top"))).unwrap();
        let mut solo = Solo::new().unwrap();
        for piece in 0..10 {
            kit::write(&mut solo, &*storage, piece * 200_704, &[9; 65_536]).unwrap();
        }
        kit::write(&mut solo, &*storage, 5 << 19, &[8; 512]).unwrap();
        let mut task = Task::new();
        task.begin(Operation::WriteZeroes { offset: 131_072, len: 65_536, unmap: true, durable: false });
        kit::run(&mut solo, &*storage, &mut task).unwrap();
        drop(storage);
        let contents = read(&at("top"));
        let options = Qcow2Options::new(at("top"));
        let committed = commit(&options, false, &mut |_, _| {}).unwrap();
        assert!(committed.emptied && committed.size_bytes == 3 << 20, "{committed:?}");
        let all = committed.copied.data_bytes + committed.copied.zero_bytes;
        // Two clusters of 64 KiB for each write but the first, where they are so large.
        let own = if cluster_bits == 9 { (11 << 16) + 512 } else { 21 << 16 };
        assert_eq!(all, own, "{committed:?}");
        kit::assert_same(&read(&at("top")), &contents, 0);
        for name in if is_qcow2 { &["middle", "top"][..] } else { &["top"] } {
            assert_eq!(testing::examine(&fs::read(at(name)).unwrap()), Findings::default());
        }
        match is_qcow2 {
            true => kit::assert_same(&read(&at("middle")), &contents, 0),
            false => kit::assert_same(&fs::read(at("raw")).unwrap(), &contents, 0),
        }
        let nothing = commit(&options, false, &mut |_, _| {}).unwrap();
        assert_eq!((nothing.copied.data_bytes, nothing.copied.zero_bytes), (0, 0));
    }
}

#[test]
fn an_image_with_a_data_file_keeps_what_it_has() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("raw"), vec![5; 1 << 20]).unwrap();
    fs::write(at("data"), vec![0; 1 << 20]).unwrap();
    let backing = Some((b"raw".to_vec(), "raw"));
    let new = New { size_bytes: 1 << 20, backing, data_file: Some(b"data".to_vec()), ..New::default() };
    fs::write(at("top"), new.image().unwrap()).unwrap();
    let options = Qcow2Options::new(at("top"));
    kit::write(&mut Solo::new().unwrap(), &*storage::open(&options).unwrap(), 65_536, &[9; 65_536]).unwrap();
    let contents = read(&at("top"));
    let error = commit(&options, false, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("external data file") && error.contains("--keep"), "{error}");
    assert_eq!(fs::read(at("raw")).unwrap(), vec![5; 1 << 20]);
    assert!(!commit(&options, true, &mut |_, _| {}).unwrap().emptied);
    kit::assert_same(&fs::read(at("raw")).unwrap(), &contents, 0);
    kit::assert_same(&read(&at("top")), &contents, 0);
}

/// Somebody who may write to the image puts a link where its backing file was.
#[test]
fn a_link_where_the_backing_file_was_is_not_followed() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
    let new = New { size_bytes: 1 << 20, ..New::default() };
    fs::write(at("victim"), new.image().unwrap()).unwrap();
    std::os::unix::fs::symlink("victim", at("link")).unwrap();
    for behind in [From::Raw(at("link")), From::Qcow2(Qcow2Options::new(at("link")))] {
        assert!(Backing::open(&behind).is_err_and(|error| error.to_string().contains("link")));
        let grown = resize_by(&behind, Links::Refuse, (NewSize::By(1 << 20), false), &mut |_, _| {});
        assert!(grown.is_err_and(|error| error.to_string().contains("link")));
    }
    assert_eq!(fs::read(at("victim")).unwrap(), new.image().unwrap());
}

#[test]
fn an_image_that_leads_to_itself_is_said_to() {
    let directory = TempDir::new_in(kit::disk()).unwrap();
    let path = directory.path().join("image");
    fs::write(&path, New { backing: Some((b"image".to_vec(), "qcow2")), ..New::default() }.image().unwrap()).unwrap();
    let error = commit(&Qcow2Options::new(&path), false, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("in its own chain"), "{error}");
}
