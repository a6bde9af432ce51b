//! What POSIX says of file systems, by the pjdfstest suite: its settings, and its report judged.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::uml::Guest;

/// Cases of the suite that run; a report with fewer is not one of the whole suite.
const RUN_MIN: usize = 350;

/// A case that fails, and why it may. One that fails and is not known fails the test, and one that is known and passes
/// does too.
pub type Known = (&'static str, &'static str);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// The guest's part of the suite. `features` are lines of the suite's settings: what Linux has, by the
/// protocol in question, of what not every system has. Another file system of the guest and two users of its
/// root file system are in the settings too. Cases that mount the directory again read-only are left out: all
/// they ask is answered by the guest's kernel alone.
pub fn body(features: &[&str]) -> String {
    let features = features.join("\n");
    format!(
        "cat >/tmp/settings <<'END'
[features]
secondary_fs = \"/tmp\"
{features}
[settings]
naptime = 0.02
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
END
         mkdir suite
         $programs/pjdfstest --configuration-file /tmp/settings --path suite >$job/report 2>&1 || true
         rmdir suite
         touch $job/reported
         until [ -e $job/read ]; do sleep 0.1; done"
    )
}

/// Waits for the suite in a guest that runs [`body`], and judges its report.
pub fn judge_guest(mut guest: Guest, known: &[Known], limit: Duration) -> Result<()> {
    guest.wait_for("reported", limit)?;
    let report = fs::read_to_string(guest.shared().join("report")).context("the suite leaves a report")?;
    guest.tell("read")?;
    let ended = guest.wait(limit)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    judge(&report, known)
}

/// Compares a report with what is known.
fn judge(report: &str, known: &[Known]) -> Result<()> {
    let outcomes = outcomes(report);
    let count = |wanted| outcomes.values().filter(|outcome| **outcome == wanted).count();
    println!(
        "{} cases: {} passed, {} failed, {} skipped",
        outcomes.len(),
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::Skipped)
    );
    let run = outcomes.len() - count(Outcome::Skipped);
    ensure!(run >= RUN_MIN, "only {run} cases were run:\n{report}");
    for (case, reason) in known {
        ensure!(
            outcomes.get(case) == Some(&Outcome::Failed),
            "{case} is known to fail ({reason}), and the report says {:?}",
            outcomes.get(case)
        );
    }
    let new: Vec<&str> = outcomes
        .iter()
        .filter(|(case, outcome)| **outcome == Outcome::Failed && !known.iter().any(|(known, _)| known == *case))
        .map(|(case, _)| *case)
        .collect();
    ensure!(new.is_empty(), "{} cases fail: {new:#?}\n{report}", new.len());
    Ok(())
}

/// Lines of a report that name a case and its outcome; what belongs to a case is indented.
fn outcomes(report: &str) -> BTreeMap<&str, Outcome> {
    report
        .lines()
        .filter_map(|line| {
            let (case, outcome) = line.split_once(char::is_whitespace)?;
            let outcome = match outcome.trim() {
                "ok" => Outcome::Passed,
                "FAILED" => Outcome::Failed,
                "skipped" => Outcome::Skipped,
                _ => return None,
            };
            (!case.is_empty()).then_some((case, outcome))
        })
        .collect()
}
