//! Footnotes of the page: why a figure is missing.

use serde::Serialize;

use crate::report::notes::{Note, Notes};
use crate::report::summary::{Cell, State};

/// A note as the page shows it.
#[derive(Serialize)]
pub(super) struct Told {
    text: String,
    about: String,
}

/// What is to be said of a cell.
pub(super) fn reasons(cell: &Cell) -> Vec<String> {
    match &cell.state {
        State::Failed { reason } => vec![format!("Failed: {reason}")],
        State::Unsupported { reason } => vec![format!("Unsupported: {reason}")],
        State::Missing => vec!["Not run: there is no sample of it.".to_owned()],
        State::Measured => {
            cell.failures.iter().map(|failure| format!("Some rounds failed: {}", failure.reason)).collect()
        }
    }
}

/// All notes in their order: what, and whom it is about, of so many workloads.
pub(super) fn told(notes: &Notes, workloads: usize) -> Vec<Told> {
    notes.list().iter().map(|note| Told { text: note.text.clone(), about: about(note, workloads) }).collect()
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
