//! `vringd image` as a person types it: what it makes, what it says in both forms, what it refuses.

use crate::place::Place;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use testkit::Rng;

const MIB: u64 = 1 << 20;

#[test]
fn an_image_is_made_and_looked_at() {
    let place = Place::of("image");
    let text = place.done("create --size 64M disk.qcow2");
    for part in ["disk.qcow2", "qcow2, version 3", "64M (67108864 bytes)", "64K; refcounts of 16 bits"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    assert_eq!(place.done("info disk.qcow2"), text);
    let info = place.json("info disk.qcow2");
    assert_eq!((&info["size_bytes"], &info["cluster_bytes"]), (&(64 * MIB).into(), &(64 << 10).into()), "{info}");
    assert_eq!(place.done("check disk.qcow2"), "disk.qcow2: sound; 0.0 % of the disk is allocated\n");
    place.done("create --backing disk.qcow2 --backing-format qcow2 --cluster-size 128K --subclusters top.qcow2");
    let all = place.json("info --chain top.qcow2");
    assert_eq!((&all[0]["backing_file"], &all[0]["subclusters"]), (&"disk.qcow2".into(), &true.into()), "{all}");
    assert_eq!((&all[1]["size_bytes"], all.as_array().map(Vec::len)), (&(64 * MIB).into(), Some(2)), "{all}");
    let text = place.done("info --chain top.qcow2");
    assert!(text.contains("disk.qcow2 (qcow2)") && text.contains("in 32 parts each"), "{text}");
}

#[test]
fn bitmaps_are_listed_and_changed() {
    let place = Place::of("image");
    place.done("create --size 1M disk.qcow2");
    assert_eq!(place.done("bitmap list disk.qcow2"), "no bitmaps\n");
    assert_eq!(place.done("bitmap add disk.qcow2 daily"), "daily  64K  enabled\n");
    place.done("bitmap add disk.qcow2 weekly --granularity 1M");
    place.done("bitmap clear disk.qcow2 daily");
    assert_eq!(place.done("bitmap disable disk.qcow2 weekly"), "daily  64K  enabled\nweekly  1M  disabled\n");
    let all = place.json("bitmap list disk.qcow2");
    assert_eq!((&all[1]["name"], &all[1]["granularity_bytes"]), (&"weekly".into(), &MIB.into()), "{all}");
    place.done("bitmap enable disk.qcow2 weekly");
    place.done("bitmap remove disk.qcow2 weekly");
    assert_eq!(place.done("bitmap remove disk.qcow2 daily"), "no bitmaps\n");
    assert_eq!(place.done("check disk.qcow2"), "disk.qcow2: sound; 0.0 % of the disk is allocated\n");
}

#[test]
fn what_is_wrong_is_said_in_one_line_and_changes_nothing() {
    let place = Place::of("image");
    place.done("create --size 1M disk.qcow2");
    fs::write(place.path("raw"), [0; 4096]).unwrap();
    for (words, parts) in [
        ("create --size 1M disk.qcow2", &["disk.qcow2", "--force"][..]),
        ("create --size 1M --cluster-size 3K new", &["power of two"]),
        ("create --size 1M --cluster-size 4M new", &["2 MiB"]),
        ("create --size 1M --refcount-bits 5 new", &["16, 32 or 64"]),
        ("create --size 1M --cluster-size 4K --subclusters new", &["16 KiB"]),
        ("create --size 90000T new", &["larger ones"]),
        ("create --size 0 new", &["512"]),
        ("bitmap remove disk.qcow2 daily", &["disk.qcow2", "`daily`"]),
        ("bitmap add disk.qcow2 daily --granularity 3K", &["power of two"]),
        ("create --backing raw --backing-format qcow2 new", &["raw", "does not begin"]),
        ("create --backing missing --backing-format raw new", &["missing", "No such file"]),
        ("create --size 1M none/new", &["none/new", "No such file"]),
        ("info raw", &["raw", "does not begin like a qcow2 image"]),
        ("check missing", &["missing", "No such file"]),
        ("info .", &[".", "no regular file"]),
    ] {
        place.refused(words, parts);
    }
    for words in ["create new", "create --backing raw new", "create --size many new", "check --repair --no-lock x", ""]
    {
        assert_eq!(place.run(words).status.code(), Some(2), "{words}");
        assert!(!place.path("new").exists());
    }
}

#[test]
fn images_are_converted_both_ways() {
    let place = Place::of("image");
    let contents: Vec<u8> = (0..3 * MIB).map(|at| if at < 2 * MIB { 0 } else { (at / 512) as u8 | 1 }).collect();
    fs::write(place.path("disk.img"), &contents).unwrap();
    let text = place.done("convert disk.img disk.qcow2");
    assert_eq!(text, "disk.qcow2: a qcow2 image of 3M; 1M written, 2M zeroes left out\n");
    assert_eq!(place.json("check disk.qcow2")["allocated_clusters"], 16);
    let needs = place.json("measure disk.img");
    assert_eq!((&needs["required"], &needs["fully-allocated"]), (&(53 << 16).into(), &(53 << 16).into()), "{needs}");
    let text = place.done("measure --size 20G");
    assert!(text.starts_with("required         3456K (3538944 bytes)\nfully allocated  20.0G (2147"), "{text}");
    let json = place.json("convert --from qcow2 --to raw disk.qcow2 back.img");
    assert_eq!((&json["size_bytes"], &json["data_bytes"]), (&(3 * MIB).into(), &MIB.into()), "{json}");
    assert_eq!(fs::read(place.path("back.img")).unwrap(), contents);
    assert_eq!(place.done("compare disk.img --other-format qcow2 disk.qcow2"), "the same\n");
    fs::write(place.path("back.img"), &contents[..2 * MIB as usize]).unwrap();
    let output = place.run("compare back.img --other-format qcow2 disk.qcow2");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("different from byte 2097152 on; their sizes are 2M") && said.contains("3M"), "{said}");
    // Without its format an image is bytes, and whoever forgot to say it hears of that.
    let output = place.run("convert --log-level warn disk.qcow2 twice.qcow2");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("begins like a qcow2 image and is read as raw bytes"), "{said}");
    for (words, parts) in [
        ("convert disk.img disk.qcow2", &["disk.qcow2", "--force"][..]),
        ("convert --from qcow2 disk.img new", &["disk.img", "does not begin"]),
        ("convert --from vmdk disk.img new", &["disk.img", "too long for a descriptor", "name the small one"]),
        ("convert --from vhdx disk.img new", &["disk.img", "is not read as vhdx", "`qemu-img info`"]),
        ("convert --from vhdx --snapshot a disk.img new", &["--snapshot", "a vhdx image"]),
        ("compare disk.img --other-format vpc disk.img", &["disk.img", "the footer of a VHD image"]),
        ("convert --to raw --size 4M disk.img new", &["--size", "raw"]),
        ("convert --size 4M --cluster-size 3 disk.img new", &["power of two"]),
        ("convert --size 1K disk.img new", &["more than the size"]),
        ("convert missing new", &["missing", "No such file"]),
        ("measure missing", &["missing", "No such file"]),
        ("measure --from qcow2 disk.img", &["disk.img", "does not begin"]),
        ("measure --size 1G --cluster-size 3", &["the new image", "power of two"]),
    ] {
        place.refused(words, parts);
    }
}

