//! The journal of a run: a header, then one line a measurement, each on disk before the next begins.
//!
//! A run that was interrupted leaves whole lines and at most one torn one, which was a measurement that did not end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::experiment::Experiment;
use crate::record::{Header, Outcome, Run, SCHEMA, Sample};

/// Name of the journal in a run's directory.
pub(crate) const FILE: &str = "journal.jsonl";

/// A journal that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    run: Run,
}

/// Fails if `directory` holds a run already.
pub(crate) fn refuse_another_run(directory: &Path) -> Result<()> {
    ensure!(
        !directory.join(FILE).exists(),
        "{}: holds a run already; add --resume to go on with it, or choose another --out",
        directory.display()
    );
    Ok(())
}

impl Journal {
    /// Begins a run in `directory`, which must hold none.
    pub(crate) fn begin(directory: &Path, header: Header) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
        let path = directory.join(FILE);
        refuse_another_run(directory)?;
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("{}: cannot be made", path.display()))?;
        let mut journal = Self { file, path, run: Run { header, samples: Vec::new() } };
        let line = serde_json::to_string(&journal.run.header)?;
        journal.write(&line)?;
        Ok(journal)
    }

    /// Goes on with the run in `directory`, which must be of the same experiment; begins it if there is none.
    pub(crate) fn resume(directory: &Path, header: Header) -> Result<Self> {
        let path = directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) if !text.is_empty() => text,
            Ok(_) => {
                fs::remove_file(&path)?;
                return Self::begin(directory, header);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::begin(directory, header),
            Err(error) => return Err(error).with_context(|| format!("{}: cannot be read", path.display())),
        };
        let (mut run, whole_bytes) = parse(&text).with_context(|| path.display().to_string())?;
        if let Some(difference) = difference(&run.header, &header) {
            bail!("{}: cannot be resumed: {difference}; choose another --out", directory.display());
        }
        if header.experiment.rounds > run.header.experiment.rounds {
            run.header.experiment.rounds = header.experiment.rounds;
            replace_header(&path, &run.header, &text[..whole_bytes])?;
            return Ok(Self { file: OpenOptions::new().append(true).open(&path)?, path, run });
        }
        let file = OpenOptions::new().append(true).open(&path)?;
        // The measurement of a torn line is made again.
        file.set_len(u64::try_from(whole_bytes)?)?;
        Ok(Self { file, path, run })
    }

    /// The run so far.
    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    /// How many measurements need not be made any more.
    pub(crate) fn settled(&self) -> usize {
        self.run.samples.iter().filter(|sample| !matches!(sample.outcome, Outcome::Failed { .. })).count()
    }

    /// Whether this needs no measurement any more. What failed is tried again: a run is often resumed because whatever made it
    /// fail was put right.
    pub(crate) fn has(&self, round: u32, configuration: &str, workload: &str) -> bool {
        self.run.samples.iter().any(|sample| {
            sample.round == round
                && sample.configuration == configuration
                && sample.workload == workload
                && !matches!(sample.outcome, Outcome::Failed { .. })
        })
    }

    /// Writes a measurement down.
    pub(crate) fn add(&mut self, sample: Sample) -> Result<()> {
        let line = serde_json::to_string(&sample)?;
        self.write(&line)?;
        keep(&mut self.run.samples, sample);
        Ok(())
    }

    fn write(&mut self, line: &str) -> Result<()> {
        let written = self.file.write_all(format!("{line}\n").as_bytes()).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("{}: cannot be written", self.path.display()))
    }
}

/// Gives the journal at `path`, whose whole lines are `lines`, another header: at once, so that whatever happens one of the two
/// journals is there.
fn replace_header(path: &Path, header: &Header, lines: &str) -> Result<()> {
    let cannot = || format!("{}: cannot be written", path.display());
    let samples = lines.split_once('\n').map_or("", |(_, samples)| samples);
    let mut text = serde_json::to_string(header)?;
    text.push('\n');
    text.push_str(samples);
    let fresh = path.with_extension("jsonl.new");
    let mut file = File::create(&fresh).with_context(cannot)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).with_context(cannot)?;
    fs::rename(&fresh, path).with_context(cannot)
}

/// Reads the run in `directory`.
pub fn read(directory: &Path) -> Result<Run> {
    let path = directory.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
    Ok(parse(&text).with_context(|| path.display().to_string())?.0)
}

/// Every run in `directory` and in the directories in it, by name of the experiment's directory.
pub fn read_all(directory: &Path) -> Result<Vec<Run>> {
    let mut places = vec![directory.to_owned()];
    let entries = fs::read_dir(directory).with_context(|| format!("{}: cannot be read", directory.display()))?;
    for entry in entries {
        places.push(entry?.path());
    }
    places[1..].sort();
    let runs: Result<Vec<Run>> =
        places.iter().filter(|place| place.join(FILE).is_file()).map(|place| read(place)).collect();
    let runs = runs?;
    if runs.is_empty() {
        bail!("{}: holds no run ({FILE}); give the directory that `vringd bench run --out` wrote", directory.display());
    }
    Ok(runs)
}

/// The run in `text` and how many bytes of it are whole lines.
fn parse(text: &str) -> Result<(Run, usize)> {
    let mut whole_bytes = 0;
    let mut header = None;
    let mut samples = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        let place = || format!("line {}", index + 1);
        if header.is_none() {
            header = Some(parse_header(line).with_context(place)?);
        } else {
            keep(&mut samples, serde_json::from_str(line).with_context(place)?);
        }
        whole_bytes += line.len();
    }
    let header = header.context("has no header: the run did not get so far")?;
    Ok((Run { header, samples }, whole_bytes))
}

