//! What was found out about the mounts of a tree that goes on in another program.

use super::{Facts, Mount, Mounts};
use crate::handover::descriptors::{Incoming, Outgoing};
use crate::handover::error::AdoptError;
use crate::handover::form::{FactsForm, MountForm};
use rustix::io::Errno;
use std::sync::Arc;

impl Mount {
    /// What was found out, for a mount that is as well known.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn hand_over(&self, out: &mut Outgoing) -> std::io::Result<MountForm> {
        let facts = match self.facts.get() {
            None => None,
            Some(Facts { file, handles, reports_at_close, windows }) => {
                let file = match file {
                    Ok(file) => Ok(out.place(Arc::new(file.try_clone()?))),
                    Err(error) => Err(error.raw_os_error()),
                };
                let (handles, reports_at_close, windows) = (*handles, *reports_at_close, *windows);
                Some(FactsForm { file, handles, reports_at_close, windows })
            }
        };
        Ok(MountForm { id: self.key.id, device: self.key.device, facts })
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
                Ok(place) => Ok(incoming.take(place)?),
                Err(error) => Err(Errno::from_raw_os_error(error)),
            };
            let _ = mount.facts.set(Facts { file, handles, reports_at_close, windows });
        }
        Ok(mount)
    }
}
