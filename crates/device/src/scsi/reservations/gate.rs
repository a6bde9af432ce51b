//! What a nexus may do, in one byte.

use crate::scsi::Access;

/// What reservations let a nexus do. The export publishes its byte where the nexus' requests find it, at each change, and a request
/// asks it with one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gate(Access);

impl Gate {
    /// Everything: there is no reservation, or it is this nexus' own.
    pub const EVERYTHING: Gate = Gate(Access::Write);
    /// Nothing that changes medium or modes: another's Write Exclusive.
    pub const READS: Gate = Gate(Access::Read);
    /// Nothing that needs the medium or modes: another's Exclusive Access.
    pub const STATUS: Gate = Gate(Access::Status);
    /// Hardly anything: another's reservation of SCSI-2.
    pub const CLOSED: Gate = Gate(Access::Always);

    /// Whether a command with this access goes through; if not, its status is RESERVATION CONFLICT.
    #[inline]
    pub fn allows(self, access: Access) -> bool {
        access <= self.0
    }

    /// The byte to publish.
    pub fn byte(self) -> u8 {
        self.0 as u8
    }

    /// The gate of a published byte; of one that is none, the closed one.
    #[inline]
    pub fn from_byte(byte: u8) -> Gate {
        [Gate::CLOSED, Gate::STATUS, Gate::READS, Gate::EVERYTHING]
            .get(usize::from(byte))
            .copied()
            .unwrap_or(Gate::CLOSED)
    }
}
