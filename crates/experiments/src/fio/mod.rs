//! fio, as a program: job files for it, and its JSON.

pub mod job;
pub mod output;
