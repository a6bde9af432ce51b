//! Why figures are missing: each reason once, with a number.

use std::collections::BTreeMap;

use super::summary::{Cell, Summary};

/// The reasons of a summary, in the order of its cells.
pub(super) struct Notes {
    notes: Vec<Note>,
    /// Numbers of notes, from 1, by configuration and workload.
    of: BTreeMap<(String, String), Vec<usize>>,
}

pub(super) struct Note {
    pub(super) text: String,
    /// Pairs it is about, configurations with their workloads.
    pub(super) about: BTreeMap<String, Vec<String>>,
}

impl Notes {
    /// Collects what `reasons` says of each cell.
    pub(super) fn of(summary: &Summary, reasons: impl Fn(&Cell) -> Vec<String>) -> Self {
        let mut notes = Self { notes: Vec::new(), of: BTreeMap::new() };
        for cell in &summary.cells {
            for reason in reasons(cell) {
                notes.add(cell, reason);
            }
        }
        notes
    }

    fn add(&mut self, cell: &Cell, text: String) {
        let place = self.notes.iter().position(|note| note.text == text).unwrap_or(self.notes.len());
        if place == self.notes.len() {
            self.notes.push(Note { text, about: BTreeMap::new() });
        }
        let numbers = self.of.entry((cell.configuration.clone(), cell.workload.clone())).or_default();
        if numbers.contains(&(place + 1)) {
            return;
        }
        numbers.push(place + 1);
        let about = &mut self.notes[place].about;
        about.entry(cell.configuration.clone()).or_default().push(cell.workload.clone());
    }

    /// Numbers of the notes on a cell.
    pub(super) fn numbers(&self, cell: &Cell) -> &[usize] {
        self.of.get(&(cell.configuration.clone(), cell.workload.clone())).map_or(&[], Vec::as_slice)
    }

    /// All notes in their order.
    pub(super) fn list(&self) -> &[Note] {
        &self.notes
    }
}
