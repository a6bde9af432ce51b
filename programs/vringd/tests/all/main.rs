//! The integration tests of this crate: one program, so that one is linked.

mod command_line;
mod disks;
mod doctor;
mod file_size_limit;
mod image;
mod luks;
mod place;
mod tls;
mod units;
mod volume;
