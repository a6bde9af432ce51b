//! TLS, the server's side: certificates from a directory, and sessions that turn bytes into bytes.
//!
//! [`Certificates`] reads the files that QEMU's `tls-creds-x509` knows, looks for renewed ones, and goes along to another program. A
//! [`Session`] is one client's: it performs no I/O, waits for nothing and starts no thread. Who drives it decides where the handshake's
//! arithmetic runs, which takes a millisecond and more, and where that of data does, which takes as long as a few copies.
//!
//! Versions 1.2 and 1.3, with the suites of rustls: ephemeral keys and authenticated ciphers alone, of which 1.2 has one (see
//! `server::provider`). Sessions are not resumed, so that
//! each connection has the certificates looked at anew; there is no data before the handshake's end, and no pre-shared key.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod certificates;
mod error;
mod files;
mod server;
mod session;

pub use certificates::{Certificates, LOOK_THREAD};
pub use error::{SessionError, TlsError};
pub use session::{Opened, Session, Shaken};
