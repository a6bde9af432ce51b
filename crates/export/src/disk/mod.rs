//! A disk: virtio-blk on one side, storage on the other.

mod device;
mod kind;
mod ring;
mod slot;

pub(crate) use device::Disk;
pub use ring::DiskRing;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use ring::Terms;
