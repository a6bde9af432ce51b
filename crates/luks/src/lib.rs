//! LUKS: a layer of encryption over any storage, in the formats of cryptsetup and QEMU.
//!
//! The parts can be thought through alone: the two headers (`v1`, `v2`) and what both say (`header`), key slots (`slot`) with their
//! key derivation (`kdf`) and anti-forensic stripes (`af`), the `budget` that bounds what a header may cost, and the cipher
//! ([`xts`]). None of these performs I/O or trusts a byte of a header.
//!
//! The storage made of them, which encrypts on the workers, is in `served`; [`tools`] look at containers that nobody serves, and make them.
//!
//! LUKS2 is defined by cryptsetup's `docs/on-disk-format-luks2.pdf`, LUKS1 by its predecessor; `docs/luks.md` says what of them is
//! supported.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod af;
mod budget;
mod error;
mod field;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod header;
pub mod kdf;
mod key;
pub mod new;
mod served;
mod slot;
#[cfg(test)]
mod testing;
pub mod tools;
mod v1;
mod v2;
pub mod xts;

pub use error::{FormatError, LuksError, UnlockError};
pub use key::Passphrase;
pub use served::{LuksStorage, adopt, open};
