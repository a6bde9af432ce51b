//! A directory's ring, on a directory of its own that cannot be changed: what a fuzzer makes up would fill the disk.

use super::guest::{Played, play};
use crate::attachment::Attachment;
use crate::calls::Executor;
use crate::directory::{DirectoryRing, Service};
use crate::label::Label;
use crate::{DaxOptions, Policy};
use engine::{Execution, Token};
use passthrough::{Options, Source, Tree};
use std::sync::Arc;
use values::{CachePolicy, DaxWhen};

/// Length of the DAX window.
const WINDOW_BYTES: u64 = 16 << 20;

thread_local! {
    /// Made once for all inputs.
    static SERVED: Option<(Arc<Service>, tempfile::TempDir)> = served();
}

/// A directory with something in it.
pub(super) fn filled() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().ok()?;
    let path = directory.path();
    std::fs::write(path.join("file"), vec![7; 10_000]).ok()?;
    std::fs::create_dir(path.join("directory")).ok()?;
    std::fs::write(path.join("directory/inner"), "inner").ok()?;
    std::os::unix::fs::symlink("file", path.join("link")).ok()?;
    Some(directory)
}

fn served() -> Option<(Arc<Service>, tempfile::TempDir)> {
    let directory = filled()?;
    let options = Options { read_only: true, xattr: true, ..Options::default() };
    let tree = Tree::new(Source::Path(directory.path().to_owned()), options).ok()?;
    // Its frontend has asked for it, and hears of nothing more.
    let dax = Some(DaxOptions { window_bytes: WINDOW_BYTES, when: DaxWhen::Always });
    let service = Service::new(Arc::new(tree), Policy { dax, ..Policy::new(CachePolicy::Auto) });
    service.window()?.shown();
    Some((Arc::new(service), directory))
}

/// Plays one input and returns how many requests were answered. Layout of `data`: options (1), steps; bit 1 of the options
/// is EVENT_IDX.
///
/// # Panics
/// When a request is lost; that is what the fuzzer looks for.
pub fn directory(data: &[u8]) -> usize {
    SERVED.with(|served| {
        let Some((service, _)) = served else {
            return 0;
        };
        // Nobody else's session.
        service.end_session();
        let answered = play(data, |start, _| {
            // Everything on the spot: what waits for a lock would wait for ever.
            let executor = Executor { execution: Execution::Inline, ..Executor::default() };
            let ring = DirectoryRing::new(start, service.clone(), executor, Label::of_nobody()).ok()?;
            Some(Directory { ring })
        });
        service.end_session();
        answered
    })
}

struct Directory {
    ring: DirectoryRing,
}

impl Played for Directory {
    fn ring(&self) -> &dyn Attachment {
        &self.ring
    }

    fn ring_mut(&mut self) -> &mut dyn Attachment {
        &mut self.ring
    }

    fn choose(&mut self, _choice: u8) -> Option<Token> {
        None
    }

    /// A lock that is waited for is answered when the session ends.
    fn waiting(&self) -> Option<usize> {
        None
    }
}
