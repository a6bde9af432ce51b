//! What can be wrong with an experiment's file: one line that names the file, the table, the field and the fix.

use std::fmt;

use displaydoc::Display;
use thiserror::Error;

use super::expand::Wrong;

/// Why an experiment cannot be had. Each is one line for people.
#[derive(Debug, Display, Error)]
pub enum ReadError {
    /// {name}: no shipped experiment has this name ({shipped}), and there is no such file
    Unknown {
        /// What was asked for.
        name: String,
        /// The names of those that are shipped.
        shipped: String,
    },
    /// {file}: cannot be read: {error}
    Unreadable {
        /// Path of the file.
        file: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// {file}, line {line}: {message}
    Syntax {
        /// Path of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What the parser of TOML says.
        message: String,
    },
    /// {file}: {refusal}
    Wrong {
        /// Path of the file.
        file: String,
        /// What in it cannot be run.
        refusal: Box<Refusal>,
    },
}

/// {at}{field}: {problem}
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub struct Refusal {
    /// Which table.
    pub at: At,
    /// Which field of the table, with dots between the parts.
    pub field: String,
    /// What is wrong, and what would be right.
    pub problem: Problem,
}

impl At {
    /// That `problem` is in `field` of this table.
    pub(super) fn refuse(self, (field, problem): Wrong) -> Box<Refusal> {
        Box::new(Refusal { at: self, field, problem })
    }
}

/// A table of an experiment's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The top of the file.
    Top,
    /// One of its single tables.
    Table(&'static str),
    /// An entry of `configurations` or `workloads`.
    Entry {
        /// Which list.
        list: &'static str,
        /// Its number in the file, from 1.
        number: usize,
        /// Its name, with its axes filled in where that has been done; empty if it has none.
        name: String,
    },
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Top => Ok(()),
            At::Table(name) => write!(f, "[{name}] "),
            At::Entry { list, number, name } if name.is_empty() => write!(f, "[[{list}]] {number}: "),
            At::Entry { list, number, name } => write!(f, "[[{list}]] {number} ({name}): "),
        }
    }
}

/// What is wrong with a field, and what would be right.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub enum Problem {
    /// {0}
    Malformed(String),
    /// is missing: add it, here or in [defaults.{0}]
    MissingIn(&'static str),
    /// is empty: {0}
    Empty(&'static str),
    /// there is none: add a [[{0}]]
    NoEntries(&'static str),
    /// {value} is out of range: choose {range}
    OutOfRange {
        /// What was given.
        value: String,
        /// What is sane, with the unit.
        range: &'static str,
    },
    /// {0:?} cannot be a name: use up to 64 letters, digits and the signs - _ . = +
    BadName(String),
    /// {0}: two published figures are compared with this: map one of them to []
    TwoFigures(String),
    /// {0:?} is there twice: names are unique, so put every axis into the name
    Twice(String),
    /// there is no {kind} {name:?}: name one of {known}
    NotThere {
        /// Configuration, workload, axis.
        kind: &'static str,
        /// What was named.
        name: String,
        /// What there is.
        known: String,
    },
    /// {{{name}}} stands for nothing: use one of {known}
    UnknownPlaceholder {
        /// The placeholder.
        name: String,
        /// What there is.
        known: String,
    },
    /// {{{0}}} is a configuration's: it works in a workload's fio and frontend options only
    ForeignPlaceholder(String),
    /// a brace is not closed: write {{axis}} or {{axis.key}}
    OpenBrace,
    /// an axis is a list of values, each a text, a number, or a table with a name: {0}
    BadAxis(&'static str),
    /// has {0} entries when its axes are multiplied: choose fewer values, {1} at most
    TooMany(usize, usize),
    /// a label cannot have the name of an axis: rename one of them
    LabelIsAxis,
    /// {0}
    CannotBe(&'static str),
    /// {option}: {fix}
    Option {
        /// The option.
        option: String,
        /// Why not, and what instead.
        fix: &'static str,
    },
    /// configuration {configuration:?} runs {place}, and this has no {options} options: add some
    NoLoad {
        /// The configuration.
        configuration: String,
        /// Where it runs, for people.
        place: &'static str,
        /// `fio` or `frontend`.
        options: &'static str,
    },
    /// configuration {configuration:?} has {has} files and this needs {needs}: raise data.files or lower files
    TooFewFiles {
        /// The configuration.
        configuration: String,
        /// How many it has.
        has: u32,
        /// How many are needed.
        needs: u32,
    },
    /// is compared with {0:?}, which is unsupported: choose one that runs
    BaselineUnsupported(String),
    /// {0:?} is not in a quick run: let the axes of a quick run keep it
    NotInQuick(String),
    /// leaves nothing of {0}: name more values
    QuickIsEmpty(&'static str),
    /// {file}: {error}
    Figures {
        /// The file of figures.
        file: String,
        /// What is wrong with it.
        error: String,
    },
    /// configuration {configuration:?} has a figure for {workload:?} and its baseline {baseline:?} has none: add it, or leave this out
    NoBaselineFigure {
        /// Ours.
        configuration: String,
        /// The workload.
        workload: String,
        /// What it is compared with.
        baseline: String,
    },
}
