//! SCSI devices at their sockets.

mod commands;
mod driver;
mod fences;
mod kept;
mod passed;
mod reservations;
mod tasks;
mod units;
