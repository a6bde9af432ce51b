//! The sandbox as processes inside and around it see it.

mod enter;
mod fixture;
mod rights;
