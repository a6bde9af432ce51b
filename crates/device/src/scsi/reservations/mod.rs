//! Persistent reservations (SPC-5, "Reservations"): who may use a logical unit while others may not.

mod gate;
mod request;

pub use gate::Gate;
pub use request::{Action, LIST_BYTES_MAX, ReserveIn, ReserveOut};
