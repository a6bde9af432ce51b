//! What is done to an image that nobody serves: made, looked at, checked. All of it blocks.
//!
//! | file | concern |
//! |---|---|
//! | `create` | a new image, over a backing file or not |
//! | `info` | what a header says, also of the images behind it |
//! | `convert` | images of one format copied into another |
//! | `compare` | two images with the same contents, or not |
//! | `map` | where a disk has data |
//! | `snapshot` | internal snapshots, taken, applied and deleted |
//! | `measure` | how many bytes a new image needs |
//! | `resize` | a disk of another size |
//! | `commit` | what an image has, written into its backing file |
//! | `rebase` | another backing file, or none |
//! | `check` | who uses which cluster, and leaks given back |
//! | `file` | the bytes of an image, and what is said when they cannot be had |

mod check;
mod commit;
#[cfg(test)]
mod commit_tests;
mod compare;
mod convert;
mod create;
mod file;
mod info;
mod map;
mod measure;
#[cfg(test)]
mod measure_tests;
mod rebase;
#[cfg(test)]
mod rebase_tests;
mod resize;
#[cfg(test)]
mod resize_tests;
mod snapshot;
#[cfg(test)]
mod tests;

pub use crate::served::SnapshotChange;
pub use check::{Checked, check};
pub use commit::{Committed, commit};
pub use compare::{Compared, compare};
pub use convert::{Converted, From, to_qcow2, to_raw};
pub use create::{Backing, CreateOptions, create};
pub use file::ToolError;
pub use info::{Info, SnapshotInfo, chain, info};
pub use map::{Mapped, map};
pub use measure::{Measured, measure};
pub use rebase::{Rebased, rebase};
pub use resize::{NewSize, Resized, resize};
pub use snapshot::change_snapshots;

#[cfg(test)]
pub(crate) use resize::grow;
