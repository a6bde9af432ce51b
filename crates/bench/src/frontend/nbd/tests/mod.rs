//! The client against a server of its own, which misbehaves where it is asked to.

mod connections;
mod handshakes;
mod loads;
mod server;
