//! What was fuzzed so far, a line a run: the sessions of many machines add up in it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One run of one target: a line of the ledger.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Run {
    /// What was fuzzed; a `+` behind it says that there was more than that in the work tree.
    pub(super) commit: String,
    pub(super) target: String,
    /// Processor time, in seconds.
    pub(super) processor_s: u64,
    /// Inputs that were tried.
    pub(super) executions: u64,
    /// Edges of the program that were reached (libFuzzer's `cov`), by this run and the corpus it began with.
    pub(super) edges: u64,
    /// Edges with how often they were passed, and values that were compared (libFuzzer's `ft`).
    pub(super) features: u64,
    /// Inputs in the corpus at the end.
    pub(super) corpus: u64,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, processor_s, executions, edges, features, corpus, .. } = self;
        write!(
            f,
            "{target}: {processor_s} s, {executions} executions, {edges} edges, {features} features, {corpus} inputs kept"
        )
    }
}

/// The lines of the file.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    runs: Vec<Run>,
}

impl Ledger {
    /// Reads it. A file that is not there is a ledger without a line.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let mut reader = csv::Reader::from_path(path)?;
        let runs = reader.deserialize().collect::<Result<_, _>>().with_context(|| path.display().to_string())?;
        Ok(Self { runs })
    }

    /// Adds a line, here and in the file.
    pub(super) fn add(&mut self, path: &Path, run: Run) -> Result<()> {
        let failed = || format!("cannot write {}", path.display());
        let file = File::options().append(true).create(true).open(path).with_context(failed)?;
        let is_new = file.metadata().with_context(failed)?.len() == 0;
        let mut writer = csv::WriterBuilder::new().has_headers(is_new).from_writer(file);
        writer.serialize(&run).with_context(failed)?;
        writer.flush().with_context(failed)?;
        self.runs.push(run);
        Ok(())
    }

    /// How much processor time a target has had, in seconds.
    pub(super) fn processor_s(&self, target: &str) -> u64 {
        self.runs.iter().filter(|run| run.target == target).map(|run| run.processor_s).sum()
    }

    /// A line a target for people: times and executions added up, and the most that was covered by one run.
    pub(super) fn table(&self) -> String {
        let mut targets: BTreeMap<&str, Run> = BTreeMap::new();
        for run in &self.runs {
            targets
                .entry(&run.target)
                .and_modify(|sum| {
                    sum.processor_s += run.processor_s;
                    sum.executions += run.executions;
                    sum.edges = sum.edges.max(run.edges);
                    sum.features = sum.features.max(run.features);
                    sum.corpus = sum.corpus.max(run.corpus);
                })
                .or_insert_with(|| run.clone());
        }
        let mut table =
            format!("{:<16}{:>10}{:>15}{:>8}{:>10}\n", "target", "minutes", "executions", "edges", "features");
        for (name, sum) in &targets {
            let minutes = sum.processor_s as f64 / 60.0;
            // Writing to a string does not fail.
            let _ =
                writeln!(table, "{name:<16}{minutes:>10.1}{:>15}{:>8}{:>10}", sum.executions, sum.edges, sum.features);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::{Ledger, Run};

    fn run(target: &str, processor_s: u64, edges: u64) -> Run {
        Run {
            commit: "abc".into(),
            target: target.into(),
            processor_s,
            executions: 1000,
            edges,
            features: 7,
            corpus: 3,
        }
    }

    #[test]
    fn runs_add_up_over_sessions() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ledger.csv");
        let mut first = Ledger::read(&path).expect("none yet");
        first.add(&path, run("ring", 90, 20)).expect("a line");
        let mut second = Ledger::read(&path).expect("one line");
        second.add(&path, run("ring", 60, 15)).expect("a line");
        second.add(&path, run("session", 30, 1)).expect("a line");

        let all = Ledger::read(&path).expect("three lines");
        assert_eq!(all.runs, [run("ring", 90, 20), run("ring", 60, 15), run("session", 30, 1)]);
        assert_eq!((all.processor_s("ring"), all.processor_s("session"), all.processor_s("new")), (150, 30, 0));
        let table = all.table();
        let fields: Vec<&str> = table.lines().nth(1).expect("a line").split_whitespace().collect();
        assert_eq!(fields, ["ring", "2.5", "2000", "20", "7"], "{table}");
    }

    #[test]
    fn a_line_that_says_something_else_is_refused_with_its_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ledger.csv");
        std::fs::write(&path, "commit,target,processor_s,executions,edges,features,corpus\na,ring,many,1,1,1,1\n")
            .expect("written");
        let error = format!("{:#}", Ledger::read(&path).expect_err("no number"));
        assert!(error.contains("ledger.csv") && error.contains("line: 2"), "{error}");
    }
}
