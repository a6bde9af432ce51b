//! What a policy spends processor time for.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What a policy prefers where it cannot have both: short answers or free processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Favour {
    /// The fastest choice, whatever processor time it takes
    Latency,
    /// Of the choices within 3 % of the fastest, the one that takes the least processor time
    #[default]
    Balance,
    /// Of the choices within 20 % of the fastest, the one that takes the least processor time
    Efficiency,
}

impl Favour {
    /// All of them.
    pub const ALL: [Favour; 3] = [Self::Latency, Self::Balance, Self::Efficiency];

    /// How much slower than the fastest a choice may be, as a share, if it takes less processor time. `None`: not at all.
    #[must_use]
    pub fn tolerance(self) -> Option<f64> {
        match self {
            Self::Latency => None,
            Self::Balance => Some(0.03),
            Self::Efficiency => Some(0.2),
        }
    }

    /// Nanoseconds of processor time that a nanosecond is worth in which a client waits for an answer to begin.
    #[must_use]
    pub fn latency_worth(self) -> u64 {
        match self {
            Self::Latency => 4,
            Self::Balance => 2,
            Self::Efficiency => 1,
        }
    }

    /// The share of its time that a worker may be busy before its rings get another one: with random arrivals a request then waits
    /// for one, three or nine others on average (`busy / (1 - busy)`, the queue of an M/M/1 server).
    #[must_use]
    pub fn busy_max(self) -> f64 {
        match self {
            Self::Latency => 0.5,
            Self::Balance => 0.75,
            Self::Efficiency => 0.9,
        }
    }
}

impl fmt::Display for Favour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Latency => "latency",
            Self::Balance => "balance",
            Self::Efficiency => "efficiency",
        })
    }
}
