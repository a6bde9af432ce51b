//! Files that begin like a disk image of a format, and are about to be served as raw bytes.
//!
//! Nothing depends on it but a warning. What a raw image begins with is the guest's to write, so it must not choose how the image is
//! served, nor whether; a person who has named the wrong storage should hear of it before a guest makes a file system of an image.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Formats, where their magic is, and what it is; each with what to do.
const FORMATS: [(&str, usize, &[u8], &str); 8] = [
    ("a qcow2 image", 0, b"QFI\xfb", "serve it with storage `qcow2`"),
    ("a VMDK image", 0, b"KDMV", CONVERT),
    ("a VMDK descriptor", 0, b"# Disk DescriptorFile", CONVERT),
    ("a VHDX image", 0, b"vhdxfile", CONVERT),
    ("a VHD image", 0, b"conectix", CONVERT),
    ("a VDI image", 64, b"\x7f\x10\xda\xbe", CONVERT),
    ("a QED image", 0, b"QED\0", CONVERT),
    (
        "a LUKS container",
        0,
        b"LUKS\xba\xbe",
        "give its key file (`luks`, `--luks-key-file`), or let the guest decrypt it",
    ),
];

const CONVERT: &str = "convert it with `qemu-img convert -O raw`";

/// What the beginning of a file looks like, and what to do with such a file.
fn looks_like(first: &[u8]) -> Option<(&'static str, &'static str)> {
    let found = FORMATS.iter().find(|(_, at, magic, _)| first.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    found.map(|(name, _, _, fix)| (*name, *fix))
}

/// What the beginning of the file at `path` looks like, and what to do with such a file, if that is no raw image.
pub fn begins_like(path: &Path) -> Option<(&'static str, &'static str)> {
    let mut first = [0; 512];
    // What cannot be read now was opened a moment ago: nobody depends on the warning.
    let read = File::open(path).and_then(|image| image.read_at(&mut first, 0)).unwrap_or(0);
    looks_like(&first[..read])
}

/// Says so, loudly, if a file that is going to be served as raw bytes does not look raw.
pub(super) fn warn_of_format(path: &Path) {
    if let Some((format, fix)) = begins_like(path) {
        tracing::warn!(
            path = %path.display(),
            "begins like {format} and is served as raw bytes: a guest sees the format's own structures and may destroy them; \
             if it is one, stop its export before a guest writes, and {fix}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_magic_and_nothing_else_is() {
        for (name, at, magic, fix) in FORMATS {
            let mut first = [0; 512];
            assert_eq!(looks_like(&first), None);
            first[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(looks_like(&first), Some((name, fix)));
            assert_eq!(looks_like(&first[..at + magic.len() - 1]), None, "{name} that is cut off");
        }
        assert_eq!(looks_like(b""), None);
        assert_eq!(looks_like(b"QFI"), None);
    }
}
