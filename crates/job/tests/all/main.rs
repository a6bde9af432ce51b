//! Copies of disks that guests write to meanwhile, compared with vectors.

mod backup;
mod mirror;
mod pull;
mod random;
mod tools;
