use super::*;
use crate::report::curves::Curves;
use crate::report::summary::{Agreement, Measure, State, Summary};

#[test]
fn every_pair_has_a_cell_with_its_state() {
    let summary = Summary::of(&full());
    assert_eq!(summary.cells.len(), 12);
    assert_eq!((summary.rounds, summary.measure), (3, Measure::Iops));
    let state = |configuration| summary.cell(configuration, "read").unwrap().state.clone();
    assert_eq!(state("one"), State::Measured);
    assert_eq!(state("broken"), State::Failed { reason: "the server ended: no space".into() });
    assert_eq!(state("absent"), State::Unsupported { reason: "ninepd was not found".into() });
    let flaky = summary.cell("flaky", "read").unwrap();
    assert_eq!((flaky.state.clone(), flaky.failures.len(), flaky.failures[0].round), (State::Measured, 1, 2));
    assert_eq!(flaky.figures.as_ref().unwrap().iops.rounds, 2);
    assert_eq!(summary.cell("broken", "read").unwrap().shown(Measure::Iops), Some(0.0));
    assert_eq!(summary.cell("two", "sideways"), None);
}

#[test]
fn figures_are_medians_over_rounds() {
    let rates = [100.0, 400.0, 200.0];
    let run = run(plain(&["one"], &["read"]), |_, _, round| measured(rates[round as usize - 1]));
    let summary = Summary::of(&run);
    let figures = summary.cells[0].figures.as_ref().unwrap();
    assert_eq!((figures.iops.median, figures.iops.min, figures.iops.max), (200.0, 100.0, 400.0));
    assert_eq!(figures.kib_per_s.median, 800.0);
    assert_eq!(figures.latency.p99_us.median, 15_000.0);
    assert_eq!(figures.requests_per_server_cpu_s.unwrap().median, 400.0);
    assert_eq!(figures.requests_per_cpu_s.unwrap().median, 250.0);
}

#[test]
fn processor_time_that_is_not_known_gives_no_efficiency() {
    let run = run(plain(&["one"], &["read"]), |_, _, _| {
        let Some(Outcome::Measured(figures)) = measured(100.0) else { unreachable!() };
        Some(Outcome::Measured(Figures { server_cpu_s: None, guest_cpu_s: Some(0.0), ..figures }))
    });
    let summary = Summary::of(&run);
    let figures = summary.cells[0].figures.as_ref().unwrap();
    assert_eq!((figures.requests_per_server_cpu_s, figures.requests_per_cpu_s), (None, None));
}

#[test]
fn ratios_are_told_from_noise_or_hidden() {
    let summary = Summary::of(&full());
    let ratio = |configuration, workload| summary.cell(configuration, workload).unwrap().ratio;
    let (faster, slower) = (ratio("two", "read").unwrap(), ratio("two", "write").unwrap());
    assert!((faster.value - 2.0).abs() < 0.05 && !faster.is_hidden(), "{faster:?}");
    assert!((slower.value - 0.5).abs() < 0.02 && !slower.is_hidden(), "{slower:?}");
    assert!(ratio("same", "read").unwrap().is_hidden());
    assert_eq!(ratio("one", "read"), None, "a baseline is not compared with itself");
    assert_eq!(ratio("broken", "read"), None);
    let two = summary.standing("two").unwrap();
    assert_eq!((two.compared, two.faster, two.slower, two.hidden), (2, 1, 1, 0));
    assert!((two.mean.unwrap().value - 1.0).abs() < 0.02, "twice and half: {two:?}");
    assert_eq!((summary.standing("broken").unwrap().failed, summary.standing("absent").unwrap().unsupported), (2, 2));
    // Of equal processor time, twice the requests and half the requests.
    assert!((two.per_cpu.unwrap() - 1.0).abs() < 0.02);
}

#[test]
fn one_round_tells_nothing_apart() {
    let mut once = full();
    once.samples.retain(|sample| sample.round == 1);
    let summary = Summary::of(&once);
    assert!(summary.cells.iter().filter_map(|cell| cell.ratio).all(|ratio| ratio.is_hidden()));
    assert_eq!(summary.tally.agree, 1, "only what is supported on neither side");
    assert_eq!(summary.tally.disagree, 0);
}

#[test]
fn published_figures_stand_beside_ours() {
    let summary = Summary::of(&full());
    let comparison =
        |configuration, workload| summary.cell(configuration, workload).unwrap().published.clone().unwrap();
    assert_eq!(comparison("two", "read").theirs, Some(1.8));
    assert_eq!(comparison("two", "read").agreement, Some(Agreement::Agree));
    assert_eq!(comparison("two", "write").theirs, Some(2.0));
    assert_eq!(comparison("two", "write").agreement, Some(Agreement::Disagree));
    assert_eq!(comparison("same", "read").agreement, Some(Agreement::Agree), "no difference there and here");
    assert_eq!(comparison("absent", "read").agreement, Some(Agreement::Agree), "supported neither there nor here");
    assert_eq!(comparison("one", "read").agreement, None, "the baseline is 1 on both sides");
    assert!(summary.cell("same", "write").unwrap().published.is_none());
    assert_eq!((summary.tally.agree, summary.tally.disagree, summary.tally.cannot_tell), (3, 1, 0));
    let two = summary.standing("two").unwrap();
    assert!((two.published.unwrap() - 3.6f64.sqrt()).abs() < 1e-9, "{two:?}");
}

