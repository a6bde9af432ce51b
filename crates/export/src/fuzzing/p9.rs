//! A 9P ring, on a directory of its own that cannot be changed: what a fuzzer makes up would fill the disk.

use super::guest::{Played, play, token_at};
use crate::calls::Executor;
use crate::label::Label;
use crate::p9::{Service, Session, Siblings};
use crate::{P9Policy, P9Ring};
use engine::{Completion, Execution, Io};
use passthrough::{Options, Source, Tree};
use std::sync::Arc;
use vring::Memory;

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
    fn serve(&mut self, io: &mut Io<'_>) {
        self.ring.serve(io);
        self.ring.publish(io);
    }

    fn complete(&mut self, choice: u8, io: &mut Io<'_>) {
        let waiting = self.ring.waiting();
        if let Some(place) = token_at(&waiting, choice) {
            self.ring.complete(Completion { token: waiting[place], part: 0, result: 0 }, io);
            self.ring.publish(io);
        }
    }

    fn set_memory(&mut self, memory: Arc<Memory>) {
        self.ring.set_memory(memory);
    }

    fn in_flight(&self) -> (usize, usize) {
        (self.ring.queue().in_flight(), self.ring.waiting().len())
    }
}
