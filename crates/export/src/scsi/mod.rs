//! A SCSI device: virtio-scsi on one side, a storage for each of its logical units on the other.
//!
//! | file | concern |
//! |---|---|
//! | `device` | its part in a session |
//! | `units` | what all rings know of its units |
//! | `logical`, `port` | a unit as several devices have it, and a device as its units know it |
//! | `ring`, `request` | request queues: from a chain to a unit, and back |
//! | `commands`, `work`, `swaps` | what a command does, and what is left of it between two steps of a storage |
//! | `reserve` | reservations |
//! | `pass` | units that perform commands themselves |
//! | `control`, `tasks`, `lost` | the control queue: task management, of rings that have fallen, too |
//! | `events` | the event queue |

mod commands;
mod control;
mod device;
mod events;
mod kind;
mod logical;
mod lost;
mod pass;
mod port;
mod request;
mod reserve;
mod ring;
mod swaps;
mod tasks;
mod units;
mod work;

pub(crate) use device::Scsi;
pub use device::ScsiOptions;
pub use logical::{LogicalUnitName, LogicalUnits, ReservationStatus, UnitCondition, check_reservations, kept_in};
pub use port::port_number;
use tasks::Which;
pub use units::{UnitOptions, UnitStatus, UnitWatch};
