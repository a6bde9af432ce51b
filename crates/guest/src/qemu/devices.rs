//! The devices of a PC, as QEMU's options.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::option_value;
use crate::device::Device;
use crate::process::dies_with_us;

/// Slots in a request queue of a directory, as virtiofsd's documentation has it.
const DIRECTORY_QUEUE_SIZE: u32 = 1024;
/// 9p (virtio 1.3, section 5). QEMU has no vhost-user device of its own for it, only one that can be any.
const VIRTIO_ID_9P: u16 = 9;
/// File system (virtio 1.3, section 5), and the length of its configuration (5.11.4).
const VIRTIO_ID_FS: u16 = 26;
const CONFIG_BYTES_FS: usize = 44;
/// Slots in the queue of 9p, as QEMU's own device has it.
const QUEUE_SIZE_9P: u32 = 128;
/// The tag's length in the configuration of a 9p device, before the tag itself (`struct virtio_9p_config`).
const TAG_LENGTH_BYTES: usize = 2;

/// Adds the options that give `devices` to a guest of the program `qemu`.
pub fn add_devices(command: &mut Command, qemu: &Path, devices: &[Device]) -> Result<()> {
    for (index, device) in devices.iter().enumerate() {
        match device {
            Device::Disk { socket, queues } => {
                add_server(command, index, socket, "", &format!("vhost-user-blk-pci,num-queues={queues}"))?;
            }
            Device::ReconnectingDisk { socket, queues, again_after_ms } => {
                let chardev = format!(",reconnect-ms={again_after_ms}");
                add_server(command, index, socket, &chardev, &format!("vhost-user-blk-pci,num-queues={queues}"))?;
            }
            Device::Scsi { socket, queues } => {
                add_server(command, index, socket, "", &format!("vhost-user-scsi-pci,num_queues={queues}"))?;
            }
            Device::Directory { socket, tag, queues } => {
                let options = format!(
                    "vhost-user-fs-pci,tag={tag},queue-size={DIRECTORY_QUEUE_SIZE},num-request-queues={queues}"
                );
                add_server(command, index, socket, "", &options)?;
            }
            Device::QemuDisk { image, queues, direct } => {
                let storage = storage(image, *direct, asynchronous_io(qemu, image, *direct)?)?;
                command
                    .args(["-object", &format!("iothread,id=thread{index}")])
                    .args(["-blockdev", &format!("{storage},node-name=storage{index}")])
                    .args([
                        "-blockdev",
                        &format!("driver=raw,file=storage{index},node-name=disk{index}{}", cache(*direct)),
                    ])
                    .arg("-device")
                    .arg(format!("virtio-blk-pci,drive=disk{index},iothread=thread{index},num-queues={queues}"));
            }
            Device::DirectoryDax { socket, .. } => {
                let options = format!(
                    "vhost-user-test-device-pci,virtio-id={VIRTIO_ID_FS},num_vqs=2,vq_size={DIRECTORY_QUEUE_SIZE},config_size={CONFIG_BYTES_FS}"
                );
                add_server(command, index, socket, "", &options)?;
            }
            Device::Directory9p { socket, tag } => {
                let config_bytes = TAG_LENGTH_BYTES + tag.len();
                let options = format!(
                    "vhost-user-test-device-pci,virtio-id={VIRTIO_ID_9P},num_vqs=1,vq_size={QUEUE_SIZE_9P},config_size={config_bytes}"
                );
                add_server(command, index, socket, "", &options)?;
            }
            Device::Qemu9p { directory, tag, security_model } => {
                let path = option_value(directory)?;
                command
                    .arg("-fsdev")
                    .arg(format!("local,id=tree{index},path={path},security_model={security_model},multidevs=remap"))
                    .arg("-device")
                    .arg(format!("virtio-9p-pci,fsdev=tree{index},mount_tag={tag}"));
            }
        }
    }
    Ok(())
}

fn add_server(command: &mut Command, index: usize, socket: &Path, chardev: &str, device: &str) -> Result<()> {
    command
        .arg("-chardev")
        .arg(format!("socket,id=server{index},path={}{chardev}", option_value(socket)?))
        .arg("-device")
        .arg(format!("{device},chardev=server{index}"));
    Ok(())
}

fn cache(direct: bool) -> &'static str {
    if direct { ",cache.direct=on" } else { "" }
}

fn storage(image: &Path, direct: bool, io: &str) -> Result<String> {
    use std::os::unix::fs::FileTypeExt;

    let kind = image.metadata().with_context(|| format!("cannot use {}", image.display()))?.file_type();
    let driver = if kind.is_block_device() { "host_device" } else { "file" };
    // Guests that are measured in turns have one image; only one of them uses it at a time.
    Ok(format!("driver={driver},filename={},aio={io},locking=off{}", option_value(image)?, cache(direct)))
}

/// The best way of asynchronous I/O that this QEMU, built as it is, takes for this image on this kernel.
fn asynchronous_io(qemu: &Path, image: &Path, direct: bool) -> Result<&'static str> {
    // The kernel's own AIO goes with direct I/O only.
    let ways: &[&str] = if direct { &["io_uring", "native", "threads"] } else { &["io_uring", "threads"] };
    let mut complaint = String::new();
    for way in ways {
        let mut input = tempfile::tempfile()?;
        input.write_all(b"{\"execute\":\"qmp_capabilities\"}{\"execute\":\"quit\"}")?;
        input.seek(SeekFrom::Start(0))?;
        let mut command = Command::new(qemu);
        command
            .args(["-machine", "none", "-nodefaults", "-display", "none", "-qmp", "stdio", "-blockdev"])
            .arg(format!("{},node-name=probe", storage(image, direct, way)?));
        let output = dies_with_us(&command).stdin(input).output().context("cannot start QEMU")?;
        if output.status.success() {
            return Ok(way);
        }
        complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    }
    bail!("QEMU does not take {}: {complaint}", image.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_are_doubled_and_queues_are_told() {
        let mut command = Command::new("qemu");
        let devices = [
            Device::Disk { socket: "/run/a,b".into(), queues: 3 },
            Device::Directory { socket: "/run/c".into(), tag: "share".into(), queues: 2 },
            Device::ReconnectingDisk { socket: "/run/d".into(), queues: 1, again_after_ms: 100 },
            Device::Directory9p { socket: "/run/e".into(), tag: "nine".into() },
            Device::DirectoryDax { socket: "/run/f".into(), tag: "window".into() },
        ];
        add_devices(&mut command, Path::new("/nowhere"), &devices).unwrap();
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(
            arguments,
            [
                "-chardev",
                "socket,id=server0,path=/run/a,,b",
                "-device",
                "vhost-user-blk-pci,num-queues=3,chardev=server0",
                "-chardev",
                "socket,id=server1,path=/run/c",
                "-device",
                "vhost-user-fs-pci,tag=share,queue-size=1024,num-request-queues=2,chardev=server1",
                "-chardev",
                "socket,id=server2,path=/run/d,reconnect-ms=100",
                "-device",
                "vhost-user-blk-pci,num-queues=1,chardev=server2",
                "-chardev",
                "socket,id=server3,path=/run/e",
                "-device",
                "vhost-user-test-device-pci,virtio-id=9,num_vqs=1,vq_size=128,config_size=6,chardev=server3",
                "-chardev",
                "socket,id=server4,path=/run/f",
                "-device",
                "vhost-user-test-device-pci,virtio-id=26,num_vqs=2,vq_size=1024,config_size=44,chardev=server4",
            ]
        );
    }
}
