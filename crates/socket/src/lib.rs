//! Unix sockets that have a path: made, found stale, and removed, in a directory that others may change meanwhile.
//!
//! A root daemon makes sockets in directories of the users that connect, and whoever may write to a directory can
//! rename what lies in it between two calls that name it. So nothing is changed by its name: a socket has its mode
//! before it has a name, and its owner is changed by a descriptor of what was found to be it. What is removed is
//! removed from the directory in which it was looked at. Whoever may write to that directory could have removed it as
//! well.
//!
//! No protocol enters here, and nothing that listens for longer than it takes to bind.

mod bind;
mod file;

pub use bind::{BindError, Found, Options, bind, look};
pub use file::File;
