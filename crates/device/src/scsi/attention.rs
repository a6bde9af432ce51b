//! Unit attention conditions (SAM-5, "Unit attention conditions"): what a nexus has to hear of a logical unit before its next
//! command.
//!
//! There is one [`Attentions`] for each nexus and logical unit: a few bits, which an export may keep in an atomic.

use super::sense::Sense;
use super::spec::opcode as op;
use super::spec::sense::{code, key};

/// A condition, in the order in which they are reported: resets first, the latest news of everything else after them (SAM-5, "Unit
/// attention condition queue and precedence").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attention {
    /// The unit was not there before.
    PowerOn,
    /// The unit's target or the whole device was reset.
    Reset,
    /// A LOGICAL UNIT RESET of some nexus.
    DeviceReset,
    /// This nexus was reset.
    NexusLoss,
    /// CLEAR TASK SET or PREEMPT AND ABORT of another nexus has ended commands of this one, if they did not say so themselves.
    CommandsCleared,
    /// Another nexus has cleared registrations, this one's among them, and the reservation.
    ReservationsPreempted,
    /// Another nexus has preempted this one's registration.
    RegistrationsPreempted,
    /// A reservation of which this nexus was a part is no more.
    ReservationsReleased,
    /// The number of blocks is another.
    CapacityChanged,
    /// Another nexus has changed the mode.
    ModeChanged,
    /// INQUIRY data is another.
    InquiryChanged,
    /// The target has other logical units.
    LunsChanged,
    /// There is less space left than the unit's [threshold](super::Counting::threshold_bytes).
    SpaceIsLow,
}

impl Attention {
    /// Every condition: `ALL[attention as usize] == attention`.
    pub const ALL: [Attention; 13] = [
        Attention::PowerOn,
        Attention::Reset,
        Attention::DeviceReset,
        Attention::NexusLoss,
        Attention::CommandsCleared,
        Attention::ReservationsPreempted,
        Attention::RegistrationsPreempted,
        Attention::ReservationsReleased,
        Attention::CapacityChanged,
        Attention::ModeChanged,
        Attention::InquiryChanged,
        Attention::LunsChanged,
        Attention::SpaceIsLow,
    ];

    /// The additional sense code; also what the event of a change says ([`Event::Changed`](super::Event::Changed)).
    pub const fn code(self) -> u16 {
        match self {
            Attention::PowerOn => code::POWER_ON,
            Attention::Reset => code::POWER_ON_RESET,
            Attention::DeviceReset => code::DEVICE_RESET,
            Attention::NexusLoss => code::NEXUS_LOSS,
            Attention::CommandsCleared => code::COMMANDS_CLEARED,
            Attention::ReservationsPreempted => code::RESERVATIONS_PREEMPTED,
            Attention::RegistrationsPreempted => code::REGISTRATIONS_PREEMPTED,
            Attention::ReservationsReleased => code::RESERVATIONS_RELEASED,
            Attention::CapacityChanged => code::CAPACITY_CHANGED,
            Attention::ModeChanged => code::MODE_PARAMETERS_CHANGED,
            Attention::InquiryChanged => code::INQUIRY_DATA_CHANGED,
            Attention::LunsChanged => code::REPORTED_LUNS_CHANGED,
            Attention::SpaceIsLow => code::SPACE_THRESHOLD_REACHED,
        }
    }

    /// The sense data.
    pub const fn sense(self) -> Sense {
        Sense::new(key::UNIT_ATTENTION, self.code())
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// The conditions that are pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attentions(u16);

/// What a command does about conditions (SPC-5, "INQUIRY command", "REPORT LUNS command", "REQUEST SENSE command").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// It is not processed: CHECK CONDITION with the first one, which is then no more.
    First,
    /// It is processed, and all stay.
    Nothing,
    /// It is processed, and [`Attention::LunsChanged`] is no more, on every logical unit of the target.
    Luns,
    /// It is processed, and its data is the first one, which is then no more.
    AsData,
}

impl Reports {
    /// What a command does, by its operation code.
    pub const fn by(operation_code: u8) -> Reports {
        match operation_code {
            op::INQUIRY => Reports::Nothing,
            op::REPORT_LUNS => Reports::Luns,
            op::REQUEST_SENSE => Reports::AsData,
            _ => Reports::First,
        }
    }
}

impl Attentions {
    /// None.
    pub const NONE: Attentions = Attentions(0);

    /// Conditions from the bits that [`Attentions::bits`] gave; those that are none are left out.
    pub const fn from_bits(bits: u16) -> Attentions {
        Attentions(bits & ((1 << Attention::ALL.len()) - 1))
    }

    /// The bits, to be kept elsewhere; 0: none.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Establishes a condition. Twice the same is one, and a reset says what one that is lower in order would.
    #[must_use]
    pub const fn with(self, attention: Attention) -> Attentions {
        const RESETS: u16 = Attention::PowerOn.bit()
            | Attention::Reset.bit()
            | Attention::DeviceReset.bit()
            | Attention::NexusLoss.bit();
        let both = self.0 | attention.bit();
        // The highest of the resets is the lowest bit.
        let resets = both & RESETS;
        Attentions(both & !RESETS | resets & resets.wrapping_neg())
    }

    /// The first condition, which is thereby reported, and what is left.
    #[must_use]
    pub fn take(self) -> (Option<Attention>, Attentions) {
        let first = Attention::ALL.get(self.0.trailing_zeros() as usize).copied();
        (first, Attentions(self.0 & self.0.wrapping_sub(1)))
    }

    /// Without one condition.
    #[must_use]
    pub const fn without(self, attention: Attention) -> Attentions {
        Attentions(self.0 & !attention.bit())
    }

    /// The conditions, first to last.
    pub fn iter(self) -> impl Iterator<Item = Attention> {
        Attention::ALL.into_iter().filter(move |attention| self.0 & attention.bit() != 0)
    }
}
