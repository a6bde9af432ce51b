//! SCSI devices at their sockets.

mod commands;
mod driver;
mod reservations;
mod tasks;
mod units;
