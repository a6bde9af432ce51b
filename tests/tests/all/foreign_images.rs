//! Images of VMware, Hyper-V and Virtual PC: what QEMU made of a disk and says of it, and what the tools read.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use testkit::{Rng, storage as kit};
use tests::lab::{Lab, Turn};
use tests::{qemu_img, vringd};

/// Formats, with what QEMU is asked for.
const KINDS: [(&str, &str); 13] = [
    ("vmdk", "subformat=monolithicSparse"),
    ("vmdk", "subformat=monolithicSparse,zeroed_grain=on"),
    ("vmdk", "subformat=monolithicSparse,compat6=on"),
    ("vmdk", "subformat=monolithicFlat"),
    ("vmdk", "subformat=twoGbMaxExtentSparse"),
    ("vmdk", "subformat=twoGbMaxExtentFlat"),
    ("vmdk", "subformat=streamOptimized"),
    ("vhdx", "subformat=dynamic"),
    ("vhdx", "subformat=dynamic,block_size=1M"),
    ("vhdx", "subformat=fixed"),
    ("vpc", "subformat=dynamic"),
    ("vpc", "subformat=dynamic,force_size=on"),
    ("vpc", "subformat=fixed"),
];
/// Address space of a program that reads a hostile image, in KiB: its threads, rings and buffers need some.
const ADDRESS_SPACE_KIB: u64 = 2 << 20;

fn img(lab: &Lab, args: &[&str]) -> Result<String> {
    qemu_img::img(lab, args)?.expect_success()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path of a test is UTF-8")
}

/// A sparse file with noise, and zeroes that were written.
fn source(path: &Path, size_bytes: u64, rng: &mut Rng) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(size_bytes)?;
    for round in 0..12 {
        let len = 512 * (1 + rng.below([4, 130, 3000][round % 3])) as usize;
        let at = rng.below((size_bytes - len as u64) / 512) * 512;
        let noise: Vec<u8> = (0..len).map(|_| if round % 4 == 3 { 0 } else { rng.below(256) as u8 }).collect();
        file.write_all_at(&noise, at)?;
    }
    file.write_all_at(&[1; 512], size_bytes - 512)?;
    Ok(())
}

/// Moves the first sector of a VHDX image's block allocation table into its log, as a crash may leave it: QEMU empties the log with
/// each write.
fn leave_in_log(path: &Path) -> Result<()> {
    const LOG: [u8; 16] = [7; 16];
    const NUMBER: u64 = 5;
    let file = File::options().read(true).write(true).open(path)?;
    let end = file.metadata()?.size().to_le_bytes();
    let mut regions = [0; 4096];
    file.read_exact_at(&mut regions, 192 << 10)?;
    let table = regions[16..].chunks(32).find(|region| region.starts_with(b"\x66\x77\xc2\x2d"));
    let table = u64::from_le_bytes(table.context("there is no table")?[16..24].try_into()?);
    let mut sector = [0; 4096];
    file.read_exact_at(&mut sector, table)?;
    file.write_all_at(&[0; 4096], table)?;
    let mut entry = [
        [&b"loge\0\0\0\0\0\x20\0\0\0\0\0\0"[..], &NUMBER.to_le_bytes(), b"\x01\0\0\0\0\0\0\0", &LOG, &end, &end]
            .concat(),
        [&b"desc"[..], &sector[4092..], &sector[..8], &table.to_le_bytes(), &NUMBER.to_le_bytes()].concat(),
    ]
    .concat();
    entry.resize(4096, 0);
    entry.extend([&b"data\0\0\0\0"[..], &sector[8..4092], &NUMBER.to_le_bytes()[..4]].concat());
    checksum(&mut entry);
    for at in [64 << 10, 128 << 10] {
        let mut header = [0; 4096];
        file.read_exact_at(&mut header, at)?;
        header[48..64].copy_from_slice(&LOG);
        checksum(&mut header);
        file.write_all_at(&header, at)?;
        file.write_all_at(&entry, u64::from_le_bytes(header[72..80].try_into()?))?;
    }
    Ok(())
}

/// Puts a CRC-32C where VHDX has it.
fn checksum(bytes: &mut [u8]) {
    bytes[4..8].fill(0);
    let crc = bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    });
    bytes[4..8].copy_from_slice(&(!crc).to_le_bytes());
}

struct Room {
    lab: Turn,
    directory: TempDir,
}

impl Room {
    fn new() -> Result<Room> {
        Ok(Room { lab: Lab::take_turn(), directory: TempDir::new_in(kit::disk())? })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Result<Output> {
        vringd::run(self.directory.path(), &[&["image"], words].concat())
    }

    fn succeeds(&self, words: &[&str]) -> Result<String> {
        let output = self.run(words)?;
        ensure!(output.status.success(), "{words:?}: {}", vringd::said(&output));
        Ok(vringd::said(&output))
    }

    /// Refused in one line, which says this.
    fn refused(&self, words: &[&str], about: &str) -> Result<()> {
        let output = self.run(words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2), "{words:?}: {:?}, {said}", output.status);
        ensure!(said.contains(about) && said.trim().lines().count() == 1, "{words:?}: {said}");
        Ok(())
    }

