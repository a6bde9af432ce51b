//! Real frontends for vringd: guests (User Mode Linux, QEMU) and programs (qemu-img, qemu-io).
//!
//! This room knows how to find the lab that `cargo xtask lab` makes, how to start a server on a
//! socket and a guest on that server, and how to end both whatever state they are in. The tests
//! in `tests/tests/` use nothing of the rooms that do the work: they see what an operator sees, a
//! program and its sockets. Tests without a virtual machine bring frontends of their own: the load
//! generator, and a small driver ([`driver`]) on `frontkit` that may also lie.

pub mod ceph;
pub mod closes;
pub mod daemon;
pub mod debian;
pub mod directory_server;
pub mod driver;
pub mod frontend;
pub mod fs_guest;
pub mod fuse;
pub mod image;
pub mod libvirt;
pub mod long;
pub mod moving;
mod nudge;
pub mod p9;
pub mod p9_guest;
pub mod posix_suite;
pub mod qemu;
pub mod qemu_img;
pub mod script;
pub mod server;
pub mod uml;
pub mod vringd;

pub use guest::{device, lab, process, spoiled};