/// Adds a measurement; it takes the place of an earlier one of the same that had failed.
fn keep(samples: &mut Vec<Sample>, sample: Sample) {
    let key = |sample: &Sample| (sample.round, sample.configuration.clone(), sample.workload.clone());
    samples.retain(|earlier| !matches!(earlier.outcome, Outcome::Failed { .. }) || key(earlier) != key(&sample));
    samples.push(sample);
}

fn parse_header(line: &str) -> Result<Header> {
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u32,
    }
    // Looked at first: another version's other fields may mean anything.
    let Version { schema } = serde_json::from_str(line).context("is no header of a run")?;
    if schema != SCHEMA {
        bail!("has form {schema}; this vringd reads form {SCHEMA}");
    }
    Ok(serde_json::from_str(line)?)
}

/// Why figures of `old` and `new` do not belong together, if they do not.
fn difference(old: &Header, new: &Header) -> Option<String> {
    if old.quick != new.quick {
        let of = |quick| if quick { "a quick run" } else { "a full run" };
        return Some(format!("it is {}, this is {}", of(old.quick), of(new.quick)));
    }
    if old.vringd != new.vringd {
        return Some(format!("it was made by vringd {}, this is {}", old.vringd, new.vringd));
    }
    if old.environment.kernel != new.environment.kernel {
        return Some(format!("it was made on kernel {}, this is {}", old.environment.kernel, new.environment.kernel));
    }
    // Another number of rounds is only more or less of the same.
    let same = Experiment { rounds: old.experiment.rounds, ..new.experiment.clone() };
    (old.experiment != same).then(|| "the experiment is not the same as it was".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Figures;
    use crate::run::samples::header;

    fn sample(round: u32) -> Sample {
        let figures =
            Figures { iops: 0.1 + 0.2, requests: u64::MAX, server_cpu_s: Some(1.0 / 3.0), ..Figures::default() };
        Sample {
            round,
            configuration: "c0".into(),
            workload: "w \"0\"\n".into(),
            outcome: if round == 2 { Outcome::Failed { reason: "gone".into() } } else { Outcome::Measured(figures) },
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(directory.path(), header(2, 1)).unwrap();
        for round in 1..=3 {
            journal.add(sample(round)).unwrap();
        }
        let run = read(directory.path()).unwrap();
        assert_eq!(&run, journal.run());
        assert!(journal.has(1, "c0", "w \"0\"\n") && !journal.has(4, "c0", "w \"0\"\n"));
        let error = Journal::begin(directory.path(), header(2, 1)).unwrap_err().to_string();
        assert!(error.contains("--resume"), "{error}");
    }

    #[test]
    fn a_journal_cut_anywhere_is_resumed_with_its_whole_lines() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(directory.path(), header(2, 1)).unwrap();
        for round in 1..=3 {
            journal.add(sample(round)).unwrap();
        }
        let path = directory.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        let header_bytes = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for cut in header_bytes..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::resume(directory.path(), header(2, 1)).unwrap();
            let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(journal.run().samples.len(), lines - 1, "cut at {cut}");
            journal.add(sample(9)).unwrap();
            assert_eq!(read(directory.path()).unwrap().samples.last().unwrap().round, 9, "cut at {cut}");
        }
    }

    #[test]
    fn a_run_that_goes_on_with_more_rounds_says_how_many_there_are() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(directory.path(), header(2, 1)).unwrap();
        journal.add(sample(1)).unwrap();
        // Torn: the measurement was not over.
        journal.file.write_all(b"{\"round\": 2").unwrap();
        let mut more = header(2, 1);
        more.experiment.rounds += 2;
        let mut journal = Journal::resume(directory.path(), more.clone()).unwrap();
        journal.add(sample(3)).unwrap();
        let run = read(directory.path()).unwrap();
        assert_eq!(run.header, more);
        assert_eq!(run.samples, [sample(1), sample(3)]);
        // Fewer leave what was planned.
        assert_eq!(Journal::resume(directory.path(), header(2, 1)).unwrap().run().header, more);
    }

    #[test]
    fn what_failed_is_measured_again_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(directory.path(), header(2, 1)).unwrap();
        journal.add(sample(2)).unwrap();
        assert!(!journal.has(2, "c0", "w \"0\"\n"));
        let again = Sample { outcome: sample(1).outcome, ..sample(2) };
        journal.add(again.clone()).unwrap();
        assert!(journal.has(2, "c0", "w \"0\"\n"));
        assert_eq!(read(directory.path()).unwrap().samples, [again]);
    }

    #[test]
    fn another_run_is_not_resumed() {
        let directory = tempfile::tempdir().unwrap();
        drop(Journal::begin(directory.path(), header(2, 1)).unwrap());
        let refused = |new: Header| Journal::resume(directory.path(), new).unwrap_err().to_string();
        assert!(refused(Header { quick: true, ..header(2, 1) }).contains("quick"));
        assert!(refused(Header { vringd: "9.9.9".into(), ..header(2, 1) }).contains("9.9.9"));
        assert!(refused(header(3, 1)).contains("experiment"));
        let mut more = header(2, 1);
        more.experiment.rounds += 2;
        assert!(Journal::resume(directory.path(), more).is_ok());
    }

    #[test]
    fn another_form_is_refused_before_it_is_understood() {
        let error = parse("{\"schema\": 99, \"quick\": \"perhaps\"}\n").unwrap_err();
        assert!(format!("{error:#}").contains("form 99"), "{error:#}");
        assert!(parse("").is_err() && parse("{\"schema\": 1").is_err());
    }
}
