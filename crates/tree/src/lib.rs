//! What stands behind a directory: the passthrough file tree that virtio-fs and 9p share.
//!
//! Nodes, open files, credentials, extended attributes and locks of a host directory, as blocking calls on the thread that
//! asks. Neither a protocol nor a virtqueue enters this room.
