//! Progress on standard error: on a terminal bars with the time left, elsewhere a line when something ends.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::words;

/// Enough to watch, too seldom to be heard in what is measured.
const REDRAWS_PER_S: u8 = 2;

/// Shows how far measuring is.
#[derive(Debug)]
pub struct Progress {
    multi: MultiProgress,
    overall: ProgressBar,
    /// The run under way.
    run: ProgressBar,
    /// Whether lines are said where there is no terminal.
    lines: bool,
}

impl Progress {
    /// For `runs` runs, of which `done` were made before.
    pub fn new(runs: u64, done: u64) -> Self {
        Self::on(ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_S), (runs, done), true)
    }

    /// Shows nothing.
    pub fn silent() -> Self {
        Self::on(ProgressDrawTarget::hidden(), (0, 0), false)
    }

    fn on(target: ProgressDrawTarget, (runs, done): (u64, u64), lines: bool) -> Self {
        let multi = MultiProgress::with_draw_target(target);
        let overall = multi.add(ProgressBar::new(runs).with_position(done));
        overall.set_style(style("{bar:24} {pos}/{len}, {eta} left  {wide_msg}"));
        overall.reset_eta();
        let run = multi.add(ProgressBar::new(0).with_style(style("{bar:24} {prefix}")));
        overall.tick();
        Self { multi, overall, run, lines }
    }

    /// A run of about `length` begins.
    pub fn begin(&self, name: &str, length: Option<Duration>) {
        self.overall.set_message(name.to_owned());
        if let Some(length) = length {
            self.run.reset();
            self.run.set_length(milliseconds(length));
        }
    }

    /// The run has lasted `elapsed`; `figures` say how it goes.
    pub(crate) fn look(&self, elapsed: Duration, figures: impl FnOnce() -> String) {
        if !self.multi.is_hidden() {
            self.run.set_position(milliseconds(elapsed));
            self.run.set_prefix(figures());
        }
    }

    /// A run has ended, of which this is to be said.
    pub fn end(&self, line: &str) {
        self.overall.inc(1);
        self.say(line);
    }

    /// A run has ended, of which nothing need be said where bars are seen.
    pub fn end_quietly(&self, line: &str) {
        self.overall.inc(1);
        if self.multi.is_hidden() {
            self.say(line);
        }
    }

    /// The number of the run under way, and of how many.
    pub fn number(&self) -> String {
        format!("{}/{}", self.overall.position() + 1, self.overall.length().unwrap_or(0))
    }

    /// Says a line without disturbing the bars.
    pub fn say(&self, line: &str) {
        if !self.multi.is_hidden() {
            // A terminal that went away is no reason to stop measuring.
            let _printed = self.multi.println(line);
        } else if self.lines {
            eprintln!("{line}");
        }
    }

    /// An image is laid out up to `done_bytes`.
    pub(crate) fn lay_out(&self, done_bytes: u64) {
        self.overall.set_message(format!("image: {}", words::size(done_bytes)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.run.finish_and_clear();
        self.overall.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
