use super::*;

fn reading(run: Run) -> Vec<String> {
    report(run).reading
}

fn says(reading: &[String], sentence: &str) {
    assert!(reading.iter().any(|said| said == sentence), "{sentence:?} is not in {reading:#?}");
}

#[test]
fn who_wins_where_and_by_how_much() {
    let reading = reading(full());
    says(
        &reading,
        "The 4 configurations around one, ranked under each workload (2 rankings): two leads 1 (by 2.01x); noise hides who \
         leads 1.",
    );
    says(
        &reading,
        "two against one, over 2 workloads: faster under 1, most under read (2.01x); slower under 1, most under write (0.50x); \
         geometric mean ~1.00x (0.97..1.03).",
    );
    says(
        &reading,
        "same against one, over 2 workloads: no difference beyond noise under 2; geometric mean ~1.00x (0.98..1.02).",
    );
}

#[test]
fn what_failed_and_what_cannot_be_run() {
    let reading = reading(full());
    says(&reading, "broken failed under 2 workloads: the server ended: no space.");
    says(&reading, "absent cannot be run under 2 workloads: ninepd was not found.");
    says(&reading, "flaky failed in some rounds under 2 workloads: the guest did not answer within 9 s.");
}

#[test]
fn whether_what_was_published_holds() {
    let reading = reading(full());
    says(&reading, "Published: Two are faster than one (a note).");
    says(
        &reading,
        "The directions disagree (geometric means) for two over one: 1.90x there (their two over their one), ~1.00x (0.97..1.03) \
         here.",
    );
    says(
        &reading,
        "The directions agree (geometric means) for same over one: 1.01x there (their same over their one), ~1.00x (0.98..1.02) \
         here.",
    );
    says(&reading, "Of 4 comparisons with published figures, 3 agree, 1 disagree and 0 cannot be told.");
}

#[test]
fn how_curves_go() {
    let reading = reading(workers());
    says(
        &reading,
        "IOPS by jobs under batch-1: one-… 10.0k at 1, most 15.0k at 4, 15.0k at 16; per-queue-… 10.0k at 1, 160k at 16.",
    );
    says(
        &reading,
        "The 8 configurations around one-1, ranked under each workload at each value of jobs (8 rankings): per-queue-… leads 6 \
         (by 1.42x to 10.7x); noise hides who leads 2.",
    );
    // Of many configurations the best and the worst are named, no others.
    let standings = reading.iter().filter(|sentence| sentence.contains(" against one-1, over ")).count();
    assert_eq!(standings, 2, "{reading:#?}");
}

#[test]
fn a_quick_run_of_one_round_claims_nothing() {
    let mut quick = full();
    quick.header.quick = true;
    quick.samples.retain(|sample| sample.round == 1);
    let reading = reading(quick);
    assert_eq!(reading[0], "This was a quick run: its figures decide nothing.");
    assert_eq!(reading[1], "One round says nothing about noise, so that no difference counts.");
    assert!(!reading.iter().any(|sentence| sentence.contains("leads 1 (") || sentence.contains("faster under")));
}

#[test]
fn an_interrupted_run_says_what_is_missing() {
    let mut interrupted = full();
    interrupted.samples.retain(|sample| sample.configuration != "two");
    says(&reading(interrupted), "2 of 12 pairs have no sample.");
    let mut empty = full();
    empty.samples.clear();
    assert!(reading(empty).contains(&"12 of 12 pairs have no sample.".to_owned()));
}
