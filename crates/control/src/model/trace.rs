//! Slow requests, and where their time went.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;
use values::{FieldError, Lun, Span};

/// What to trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTrace {
    /// Requests that take this long or longer are told, 1us to 3600s. The time counts that they can have waited in their ring.
    pub slower_than: Span,
    /// Those of this export only; of all exports when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
}

impl NewTrace {
    const LEAST: Duration = Duration::from_micros(1);
    const MOST: Duration = Duration::from_secs(3600);

    /// Refuses a bound that makes no sense.
    ///
    /// # Errors
    /// It is out of range.
    pub fn check(&self) -> Result<(), FieldError> {
        if (Self::LEAST..=Self::MOST).contains(&self.slower_than.0) {
            return Ok(());
        }
        Err(FieldError::new("slower_than", format!("must be 1us to 3600s, not {}", self.slower_than)))
    }
}

/// A trace that somebody reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// Its identifier; no other trace ever has it, also after an upgrade.
    pub id: u64,
    /// Requests that take this long or longer are told.
    pub slower_than: Span,
    /// The only export whose requests are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Time after which it ends unless its news are taken before, in seconds.
    pub seconds_left: f64,
}

/// What a trace has to tell since it was asked last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TraceNews {
    /// Slow requests, in the order in which their clients could see them answered.
    pub requests: Vec<SlowRequest>,
    /// Slow requests that are not among them: there is room for 256 of each export until they are taken.
    pub lost: u64,
    /// All slow requests.
    pub slow: u64,
    /// All requests that were answered, fast ones included.
    pub answered: u64,
    /// Where the time of all slow requests went.
    pub times: StageTimes,
}

/// Where the time of a request went, or of several, in microseconds. All but `waited_us_max` add up to the whole time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageTimes {
    /// In the ring, before a worker took it, at most: when it came is not known.
    pub waited_us_max: f64,
    /// Put aside after it was taken: 9p requests that a limit holds up, and versions that wait until their client has nothing any more.
    pub held_us: f64,
    /// Decoded, and its work begun elsewhere.
    pub start_us: f64,
    /// Done by the worker itself.
    pub inline_us: f64,
    /// With what stands behind the export: the kernel, other threads, a line of other requests.
    pub behind_us: f64,
    /// Waiting for a lock that another client has.
    pub lock_us: f64,
    /// From the end of its work, as the worker saw it, to its answer.
    pub answer_us: f64,
    /// From its answer to when the client could see that.
    pub show_us: f64,
    /// Of a request that began before the trace: what is not known in detail.
    pub unknown_us: f64,
}

impl StageTimes {
    /// From when it was taken to when its client could see the answer, in microseconds.
    #[must_use]
    pub fn total_us(&self) -> f64 {
        self.held_us
            + self.start_us
            + self.inline_us
            + self.behind_us
            + self.lock_us
            + self.answer_us
            + self.show_us
            + self.unknown_us
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &StageTimes) -> StageTimes {
        StageTimes {
            waited_us_max: self.waited_us_max + other.waited_us_max,
            held_us: self.held_us + other.held_us,
            start_us: self.start_us + other.start_us,
            inline_us: self.inline_us + other.inline_us,
            behind_us: self.behind_us + other.behind_us,
            lock_us: self.lock_us + other.lock_us,
            answer_us: self.answer_us + other.answer_us,
            show_us: self.show_us + other.show_us,
            unknown_us: self.unknown_us + other.unknown_us,
        }
    }
}

/// Why a request can have waited in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WaitedFor {
    /// Its worker was busy with other rings, completions or messages.
    Worker,
    /// Requests before it on its ring had their turn.
    Turn,
    /// A limit of its export or its group.
    Limit,
    /// Its ring was held, while another storage came behind its disk.
    Hold,
}

/// A way that the work of a request went. None: its worker did it at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The worker's io_uring.
    Uring,
    /// A thread: of a pool, for long calls, for jobs of a storage.
    Thread,
    /// A deadline of the worker: a simulated device, or a leader of a commit that waits for company.
    Timer,
    /// In line, for other requests or for room.
    Line,
    /// A commit of its volume that it led.
    CommitLed,
    /// A commit of its volume that another request led.
    CommitJoined,
    /// A backup or a pull, which copied what it was to write over.
    Copy,
    /// A lock of another client.
    Lock,
    /// The answer to another request.
    Other,
}

/// A request that took long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SlowRequest {
    /// When a worker took it from its ring, in microseconds since 1970 (UTC).
    pub taken_unix_us: u64,
    /// The export.
    pub export: String,
    /// The ring's index.
    pub ring: u16,
    /// The worker that took it.
    pub worker: u32,
    /// The worker that answered it, where the ring has moved meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<u32>,
    /// Its kind, as in a ring's figures: `read`, `flush`, a FUSE operation, a 9P message.
    pub kind: String,
    /// First byte that it is about, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Number of bytes that it is about, as it asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// FUSE: the node, by the guest's number; 1 is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
    /// 9P: the fid, by the client's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fid: Option<u32>,
    /// SCSI: the logical unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<Lun>,
    /// It was answered with an error.
    pub failed: bool,
    /// From when it was taken to when its client could see the answer, in microseconds: the sum of its stages.
    pub total_us: f64,
    /// Its stages.
    pub times: StageTimes,
    /// Why it can have waited before, where it can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<WaitedFor>,
    /// The ways that its work went, `behind_us` and `lock_us` long.
    pub ways: Vec<Way>,
    /// Pieces of its work that ended elsewhere.
    pub parts: u32,
    /// How much later than it ended the worker can have seen the last of them, in microseconds: it was busy.
    pub seen_late_us_max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_bounds() {
        for (slower_than, is_good) in
            [("0ns", false), ("999ns", false), ("1us", true), ("3600s", true), ("3601s", false)]
        {
            let new = NewTrace { slower_than: slower_than.parse().unwrap(), export: None };
            assert_eq!(new.check().is_ok(), is_good, "{slower_than}");
        }
    }
}
