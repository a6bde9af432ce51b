//! What stands behind a disk, behind one small trait: file or block device, memory, null, sim.
//!
//! Storage knows no virtqueue and no device. It turns an operation into work for the engine's [`engine::Io`].
