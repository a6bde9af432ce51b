//! Every operation against real directories.

mod attributes;
mod files;
mod names;
mod privileges;
mod xattrs;

use passthrough::{Attributes, Options};

const RDWR: i32 = libc::O_RDWR;

fn xattr() -> Options {
    Options { xattr: true, ..Options::default() }
}

fn kind(attributes: &Attributes) -> u32 {
    attributes.mode & libc::S_IFMT
}
