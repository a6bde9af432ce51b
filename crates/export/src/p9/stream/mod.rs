//! 9P over byte streams: unix sockets, TCP, vsock. Each connection is a session, and a ring that workers drive.
//!
//! | file | concern |
//! |---|---|
//! | `address` | where clients connect, as a person writes it |
//! | `admission` | who may connect |
//! | `listener` | the socket behind that address |
//! | `connections` | the listening thread: connections that come and go |
//! | `ring` | one connection: what its worker calls |
//! | `requests` | one message: started here, by io_uring or on a pool, and concluded |
//! | `slot` | one request in flight |
//! | `inbox` | messages in the bytes that came |
//! | `outbox` | replies in the order of their completion |
//! | `buffers` | memory for both, used again |

mod admission;
mod buffers;
mod connections;
mod ends;
mod inbox;
mod listener;
mod outbox;
mod requests;
mod ring;
mod slot;

pub use admission::Admission;
pub(crate) use connections::serve;
pub use listener::{StreamError, StreamListener};

/// Connections that one export serves at most, where nobody says how many.
pub const CONNECTIONS: u16 = 64;
/// Connections that one export may be told to serve.
pub const CONNECTIONS_MAX: u16 = 1024;
