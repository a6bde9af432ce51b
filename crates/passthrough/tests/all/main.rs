//! The integration tests of this crate: one program, so that one is linked.

mod common;
mod confinement;
mod load;
mod mapped;
mod mapped_oracle;
mod mapped_races;
mod operations;
mod patience;
mod system_calls;
mod windows;
