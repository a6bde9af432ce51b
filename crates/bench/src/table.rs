//! Tables of text: the house's style, and what happens when one is wider than the terminal.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

/// One table before it is known how much of it fits side by side.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// What all its cells have in common; empty where nothing.
    pub title: String,
    /// How many columns name a row.
    names: usize,
    header: Vec<String>,
    /// Each begins with its names.
    rows: Vec<Vec<String>>,
}

impl Sheet {
    /// What `text` says of each row and column.
    pub fn of(corner: &str, rows: &[&str], columns: &[&str], mut text: impl FnMut(&str, &str) -> String) -> Self {
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
    pub fn new(names: usize, header: &[&str], rows: Vec<Vec<String>>) -> Self {
        let header = header.iter().map(|&column| column.to_owned()).collect();
        Self { title: String::new(), names, header, rows }
    }

    /// It as tables of at most `width` columns of text below each other, all of them below `title`.
    pub fn render(self, title: &str, width: usize) -> String {
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
    pub fn text(&self) -> String {
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
