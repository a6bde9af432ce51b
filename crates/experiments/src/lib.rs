//! The published experiments, reproduced on this machine: real guests, real peers, medians with their spread.
//!
//! An experiment is data ([`experiment`]): configurations (which server with which options, in which place) times workloads.
//! A run puts them in turns and writes down what each did ([`record`]); a report reads that back, and nothing else, so that a
//! report of last year's run needs no guest.
//!
//! What may not enter: any room of the server. Servers are processes here, ours like the peers', so that what is measured is
//! what a person would start.

pub mod command;
pub mod environment;
pub mod experiment;
pub mod record;
pub mod report;
pub mod run;
pub mod stand;
