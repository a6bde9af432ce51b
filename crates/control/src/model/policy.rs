//! What the daemon chooses by itself, and why.

use policy::balance::{self, Cause};
use policy::{Cost, Stretch, Tactic, Verdict};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use values::{Favour, PolicyMode, Poll};

/// What is chosen now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// What is preferred where both cannot be had.
    pub favour: Favour,
    /// Whether anything is chosen.
    #[serde(default)]
    pub policy: PolicyMode,
    /// The workers, by number.
    pub workers: Vec<WorkerPolicy>,
    /// Which of the daemon's workers have which rings.
    #[serde(default)]
    pub placement: PlacementPolicy,
}

/// Which of the daemon's workers have which rings, as far as that was changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementPolicy {
    /// Decisions to move rings.
    pub changes: u64,
    /// Rings that were moved.
    pub moves: u64,
    /// The last decisions, the latest first.
    pub decisions: Vec<PlacementDecision>,
}

/// Rings that were given other workers together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementDecision {
    /// How long ago, in seconds.
    pub seconds_ago: f64,
    /// What it was for.
    pub cause: Cause,
    /// The rings.
    pub moves: Vec<RingMove>,
    /// Why, with the numbers.
    pub why: String,
}

/// A ring that was given another worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingMove {
    /// Its export.
    pub export: String,
    /// Its index.
    pub ring: u16,
    /// The worker before.
    pub from: u32,
    /// The worker from then on.
    pub to: u32,
}

/// How a worker waits for work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerPolicy {
    /// The worker.
    pub id: u32,
    /// Name of its thread.
    pub name: String,
    /// Poll window as it was set.
    pub poll: Poll,
    /// The window is a person's choice, and nothing is tried.
    pub pinned: bool,
    /// The tactic that holds; absent when the window is pinned, the worker is dead or the policy has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tactic: Option<Tactic>,
    /// For how long it has held, in seconds; absent before the worker has been busy for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<f64>,
    /// The decision that chose it; absent when no trial did, or when it came back with its load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_by: Option<Decision>,
    /// Length of the poll window at this moment, in microseconds.
    pub poll_window_us_now: u32,
    /// Trials that came to a decision.
    pub trials: u64,
    /// Decisions that changed the tactic.
    pub changes: u64,
    /// The last decisions, the latest first.
    pub decisions: Vec<Decision>,
}

/// What a trial came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Decision {
    /// How long ago, in seconds.
    pub seconds_ago: f64,
    /// The tactic before.
    pub before: Tactic,
    /// The tactic from then on.
    pub after: Tactic,
    /// Requests a second with the new tactic, relative to the one before.
    pub gain: f64,
    /// Processor time of the worker for a request with the new tactic, relative to the one before.
    pub processor: f64,
    /// Why, with the numbers of all that were tried.
    pub why: String,
}

impl Decision {
    /// A verdict as it is told at this time of its clock.
    #[must_use]
    pub fn new(verdict: &Verdict, now_ns: u64) -> Self {
        let cost = verdict.cost(verdict.after).unwrap_or(Cost::SAME);
        Self {
            seconds_ago: now_ns.saturating_sub(verdict.at_ns) as f64 / 1e9,
            before: verdict.before,
            after: verdict.after,
            gain: 1.0 / cost.time_ns.max(f64::EPSILON),
            processor: cost.cpu_ns,
            why: verdict.why(),
        }
    }
}

/// What can be changed about the choices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySettings {
    /// What shall be preferred where both cannot be had; as before when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub favour: Option<Favour>,
    /// Whether to go on choosing; as before when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyMode>,
}

/// All that was seen and decided lately: what `vringd policy replay` reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRecord {
    /// Form of the record: 1.
    pub version: u32,
    /// Version of the program that made it.
    pub program: String,
    /// What was preferred at the end.
    pub favour: Favour,
    /// The workers, by number.
    pub workers: Vec<WorkerRecord>,
    /// Which workers have which rings: samples and decisions, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<balance::Stretch>,
}

impl PolicyRecord {
    /// The form that this program writes and reads.
    pub const VERSION: u32 = 1;
}

/// The record of one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerRecord {
    /// The worker.
    pub id: u32,
    /// Samples and decisions, the oldest first.
    pub stretches: Vec<Stretch>,
}
