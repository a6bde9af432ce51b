//! fio, as a program: its jobs, its JSON, and a run of it on this host.

mod host;
pub mod job;
pub mod output;

pub(crate) use host::{Host, run};
