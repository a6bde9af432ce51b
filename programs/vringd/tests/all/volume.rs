//! `vringd volume` as a person types it: what it makes, what it says in both forms, what it refuses.

use crate::place::{Place, Server};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

const MIB: u64 = 1 << 20;

#[test]
fn a_volume_is_made_and_looked_at() {
    let place = Place::of("volume");
    let text = place.done("create --size 64M --log-size 2M disk.vol");
    for part in ["disk.vol", "64M (67108864 bytes)", "2M in the volume", "in order"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    assert_eq!(place.done("info disk.vol"), text);
    let info = place.json("info disk.vol");
    assert_eq!((&info["capacity_bytes"], &info["clean"]), (&(64 * MIB).into(), &true.into()), "{info}");
    assert_eq!((&info["log"]["len"], &info["memory"]), (&(2 * MIB).into(), &Value::Null), "{info}");
    // Thin: the log is there, the disk is not.
    let about = fs::metadata(place.path("disk.vol")).unwrap();
    assert!(about.len() > 64 * MIB && about.blocks() * 512 < 8 * MIB, "{} blocks", about.blocks());

    let text = place.done("check disk.vol");
    assert!(text.ends_with("disk.vol: sound, and closed in order\n"), "{text}");
    let checked = place.json("check disk.vol");
    assert_eq!((&checked["sound"], &checked["needs_replay"]), (&true.into(), &false.into()), "{checked}");
    assert_eq!(checked["superblock"]["clean"], true, "{checked}");
    let text = place.done("replay disk.vol");
    assert!(text.starts_with("disk.vol: 0 records") && text.ends_with("disk.vol: closed in order\n"), "{text}");
    assert_eq!(place.json("replay disk.vol")["log"]["records"], 0);
    assert_eq!(place.names(), ["disk.vol"]);
}

#[test]
fn sizes_have_their_bounds() {
    let place = Place::of("volume");
    for (words, parts) in [
        ("create --size 0 disk.vol", &["size", "512"][..]),
        ("create --size 1000 disk.vol", &["size", "512"]),
        ("create --size 1M --log-size 4K disk.vol", &["log", "64"]),
        ("create --size 1M --log-size 2T disk.vol", &["log"]),
    ] {
        place.refused(words, parts);
    }
    for words in ["create disk.vol", "create --size 1M", "create --size many disk.vol", "resize disk.vol", ""] {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(!place.path("disk.vol").exists());
    }
}

#[test]
fn what_is_there_is_not_overwritten() {
    let place = Place::of("volume");
    fs::write(place.path("precious"), "precious").unwrap();
    place.refused("create --size 1M precious", &["precious", "--force"]);
    place.refused("create --size 1M --log precious disk.vol", &["precious", "--force"]);
    place.done("create --size 1M --force precious");
    assert_eq!(place.json("info precious")["capacity_bytes"], MIB);
    place.refused("create --size 1M precious", &["precious", "--force"]);
    fs::write(place.path("image"), vec![7; 1 << 20]).unwrap();
    place.refused("convert image precious", &["precious", "--force"]);
    place.refused("convert --to raw precious image", &["image", "--force"]);
}

#[test]
fn what_is_no_volume_is_named() {
    let place = Place::of("volume");
    fs::write(place.path("image"), vec![0; 1 << 20]).unwrap();
    for words in ["info", "replay", "resize --shrink", "log add --log l", "log remove --lost"] {
        let more = if words.starts_with("resize") { "2M" } else { "" };
        place.refused(&format!("{words} image {more}"), &["image: ", "not a volume", "vringd volume create"]);
        place.refused(&format!("{words} missing {more}"), &["missing", "No such file"]);
    }
    // `check` says it as what it found.
    let output = place.run("check image");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("image: error: not a volume"), "{output:?}");
    place.refused("check missing", &["missing", "No such file"]);
    place.refused("info .", &[".: cannot open"]);
    place.refused("convert --to raw image raw", &["image: ", "not a volume"]);
    place.refused("convert missing disk.vol", &["missing"]);
}

#[test]
fn it_grows_and_does_not_shrink_by_itself() {
    let place = Place::of("volume");
    place.done("create --size 16M --log-size 1M disk.vol");
    assert_eq!(place.json("resize disk.vol 32M")["capacity_bytes"], 32 * MIB);
    place.refused("resize disk.vol 16M", &["disk.vol: has 32M", "--shrink"]);
    assert!(place.done("resize --shrink disk.vol 8M").contains("8M (8388608 bytes)"));
    place.refused("resize disk.vol 8388700", &["512"]);
    assert!(place.done("check disk.vol").contains("sound"));
}

