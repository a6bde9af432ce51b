//! The cache and its parts, against models: step by step, in many orders of threads, and with free threads.

mod bits;
mod files;
mod races;
mod random;
mod steps;
mod world;
