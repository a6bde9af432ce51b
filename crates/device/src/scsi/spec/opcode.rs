//! Operation codes and service actions (SPC-5, "Operation codes", annex; Linux' `include/scsi/scsi_proto.h` has the same).

/// TEST UNIT READY.
pub const TEST_UNIT_READY: u8 = 0x00;
/// REQUEST SENSE.
pub const REQUEST_SENSE: u8 = 0x03;
/// READ (6).
pub const READ_6: u8 = 0x08;
/// WRITE (6).
pub const WRITE_6: u8 = 0x0a;
/// INQUIRY.
pub const INQUIRY: u8 = 0x12;
/// MODE SELECT (6).
pub const MODE_SELECT_6: u8 = 0x15;
/// RESERVE (6).
pub const RESERVE_6: u8 = 0x16;
/// RELEASE (6).
pub const RELEASE_6: u8 = 0x17;
/// MODE SENSE (6).
pub const MODE_SENSE_6: u8 = 0x1a;
/// START STOP UNIT.
pub const START_STOP_UNIT: u8 = 0x1b;
/// PREVENT ALLOW MEDIUM REMOVAL.
pub const PREVENT_ALLOW: u8 = 0x1e;
/// READ CAPACITY (10).
pub const READ_CAPACITY_10: u8 = 0x25;
/// READ (10).
pub const READ_10: u8 = 0x28;
/// WRITE (10).
pub const WRITE_10: u8 = 0x2a;
/// WRITE AND VERIFY (10).
pub const WRITE_VERIFY_10: u8 = 0x2e;
/// VERIFY (10).
pub const VERIFY_10: u8 = 0x2f;
/// SYNCHRONIZE CACHE (10).
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
/// WRITE SAME (10).
pub const WRITE_SAME_10: u8 = 0x41;
/// UNMAP.
pub const UNMAP: u8 = 0x42;
/// LOG SENSE.
pub const LOG_SENSE: u8 = 0x4d;
/// MODE SELECT (10).
pub const MODE_SELECT_10: u8 = 0x55;
/// RESERVE (10).
pub const RESERVE_10: u8 = 0x56;
/// RELEASE (10).
pub const RELEASE_10: u8 = 0x57;
/// MODE SENSE (10).
pub const MODE_SENSE_10: u8 = 0x5a;
/// PERSISTENT RESERVE IN; see [`reserve_in`].
pub const PERSISTENT_RESERVE_IN: u8 = 0x5e;
/// PERSISTENT RESERVE OUT; see [`reserve_out`].
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
/// READ (16).
pub const READ_16: u8 = 0x88;
/// COMPARE AND WRITE.
pub const COMPARE_AND_WRITE: u8 = 0x89;
/// WRITE (16).
pub const WRITE_16: u8 = 0x8a;
/// WRITE AND VERIFY (16).
pub const WRITE_VERIFY_16: u8 = 0x8e;
/// VERIFY (16).
pub const VERIFY_16: u8 = 0x8f;
/// SYNCHRONIZE CACHE (16).
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
/// WRITE SAME (16).
pub const WRITE_SAME_16: u8 = 0x93;
/// SERVICE ACTION IN (16); see [`service_in_16`].
pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
/// REPORT LUNS.
pub const REPORT_LUNS: u8 = 0xa0;
/// MAINTENANCE IN; see [`maintenance_in`].
pub const MAINTENANCE_IN: u8 = 0xa3;
/// READ (12).
pub const READ_12: u8 = 0xa8;
/// WRITE (12).
pub const WRITE_12: u8 = 0xaa;
/// WRITE AND VERIFY (12).
pub const WRITE_VERIFY_12: u8 = 0xae;
/// VERIFY (12).
pub const VERIFY_12: u8 = 0xaf;

/// Service actions of SERVICE ACTION IN (16).
pub mod service_in_16 {
    /// READ CAPACITY (16).
    pub const READ_CAPACITY_16: u8 = 0x10;
    /// GET LBA STATUS.
    pub const GET_LBA_STATUS: u8 = 0x12;
}

/// Service actions of MAINTENANCE IN.
pub mod maintenance_in {
    /// REPORT TARGET PORT GROUPS.
    pub const REPORT_TARGET_PORT_GROUPS: u8 = 0x0a;
    /// REPORT SUPPORTED OPERATION CODES.
    pub const REPORT_SUPPORTED_OPERATION_CODES: u8 = 0x0c;
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
    pub const REPORT_SUPPORTED_TMFS: u8 = 0x0d;
}

/// Service actions of PERSISTENT RESERVE IN.
pub mod reserve_in {
    /// READ KEYS.
    pub const READ_KEYS: u8 = 0x00;
    /// READ RESERVATION.
    pub const READ_RESERVATION: u8 = 0x01;
    /// REPORT CAPABILITIES.
    pub const REPORT_CAPABILITIES: u8 = 0x02;
    /// READ FULL STATUS.
    pub const READ_FULL_STATUS: u8 = 0x03;
}

/// Service actions of PERSISTENT RESERVE OUT.
pub mod reserve_out {
    /// REGISTER.
    pub const REGISTER: u8 = 0x00;
    /// RESERVE.
    pub const RESERVE: u8 = 0x01;
    /// RELEASE.
    pub const RELEASE: u8 = 0x02;
    /// CLEAR.
    pub const CLEAR: u8 = 0x03;
    /// PREEMPT.
    pub const PREEMPT: u8 = 0x04;
    /// PREEMPT AND ABORT.
    pub const PREEMPT_AND_ABORT: u8 = 0x05;
    /// REGISTER AND IGNORE EXISTING KEY.
    pub const REGISTER_AND_IGNORE: u8 = 0x06;
    /// REGISTER AND MOVE.
    pub const REGISTER_AND_MOVE: u8 = 0x07;
}
