use super::*;
use crate::report::compare::Changes;

/// `full` with `two` slower by a third on writes.
fn regressed() -> Run {
    let mut run = full();
    run.header.vringd = "0.2.0".into();
    for sample in &mut run.samples {
        if let (("two", "write"), Outcome::Measured(figures)) =
            ((sample.configuration.as_str(), sample.workload.as_str()), &mut sample.outcome)
        {
            figures.iops /= 1.5;
        }
    }
    run
}

#[test]
fn what_got_slower_comes_first() {
    let changes = Changes::of(&[report(full())], &[report(regressed())]);
    let change = &changes.experiments[0];
    let first = &change.pairs[0];
    assert_eq!((first.configuration.as_str(), first.workload.as_str()), ("two", "write"));
    assert!((first.ratio.value - 1.0 / 1.5).abs() < 1e-9 && !first.ratio.is_hidden());
    assert_eq!(change.pairs.len(), 8);
    assert!(change.pairs[1..].iter().all(|pair| pair.ratio.is_hidden()), "equal figures are not told apart");
    assert_eq!(change.differences, ["vringd 0.1.0 -> 0.2.0"]);
    let text = changes.render_within(120);
    assert!(text.contains("Of 8 pairs, 1 slower, 0 faster, 7 not told from before"), "{text}");
    assert!(text.contains("Not the same: vringd 0.1.0 -> 0.2.0."), "{text}");
}

#[test]
fn a_run_against_itself_changes_nothing() {
    let changes = Changes::of(&[report(full())], &[report(full())]);
    let change = &changes.experiments[0];
    assert!(change.differences.is_empty() && change.only_first.is_empty() && change.only_second.is_empty());
    assert!(change.pairs.iter().all(|pair| pair.ratio.value == 1.0 && pair.ratio.is_hidden()));
    assert!((change.mean.unwrap() - 1.0).abs() < 1e-12);
}

#[test]
fn what_only_one_has_is_listed() {
    let mut fewer = full();
    fewer.samples.retain(|sample| sample.configuration != "two");
    let mut other = full();
    other.header.experiment.name = "another".into();
    let changes = Changes::of(&[report(full())], &[report(fewer), report(other)]);
    assert_eq!(changes.experiments[0].only_first, ["two, read", "two, write"]);
    assert_eq!((changes.only_first.len(), changes.only_second.as_slice()), (0, &["another".to_owned()][..]));
    let text = changes.render_within(120);
    assert!(text.contains("Measured only in the first: two, read; two, write."), "{text}");
    assert!(text.contains("Only in the second: another."), "{text}");
}

#[test]
fn quick_runs_are_marked_and_a_changed_experiment_is_said() {
    let mut quick = full();
    quick.header.quick = true;
    quick.header.experiment.time_s = 0.5;
    quick.header.environment.programs = vec!["fio-3.39".into()];
    let changes = Changes::of(&[report(full())], &[report(quick)]);
    assert!(changes.experiments[0].quick);
    let text = changes.render_within(120);
    assert!(text.starts_with("QUICK example"), "{text}");
    assert!(text.contains("programs  -> fio-3.39; one of the two was quick; the experiment's own text"), "{text}");
}
