//! What is said of a measurement while a run goes on.

use bench::progress::Progress;

use crate::record::{Outcome, Sample};

/// Says how a measurement ended. What went well is in the tables at the end; what did not is said at once.
pub(super) fn end(progress: &Progress, sample: &Sample) {
    let (number, round) = (progress.number(), sample.round);
    let what = format!("{number}: round {round}: {}, {}", sample.configuration, sample.workload);
    match &sample.outcome {
        Outcome::Measured(figures) => {
            progress.end_quietly(&format!("{what}: {:.0} IOPS, {:.1} MiB/s", figures.iops, figures.kib_per_s / 1024.0));
        }
        Outcome::Failed { reason } => progress.end(&format!("{what}: failed: {reason}")),
        Outcome::Unsupported { reason } => progress.end(&format!("{what}: not possible: {reason}")),
    }
}
