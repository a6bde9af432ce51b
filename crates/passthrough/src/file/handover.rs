//! What the client has open in a tree that goes on in another program.

use super::{Files, OpenFile};
use crate::dir::Stream;
use crate::handover::descriptors::Outgoing;
use crate::handover::form::FileForm;
use crate::ids::Handle;
use crate::share::Place;
use crate::sync::{Counted, read, write};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Files {
    /// Every open file, and the next one's number.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn hand_over(&self, out: &mut Outgoing) -> io::Result<(Vec<FileForm>, Handle)> {
        let mut forms = Vec::with_capacity(self.len());
        for shard in &self.shards {
            let open = read(&shard.0);
            for (&handle, file) in &*open {
                forms.push(FileForm {
                    handle,
                    node: file.node,
                    mount: out.mount(&file.mount)?,
                    flags: file.flags.bits(),
                    place: out.place(file.clone()),
                    listing: file.stream.as_ref().map(Stream::hand_over),
                });
            }
        }
        Ok((forms, self.next.load(Ordering::Relaxed)))
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
