use super::*;
use crate::experiment::shipped;
use crate::report::compare::Changes;
use crate::report::table;

#[test]
fn every_shipped_experiment_can_be_reported_in_full_quick_and_empty() {
    for experiment in shipped::all().unwrap() {
        let name = experiment.name.clone();
        let quick = experiment.quick();
        let full = report(run(experiment.clone(), |configuration, workload, round| {
            measured(1_000.0 * (1.0 + workload.len() as f64) * noise(configuration, round))
        }));
        let text = table::render(&full.summary, 120);
        for workload in &experiment.workloads {
            assert!(text.contains(&workload.name), "{name}: {} is in no table", workload.name);
        }
        for configuration in &experiment.configurations {
            assert!(text.contains(&configuration.name), "{name}: {} is in no table", configuration.name);
        }
        let has_published = experiment.published.as_ref().is_some_and(|published| !published.figures.is_empty());
        assert_eq!(full.summary.tally.total() > 0, has_published, "{name}: {:?}", full.summary.tally);
        assert!(!full.reading.is_empty(), "{name} says nothing");

        let once = |_: &str, _: &str, round| if round == 1 { measured(1_000.0) } else { None };
        let mut once = run(quick, once);
        once.header.quick = true;
        let once = report(once);
        assert!(once.summary.cells.iter().filter_map(|cell| cell.ratio).all(|ratio| ratio.is_hidden()), "{name}");
        assert_eq!(once.summary.tally.disagree, 0, "{name}: a quick run disagrees");
        Changes::of(std::slice::from_ref(&full), &[once]).render();

        let empty = report(run(experiment, |_, _, _| None));
        assert!(table::render(&empty.summary, 80).contains(&name));
    }
}
