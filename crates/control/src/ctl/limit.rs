//! Limits as options, and as tables: `vringd ctl limit`, `vringd ctl group`, and what describes a new export.

use super::cells::{NOTHING, table};
use crate::model::{ByteSize, Export, Group, Limits, NewGroup, Rates};
use clap::Subcommand;

/// Limits of a new export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct LimitFlags {
    /// Most requests a second [default: no limit]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub limit_iops: Option<u64>,

    /// Requests that may pass at once after a pause [default: a tenth of --limit-iops]
    #[arg(long, value_name = "N", requires = "limit_iops", help_heading = "Limits")]
    pub limit_burst_requests: Option<u64>,

    /// Most bytes a second, read and written, as in 100M [default: no limit]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    pub limit_bytes: Option<ByteSize>,

    /// Bytes that may pass at once after a pause, as in 1G [default: a tenth of --limit-bytes]
    #[arg(long, value_name = "SIZE", requires = "limit_bytes", help_heading = "Limits")]
    pub limit_burst_bytes: Option<ByteSize>,
}

impl LimitFlags {
    /// The limits, with the group whose limits are shared; not yet checked.
    pub fn limits(&self, group: Option<String>) -> Limits {
        Limits {
            iops: self.limit_iops,
            burst_requests: self.limit_burst_requests,
            bytes_per_second: self.limit_bytes,
            burst_bytes: self.limit_burst_bytes,
            group,
        }
    }
}

/// Rates of an export or a group.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct RateFlags {
    /// Most requests a second; 0 lifts the limit.
    #[arg(long, value_name = "N")]
    pub iops: Option<u64>,

    /// Requests that may pass at once after a pause; 0 for the usual tenth of --iops.
    #[arg(long, value_name = "N")]
    pub burst_requests: Option<u64>,

    /// Most bytes a second, read and written, as in 100M; 0 lifts the limit.
    #[arg(long, value_name = "SIZE")]
    pub bytes: Option<ByteSize>,

    /// Bytes that may pass at once after a pause, as in 1G; 0 for the usual tenth of --bytes.
    #[arg(long, value_name = "SIZE")]
    pub burst_bytes: Option<ByteSize>,
}

impl RateFlags {
    /// The rates.
    pub fn rates(&self) -> Rates {
        Rates {
            iops: self.iops,
            burst_requests: self.burst_requests,
            bytes_per_second: self.bytes.map(|size| size.0),
            burst_bytes: self.burst_bytes.map(|size| size.0),
        }
    }

    /// A group of that name with these rates.
    pub fn group(&self, name: &str) -> NewGroup {
        NewGroup::new(name, self.rates())
    }
}

/// Limits.
#[derive(Debug, Clone, Subcommand)]
pub enum LimitCommand {
    /// List what limits each export, and how much that holds it up.
    List,

    /// Limit an export, or change its limits: what is left out stays as it is.
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true)
        .args(["iops", "burst_requests", "bytes", "burst_bytes", "group", "no_group"]))]
    Set {
        /// Name of the export.
        name: String,

        /// Its rates.
        #[command(flatten)]
        rates: RateFlags,

        /// Share the limits of this group with its other exports.
        #[arg(long, value_name = "NAME", conflicts_with = "no_group")]
        group: Option<String>,

        /// Leave its group.
        #[arg(long)]
        no_group: bool,
    },

    /// Lift all limits of an export, and take it out of its group.
    Lift {
        /// Name of the export.
        name: String,
    },
}

impl LimitCommand {
    /// What lifts every limit.
    pub(super) fn nothing() -> Limits {
        let rates = Rates { iops: Some(0), burst_requests: None, bytes_per_second: Some(0), burst_bytes: None };
        Limits::new(rates, Some(String::new()))
    }
}

/// Groups of exports that share limits.
#[derive(Debug, Clone, Subcommand)]
pub enum GroupCommand {
    /// List the groups.
    List,

    /// Show one group.
    Show {
        /// Name of the group.
        name: String,
    },

    /// Make a group; exports enter it with `limit set NAME --group`.
    Add {
        /// Name of the group.
        name: String,

        /// What its exports share.
        #[command(flatten)]
        rates: RateFlags,
    },

    /// Change what the exports of a group share: what is left out stays as it is.
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true)
        .args(["iops", "burst_requests", "bytes", "burst_bytes"]))]
    Set {
        /// Name of the group.
        name: String,

        /// What its exports share.
        #[command(flatten)]
        rates: RateFlags,
    },

    /// Remove a group that has no exports.
    Remove {
        /// Name of the group.
        name: String,
    },
}

/// A rate with its burst, as in `10000/s, burst 500`.
fn rate(rate: Option<u64>, burst: Option<u64>, shown: impl Fn(u64) -> String) -> Option<String> {
    let burst = burst.map_or(String::new(), |burst| format!(", burst {}", shown(burst)));
    rate.map(|rate| format!("{}/s{burst}", shown(rate)))
}

/// The rates as columns: requests, then bytes.
fn columns(rates: Rates) -> [String; 2] {
    let requests = rate(rates.iops, rates.burst_requests, |count| count.to_string());
    let bytes = rate(rates.bytes_per_second, rates.burst_bytes, |bytes| ByteSize(bytes).to_string());
    [requests, bytes].map(|column| column.unwrap_or_else(|| NOTHING.to_owned()))
}

/// One line for `export show`; `None` when nothing is limited.
pub(super) fn line(limits: &Limits) -> Option<String> {
    let rates = Rates::from(limits);
    let requests = rate(rates.iops, rates.burst_requests, |count| format!("{count} requests"));
    let bytes = rate(rates.bytes_per_second, rates.burst_bytes, |bytes| format!("{} bytes", ByteSize(bytes)));
    let group = limits.group.as_ref().map(|group| format!("group {group}"));
    let parts: Vec<String> = [requests, bytes, group].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// `vringd ctl limit list`.
pub(super) fn limits(exports: &[Export]) -> String {
    if exports.is_empty() {
        return "no exports\n".to_owned();
    }
    let row = |export: &Export| {
        let [requests, bytes] = columns(Rates::from(&export.limits));
        let throttled: u64 = export.rings.iter().map(|ring| ring.figures.throttled).sum();
        let seconds: f64 = export.rings.iter().map(|ring| ring.figures.throttled_seconds).sum();
        vec![
            export.name.clone(),
            requests,
            bytes,
            export.limits.group.clone().unwrap_or_else(|| NOTHING.to_owned()),
            throttled.to_string(),
            format!("{seconds:.1}"),
        ]
    };
    let headers = ["EXPORT", "REQUESTS", "BYTES", "GROUP", ">THROTTLED", ">FOR s"];
    table(&headers, exports.iter().map(row))
}

/// `vringd ctl group list`.
pub(super) fn groups(groups: &[Group]) -> String {
    if groups.is_empty() {
        return "no groups\n".to_owned();
    }
    let row = |group: &Group| {
        let [requests, bytes] = columns(Rates::from(group));
        let exports = if group.exports.is_empty() { NOTHING.to_owned() } else { group.exports.join(" ") };
        vec![group.name.clone(), requests, bytes, exports]
    };
    table(&["GROUP", "REQUESTS", "BYTES", "EXPORTS"], groups.iter().map(row))
}
