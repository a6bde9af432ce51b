//! Footnotes: why a figure is missing, each reason once.

use std::collections::BTreeMap;

use maud::{Markup, html};

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

    /// References to the notes on a cell, raised.
    pub(super) fn links(&self, id: &str, cell: &Cell) -> Markup {
        let numbers = self.numbers(cell);
        html! {
            @if !numbers.is_empty() {
                sup { @for number in &numbers { a href=(format!("#{id}-note-{number}")) { "[" (number) "]" } } }
            }
        }
    }

    /// The list of all notes.
    pub(super) fn list(&self, id: &str, workloads: usize) -> Markup {
        html! {
            @if !self.notes.is_empty() {
                h3 { "Notes" }
                ol class="notes" {
                    @for (at, note) in self.notes.iter().enumerate() {
                        li id=(format!("{id}-note-{}", at + 1)) {
                            (note.text) " "
                            span class="about" { "(" (about(note, workloads)) ")" }
                        }
                    }
                }
            }
        }
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
