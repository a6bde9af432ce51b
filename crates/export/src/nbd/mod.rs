//! A disk: NBD on one side, storage on the other.
//!
//! | file | concern |
//! |---|---|
//! | `clients` | what clients find, and until when they have to say what they want |
//! | `handshake` | what a client says before it asks for data |
//! | `ring` | one connection: what its worker calls |
//! | `requests` | one request: started, gone on with, answered |
//! | `slot` | one request in flight |
//! | `status` | questions of where there is data, and of what is dirty |
//! | `bitmap` | what was dirty at one moment |
//! | `fuzzing` | options in any order |

mod bitmap;
mod clients;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod handshake;
mod requests;
mod ring;
mod slot;
mod status;

pub use bitmap::DirtyBitmap;
pub(crate) use ring::NbdRing;
