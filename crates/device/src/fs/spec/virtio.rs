//! virtio-fs as a virtio device (virtio 1.3, section 5.11).

/// Device id of a file system device (section 5).
pub const DEVICE_ID: u32 = 26;

/// Feature bits (section 5.11.3), each as a mask.
pub mod feature {
    /// There is a notification queue, and `notify_buf_size` of the configuration is valid.
    pub const NOTIFICATION: u64 = 1 << 0;
}

/// Index of the high-priority queue (section 5.11.2): FORGET, BATCH_FORGET and INTERRUPT.
pub const HIPRIO_QUEUE: usize = 0;
/// Index of the first request queue, when there is no notification queue.
pub const FIRST_REQUEST_QUEUE: usize = 1;

/// Bytes of the tag; shorter ones are padded with zeroes, one of this length has no NUL.
pub const TAG_BYTES: usize = 36;

/// Offsets into `struct virtio_fs_config` (section 5.11.4), in bytes.
pub mod config_offset {
    /// `u8[36]`.
    pub const TAG: usize = 0;
    /// le32, 1 or more.
    pub const NUM_REQUEST_QUEUES: usize = 36;
    /// le32, in bytes; valid with [`super::feature::NOTIFICATION`].
    pub const NOTIFY_BUF_SIZE: usize = 40;
}

/// Bytes of the configuration with `notify_buf_size`. Linux reads 40 of them, the specification names all.
pub const CONFIG_BYTES: usize = 44;
