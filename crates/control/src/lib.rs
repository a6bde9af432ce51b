//! The control API: what a person or a program may see and change while the daemon runs.
//!
//! This room is for the vocabulary of the API ([`model`]), the contract that the daemon fulfils ([`Daemon`]),
//! the HTTP and JSON server on a unix socket, its OpenAPI document, the metrics, and the client side
//! with `vringd ctl`. The configuration file shares [`model::config`], so that an export is spelled the same way
//! in a file, in a request and in the documentation.
//!
//! What may not enter: rings, engines, storage, guests. This crate knows none of the crates that do the work;
//! `vringd` implements [`Daemon`] and translates.

mod asker;
pub mod client;
pub mod ctl;
pub mod daemon;
pub mod error;
pub mod model;
mod scope;
mod server;

pub use asker::{Asker, Waiting};
pub use daemon::Daemon;
pub use error::ApiError;
pub use scope::Scope;
#[cfg(feature = "fuzzing")]
pub use server::fuzzing;
pub use server::{
    ControlPulse, ControlServer, ControlSocket, ControlSocketState, StartError, openapi_json, serve, start,
};
