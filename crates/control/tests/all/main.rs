//! The integration tests of this crate: one program, so that one is linked.

mod api;
mod bitmaps;
mod common;
mod ctl;
mod dashboards;
mod fuzzing;
mod jobs;
mod metrics;
mod openapi;
mod socket;
mod traces;
mod upgrade;