    /// What QEMU reads of an image is what we read of it, to raw and to qcow2.
    fn agrees(&self, format: &str, image: &str) -> Result<()> {
        img(&self.lab, &["convert", "-f", format, "-O", "raw", text(&self.at(image)), text(&self.at("theirs"))])?;
        let json = self.succeeds(&["convert", "--json", "--force", "--from", format, "--to", "raw", image, "ours"])?;
        let json: serde_json::Value = serde_json::from_str(&json).with_context(|| json.clone())?;
        let size = self.at("theirs").metadata()?.size();
        ensure!(json["size_bytes"].as_u64() == Some(size), "{json}, and {size}");
        if size < 1 << 30 {
            ensure!(fs::read(self.at("theirs"))? == fs::read(self.at("ours"))?);
        }
        let (ours, all) = (self.at("ours").metadata()?, self.at("theirs").metadata()?.blocks() * 512);
        ensure!(ours.blocks() * 512 <= all + (2 << 20), "takes {} bytes, and QEMU's {all}", ours.blocks() * 512);
        self.succeeds(&["convert", "--force", "--from", format, image, "ours.qcow2"])?;
        for (kind, name) in [("raw", "ours"), ("qcow2", "ours.qcow2")] {
            img(&self.lab, &["compare", "-f", "raw", "-F", kind, text(&self.at("theirs")), text(&self.at(name))])?;
        }
        let compare = ["compare", "--format", format, image, "--other-format", "qcow2", "ours.qcow2"];
        ensure!(self.succeeds(&compare)?.contains("same"));
        let changed = File::options().read(true).write(true).open(self.at("ours"))?;
        let mut last = [0];
        changed.read_exact_at(&mut last, size - 1)?;
        changed.write_all_at(&[!last[0]], size - 1)?;
        let output = self.run(&["compare", "ours", "--other-format", format, image])?;
        ensure!(output.status.code() == Some(1), "{}", vringd::said(&output));
        Ok(())
    }
}

#[test]
fn what_qemu_makes_is_read_as_qemu_reads_it() -> Result<()> {
    let room = Room::new()?;
    let mut rng = Rng(5);
    for (number, (format, options)) in KINDS.into_iter().enumerate() {
        let (raw, image) = (room.at("raw"), format!("image-{number}.{format}"));
        let path = room.at(&image);
        // VHDX images have whole sectors of 512 bytes, and Virtual PC whole cylinders, unless told otherwise.
        source(&raw, (9 << 20) + 512 * rng.below(4000), &mut rng)?;
        img(&room.lab, &["convert", "-f", "raw", "-O", format, "-o", options, text(&raw), text(&path)])?;
        room.agrees(format, &image).with_context(|| format!("{format}, {options}"))?;
        if options.contains("streamOptimized") {
            continue;
        }
        let writes: Vec<String> = (0..6)
            .map(|round| {
                let (at, len) = (rng.below(15_000), 1 + rng.below(700));
                format!("write {} {}k {}k", ["-P 3", "-z", "-P 4"][round % 3], at / 2, len)
            })
            .collect();
        let writes: Vec<&str> = writes.iter().map(String::as_str).collect();
        qemu_img::io_file(&room.lab, format, &path, &writes)?.expect_success()?;
        room.agrees(format, &image).with_context(|| format!("{format}, {options}, written"))?;
    }
    Ok(())
}

/// Extents of 2 GiB, and tables that are not in the first MiB.
#[test]
fn large_disks_with_little_data_are_read() -> Result<()> {
    let room = Room::new()?;
    let mut rng = Rng(6);
    source(&room.at("raw"), 5 << 30, &mut rng)?;
    let kinds = [
        ("vmdk", "subformat=twoGbMaxExtentSparse"),
        ("vmdk", "subformat=twoGbMaxExtentFlat"),
        ("vmdk", "subformat=streamOptimized"),
        ("vhdx", "subformat=dynamic"),
        ("vpc", "subformat=dynamic,force_size=on"),
    ];
    for (number, (format, options)) in kinds.into_iter().enumerate() {
        let image = format!("image-{number}.{format}");
        img(
            &room.lab,
            &["convert", "-f", "raw", "-O", format, "-o", options, text(&room.at("raw")), text(&room.at(&image))],
        )?;
        room.agrees(format, &image).with_context(|| format!("{format}, {options}"))?;
    }
    let map = room.succeeds(&["map", "--json", "--format", "vhdx", "image-3.vhdx"])?;
    let map: Vec<serde_json::Value> = serde_json::from_str(&map)?;
    ensure!(map.iter().any(|part| part["data"] == false), "{map:?}");
    Ok(())
}

