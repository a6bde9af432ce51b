//! Limits: requests and bytes a second, of one export or of a group of exports.
//!
//! A rate is a *line* of time on which every member of a group reserves the next *quantum* when it has used up the last
//! one. Who wants more stands behind all the others who want something, so that members take turns whatever the size of
//! their requests and the number of their rings; one alone stands behind itself and gets the whole rate; one that wants
//! nothing holds no place.
//!
//! | file | concern |
//! |---|---|
//! | `rate` | what an operator asks for, and what it means in quanta |
//! | `line` | who may use how much, and when: arithmetic |
//! | `purse` | what a member holds of a line: atomics, no lock on the way of a request |
//! | `group` | the lines that members share |
//! | `throttle` | what the rings of one export share: its own limits and its place in a group |
//! | `gate` | one ring: open, or closed until a time |
//! | `limiting` | what holds for an export now |
//!
//! Nothing here reads a clock: time is an argument, in nanoseconds of CLOCK_MONOTONIC.

mod gate;
mod group;
mod limiting;
mod line;
mod purse;
mod rate;
#[cfg(test)]
mod simulation;
mod throttle;

pub(crate) use gate::{Ask, Gate, Held, is_deadline};
pub use group::Group;
pub(crate) use limiting::{Limiting, Set};
pub use rate::{Limits, Rate};
pub(crate) use throttle::{Grant, TURN_BYTES_MAX, Throttle};
