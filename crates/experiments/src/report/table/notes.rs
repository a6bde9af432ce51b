//! Why something shows 0: numbered, once each, below the tables.

use std::collections::BTreeSet;

use super::super::summary::Cell;
use super::super::words;

/// The reasons so far.
#[derive(Default)]
pub(super) struct Notes(Vec<Note>);

struct Note {
    reason: String,
    configurations: BTreeSet<String>,
}

impl Notes {
    /// The mark of `reason`, as it stands in a cell.
    pub(super) fn mark(&mut self, configuration: &str, reason: &str) -> String {
        let known = self.0.iter().position(|note| note.reason == reason);
        let known = known.unwrap_or_else(|| {
            self.0.push(Note { reason: reason.to_owned(), configurations: BTreeSet::new() });
            self.0.len() - 1
        });
        if let Some(note) = self.0.get_mut(known) {
            note.configurations.insert(configuration.to_owned());
        }
        format!("[{}]", known + 1)
    }

    /// The marks of rounds that failed beside others that were measured, with a blank before each.
    pub(super) fn of_failures(&mut self, cell: &Cell) -> String {
        let marks: BTreeSet<String> =
            cell.failures.iter().map(|failure| self.mark(&cell.configuration, &failure.reason)).collect();
        marks.into_iter().map(|mark| format!(" {mark}")).collect()
    }

    pub(super) fn render(&self) -> Option<String> {
        let lines = self.0.iter().enumerate().map(|(at, note)| {
            let configurations: Vec<&str> = note.configurations.iter().map(String::as_str).collect();
            format!("[{}] {}: {}", at + 1, words::list(&configurations), note.reason)
        });
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}
