//! Progress: a bar on a terminal, a line when something ends elsewhere. Always on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::parse;

/// Shows how far a benchmark is.
#[derive(Debug)]
pub(crate) struct Progress {
    bars: Option<Bars>,
    lines: bool,
}

#[derive(Debug)]
struct Bars {
    multi: MultiProgress,
    overall: ProgressBar,
    run: ProgressBar,
}

impl Progress {
    /// For `runs` runs; `quiet` shows nothing at all.
    pub(crate) fn new(runs: u64, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { bars: (terminal && !quiet).then(|| Bars::new(runs)), lines: !terminal && !quiet && runs > 1 }
    }

    /// A run of about `length` begins.
    pub(crate) fn begin(&self, name: &str, length: Option<Duration>) {
        if let Some(bars) = &self.bars {
            bars.run.reset();
            bars.run.set_length(length.map_or(0, milliseconds));
            bars.run.set_message(name.to_owned());
        }
    }

    /// The run has lasted `elapsed`; `figures` say how it goes.
    pub(crate) fn look(&self, elapsed: Duration, figures: impl FnOnce() -> String) {
        if let Some(bars) = &self.bars {
            bars.run.set_position(milliseconds(elapsed));
            bars.run.set_prefix(figures());
        }
    }

    /// A run has ended with this result.
    pub(crate) fn end(&self, result: &str) {
        if let Some(bars) = &self.bars {
            bars.overall.inc(1);
            // A terminal that went away is no reason to stop measuring.
            let _printed = bars.multi.println(result);
        } else if self.lines {
            eprintln!("{result}");
        }
    }

    /// An image of `size_bytes` is laid out up to `done_bytes`.
    pub(crate) fn lay_out(&self, done_bytes: u64) {
        if let Some(bars) = &self.bars {
            bars.run.set_message(format!("image: {}", parse::show_size(done_bytes)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bars) = &self.bars {
            bars.run.finish_and_clear();
            bars.overall.finish_and_clear();
        }
    }
}

impl Bars {
    fn new(runs: u64) -> Self {
        let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(5));
        let overall = multi.add(ProgressBar::new(runs).with_style(style("runs {bar:30} {pos}/{len}")));
        let run = multi.add(ProgressBar::new(0).with_style(style("{msg:24} {bar:30} {prefix}")));
        overall.tick();
        Self { multi, overall, run }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
