//! What was found out about the mounts of a tree that goes on in another program.

use super::{Facts, Mount, Mounts};
use crate::handover::descriptors::{Incoming, Outgoing};
use crate::handover::error::AdoptError;
use crate::handover::form::{FactsForm, MountForm};
use rustix::io::Errno;
use std::sync::Arc;

impl Mount {
    /// What was found out, for a mount that is as well known.
    pub(crate) fn hand_over(&self, out: &mut Outgoing) -> MountForm {
        let facts = self.facts.get().map(|Facts { file, handles, reports_at_close, windows }| {
            // Shared: where a file is mounted it may be one of a file system that works at each close.
            let file = file.as_ref().map(|file| out.place(file.clone())).map_err(|error| error.raw_os_error());
            let (handles, reports_at_close, windows) = (*handles, *reports_at_close, *windows);
            FactsForm { file, handles, reports_at_close, windows }
        });
        MountForm { id: self.key.id, device: self.key.device, facts }
    }
}

impl Mounts {
    /// The mount of which this was found out, unless it was found out again.
    ///
    /// # Errors
    /// A descriptor that is not there.
    pub(crate) fn adopt(&self, form: &MountForm, incoming: &mut Incoming) -> Result<Arc<Mount>, AdoptError> {
        let mount = self.get(form.key());
        if let Some(FactsForm { file, handles, reports_at_close, windows }) = form.facts {
            let file = match file {
                Ok(place) => Ok(Arc::new(incoming.take(place)?)),
                Err(error) => Err(Errno::from_raw_os_error(error)),
            };
            let _ = mount.facts.set(Facts { file, handles, reports_at_close, windows });
        }
        Ok(mount)
    }
}
