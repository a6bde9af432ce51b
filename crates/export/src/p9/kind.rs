//! Kinds of 9P requests, as figures tell them apart: by the type of message.

use device::p9::Kind;

/// The kind of requests that could not be read.
const MALFORMED: usize = 0;
/// The kind of requests that nobody here knows.
const UNSUPPORTED: usize = Kind::NUMBERS / 2;

/// Names of the kinds, as the specification spells them, at the place of half the type's number: requests have even ones.
/// Numbers that no type has are empty and never counted.
pub(crate) const NAMES: [&str; UNSUPPORTED + 1] = {
    let mut names = [""; UNSUPPORTED + 1];
    (names[MALFORMED], names[UNSUPPORTED]) = ("malformed", "unsupported");
    let mut next = 0;
    while next < Kind::ALL.len() {
        names[Kind::ALL[next].number() / 2] = Kind::ALL[next].name();
        next += 1;
    }
    names
};

/// The kind of a request of this type.
#[inline]
pub(crate) fn of(number: u8) -> usize {
    Kind::from_raw(number).map_or(UNSUPPORTED, |kind| kind.number() / 2)
}

/// The kind of a request that could not be read.
pub(crate) fn of_malformed() -> usize {
    MALFORMED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_counted_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(NAMES[of(*kind as u8)], kind.name());
        }
        assert_eq!(NAMES.iter().filter(|name| !name.is_empty()).count(), Kind::ALL.len() + 2);
        assert_eq!((NAMES[of(255)], NAMES[of(117)]), ("unsupported", "unsupported"));
    }
}
