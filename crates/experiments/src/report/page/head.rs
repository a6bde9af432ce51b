//! The top of a page: what was run, how and on what.

use crate::experiment::DropCaches;
use crate::record::{Environment, Header};
use crate::report::{Report, words};

/// The warning that figures of quick runs decide nothing.
pub(super) fn quick(reports: &[Report]) -> Option<String> {
    let quick = reports.iter().filter(|report| report.summary.is_quick()).count();
    let which = if quick == reports.len() { "Runs of minutes." } else { "Those marked so are runs of minutes." };
    let why = "Their figures decide nothing: short measurements, few rounds, little data.";
    (quick > 0).then(|| format!("{which} {why}"))
}

/// What the window and the heading say.
pub(super) fn title(reports: &[Report]) -> String {
    match reports {
        [] => "No run".to_owned(),
        [report] => report.summary.experiment().name.clone(),
        reports => format!("{} experiments", reports.len()),
    }
}

/// The machines of the runs, each once, with all that any of its runs used.
pub(super) fn machines<'a>(environments: impl Iterator<Item = &'a Environment>) -> Vec<Environment> {
    let mut machines: Vec<Environment> = Vec::new();
    for environment in environments {
        match machines.iter_mut().find(|machine| is_same(machine, environment)) {
            Some(machine) => {
                join(&mut machine.storage, &environment.storage);
                join(&mut machine.programs, &environment.programs);
                if machine.accelerator.is_empty() {
                    machine.accelerator.clone_from(&environment.accelerator);
                }
            }
            None => machines.push(environment.clone()),
        }
    }
    machines
}

/// Whether two runs had one machine: an accelerator is empty where no guest needed one.
fn is_same(one: &Environment, other: &Environment) -> bool {
    let accelerators = [&one.accelerator, &other.accelerator];
    (&one.kernel, &one.processor, one.processors, one.nodes, one.memory_mib)
        == (&other.kernel, &other.processor, other.processors, other.nodes, other.memory_mib)
        && (accelerators[0] == accelerators[1] || accelerators.iter().any(|it| it.is_empty()))
}

fn join(all: &mut Vec<String>, more: &[String]) {
    for line in more {
        if !all.contains(line) {
            all.push(line.clone());
        }
    }
}

/// How one experiment was run, in a sentence.
pub(super) fn method(header: &Header, rounds: u32) -> String {
    let experiment = &header.experiment;
    let caches = match experiment.drop_caches {
        DropCaches::None => "no caches dropped",
        DropCaches::Guest => "the guest’s caches dropped before each",
        DropCaches::All => "caches of guest and host dropped before each",
    };
    let warm_up =
        if experiment.warm_up_s > 0.0 { format!("{} s of warm-up, ", experiment.warm_up_s) } else { String::new() };
    format!(
        "{} × {}, {rounds} of {} in turns; {} s a measurement, {warm_up}{caches}. Begun {} with vringd {}.",
        words::plural(experiment.configurations.len(), "configuration"),
        words::plural(experiment.workloads.len(), "workload"),
        words::plural(experiment.rounds as usize, "round"),
        experiment.time_s,
        header.begun,
        header.vringd
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_shown_once_with_what_all_its_runs_used() {
        let run = |kernel: &str, program: &str, accelerator: &str| Environment {
            kernel: kernel.into(),
            programs: vec!["vringd".into(), program.into()],
            accelerator: accelerator.into(),
            ..Environment::default()
        };
        let runs =
            [run("6.18", "fio", ""), run("6.18", "qemu", "tcg"), run("7.0", "fio", ""), run("6.18", "fio", "kvm")];
        let machines = machines(runs.iter());
        let shown: Vec<_> =
            machines.iter().map(|it| (it.kernel.as_str(), it.programs.join(" "), it.accelerator.as_str())).collect();
        let expected = [
            ("6.18", "vringd fio qemu".to_owned(), "tcg"),
            ("7.0", "vringd fio".to_owned(), ""),
            ("6.18", "vringd fio".to_owned(), "kvm"),
        ];
        assert_eq!(shown, expected);
    }
}