#[test]
fn a_log_is_put_elsewhere_and_back() {
    let place = Place::of("volume");
    place.done("create --size 16M --log-size 1M disk.vol");
    place.refused("log remove disk.vol --log none.log", &["none.log", "No such file"]);
    place.refused("log remove disk.vol --lost", &["disk.vol: ", "inside"]);
    let info = place.json("log add disk.vol --log fast.log --size 2M");
    assert_eq!((&info["log"]["external"], &info["log"]["len"]), (&"fast.log".into(), &(2 * MIB).into()), "{info}");
    assert!(place.done("info disk.vol").contains("2M in fast.log"));
    assert!(place.done("check disk.vol --log fast.log").contains("sound"));
    place.refused("log add disk.vol --log other.log", &["disk.vol: ", "already has a log"]);
    place.refused("replay disk.vol", &["disk.vol: ", "fast.log", "nothing is lost", "log remove --lost"]);
    place.done("create --size 1M --log foreign.log other.vol");
    place.refused("replay disk.vol --log foreign.log", &["disk.vol: ", "not this volume's log"]);
    place.refused("replay disk.vol --log other.vol", &["disk.vol: "]);
    place.done("replay disk.vol --log fast.log");
    let info = place.json("log remove disk.vol --log fast.log");
    assert_eq!(info["log"]["external"], Value::Null, "{info}");
    place.refused("replay disk.vol --log fast.log", &["disk.vol: ", "leave --log out"]);
    place.done("replay disk.vol");

    place.done("log add disk.vol --log gone.log");
    fs::remove_file(place.path("gone.log")).unwrap();
    place.refused("replay disk.vol", &["gone.log", "log remove --lost"]);
    assert_eq!(place.json("log remove disk.vol --lost")["log"]["external"], Value::Null);
    place.done("replay disk.vol");
}

#[test]
fn images_become_volumes_and_volumes_images() {
    let place = Place::of("volume");
    let image = fs::File::create(place.path("image")).unwrap();
    image.set_len(40 * MIB).unwrap();
    for (at, byte) in [(0, 1u8), (5 * MIB + 4096, 2), (40 * MIB - 512, 3)] {
        image.write_all_at(&vec![byte; 512], at).unwrap();
    }
    let text = place.done("convert image disk.vol --log-size 1M");
    assert!(text.starts_with("disk.vol: a volume of 40M; "), "{text}");
    assert!(fs::metadata(place.path("disk.vol")).unwrap().blocks() * 512 < 8 * MIB);
    let converted = place.json("convert --to raw disk.vol again");
    assert_eq!(converted["capacity_bytes"], 40 * MIB, "{converted}");
    assert!(fs::read(place.path("image")).unwrap() == fs::read(place.path("again")).unwrap());
    assert!(fs::metadata(place.path("again")).unwrap().blocks() * 512 < 4 * MIB);
    let larger = place.json("convert image larger.vol --size 64M --log-size 1M");
    assert_eq!(larger["capacity_bytes"], 64 * MIB);
    place.refused("convert image smaller.vol --size 16M", &["size", "16777216"]);
    place.refused("convert --to raw disk.vol other --size 1M", &["--size", "raw image"]);
}

#[test]
fn a_volume_that_is_served_is_refused() {
    let place = Place::of("volume");
    place.done("create --size 16M --log-size 1M disk.vol");
    let server = Server::start(&place, "--socket s.sock --storage volume disk.vol");
    for words in
        ["info disk.vol", "check disk.vol", "replay disk.vol", "resize disk.vol 32M", "convert --to raw disk.vol x"]
    {
        place.refused(words, &["disk.vol", "in use", "--no-lock"]);
    }
    assert!(place.done("info --no-lock disk.vol").contains("not in order"));
    drop(server);
    // It was killed, and had nothing to lose.
    assert!(place.done("check disk.vol").contains("sound; not closed in order"));
    assert!(place.done("replay disk.vol").ends_with("disk.vol: closed in order\n"));
    assert!(place.done("check disk.vol").contains("sound, and closed in order"));
}
