//! Numbers of virtio-scsi (virtio 1.3, section 5.6; the same values stand in Linux' `include/uapi/linux/virtio_scsi.h`), and of
//! SCSI in [`opcode`] and [`sense`].

pub mod opcode;
pub mod page;
pub mod sense;

/// Device id of a SCSI host (section 5.6.1).
pub const DEVICE_ID: u32 = 8;

/// Virtqueues (section 5.6.2).
pub mod queue {
    /// Task management, and subscriptions to asynchronous notifications.
    pub const CONTROL: u16 = 0;
    /// Buffers for events.
    pub const EVENT: u16 = 1;
    /// The first request queue; the others follow it.
    pub const REQUEST: u16 = 2;
}

/// Feature bits (section 5.6.3), each as a mask. `VIRTIO_SCSI_F_T10_PI`, bit 3, is not offered.
pub mod feature {
    /// A request may have data in both directions.
    pub const INOUT: u64 = 1 << 0;
    /// Logical units come and go, with events.
    pub const HOTPLUG: u64 = 1 << 1;
    /// Changed parameters of a logical unit are told by events.
    pub const CHANGE: u64 = 1 << 2;
}

/// Responses to requests and to task management (sections 5.6.6.1 and 5.6.6.2).
pub mod response {
    /// The SCSI status is valid; to task management: done.
    pub const OK: u8 = 0;
    /// The CDB asks for more data than there are buffers.
    pub const OVERRUN: u8 = 1;
    /// Cancelled by ABORT TASK or ABORT TASK SET.
    pub const ABORTED: u8 = 2;
    /// No such target.
    pub const BAD_TARGET: u8 = 3;
    /// Cancelled by a reset.
    pub const RESET: u8 = 4;
    /// Failed, and likely to work when it is sent again.
    pub const BUSY: u8 = 5;
    /// No connection to the target.
    pub const TRANSPORT_FAILURE: u8 = 6;
    /// The target fails, and will on other paths.
    pub const TARGET_FAILURE: u8 = 7;
    /// This path fails, another one may not.
    pub const NEXUS_FAILURE: u8 = 8;
    /// Any other failure.
    pub const FAILURE: u8 = 9;
    /// Task management: the task is there (QUERY TASK, QUERY TASK SET).
    pub const FUNCTION_SUCCEEDED: u8 = 10;
    /// Task management: not a function of this device.
    pub const FUNCTION_REJECTED: u8 = 11;
    /// Task management: the target has no such logical unit.
    pub const INCORRECT_LUN: u8 = 12;
}

/// Task attributes (section 5.6.6.1).
pub mod task_attribute {
    /// SIMPLE.
    pub const SIMPLE: u8 = 0;
    /// ORDERED.
    pub const ORDERED: u8 = 1;
    /// HEAD OF QUEUE.
    pub const HEAD: u8 = 2;
    /// ACA.
    pub const ACA: u8 = 3;
}

/// Types of requests on the control queue (section 5.6.6.2).
pub mod control_type {
    /// Task management.
    pub const TMF: u32 = 0;
    /// Which asynchronous notifications there are.
    pub const AN_QUERY: u32 = 1;
    /// Which asynchronous notifications the driver wants.
    pub const AN_SUBSCRIBE: u32 = 2;
}

/// Task management functions (section 5.6.6.2; SAM-5, "Task management functions").
pub mod tmf {
    /// ABORT TASK.
    pub const ABORT_TASK: u32 = 0;
    /// ABORT TASK SET.
    pub const ABORT_TASK_SET: u32 = 1;
    /// CLEAR ACA.
    pub const CLEAR_ACA: u32 = 2;
    /// CLEAR TASK SET.
    pub const CLEAR_TASK_SET: u32 = 3;
    /// I_T NEXUS RESET.
    pub const I_T_NEXUS_RESET: u32 = 4;
    /// LOGICAL UNIT RESET.
    pub const LOGICAL_UNIT_RESET: u32 = 5;
    /// QUERY TASK.
    pub const QUERY_TASK: u32 = 6;
    /// QUERY TASK SET.
    pub const QUERY_TASK_SET: u32 = 7;
}

/// Events (section 5.6.6.3).
pub mod event {
    /// Flag: events before this one found no buffer.
    pub const MISSED: u32 = 0x8000_0000;
    /// Nothing has happened.
    pub const NONE: u32 = 0;
    /// A logical unit was reset, has come or has gone.
    pub const TRANSPORT_RESET: u32 = 1;
    /// An asynchronous notification.
    pub const ASYNC_NOTIFY: u32 = 2;
    /// Parameters of a logical unit have changed.
    pub const PARAM_CHANGE: u32 = 3;
}

