//! 9P as a virtio device. The virtio specification reserves the id and describes nothing more; the configuration and the feature
//! bit are those of Linux' `include/uapi/linux/virtio_9p.h`.

/// Device id of a 9P transport (virtio 1.3, section 5).
pub const DEVICE_ID: u32 = 9;

/// Feature bits, each as a mask.
pub mod feature {
    /// The configuration space holds the mount tag (`VIRTIO_9P_MOUNT_TAG`).
    pub const MOUNT_TAG: u64 = 1 << 0;
}

/// Most bytes of a mount tag. The header file names no limit; this is virtio-fs's, so that a tag suits either protocol.
pub const TAG_BYTES_MAX: usize = 36;

/// Offsets into `struct virtio_9p_config`, in bytes.
pub mod config_offset {
    /// le16: bytes of the tag.
    pub const TAG_LEN: usize = 0;
    /// The tag, without a NUL.
    pub const TAG: usize = 2;
}

/// Bytes of the configuration with the longest tag.
pub const CONFIG_BYTES_MAX: usize = config_offset::TAG + TAG_BYTES_MAX;
