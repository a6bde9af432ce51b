//! Disks over NBD, by QEMU's client.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use testkit::storage as kit;
use tests::daemon::Daemon;
use tests::lab::Lab;
use tests::qemu_img::{self, Outcome, img};
use tests::vringd;

/// Bytes of the disk: not a whole number of MiB.
const BYTES: usize = (24 << 20) + 512;

/// A daemon that serves `storage` at a socket in its directory, and how QEMU calls that.
fn served(directory: &Path, storage: &str, more: &str) -> Result<(Daemon, String)> {
    let socket = directory.join("disk.nbd").display().to_string();
    let daemon = Daemon::serve(&format!(
        "workers = 2\n[[export]]\nname = 'disk'\nlisten = 'unix:{socket}'\n{more}\nstorage = {{ {storage} }}\n"
    ))?;
    Ok((daemon, format!("nbd+unix:///disk?socket={socket}")))
}

/// Runs commands of qemu-io on what is served at `address`.
fn io_at(lab: &Lab, address: &str, options: &[&str], commands: &[&str]) -> Result<Outcome> {
    qemu_img::io_with(lab, &[&["-f", "raw", "-d", "unmap"], options].concat(), address, commands)
}

#[test]
fn what_qemu_copies_over_nbd_is_the_same() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    // Something of everything: noise, zeroes, holes.
    let content: Vec<u8> =
        (0..BYTES).map(|at| if (at >> 18) & 3 == 0 { 0 } else { ((at * 7 / 3) >> 3) as u8 }).collect();
    std::fs::write(at("content"), &content)?;
    std::fs::write(at("disk.raw"), vec![0x5a; BYTES])?;
    img(&lab, &["create", "-q", "-f", "qcow2", &at("disk.qcow2"), &BYTES.to_string()])?.expect_success()?;
    for (kind, path) in [("file", "disk.raw"), ("qcow2", "disk.qcow2")] {
        let (daemon, address) = served(directory.path(), &format!("kind = '{kind}', path = '{}'", at(path)), "")?;
        img(&lab, &["convert", "-n", "-f", "raw", "-O", "raw", &at("content"), &address])?.expect_success()?;
        img(&lab, &["compare", "-f", "raw", "-F", "raw", &at("content"), &address])?.expect_success()?;
        img(&lab, &["convert", "-f", "raw", "-O", "raw", &address, &at("back")])?.expect_success()?;
        ensure!(std::fs::read(at("back"))? == content, "{kind}: it comes back otherwise");
        daemon.stop()?;
    }
    ensure!(std::fs::read(at("disk.raw"))? == content, "the image holds something else");
    Ok(())
}

/// Where QEMU says that there is data.
fn map(lab: &Lab, format: &str, image: &str) -> Result<Vec<(u64, u64, bool)>> {
    parts(&img(lab, &["map", "--output=json", "-f", format, image])?.expect_success()?)
}

/// First byte, length, and whether there is data, neighbours of one kind as one.
fn parts(said: &str) -> Result<Vec<(u64, u64, bool)>> {
    let extents: Vec<serde_json::Value> = serde_json::from_str(said).with_context(|| said.to_owned())?;
    let mut out: Vec<(u64, u64, bool)> = Vec::new();
    for extent in &extents {
        let number = |name: &str| extent[name].as_u64().with_context(|| format!("{name} of {extent}"));
        let (start, len, data) = (number("start")?, number("length")?, extent["data"] == true);
        ensure!(data || extent["zero"] == true, "neither data nor zeroes: {extent}");
        match out.last_mut() {
            Some((_, length, kind)) if *kind == data => *length += len,
            _ => out.push((start, len, data)),
        }
    }
    Ok(out)
}

