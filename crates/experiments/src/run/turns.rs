//! Puts configurations and workloads in turns and writes down what comes of each.
//!
//! Nothing that goes wrong in one measurement ends the run: a stand that breaks is put away and raised again for its next turn,
//! one that cannot be raised at all says why in its column.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use bench::progress::Progress;

use crate::experiment::{Configuration, Experiment, Workload};
use crate::record::{Figures, Outcome, Sample};
use crate::run::journal::Journal;
use crate::run::plan;
use crate::run::progress;
use crate::stand::{Trouble, one_line};

/// How often a configuration may fail to be raised in one round before its other workloads are not tried.
const RAISES_MAX: u32 = 2;

/// Makes configurations ready.
pub(crate) trait Stage {
    /// Makes one ready.
    fn raise(&mut self, configuration: &Configuration) -> Result<Box<dyn Standing>, Trouble>;
}

/// A configuration made ready.
pub(crate) trait Standing {
    /// Measures a workload on it.
    fn measure(&mut self, workload: &Workload) -> Result<Figures, Trouble>;
    /// Whether it can measure another one.
    fn is_alive(&mut self) -> bool;
    /// Puts it away.
    fn end(self: Box<Self>) -> Result<()>;
}

/// Everything that measuring takes.
pub(crate) struct Turns<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) stage: &'a mut dyn Stage,
    pub(crate) journal: &'a mut Journal,
    pub(crate) progress: &'a Progress,
    /// Set when the person wants it to stop; it then stops after the measurement under way.
    pub(crate) stop: &'a AtomicBool,
    /// What guests may take together, in MiB.
    pub(crate) memory_mib: u64,
    /// Configurations that turned out not to be possible here, and why: tried once a run.
    pub(crate) impossible: BTreeMap<usize, String>,
}

/// The stands of one group in one round.
#[derive(Default)]
struct Up {
    stands: BTreeMap<usize, Box<dyn Standing>>,
    /// How often one could not be raised, and why the last time.
    refusals: BTreeMap<usize, (u32, String)>,
}

