//! What is compared: jobs, from one format to another, and the two that do them.

use std::fmt;

use serde::Serialize;

/// A job on a disk that a guest writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Row {
    /// A backup, until it is done
    Backup,
    /// A mirror, until it is ready
    Mirror,
    /// A stream of what is behind a qcow2 image into it, until it stands alone
    Stream,
    /// A commit of a qcow2 image into the one behind it, until the guest uses that
    Commit,
}

impl Row {
    /// All rows, in the order in which they are measured and shown.
    pub const ALL: [Row; 4] = [Row::Backup, Row::Mirror, Row::Stream, Row::Commit];

    /// Whether it makes no copy: two images of a chain become one.
    pub(super) fn is_of_chain(self) -> bool {
        matches!(self, Row::Stream | Row::Commit)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Row::Backup => "backup",
            Row::Mirror => "mirror",
            Row::Stream => "stream",
            Row::Commit => "commit",
        })
    }
}

/// What a disk is stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The disk's bytes and nothing else
    Raw,
    /// A qcow2 image without a backing file
    Qcow2,
}

impl Format {
    /// Its name, which everybody's options and protocols share.
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
        }
    }
}

/// A job at a number of requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Case {
    pub(super) row: Row,
    pub(super) source: Format,
    pub(super) target: Format,
    pub(super) depth: u16,
}

impl Case {
    /// The job, without the depth.
    pub(super) fn title(&self) -> String {
        match self.row {
            Row::Backup | Row::Mirror => {
                format!("{} of a {} disk to {}", self.row, self.source.name(), self.target.name())
            }
            Row::Stream => "stream of a full image into an empty one in front of it".to_owned(),
            Row::Commit => "commit of a full image into an empty one behind it".to_owned(),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row.is_of_chain() {
            true => write!(f, "{} {}", self.row, self.depth),
            false => write!(f, "{} {}-{} {}", self.row, self.source.name(), self.target.name(), self.depth),
        }
    }
}

/// Every job of each source to each target at every depth, the depths of a job together. Those of a chain have images of qcow2.
pub(super) fn cases(rows: &[Row], sources: &[Format], targets: &[Format], depths: &[u16]) -> Vec<Case> {
    let chosen = Row::ALL.into_iter().filter(|row| rows.is_empty() || rows.contains(row));
    let of_chain = &[Format::Qcow2][..];
    chosen
        .map(|row| if row.is_of_chain() { (row, of_chain, of_chain) } else { (row, sources, targets) })
        .flat_map(|(row, sources, targets)| sources.iter().map(move |&source| (row, source, targets)))
        .flat_map(|(row, source, targets)| targets.iter().map(move |&target| (row, source, target)))
        .flat_map(|(row, source, target)| depths.iter().map(move |&depth| Case { row, source, target, depth }))
        .collect()
}

/// A server that does the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Vringd,
    Qemu,
}

impl Side {
    /// Ours first: its figures are divided by the other's.
    pub(super) const ALL: [Side; 2] = [Side::Vringd, Side::Qemu];

    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Vringd => "vringd",
            Side::Qemu => "qemu",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_of_a_job_lie_together() {
        let cases = cases(&[], &[Format::Raw], &[Format::Qcow2, Format::Raw], &[1, 16]);
        let names: Vec<String> = cases.iter().map(Case::to_string).collect();
        assert_eq!(names[..3], ["backup raw-qcow2 1", "backup raw-qcow2 16", "backup raw-raw 1"]);
        assert_eq!((names.len(), names[7].as_str(), names[8].as_str()), (12, "mirror raw-raw 16", "stream 1"));
        assert_eq!((names[11].as_str(), cases[11].source), ("commit 16", Format::Qcow2));
        assert_eq!(cases[0].title(), "backup of a raw disk to qcow2");
    }
}
