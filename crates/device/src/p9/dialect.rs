//! What a client and this server agreed on.

use super::spec::version;

/// The dialect of a session: which requests there are, and how errors look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// None yet: before a version request that was granted.
    #[default]
    Unknown,
    /// 9P2000.L.
    L,
    /// 9P2000.u.
    U,
}

impl Dialect {
    /// The dialect that a version request names; [`Unknown`](Self::Unknown) for one that is not served, plain 9P2000 included.
    pub fn from_version(asked: &[u8]) -> Dialect {
        [Dialect::L, Dialect::U]
            .into_iter()
            .find(|dialect| dialect.version().as_bytes() == asked)
            .unwrap_or(Dialect::Unknown)
    }

    /// Its name, as the answer to a version request says it.
    pub const fn version(self) -> &'static str {
        match self {
            Dialect::Unknown => version::UNKNOWN,
            Dialect::L => version::L,
            Dialect::U => version::U,
        }
    }
}