#[test]
fn qemu_sees_the_holes_that_it_sees_in_the_image() -> Result<()> {
    let lab = Lab::take_turn();
    // Where holes have the same grain whatever the disk's file system is.
    let directory = TempDir::new_in(kit::shm())?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let raw = File::create(at("disk.raw"))?;
    raw.set_len(BYTES as u64)?;
    for start in [0, 1 << 20, 5 << 20, (17 << 20) + 65536] {
        raw.write_all_at(&[7; 70_000], start)?;
    }
    img(&lab, &["convert", "-f", "raw", "-O", "qcow2", &at("disk.raw"), &at("disk.qcow2")])?.expect_success()?;
    img(&lab, &["convert", "-c", "-f", "raw", "-O", "qcow2", &at("disk.raw"), &at("packed.qcow2")])?
        .expect_success()?;
    let over = |name: &str, more: &[&str]| {
        let create = [&["create", "-q", "-f", "qcow2", "-b", "disk.raw", "-F", "raw"], more, &[name]].concat();
        img(&lab, &create)?.expect_success()?;
        let commands = ["write 9M 1M", "write -z 1M 64k", "discard 5M 64k", "write 2M 2k"];
        qemu_img::io_file(&lab, "qcow2", Path::new(name), &commands)?.expect_success()
    };
    over(&at("over.qcow2"), &[])?;
    over(&at("small.qcow2"), &["-o", "cluster_size=512"])?;
    over(&at("parts.qcow2"), &["-o", "extended_l2=on"])?;
    let images = ["disk.raw", "disk.qcow2", "packed.qcow2", "over.qcow2", "small.qcow2", "parts.qcow2"];
    for name in images {
        let (kind, format) = if name == "disk.raw" { ("file", "raw") } else { ("qcow2", "qcow2") };
        let expected = map(&lab, format, &at(name))?;
        let (daemon, address) = served(directory.path(), &format!("kind = '{kind}', path = '{}'", at(name)), "")?;
        let got = map(&lab, "raw", &address)?;
        ensure!(got == expected && got.len() > 4, "{name}: {got:?} instead of {expected:?}");
        let tool =
            Command::new(vringd::program()?).args(["image", "map", "--json", "--format", format, &at(name)]).output();
        let refused = String::from_utf8(tool?.stderr)?;
        ensure!(refused.contains("in use"), "{name} is being written: {refused}");
        ensure!(daemon.ring("disk", 0)?.figures.count("block_status") > 0, "{name}: nobody has asked");
        daemon.stop()?;
        let tool = Command::new(vringd::program()?)
            .args(["image", "map", "--json", "--format", format, &at(name)])
            .output()?;
        let mapped = String::from_utf8(tool.stdout)?;
        ensure!(parts(&mapped)? == expected, "{name}: {mapped} instead of {expected:?}");
    }
    Ok(())
}

/// By every way that leads to one: served, copied, compared.
#[test]
fn a_disk_is_as_it_was_at_its_snapshots() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let tool = |words: &[&str]| -> Result<(Option<i32>, String)> {
        let output = Command::new(vringd::program()?).arg("image").args(words).output()?;
        Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
    };
    let disk = at("disk.qcow2");
    std::fs::write(at("base.raw"), vec![0x5a; 8 << 20])?;
    let create = ["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "-o", "cluster_size=4k", &disk];
    img(&lab, &create)?.expect_success()?;
    let write = |commands: &[&str]| qemu_img::io_file(&lab, "qcow2", Path::new(&disk), commands)?.expect_success();
    write(&["write -P 0x11 1M 1M", "write -z 3M 64k"])?;
    img(&lab, &["snapshot", "-c", "morning", &disk])?.expect_success()?;
    write(&["write -P 0x22 1M 512k", "write -P 0x33 3M 8k"])?;
    img(&lab, &["resize", "-q", &disk, "12M"])?.expect_success()?;
    write(&["write -P 0x44 11M 64k"])?;
    img(&lab, &["snapshot", "-c", "noon", &disk])?.expect_success()?;
    write(&["write -P 0x55 0 12M"])?;
    for (number, name, mib) in [("1", "morning", 8), ("2", "noon", 12)] {
        let then = at(&format!("{name}.raw"));
        img(&lab, &["convert", "-l", &format!("snapshot.name={name}"), "-O", "raw", &disk, &then])?.expect_success()?;
        // QEMU gives each the size of today.
        File::options().write(true).open(&then)?.set_len(mib << 20)?;
        let compared = tool(&["compare", "--format", "qcow2", "--snapshot", name, &disk, &then])?;
        ensure!(compared == (Some(0), "the same\n".to_owned()), "{name}: {compared:?}");
        let copy = at(&format!("{name}.qcow2"));
        let converted = tool(&["convert", "--from", "qcow2", "--snapshot", number, &disk, &copy])?;
        ensure!(converted.0 == Some(0), "{name}: {converted:?}");
        img(&lab, &["compare", "-f", "qcow2", "-F", "raw", &copy, &then])?.expect_success()?;
        let storage = format!("kind = 'qcow2', path = '{disk}', read_only = true, snapshot = '{name}'");
        let (daemon, address) = served(directory.path(), &storage, "")?;
        img(&lab, &["compare", "-f", "raw", "-F", "raw", &address, &then])?.expect_success()?;
        // Which snapshot it is goes along.
        daemon.wait_disconnected("disk")?;
        daemon.upgrade()?;
        img(&lab, &["compare", "-f", "raw", "-F", "raw", &address, &then])?.expect_success()?;
        daemon.stop()?;
    }
    let (status, now) = tool(&["compare", "--format", "qcow2", &disk, &at("noon.raw")])?;
    ensure!(status == Some(1) && now.starts_with("different from byte 0"), "{now}");
    for (words, why) in [
        (&["map", "--format", "qcow2", "--snapshot", "evening", &disk][..], "has no snapshot `evening`"),
        (&["map", "--snapshot", "noon", &disk], "--snapshot: has no meaning for a raw image"),
    ] {
        let (status, said) = tool(words)?;
        ensure!(status == Some(2) && said.contains(why) && said.trim().lines().count() == 1, "{words:?}: {said}");
    }
    let socket = at("socket");
    let serve = ["disk", "--socket", &socket, "--storage", "qcow2", "--snapshot", "noon", &disk];
    let refused = Command::new(vringd::program()?).args(serve).output()?;
    let said = String::from_utf8(refused.stderr)?;
    ensure!(
        refused.status.code() == Some(2) && said.contains("storage.snapshot") && said.contains("--readonly"),
        "{said}"
    );
    Ok(())
}

