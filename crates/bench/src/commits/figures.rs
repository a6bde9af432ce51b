//! The figures of a volume, asked of its server over the control socket.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::http;

/// Name of the export, which is the default of `vringd disk`.
const EXPORT: &str = "disk";

/// Counts since the server began, as the API names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Writes to the log, each with the flush behind it.
    pub(crate) commits: u64,
    /// Requests that waited for them.
    pub(crate) committed_requests: u64,
    /// Bytes written to the log.
    pub(crate) committed_bytes: u64,
    /// How often and how long commits were held back for company.
    pub(crate) company_wait: Times,
    /// Of commits.
    pub(crate) commit_latency: Times,
    /// Writes that waited for room in memory.
    pub(crate) parked_writes: u64,
    /// Commits that waited for room in the log.
    pub(crate) parked_commits: u64,
    /// Bytes written back.
    pub(crate) written_back_bytes: u64,
    /// Times that everything was written back.
    pub(crate) sweeps: u64,
    /// Commits that failed.
    pub(crate) log_errors: u64,
    /// Writes of write-back that failed.
    pub(crate) write_back_errors: u64,
}

/// Latencies, the part of them that is passed on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) max_us: f64,
}

impl Figures {
    /// Whether every commit and all write-back succeeded.
    pub(crate) fn is_clean(&self) -> bool {
        self.log_errors + self.write_back_errors == 0
    }

    /// Requests that shared a commit, on average; `None` before the first.
    pub(crate) fn requests_a_commit(&self) -> Option<f64> {
        crate::stats::ratio(self.committed_requests as f64, self.commits as f64)
    }
}

#[derive(Debug, Deserialize)]
struct Export {
    storage: Storage,
}

#[derive(Debug, Deserialize)]
struct Storage {
    volume: Figures,
}

/// Asks the server whose control socket is at `control`.
pub(crate) fn ask(control: &Path) -> Result<Figures> {
    parse(&http::ask(control, "GET", &format!("/v1/exports/{EXPORT}"), None)?)
}

fn parse(body: &str) -> Result<Figures> {
    let export: Export = serde_json::from_str(body).context("the answer is not that of a volume")?;
    Ok(export.storage.volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{fake, ok};

    const BODY: &str = r#"{"name": "disk", "storage": {"kind": "volume", "volume": {"sync": "standard", "commits": 4,
        "committed_requests": 30, "committed_bytes": 9, "written_back_bytes": 8, "sweeps": 2,
        "company_wait": {"count": 1, "sum_us": 2.0, "mean_us": 2.0, "p50_us": 2.0, "max_us": 2.0},
        "commit_latency": {"count": 4, "sum_us": 40.0, "mean_us": 10.0, "p50_us": 9.0, "max_us": 20.0},
        "parked_writes": 0, "parked_commits": 0, "log_errors": 0, "write_back_errors": 0, "log_bytes": 5}}}"#;

    #[test]
    fn figures_are_found_in_the_export() {
        let figures = parse(BODY).unwrap();
        assert_eq!((figures.commits, figures.written_back_bytes, figures.sweeps), (4, 8, 2));
        assert_eq!(figures.requests_a_commit(), Some(7.5));
        assert_eq!(Figures::default().requests_a_commit(), None);
    }

    #[test]
    fn a_disk_without_a_log_has_none() {
        assert!(parse("{\"storage\": {\"kind\": \"file\"}}").is_err());
        assert!(parse("nonsense").is_err());
    }

    #[test]
    fn the_export_is_asked_for() {
        let (_directory, path, server) = fake(vec![ok(BODY)]);
        assert_eq!(ask(&path).unwrap().commits, 4);
        assert!(server.join().unwrap()[0].starts_with("GET /v1/exports/disk HTTP/1.0\r\n"));
    }
}
