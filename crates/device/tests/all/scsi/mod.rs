//! virtio-scsi: chains, CDBs and answers against bytes put together as the standards' tables say, reservations against a second
//! model, and any bytes.

mod address;
mod answers;
mod attention;
mod chain;
mod commands;
mod config;
mod control;
mod document;
mod mode;
mod numbers;
mod properties;
mod provisioning;
mod reservations;
mod units;
