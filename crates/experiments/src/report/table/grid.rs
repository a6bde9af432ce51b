//! Cells laid out: which are rows, which are columns, and what happens when they are too many for the terminal.

use bench::table::Sheet;
use bench::words::NONE;

use super::super::curves::Curves;
use super::super::summary::{Cell, Summary};

/// More configurations than this, and more than workloads, are rows.
const COLUMNS_MAX: usize = 8;

/// Tables of text, each with a heading of its own.
pub(super) struct Grid(Vec<Sheet>);

impl Grid {
    /// Lays out what `show` makes of each cell.
    pub(super) fn of(summary: &Summary, mut show: impl FnMut(&Cell) -> String) -> Self {
        let mut text = |configuration: &str, workload: &str| {
            summary.cell(configuration, workload).map_or_else(|| NONE.to_owned(), &mut show)
        };
        let experiment = summary.experiment();
        if let Some(curves) = Curves::of(experiment) {
            let sheets = experiment.workloads.iter().map(|workload| curve_sheet(&curves, &workload.name, &mut text));
            return Self(sheets.collect());
        }
        let baselines = summary.baselines();
        let workloads: Vec<&str> = experiment.workloads.iter().map(|w| w.name.as_str()).collect();
        let sheet = |baseline: &&str| {
            let table = summary.standings.iter().filter(|standing| standing.baseline == *baseline);
            let configurations: Vec<&str> = table.map(|standing| standing.configuration.as_str()).collect();
            let many = configurations.len() > COLUMNS_MAX && configurations.len() > workloads.len();
            let mut sheet = if many {
                Sheet::of("configuration", &configurations, &workloads, |row, column| text(row, column))
            } else {
                Sheet::of("workload", &workloads, &configurations, |row, column| text(column, row))
            };
            if baselines.len() > 1 {
                sheet.title = format!("compared with {baseline}");
            }
            sheet
        };
        Self(baselines.iter().map(sheet).collect())
    }

    /// The tables below their titles; sheets wider than `width` are several tables.
    pub(super) fn render(self, title: &str, width: usize) -> Vec<String> {
        let render = |sheet: Sheet| {
            let title = if sheet.title.is_empty() { title.to_owned() } else { format!("{title}, {}", sheet.title) };
            sheet.render(&title, width)
        };
        self.0.into_iter().map(render).collect()
    }
}

/// One workload along the axis: a row is a curve.
fn curve_sheet(curves: &Curves, workload: &str, text: &mut impl FnMut(&str, &str) -> String) -> Sheet {
    let mut header = vec![curves.axis.clone()];
    header.extend(curves.values.iter().cloned());
    // What has no value on the axis, such as the host without a server, stands in a column of its own.
    let apart = !curves.others.is_empty();
    header.extend(apart.then(|| format!("no {}", curves.axis)));
    let mut rows = Vec::new();
    for name in &curves.others {
        let mut row = vec![name.clone()];
        row.extend(curves.values.iter().map(|_| String::new()));
        row.push(text(name, workload));
        rows.push(row);
    }
    for series in &curves.series {
        let mut row = vec![series.name.clone()];
        let points = series.configurations.iter();
        row.extend(points.map(|name| name.as_ref().map_or_else(|| NONE.to_owned(), |name| text(name, workload))));
        row.extend(apart.then(String::new));
        rows.push(row);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut sheet = Sheet::new(1, &header, rows);
    workload.clone_into(&mut sheet.title);
    sheet
}
