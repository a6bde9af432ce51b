//! What the driver says of a command that has ended, in the words of those who wait for it.

use crate::ffi::Ended;
use storage::{Loss, Passed, Refusal};

/// Host statuses (Linux' `include/scsi/scsi_status.h`).
mod host {
    pub(super) const OK: u16 = 0x00;
    pub(super) const NO_CONNECT: u16 = 0x01;
    pub(super) const BUS_BUSY: u16 = 0x02;
    pub(super) const TIME_OUT: u16 = 0x03;
    pub(super) const BAD_TARGET: u16 = 0x04;
    pub(super) const ABORT: u16 = 0x05;
    pub(super) const RESET: u16 = 0x08;
    pub(super) const SOFT_ERROR: u16 = 0x0b;
    pub(super) const IMM_RETRY: u16 = 0x0c;
    pub(super) const REQUEUE: u16 = 0x0d;
    pub(super) const TRANSPORT_DISRUPTED: u16 = 0x0e;
    pub(super) const TRANSPORT_FAILFAST: u16 = 0x0f;
    pub(super) const TARGET_FAILURE: u16 = 0x10;
    pub(super) const NEXUS_FAILURE: u16 = 0x11;
    pub(super) const TRANSPORT_MARGINAL: u16 = 0x14;
}

/// The outcome of a command that was sent.
pub(crate) fn of(ended: Ended) -> Passed {
    let Ended { status, host_status, sense, moved_bytes } = ended;
    // What the device has said counts, whatever the host made of it.
    if status != 0 || host_status == host::OK {
        return Passed::Answered { status, sense, moved_bytes };
    }
    Passed::Lost(match host_status {
        host::NO_CONNECT | host::BAD_TARGET => Loss::Gone,
        host::BUS_BUSY | host::SOFT_ERROR | host::IMM_RETRY | host::REQUEUE => Loss::Busy,
        host::TIME_OUT | host::ABORT => Loss::Aborted,
        host::RESET => Loss::Reset,
        host::TRANSPORT_DISRUPTED | host::TRANSPORT_FAILFAST | host::TRANSPORT_MARGINAL => Loss::Transport,
        host::TARGET_FAILURE => Loss::Target,
        host::NEXUS_FAILURE => Loss::Nexus,
        _ => Loss::Other,
    })
}

/// That of one of which the kernel has given no outcome: it was not sent, or its device has gone meanwhile.
pub(crate) fn of_errno(errno: i32) -> Passed {
    match errno {
        libc::ENODEV | libc::ENXIO => Passed::Lost(Loss::Gone),
        libc::EAGAIN | libc::EBUSY | libc::EDOM | libc::ENOMEM => Passed::Lost(Loss::Busy),
        libc::EPERM | libc::EACCES => Passed::Refused(Refusal::Opcode),
        libc::EINVAL | libc::E2BIG => Passed::Refused(Refusal::Field),
        // It may have been sent.
        _ => Passed::Lost(Loss::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_says_counts_before_what_the_host_says() {
        let ended = |status, host_status| Ended { status, host_status, sense: vec![0x70], moved_bytes: 5 };
        let answered = |status| Passed::Answered { status, sense: vec![0x70], moved_bytes: 5 };
        assert_eq!(of(ended(0, host::OK)), answered(0));
        assert_eq!(of(ended(2, host::OK)), answered(2));
        // RESERVATION CONFLICT comes as a failure of the nexus.
        assert_eq!(of(ended(0x18, host::NEXUS_FAILURE)), answered(0x18));
        assert_eq!(of(ended(0, host::NEXUS_FAILURE)), Passed::Lost(Loss::Nexus));
        assert_eq!(of(ended(0, host::NO_CONNECT)), Passed::Lost(Loss::Gone));
        assert_eq!(of(ended(0, 0x7f)), Passed::Lost(Loss::Other), "nothing that is not known is a success");
    }

    #[test]
    fn nothing_that_was_not_sent_is_a_success() {
        for errno in 1..200 {
            assert!(!matches!(of_errno(errno), Passed::Answered { .. }), "{errno}");
        }
        assert_eq!(of_errno(libc::ENODEV), Passed::Lost(Loss::Gone));
        assert_eq!(of_errno(libc::EINTR), Passed::Lost(Loss::Other));
    }
}
