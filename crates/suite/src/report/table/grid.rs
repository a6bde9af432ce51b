//! Cells laid out: which are rows, which are columns, and what happens when they are too many for the terminal.

use super::super::curves::Curves;
use super::super::summary::{Cell, Summary};
use super::{NONE, table, trimmed};

/// More configurations than this, and more than workloads, are rows.
const COLUMNS_MAX: usize = 8;

/// Tables of text, each with a heading of its own.
pub(super) struct Grid(Vec<Sheet>);

struct Sheet {
    /// What all its cells have in common; empty where nothing.
    title: String,
    header: Vec<String>,
    /// Each begins with its name.
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
        let configurations: Vec<&str> = experiment.configurations.iter().map(|c| c.name.as_str()).collect();
        let workloads: Vec<&str> = experiment.workloads.iter().map(|w| w.name.as_str()).collect();
        let many = configurations.len() > COLUMNS_MAX && configurations.len() > workloads.len();
        let sheet = if many {
            Sheet::of("configuration", &configurations, &workloads, |row, column| text(row, column))
        } else {
            Sheet::of("workload", &workloads, &configurations, |row, column| text(column, row))
        };
        Self(vec![sheet])
    }

    /// The tables below their titles; sheets wider than `width` are several tables.
    pub(super) fn render(self, title: &str, width: usize) -> Vec<String> {
        let mut tables = Vec::new();
        for sheet in self.0 {
            let title = if sheet.title.is_empty() { title.to_owned() } else { format!("{title}, {}", sheet.title) };
            tables.extend(sheet.fit(width).into_iter().map(|text| format!("{title}\n{text}")));
        }
        tables
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
    Sheet { title: workload.to_owned(), header, rows }
}

impl Sheet {
    fn of(corner: &str, rows: &[&str], columns: &[&str], mut text: impl FnMut(&str, &str) -> String) -> Self {
        let mut header = vec![corner.to_owned()];
        header.extend(columns.iter().map(|&column| column.to_owned()));
        let row = |row: &&str| {
            let mut cells = vec![(*row).to_owned()];
            cells.extend(columns.iter().map(|column| text(row, column)));
            cells
        };
        Self { title: String::new(), header, rows: rows.iter().map(row).collect() }
    }

    /// It as tables of at most `width` columns of text, or of one column of figures where that is wider yet.
    fn fit(self, width: usize) -> Vec<String> {
        let mut whole = table(&self.header);
        whole.add_rows(&self.rows);
        let text = trimmed(&whole);
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        let columns = self.header.len() - 1;
        if widest <= width || columns < 2 {
            return vec![text];
        }
        let (left, right) = self.split(columns / 2 + 1);
        [left, right].into_iter().flat_map(|half| half.fit(width)).collect()
    }

    /// Its columns up to `at` and those from there on, both with the names of the rows.
    fn split(self, at: usize) -> (Self, Self) {
        let halves = |row: Vec<String>| {
            let right: Vec<String> = row.iter().take(1).chain(row.iter().skip(at)).cloned().collect();
            let left: Vec<String> = row.into_iter().take(at).collect();
            (left, right)
        };
        let (left_header, right_header) = halves(self.header);
        let (left, right) = self.rows.into_iter().map(halves).unzip();
        (
            Self { title: self.title.clone(), header: left_header, rows: left },
            Self { title: self.title, header: right_header, rows: right },
        )
    }
}
