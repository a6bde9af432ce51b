//! What can be wrong with an image.

/// Why metadata of an image cannot be used. Offsets are bytes of the image file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum FormatError {
    /// offset 0: it does not begin like a qcow2 image: serve a raw image with storage `file`
    Magic,
    /// offset 4: qcow2 version {0} is not known: versions 2 and 3 are
    Version(u32),
    /// offset {offset}: the image ends inside {what}: it was cut off, or is no qcow2 image
    Short {
        /// Where that begins.
        offset: u64,
        /// What it is.
        what: &'static str,
    },
    /// offset {offset}: {field} is {value:#x}: {rule}
    Field {
        /// Where it is.
        offset: u64,
        /// Its name in the specification.
        field: &'static str,
        /// What is there.
        value: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// offset 72: the image needs {0}, which this program does not have: convert it with `qemu-img convert`
    Incompatible(String),
    /// offset 32: the image is encrypted with {0}, which this program cannot decrypt: convert it with `qemu-img convert`
    Encrypted(&'static str),
    /// offset {offset}: header extension {kind:#x} has {len} bytes: {rule}
    Extension {
        /// Where its data begins.
        offset: u64,
        /// Its type.
        kind: u32,
        /// Its length.
        len: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// L1 entry {index} is {value:#x}: {rule}
    L1 {
        /// Its number.
        index: u64,
        /// What is there.
        value: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// the L2 entry of guest offset {guest:#x} is {value:#x}: {rule}
    L2 {
        /// First byte of the cluster that it describes.
        guest: u64,
        /// What is there.
        value: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// snapshot {index}: {rule}
    Snapshot {
        /// Its number.
        index: u32,
        /// What it should be.
        rule: &'static str,
    },
    /// the directory of bitmaps at offset {offset:#x}: {rule}
    BitmapDirectory {
        /// Where it is.
        offset: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// bitmap {index}: {rule}
    Bitmap {
        /// Its number.
        index: u32,
        /// What it should be.
        rule: &'static str,
    },
    /// an entry {value:#x} in the table of bitmap {index}: {rule}
    BitmapTable {
        /// The bitmap's number.
        index: u32,
        /// What is there.
        value: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// refcount table entry {index} is {value:#x}: {rule}
    RefcountTable {
        /// Its number.
        index: u64,
        /// What is there.
        value: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// the cluster at offset {host:#x} has refcount {refcount}: {rule}
    Refcount {
        /// Where it is.
        host: u64,
        /// What its refcount is.
        refcount: u64,
        /// What it should be.
        rule: &'static str,
    },
    /// the compressed cluster at offset {host:#x}: {rule}
    Compressed {
        /// Where its data begins.
        host: u64,
        /// What is wrong with it.
        rule: &'static str,
    },
}
