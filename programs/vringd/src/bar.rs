//! A bar on a terminal; nothing elsewhere. Always on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// How far a tool is.
#[derive(Debug)]
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    /// For a tool of that name.
    pub(crate) fn new(name: &'static str) -> Bar {
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
    pub(crate) fn show(&self, done_bytes: u64, total_bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total_bytes);
            bar.set_position(done_bytes);
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
