//! The shipped experiments.

use super::*;

#[test]
fn every_shipped_experiment_reads() {
    let names: Vec<String> = shipped::all().unwrap().into_iter().map(|experiment| experiment.name).collect();
    assert_eq!(names, shipped::names().collect::<Vec<_>>());
}
