//! 9P over byte streams: each connection is a session.
//!
//! | file | concern |
//! |---|---|
//! | `ring` | one connection: what its worker calls |
//! | `requests` | one message: started here, by io_uring or on a pool, and concluded |
//! | `slot` | one request in flight |

mod requests;
mod ring;
mod slot;

pub(crate) use ring::StreamRing;
