//! Results for people.

use super::Outcome;
use super::figures::{FIGURES, Figure, Ratios, Standing};
use crate::environment::Environment;
use crate::table::Sheet;
use crate::words::{NONE, marked, or_none, plural};

/// The tables, one a job, and what failed.
pub(super) fn render(rows: &[Outcome], environment: &Environment, rounds: u32) -> String {
    let mut text = format!(
        "{} on {} processors, Linux {}; medians of {}, ratios of them (~: noise hides which is more)\n",
        environment.file_system,
        environment.processors,
        environment.kernel,
        plural(rounds as usize, "round")
    );
    for group in rows.chunk_by(|one, next| one.title == next.title) {
        let Some(first) = group.first() else { continue };
        text += &format!("\n{}\n{}\n", first.title, sheet(group).text());
    }
    text + &rows.iter().flat_map(faults).collect::<String>()
}

/// Columns of which there is something.
fn sheet(group: &[Outcome]) -> Sheet {
    let is_known = |figure: &&Figure| {
        let mut standings = group.iter().flat_map(|row| &row.results.medians);
        figure.name == "job_s" || standings.any(|standing| standing.figures.contains_key(figure.name))
    };
    let figures: Vec<&Figure> = FIGURES.iter().filter(is_known).collect();
    let mut header = vec!["in flight", ""];
    header.extend(figures.iter().map(|figure| figure.title));
    let rows = group.iter().flat_map(|row| cells(row, &figures)).collect();
    Sheet::new(2, &header, rows)
}

fn cells(row: &Outcome, figures: &[&Figure]) -> Vec<Vec<String>> {
    let results = &row.results;
    let standings = results.medians.iter().map(|standing| {
        let cells = figures.iter().map(|figure| cell(standing, figure));
        std::iter::once(standing.contender.to_owned()).chain(cells).collect::<Vec<String>>()
    });
    let ratios = results.ratios.iter().map(|ratios| {
        let cells = figures.iter().map(|figure| or_none(ratios.figures.get(figure.name), marked));
        std::iter::once(name(ratios)).chain(cells).collect()
    });
    let depths = std::iter::once(row.case.depth.to_string()).chain(std::iter::repeat(String::new()));
    depths.zip(standings.chain(ratios)).map(|(depth, cells)| std::iter::once(depth).chain(cells).collect()).collect()
}

fn name(ratios: &Ratios) -> String {
    format!("{} / {}", ratios.of, ratios.to)
}

fn cell(standing: &Standing, figure: &Figure) -> String {
    let shown = standing.figures.get(figure.name).map(|spread| (figure.show)(spread.median));
    match (figure.name, standing.given_up) {
        ("job_s", given_up @ 1..) => match shown {
            Some(shown) => format!("{shown}, {given_up} given up"),
            None => "given up".into(),
        },
        _ => shown.unwrap_or_else(|| NONE.into()),
    }
}

fn faults(row: &Outcome) -> Vec<String> {
    let unclean = row.results.runs.iter().filter(|run| !run.measured.is_clean());
    unclean
        .flat_map(|run| {
            let faults = run.measured.faults.iter();
            faults.map(|fault| format!("\n{}, {}, round {}: {fault}", row.case, run.contender, run.round))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::case::{Case, Format, Row, Side};
    use crate::backup::figures::tests::run;
    use crate::backup::figures::{Results, Run};

    fn rendered(runs: Vec<Run>) -> String {
        let environment = Environment { kernel: "6.18".into(), processors: 2, file_system: "tmpfs".into() };
        let case = Case { row: Row::Mirror, source: Format::Raw, target: Format::Qcow2, depth: 16 };
        render(&[Outcome { case, title: case.title(), results: Results::of(runs) }], &environment, 1)
    }

    #[test]
    fn each_side_has_a_line_and_so_have_ratios() {
        let text = rendered(vec![run(Side::Vringd, 1, Some(1.0), 800.0), run(Side::Qemu, 1, Some(4.0), 400.0)]);
        let line = |start: &str| text.lines().find(|line| line.contains(start)).unwrap_or_else(|| panic!("{text}"));
        assert!(text.starts_with("tmpfs on 2 processors") && text.contains("mirror of a raw disk to qcow2"), "{text}");
        assert!(line("16  ").contains("vringd") && line("16  ").contains("1.00 s"), "{text}");
        assert!(line("vringd / qemu").contains("~0.25x"), "{text}");
        assert!(!text.contains("durable"), "a mirror is not: {text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn what_was_given_up_and_what_failed_is_shown() {
        let mut bad = run(Side::Qemu, 1, None, 400.0);
        bad.measured.errors = 1;
        bad.measured.faults.push("write at offset 0: I/O error".into());
        let text = rendered(vec![run(Side::Vringd, 1, Some(1.0), 800.0), bad]);
        assert!(text.contains(" given up"), "{text}");
        assert!(text.contains("mirror raw-qcow2 16, qemu, round 1: write at offset 0: I/O error"), "{text}");
    }
}
