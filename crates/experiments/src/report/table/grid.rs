//! Cells laid out: which are rows, which are columns, and what happens when they are too many for the terminal.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::super::curves::Curves;
use super::super::summary::{Cell, Summary};
use super::NONE;

/// More configurations than this, and more than workloads, are rows.
const COLUMNS_MAX: usize = 8;

/// Tables of text, each with a heading of its own.
pub(super) struct Grid(Vec<Sheet>);

/// One table before it is known how much of it fits side by side.
pub(in crate::report) struct Sheet {
    /// What all its cells have in common; empty where nothing.
    title: String,
    /// How many columns name a row.
    names: usize,
    header: Vec<String>,
    /// Each begins with its names.
    rows: Vec<Vec<String>>,
}

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
    Sheet { title: workload.to_owned(), names: 1, header, rows }
}

impl Sheet {
    /// What `text` says of each row and column.
    fn of(corner: &str, rows: &[&str], columns: &[&str], mut text: impl FnMut(&str, &str) -> String) -> Self {
        let mut header = vec![corner.to_owned()];
        header.extend(columns.iter().map(|&column| column.to_owned()));
        let row = |row: &&str| {
            let mut cells = vec![(*row).to_owned()];
            cells.extend(columns.iter().map(|column| text(row, column)));
            cells
        };
        Self { title: String::new(), names: 1, header, rows: rows.iter().map(row).collect() }
    }

    /// A sheet of its own, whose rows begin with `names` columns of names.
    pub(in crate::report) fn new(names: usize, header: &[&str], rows: Vec<Vec<String>>) -> Self {
        let header = header.iter().map(|&column| column.to_owned()).collect();
        Self { title: String::new(), names, header, rows }
    }

    /// It as tables of at most `width` columns of text below each other, all of them below `title`.
    pub(in crate::report) fn render(self, title: &str, width: usize) -> String {
        format!("{title}\n{}", self.fit(width).join("\n\n"))
    }

    /// It as tables of at most `width` columns of text, or of one column of figures where that is wider yet.
    fn fit(self, width: usize) -> Vec<String> {
        let text = self.text();
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        let figures = self.header.len().saturating_sub(self.names);
        if widest <= width || figures < 2 {
            return vec![text];
        }
        let at = self.names + figures.div_ceil(2);
        let (left, right) = self.split(at);
        [left, right].into_iter().flat_map(|half| half.fit(width)).collect()
    }

    /// Its columns up to `at` and those from there on, both with the names of the rows.
    fn split(self, at: usize) -> (Self, Self) {
        let names = self.names;
        let halves = |row: Vec<String>| {
            let right: Vec<String> = row.iter().take(names).chain(row.iter().skip(at)).cloned().collect();
            let left: Vec<String> = row.into_iter().take(at).collect();
            (left, right)
        };
        let (left_header, right_header) = halves(self.header);
        let (left, right) = self.rows.into_iter().map(halves).unzip();
        (
            Self { title: self.title.clone(), names, header: left_header, rows: left },
            Self { title: self.title, names, header: right_header, rows: right },
        )
    }

    /// It in the house's style: no lines, names to the left, figures to the right, no blanks at the ends of lines.
    fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(&self.header).add_rows(&self.rows);
        for column in table.column_iter_mut() {
            let side = if column.index < self.names { CellAlignment::Left } else { CellAlignment::Right };
            column.set_cell_alignment(side);
            column.set_padding((0, 2));
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }
}
