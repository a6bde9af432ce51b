//! Makes a disk that a PC's BIOS can boot, without a loop device and without root.
//!
//! Sector 0 holds GRUB's `boot.img` and a partition table, sector 1 onwards GRUB's core image,
//! 1 MiB onwards one ext4 partition. `boot.img` and the core image need no patching in this
//! place: their built-in block lists say "sector 1" and "sector 2 and following".

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use guest::lab::Lab;
use guest::process::run;

const SECTOR: u64 = 512;
/// Everybody's partitions start at 1 MiB, which leaves the boot loader its room.
const PARTITION_OFFSET: u64 = 1 << 20;
const PARTITION_BYTES: u64 = 63 << 20;
/// Where the partition table starts in sector 0; a BIOS runs what lies before it.
const TABLE_OFFSET: usize = 446;
const PARTITION_TYPE_LINUX: u8 = 0x83;

/// What the core image must be able to do: BIOS disks, the partition table, ext4, Linux, and to
/// say on the serial line how far it got.
const GRUB_MODULES: &[&str] =
    &["biosdisk", "part_msdos", "ext2", "linux", "serial", "terminal", "normal", "configfile", "echo"];

const GRUB_EARLY_CONFIG: &str = "\
set root=(hd0,msdos1)
serial --unit=0 --speed=115200
terminal_output serial
echo lab: the boot loader runs from the disk
linux /boot/vmlinuz console=ttyS0 quiet panic=-1 nowatchdog tsc=reliable no_timer_check root=/dev/vda1
initrd /boot/initramfs
boot
";

/// Changes whenever [`make`] makes another disk of the same tree.
pub(super) const RECIPE: &str = GRUB_EARLY_CONFIG;

/// Writes the disk to `image`, with the content of `tree` in its partition. `scratch` is an
/// existing directory for files in between.
pub(super) fn make(lab: &Lab, tree: &Path, scratch: &Path, image: &Path) -> Result<()> {
    let core = core_image(lab, scratch)?;
    let boot = fs::read(lab.root().join("usr/lib/grub/i386-pc/boot.img"))
        .context("the lab's root file system has GRUB's boot.img")?;
    ensure!(
        core.len() as u64 <= PARTITION_OFFSET - SECTOR,
        "GRUB's core image has {} bytes and does not fit before the partition",
        core.len()
    );

    let disk = File::create(image).with_context(|| format!("cannot create {}", image.display()))?;
    disk.set_len(PARTITION_OFFSET + PARTITION_BYTES)?;
    disk.write_all_at(&first_sector(&boot)?, 0)?;
    disk.write_all_at(&core, SECTOR)?;
    drop(disk);

    let mut mkfs = lab.command_in_root("usr/sbin/mke2fs");
    mkfs.args(["-q", "-F", "-t", "ext4", "-L", "lab", "-d"])
        .arg(tree)
        .arg("-E")
        .arg(format!("offset={PARTITION_OFFSET},root_owner=0:0"))
        .arg(image)
        .arg(format!("{}k", PARTITION_BYTES >> 10))
        .env("MKE2FS_CONFIG", lab.root().join("etc/mke2fs.conf"));
    run(&mut mkfs)?;
    Ok(())
}

fn core_image(lab: &Lab, scratch: &Path) -> Result<Vec<u8>> {
    let config = scratch.join("grub.cfg");
    let output = scratch.join("core.img");
    fs::write(&config, GRUB_EARLY_CONFIG)?;
    let mut mkimage: Command = lab.command_in_root("usr/bin/grub-mkimage");
    mkimage
        .args(["--format", "i386-pc", "--prefix", "(hd0,msdos1)/boot/grub"])
        .arg("--directory")
        .arg(lab.root().join("usr/lib/grub/i386-pc"))
        .arg("--config")
        .arg(&config)
        .arg("--output")
        .arg(&output)
        .args(GRUB_MODULES);
    run(&mut mkimage)?;
    fs::read(&output).with_context(|| format!("cannot read {}", output.display()))
}

fn first_sector(boot: &[u8]) -> Result<[u8; SECTOR as usize]> {
    ensure!(boot.len() == SECTOR as usize, "GRUB's boot.img has {} bytes instead of one sector", boot.len());
    let mut sector = [0_u8; SECTOR as usize];
    sector[..TABLE_OFFSET].copy_from_slice(&boot[..TABLE_OFFSET]);
    let first = u32::try_from(PARTITION_OFFSET / SECTOR)?;
    let count = u32::try_from(PARTITION_BYTES / SECTOR)?;
    let entry = &mut sector[TABLE_OFFSET..TABLE_OFFSET + 16];
    entry[0] = 0x80;
    // Cylinders, heads and sectors at their limits: use the sector numbers below.
    entry[1..4].copy_from_slice(&[0xfe, 0xff, 0xff]);
    entry[4] = PARTITION_TYPE_LINUX;
    entry[5..8].copy_from_slice(&[0xfe, 0xff, 0xff]);
    entry[8..12].copy_from_slice(&first.to_le_bytes());
    entry[12..16].copy_from_slice(&count.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    Ok(sector)
}
