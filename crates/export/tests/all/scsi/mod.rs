//! SCSI devices at their sockets.

mod commands;
mod driver;
mod tasks;
mod units;
