//! Who sends commands, and through which port: reservations and unit attentions are of such a pair.

/// The name of an initiator port, which stays the same for as long as its reservations shall: an NAA identifier of 8 bytes
/// (SPC-5, "NAA designator format").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InitiatorPort(pub u64);

/// The relative identifier of a target port, 1 or more (SPC-5, "Relative target port identifier designator format").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetPort(pub u16);

/// An I_T nexus (SAM-5, "I_T nexus"): an initiator port, and the target port that it uses. The export says which is which: a
/// frontend's session is an initiator port, a socket is a target port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nexus {
    /// Who.
    pub initiator: InitiatorPort,
    /// Through which port.
    pub port: TargetPort,
}
