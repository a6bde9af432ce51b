//! Which files a guest is to map, and requests to do so.

use super::table::{Part, SLOT_BYTES, SLOT_SHIFT};
use super::{Window, is_spoken};
use crate::calls::Cancel;
use crate::directory::Service;
use device::fs::{Dialect, InHeader, Offer, Request, attr_flag, flags};
use passthrough::{Attributes, Tree};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use values::DaxWhen;

/// How long the end of a session waits for the frontend, whose answers the session's thread receives, which may wait for that end because
/// a ring is to stop.
const END_PATIENCE: Duration = Duration::from_secs(2);

impl Service {
    /// Whether requests of this session about the window are to be obeyed.
    pub(in crate::directory) fn maps(&self, dialect: Option<Dialect>) -> bool {
        is_spoken(dialect) && self.shown_window().is_some()
    }

    /// The window, once the frontend has asked for it.
    fn shown_window(&self) -> Option<&Arc<Window>> {
        self.window().filter(|window| window.is_shown())
    }

    /// What a guest is told of the window when it mounts.
    pub(in crate::directory) fn offer_dax(&self, offer: &mut Offer) {
        if let (Some(dax), Some(window)) = (self.policy().dax, self.shown_window()) {
            if !window.can_map() {
                let missing = "an open channel for requests, REPLY_ACK or BACKEND_SEND_FD";
                tracing::warn!(
                    missing,
                    "the frontend has a window and cannot map files there: the guest is offered none"
                );
                return;
            }
            offer.wants |= flags::MAP_ALIGNMENT;
            offer.map_alignment = SLOT_SHIFT;
            if dax.when != DaxWhen::Never {
                offer.wants |= flags::HAS_INODE_DAX;
            }
        }
    }

    /// The flags that tell a guest to map a file, which leaves that to us.
    pub(in crate::directory) fn dax_flags(&self, node: u64, attributes: &Attributes) -> u32 {
        let Some(dax) = self.policy().dax else { return 0 };
        let wants = || match dax.when {
            DaxWhen::Never => false,
            DaxWhen::Inode => self.tree().can_be_mapped(node, true),
            DaxWhen::Always => self.tree().can_be_mapped(node, false),
        };
        let is_asked = || self.dialect().is_some_and(|dialect| dialect.has(flags::HAS_INODE_DAX));
        if Tree::comes_in_pieces(attributes, SLOT_BYTES) && is_asked() && wants() { attr_flag::DAX } else { 0 }
    }

    /// The end of a session that has much to let go of, for a caller with time: waits until the frontend has taken out all.
    pub(in crate::directory) fn wait_until_window_is_empty(&self) {
        if let Some(window) = self.shown_window() {
            let (done, ended) = channel();
            window.when_idle(Box::new(move |_| done.send(()).unwrap_or_default()));
            let _ = ended.recv_timeout(END_PATIENCE);
        }
    }

    /// SETUPMAPPING and REMOVEMAPPING, and DESTROY: `done` is told once, perhaps before this returns.
    pub(in crate::directory) fn wait_for_window(
        &self,
        header: &InHeader,
        request: &Request<'_>,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Option<Arc<dyn Cancel>> {
        let done = Box::new(done);
        let Some(window) = self.shown_window() else {
            done(Err(Errno::NOSYS));
            return None;
        };
        let waiting = match request {
            Request::SetupMapping(setup) => {
                let part = Part { node: header.nodeid, offset: setup.offset };
                let open = || {
                    let opened = self.tree().open_to_map(part.node, part.offset, setup.len);
                    // The caller cannot ask for it once more on a thread with time: it has given `done` away.
                    opened.map_err(|error| if error == Errno::NXIO { Errno::IO } else { error })
                };
                window.map((setup.window_offset, part, setup.len), open, done)
            }
            Request::RemoveMapping(parts) => window.unmap(parts.iter(), done),
            // The guest's machine may be stopped as soon as it hears of that, and QEMU ends when it is told something then.
            Request::Destroy => {
                self.end_session();
                window.when_idle(done)
            }
            _ => {
                done(Err(Errno::INVAL));
                return None;
            }
        };
        Some(waiting)
    }

    /// The guest has forgotten nodes: nothing of one that it does not know is in its memory.
    pub(in crate::directory) fn forgotten(&self, node: Option<u64>) {
        if let Some(window) = self.window() {
            let tree = self.tree();
            window.unmap_where(|mapped| node.is_none_or(|node| node == mapped) && !tree.knows(mapped));
        }
    }
}