/// Reasons of [`event::TRANSPORT_RESET`] (section 5.6.6.3).
pub mod reset_reason {
    /// The logical unit was reset.
    pub const HARD: u32 = 0;
    /// A logical unit or a target has come.
    pub const RESCAN: u32 = 1;
    /// A logical unit or a target has gone.
    pub const REMOVED: u32 = 2;
}

/// Bytes of a request before its CDB: LUN (8), id (le64), task attribute, priority, CRN.
pub const REQUEST_BYTES: usize = 19;
/// Bytes of a response before its sense data: sense length (le32), residual (le32), status qualifier (le16), status, response.
pub const RESPONSE_BYTES: usize = 12;
/// Bytes of an event: event (le32), LUN (8), reason (le32).
pub const EVENT_BYTES: usize = 16;
/// Bytes of a task management request: type (le32), subtype (le32), LUN (8), id (le64).
pub const TMF_BYTES: usize = 24;
/// Bytes of an asynchronous notification request: type (le32), LUN (8), events (le32).
pub const AN_BYTES: usize = 16;

/// Bytes of the sense data area after a reset (section 5.6.4).
pub const SENSE_BYTES_DEFAULT: u32 = 96;
/// Most bytes of sense data (SPC-5, "Sense data": ADDITIONAL SENSE LENGTH is at most 244). A driver that asks for more has no use
/// for it.
pub const SENSE_BYTES_MAX: u32 = 252;
/// Bytes of the CDB area after a reset (section 5.6.4).
pub const CDB_BYTES_DEFAULT: u32 = 32;
/// Most bytes of a CDB (SPC-5, "The variable type CDB formats").
pub const CDB_BYTES_MAX: u32 = 260;

/// Offsets into `struct virtio_scsi_config` (section 5.6.4), in bytes.
pub mod config_offset {
    /// le32: request queues.
    pub const NUM_QUEUES: usize = 0;
    /// le32: segments of a request, in each direction.
    pub const SEG_MAX: usize = 4;
    /// le32, in sectors of 512 bytes.
    pub const MAX_SECTORS: usize = 8;
    /// le32.
    pub const CMD_PER_LUN: usize = 12;
    /// le32, in bytes.
    pub const EVENT_INFO_SIZE: usize = 16;
    /// le32, in bytes. The driver may write it.
    pub const SENSE_SIZE: usize = 20;
    /// le32, in bytes. The driver may write it.
    pub const CDB_SIZE: usize = 24;
    /// le16.
    pub const MAX_CHANNEL: usize = 28;
    /// le16.
    pub const MAX_TARGET: usize = 30;
    /// le32.
    pub const MAX_LUN: usize = 32;
}

/// Bytes of the configuration.
pub const CONFIG_BYTES: usize = 36;
/// Most logical units of a target (section 5.6.6.1).
pub const LUNS_MAX: u32 = 16384;

/// SCSI status codes (SAM-5, "Status").
pub mod status {
    /// GOOD.
    pub const GOOD: u8 = 0x00;
    /// CHECK CONDITION.
    pub const CHECK_CONDITION: u8 = 0x02;
    /// BUSY.
    pub const BUSY: u8 = 0x08;
    /// RESERVATION CONFLICT.
    pub const RESERVATION_CONFLICT: u8 = 0x18;
    /// TASK SET FULL.
    pub const TASK_SET_FULL: u8 = 0x28;
    /// TASK ABORTED.
    pub const TASK_ABORTED: u8 = 0x40;
}

/// Peripheral device types (SPC-5, "PERIPHERAL DEVICE TYPE field").
pub mod device_type {
    /// Direct access block device.
    pub const DISK: u8 = 0x00;
    /// Well known logical unit.
    pub const WELL_KNOWN: u8 = 0x1e;
    /// Unknown, or no device.
    pub const NONE: u8 = 0x1f;
}

/// Lengths of parameter data, in bytes.
pub mod data {
    /// Parameter data of READ CAPACITY (10).
    pub const CAPACITY_10_BYTES: u32 = 8;
    /// Header of an UNMAP parameter list.
    pub const UNMAP_HEADER_BYTES: usize = 8;
    /// One block descriptor of UNMAP, and one of GET LBA STATUS.
    pub const EXTENT_BYTES: usize = 16;
    /// PERSISTENT RESERVE OUT parameter list without TransportIDs.
    pub const RESERVE_OUT_BYTES: usize = 24;
}
