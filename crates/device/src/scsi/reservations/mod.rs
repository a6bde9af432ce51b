//! Reservations (SPC-5, "Reservations"): who may use a logical unit while others may not. [`Reservations`] is the whole of it for one
//! logical unit: PERSISTENT RESERVE OUT changes it, PERSISTENT RESERVE IN reads it, RESERVE and RELEASE of SCSI-2 stand beside
//! it, and a [`Gate`] is what it means for one nexus.

mod change;
mod file;
mod gate;
mod kind;
mod list;
mod read;
mod request;
mod state;
mod transport_id;

#[cfg(feature = "fuzzing")]
pub(crate) use file::seal;
pub use file::{FILE_BYTES_MAX, FileError, MAGIC, VERSION};
pub use gate::Gate;
pub use kind::Kind;
pub use request::{Action, LIST_BYTES_MAX, ReserveIn, ReserveOut};
pub use state::{Change, REGISTRATIONS_MAX, Refused, Reservation, Reservations};
