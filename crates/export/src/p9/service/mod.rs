//! One request on the tree, in the terms of 9P2000.L and, where a client asks for it, of 9P2000.u.
//!
//! | file | concern |
//! |---|---|
//! | `session` | what an export and a client have; the version |
//! | `perform` | which operation answers which request |
//! | `walk` | attaching and walking |
//! | `names` | what makes, moves and removes names |
//! | `files` | open files and their data |
//! | `listing` | directories |
//! | `attributes` | attributes of files and file systems |
//! | `xattr` | extended attributes |
//! | `locks` | locks, those that are waited for too |
//! | `legacy` | what 9P2000.u does in another way |
//! | `place` | where a client has walked to |
//! | `fids` | what a client calls that by |
//! | `holdings` | how much of all that one client may have |
//! | `bound` | by which rule |
//! | `qids` | by which numbers a client tells files apart |
//! | `tags` | which requests are under way, and who flushes them |
//! | `policy` | what an operator decides |
//!
//! Files are made with the ids of who attached (and the group of the request), and everything else is done as the daemon: the
//! client has checked permissions, as it does before QEMU's server. A file that is removed while a fid has it open goes on as
//! it does on the host.

mod attributes;
mod bound;
mod fids;
mod files;
mod holdings;
mod legacy;
mod listing;
mod locks;
mod names;
mod perform;
mod place;
mod policy;
mod qids;
mod session;
mod tags;
mod walk;
mod weight;
mod xattr;

#[cfg(test)]
mod tests;

pub use policy::P9Policy;
pub(crate) use session::{Service, Session};
pub(crate) use tags::Flush;
