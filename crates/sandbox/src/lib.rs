//! What a daemon gives up before it serves: names it could reach, rights it does not need, system calls it never makes.
//!
//! In this order, in the main thread, before another thread exists:
//!
//! 1. [`set_open_files_max`], which may need rights that are given up next;
//! 2. sockets and files are opened that are out of reach afterwards;
//! 3. for one directory, [`Sandbox::enter`]; for a daemon, [`Reach::enforce`] and [`Identity::assume`];
//! 4. [`give_up_new_privileges`] and [`Capabilities::apply`];
//! 5. [`Seccomp::apply`], which also covers threads that exist.
//!
//! The words of a directory's sandbox and their meaning are virtiofsd's, so that who starts one can start the other. Nothing
//! here knows of a device, a protocol or a tree.

mod capabilities;
mod chroot;
mod enter;
mod error;
mod files;
mod fork;
mod id_mapping;
mod identity;
mod mode;
mod mounts;
mod namespace;
mod reach;
mod rlimit;
mod role;
mod seccomp;
mod state;
mod syscalls;

pub use capabilities::{Capabilities, CapabilityError};
pub use error::SandboxError;
pub use files::{COPIED_BELOW, without_files};
pub use id_mapping::{IdMapping, IdMappingError};
pub use identity::Identity;
pub use mode::{Entered, Mode, Sandbox, UnknownMode};
pub use reach::{Grant, Landlock, LandlockError, Reach};
pub use rlimit::{OPEN_FILES_DEFAULT, RlimitError, set_open_files_max};
pub use role::Role;
pub use seccomp::{Seccomp, SeccompError, Sockets, UnknownSeccomp};
pub use state::{State, give_up_new_privileges, one_thread};
