//! What is done to an image as a whole: made, looked at, checked. But for `external`, `streaming` and `committing` nobody serves it meanwhile. All of it blocks.
//!
//! | file | concern |
//! |---|---|
//! | `create` | a new image, over a backing file or not |
//! | `info` | what a header says, also of the images behind it |
//! | `convert` | images of one format copied into another |
//! | `destination` | where a copy of a disk goes |
//! | `compare` | two images with the same contents, or not |
//! | `map` | where a disk has data |
//! | `external` | a snapshot of an image that is served, by a new one in front of it |
//! | `streaming` | an image that is served gets what is behind it, and stands alone |
//! | `committing` | an image that is served goes into its backing file, which takes its name |
//! | `access` | who may use an image, and whoever takes its place |
//! | `bitmap` | dirty bitmaps, added, removed and changed |
//! | `snapshot` | internal snapshots, taken, applied and deleted |
//! | `log` | the mark of an intent log that is gone, taken away |
//! | `measure` | how many bytes a new image needs |
//! | `resize` | a disk of another size |
//! | `commit` | what an image has, written into its backing file |
//! | `rebase` | another backing file, or none |
//! | `foreign` | images of VMware, Hyper-V and Virtual PC, which are read only |
//! | `check` | who uses which cluster, and leaks given back |
//! | `file` | the bytes of an image, and what is said when they cannot be had |

mod access;
mod bitmap;
#[cfg(test)]
mod chain_tests;
mod check;
mod commit;
#[cfg(test)]
mod commit_tests;
mod committing;
mod compare;
mod convert;
mod create;
mod destination;
mod external;
#[cfg(test)]
mod external_tests;
mod file;
mod foreign;
mod info;
mod log;
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
mod streaming;
#[cfg(test)]
mod tests;

pub use crate::served::SnapshotChange;
pub use bitmap::{BitmapChange, change_bitmaps};
pub use check::{Checked, check};
pub use commit::{Committed, commit};
pub use committing::Committing;
pub use compare::{Compared, compare};
pub use convert::{Converted, From, to_qcow2, to_raw};
pub use create::{Backing, CreateOptions, create};
pub use destination::{Destination, Place};
pub use external::ExternalSnapshot;
pub use file::ToolError;
pub use foreign::{Foreign, ForeignFormat};
pub use info::{BitmapEntry, Info, SnapshotInfo, bitmaps, chain, info};
pub use log::forget_log;
pub use map::{Mapped, map};
pub use measure::{Measured, measure};
pub use rebase::{Rebased, rebase};
pub use resize::{NewSize, Resized, resize};
pub use snapshot::change_snapshots;
pub use streaming::{FromTo, Streaming};

#[cfg(test)]
pub(crate) use resize::grow;
