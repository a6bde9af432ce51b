//! virtio-scsi (virtio 1.3, section 5.6) and the SCSI commands of its disks (SAM-5, SPC-5, SBC-4), as far as they can be told from
//! bytes: no storage, no clock, no thread.
//!
//! A chain of a request queue is a header with the CDB and data-out (readable), a response with sense data and data-in (writable).
//!
//! 1. [`decode_request`] cuts it apart: [`Request`] has the [`Address`], the CDB, and how many bytes of data there are each way.
//! 2. [`decode`] makes a [`Command`] of the CDB and what is known of the addressed [`Unit`], or the [`Sense`] of a CHECK CONDITION.
//! 3. [`Buffers::admit`] compares [`Command::transfer`] with the chain's data; [`Command::access`] is what a reservation's
//!    [`Gate`](reservations::Gate) is asked about, and [`Reports`] says what to do about pending [`Attentions`].
//! 4. Commands on data are the storage's. The others are answered here: a [`Query`] by [`answer`], parameter lists by
//!    [`Unmaps`], [`select_mode`] and [`reservations`].
//! 5. [`Response::encode`] makes the bytes of the answer.
//!
//! Sections of SPC-5, SBC-4 and SAM-5 are named by their titles, which stay the same from one revision to the next.

mod address;
mod answer;
mod attention;
mod cdb;
mod chain;
mod command;
mod config;
mod control;
mod decode;
mod decode_data;
mod decode_query;
mod event;
mod identity;
mod mode;
mod nexus;
pub mod opcodes;
mod pass;
pub mod reservations;
mod response;
mod sense;
pub mod spec;
mod unit;
mod unmap;

pub use address::{Address, BadTarget, Lun};
pub use answer::{Extent, Facts, Inventory, Ports, Usage, answer, asks_usage, lba_status_out};
pub use attention::{Attention, Attentions, Reports};
pub use chain::{Buffers, HEAD_BYTES_MAX, Malformed, Request, Sizes, TaskAttribute, Transfer, decode_request};
pub use command::{Access, Command, Compare, LogPage, ModePages, Operations, PageControl, Query};
pub use config::{CONFIG_READ_MAX, Config, ConfigError, Settings};
pub use control::{CONTROL_BYTES_MAX, Control, ControlError, Tmf, decode_control, notification_reply};
pub use decode::{Addressed, decode};
pub use event::{Event, Reset};
pub use identity::{Identity, IdentityError, Naa, NaaError, SERIAL_BYTES_MAX, VENDOR};
pub use mode::select_mode;
pub use nexus::{InitiatorPort, Nexus, TargetPort};
pub use pass::{BLOCK_LIMITS_BYTES, is_block_limits, limit_transfers, may_be_sent_again, sent_cdb};
pub use response::{Response, ResponseBytes, ResponseCode, Status};
pub use sense::{FieldPointer, Sense, SenseBytes};
pub use unit::{Counting, Limits, Mode, Rotation, Unit, UnitError, UnitSettings, UnmapLimits};
pub use unmap::{UNMAP_LIST_BYTES_MAX, Unmap, Unmaps};
