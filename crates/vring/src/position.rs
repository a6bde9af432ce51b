//! Where a ring stands while nobody serves it.

/// The point from which the next life of a ring goes on: what vhost-user's SET_VRING_BASE gives and GET_VRING_BASE asks for.
///
/// Of a split ring that is the running index of the next entry of the available ring; the used ring says for itself where it
/// continues. Only this type knows how a position is written down; everybody else passes it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPosition {
    avail: u16,
}

impl RingPosition {
    /// That of a split ring whose next entry has the running index `avail`.
    pub const fn split(avail: u16) -> RingPosition {
        RingPosition { avail }
    }

    /// From the number of a vhost-user message ("Vring state description"). `None`: no ring can stand there.
    pub fn from_payload(num: u32) -> Option<RingPosition> {
        u16::try_from(num).ok().map(RingPosition::split)
    }

    /// As the number of a vhost-user message, and of an upgrade's state.
    pub const fn payload(self) -> u32 {
        self.avail as u32
    }

    /// The running index of the next entry of the available ring.
    pub const fn avail(self) -> u16 {
        self.avail
    }

    /// Whether it is where a ring begins of which nothing has been taken, or 65536 entries later.
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
