//! Where a ring stands while nobody serves it.

/// The point from which the next life of a ring goes on: what vhost-user's SET_VRING_BASE gives and GET_VRING_BASE asks for.
///
/// For a split ring it is the running index of the next entry of the available ring; where the used ring continues is in its own
/// index. The encoding is known here only; others pass positions on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPosition {
    avail: u16,
}

impl RingPosition {
    /// A split ring's position: the next entry has the running index `avail`.
    pub const fn split(avail: u16) -> RingPosition {
        RingPosition { avail }
    }

    /// Decodes the number of a vhost-user message ("Vring state description"). `None`: not a position.
    pub fn from_payload(num: u32) -> Option<RingPosition> {
        u16::try_from(num).ok().map(RingPosition::split)
    }

    /// The number in a vhost-user message, and in an upgrade's state.
    pub const fn payload(self) -> u32 {
        self.avail as u32
    }

    /// The running index of the next entry of the available ring.
    pub const fn avail(self) -> u16 {
        self.avail
    }

    /// Whether it is the position of a new ring (or of one 65536 entries later).
    pub fn is_start(self) -> bool {
        self == RingPosition::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_position_survives_its_message(avail: u16) {
            let position = RingPosition::split(avail);
            prop_assert_eq!((position.payload(), position.avail()), (u32::from(avail), avail));
            prop_assert_eq!(RingPosition::from_payload(position.payload()), Some(position));
            prop_assert_eq!(position.is_start(), avail == 0);
        }

        #[test]
        fn a_number_of_more_than_16_bits_is_none(num in 0x1_0000_u32..) {
            prop_assert_eq!(RingPosition::from_payload(num), None);
        }
    }
}
