//! The cache and its parts, against models: step by step, in turns that a seed decides, and with free threads.

mod bits;
mod files;
mod races;
mod steps;
pub(super) mod turns;
mod world;
