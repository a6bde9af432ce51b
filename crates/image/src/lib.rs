//! qcow2 images: what their metadata says, and the rules by which it changes.
//!
//! The parts can be thought through alone: the [`header`] and its [`extension`]s, the arithmetic of clusters ([`geometry`]), what
//! an L1 or L2 [`entry`] and a [`refcount`] mean, L2 [`tables`] in memory that many workers look into without a lock, the
//! [`epochs`] after which nobody can still use what was freed, the clusters that are being changed ([`claims`]), the contents
//! of a [`compressed`] cluster, [`new`] images, dirty [`bitmap`]s and their [bits](dirty), and who [`uses`] which cluster. None of these performs I/O, starts a thread or trusts a byte of the image: a lie is a
//! [`FormatError`] that names the place and the rule.
//!
//! The storage made of these parts, with its files and threads, is in `served`, and what is done to an image that nobody serves in
//! [`tools`]: of both the parts know nothing.
//!
//! The definition of the format is QEMU's `docs/interop/qcow2.rst`; what of it is supported is in `docs/formats/qcow2.md`.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod bitmap;
pub mod claims;
pub mod compressed;
pub mod dirty;
pub mod entry;
pub mod epochs;
mod error;
pub mod extension;
pub mod features;
mod field;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod geometry;
pub mod header;
pub mod new;
pub mod refcount;
pub mod reference;
mod rewrite;
mod served;
pub mod snapshot;
pub mod tables;
#[cfg(test)]
mod testing;
pub mod tools;
pub mod uses;

pub use error::FormatError;
pub use header::Compression;
pub(crate) use served::Behind;
pub use served::{BitmapError, BitmapInfo, ImageError, Qcow2Options, Qcow2Storage};
