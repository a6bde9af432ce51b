//! Progress on standard error: on a terminal a bar with the time left, elsewhere a line a measurement.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::experiment::{Configuration, Workload};
use crate::record::{Outcome, Sample};

/// Enough to watch, too seldom to be heard in what is measured.
const REDRAWS_PER_S: u8 = 2;

/// Shows how far a run is.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    measurements: u64,
    done: std::cell::Cell<u64>,
}

impl Progress {
    /// For `measurements`, of which `done` were made before.
    pub(crate) fn new(measurements: u64, done: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = terminal.then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_S);
            let bar = ProgressBar::with_draw_target(Some(measurements), target).with_position(done);
            bar.reset_eta();
            bar.with_style(style())
        });
        Self { bar, lines: !terminal, measurements, done: std::cell::Cell::new(done) }
    }

    /// Shows nothing.
    #[cfg(test)]
    pub(crate) fn silent() -> Self {
        Self { bar: None, lines: false, measurements: 0, done: std::cell::Cell::new(0) }
    }

    /// A measurement begins.
    pub(crate) fn begin(&self, round: u32, configuration: &Configuration, workload: &Workload) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("round {round}: {}, {}", configuration.name, workload.name));
        }
    }

    /// A measurement has ended.
    pub(crate) fn end(&self, sample: &Sample) {
        self.done.set(self.done.get() + 1);
        let line = line(sample);
        if let Some(bar) = &self.bar {
            bar.inc(1);
            // What went well is in the tables at the end; what did not is said at once.
            if !matches!(sample.outcome, Outcome::Measured(_)) {
                bar.println(line);
            }
        } else if self.lines {
            eprintln!("{}/{}: {line}", self.done.get(), self.measurements);
        }
    }

    /// Says a line without disturbing the bar.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if self.lines => eprintln!("{text}"),
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(sample: &Sample) -> String {
    let what = format!("round {}: {}, {}", sample.round, sample.configuration, sample.workload);
    match &sample.outcome {
        Outcome::Measured(figures) => {
            format!("{what}: {:.0} IOPS, {:.1} MiB/s", figures.iops, figures.kib_per_s / 1024.0)
        }
        Outcome::Failed { reason } => format!("{what}: failed: {reason}"),
        Outcome::Unsupported { reason } => format!("{what}: not possible: {reason}"),
    }
}

fn style() -> ProgressStyle {
    let template = "{bar:24} {pos}/{len}, {eta} left  {wide_msg}";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
