use super::*;
use crate::experiment::ServerKind;
use crate::report::table;

/// The lines of the table below the first title that begins with `title`.
fn below<'a>(text: &'a str, title: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    lines.take_while(|line| !line.is_empty()).collect()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn render(run: Run, width: usize) -> String {
    table::render(&report(run).summary, width)
}

#[test]
fn rows_are_workloads_and_columns_configurations() {
    let text = render(full(), 120);
    let figures = below(&text, "IOPS: median (spread)");
    assert_eq!(words(figures[0]), ["workload", "one", "two", "same", "broken", "absent", "flaky"]);
    assert_eq!(words(figures[1])[..5], ["read", "10.0k", "(1%)", "20.1k", "(2%)"]);
    assert_eq!(words(figures[1])[7..], ["0", "[1]", "0", "[2]", "9920", "(0%)", "[3]"]);
    let ratios = below(&text, "IOPS as a ratio to one");
    assert_eq!(words(ratios[2]), ["write", "1", "0.50x", "~1.00x", "-", "-", "~0.99x"]);
}

#[test]
fn what_shows_0_says_why() {
    let text = render(full(), 120);
    assert!(text.contains("\n[1] broken: the server ended: no space\n[2] absent: ninepd was not found\n"), "{text}");
    assert!(text.contains("\n[3] flaky: the guest did not answer within 9 s\n"), "{text}");
}

#[test]
fn published_figures_have_a_verdict() {
    let text = render(full(), 120);
    let published = below(&text, "published (a table) beside ours");
    assert_eq!(words(published[1]), ["read", "two", "their", "two", "1.80x", "2.01x", "(1.94..2.07)", "agree"]);
    assert_eq!(words(published[3]), ["read", "absent", "their", "absent", "0", "0", "agree"]);
    assert_eq!(words(published[4]).last(), Some(&"disagree"));
    assert_eq!(published.len(), 5, "the baseline is not compared with itself");
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [40, 60, 80, 100] {
        let mut run = full();
        run.header.experiment.published = None;
        let text = render(run, width);
        // Titles and notes are sentences, which a terminal breaks well enough.
        let firsts = ["read", "write", "workload", "one", "two", "NAME"];
        let mut rows = text.lines().filter(|line| words(line).first().is_some_and(|first| firsts.contains(first)));
        assert!(rows.all(|line| line.chars().count() <= width), "{width}:\n{text}");
    }
    let narrow = render(full(), 40);
    let columns: Vec<&str> = narrow.lines().filter(|line| line.starts_with("workload")).collect();
    assert!(columns.len() > 2, "{narrow}");
    for name in ["one", "two", "same", "broken", "absent", "flaky"] {
        assert!(columns.iter().any(|header| words(header).contains(&name)), "{name} is lost:\n{narrow}");
    }
}

#[test]
fn a_numeric_axis_makes_columns() {
    let text = render(workers(), 120);
    let figures = below(&text, "IOPS: median (spread), batch-1");
    assert_eq!(words(figures[0]), ["jobs", "1", "2", "4", "16"]);
    assert_eq!(words(figures[1])[0], "one-…");
    assert_eq!(words(figures[2])[..2], ["per-queue-…", "10.0k"]);
    assert_eq!(below(&text, "IOPS as a ratio to one-1 (~: noise hides which is faster), batch-16").len(), 3);
}

#[test]
fn what_has_no_value_on_the_axis_stands_apart() {
    let mut run = workers();
    run.header.experiment.configurations[0].labels.clear();
    let text = render(run, 120);
    let figures = below(&text, "IOPS: median (spread), batch-1");
    assert_eq!(words(figures[0]), ["jobs", "1", "2", "4", "16", "no", "jobs"]);
    assert_eq!(words(figures[1]), ["one-1", "10.0k", "(1%)"]);
    assert_eq!(words(figures[3])[..2], ["one-…", "-"]);
}

#[test]
fn many_configurations_and_few_workloads_change_places() {
    let names: Vec<String> = (0..9).map(|number| format!("number {number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let text = render(run(plain(&names, &["read", "write"]), |_, _, round| measured(f64::from(round))), 120);
    let figures = below(&text, "IOPS: median (spread)");
    assert_eq!(words(figures[0]), ["configuration", "read", "write"]);
    assert_eq!(figures.len(), 10);
}

#[test]
fn tables_with_baselines_of_their_own_are_apart() {
    let mut experiment = plain(&["disk-a", "disk-b", "lun-a", "lun-b"], &["read"]);
    for configuration in &mut experiment.configurations[2..] {
        configuration.baseline = Some("lun-a".into());
    }
    let text = render(run(experiment, |name, _, round| measured(1000.0 * noise(name, round))), 120);
    let lun = below(&text, "IOPS: median (spread), compared with lun-a");
    assert_eq!(words(lun[0]), ["workload", "lun-a", "lun-b"]);
    assert!(text.contains("as a ratio to each table's baseline: disk-a and lun-a"), "{text}");
}

#[test]
fn every_pair_has_a_line_with_its_processor_time() {
    let mut run = full();
    run.header.experiment.published = None;
    run.header.experiment.configurations[0].server.kind = ServerKind::VringdDir;
    let text = render(run, 120);
    let list = below(&text, "every pair (medians)");
    assert_eq!(words(list[0])[..4], ["NAME", "WORKLOAD", "Bandwidth", "IOPS"]);
    assert!(list[0].contains("server CPU s") && list[0].contains("guest CPU s"), "{}", list[0]);
    assert_eq!(words(list[2])[..5], ["two", "read", "78.5", "MiB/s", "20.1k"]);
    assert_eq!(words(list[4]), ["broken", "read", "0", "(KiB/s)"]);
}

#[test]
fn every_table_of_a_quick_run_says_so() {
    let mut quick = full();
    quick.header.quick = true;
    let text = render(quick, 120);
    let titles: Vec<&str> = text.split("\n\n").map(|part| part.lines().next().unwrap()).collect();
    let (notes, tables): (Vec<&str>, Vec<&str>) = titles.iter().partition(|title| title.starts_with("[1]"));
    assert_eq!((notes.len(), tables.len()), (1, 6));
    assert!(tables.iter().all(|title| title.starts_with("QUICK ")), "{tables:?}");
    assert!(!render(full(), 120).contains("QUICK"));
}
