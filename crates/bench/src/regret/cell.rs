//! What is measured where, and what is regretted.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::contest::Standing;
use crate::stats::Spread;

/// The policy among contenders.
pub(super) const POLICY: &str = "policy";
/// The policy once more: what differs between the two is noise.
pub(super) const AGAIN: &str = "policy again";
/// Of the contenders within this of the fastest, the one that takes the least processor time is the one to beat.
const NEAR: f64 = 0.97;

/// What stands behind the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// Nothing: requests end at once
    Null,
    /// A file on tmpfs
    Tmpfs,
    /// A file in --dir, around the page cache
    Disk,
    /// A model that answers after 20 us, as a fast NVMe device
    Sim20us,
    /// A model that answers after 80 us, as NVMe flash
    Sim80us,
    /// A model that answers after 500 us, as a distant LUN
    Sim500us,
}

impl On {
    pub(super) const ALL: [On; 6] = [On::Null, On::Tmpfs, On::Disk, On::Sim20us, On::Sim80us, On::Sim500us];

    fn name(self) -> &'static str {
        match self {
            On::Null => "null",
            On::Tmpfs => "tmpfs",
            On::Disk => "disk",
            On::Sim20us => "sim 20 us",
            On::Sim80us => "sim 80 us",
            On::Sim500us => "sim 500 us",
        }
    }

    /// The directory that its file lies in.
    pub(super) fn lies_in(self, dir: &Path) -> Option<&Path> {
        match self {
            On::Tmpfs => Some(Path::new("/dev/shm")),
            On::Disk => Some(dir),
            On::Null | On::Sim20us | On::Sim80us | On::Sim500us => None,
        }
    }

    /// Arguments of `vringd disk`.
    pub(super) fn arguments(self) -> &'static str {
        match self {
            On::Null => "--storage null --size 256M",
            On::Tmpfs => "",
            On::Disk => "--direct",
            On::Sim20us => {
                "--storage sim --size 256M --distribution log_normal --latency-spread 0.3 --read-latency 20us"
            }
            On::Sim80us => {
                "--storage sim --size 256M --distribution log_normal --latency-spread 0.3 --read-latency 80us"
            }
            On::Sim500us => {
                "--storage sim --size 256M --distribution log_normal --latency-spread 0.3 --read-latency 500us"
            }
        }
    }
}

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Cell {
    pub(super) on: On,
    /// Requests in flight.
    pub(super) depth: u16,
    /// The frontend polls.
    pub(super) polling: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let polls = if self.polling { ", polls" } else { "" };
        write!(f, "{} {}{polls}", self.on.name(), self.depth)
    }
}

/// Every storage with every depth, those of a storage together.
pub(super) fn cells(only: &[On], depths: &[u16], polling: bool) -> Vec<Cell> {
    let chosen = On::ALL.into_iter().filter(|on| only.is_empty() || only.contains(on));
    let frontends: &[bool] = if polling { &[false, true] } else { &[false] };
    chosen
        .flat_map(|on| depths.iter().map(move |&depth| (on, depth)))
        .flat_map(|(on, depth)| frontends.iter().map(move |&polling| Cell { on, depth, polling }))
        .collect()
}

/// The policy in a cell, as multiples of what is best there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Regret {
    /// The fixed window with the most requests a second.
    pub(super) best: String,
    /// Requests a second, to that of the best.
    pub(super) rate: f64,
    /// 99th percentile, to the shortest of all fixed windows.
    pub(super) p99: f64,
    /// The fixed window with the least processor time a request, of those near the best.
    pub(super) cheapest: Option<String>,
    /// Processor time a request, to that of the cheapest.
    pub(super) cpu: Option<f64>,
    /// Requests a second of the policy, to the same once more.
    pub(super) noise: f64,
}

impl Regret {
    /// `None` when somebody did not run.
    pub(super) fn of(standings: &[Standing]) -> Option<Regret> {
        let find = |name: &str| standings.iter().find(|standing| standing.contender == name);
        let (policy, again) = (find(POLICY)?, find(AGAIN)?);
        let fixed = || standings.iter().filter(|standing| ![POLICY, AGAIN].contains(&&*standing.contender));
        let best = fixed().max_by(|one, other| one.iops.median.total_cmp(&other.iops.median))?;
        let p99_us = fixed().map(|standing| standing.p99_us.median).min_by(f64::total_cmp)?;
        let per_cpu = |standing: &&Standing| standing.ops_per_cpu_s.map(|spread: Spread| spread.median);
        let near = fixed().filter(|standing| standing.iops.median >= NEAR * best.iops.median);
        let cheapest = near
            .filter_map(|standing| Some((standing, per_cpu(&standing)?)))
            .max_by(|(_, one), (_, other)| one.total_cmp(other));
        Some(Regret {
            best: best.contender.clone(),
            rate: policy.iops.median / best.iops.median,
            p99: policy.p99_us.median / p99_us,
            cheapest: cheapest.map(|(standing, _)| standing.contender.clone()),
            cpu: cheapest.zip(per_cpu(&policy)).map(|((_, least), own)| least / own),
            noise: policy.iops.median / again.iops.median,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Results;
    use crate::contest::tests::{Named, run};

    #[test]
    fn what_is_best_and_what_is_cheapest_are_two_questions() {
        let contenders = [POLICY, AGAIN, "off", "fixed=20", "fixed=200"].map(|name| Named(name, None));
        let runs = vec![
            run(POLICY, 1, 950.0, 0.5),
            run(AGAIN, 1, 1000.0, 0.5),
            run("off", 1, 400.0, 0.01),
            run("fixed=20", 1, 980.0, 0.2),
            run("fixed=200", 1, 1000.0, 1.0),
        ];
        let regret = Regret::of(&Results::of(&contenders, runs).medians).unwrap();
        assert_eq!((regret.best.as_str(), regret.cheapest.as_deref()), ("fixed=200", Some("fixed=20")));
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(near(regret.rate, 0.95) && near(regret.noise, 0.95) && near(regret.p99, 1000.0 / 950.0), "{regret:?}");
        assert!(near(regret.cpu.unwrap(), (980.0 / 0.2) / (950.0 / 0.5)), "{regret:?}");
        assert_eq!(Regret::of(&[]), None);
    }

    #[test]
    fn cells_of_a_storage_lie_together() {
        let cells = cells(&[On::Disk, On::Null], &[1, 16], true);
        let names: Vec<String> = cells.iter().map(Cell::to_string).collect();
        let sleeping = ["null 1", "null 1, polls", "null 16", "null 16, polls"];
        assert_eq!(names[..4], sleeping);
        assert_eq!(names[4], "disk 1");
        assert_eq!(names.len(), 8);
    }
}
