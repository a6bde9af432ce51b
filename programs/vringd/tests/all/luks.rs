//! LUKS containers as a person has them: made, looked at, served, and copied by a daemon that says what its copies are.

use crate::place::{Place, Server};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Where the data of a LUKS2 container begin.
const DATA: u64 = 16 * MIB;
/// A key that is quickly derived.
const QUICK: &str = "--pbkdf-memory 64K --luks-key-file key";

/// A place with keys: one, another one, and one that anybody may read.
fn place() -> Place {
    let place = Place::of("image");
    for (name, text, mode) in
        [("key", "correct horse", 0o600), ("wrong", "correct horse\n", 0o600), ("open", "x", 0o604)]
    {
        fs::write(place.path(name), text).unwrap();
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    place
}

#[test]
fn a_container_is_made_and_looked_at() {
    let place = place();
    let key = "--luks-key-file key";
    for (words, name, (version, sector_bytes, data_offset, kdf)) in [
        (format!("{key} --pbkdf pbkdf2"), "pbkdf2", (2, 4096, DATA, "pbkdf2")),
        (format!("{QUICK} --pbkdf argon2id"), "argon2id", (2, 4096, DATA, "argon2id")),
        (format!("{QUICK} --sector-size 512"), "small", (2, 512, DATA, "argon2id")),
        (format!("{key} --luks-version 1"), "first", (1, 512, 2 * MIB, "pbkdf2")),
    ] {
        let made = place.json(&format!("create-luks --size 4M {words} {name}"));
        let info = place.json(&format!("info {name}"));
        assert_eq!(info, made);
        let uuid = info["uuid"].as_str().unwrap();
        assert!(uuid.len() == 36 && uuid.split('-').count() == 5, "{uuid}");
        let wanted = json!({
            "path": name, "format": "luks", "version": version, "uuid": uuid, "label": "", "cipher": "aes-xts-plain64",
            "key_bits": 512, "sector_bytes": sector_bytes, "data_offset": data_offset, "size_bytes": 4 * MIB,
            "slots": [{ "number": 0, "kdf": kdf, "unsupported": null }],
        });
        assert_eq!(info, wanted);
        let about = fs::metadata(place.path(name)).unwrap();
        assert_eq!((about.len(), about.permissions().mode() & 0o777), (data_offset + 4 * MIB, 0o600), "{name}");
        let text = place.done(&format!("info {name}"));
        for part in [
            &format!("container  {name}\n"),
            &format!("LUKS, version {version}"),
            "4M (4194304 bytes)",
            &format!("aes-xts-plain64, a key of 512 bits, sectors of {sector_bytes} bytes"),
            uuid,
            &format!("0, {kdf}"),
        ] {
            assert!(text.contains(part), "`{part}` is not in:\n{text}");
        }
    }
    // In an image of another format it is what the image's disk has.
    let made = place.json(&format!("create-luks --size 4M {QUICK} --format qcow2 vm1.qcow2"));
    assert_eq!((&made["format"], &made["size_bytes"]), (&"luks".into(), &(4 * MIB).into()), "{made}");
    let info = place.json("info vm1.qcow2");
    assert_eq!((&info["format"], &info["size_bytes"]), (&"qcow2".into(), &(DATA + 4 * MIB).into()), "{info}");
    assert!(info["allocated_bytes"].as_u64().unwrap() < 2 * MIB, "{info}");
    assert!(place.done("check vm1.qcow2").starts_with("vm1.qcow2: sound; "));
}

#[test]
fn what_is_wrong_is_said_in_one_line_and_changes_nothing() {
    let place = place();
    place.done(&format!("create-luks --size 4M {QUICK} disk.luks"));
    fs::write(place.path("precious"), "precious").unwrap();
    fs::write(place.path("empty"), "").unwrap();
    fs::write(place.path("written"), "x").unwrap();
    fs::set_permissions(place.path("written"), fs::Permissions::from_mode(0o602)).unwrap();
    // A version that is not known, and a header that is not all there.
    let container = fs::read(place.path("disk.luks")).unwrap();
    fs::write(place.path("future"), [&container[..6], &[0, 9], &container[8..8192]].concat()).unwrap();
    fs::write(place.path("short"), &container[..4096]).unwrap();
    for (words, parts) in [
        (format!("create-luks --size 4M {QUICK} disk.luks"), &["disk.luks", "--force"][..]),
        (format!("create-luks --size 4M {QUICK} precious"), &["precious", "--force"]),
        (format!("create-luks --size 4M {QUICK} --format qcow2 precious"), &["precious", "--force"]),
        (format!("create-luks --size 4M {QUICK} none/new"), &["none/new", "No such file"]),
        (format!("create-luks --size 4M {QUICK} --sector-size 700 new"), &["--sector-size", "512, 1024, 2048 or 4096"]),
        (
            format!("create-luks --size 4M {QUICK} --sector-size 8192 new"),
            &["--sector-size", "512, 1024, 2048 or 4096"],
        ),
        (format!("create-luks --size 5000 {QUICK} new"), &["--size", "4096"]),
        (format!("create-luks --size 0 {QUICK} new"), &["--size", "not 0"]),
        (format!("create-luks --size 4M {QUICK} --pbkdf pbkdf2 new"), &["--pbkdf-memory", "--pbkdf argon2id"]),
        ("create-luks --size 4M --luks-key-file key --pbkdf-memory 63K new".into(), &["--pbkdf-memory", "64K"]),
        (
            "create-luks --size 4M --luks-key-file key --luks-version 1 --sector-size 4096 new".into(),
            &["--sector-size", "--luks-version 2"],
        ),
        (
            "create-luks --size 4M --luks-key-file key --luks-version 1 --pbkdf argon2id new".into(),
            &["--pbkdf", "--luks-version 2"],
        ),
        ("create-luks --size 4M --luks-key-file open new".into(), &["luks.key_file: open", "chmod o="]),
        ("create-luks --size 4M --luks-key-file open --force precious".into(), &["luks.key_file: open", "chmod o="]),
        ("create-luks --size 4M --luks-key-file written new".into(), &["luks.key_file: written", "chmod o="]),
        ("create-luks --size 4M --luks-key-file missing new".into(), &["luks.key_file: missing", "No such file"]),
        ("create-luks --size 4M --luks-key-file . new".into(), &["luks.key_file: .", "no regular file"]),
        ("info future".into(), &["future", "version 9 is not known"]),
        ("info short".into(), &["short", "header are damaged"]),
    ] {
        place.refused(&words, parts);
    }
    for words in [
        "create-luks --size 4M new",
        "create-luks --luks-key-file key new",
        "create-luks --size 4M --luks-key-file key --luks-version 3 new",
    ] {
        assert_eq!(place.run(words).status.code(), Some(2), "{words}");
        assert!(!place.path("new").exists());
    }
    let before = place.json("info disk.luks");
    for (name, format) in [("disk.luks", "raw"), ("precious", "qcow2")] {
        let made = place.json(&format!("create-luks --size 2M {QUICK} --format {format} --force {name}"));
        assert_eq!(made["size_bytes"], 2 * MIB, "{made}");
        assert!(made["uuid"] != before["uuid"], "{made}");
    }
    assert_eq!(place.json("info disk.luks")["size_bytes"], 2 * MIB);
    assert_eq!(place.json("info precious")["format"], "qcow2");
}

#[test]
fn a_container_that_does_not_open_is_not_served() {
    let place = place();
    place.done(&format!("create-luks --size 4M {QUICK} vm1.luks"));
    place.done(&format!("create-luks --size 4M {QUICK} --format qcow2 vm1.qcow2"));
    fs::write(place.path("disk.img"), vec![0; MIB as usize]).unwrap();
    let container = fs::read(place.path("vm1.luks")).unwrap();
    fs::write(place.path("short.luks"), &container[..DATA as usize]).unwrap();
    let disk = place.and("disk");
    for (words, parts) in [
        ("--luks-key-file wrong vm1.luks", &["vm1.luks: no key slot opens", "luks.key_file: wrong"][..]),
        ("--luks-key-file wrong --storage qcow2 vm1.qcow2", &["vm1.qcow2: no key slot opens", "luks.key_file: wrong"]),
        ("--luks-key-file open vm1.luks", &["luks.key_file: open", "chmod o="]),
        ("--luks-key-file missing vm1.luks", &["luks.key_file: missing", "No such file"]),
        ("--luks-key-file key disk.img", &["disk.img", "no LUKS container"]),
        ("--luks-key-file key vm1.qcow2", &["vm1.qcow2", "no LUKS container"]),
        ("--luks-key-file key short.luks", &["short.luks", "cut short"]),
        ("--luks-key-file key --storage qcow2 vm1.luks", &["vm1.luks", "does not begin like a qcow2 image"]),
        ("--luks-key-file key --storage null --size 1M", &["--luks-key-file", "--storage null"]),
    ] {
        disk.refused(&format!("--socket s.sock {words}"), parts);
        disk.refused(&format!("--listen unix:s.nbd {words}"), parts);
    }
    let config = "[[export]]\nname = 'vm1'\nsocket = 's.sock'\n\
                  storage = { kind = 'file', path = 'vm1.luks', luks = { key_file = 'wrong' } }\n";
    fs::write(place.path("vringd.toml"), config).unwrap();
    place.and("serve").refused("vringd.toml", &["vm1", "no key slot opens", "luks.key_file: wrong"]);
}

/// A client that knows of NBD what it takes to read and write.
struct Client(UnixStream);

impl Client {
    fn connect(place: &Place) -> Client {
        let mut stream = UnixStream::connect(place.path("s.nbd")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert!(greeting.starts_with(b"NBDMAGICIHAVEOPT"), "{greeting:?}");
        // The export without a name, and in which blocks it is written: NBD_OPT_GO and NBD_INFO_BLOCK_SIZE.
        let hello = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &7u32.to_be_bytes(), &8u32.to_be_bytes()].concat();
        stream.write_all(&[&*hello, &[0, 0, 0, 0, 0, 1, 0, 3]].concat()).unwrap();
        let mut said = Vec::new();
        loop {
            let mut header = [0; 20];
            stream.read_exact(&mut header).unwrap();
            let [kind, len] = [12, 16].map(|at| u32::from_be_bytes(header[at..at + 4].try_into().unwrap()));
            let mut data = vec![0; len as usize];
            stream.read_exact(&mut data).unwrap();
            if kind == 1 {
                break;
            }
            assert_eq!(kind, 3, "NBD_REP_INFO");
            said.push(data);
        }
        let told = |begin: Vec<u8>| said.iter().any(|data| data.starts_with(&begin));
        assert!(told([&[0, 0][..], &(4 * MIB).to_be_bytes()].concat()), "{said:?}");
        assert!(told([&[0, 3][..], &4096u32.to_be_bytes()].concat()), "{said:?}");
        Client(stream)
    }

    fn request(&mut self, command: u16, at: u64, len: usize, data: &[u8]) {
        let command = [[0; 2], command.to_be_bytes()].concat();
        let place = [&[7; 8][..], &at.to_be_bytes(), &(len as u32).to_be_bytes()].concat();
        self.0.write_all(&[&0x2560_9513u32.to_be_bytes(), &*command, &place, data].concat()).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply, *[&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &[7; 8]].concat(), "it has failed");
    }

    /// Stable when it returns.
    fn write(&mut self, at: u64, data: &[u8]) {
        self.request(1, at, data.len(), data);
        self.request(3, 0, 0, &[]);
    }

    fn read(&mut self, at: u64, len: usize) -> Vec<u8> {
        self.request(0, at, len, &[]);
        let mut data = vec![0; len];
        self.0.read_exact(&mut data).unwrap();
        data
    }
}