impl Turns<'_> {
    /// Measures all that the journal does not have yet. Returns whether it came to the end.
    pub(crate) fn take(&mut self) -> Result<bool> {
        self.write_off_what_is_unsupported()?;
        for round in 1..=self.experiment.rounds {
            for group in plan::groups(self.experiment, self.memory_mib) {
                let mut up = Up::default();
                let ended = self.take_round(round, &group, &mut up);
                for stand in std::mem::take(&mut up.stands).into_values() {
                    self.put_away(stand);
                }
                if !ended? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn take_round(&mut self, round: u32, group: &plan::Group, up: &mut Up) -> Result<bool> {
        let experiment = self.experiment;
        for (turn, workload) in experiment.workloads.iter().enumerate() {
            for index in plan::turns(experiment, group, round, turn) {
                let configuration = &experiment.configurations[index];
                if self.journal.has(round, &configuration.name, &workload.name) {
                    continue;
                }
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                self.progress.begin(&format!("round {round}: {}, {}", configuration.name, workload.name), None);
                let outcome = self.measure(index, &workload.for_configuration(configuration), up);
                // What a person broke off has not failed: it is measured when the run is resumed.
                if self.stop.load(Ordering::Relaxed) && matches!(outcome, Outcome::Failed { .. }) {
                    return Ok(false);
                }
                self.write_down(round, configuration, workload, outcome)?;
            }
        }
        Ok(true)
    }

    fn measure(&mut self, index: usize, workload: &Workload, up: &mut Up) -> Outcome {
        let configuration = &self.experiment.configurations[index];
        let mut stand = match up.stands.remove(&index) {
            Some(stand) => stand,
            None => match self.raise(index, up) {
                Ok(stand) => stand,
                Err(outcome) => return outcome,
            },
        };
        let outcome = match stand.measure(workload) {
            Ok(figures) => Outcome::Measured(figures),
            Err(trouble) => Outcome::from(trouble),
        };
        if !plan::is_fleeting(configuration) && stand.is_alive() {
            up.stands.insert(index, stand);
        } else {
            self.put_away(stand);
        }
        outcome
    }

    fn raise(&mut self, index: usize, up: &mut Up) -> Result<Box<dyn Standing>, Outcome> {
        if let Some(reason) = self.impossible.get(&index) {
            return Err(Outcome::Unsupported { reason: reason.clone() });
        }
        if let Some((RAISES_MAX, reason)) = up.refusals.get(&index) {
            return Err(Outcome::Failed { reason: reason.clone() });
        }
        self.stage.raise(&self.experiment.configurations[index]).map_err(|trouble| {
            let outcome = Outcome::from(trouble);
            match &outcome {
                Outcome::Failed { reason } => {
                    let earlier = up.refusals.get(&index).map_or(0, |(times, _)| *times);
                    up.refusals.insert(index, (earlier + 1, reason.clone()));
                }
                Outcome::Unsupported { reason } => {
                    self.impossible.insert(index, reason.clone());
                }
                Outcome::Measured(_) => {}
            }
            outcome
        })
    }

    fn put_away(&self, stand: Box<dyn Standing>) {
        if let Err(error) = stand.end() {
            self.progress.say(&format!("putting away: {}", one_line(&format!("{error:#}"))));
        }
    }

    /// What cannot be run is known before anything is started.
    fn write_off_what_is_unsupported(&mut self) -> Result<()> {
        for configuration in &self.experiment.configurations {
            let Some(reason) = &configuration.unsupported else { continue };
            for round in 1..=self.experiment.rounds {
                for workload in &self.experiment.workloads {
                    if !self.journal.has(round, &configuration.name, &workload.name) {
                        let outcome = Outcome::Unsupported { reason: reason.clone() };
                        self.write_down(round, configuration, workload, outcome)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn write_down(
        &mut self,
        round: u32,
        configuration: &Configuration,
        workload: &Workload,
        outcome: Outcome,
    ) -> Result<()> {
        let sample =
            Sample { round, configuration: configuration.name.clone(), workload: workload.name.clone(), outcome };
        progress::end(self.progress, &sample);
        self.journal.add(sample)
    }
}

impl From<Trouble> for Outcome {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Unsupported(reason) => Self::Unsupported { reason: one_line(&reason) },
            Trouble::Failed(reason) => Self::Failed { reason: one_line(&reason) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::experiment::Place;
    use crate::record::Run;
    use crate::run::samples::header;

    /// What happened, in order, and what is to happen.
    #[derive(Default)]
    struct Script {
        log: Vec<String>,
        refuse: BTreeMap<String, Trouble>,
        /// (configuration, workload) -> whether the stand survives the failure.
        fail: BTreeMap<(String, String), bool>,
        stop_after: Option<usize>,
        stop: Rc<AtomicBool>,
    }

    struct FakeStage(Rc<RefCell<Script>>);
    struct FakeStand {
        name: String,
        alive: bool,
        script: Rc<RefCell<Script>>,
    }

    impl Stage for FakeStage {
        fn raise(&mut self, configuration: &Configuration) -> Result<Box<dyn Standing>, Trouble> {
            let mut script = self.0.borrow_mut();
            script.log.push(format!("raise {}", configuration.name));
            match script.refuse.get(&configuration.name) {
                Some(Trouble::Failed(reason)) => Err(Trouble::Failed(reason.clone())),
                Some(Trouble::Unsupported(reason)) => Err(Trouble::Unsupported(reason.clone())),
                None => Ok(Box::new(FakeStand {
                    name: configuration.name.clone(),
                    alive: true,
                    script: Rc::clone(&self.0),
                })),
            }
        }
    }

    impl Standing for FakeStand {
        fn measure(&mut self, workload: &Workload) -> Result<Figures, Trouble> {
            let mut script = self.script.borrow_mut();
            script.log.push(format!("{} {}", self.name, workload.name));
            let measured = script.log.iter().filter(|line| !line.starts_with(['r', 'e'])).count();
            if script.stop_after == Some(measured) {
                script.stop.store(true, Ordering::Relaxed);
            }
            match script.fail.get(&(self.name.clone(), workload.name.clone())) {
                Some(survives) => {
                    self.alive = *survives;
                    Err(Trouble::Failed("the server\n\n  died".into()))
                }
                None => Ok(Figures { iops: 1.0, ..Figures::default() }),
            }
        }

        fn is_alive(&mut self) -> bool {
            self.alive
        }

        fn end(self: Box<Self>) -> Result<()> {
            self.script.borrow_mut().log.push(format!("end {}", self.name));
            Ok(())
        }
    }

    struct Played {
        log: Vec<String>,
        run: Run,
        complete: bool,
    }

    fn play(directory: &std::path::Path, place: Place, change: impl FnOnce(&mut Script)) -> Played {
        let mut header = header(2, 3);
        for configuration in &mut header.experiment.configurations {
            configuration.place = place;
        }
        let experiment = header.experiment.clone();
        let script = Rc::new(RefCell::new(Script::default()));
        change(&mut script.borrow_mut());
        let stop = Rc::clone(&script.borrow().stop);
        let mut journal = Journal::resume(directory, header).unwrap();
        let mut turns = Turns {
            experiment: &experiment,
            stage: &mut FakeStage(Rc::clone(&script)),
            journal: &mut journal,
            progress: &Progress::silent(),
            stop: &stop,
            memory_mib: 1 << 20,
            impossible: BTreeMap::new(),
        };
        let complete = turns.take().unwrap();
        let log = script.borrow().log.clone();
        // Whatever happened, nothing that was raised is left.
        let raised = log.iter().filter(|line| line.starts_with("raise")).count();
        let ended = log.iter().filter(|line| line.starts_with("end")).count();
        let refused = script.borrow().refuse.keys().map(|name| format!("raise {name}")).collect::<Vec<_>>();
        let refusals = log.iter().filter(|line| refused.contains(line)).count();
        assert_eq!(raised - refusals, ended, "{log:?}");
        Played { log, run: journal.run().clone(), complete }
    }

    fn failed(run: &Run) -> Vec<(u32, &str, &str)> {
        run.samples
            .iter()
            .filter(|sample| matches!(sample.outcome, Outcome::Failed { .. }))
            .map(|sample| (sample.round, sample.configuration.as_str(), sample.workload.as_str()))
            .collect()
    }

    #[test]
    fn guests_stay_up_for_a_round_and_configurations_take_turns() {
        let directory = tempfile::tempdir().unwrap();
        let played = play(directory.path(), Place::Uml, |_| {});
        assert!(played.complete);
        let first_round =
            ["raise c0", "c0 w0", "raise c1", "c1 w0", "c1 w1", "c0 w1", "c0 w2", "c1 w2", "end c0", "end c1"];
        assert_eq!(played.log[..10], first_round);
        assert_eq!(played.log.len(), 20);
        assert_eq!(played.run.samples.len(), 12);
    }

    #[test]
    fn without_a_guest_every_measurement_has_a_fresh_server() {
        let directory = tempfile::tempdir().unwrap();
        let played = play(directory.path(), Place::Frontend, |_| {});
        assert_eq!(played.log[..6], ["raise c0", "c0 w0", "end c0", "raise c1", "c1 w0", "end c1"]);
        assert_eq!(played.run.samples.len(), 12);
    }

    #[test]
    fn a_stand_that_breaks_is_raised_again_and_the_rest_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let played = play(directory.path(), Place::Uml, |script| {
            script.fail.insert(("c0".into(), "w1".into()), false);
            script.fail.insert(("c1".into(), "w1".into()), true);
        });
        assert!(played.complete);
        assert_eq!(failed(&played.run), [(1, "c1", "w1"), (1, "c0", "w1"), (2, "c0", "w1"), (2, "c1", "w1")]);
        assert_eq!(played.log.iter().filter(|line| *line == "raise c0").count(), 4);
        assert_eq!(played.log.iter().filter(|line| *line == "raise c1").count(), 2);
        let reason = played.run.samples.iter().find_map(|sample| match &sample.outcome {
            Outcome::Failed { reason } => Some(reason.as_str()),
            _ => None,
        });
        assert_eq!(reason, Some("the server; died"));
    }

    #[test]
    fn what_does_not_start_is_tried_twice_a_round_and_what_cannot_once() {
        let directory = tempfile::tempdir().unwrap();
        let played = play(directory.path(), Place::Uml, |script| {
            script.refuse.insert("c0".into(), Trouble::Failed("no".into()));
            script.refuse.insert("c1".into(), Trouble::Unsupported("never".into()));
        });
        assert!(played.complete);
        assert_eq!(played.log.iter().filter(|line| *line == "raise c0").count(), 4);
        assert_eq!(played.log.iter().filter(|line| *line == "raise c1").count(), 1);
        assert_eq!(failed(&played.run).len(), 6);
        let unsupported = |sample: &&Sample| matches!(sample.outcome, Outcome::Unsupported { .. });
        assert_eq!(played.run.samples.iter().filter(unsupported).count(), 6);
    }

    #[test]
    fn a_run_that_was_stopped_anywhere_is_resumed_to_the_same_end() {
        for stop_after in 1..12 {
            let directory = tempfile::tempdir().unwrap();
            let first = play(directory.path(), Place::Uml, |script| script.stop_after = Some(stop_after));
            assert!(!first.complete || stop_after == 12);
            assert_eq!(first.run.samples.len(), stop_after);
            let second = play(directory.path(), Place::Uml, |_| {});
            assert!(second.complete);
            let mut keys: Vec<_> = second
                .run
                .samples
                .iter()
                .map(|sample| (sample.round, sample.configuration.clone(), sample.workload.clone()))
                .collect();
            keys.sort();
            keys.dedup();
            assert_eq!((keys.len(), second.run.samples.len()), (12, 12), "stopped after {stop_after}");
        }
    }
}
