//! A disk: virtio-blk on one side, storage on the other.

mod ring;
mod slot;
mod target;

pub use ring::DiskRing;
pub(crate) use ring::Terms;
pub(crate) use target::DiskTarget;
