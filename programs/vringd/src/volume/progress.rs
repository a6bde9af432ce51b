//! A bar on a terminal; nothing elsewhere. Always on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use volume::Progress;

/// How far a tool is.
#[derive(Debug)]
pub(super) struct Bar(Option<ProgressBar>);

impl Bar {
    /// For a tool of that name.
    pub(super) fn new(name: &'static str) -> Bar {
        Bar(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            // The template is a constant: a wrong one shows at its first use, and then as the plain bar.
            if let Ok(style) =
                ProgressStyle::with_template("{prefix} [{bar:30}] {binary_bytes}/{binary_total_bytes} {eta}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(name);
            bar
        }))
    }

    /// So far.
    pub(super) fn show(&self, progress: Progress) {
        if let Some(bar) = &self.0 {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
