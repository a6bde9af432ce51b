//! QEMU's own programs on a socket of vringd: a second, independent implementation of the driver.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use tests::image;
use tests::lab::Lab;
use tests::qemu_img;
use tests::server::{Disk, Server};

const MIB: usize = 1 << 20;

/// An image with data, zeroes and holes in uneven places.
fn patterned(path: &Path, capacity_bytes: usize) -> Result<()> {
    let mut content = vec![0_u8; capacity_bytes];
    let mut state = 0x9e37_79b9_u32;
    for (index, chunk) in content.chunks_mut(52 * 1024).enumerate() {
        if index % 3 != 1 {
            for byte in chunk {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = state.to_be_bytes()[0];
            }
        }
    }
    fs::write(path, content)?;
    Ok(())
}

#[test]
fn convert_and_compare_agree() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let original = directory.path().join("original.raw");
    patterned(&original, 40 * MIB)?;
    let image = image::sparse(directory.path(), "disk.raw", 40 * MIB as u64)?;
    let mut server = Server::start(&lab, &Disk::new(&image))?;

    qemu_img::convert_to(&lab, &original, &server.socket())?.expect_success()?;
    qemu_img::compare(&lab, &server.socket(), &original)?.expect_success()?;
    let back = directory.path().join("back.raw");
    qemu_img::convert_from(&lab, &server.socket(), &back)?.expect_success()?;
    ensure!(fs::read(&back)? == fs::read(&original)?, "what was read through the socket is not what was written");
    server.check_alive()?;
    drop(server);
    ensure!(fs::read(&image)? == fs::read(&original)?, "the image is not what was written through the socket");

    // And a difference is found: the comparison above could have failed.
    let server = Server::start(&lab, &Disk::new(&image))?;
    qemu_img::io(&lab, &server.socket(), &["write -P 0x77 20000256 512"])?.expect_success()?;
    let outcome = qemu_img::compare(&lab, &server.socket(), &original)?;
    ensure!(!outcome.success && outcome.output.contains("mismatch"), "no difference was found: {}", outcome.output);
    Ok(())
}

#[test]
fn patterns_come_back_aligned_and_not() -> Result<()> {
    for direct in [false, true] {
        let lab = Lab::take_turn();
        let directory = TempDir::new()?;
        let image = image::sparse(directory.path(), "disk.raw", 16 * MIB as u64)?;
        let server = Server::start(&lab, &Disk { direct, ..Disk::new(&image) })?;
        let commands = [
            "write -P 0x11 0 1M",
            "write -P 0x22 4096 4096",
            // Sectors that are no multiple of a page, across pages and beside older data.
            "write -P 0x33 8704 1536",
            "write -P 0x44 1048064 1024",
            "writev -P 0x55 2M 512 4096 1024 65536",
            // Smaller than a sector: the driver reads, changes and writes.
            "write -P 0x66 3000001 77",
            "write -P 0x77 16776704 512",
            "flush",
            "read -P 0x11 0 4096",
            "read -P 0x22 4096 4096",
            "read -P 0x11 8192 512",
            "read -P 0x33 8704 1536",
            "read -P 0x11 10240 1037824",
            "read -P 0x44 1048064 1024",
            "read -P 0 1049088 4096",
            "readv -P 0x55 2M 65536 1024 4096 512",
            "read -P 0 3000000 1",
            "read -P 0x66 3000001 77",
            "read -P 0 3000078 512",
            "read -P 0x77 16776704 512",
        ];
        let output = qemu_img::io(&lab, &server.socket(), &commands)?.expect_success()?;
        ensure!(!output.contains("failed"), "direct {direct}:\n{output}");
        drop(server);
        let content = fs::read(&image)?;
        ensure!(content[3_000_001..3_000_078].iter().all(|byte| *byte == 0x66), "direct {direct}: odd bytes are lost");
        ensure!(content[3_000_078] == 0 && content[3_000_000] == 0, "direct {direct}: their neighbours changed");
    }
    Ok(())
}

#[test]
fn zeroes_and_discards_read_as_zeroes() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", 16 * MIB as u64)?;
    let server = Server::start(&lab, &Disk::new(&image))?;
    let commands = ["write -P 0xaa 0 16M", "flush"];
    qemu_img::io(&lab, &server.socket(), &commands)?.expect_success()?;
    let full_bytes = image::allocated_bytes(&image)?;
    let commands = [
        "write -z 1M 64k",
        "write -z -u 2M 1M",
        "write -z 5120 1536",
        "discard 4M 8M",
        "flush",
        "read -P 0 1M 64k",
        "read -P 0xaa 1114112 64k",
        "read -P 0 2M 1M",
        "read -P 0xaa 4608 512",
        "read -P 0 5120 1536",
        "read -P 0xaa 6656 512",
        "read -P 0 4M 8M",
        "read -P 0xaa 12M 4M",
    ];
    let output = qemu_img::io(&lab, &server.socket(), &commands)?.expect_success()?;
    ensure!(!output.contains("failed"), "{output}");
    let left_bytes = image::allocated_bytes(&image)?;
    ensure!(
        left_bytes <= full_bytes - 8 * MIB as u64,
        "8 MiB were discarded and the image went from {full_bytes} to {left_bytes} bytes"
    );
    Ok(())
}

#[test]
fn io_beyond_the_end_fails_and_the_disk_goes_on() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = image::sparse(directory.path(), "disk.raw", MIB as u64)?;
    let mut server = Server::start(&lab, &Disk::new(&image))?;
    let outcome = qemu_img::io(&lab, &server.socket(), &["write -P 1 1M 512"])?;
    ensure!(!outcome.success || outcome.output.contains("failed"), "a write behind the end: {}", outcome.output);
    qemu_img::io(&lab, &server.socket(), &["write -P 1 1048064 512", "read -P 1 1048064 512"])?.expect_success()?;
    ensure!(fs::metadata(&image)?.len() == MIB as u64, "the image grew");
    server.check_alive()
}

#[test]
fn readonly_disk_is_read_and_not_written() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new()?;
    let image = directory.path().join("disk.raw");
    fs::write(&image, vec![0x42; 4 * MIB])?;
    let mut server = Server::start(&lab, &Disk { readonly: true, ..Disk::new(&image) })?;
    qemu_img::io_readonly(&lab, &server.socket(), &["read -P 0x42 0 4M"])?.expect_success()?;
    let outcome = qemu_img::io(&lab, &server.socket(), &["write -P 0 0 4096"])?;
    ensure!(!outcome.success, "a read-only disk took a write: {}", outcome.output);
    server.check_alive()?;
    drop(server);
    ensure!(fs::read(&image)?.iter().all(|byte| *byte == 0x42), "a read-only image has changed");
    Ok(())
}