#[test]
fn every_command_of_qemus_client_is_served() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let image = directory.path().join("disk.raw");
    std::fs::write(&image, vec![0x77; 64 << 20])?;
    let storage = format!("kind = 'file', path = '{}', direct = true", image.display());
    let (daemon, address) = served(directory.path(), &storage, "")?;
    let commands = [
        "write -P 0x11 1M 64k",
        "write -f -P 0x22 512 512",
        "write -z -u 2M 1M",
        "write -z 3M 68k",
        "discard 8M 4M",
        "flush",
        "aio_write -P 0x33 16M 31M",
        "aio_write -P 0x44 48M 4k",
        "aio_read -P 0x11 1M 64k",
        "aio_flush",
        "read -P 0x77 0 512",
        "read -P 0x22 512 512",
        "read -P 0 2M 1M",
        "read -P 0 3M 68k",
        "read -P 0x33 16M 31M",
        "read -P 0x44 48M 4k",
    ];
    let output = io_at(&lab, &address, &[], &commands)?.expect_success()?;
    ensure!(!output.contains("failed"), "{output}");
    let ring = daemon.ring("disk", 0)?.figures;
    ensure!(ring.errors == 0 && ring.count("discard") > 0 && ring.count("write_zeroes") > 1, "{ring:?}");
    daemon.stop()?;
    let on_disk = std::fs::read(&image)?;
    ensure!(on_disk[16 << 20..47 << 20].iter().all(|byte| *byte == 0x33), "an answered write is not in the image");
    Ok(())
}

#[test]
fn a_read_only_disk_has_readers_of_both_kinds() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("disk.raw"), vec![0x77; 1 << 20])?;
    let daemon = Daemon::serve(&format!(
        "[[disk]]\nname = 'golden'\nstorage = {{ kind = 'file', path = '{}', read_only = true }}\n\
         [[export]]\nname = 'one'\nlisten = 'unix:{}'\ndisk = 'golden'\n\
         [[export]]\nname = 'two'\nlisten = 'unix:{}'\ndisk = 'golden'\n",
        at("disk.raw"),
        at("one.nbd"),
        at("two.nbd")
    ))?;
    for name in ["one", "two"] {
        let address = format!("nbd+unix:///{name}?socket={}", at(&format!("{name}.nbd")));
        let output = io_at(&lab, &address, &["-r"], &["read -P 0x77 0 1M"])?.expect_success()?;
        ensure!(!output.contains("failed"), "{output}");
        let refused = io_at(&lab, &address, &[], &["write 0 512"])?;
        ensure!(refused.expect_success().is_err(), "a read-only disk was opened for writing");
    }
    daemon.stop()
}

#[test]
fn an_upgrade_takes_the_socket_along_but_no_client() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let image = directory.path().join("disk.raw");
    std::fs::write(&image, vec![0x77; 1 << 20])?;
    let (daemon, address) = served(directory.path(), &format!("kind = 'file', path = '{}'", image.display()), "")?;
    io_at(&lab, &address, &[], &["write -P 0x11 0 512"])?.expect_success()?;
    daemon.wait_disconnected("disk")?;
    daemon.upgrade()?;
    let output = io_at(&lab, &address, &[], &["read -P 0x11 0 512", "write -P 0x22 512 512"])?.expect_success()?;
    ensure!(!output.contains("failed"), "{output}");
    daemon.wait_disconnected("disk")?;
    // A client that only connects is one.
    let client = std::os::unix::net::UnixStream::connect(directory.path().join("disk.nbd"))?;
    daemon.wait_ring("disk", 0, |ring| ring.worker.is_some())?;
    let refused = daemon.upgrade().unwrap_err().to_string();
    ensure!(refused.contains("over NBD to 1 connected client(s)"), "{refused}");
    drop(client);
    daemon.wait_disconnected("disk")?;
    daemon.upgrade()?;
    io_at(&lab, &address, &[], &["read -P 0x22 512 512"])?.expect_success()?;
    daemon.stop()
}
