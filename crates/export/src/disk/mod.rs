//! A disk: virtio-blk on one side, storage on the other.

mod device;
mod kind;
mod request;
mod ring;

pub(crate) use device::Disk;
pub(crate) use kind::Kind;
pub(crate) use ring::DiskRing;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use ring::Terms;