#[test]
fn two_of_ours_beside_one_of_theirs_are_no_published_comparison() {
    let mut run = full();
    for figure in &mut run.header.experiment.published.as_mut().unwrap().figures {
        if figure.configuration == "same" {
            figure.their_configuration = "their one".into();
        }
    }
    let summary = Summary::of(&run);
    let comparison = summary.cell("same", "read").unwrap().published.clone().unwrap();
    assert_eq!((comparison.theirs, comparison.agreement), (None, None));
    assert_eq!((summary.tally.agree, summary.standing("same").unwrap().published), (2, None));
}

#[test]
fn a_quick_run_decides_nothing() {
    let mut quick = full();
    quick.header.quick = true;
    let summary = Summary::of(&quick);
    assert_eq!((summary.tally.agree, summary.tally.disagree), (1, 0));
    assert_eq!(summary.standing("two").unwrap().agreement, Some(Agreement::CannotTell));
}

#[test]
fn a_sample_that_was_taken_again_replaces_the_first_and_strangers_are_left_out() {
    let mut run = full();
    let mut again = run.samples[0].clone();
    again.outcome = measured(1.0).unwrap();
    run.samples.push(again);
    run.samples.push(Sample { configuration: "stranger".into(), ..run.samples[0].clone() });
    let summary = Summary::of(&run);
    assert_eq!(summary.cell("one", "read").unwrap().figures.as_ref().unwrap().iops.min, 1.0);
    assert_eq!(summary.cells.len(), 12);
}

#[test]
fn a_table_has_its_own_baseline_and_leaders() {
    let mut experiment = plain(&["slow disk", "slow disk, two", "fast disk", "fast disk, two"], &["read"]);
    experiment.configurations[2].baseline = Some("fast disk".into());
    experiment.configurations[3].baseline = Some("fast disk".into());
    let run = run(experiment, |configuration, _, round| {
        let rate = if configuration.starts_with("fast") { 100_000.0 } else { 1_000.0 };
        measured(rate * noise(configuration, round) * if configuration.ends_with("two") { 3.0 } else { 1.0 })
    });
    let summary = Summary::of(&run);
    assert_eq!(summary.baselines(), ["slow disk", "fast disk"]);
    assert!(summary.is_baseline("fast disk") && !summary.is_baseline("fast disk, two"));
    let ratio = summary.cell("fast disk, two", "read").unwrap().ratio.unwrap().value;
    assert!((ratio - 3.0).abs() < 0.1, "to its own baseline: {ratio}");
    let leaders: Vec<(&str, &str)> =
        summary.leaders.iter().map(|leader| (leader.configuration.as_str(), leader.runner_up.as_str())).collect();
    assert_eq!(leaders, [("slow disk, two", "slow disk"), ("fast disk, two", "fast disk")]);
}

#[test]
fn configurations_along_a_numeric_axis_are_curves() {
    let names: Vec<(String, String, String)> = ["1", "2", "4", "16"]
        .iter()
        .flat_map(|jobs| {
            ["1", "2"].map(|workers| (format!("vringd q{jobs} w{workers}"), (*jobs).to_owned(), workers.to_owned()))
        })
        .collect();
    let labels: Vec<[(&str, &str); 2]> =
        names.iter().map(|(_, jobs, workers)| [("jobs", jobs.as_str()), ("workers", workers.as_str())]).collect();
    let mut configurations: Vec<(&str, &[(&str, &str)])> = vec![("host", &[])];
    configurations.extend(names.iter().zip(&labels).map(|((name, _, _), labels)| (name.as_str(), &labels[..])));
    let curves = Curves::of(&experiment(&configurations, &["read"])).unwrap();
    assert_eq!((curves.axis.as_str(), curves.values.join(" ")), ("jobs", "1 2 4 16".to_owned()));
    assert_eq!(curves.others, ["host"]);
    let series: Vec<&str> = curves.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(series, ["vringd q… w1", "vringd q… w2"]);
    let second = &curves.series[1].configurations;
    assert_eq!(second[2].as_deref(), Some("vringd q4 w2"));
    assert!(curves.series.iter().all(|series| series.configurations.iter().all(Option::is_some)));
}

#[test]
fn words_and_short_axes_are_no_curves() {
    assert_eq!(Curves::of(&experiment(&[("a", &[("x", "1")]), ("b", &[("x", "2")])], &["read"])), None);
    let words = [("a", &[("x", "1")][..]), ("b", &[("x", "2")]), ("c", &[("x", "inline")])];
    assert_eq!(Curves::of(&experiment(&words, &["read"])), None);
}
