//! Configurations against each other: ratios to a baseline, leaders, standings, and what was published.

use std::collections::{BTreeMap, BTreeSet};

use super::agreement::agreement;
use super::curves::Curves;
use super::summarize::{Rounds, number, tally};
use super::summary::{Agreement, Cell, CellFigures, Comparison, Leader, Measure, Standing, State};
use crate::experiment::{Configuration, Experiment, Published, PublishedFigure};
use bench::stats::{self, Contrast, Pool, Ratio, Spread};

/// The samples of a run, and what they are compared by.
pub(super) struct Contest<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) rounds: &'a Rounds<'a>,
    pub(super) measure: Measure,
}

impl Contest<'_> {
    /// Fills in the ratios to the baselines.
    pub(super) fn rate(&self, cells: &mut [Cell]) {
        for configuration in &self.experiment.configurations {
            let baseline = self.experiment.baseline_of(configuration);
            if baseline == configuration.name {
                continue;
            }
            let mut ratios = self.ratios(&configuration.name, baseline, cells);
            for cell in cells.iter_mut().filter(|cell| cell.configuration == configuration.name) {
                cell.ratio = ratios.remove(&cell.workload);
            }
        }
    }

    /// The ratios of `part` to `whole`, by workload, where both were measured.
    fn ratios(&self, part: &str, whole: &str, cells: &[Cell]) -> BTreeMap<String, Ratio> {
        let workloads = self.experiment.workloads.iter().map(|workload| workload.name.as_str());
        let contrasts: Vec<(&str, Option<Contrast>)> =
            workloads.map(|workload| (workload, self.contrast(part, whole, workload))).collect();
        let pool = Pool::of(contrasts.iter().filter_map(|(_, contrast)| contrast.as_ref()));
        let ratio = |(workload, contrast): (&str, Option<Contrast>)| {
            let (part, whole) = (self.median(cells, part, workload)?, self.median(cells, whole, workload)?);
            Some((workload.to_owned(), Ratio::of(part, whole, contrast, pool)?))
        };
        contrasts.into_iter().filter_map(ratio).collect()
    }

    fn contrast(&self, part: &str, whole: &str, workload: &str) -> Option<Contrast> {
        let part = self.rounds.values(part, workload, self.measure);
        let whole = self.rounds.values(whole, workload, self.measure);
        Contrast::of_rounds(&part, &whole)
    }

    fn median(&self, cells: &[Cell], configuration: &str, workload: &str) -> Option<f64> {
        Some(self.measure.of_figures(find(cells, configuration, workload)?.figures.as_ref()?).median)
    }

    /// Who leads each table under each workload.
    pub(super) fn leaders(&self, cells: &[Cell]) -> Vec<Leader> {
        // The noise between two configurations is pooled over workloads, whoever leads there.
        let mut known: BTreeMap<(&str, &str), BTreeMap<String, Ratio>> = BTreeMap::new();
        let mut leaders = Vec::new();
        for table in self.tables() {
            for workload in &self.experiment.workloads {
                let first_two = self.first_two(cells, &table.configurations, &workload.name);
                let Some((first, second)) = first_two else { continue };
                let ratios = known.entry((first, second)).or_insert_with(|| self.ratios(first, second, cells));
                leaders.extend(ratios.get(&workload.name).map(|ratio| Leader {
                    baseline: table.baseline.to_owned(),
                    along: table.along.map(str::to_owned),
                    workload: workload.name.clone(),
                    configuration: first.to_owned(),
                    runner_up: second.to_owned(),
                    ratio: *ratio,
                }));
            }
        }
        leaders
    }

    /// Configurations that can sensibly be ranked: those with one baseline and, along curves, one value.
    fn tables(&self) -> Vec<Table<'_>> {
        let axis = Curves::of(self.experiment).map(|curves| curves.axis);
        let mut tables: Vec<Table<'_>> = Vec::new();
        for configuration in &self.experiment.configurations {
            let baseline = self.experiment.baseline_of(configuration);
            let along = axis.as_ref().and_then(|axis| configuration.labels.get(axis)).map(String::as_str);
            match tables.iter_mut().find(|table| table.baseline == baseline && table.along == along) {
                Some(table) => table.configurations.push(&configuration.name),
                None => tables.push(Table { baseline, along, configurations: vec![&configuration.name] }),
            }
        }
        tables
    }

    /// The two configurations with the largest medians under `workload`.
    fn first_two<'n>(&self, cells: &[Cell], configurations: &[&'n str], workload: &str) -> Option<(&'n str, &'n str)> {
        let measured = configurations.iter().filter_map(|&name| Some((name, self.median(cells, name, workload)?)));
        let mut measured: Vec<(&str, f64)> = measured.collect();
        measured.sort_by(|a, b| b.1.total_cmp(&a.1));
        match measured.as_slice() {
            [first, second, ..] => Some((first.0, second.0)),
            _ => None,
        }
    }

    /// Puts the published figures beside ours.
    pub(super) fn compare(&self, quick: bool, cells: &mut [Cell]) {
        let Some(published) = &self.experiment.published else { return };
        for configuration in &self.experiment.configurations {
            let name = &configuration.name;
            let Some(baseline) = self.experiment.published_baseline_of(configuration) else { continue };
            let is_baseline = baseline == name;
            let ours = if is_baseline { BTreeMap::new() } else { self.ratios(name, baseline, cells) };
            for cell in cells.iter_mut().filter(|cell| cell.configuration == *name) {
                let Some(figure) = figure(published, name, &cell.workload) else { continue };
                cell.published = Some(if is_baseline {
                    Comparison { figure: figure.clone(), theirs: None, ours: None, agreement: None }
                } else {
                    let base = self::figure(published, baseline, &cell.workload);
                    comparison(figure, base, ours.get(&cell.workload), &cell.state, quick)
                });
            }
        }
    }

    pub(super) fn standing(&self, configuration: &Configuration, quick: bool, cells: &[Cell]) -> Standing {
        let name = &configuration.name;
        let baseline = self.experiment.baseline_of(configuration);
        let own: Vec<&Cell> = cells.iter().filter(|cell| cell.configuration == *name).collect();
        let count = |is: &dyn Fn(&Cell) -> bool| number(own.iter().filter(|cell| is(cell)).count());
        let told = |cell: &Cell| cell.ratio.filter(|ratio| !ratio.is_hidden()).map(|ratio| ratio.value > 1.0);
        let ratios: Vec<(&str, f64)> =
            own.iter().filter_map(|cell| Some((cell.workload.as_str(), cell.ratio?.value))).collect();
        let (theirs, ours): (Vec<f64>, Vec<(&str, f64)>) = own
            .iter()
            .filter_map(|cell| {
                let comparison = cell.published.as_ref().filter(|comparison| comparison.agreement.is_some())?;
                Some((comparison.theirs?, (cell.workload.as_str(), comparison.ours?.value)))
            })
            .unzip();
        let published = stats::geometric_mean(theirs);
        let published_baseline = self.experiment.published_baseline_of(configuration).unwrap_or(baseline);
        let published_ours = self.mean(name, published_baseline, &ours);
        let agreement = published.zip(published_ours).map(|(theirs, ours)| judge(theirs, &ours, quick));
        Standing {
            configuration: name.clone(),
            baseline: baseline.to_owned(),
            mean: self.mean(name, baseline, &ratios),
            compared: number(ratios.len()),
            faster: count(&|cell| told(cell) == Some(true)),
            slower: count(&|cell| told(cell) == Some(false)),
            hidden: count(&|cell| cell.ratio.is_some_and(|ratio| ratio.is_hidden())),
            failed: count(&|cell| matches!(cell.state, State::Failed { .. })),
            unsupported: count(&|cell| matches!(cell.state, State::Unsupported { .. })),
            per_server_cpu: cpu_mean(&own, cells, baseline, |figures| figures.requests_per_server_cpu_s.as_ref()),
            per_cpu: cpu_mean(&own, cells, baseline, |figures| figures.requests_per_cpu_s.as_ref()),
            published,
            published_ours,
            agreement,
            tally: tally(own.iter().copied()),
        }
    }

    /// The geometric mean of `ratios`, by workload, of `part` to `whole`. Its interval comes from the means of each round: what
    /// touches all workloads of a round alike does not average out over them.
    fn mean(&self, part: &str, whole: &str, ratios: &[(&str, f64)]) -> Option<Ratio> {
        let value = stats::geometric_mean(ratios.iter().map(|(_, ratio)| *ratio))?;
        let logs: Vec<BTreeMap<u32, f64>> =
            ratios.iter().map(|(workload, _)| self.logs(part, whole, workload)).collect();
        let rounds: BTreeSet<u32> = logs.iter().flat_map(|logs| logs.keys().copied()).collect();
        // A workload that is missing in a round would make that round's mean another quantity.
        let complete: Vec<&BTreeMap<u32, f64>> = logs.iter().filter(|logs| logs.len() == rounds.len()).collect();
        let of_round = |round: &u32| {
            let sum: f64 = complete.iter().filter_map(|logs| logs.get(round)).sum();
            sum / complete.len() as f64
        };
        let means: Vec<f64> = if complete.is_empty() { Vec::new() } else { rounds.iter().map(of_round).collect() };
        Ratio::of(value, 1.0, Contrast::of_logs(&means), Pool::default())
    }

    /// Logarithms of the ratios of `part` to `whole` under `workload`, by round.
    fn logs(&self, part: &str, whole: &str, workload: &str) -> BTreeMap<u32, f64> {
        let whole = self.rounds.values(whole, workload, self.measure);
        let part = self.rounds.values(part, workload, self.measure);
        let log = |round: u32, part: f64| Some((part / whole.get(&round)?).ln()).filter(|log| log.is_finite());
        part.into_iter().filter_map(|(round, part)| Some((round, log(round, part)?))).collect()
    }
}

