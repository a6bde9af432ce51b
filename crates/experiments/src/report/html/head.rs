//! The top of a page: what was run, when and on what.

use maud::{Markup, html};

use crate::experiment::DropCaches;
use crate::record::{Environment, Header};
use crate::report::Report;

use super::number;

/// The page's heading, with a list of what is in it.
pub(super) fn head(reports: &[Report]) -> Markup {
    let quick = reports.iter().filter(|report| report.summary.is_quick()).count();
    html! {
        header {
            h1 { (title(reports)) }
            @if let [report] = reports { p class="lead" { (report.summary.experiment().title) } }
            @if quick > 0 {
                p class="quick" role="note" {
                    strong { "QUICK" } " "
                    @if quick == reports.len() { "Runs of minutes." } @else { "Those marked so are runs of minutes." }
                    " Their figures decide nothing: short measurements, few rounds, little data."
                }
            }
            @if reports.len() > 1 { (contents(reports)) }
            @for machine in machines(reports.iter().map(|report| &report.summary.header.environment)) { (show(&machine)) }
        }
    }
}

/// What the window and the heading say.
pub(super) fn title(reports: &[Report]) -> String {
    match reports {
        [] => "No run".to_owned(),
        [report] => report.summary.experiment().name.clone(),
        reports => format!("{} experiments", reports.len()),
    }
}

fn contents(reports: &[Report]) -> Markup {
    html! {
        nav aria-label="Experiments" {
            div class="scroll" {
                table {
                    thead {
                        tr {
                            th scope="col" { "Experiment" }
                            th scope="col" class="text" { "Published direction here" }
                            th scope="col" class="text" { "Begun" }
                        }
                    }
                    tbody {
                        @for (at, report) in reports.iter().enumerate() {
                            @let summary = &report.summary;
                            tr {
                                th scope="row" {
                                    a href=(format!("#x{at}")) { (summary.experiment().name) }
                                    " " span class="about" { (summary.experiment().title) }
                                }
                                td class="text" { (super::section::verdict(summary)) }
                                td class="text" { (summary.header.begun) @if summary.is_quick() { " " span class="badge" { "QUICK" } } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The machines of the runs, each once, with all that any of its runs used.
fn machines<'a>(environments: impl Iterator<Item = &'a Environment>) -> Vec<Environment> {
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

fn show(environment: &Environment) -> Markup {
    let memory = format!("{} MiB", number::grouped(environment.memory_mib));
    let processors = format!("{} × {}", environment.processors, environment.processor);
    let nodes =
        if environment.nodes == 1 { "one NUMA node".to_owned() } else { format!("{} NUMA nodes", environment.nodes) };
    html! {
        table class="machine" {
            caption { "Machine" }
            tbody {
                tr { th scope="row" { "Processor" } td { (processors) ", " (nodes) } }
                tr { th scope="row" { "Memory" } td { (memory) } }
                tr { th scope="row" { "Kernel" } td { (environment.kernel) } }
                @if !environment.storage.is_empty() { tr { th scope="row" { "Storage" } td { (lines(&environment.storage)) } } }
                @if !environment.programs.is_empty() { tr { th scope="row" { "Programs" } td { (lines(&environment.programs)) } } }
                @if !environment.accelerator.is_empty() {
                    tr { th scope="row" { "QEMU guests" } td { (environment.accelerator) } }
                }
            }
        }
    }
}

fn lines(lines: &[String]) -> Markup {
    html! { ul { @for line in lines { li { (line) } } } }
}

/// How one experiment was run, in a sentence.
pub(super) fn method(header: &Header, rounds: u32) -> Markup {
    let experiment = &header.experiment;
    let caches = match experiment.drop_caches {
        DropCaches::None => "no caches dropped",
        DropCaches::Guest => "the guest’s caches dropped before each",
        DropCaches::All => "caches of guest and host dropped before each",
    };
    let of = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    html! {
        p class="meta" {
            (of(experiment.configurations.len(), "configuration")) " × " (of(experiment.workloads.len(), "workload")) ", "
            (rounds) " of " (of(usize::try_from(experiment.rounds).unwrap_or(usize::MAX), "round")) " in turns; "
            (number::figure(experiment.time_s)) " s a measurement, "
            @if experiment.warm_up_s > 0.0 { (number::figure(experiment.warm_up_s)) " s of warm-up, " }
            (caches) ". Begun " (header.begun) " with vringd " (header.vringd) "."
        }
    }
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
