//! What POSIX says of file systems, by the pjdfstest suite.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest;
use tests::lab::Lab;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(300);

/// Cases of the suite that run; a report with fewer is not one of the whole suite.
const RUN_MIN: usize = 350;

/// Cases that fail, and why each may. One that fails and is not here fails the test, and one that
/// is here and passes does too.
const KNOWN_DIFFERENCES: &[(&str, &str)] = &[];

/// The suite's settings: what Linux has of what not every system has, another file system of the
/// guest, and two users of its root file system. Cases that mount the directory again read-only are
/// left out: all they ask is answered by the guest's kernel alone.
const SETTINGS: &str = r#"
[features]
secondary_fs = "/tmp"
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

fn suite(cache: Cache, options: &[&str]) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut directory = Directory::new(shared.path()).cache(cache);
    directory.options.extend(options.iter().map(ToString::to_string));
    let mut server = DirectoryServer::start(&lab, &directory)?;
    let body = format!(
        "cat >/tmp/settings <<'END'\n{SETTINGS}\nEND\n\
         mkdir suite
         $programs/pjdfstest --configuration-file /tmp/settings --path suite >$job/report 2>&1 || true
         rmdir suite
         touch $job/reported
         until [ -e $job/read ]; do sleep 0.1; done"
    );
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, &body)?;
    guest.wait_for("reported", LIMIT)?;
    let report = fs::read_to_string(guest.shared().join("report")).context("the suite leaves a report")?;
    guest.tell("read")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()?;
    judge(&report)
}

/// Compares a report with what is known.
fn judge(report: &str) -> Result<()> {
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
    for (case, reason) in KNOWN_DIFFERENCES {
        ensure!(
            outcomes.get(case) == Some(&Outcome::Failed),
            "{case} is known to fail ({reason}), and the report says {:?}",
            outcomes.get(case)
        );
    }
    let new: Vec<&str> = outcomes
        .iter()
        .filter(|(case, outcome)| {
            **outcome == Outcome::Failed && !KNOWN_DIFFERENCES.iter().any(|(known, _)| known == *case)
        })
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

#[test]
fn suite_passes_with_cache_auto() -> Result<()> {
    suite(Cache::Auto, &[])
}

#[test]
fn suite_passes_with_cache_never() -> Result<()> {
    suite(Cache::Never, &[])
}
