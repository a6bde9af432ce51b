//! The vhost note's tables, the policy against fixed placements, and phases, as text.

mod jobs;
mod phases;
mod placements;
mod together;
mod vhost;

pub use jobs::jobs;
pub use phases::{Phase, phases, table as phases_table};
pub use placements::{Against, against, placements};
pub use together::{together, together_cell};
pub use vhost::{JOBS, PUBLISHED, vhost, vhost_cell};

/// Columns, the first to the left, the others to the right.
fn render(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|it| it.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, it) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - it.chars().count());
            line += &if column == 0 { format!("{it}{pad}") } else { format!("  {pad}{it}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A rate in thousands or millions.
fn rate(rate: f64) -> String {
    if rate >= 1e7 { format!("{:.1}M", rate / 1e6) } else { format!("{:.0}k", rate / 1e3) }
}
