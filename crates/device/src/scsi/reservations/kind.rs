//! Types of persistent reservations.

/// A type (SPC-5, "Persistent reservations type").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The holder writes, everybody reads.
    WriteExclusive,
    /// The holder writes and reads.
    ExclusiveAccess,
    /// Everybody who is registered writes, everybody reads; one of them holds it.
    WriteExclusiveRegistrantsOnly,
    /// Everybody who is registered writes and reads; one of them holds it.
    ExclusiveAccessRegistrantsOnly,
    /// Everybody who is registered holds it and writes, everybody reads.
    WriteExclusiveAllRegistrants,
    /// Everybody who is registered holds it, writes and reads.
    ExclusiveAccessAllRegistrants,
}

impl Kind {
    /// Every type.
    pub const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrantsOnly,
        Kind::ExclusiveAccessRegistrantsOnly,
        Kind::WriteExclusiveAllRegistrants,
        Kind::ExclusiveAccessAllRegistrants,
    ];

    /// What it is called in figures and lists: the standard's words.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::WriteExclusive => "write-exclusive",
            Kind::ExclusiveAccess => "exclusive-access",
            Kind::WriteExclusiveRegistrantsOnly => "write-exclusive-registrants-only",
            Kind::ExclusiveAccessRegistrantsOnly => "exclusive-access-registrants-only",
            Kind::WriteExclusiveAllRegistrants => "write-exclusive-all-registrants",
            Kind::ExclusiveAccessAllRegistrants => "exclusive-access-all-registrants",
        }
    }

    /// The number that commands have.
    pub const fn code(self) -> u8 {
        match self {
            Kind::WriteExclusive => 1,
            Kind::ExclusiveAccess => 3,
            Kind::WriteExclusiveRegistrantsOnly => 5,
            Kind::ExclusiveAccessRegistrantsOnly => 6,
            Kind::WriteExclusiveAllRegistrants => 7,
            Kind::ExclusiveAccessAllRegistrants => 8,
        }
    }

    /// The type of a number.
    pub fn from_code(code: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Others may read.
    pub(super) const fn lets_others_read(self) -> bool {
        matches!(self, Kind::WriteExclusive | Kind::WriteExclusiveRegistrantsOnly | Kind::WriteExclusiveAllRegistrants)
    }

    /// Registered nexuses are no others.
    pub(super) const fn is_for_registrants(self) -> bool {
        !matches!(self, Kind::WriteExclusive | Kind::ExclusiveAccess)
    }

    /// All registered nexuses hold it.
    pub(super) const fn is_held_by_all(self) -> bool {
        matches!(self, Kind::WriteExclusiveAllRegistrants | Kind::ExclusiveAccessAllRegistrants)
    }
}
