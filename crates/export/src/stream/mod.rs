//! Byte streams: unix sockets, TCP, vsock. Each connection is a ring that workers drive, whatever its client speaks: 9P to a
//! directory, NBD to a disk.
//!
//! | file | concern |
//! |---|---|
//! | `admission` | who may connect |
//! | `listener` | the socket behind an address |
//! | `connections` | the listening thread: connections that come and go |
//! | `pipe` | one connection: bytes in, messages, replies, bytes out |
//! | `inbox` | messages in the bytes that came |
//! | `outbox` | replies in the order of their completion |
//! | `secure` | TLS between the connection and both |
//! | `buffers` | memory for both, used again |

mod admission;
mod buffers;
mod connections;
mod ends;
mod inbox;
mod listener;
mod outbox;
mod pipe;
mod secure;

pub use admission::Admission;
pub(crate) use connections::{Clients, Greeted, serve};
pub(crate) use inbox::{Front, Inbox, Size};
pub use listener::{StreamError, StreamListener};
pub(crate) use pipe::{MORE, Pipe, RECEIVE, SEND};
pub(crate) use secure::{Handshakes, SHAKEN};

/// Connections that one export serves at most, where nobody says how many.
pub const CONNECTIONS: u16 = 64;
/// Connections that one export may be told to serve.
pub const CONNECTIONS_MAX: u16 = 1024;
/// Requests of one connection that are in flight at most.
pub(crate) const IN_FLIGHT_MAX: usize = 256;
