//! What a client may ask of a tree, one concern a file. Each builds on those above it:
//!
//! | file | concern |
//! |---|---|
//! | `find` | what is found on the host becomes a node |
//! | `xattr` | extended attributes |
//! | `mapped`, `mapped::change` | what a client sees and changes where owners, permissions and types are records |
//! | `lookup` | names become nodes, directories tell theirs |
//! | `privileges` | what a file loses when its data change |
//! | `open` | what a client opens, and descriptors for operations |
//! | `exclusive`, `locking`, `release` | locks, and what a client gives back |
//! | `naming` | what all share that make and remove names |
//! | `mapped::create`, `mapped::names`, `create`, `remove` | names come, go and move |
//! | `attributes`, `data` | what nodes and files are and hold |
//! | `dax` | files that a virtual machine maps itself |
//! | `changing`, `weight` | whether a call would take long, or wait for one that does |

mod attributes;
mod changing;
mod create;
mod data;
mod dax;
mod exclusive;
mod find;
mod locking;
mod lookup;
mod mapped;
mod naming;
mod open;
mod privileges;
mod release;
mod remove;
mod weight;
mod xattr;

pub use data::Whence;
pub use dax::{DAX_MARK, FileToMap, InShare};
pub use locking::FEW_OWNERS;
