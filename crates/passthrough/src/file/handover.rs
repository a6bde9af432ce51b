//! What the client has open in a tree that goes on in another program.

use super::{Files, OpenFile};
use crate::dir::Stream;
use crate::handover::descriptors::Outgoing;
use crate::handover::form::FileForm;
use crate::ids::Handle;
use crate::share::Place;
use crate::sync::{Counted, lock, write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Files {
    /// Every open file, and the next one's number.
    pub(crate) fn hand_over(&self, out: &mut Outgoing) -> (Vec<FileForm>, Handle) {
        let mut forms = Vec::with_capacity(self.len());
        for (handle, file) in self.all() {
            forms.push(FileForm {
                handle,
                node: file.node,
                mount: out.mount(&file.mount),
                flags: file.flags.bits(),
                listing: file.stream.as_ref().map(Stream::hand_over),
                place: out.place(file),
            });
        }
        (forms, self.next())
    }

    /// The files that have a `flock`, and whether it is exclusive.
    pub(crate) fn flocks(&self) -> Vec<(Handle, bool)> {
        let all = self.all();
        all.iter().filter_map(|(handle, file)| Some((*handle, lock(&file.flock).kind?.is_exclusive()))).collect()
    }

    /// Room for a file that is open already.
    pub(crate) fn room_anyway(&self) -> Place {
        (Counted::new(&self.count), self.share.take_anyway())
    }

    /// Goes on with an open file by the name that it had; `false` when another has that name.
    pub(crate) fn adopt(&self, handle: Handle, file: Arc<OpenFile>) -> bool {
        write(self.shard(handle)).insert(handle, file).is_none()
    }

    /// No number below this one is given to an open file.
    pub(crate) fn go_on_from(&self, next: Handle) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }
}
