//! What is measured where, and what is regretted.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::contest::{Results, Standing};
use crate::stats::Ratio;

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
                "--storage sim --size 256M --distribution log_normal --latency-spread 0.3 --channels 256 --read-latency 20us"
            }
            On::Sim80us => {
                "--storage sim --size 256M --distribution log_normal --latency-spread 0.3 --channels 256 --read-latency 80us"
            }
            On::Sim500us => {
                "--storage sim --size 256M --distribution log_normal --latency-spread 0.3 --channels 256 --read-latency 500us"
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

/// The policy in a cell, against the best there is of each: with the interval that the rounds admit, as everywhere.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Regret {
    /// The fixed window with the most requests a second.
    pub(super) fastest: String,
    /// Requests a second, to that.
    pub(super) rate: Option<Ratio>,
    /// The fixed window with the shortest 99th percentile.
    pub(super) shortest: String,
    /// 99th percentile, to that.
    pub(super) p99: Option<Ratio>,
    /// The fixed window with the most requests a second of processor time, of those near the fastest.
    pub(super) cheapest: Option<String>,
    /// Requests a second of processor time, to that.
    pub(super) per_cpu: Option<Ratio>,
    /// Requests a second, to the policy once more.
    pub(super) noise: Option<Ratio>,
}

impl Regret {
    /// `None` when somebody did not run.
    pub(super) fn of(results: &Results) -> Option<Regret> {
        let fixed = || results.medians.iter().filter(|standing| ![POLICY, AGAIN].contains(&&*standing.contender));
        let to = |standing: &Standing| results.ratios_to(&standing.contender);
        let fastest = fixed().max_by(|one, other| one.iops.median.total_cmp(&other.iops.median))?;
        let shortest = fixed().min_by(|one, other| one.p99_us.median.total_cmp(&other.p99_us.median))?;
        let per_cpu = |standing: &Standing| standing.ops_per_cpu_s.map_or(0.0, |spread| spread.median);
        let near = fixed().filter(|standing| standing.iops.median >= NEAR * fastest.iops.median);
        let cheapest = near
            .filter(|standing| standing.ops_per_cpu_s.is_some())
            .max_by(|one, other| per_cpu(one).total_cmp(&per_cpu(other)));
        Some(Regret {
            fastest: fastest.contender.clone(),
            rate: to(fastest)?.iops,
            shortest: shortest.contender.clone(),
            p99: to(shortest)?.p99_latency,
            cheapest: cheapest.map(|standing| standing.contender.clone()),
            per_cpu: cheapest.and_then(to).and_then(|ratios| ratios.ops_per_cpu_s),
            noise: results.ratios_to(AGAIN)?.iops,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::tests::{Named, run};

    #[test]
    fn what_is_fastest_and_what_is_cheapest_are_two_questions() {
        let contenders = [POLICY, "off", "fixed=20", "fixed=200", AGAIN].map(|name| Named(name, None));
        let runs = vec![
            run(POLICY, 1, 950.0, 0.5),
            run("off", 1, 400.0, 0.01),
            run("fixed=20", 1, 980.0, 0.2),
            run("fixed=200", 1, 1000.0, 1.0),
            run(AGAIN, 1, 1000.0, 0.5),
        ];
        let regret = Regret::of(&Results::of(&contenders, runs)).unwrap();
        assert_eq!((regret.fastest.as_str(), regret.cheapest.as_deref()), ("fixed=200", Some("fixed=20")));
        let near = |ratio: Option<Ratio>, wanted: f64| (ratio.unwrap().value - wanted).abs() < 1e-9;
        assert!(near(regret.rate, 0.95) && near(regret.noise, 0.95) && near(regret.p99, 1000.0 / 950.0), "{regret:?}");
        assert!(near(regret.per_cpu, (950.0 / 0.5) / (980.0 / 0.2)), "{regret:?}");
        assert_eq!(Regret::of(&Results::of(&contenders, Vec::new())), None);
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
