//! Footnotes: why a figure is missing, each reason once.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::summary::{Cell, State, Summary};

/// The footnotes of one experiment.
pub(super) struct Notes {
    notes: Vec<Note>,
    /// Places of notes by configuration and workload.
    of: BTreeMap<(String, String), Vec<usize>>,
}

struct Note {
    text: String,
    /// Pairs it is about, configurations with their workloads.
    about: BTreeMap<String, Vec<String>>,
}

/// A note as the page shows it.
#[derive(Serialize)]
pub(super) struct Told {
    text: String,
    about: String,
}

impl Notes {
    /// Collects the reasons of every cell.
    pub(super) fn of(summary: &Summary) -> Self {
        let mut notes = Self { notes: Vec::new(), of: BTreeMap::new() };
        for cell in &summary.cells {
            match &cell.state {
                State::Failed { reason } => notes.add(cell, &format!("Failed: {reason}")),
                State::Unsupported { reason } => notes.add(cell, &format!("Unsupported: {reason}")),
                State::Missing => notes.add(cell, "Not run: there is no sample of it."),
                State::Measured => {
                    for failure in &cell.failures {
                        notes.add(cell, &format!("Some rounds failed: {}", failure.reason));
                    }
                }
            }
        }
        notes
    }

    fn add(&mut self, cell: &Cell, text: &str) {
        let known = self.notes.iter().position(|note| note.text == text);
        let place = known.unwrap_or(self.notes.len());
        if known.is_none() {
            self.notes.push(Note { text: text.to_owned(), about: BTreeMap::new() });
        }
        let numbers = self.of.entry((cell.configuration.clone(), cell.workload.clone())).or_default();
        if numbers.contains(&place) {
            return;
        }
        numbers.push(place);
        if let Some(note) = self.notes.get_mut(place) {
            note.about.entry(cell.configuration.clone()).or_default().push(cell.workload.clone());
        }
    }

    /// Numbers of the notes on a cell, from 1.
    pub(super) fn numbers(&self, cell: &Cell) -> Vec<usize> {
        let key = (cell.configuration.clone(), cell.workload.clone());
        self.of.get(&key).into_iter().flatten().map(|place| place + 1).collect()
    }

    /// All notes in their order: what, and whom it is about.
    pub(super) fn list(&self, workloads: usize) -> Vec<Told> {
        self.notes.iter().map(|note| Told { text: note.text.clone(), about: about(note, workloads) }).collect()
    }
}

/// Whom a note is about, as briefly as that can be said.
fn about(note: &Note, workloads: usize) -> String {
    const NAMED: usize = 3;
    let parts = note.about.iter().map(|(configuration, pairs)| {
        if pairs.len() == workloads && workloads > 1 {
            format!("{configuration}: all workloads")
        } else if pairs.len() <= NAMED {
            format!("{configuration}: {}", pairs.join(", "))
        } else {
            let named = pairs.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            format!("{configuration}: {named} and {} more", pairs.len() - NAMED)
        }
    });
    parts.collect::<Vec<_>>().join("; ")
}
