//! What the client has open in a tree that goes on in another program.

use super::{Files, Handle, OpenFile};
use crate::dir::Stream;
use crate::handover::{AdoptError, FileForm, Incoming, NodeForm, Outgoing};
use crate::lock::Place;
use crate::sync::{Counted, lock, read, write};
use crate::tree::{ROOT, Tree};
use rustix::fs::OFlags;
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

    /// No number below this one is given to an open file.
    pub(crate) fn go_on_from(&self, next: Handle) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }
}

impl Tree {
    /// Makes a node again that another program has handed over.
    pub(crate) fn adopt_node(&self, form: &NodeForm, incoming: &mut Incoming) -> Result<(), AdoptError> {
        let mount = incoming.mount(form.mount)?;
        let inode = if form.node == ROOT {
            // Its descriptor was taken first of all.
            self.table.get(ROOT).map_err(|_| AdoptError::NoRoot)?
        } else {
            let path = form.path.map(|place| incoming.take(place)).transpose()?;
            self.table.adopt(form, Arc::clone(&mount), path)?
        };
        if let Some((place, flags)) = form.read {
            let (fd, flags) = (incoming.take(place)?, OFlags::from_bits_retain(flags));
            let stream = inode.kind.is_directory().then(Stream::default);
            let reader = self.reader(&inode, flags);
            let opened = (inode.node, Some(Place::known(&inode.key)), flags);
            self.table.adopt_read(&inode, |place| OpenFile::new((fd, place), opened, mount, stream, reader));
        }
        Ok(())
    }

    /// Makes a file open again that another program has handed over. The client may have forgotten its node.
    pub(crate) fn adopt_file(&self, form: &FileForm, incoming: &mut Incoming) -> Result<(), AdoptError> {
        let (fd, mount) = (incoming.take(form.place)?, incoming.mount(form.mount)?);
        let flags = OFlags::from_bits_retain(form.flags);
        let inode = self.table.get(form.node).ok();
        let stream = form.listing.as_ref().map(|listing| Stream::again(listing, &self.pieces));
        let reader = inode.as_ref().and_then(|inode| self.reader(inode, flags));
        let place = (Counted::new(&self.files.count), self.files.share.take_anyway());
        let at = Place::of(&fd).ok();
        let file = OpenFile::new((fd, place), (form.node, at, flags), mount, stream, reader);
        // Nobody wrote down whether it has a `flock`: it counts as if, until it is unlocked or closed.
        *lock(&file.flock) = at.map(|place| self.flocks.join_anyway(place));
        // Nor whether the file was emptied by it.
        if file.is_writable() {
            file.empties();
        }
        if let Some(inode) = inode {
            lock(&inode.slot).opened(&file);
        }
        match write(self.files.shard(form.handle)).insert(form.handle, file) {
            None => Ok(()),
            Some(_) => Err(AdoptError::Twice(form.node)),
        }
    }
}
