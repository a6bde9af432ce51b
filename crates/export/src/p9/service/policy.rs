//! What an operator decides about a 9P export.

use device::p9::MSIZE_MAX;
use std::time::Duration;
use values::Multidevs;

/// Clients send their version with their first breath; this is for those that are on a machine that swaps.
const GREETING: Duration = Duration::from_secs(10);

/// What a 9P export grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P9Policy {
    /// Largest message that is granted, in bytes: from [`device::p9::MSIZE_MIN`] on.
    pub msize_max: u32,
    /// Files on other devices.
    pub multidevs: Multidevs,
    /// How long a connection may take until a version is agreed on: those that say nothing take places of others.
    pub greeting: Duration,
}

impl Default for P9Policy {
    fn default() -> P9Policy {
        P9Policy { msize_max: MSIZE_MAX, multidevs: Multidevs::default(), greeting: GREETING }
    }
}
