//! virtio-blk (virtio 1.3, section 5.2): configuration space, request decoding, and the bytes of an answer.
//!
//! A chain is header (16 bytes, readable), data (readable *or* writable), status (1 byte, the last writable one). The caller
//! cuts header and status off and hands over the header's bytes and the two data lengths; data itself is never looked at, except
//! the payload of discard and write zeroes, which the caller copies out of guest memory first.

mod config;
mod ranges;
mod request;
pub mod spec;

pub use config::{CONFIG_READ_MAX, Config, ConfigError, DiscardLimits, Limits, Settings, WriteZeroesLimits};
pub use ranges::{Range, Ranges};
pub use request::{Header, Reason, Refusal, Request, Status, decode_request, serial, used_bytes};
