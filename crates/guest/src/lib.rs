//! Virtual machines for tests and measurements: what they are made of, how they are booted, and
//! one way to run a script in them.
//!
//! [`Shell`] is the interface: a script goes in, its status and what it said come out, whether it
//! runs on this host ([`Host`]), in a User Mode Linux guest ([`uml::boot`]), in a QEMU guest
//! ([`qemu::boot`]) or in a machine that a person names ([`Ssh`]). A [`Kit`] names the files of
//! which guests are made; the lab ([`lab::Lab`]) has one, and so can anybody who has a kernel and a root
//! file system.
//!
//! No device is served here and no load is made: guests know sockets, and scripts are the callers'.
//! The development tasks are built on this crate, so it stays quick to build.
//!
//! # Nothing stays behind
//! A guest dies when its value is dropped, with every process of its group. It also dies, by the
//! kernel's hand, when the *thread* that booted it ends: boot guests from a thread that lives as
//! long as they do. A signal that ends this process at once leaves no guest, but leaves the guests'
//! temporary directories. A program that wants those gone too handles SIGINT and SIGTERM itself:
//! its handler (or the thread that waits for signals) calls [`interrupt::request`], every wait of
//! this crate then fails soon, and the program drops its guests on the way out.

pub mod ceph;
pub mod device;
pub mod interrupt;
pub mod kit;
pub mod lab;
pub mod machine;
pub mod numa;
pub mod process;
pub mod qemu;
pub mod shell;
pub mod spoiled;
pub mod uml;
pub mod usage;

pub use device::Device;
pub use kit::Kit;
pub use machine::Machine;
pub use shell::{Guest, Host, Output, Shell, Ssh};