#[test]
fn what_gets_smaller_is_compressed() {
    let place = Place::of("image");
    // Zeroes, text, and what does not get smaller.
    let mut rng = Rng(5);
    let noise = std::iter::repeat_with(|| (rng.word() >> 32) as u8);
    let text = (0..).flat_map(|line: u32| format!("line {line} is much like the one before\n").into_bytes());
    let mib = MIB as usize;
    let contents: Vec<u8> = std::iter::repeat_n(0, mib).chain(text.take(4 * mib)).chain(noise.take(mib)).collect();
    fs::write(place.path("disk.img"), &contents).unwrap();
    let space = |name: &str| fs::metadata(place.path(name)).unwrap().blocks() * 512;
    place.done("convert disk.img plain");
    assert!(space("plain") > 5 * MIB);
    for (words, name) in
        [("--compress", "zlib"), ("-c --compression zlib", "zlib-by-name"), ("--compress --compression zstd", "zstd")]
    {
        let json = place.json(&format!("convert {words} disk.img {name}"));
        assert_eq!((&json["size_bytes"], &json["data_bytes"]), (&(6 * MIB).into(), &(5 * MIB).into()), "{json}");
        assert!(space(name) < space("plain") / 2, "{name}: {} bytes", space(name));
        let kind = if name == "zstd" { "zstd" } else { "zlib" };
        assert_eq!(place.json(&format!("info {name}"))["compression"], kind, "{name}");
        assert!(place.done(&format!("check {name}")).starts_with(&format!("{name}: sound; ")));
        place.done(&format!("convert --from qcow2 --to raw {name} back.img"));
        assert!(fs::read(place.path("back.img")).unwrap() == contents, "{name} reads otherwise");
        fs::remove_file(place.path("back.img")).unwrap();
    }
    for (words, parts) in [
        ("convert --compress --to raw disk.img new", &["--compress", "raw"][..]),
        ("convert --compress disk.img plain", &["plain", "--force"]),
        ("convert --compress missing new", &["missing", "No such file"]),
        ("convert --compress --from qcow2 disk.img new", &["disk.img", "does not begin"]),
    ] {
        place.refused(words, parts);
    }
    for words in ["convert --compression zstd disk.img new", "convert --compress --compression lzma disk.img new"] {
        assert_eq!(place.run(words).status.code(), Some(2), "{words}");
        assert!(!place.path("new").exists());
    }
    place.done("convert --compress --force disk.img plain");
    assert!(space("plain") < space("zlib") + MIB / 4);
}

