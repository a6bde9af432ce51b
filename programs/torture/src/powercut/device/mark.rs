//! Marks in the log of dm-log-writes: the message that `dmsetup message NAME 0 mark TEXT` sends, without a program for each.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

const CONTROL: &str = "/dev/mapper/control";
/// `DM_TARGET_MSG` of Linux' `include/uapi/linux/dm-ioctl.h`: `_IOWR(0xfd, 14, struct dm_ioctl)`.
const TARGET_MESSAGE: libc::Ioctl = 0xc138_fd0e;
/// The version of the interface that is spoken; every later minor one is understood.
const VERSION: [u32; 3] = [4, 0, 0];
/// `sizeof(struct dm_ioctl)`.
const HEAD_BYTES: u32 = 312;
const NAME_BYTES: usize = 128;
const TEXT_BYTES: usize = 32;

/// `struct dm_ioctl` with a `struct dm_target_msg` behind it.
#[repr(C)]
struct Message {
    version: [u32; 3],
    data_bytes: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event: u32,
    padding: u32,
    device: u64,
    name: [u8; NAME_BYTES],
    uuid: [u8; 129],
    rest: [u8; 7],
    sector: u64,
    text: [u8; TEXT_BYTES],
}

/// Who marks the log of one mapped device.
pub(in crate::powercut) struct Marker {
    control: File,
    name: [u8; NAME_BYTES],
}

impl Marker {
    /// For the mapped device `name`.
    pub(in crate::powercut) fn open(name: &str) -> Result<Self> {
        let control = File::options().read(true).write(true).open(CONTROL);
        let control = control.with_context(|| format!("cannot open {CONTROL}"))?;
        let mut bytes = [0; NAME_BYTES];
        // The last byte ends the name.
        ensure!(!name.is_empty() && name.len() < NAME_BYTES, "`{name}` is no name of a mapped device");
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { control, name: bytes })
    }

    /// Leaves a number in the log, behind everything that was complete before.
    pub(in crate::powercut) fn mark(&self, number: u32) -> io::Result<()> {
        let mut text = [0; TEXT_BYTES];
        // Of ten digits at most: a zero remains at the end.
        let words = format!("mark {number}");
        text[..words.len()].copy_from_slice(words.as_bytes());
        let mut message = Message {
            version: VERSION,
            data_bytes: size_of::<Message>() as u32,
            data_start: HEAD_BYTES,
            target_count: 0,
            open_count: 0,
            flags: 0,
            event: 0,
            padding: 0,
            device: 0,
            name: self.name,
            uuid: [0; 129],
            rest: [0; 7],
            // Of the device's targets the one at its first sector, which is the only one.
            sector: 0,
            text,
        };
        // SAFETY: the kernel reads and writes `data_bytes` bytes of its argument, which is the size of `message`. rustix has no
        // call for it.
        let result = unsafe { libc::ioctl(self.control.as_raw_fd(), TARGET_MESSAGE, &raw mut message) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_message_is_laid_out_as_the_kernel_reads_it() {
        assert_eq!(offset_of!(Message, device), 40);
        assert_eq!(offset_of!(Message, name), 48);
        assert_eq!(offset_of!(Message, sector), HEAD_BYTES as usize);
        assert_eq!(offset_of!(Message, text), HEAD_BYTES as usize + 8);
        assert_eq!(size_of::<Message>(), HEAD_BYTES as usize + 8 + TEXT_BYTES);
        // Direction, size, type and number of the request.
        assert_eq!(TARGET_MESSAGE, 3 << 30 | libc::Ioctl::from(HEAD_BYTES) << 16 | 0xfd << 8 | 14);
    }
}
