//! A measurement by one of our own frontends, as a process: `vringd bench disk` and `vringd bench fs`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bench::frontend::Report;
use guest::process::Group;
use serde::Deserialize;

use super::trouble::{one_line, reason};
use super::{Data, Trouble};
use crate::experiment::{Options, ServerKind};
use crate::record::Figures;

/// One measurement.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) vringd: &'a Path,
    pub(super) kind: ServerKind,
    /// Whether the frontend reserves the disk.
    pub(super) reserve: bool,
    pub(super) socket: &'a Path,
    pub(super) server_pid: u32,
    pub(super) data: Option<&'a Data>,
    pub(super) queues: u16,
    pub(super) time: Duration,
    pub(super) warm_up: Duration,
    /// The workload's; they replace ours of the same name. A value `true` makes an option without a value.
    pub(super) options: &'a Options,
    pub(super) scratch: &'a Path,
}

impl Load<'_> {
    /// Runs it, and reads what it wrote.
    pub(super) fn run(&self, limit: Duration) -> Result<Figures, Trouble> {
        let json = self.scratch.join("load.json");
        // The last measurement's figures must not be taken for this one's.
        let _absent = fs::remove_file(&json);
        let log = self.scratch.join("load.log");
        let began = Instant::now();
        let mut process = Group::start(&self.command(&json), &log).map_err(|error| Trouble::failed(&error))?;
        let status = process.wait(limit).map_err(|error| {
            if began.elapsed() >= limit {
                Trouble::Failed(format!("the frontend did not end within {} s", limit.as_secs()))
            } else {
                Trouble::failed(&error)
            }
        })?;
        let text = fs::read_to_string(&json).unwrap_or_default();
        if text.is_empty() {
            return Err(Trouble::Failed(match reason(&process.output()) {
                "" => format!("the frontend ended with {status} and said nothing"),
                said => one_line(said),
            }));
        }
        parse(&text)
    }

    fn command(&self, json: &Path) -> Command {
        let mut ours: Vec<(&str, String)> = vec![
            ("queues", self.queues.to_string()),
            ("time", format!("{}ms", self.time.as_millis())),
            ("ramp", format!("{}ms", self.warm_up.as_millis())),
        ];
        if !self.kind.is_disk() {
            // Its calls are counted after the figures were taken: that is another experiment.
            ours.push(("syscalls", "none".into()));
            ours.push(("rounds", "1".into()));
            if let Some(data) = self.data {
                let directory = data.directory().to_string_lossy().into_owned();
                ours.push(("dir", directory.clone()));
                ours.push(("shared-dir", directory));
                ours.push(("file-size", format!("{}M", data.size_mib())));
            }
        }
        let mut command = Command::new(self.vringd);
        command.args(["bench", if self.kind.is_disk() { "disk" } else { "fs" }]);
        if let Some(protocol) = protocol(self.kind) {
            command.args(["--protocol", protocol]);
        }
        if self.reserve {
            command.arg("--reserve");
        }
        command.arg("--socket").arg(self.socket);
        command.arg("--server-pid").arg(self.server_pid.to_string());
        command.arg("--json").arg(json);
        for (name, value) in ours.iter().filter(|(name, _)| !self.options.contains_key(*name)) {
            command.arg(format!("--{name}")).arg(value);
        }
        for (name, value) in self.options {
            match value.as_str() {
                "" | "false" => {}
                "true" => {
                    command.arg(format!("--{name}"));
                }
                value => {
                    command.arg(format!("--{name}")).arg(value);
                }
            }
        }
        command
    }
}

/// What the frontend is to speak where that is not what it speaks anyway.
fn protocol(kind: ServerKind) -> Option<&'static str> {
    if kind.is_9p() {
        return Some("9p");
    }
    kind.is_scsi().then_some("scsi")
}

/// What `bench disk` writes, and what `bench fs` writes a job.
#[derive(Debug, Deserialize)]
struct Results {
    runs: Vec<Report>,
    #[serde(default)]
    failures: Vec<Failure>,
}

#[derive(Debug, Deserialize)]
struct Directory {
    jobs: Vec<Results>,
}

#[derive(Debug, Deserialize)]
struct Failure {
    error: String,
}

fn parse(text: &str) -> Result<Figures, Trouble> {
    let form =
        |error: serde_json::Error| Trouble::Failed(format!("the frontend wrote JSON of an unknown form: {error}"));
    let document: serde_json::Value = serde_json::from_str(text).map_err(form)?;
    let results = if document.get("jobs").is_some() {
        serde_json::from_value::<Directory>(document).map_err(form)?.jobs
    } else {
        vec![serde_json::from_value::<Results>(document).map_err(form)?]
    };
    if let Some(failure) = results.iter().flat_map(|results| &results.failures).next() {
        return Err(Trouble::Failed(one_line(&failure.error)));
    }
    let mut runs = results.into_iter().flat_map(|results| results.runs);
    let (Some(run), None) = (runs.next(), runs.next()) else {
        return Err(Trouble::Failed("the frontend is to measure one load, and measured another number".into()));
    };
    if !run.is_clean() {
        let fault = run.faults.first().map(|fault| format!(": {fault}")).unwrap_or_default();
        let reason = format!("{} requests failed, {} brought wrong data{fault}", run.errors, run.mismatches);
        return Err(Trouble::Failed(one_line(&reason)));
    }
    if run.ops == 0 {
        return Err(Trouble::Failed("the frontend completed no request".into()));
    }
    Ok(Figures::from(&run))
}
