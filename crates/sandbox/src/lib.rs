//! What a daemon gives up before it serves a directory: names it could reach, rights it does not need, system calls it
//! never makes.
//!
//! In this order, in the main thread, before another thread exists:
//!
//! 1. [`set_open_files_max`], which may need rights that are given up next;
//! 2. sockets and files outside of the shared directory are opened, because their names are gone afterwards;
//! 3. [`Sandbox::enter`];
//! 4. [`Capabilities::apply`];
//! 5. [`Seccomp::apply`], which also covers threads that exist.
//!
//! The words and their meaning are virtiofsd's, so that who starts one can start the other. Nothing here knows of a device,
//! a protocol or a tree.

mod capabilities;
mod chroot;
mod error;
mod fork;
mod id_mapping;
mod mode;
mod mounts;
mod namespace;
mod rlimit;
mod seccomp;
mod syscalls;

pub use capabilities::{Capabilities, CapabilityError};
pub use error::SandboxError;
pub use id_mapping::{IdMapping, IdMappingError};
pub use mode::{Entered, Mode, Sandbox, UnknownMode};
pub use rlimit::{OPEN_FILES_DEFAULT, RlimitError, set_open_files_max};
pub use seccomp::{Seccomp, SeccompError, UnknownSeccomp};