/// What can be ranked.
struct Table<'a> {
    baseline: &'a str,
    along: Option<&'a str>,
    configurations: Vec<&'a str>,
}

/// A published figure beside ours.
fn comparison(
    figure: &PublishedFigure,
    base: Option<&PublishedFigure>,
    ours: Option<&Ratio>,
    state: &State,
    quick: bool,
) -> Comparison {
    // Two of ours that stand beside one of theirs: nobody published how those compare.
    let is_one = base.is_some_and(|base| base.their_configuration == figure.their_configuration);
    let base = base.map(|base| base.value).filter(|base| *base > 0.0);
    let theirs = base.filter(|_| figure.value > 0.0 && !is_one).map(|base| figure.value / base);
    let agreement = match (theirs, ours) {
        // Not supported there, and not here.
        (None, None) if figure.value == 0.0 && matches!(state, State::Unsupported { .. }) => Agreement::Agree,
        (Some(theirs), Some(ours)) => judge(theirs, ours, quick),
        _ => Agreement::CannotTell,
    };
    Comparison { figure: figure.clone(), theirs, ours: ours.copied(), agreement: (!is_one).then_some(agreement) }
}

fn judge(theirs: f64, ours: &Ratio, quick: bool) -> Agreement {
    if quick { Agreement::CannotTell } else { agreement(theirs, ours) }
}

/// The geometric mean of ratios of `of` to that of `baseline`; `None` for the baseline itself.
fn cpu_mean(own: &[&Cell], cells: &[Cell], baseline: &str, of: fn(&CellFigures) -> Option<&Spread>) -> Option<f64> {
    let of_cell = |cell: &Cell| Some(of(cell.figures.as_ref()?)?.median);
    let others = own.iter().filter(|cell| cell.configuration != baseline);
    let ratios = others.filter_map(|cell| Some(of_cell(cell)? / of_cell(find(cells, baseline, &cell.workload)?)?));
    stats::geometric_mean(ratios)
}

fn find<'a>(cells: &'a [Cell], configuration: &str, workload: &str) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.configuration == configuration && cell.workload == workload)
}

fn figure<'a>(published: &'a Published, configuration: &str, workload: &str) -> Option<&'a PublishedFigure> {
    published.figures.iter().find(|figure| figure.configuration == configuration && figure.workload == workload)
}