const AT: u64 = MIB + 4096;

fn secret() -> Vec<u8> {
    b"attack at dawn: ".repeat(512)
}

fn has_secret(image: &[u8]) -> bool {
    let secret = secret();
    image.chunks_exact(16).any(|bytes| bytes == &secret[..16])
}

#[test]
fn what_is_written_is_encrypted_and_there_again() {
    let place = place();
    for (format, storage) in [("raw", "file"), ("qcow2", "qcow2")] {
        place.done(&format!("create-luks --size 4M {QUICK} --format {format} vm1.{format}"));
        let words = format!("--listen unix:s.nbd --storage {storage} --luks-key-file key vm1.{format}");
        let server = Server::start(&place, &words);
        Client::connect(&place).write(AT, &secret());
        drop(server);
        let image = fs::read(place.path(&format!("vm1.{format}"))).unwrap();
        assert!(!has_secret(&image), "{format}: it is not encrypted");
        let _server = Server::start(&place, &words);
        assert!(Client::connect(&place).read(AT, 8192) == secret(), "{format}: it reads otherwise");
    }
}

#[test]
fn copies_are_what_the_guest_sees_and_the_daemon_warns_of_that() {
    let place = place();
    place.done(&format!("create-luks --size 4M {QUICK} vm1.luks"));
    fs::write(place.path("plain.img"), vec![1; MIB as usize]).unwrap();
    fs::create_dir(place.path("scratch")).unwrap();
    let words = "--listen unix:s.nbd --control c.sock --allow . --name vm1 --luks-key-file key vm1.luks";
    let server = Server::start(&place, words);
    Client::connect(&place).write(AT, &secret());
    let ctl = place.and("ctl");
    let disks = ctl.json("--control c.sock disk list");
    let storage = &disks[0]["storage"];
    assert_eq!((&storage["kind"], &storage["target"]), (&"luks".into(), &"vm1.luks (file)".into()), "{disks}");
    assert_eq!(
        (&storage["capacity_bytes"], &storage["block_size_bytes"]),
        (&(4 * MIB).into(), &4096.into()),
        "{disks}"
    );
    ctl.done("--control c.sock disk backup --format raw vm1=copy.raw");
    let copy = fs::read(place.path("copy.raw")).unwrap();
    assert_eq!(copy.len() as u64, 4 * MIB);
    assert!(copy[AT as usize..][..8192] == secret(), "the copy has something else");
    ctl.done("--control c.sock disk mirror --format raw vm1 mirror.raw");
    assert!(has_secret(&fs::read(place.path("mirror.raw")).unwrap()));
    ctl.done("--control c.sock job cancel 2");
    ctl.done("--control c.sock disk pull --scratch scratch vm1=unix:pull.nbd");
    ctl.done("--control c.sock job cancel 3");
    // One that is not encrypted is copied without a word.
    ctl.done("--control c.sock disk add plain --image plain.img");
    ctl.done("--control c.sock disk backup --format raw plain=plain.raw");
    ctl.done("--control c.sock shutdown");
    let said = server.ends();
    let warnings: Vec<&String> = said.iter().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 3, "{said:#?}");
    for (line, target) in warnings.iter().zip(["copy.raw", "mirror.raw", "scratch"]) {
        let target = place.path(target).display().to_string();
        for part in ["the copy of an encrypted disk is not encrypted", "vm1", &target] {
            assert!(line.contains(part), "`{part}` is not in: {line}");
        }
    }
}

/// With a log below it, too, of which nobody is to be told: without one it would be refused all the same.
#[test]
fn what_is_for_images_as_they_are_names_the_container() {
    let place = place();
    place.done(&format!("create-luks --size 4M {QUICK} --format qcow2 vm1.qcow2"));
    place.done("log create --size 1M vm1.log");
    let ctl = place.and("ctl");
    for log in ["", "--log vm1.log --memory-file none"] {
        let words = "--listen unix:s.nbd --control c.sock --allow . --name vm1 --storage qcow2 --luks-key-file key";
        let server = Server::start(&place, &format!("{words} {log} vm1.qcow2"));
        for words in ["disk snapshot vm1=before.qcow2", "disk stream vm1", "disk commit vm1"] {
            let output = ctl.run(&format!("--control c.sock {words}"));
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains("is served as what is encrypted in it"), "{words} {log}: {said}");
            assert!(!said.contains("--log") && !place.path("before.qcow2").exists(), "{words} {log}: {said}");
        }
        ctl.done("--control c.sock shutdown");
        server.ends();
    }
}
