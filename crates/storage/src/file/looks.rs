//! Files that begin like a disk image of a format, and are about to be served as raw bytes.
//!
//! Nothing depends on it but a warning. What a raw image begins with is the guest's to write, so it must not choose how the image is
//! served, nor whether; a person who has named the wrong storage should hear of it before a guest makes a file system of an image.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A format, as the beginning of a file looks like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display)]
#[displaydoc("{name}")]
pub struct Looks {
    /// What it is called.
    name: &'static str,
    /// Where its magic is, and what it is.
    magic: (usize, &'static [u8]),
    /// What to do with such a file that is to be served.
    pub serve: &'static str,
    /// And with one that is to be read by a tool.
    pub read: &'static str,
}

const FORMATS: [Looks; 8] = [
    looks("a qcow2 image", 0, b"QFI\xfb", "serve it with storage `qcow2`", "say so (`--from qcow2`, `--format qcow2`)"),
    looks("a VMDK image", 0, b"KDMV", CONVERT_VMDK, SAY_VMDK),
    looks("a VMDK descriptor", 0, b"# Disk DescriptorFile", CONVERT_VMDK, SAY_VMDK),
    looks(
        "a VHDX image",
        0,
        b"vhdxfile",
        "convert it with `vringd image convert --from vhdx`",
        "say so (`--from vhdx`, `--format vhdx`)",
    ),
    looks(
        "a VHD image",
        0,
        b"conectix",
        "convert it with `vringd image convert --from vpc`",
        "say so (`--from vpc`, `--format vpc`)",
    ),
    looks("a VDI image", 64, b"\x7f\x10\xda\xbe", CONVERT, CONVERT),
    looks("a QED image", 0, b"QED\0", CONVERT, CONVERT),
    looks(
        "a LUKS container",
        0,
        b"LUKS\xba\xbe",
        "give its key file (`luks`, `--luks-key-file`), or let the guest decrypt it",
        "what is copied is the container, with its key slots",
    ),
];

const CONVERT: &str = "convert it with `qemu-img convert -O raw`";
const CONVERT_VMDK: &str = "convert it with `vringd image convert --from vmdk`";
const SAY_VMDK: &str = "say so (`--from vmdk`, `--format vmdk`)";

const fn looks(name: &'static str, at: usize, magic: &'static [u8], serve: &'static str, read: &'static str) -> Looks {
    Looks { name, magic: (at, magic), serve, read }
}

/// What the beginning of a file looks like.
fn looks_like(first: &[u8]) -> Option<Looks> {
    let found = |looks: &&Looks| first.get(looks.magic.0..).is_some_and(|rest| rest.starts_with(looks.magic.1));
    FORMATS.iter().find(found).copied()
}

/// What the beginning of the file at `path` looks like, if that is no raw image.
pub fn begins_like(path: &Path) -> Option<Looks> {
    let mut first = [0; 512];
    // What cannot be read now was opened a moment ago: nobody depends on the warning.
    let read = File::open(path).and_then(|image| image.read_at(&mut first, 0)).unwrap_or(0);
    looks_like(&first[..read])
}

/// Says so, loudly, if a file that is going to be served as raw bytes does not look raw.
pub(super) fn warn_of_format(path: &Path) {
    if let Some(looks) = begins_like(path) {
        tracing::warn!(
            path = %path.display(),
            "begins like {looks} and is served as raw bytes: a guest sees the format's own structures and may destroy them; \
             if it is one, stop its export before a guest writes, and {}",
            looks.serve
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_magic_and_nothing_else_is() {
        for looks in FORMATS {
            let (at, magic) = looks.magic;
            let mut first = [0; 512];
            assert_eq!(looks_like(&first), None);
            first[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(looks_like(&first), Some(looks));
            assert_eq!(looks_like(&first[..at + magic.len() - 1]), None, "{looks} that is cut off");
        }
        assert_eq!(looks_like(b""), None);
        assert_eq!(looks_like(b"QFI"), None);
    }
}