#[test]
fn damage_is_told_by_words_json_and_status() {
    let place = Place::of("image");
    place.done("create --size 1M disk.qcow2");
    // The block that counts: it is the third cluster, and the header counts as free.
    let file = fs::File::options().write(true).open(place.path("disk.qcow2")).unwrap();
    file.write_all_at(&[0, 0], 2 << 16).unwrap();
    let output = place.run("check disk.qcow2");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("offset 0x0 is used 1 times and counted 0 times") && text.contains("qemu-img check -r all"),
        "{text}"
    );
    let output = place.run("check --json --repair disk.qcow2");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &json["sound"], &json["problem_count"]), (Some(1), &false.into(), &1.into()));
    // One cluster more is counted than used: a leak, which is no damage.
    file.write_all_at(&[0, 1], 2 << 16).unwrap();
    file.write_all_at(&[0, 1], (2 << 16) + 2 * 100).unwrap();
    let text = place.done("check disk.qcow2");
    assert!(text.contains("1 clusters (64K) are leaked: --repair gives them back"), "{text}");
    assert!(place.done("check --repair disk.qcow2").contains("1 leaked clusters were given back"));
    assert_eq!(place.json("check disk.qcow2")["leaked_clusters"], 0);
}

#[test]
fn disks_get_other_sizes() {
    let place = Place::of("image");
    place.done("create --size 64M disk.qcow2");
    assert_eq!(
        place.done("resize disk.qcow2 +1G"),
        "disk.qcow2: 1088M (1140850688 bytes), and was 64M (67108864 bytes)\n"
    );
    let json = place.json("resize --shrink disk.qcow2 1M");
    assert_eq!((&json["size_bytes"], &json["size_bytes_before"]), (&MIB.into(), &(1088 * MIB).into()), "{json}");
    fs::write(place.path("disk.img"), [7; 512]).unwrap();
    place.done("resize --format raw disk.img 1K");
    assert_eq!(fs::read(place.path("disk.img")).unwrap(), [[7; 512], [0; 512]].concat());
    for (words, parts) in [
        ("resize disk.qcow2 512K", &["disk.qcow2", "--shrink"][..]),
        ("resize disk.qcow2 90000T", &["disk.qcow2", "vringd image convert"]),
        ("resize disk.img 2M", &["disk.img", "does not begin"]),
        ("resize missing 2M", &["missing", "No such file"]),
    ] {
        place.refused(words, parts);
    }
    assert_eq!(place.run("resize disk.qcow2 +many").status.code(), Some(2));
    assert_eq!(place.json("info disk.qcow2")["size_bytes"], MIB);
}

#[test]
fn what_an_image_has_goes_into_its_backing_file() {
    let place = Place::of("image");
    fs::write(place.path("disk.img"), vec![7; MIB as usize]).unwrap();
    place.done("convert --from raw --size 2M disk.img disk.qcow2");
    place.done("create --size 1M base.qcow2");
    place.done("create --backing base.qcow2 --backing-format qcow2 top.qcow2");
    for (words, parts) in [
        ("commit disk.qcow2", &["disk.qcow2", "no backing file"][..]),
        ("commit disk.img", &["disk.img", "does not begin"]),
        ("commit missing", &["missing", "No such file"]),
    ] {
        place.refused(words, parts);
    }
    let text = place.done("commit top.qcow2");
    assert!(text.ends_with("base.qcow2: 0 and 0 of zeroes written; top.qcow2 is empty now\n"), "{text}");
    let json = place.json("commit --keep top.qcow2");
    assert_eq!((&json["size_bytes"], &json["emptied"]), (&MIB.into(), &false.into()), "{json}");
}

#[test]
fn an_image_gets_another_backing_file() {
    let place = Place::of("image");
    fs::write(place.path("one"), vec![7; MIB as usize]).unwrap();
    fs::write(place.path("other"), vec![8; MIB as usize]).unwrap();
    place.done("create --backing one --backing-format raw top");
    let before = fs::read(place.path("top")).unwrap();
    for (words, parts) in [
        ("rebase --backing missing --backing-format raw top", &["missing", "No such file"][..]),
        ("rebase --backing top --backing-format qcow2 top", &["top", "the image itself"]),
        ("rebase --backing other --backing-format qcow2 top", &["other", "does not begin"]),
        ("rebase --no-backing one", &["one", "does not begin"]),
        ("rebase --unsafe --backing nbd://x/y --backing-format raw top", &["top", "protocol"]),
    ] {
        place.refused(words, parts);
        assert_eq!(fs::read(place.path("top")).unwrap(), before);
    }
    for words in
        ["rebase top", "rebase --backing one top", "rebase --backing one --backing-format raw --no-backing top"]
    {
        assert_eq!(place.run(words).status.code(), Some(2), "{words}");
    }
    let text = place.done("rebase --unsafe --backing other --backing-format raw top");
    assert_eq!(text, "top: has other behind it; 0 copied into it\n");
    assert_eq!(place.done("compare other --other-format qcow2 top"), "the same\n");
    let json = place.json("rebase --backing one --backing-format raw top");
    assert_eq!((&json["backing_file"], &json["data_bytes"]), (&"one".into(), &MIB.into()), "{json}");
    assert_eq!(place.done("compare other --other-format qcow2 top"), "the same\n");
    assert_eq!(place.done("rebase --no-backing top"), "top: has nothing behind it; 0 copied into it\n");
    assert_eq!(place.done("compare other --other-format qcow2 top"), "the same\n");
}
