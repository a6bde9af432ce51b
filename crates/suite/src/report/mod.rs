//! Reports: what a run came to, for people and for programs.
//!
//! [`summary`] is the model; everything else renders it and computes nothing. A report reads a run and no guest, no server and
//! no clock, so that the same run always gives the same report.

pub mod curves;
pub mod summary;
