//! A 9P ring, on a directory of its own that cannot be changed: what a fuzzer makes up would fill the disk.

use super::guest::{Played, play, token_at};
use crate::P9Policy;
use crate::attachment::Attachment;
use crate::calls::Executor;
use crate::label::Label;
use crate::p9::{P9Ring, Service, Session, Siblings};
use engine::{Execution, Token};
use passthrough::{Options, Source, Tree};
use std::sync::Arc;

thread_local! {
    /// Made once for all inputs.
    static SERVED: Option<(Arc<Service>, tempfile::TempDir)> = served();
}

fn served() -> Option<(Arc<Service>, tempfile::TempDir)> {
    let directory = super::directory::filled()?;
    let options = Options { read_only: true, xattr: true, ..Options::default() };
    let tree = Tree::new(Source::Path(directory.path().to_owned()), options).ok()?;
    Some((Service::new(Arc::new(tree), P9Policy::default(), 1), directory))
}

/// Plays one input and returns how many requests were answered. Layout of `data`: options (1), steps; bit 1 of the options
/// is EVENT_IDX, bit 2 says that the client has another ring.
///
/// # Panics
/// When a request is lost; that is what the fuzzer looks for.
pub fn p9(data: &[u8]) -> usize {
    SERVED.with(|served| {
        let Some((service, _)) = served else {
            return 0;
        };
        let rings = Arc::default();
        let other = data.first().is_some_and(|options| options & 4 != 0);
        let _other = other.then(|| Siblings::one_more(&rings));
        play(data, |start, _| {
            let client = (Session::new(service), Siblings::one_more(&rings));
            let executor = Executor { execution: Execution::Inline, ..Executor::default() };
            Some(Served { ring: P9Ring::new(start, client, executor, Label::of_nobody()).ok()? })
        })
    })
}

struct Served {
    ring: P9Ring,
}

impl Played for Served {
    fn ring(&self) -> &dyn Attachment {
        &self.ring
    }

    fn ring_mut(&mut self) -> &mut dyn Attachment {
        &mut self.ring
    }

    fn choose(&mut self, choice: u8) -> Option<Token> {
        let waiting = self.ring.waiting();
        token_at(&waiting, choice).map(|at| waiting[at])
    }

    fn waiting(&self) -> Option<usize> {
        Some(self.ring.waiting().len())
    }
}