#[test]
fn parents_logs_and_files_elsewhere_are_refused() -> Result<()> {
    let room = Room::new()?;
    let mut rng = Rng(7);
    source(&room.at("raw"), 8 << 20, &mut rng)?;
    let make = |format: &str, options: &str, name: &str| {
        let (raw, path) = (room.at("raw"), room.at(name));
        img(&room.lab, &["convert", "-f", "raw", "-O", format, "-o", options, text(&raw), text(&path)])
    };
    let convert = |format: &'static str, name: &'static str| ["convert", "--from", format, name, "out.qcow2"];
    make("vmdk", "subformat=monolithicSparse", "base.vmdk")?;
    img(&room.lab, &["create", "-q", "-f", "vmdk", "-b", "base.vmdk", "-F", "vmdk", text(&room.at("over.vmdk"))])?;
    room.refused(&convert("vmdk", "over.vmdk"), "has a parent (parentCID)")?;
    let raw = room.run(&["convert", "base.vmdk", "out.qcow2"])?;
    ensure!(raw.status.success() && vringd::said(&raw).contains("say so (`--from vmdk`"), "{}", vringd::said(&raw));
    fs::remove_file(room.at("out.qcow2"))?;

    make("vmdk", "subformat=twoGbMaxExtentFlat", "flat.vmdk")?;
    room.refused(&convert("vmdk", "flat-f001.vmdk"), "too long for a descriptor")?;
    let list = fs::read_to_string(room.at("flat.vmdk"))?;
    let elsewhere = TempDir::new_in(kit::disk())?;
    fs::rename(room.at("flat-f001.vmdk"), elsewhere.path().join("flat-f001.vmdk"))?;
    room.refused(&convert("vmdk", "flat.vmdk"), "which cannot be looked at: No such file")?;
    symlink(elsewhere.path().join("flat-f001.vmdk"), room.at("flat-f001.vmdk"))?;
    room.refused(&convert("vmdk", "flat.vmdk"), "which lies in another directory: if that may be, add")?;
    room.succeeds(&[&convert("vmdk", "flat.vmdk")[..], &["--allow-backing", text(elsewhere.path())]].concat())?;
    fs::remove_file(room.at("out.qcow2"))?;
    fs::write(room.at("flat.vmdk"), list.replace("flat-f001.vmdk", "/etc/passwd"))?;
    room.refused(&convert("vmdk", "flat.vmdk"), "leads to /etc/passwd, which lies in another directory")?;

    make("vhdx", "subformat=dynamic", "log.vhdx")?;
    leave_in_log(&room.at("log.vhdx"))?;
    room.refused(&convert("vhdx", "log.vhdx"), "its log has to be replayed by `qemu-img check -r all`")?;
    img(&room.lab, &["check", "-r", "all", "-f", "vhdx", text(&room.at("log.vhdx"))])?;
    room.agrees("vhdx", "log.vhdx")?;
    room.refused(
        &["convert", "--from", "vpc", "log.vhdx", "out.qcow2"],
        "does not end with the footer of a VHD image",
    )?;
    let snapshot = ["convert", "--from", "vhdx", "--snapshot", "s", "log.vhdx", "out.qcow2"];
    room.refused(&snapshot, "--snapshot: has no meaning for a vhdx image")?;
    ensure!(!room.at("out.qcow2").exists());
    Ok(())
}

/// Headers and tables with lies in them, and files that are cut off, end in an image or in one line; with little memory.
#[test]
fn lies_end_in_a_line() -> Result<()> {
    let room = Room::new()?;
    let mut rng = Rng(8);
    source(&room.at("raw"), 4 << 20, &mut rng)?;
    for (format, options, fields) in [
        ("vmdk", "subformat=monolithicSparse", vec![0..80, 512..1100, 10_752..12_000]),
        ("vmdk", "subformat=streamOptimized", vec![0..80, 512..1100]),
        ("vmdk", "subformat=twoGbMaxExtentSparse", vec![0..120, 120..400]),
        ("vhdx", "subformat=dynamic", vec![65_536..65_700, 131_072..131_200, 196_608..196_800, 0..3 << 20]),
        ("vpc", "subformat=dynamic", vec![512..600, 1536..1560]),
    ] {
        let path = room.at("image");
        img(&room.lab, &["convert", "-f", "raw", "-O", format, "-o", options, text(&room.at("raw")), text(&path)])?;
        let sound = fs::read(&path)?;
        for round in 0..24 {
            let mut image = sound.clone();
            for _ in 0..=rng.below(3) {
                let field = &fields[rng.below(fields.len() as u64) as usize];
                let at = (field.start + rng.below(field.len() as u64) as usize).min(image.len() - 1);
                image[at] = [0, 0xff, 0x7f, rng.below(256) as u8][rng.below(4) as usize];
            }
            if round % 6 == 5 {
                image.truncate(rng.below(image.len() as u64) as usize);
            }
            fs::write(&path, &image)?;
            let words = ["image", "convert", "--force", "--from", format, "image", "out.qcow2"];
            let bounded = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec timeout 60 \"$0\" \"$@\"");
            let mut command = Command::new("sh");
            command.args(["-c", &bounded]).arg(vringd::program()?).args(words).current_dir(room.directory.path());
            let output = command.output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            let is_told = said.trim().lines().count() == 1 && !said.contains("panicked");
            ensure!(
                match output.status.code() {
                    Some(0) => true,
                    Some(1 | 2) => is_told,
                    _ => false,
                },
                "{format}, {options}, {round}: {:?}, {said}",
                output.status
            );
        }
    }
    Ok(())
}
