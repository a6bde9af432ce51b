//! Writes initial file systems in the `newc` form (kernel:
//! `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::fmt::Write as _;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive in the making.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a directory. Its parents must have been added before.
    pub(super) fn directory(&mut self, name: &str) -> &mut Self {
        self.entry(name, DIRECTORY, (0, 0), &[])
    }

    /// Adds an executable file.
    pub(super) fn program(&mut self, name: &str, content: &[u8]) -> &mut Self {
        self.entry(name, PROGRAM, (0, 0), content)
    }

    /// Adds the console (character device 5:1), which the kernel opens for its first process.
    pub(super) fn console(&mut self, name: &str) -> &mut Self {
        self.entry(name, CHARACTER_DEVICE, (5, 1), &[])
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) -> &mut Self {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("files of an initramfs are small");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        // inode, mode, uid, gid, links, mtime, size, device of the file system (two fields),
        // device of the node (two fields), length of the name, checksum (unused in this form).
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            write!(header, "{field:08x}").expect("writing to a string cannot fail");
        }
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
        self
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
