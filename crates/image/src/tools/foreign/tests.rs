//! Images of other programs that the tests made; QEMU's are read in the room `tests`.

use super::vmdk::Vmdk;
use super::*;
use crate::tools::{From, Mapped, map, resize, to_raw};
use crate::tools::{NewSize, compare};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, symlink};
use tempfile::TempDir;
use testkit::{Rng, storage as kit};

const KIB: u64 = 1 << 10;
const MIB: usize = 1 << 20;
/// Text that a base has and a snapshot has not.
const BASE: &str = "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\n";

struct Room(TempDir);

impl Room {
    fn new() -> Room {
        Room(TempDir::new_in(kit::shm()).unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn foreign(&self, name: &str, format: ForeignFormat) -> Foreign {
        Foreign { path: self.at(name), format, allow: Vec::new() }
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.at(name), bytes).unwrap();
    }

    /// All of a disk, which is read once more by the map: outside of data there are zeroes.
    fn contents(&self, name: &str, format: ForeignFormat) -> Result<Vec<u8>, String> {
        let from = From::Foreign(self.foreign(name, format));
        let raw = self.at("made");
        to_raw(&from, &raw, true, &mut |_, _| {}).map_err(|error| error.to_string())?;
        let bytes = fs::read(&raw).unwrap();
        let each = &mut |part: &Mapped| {
            let part_bytes = &bytes[part.start as usize..(part.start + part.length) as usize];
            assert!(part.data || part_bytes.iter().all(|byte| *byte == 0));
            ControlFlow::Continue(())
        };
        map(&from, each).map_err(|error| error.to_string())?;
        assert!(compare(&from, &From::Raw(raw), &mut |_, _| {}).unwrap().same);
        Ok(bytes)
    }

    fn refusal(&self, name: &str, format: ForeignFormat) -> String {
        let error = self.foreign(name, format).open().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
        error
    }
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// A file with tables of 1 MiB in grains of 4 KiB, of which the third is there.
fn vmdk(descriptor: &str) -> Vec<u8> {
    let mut image = vec![0; 12 * 512 + 4096];
    put(&mut image, 0, b"KDMV\x01\0\0\0\x03\0\0\0");
    for (at, value) in [(12, 2048_u64), (20, 8), (28, 1), (36, 2), (56, 4), (64, 12)] {
        put(&mut image, at, &value.to_le_bytes());
    }
    put(&mut image, 44, &512_u32.to_le_bytes());
    put(&mut image, 512, descriptor.as_bytes());
    put(&mut image, 4 * 512, &5_u32.to_le_bytes());
    put(&mut image, 5 * 512 + 2 * 4, &12_u32.to_le_bytes());
    image[12 * 512..].fill(7);
    image
}

fn alone() -> Vec<u8> {
    vmdk(&format!("{BASE}createType=\"monolithicSparse\"\nRW 2048 SPARSE \"x.vmdk\"\n"))
}

fn third_grain() -> Vec<u8> {
    let mut disk = vec![0; MIB];
    disk[8192..12_288].fill(7);
    disk
}

fn seal(footer: &mut [u8], at: usize) {
    put(footer, at, &[0; 4]);
    let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
    put(footer, at, &(!sum).to_be_bytes());
}

fn footer(kind: u32, size_bytes: u64) -> Vec<u8> {
    let mut footer = vec![0; 512];
    put(&mut footer, 0, b"conectix\0\0\0\x02\0\x01\0\0");
    let header_offset = if kind == 2 { u64::MAX } else { 512 };
    for (at, value) in [(16, header_offset), (40, size_bytes), (48, size_bytes)] {
        put(&mut footer, at, &value.to_be_bytes());
    }
    put(&mut footer, 60, &kind.to_be_bytes());
    seal(&mut footer, 64);
    footer
}

/// 10,000 bytes in blocks of 4 KiB, of which the second is there.
fn vpc() -> Vec<u8> {
    let footer = footer(3, 10_000);
    let mut image = footer.clone();
    image.resize(2048, 0);
    put(&mut image, 512, b"cxsparse\xff\xff\xff\xff\xff\xff\xff\xff");
    put(&mut image, 512 + 16, &1536_u64.to_be_bytes());
    put(&mut image, 512 + 28, &3_u32.to_be_bytes());
    put(&mut image, 512 + 32, &4096_u32.to_be_bytes());
    image[1536..].fill(0xff);
    put(&mut image, 1536 + 4, &4_u32.to_be_bytes());
    image.extend([0xff; 512]);
    image.extend([7; 4096]);
    image.extend(footer);
    image
}

fn checksummed(bytes: &mut [u8]) {
    put(bytes, 4, &[0; 4]);
    let sum = ::vhdx::header::crc32c(bytes);
    put(bytes, 4, &sum.to_le_bytes());
}

/// 3 MiB in blocks of 1 MiB, of which the second is there.
fn vhdx(log: [u8; 16], flags: u32) -> Vec<u8> {
    let mut image = vec![0; 5 * MIB];
    put(&mut image, 0, b"vhdxfile");
    for (at, number) in [(64 << 10, 1_u64), (128 << 10, 2)] {
        put(&mut image, at, b"head");
        put(&mut image, at + 8, &number.to_le_bytes());
        put(&mut image, at + 48, &log);
        checksummed(&mut image[at..at + 4096]);
    }
    for at in [192 << 10, 256 << 10] {
        put(&mut image, at, b"regi");
        put(&mut image, at + 8, &2_u32.to_le_bytes());
        for (at, guid, offset) in
            [(at + 16, ::vhdx::region::BAT_GUID, 2 * MIB), (at + 48, ::vhdx::region::METADATA_GUID, 3 * MIB)]
        {
            put(&mut image, at, &guid);
            put(&mut image, at + 16, &(offset as u64).to_le_bytes());
            put(&mut image, at + 24, &(MIB as u32).to_le_bytes());
        }
        checksummed(&mut image[at..at + (64 << 10)]);
    }
    put(&mut image, 2 * MIB + 8, &((4 * MIB as u64) | 6).to_le_bytes());
    put(&mut image, 3 * MIB, b"metadata\0\0\x03\0");
    let parameters = [(MIB as u32).to_le_bytes(), flags.to_le_bytes()].concat();
    let items = [
        (::vhdx::metadata::GUID_FILE_PARAMETERS, parameters),
        (::vhdx::metadata::GUID_VIRTUAL_DISK_SIZE, (3 * MIB as u64).to_le_bytes().to_vec()),
        (::vhdx::metadata::GUID_LOGICAL_SECTOR_SIZE, 512_u32.to_le_bytes().to_vec()),
    ];
    for (number, (guid, value)) in items.iter().enumerate() {
        let (entry, item) = (3 * MIB + 32 + number * 32, (64 << 10) + number * 8);
        put(&mut image, entry, guid);
        put(&mut image, entry + 16, &(item as u32).to_le_bytes());
        put(&mut image, entry + 20, &(value.len() as u32).to_le_bytes());
        put(&mut image, 3 * MIB + item, value);
    }
    image[4 * MIB..].fill(7);
    image
}

#[test]
fn disks_read_as_they_are_and_holes_stay_holes() {
    let room = Room::new();
    room.write("vmdk", alone());
    room.write("vpc", vpc());
    room.write("vhdx", vhdx([0; 16], 0));
    room.write("fixed", [vec![7; 1000], footer(2, 1000)].concat());
    assert_eq!(room.contents("vmdk", ForeignFormat::Vmdk).unwrap(), third_grain());
    let mut disk = vec![0; 10_240];
    disk[4096..8192].fill(7);
    assert_eq!(room.contents("vpc", ForeignFormat::Vpc).unwrap(), disk);
    let mut disk = vec![0; 3 * MIB];
    disk[MIB..2 * MIB].fill(7);
    assert_eq!(room.contents("vhdx", ForeignFormat::Vhdx).unwrap(), disk);
    assert_eq!(room.contents("fixed", ForeignFormat::Vpc).unwrap(), [vec![7; 1000], vec![0; 24]].concat());
    for (name, format, holes) in
        [("vmdk", ForeignFormat::Vmdk, 255), ("vpc", ForeignFormat::Vpc, 1), ("vhdx", ForeignFormat::Vhdx, 2)]
    {
        let storage = room.foreign(name, format).open().unwrap();
        let extents = storage.extents(0..storage.capacity_bytes(), 99).unwrap();
        assert_eq!(extents.len(), 3, "{name}: {extents:?}");
        assert!(extents.iter().map(|extent| extent.data).eq([false, true, false]));
        let unit = [4 * KIB, MIB as u64][usize::from(name == "vhdx")];
        assert!(extents[0].bytes + extents[2].bytes >= holes * unit);
        assert!(storage.extents(0..512, 99).unwrap().iter().map(|extent| extent.bytes).eq([512]));
    }
    let image = From::Foreign(room.foreign("vmdk", ForeignFormat::Vmdk));
    let error = resize(&image, NewSize::To(4096), false, &mut |_, _| {}).unwrap_err().to_string();
    assert!(
        error.ends_with("is a vmdk image, which is read only: `vringd image convert` makes another one"),
        "{error}"
    );
}

#[test]
fn extents_are_one_disk_and_lie_beside_their_descriptor() {
    let room = Room::new();
    room.write("a.vmdk", vmdk(""));
    room.write("b.img", [vec![1; 512], vec![2; 1024]].concat());
    fs::create_dir(room.at("below")).unwrap();
    room.write("below/c.img", [3; 512]);
    let list = "RW 2048 SPARSE \"a.vmdk\"\nRW 2 FLAT \"b.img\" 1\nRW 3 ZERO\nRW 1 VMFS \"below/c.img\"\n";
    room.write("list", format!("{BASE}createType=\"custom\"\n{list}"));
    let disk = [third_grain(), vec![2; 1024], vec![0; 1536], vec![3; 512]].concat();
    assert_eq!(room.contents("list", ForeignFormat::Vmdk).unwrap(), disk);
    // Whatever the crate remembers of an extent.
    let image = room.foreign("list", ForeignFormat::Vmdk);
    let mut forgetful = Vmdk::open(&image, Part::open(&image.path, Links::Follow).unwrap()).unwrap();
    forgetful.remember(0);
    let mut read = vec![0; disk.len()];
    for (number, chunk) in read.chunks_mut(3 * 512).enumerate() {
        forgetful.read(number as u64 * 3 * 512, chunk).unwrap();
    }
    assert!(read == disk);

    assert!(room.refusal("a.vmdk", ForeignFormat::Vmdk).contains("name the file that lists them"));
    let other = Room::new();
    other.write("secret.img", [9; 512]);
    symlink(other.at("secret.img"), room.at("link")).unwrap();
    let outside = other.at("secret.img").display().to_string();
    rustix::fs::mknodat(rustix::fs::CWD, room.at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let climbing = format!("../{}", outside.strip_prefix("/dev/shm/").unwrap());
    for (name, about) in [
        ("/etc/passwd", "leads to /etc/passwd, which lies in another directory: if that may be, add /etc"),
        (&outside, "which lies in another directory"),
        (&climbing, "which lies in another directory"),
        ("link", "which lies in another directory"),
        ("pipe", "which is no regular file"),
        ("below", "which is no regular file"),
        ("none", "cannot be looked at: No such file"),
        ("b.img", "has 1536 bytes, and its descriptor needs 4096"),
    ] {
        room.write("list", format!("{BASE}createType=\"monolithicFlat\"\nRW 8 FLAT \"{name}\" 0\n"));
        assert!(room.refusal("list", ForeignFormat::Vmdk).contains(about), "{name}");
        if name != "b.img" {
            room.write("list", format!("{BASE}createType=\"seSparse\"\nRW 8 SPARSE \"{name}\"\n"));
            assert!(room.refusal("list", ForeignFormat::Vmdk).contains(about), "{name}");
        }
    }
    room.write("list", format!("{BASE}createType=\"monolithicFlat\"\nRW 1 FLAT \"link\" 0\n"));
    let allowed = Foreign { allow: vec![other.at("")], ..room.foreign("list", ForeignFormat::Vmdk) };
    allowed.open().unwrap();
}

#[test]
fn what_the_crates_would_read_wrong_is_refused() {
    let room = Room::new();
    let check = |format: ForeignFormat, bytes: &[u8], about: &str| {
        room.write("image", bytes);
        let refusal = room.refusal("image", format);
        assert!(refusal.contains(about), "{refusal}");
    };
    let changed = |mut image: Vec<u8>, at: usize, field: &[u8]| {
        put(&mut image, at, field);
        image
    };
    let vmdk_of = |text: &str| format!("{BASE}createType=\"x\"\n{text}\n");
    use ForeignFormat::{Vhdx, Vmdk, Vpc};
    check(Vmdk, &changed(alone(), 12, &(1_u64 << 40).to_le_bytes()), "its header asks for a grain directory of");
    check(Vmdk, &changed(alone(), 12, &[0; 8]), "its disk has 0 bytes");
    check(Vmdk, &changed(alone(), 20, &[0xff; 8]), "geometry field");
    check(Vmdk, &changed(alone(), 44, &[0xff; 4]), "num_gtes_per_gt");
    check(Vmdk, &changed(alone(), 4, &[9]), "unsupported VMDK version: 9; `qemu-img info` may say what it is");
    check(Vmdk, &changed(alone(), 0, b"COWD"), "is an extent of a snapshot");
    check(Vmdk, &vmdk(&format!("{}parentCID=1\n", vmdk_of("RW 2048 SPARSE \"x\""))), "has a parent");
    check(Vmdk, &vmdk(&vmdk_of("RW 8 SPARSE \"x\"\nRW 8 SPARSE \"y\"")), "names other files in its own descriptor");
    check(Vmdk, vmdk_of("parentCID=00000001").as_bytes(), "has a parent");
    check(Vmdk, b"", "lists no extents");
    check(Vmdk, &[0xff; 600], "is no VMDK image");
    check(Vmdk, &vec![b' '; 2 * MIB], "is too long for a descriptor");
    check(Vpc, b"", "does not end with the footer");
    check(Vpc, &vpc()[..vpc().len() - 1], "does not end with the footer");
    check(Vpc, &footer(4, 4096), "is a differencing disk");
    check(Vpc, &footer(2, 4096), "has 0 bytes of data, and its disk 4096");
    check(Vpc, &footer(2, u64::MAX), "one has 2040 GiB at most");
    check(Vpc, &footer(5, 4096), "unknown disk type: 5");
    check(Vpc, &changed(vpc(), 7000, &[1]), "footer checksum mismatch");
    check(Vpc, &changed(vpc(), 512 + 28, &[0xff; 4]), "do not lie in the file's first 64 MiB");
    check(Vpc, &changed(vpc(), 512 + 16, &[0xff; 8]), "do not lie in the file's first 64 MiB");
    check(Vpc, &changed(vpc(), 512 + 28, &[0, 0, 0, 2]), "too short for its disk");
    check(Vpc, &changed(vpc(), 512 + 32, &[0, 0, 0, 0]), "has blocks of 0 bytes");
    check(Vhdx, b"vhdxfile", "no valid VHDX header found");
    check(Vhdx, &vhdx([1; 16], 0), "its log has to be replayed by `qemu-img check -r all`");
    check(Vhdx, &vhdx([0; 16], 2), "is a differencing disk");
    check(Vhdx, &vhdx([0; 16], 0)[..3 * MIB], "outside the container bounds");
    let disk = 3 * MIB + (64 << 10) + 8;
    check(Vhdx, &changed(vhdx([0; 16], 0), disk, &(1_u64 << 40).to_le_bytes()), "needs 8390648: it is damaged");
    // What is cut off inside of data is met when that is read.
    room.write("image", &vhdx([0; 16], 0)[..4 * MIB + 9]);
    assert!(
        room.contents("image", Vhdx)
            .unwrap_err()
            .ends_with("read: its file ends before what its tables lead to: it was cut off, or is damaged")
    );
    room.write("image", &alone()[..12 * 512 + 9]);
    assert!(
        room.contents("image", Vmdk)
            .unwrap_err()
            .ends_with("read: its file ends before what its tables lead to: it was cut off, or is damaged")
    );
}

/// The crate reads a whole file to find its footer.
#[test]
fn of_a_large_image_only_the_tables_are_in_memory() {
    let room = Room::new();
    let large = fs::File::create(room.at("large")).unwrap();
    large.set_len(1 << 40).unwrap();
    large.write_all_at(&[7; 512], 1 << 39).unwrap();
    large.write_all_at(&footer(2, 1 << 40), 1 << 40).unwrap();
    let storage = room.foreign("large", ForeignFormat::Vpc).open().unwrap();
    let mut sector = [0; 512];
    storage.reader().disk.read(1 << 39, &mut sector).unwrap();
    assert_eq!(sector, [7; 512]);
}

#[test]
fn damage_is_an_error_or_read_but_no_panic() {
    let room = Room::new();
    let mut rng = Rng(11);
    let images = [
        (ForeignFormat::Vmdk, alone(), vec![0..3072, 512..900]),
        (ForeignFormat::Vpc, vpc(), vec![512..560, 1536..1548]),
        (ForeignFormat::Vhdx, vhdx([0; 16], 0), vec![2 * MIB..2 * MIB + 64, 3 * MIB..3 * MIB + 160]),
    ];
    for (format, sound, places) in images {
        for _ in 0..300 {
            let mut image = sound.clone();
            for _ in 0..=rng.below(4) {
                let place = &places[rng.below(places.len() as u64) as usize];
                let at = place.start + rng.below(place.len() as u64) as usize;
                image[at] = [0, 0xff, 0x7f, 0x80, rng.below(256) as u8][rng.below(5) as usize];
            }
            image.truncate(image.len() - (rng.below(8) / 7 * rng.below(image.len() as u64)) as usize);
            room.write("image", &image);
            let Ok(storage) = room.foreign("image", format).open() else { continue };
            let size = storage.size_bytes;
            let mut buf = vec![0; 64 << 10];
            for at in [0, 4096, size / 2, size.saturating_sub(buf.len() as u64)] {
                let there = size.saturating_sub(at).min(buf.len() as u64) as usize;
                let _ = storage.reader().disk.read(at, &mut buf[..there]);
                let _ = storage.extents(at / 512 * 512..storage.capacity_bytes(), 9);
            }
        }
    }
}

/// Whoever writes meanwhile is refused by the list's lock too, also by the target itself.
#[test]
fn the_file_that_lists_the_others_is_not_written() {
    let room = Room::new();
    let text = format!("{BASE}createType=\"monolithicFlat\"\nRW 8 FLAT \"flat\" 0\n");
    room.write("list", &text);
    room.write("flat", [7; 4096]);
    let from = From::Foreign(room.foreign("list", ForeignFormat::Vmdk));
    to_raw(&from, &room.at("list"), true, &mut |_, _| {}).unwrap_err();
    assert_eq!(fs::read_to_string(room.at("list")).unwrap(), text);
    assert_eq!(room.contents("list", ForeignFormat::Vmdk).unwrap(), [7; 4096]);
}

/// Where a directory is said to be by a footer, that says all that the header says.
#[test]
fn a_footer_is_like_its_header() {
    let room = Room::new();
    let with_footer = |change: fn(&mut [u8])| {
        let mut image = alone();
        let mut end = [0; 3 * 512];
        put(&mut end, 0, &1_u64.to_le_bytes());
        put(&mut end, 12, &3_u32.to_le_bytes());
        end[512..1024].copy_from_slice(&image[..512]);
        put(&mut image, 56, &[0xff; 8]);
        change(&mut end);
        image.extend(end);
        room.write("vmdk", image);
    };
    with_footer(|_| {});
    assert!(room.contents("vmdk", ForeignFormat::Vmdk).unwrap() == third_grain());
    for change in [
        (|end| put(end, 512 + 12, &1024_u64.to_le_bytes())) as fn(&mut [u8]),
        |end| put(end, 512 + 20, &16_u64.to_le_bytes()),
        |end| put(end, 12, &[0]),
        |end| put(end, 1024, &[1]),
    ] {
        with_footer(change);
        let refused = room.refusal("vmdk", ForeignFormat::Vmdk);
        assert!(refused.contains("has no footer like its header"), "{refused}");
    }
}

#[test]
fn what_has_to_be_understood_is() {
    let room = Room::new();
    let refused = |image: &[u8]| {
        room.write("vhdx", image);
        room.refusal("vhdx", ForeignFormat::Vhdx)
    };
    let mut image = vhdx([0; 16], 0);
    for at in [192 << 10, 256 << 10] {
        put(&mut image, at + 8, &3_u32.to_le_bytes());
        put(&mut image, at + 80, &[9; 16]);
        put(&mut image, at + 96, &(4 * MIB as u64).to_le_bytes());
        put(&mut image, at + 104, &(MIB as u32).to_le_bytes());
        put(&mut image, at + 108, &1_u32.to_le_bytes());
        checksummed(&mut image[at..at + (64 << 10)]);
    }
    assert!(refused(&image).contains("has a region that has to be understood"), "{}", refused(&image));
    let mut image = vhdx([0; 16], 0);
    put(&mut image, 3 * MIB + 10, &[4]);
    put(&mut image, 3 * MIB + 32 + 3 * 32, &[9; 16]);
    put(&mut image, 3 * MIB + 32 + 3 * 32 + 16, &(128_u32 << 10).to_le_bytes());
    put(&mut image, 3 * MIB + 32 + 3 * 32 + 24, &[4]);
    assert!(refused(&image).contains("has metadata that has to be understood"), "{}", refused(&image));
    let mut image = vpc();
    put(&mut image, 48, &4096_u64.to_be_bytes());
    seal(&mut image[..512], 64);
    room.write("vpc", image);
    let refused = room.refusal("vpc", ForeignFormat::Vpc);
    assert!(refused.contains("begins with another footer"), "{refused}");
}
