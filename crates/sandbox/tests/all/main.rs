//! The sandbox as processes inside and around it see it.

mod daemon;
mod enter;
mod fixture;
mod rights;
